"""What a run is (RunConfig: hashed, the same at every node) and the presets for it.

May import: errors. The settings of one machine (NodeConfig) are in `p2pnode.node_config`.
"""

from __future__ import annotations

import hashlib
import math
import re
from typing import Annotated

import msgspec
from msgspec import Meta

from p2pnode.errors import ConfigError, told

Positive = Annotated[int, Meta(ge=1, le=2**31 - 1)]
BYTES = "bytes"
"""Name of the byte tokenizer in a configuration."""
Hex64 = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]


class ModelConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Shape of the Llama-like decoder. All counts; the head dimension is width / heads."""

    vocab: Annotated[int, Meta(ge=2, le=131_072)]
    width: Annotated[int, Meta(ge=8, le=8_192)]
    layers: Annotated[int, Meta(ge=1, le=128)]
    heads: Annotated[int, Meta(ge=1, le=128)]
    ffn: Annotated[int, Meta(ge=8, le=32_768)]
    seq_len: Annotated[int, Meta(ge=2, le=8_192)]

    @property
    def head_dim(self) -> int:
        return self.width // self.heads


class Past(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings that made the states up to `until`, before they were changed."""

    until: Annotated[int, Meta(ge=1, le=10_000_000)]
    steps: Annotated[int, Meta(ge=1, le=10_000_000)]
    lr: float
    warmup: Annotated[int, Meta(ge=0, le=10_000_000)]


class RunConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Everything the final checkpoint depends on. Its hash is the run's identity.

    Floats are binary64 and survive JSON exactly (shortest round-trip form).
    """

    arithmetic_version: Positive
    gates_digest: Hex64
    """SHA-256 over the outputs of the start-up gates: two nodes with it compute the same bits."""
    data: Hex64
    """SHA-256 of the data manifest (train.data.Manifest)."""
    tokenizer: Annotated[str, Meta(max_length=64)]
    """`bytes`, or the SHA-256 of a tokenizer file."""
    model: ModelConfig
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    steps: Annotated[int, Meta(ge=1, le=10_000_000)]
    slots: Annotated[int, Meta(ge=1, le=1_024)]
    """Micro-batches per optimizer step (M); fixed, whoever computes them."""
    micro_batch: Annotated[int, Meta(ge=1, le=1_024)]
    """Sequences per slot."""
    lr: float
    warmup: Annotated[int, Meta(ge=0, le=10_000_000)]
    lr_floor: float
    """Final learning rate of the cosine schedule, as a fraction of lr."""
    beta1: float
    beta2: float
    eps: float
    weight_decay: float
    clip: float
    init_std: float
    eval_every: Annotated[int, Meta(ge=0, le=10_000_000)]
    """Steps between held-out losses; 0 switches them off."""
    eval_slots: Annotated[int, Meta(ge=1, le=64)]
    """Fixed held-out micro-batches."""
    early_stop: Annotated[int, Meta(ge=0, le=10_000)] = 0
    """The run ends early when so many held-out losses in a row are not below the best before them;
    0: never. Left out of the canonical form if 0, so that older runs keep their hashes."""
    probe: Annotated[str, Meta(pattern=r"^([0-9a-f]{64})?$")] = ""
    """SHA-256 of how the tokenizer encodes a probe text; empty for bytes, so that configurations
    from before there was this field keep their hashes."""
    past: Annotated[tuple[Past, ...], Meta(max_length=32)] = ()
    """What this run's first steps were made with, if it continues another run."""
    init: Annotated[str, Meta(pattern=r"^([0-9a-f]{64})?$")] = ""
    """Name of the weights it starts from (`first_weights`); empty: those that the seed makes."""

    def canonical(self) -> bytes:
        """The one JSON form of this configuration (sorted keys, no spaces)."""
        return msgspec.json.encode(self, order="sorted")

    def run_id(self) -> bytes:
        """SHA-256 of the canonical form, 32 bytes."""
        return hashlib.sha256(self.canonical()).digest()

    @property
    def tokens_per_slot(self) -> int:
        return self.micro_batch * self.model.seq_len

    def at(self, step: int) -> RunConfig:
        """The configuration that makes state `step`: this one, or one of its past."""
        for i, old in enumerate(self.past):
            if step <= old.until:
                return msgspec.structs.replace(
                    self, steps=old.steps, lr=old.lr, warmup=old.warmup, past=self.past[:i]
                )
        return self

    def changed(
        self, after: int, *, steps: int | None, lr: float | None, warmup: int | None
    ) -> RunConfig:
        """The run that goes on from state `after` of this one with other settings (None: as they
        are). Raises ConfigError with a sentence."""
        old = self.at(after)
        new = (
            self.steps if steps is None else steps,
            self.lr if lr is None else lr,
            self.warmup if warmup is None else warmup,
        )
        if new == (self.steps, self.lr, self.warmup):
            raise ConfigError("the run has these settings already")
        if after < 1:
            raise ConfigError("the run has no step yet that another could go on from")
        if new[0] <= after:
            raise ConfigError(f"step {after} is taken: steps must be more than that")
        past = Past(after, old.steps, old.lr, old.warmup)
        config = msgspec.structs.replace(
            self, steps=new[0], lr=new[1], warmup=new[2], past=(*old.past, past)
        )
        return parse_run_config(config.canonical())

    def check(self) -> None:
        """Raise ConfigError with one sentence if no run could have this configuration."""
        m = self.model
        if m.width % m.heads:
            raise ConfigError(f"width {m.width} is not a multiple of heads {m.heads}")
        if m.head_dim % 2:
            raise ConfigError(f"head dimension {m.head_dim} must be even (rotary pairs)")
        if self.tokens_per_slot > 131_071:
            raise ConfigError(
                f"a slot has {self.tokens_per_slot} tokens; at most 131,071 keep its sums exact. "
                "Lower micro_batch or seq_len."
            )
        for name, low, high in (
            ("lr", 0.0, 1.0),
            ("lr_floor", 0.0, 1.0),
            ("beta1", 0.0, 0.9999),
            ("beta2", 0.0, 0.999999),
            ("eps", 1e-12, 1e-2),
            ("weight_decay", 0.0, 10.0),
            ("clip", 1e-6, 1e6),
            ("init_std", 1e-6, 1.0),
        ):
            value = getattr(self, name)
            if not (math.isfinite(value) and low <= value <= high):
                raise ConfigError(f"{name} is {value}; it must lie between {low:g} and {high:g}")
        if self.early_stop and not self.eval_every:
            raise ConfigError("early_stop needs held-out losses: set eval_every")
        ends = [0, *(past.until for past in self.past)]
        if any(a >= b for a, b in zip(ends, [*ends[1:], self.steps], strict=True)) or any(
            past.until > past.steps or not (math.isfinite(past.lr) and 0.0 <= past.lr <= 1.0)
            for past in self.past
        ):
            raise ConfigError("the steps of its earlier settings do not follow each other")


