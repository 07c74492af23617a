"""How much memory a run takes at one node, told before it begins.

An upper estimate from the sizes of what is held at the same time; the shares are those of
docs/LIMITS.md. May import: config, layout, limits.
"""

from __future__ import annotations

import dataclasses

from p2pnode.config import RunConfig
from p2pnode.limits import LIMITS, MIB
from p2pnode.train.layout import layout_of

PROGRAM = 220 * MIB
"""Python, the libraries and the compiled kernels."""
COMPILING = 190 * MIB
"""What compiling the kernels takes on top and does not give back."""


@dataclasses.dataclass(frozen=True)
class Footprint:
    """Bytes, by what they are for."""

    program: int
    states: int
    """Weights and two moments, of the committed state and of the pending one; and the weights that
    the run began with, if they were given, as they are and as they are handed to members."""
    frozen: int
    """One serialised state: a checkpoint on its way to disk, or what joiners are given."""
    gradients: int
    """A slot's gradient, before and after rounding, the matrices in integers and laid out for
    products, and the sums of the step: of a set, and of that of the step before until it is
    committed, of what others sent, of own shards, and of all."""
    kept: int
    """Averages of past steps, for nodes that fell behind, as far as they are in memory."""
    spooled: int
    """Bytes of them that lie on disk instead."""
    audits: int
    """Two older states, and a set of another node that is computed again."""
    activations: int
    """What one micro-batch keeps for its backward pass."""
    text: int
    compiling: int = 0
    """If the kernels have to be compiled first."""

    @property
    def total(self) -> int:
        """Memory."""
        return int(sum(dataclasses.astuple(self))) - self.spooled

    def __str__(self) -> str:
        parts = {
            "program": self.program,
            "model and optimizer": self.states + self.frozen,
            "gradients and sums": self.gradients + self.kept,
            "audits": self.audits,
            "activations": self.activations,
            "text": self.text,
        }
        if self.compiling:
            parts["compiling the kernels, this once"] = self.compiling
        text = ", ".join(f"{name} {megabytes(size)}" for name, size in parts.items())
        disk = f"; on disk, for the moment, averages {megabytes(self.spooled)}"
        return text + (disk if self.spooled else "")


def footprint(
    config: RunConfig, text_bytes: int, *, audits: bool = True, compiling: bool = False
) -> Footprint:
    """Peak memory of one node. `text_bytes`: size of the training text; `audits`: whether it
    computes work of others again; `compiling`: whether the kernels must be compiled."""
    size = layout_of(config.model).size
    state = 3 * 4 * size
    kept = LIMITS.kept_steps * 4 * size
    # One step at least, one that is being applied, and one on its way to the disk.
    here = min(kept, 4 * size * (max(1, LIMITS.kept_bytes // (4 * size)) + 2))
    return Footprint(
        program=PROGRAM,
        states=2 * state + (2 * 4 * size if config.init else 0),
        frozen=state,
        gradients=(4 + 4 + 7 + 5 * 4) * size,
        kept=here,
        spooled=kept - here,
        audits=2 * (state + 7 * size) + 4 * size if audits else 0,
        activations=config.tokens_per_slot * _per_token(config),
        # As read, as one text, and as handed to members that lack it.
        text=(3 if text_bytes <= LIMITS.shared_data_bytes else 2) * text_bytes,
        compiling=COMPILING if compiling else 0,
    )


def _per_token(config: RunConfig) -> int:
    """Bytes that forward and backward pass hold for a token; within 5 % of what was measured."""
    m = config.model
    layer = 4 * (8 * m.width + 3 * m.ffn) + 3 * m.width  # float32 activations, int8 q, k, v
    passing = 4 * (8 * m.width + 5 * m.ffn)  # gradients of one layer, and what they multiply
    return m.layers * layer + passing + 4 * m.vocab


def megabytes(size: int) -> str:
    """For people: `680 MB`, `2.2 GB`."""
    return f"{size / 1e6:,.0f} MB" if size < 1e9 else f"{size / 1e9:,.1f} GB"