def parse_run_config(raw: bytes) -> RunConfig:
    """Decode and check a canonical RunConfig. Raises ConfigError with a sentence."""
    try:
        config = msgspec.json.decode(raw, type=RunConfig)
    except msgspec.MsgspecError as error:
        raise ConfigError(_sentence(told(error))) from None
    config.check()
    return config


def _sentence(error: str) -> str:
    """The library's words about one number that is out of bounds, as its owner would say it."""
    if bound := re.fullmatch(r"Expected `int` (<=|>=) (\d+) - at `\$\.(?:model\.)?(\w+)`", error):
        sign, number, name = bound.groups()
        return f"{name} must be at {'most' if sign == '<=' else 'least'} {int(number):,}"
    if number := re.fullmatch(r"Expected `float`, got `null` - at `\$\.(\w+)`", error):
        return f"{number[1]} must be a finite number"  # JSON has no other ones
    return f"not a run configuration: {error}"


class Preset(msgspec.Struct, frozen=True):
    """Defaults of one model size; every one can be overridden when a run is made."""

    model: ModelConfig
    micro_batch: int
    slots: int
    steps: int
    lr: float
    warmup: int
    about: str


def _model(width: int, layers: int, heads: int, ffn: int, seq_len: int) -> ModelConfig:
    return ModelConfig(vocab=256, width=width, layers=layers, heads=heads, ffn=ffn, seq_len=seq_len)


PRESETS = {
    "nano": Preset(_model(32, 3, 2, 96, 64), 2, 16, 200, 6e-3, 20, "50 k parameters, for tests"),
    "tiny": Preset(_model(96, 4, 3, 256, 128), 2, 16, 500, 3e-3, 40, "0.5 M parameters, minutes"),
    "small": Preset(
        _model(256, 6, 4, 704, 256), 4, 16, 2_000, 1.5e-3, 100, "5 M parameters, hours"
    ),
    "medium": Preset(
        _model(512, 8, 8, 1408, 512), 4, 32, 10_000, 8e-4, 300, "25 M parameters, days"
    ),
}

OPTIMIZER_DEFAULTS = {
    "lr_floor": 0.1,
    "beta1": 0.9,
    "beta2": 0.95,
    "eps": 1e-8,
    "weight_decay": 0.1,
    "clip": 1.0,
    "init_std": 0.02,
}


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What a host asks for: a preset and what it overrides (None: the preset's value)."""

    preset: str = "tiny"
    width: int | None = None
    layers: int | None = None
    heads: int | None = None
    ffn: int | None = None
    seq_len: int | None = None
    micro_batch: int | None = None
    slots: int | None = None
    steps: int | None = None
    lr: float | None = None
    warmup: int | None = None
    seed: int = 0
    eval_every: int = 50
    early_stop: int = 0

    def check(self) -> None:
        """Raise ConfigError now for what would make every configuration impossible."""
        self.config(arithmetic_version=1, gates_digest="0" * 64, data="0" * 64)

    def config(
        self,
        *,
        arithmetic_version: int,
        gates_digest: str,
        data: str,
        tokenizer: str = BYTES,
        probe: str = "",
        vocabulary: int = 256,
    ) -> RunConfig:
        """The run configuration these options mean. Raises ConfigError with a sentence.

        tokenizer, probe: as in RunConfig. vocabulary: the model's.
        """
        preset = PRESETS.get(self.preset)
        if preset is None:
            raise ConfigError(f"no preset {self.preset!r}; there are {', '.join(PRESETS)}")
        shape = {
            name: value
            for name in ("width", "layers", "heads", "ffn", "seq_len")
            if (value := getattr(self, name)) is not None
        }
        steps = preset.steps if self.steps is None else self.steps
        warmup = min(preset.warmup, steps // 5) if self.warmup is None else self.warmup
        config = RunConfig(
            arithmetic_version=arithmetic_version,
            gates_digest=gates_digest,
            data=data,
            tokenizer=tokenizer,
            probe=probe,
            model=msgspec.structs.replace(preset.model, vocab=vocabulary, **shape),
            seed=self.seed,
            steps=steps,
            slots=preset.slots if self.slots is None else self.slots,
            micro_batch=preset.micro_batch if self.micro_batch is None else self.micro_batch,
            lr=preset.lr if self.lr is None else self.lr,
            warmup=warmup,
            eval_every=self.eval_every,
            eval_slots=4,
            early_stop=self.early_stop,
            past=(),
            init="",
            **OPTIMIZER_DEFAULTS,
        )
        # Bounds are declared once, on the fields; decoding is what enforces them.
        return parse_run_config(config.canonical())
