"""Reproduction bundles: a folder with all that is needed to compute a disputed result again.

    case.json           what was disputed, what was stated about it and what was computed here
    state.safetensors   the state before the step, a checkpoint like any other
    sums.i32            an optimizer step only: the sum of all gradients, int32 little-endian

A slot's token ids are in the case, so the training text is not needed. Nothing in a bundle is code.

May import: train, errors, limits.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from p2pnode import __version__
from p2pnode.errors import CheckpointError, DiskFullError, told
from p2pnode.limits import LIMITS
from p2pnode.train import codec
from p2pnode.train.arithmetic import kernels
from p2pnode.train.checkpoint import load
from p2pnode.train.evidence import GradientSum, SlotEvidence
from p2pnode.train.finder import Difference
from p2pnode.train.state import State, little_endian
from p2pnode.train.windows import Tokens

FORMAT = 1
CASE, STATE, SUMS = "case.json", "state.safetensors", "sums.i32"
_NAME = re.compile(r"wrong-run-[0-9a-f]{8}-step-[0-9]{8}-(slot-[0-9]{4}|apply)(-[0-9]+)?")
_UNFINISHED = ".tmp"


class _Case(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What every case tells. Steps count from 1: step t makes state t."""

    step: int
    peer: str
    """Whose statement it is, hex; empty: the node's that wrote the bundle."""
    difference: Difference | None
    """The first difference between kernels in use and reference at the node that wrote this."""
    format: int = FORMAT
    program: str = __version__
    machine: str = msgspec.field(default_factory=platform.machine)
    backend: str = ""
    demoted: dict[str, str] = {}


class SlotCase(_Case, frozen=True, kw_only=True, tag="slot"):
    """A slot's gradient."""

    slot: int
    inputs: list[list[int]]
    targets: list[list[int]]
    stated: SlotEvidence | None
    """None: that it is not finite."""
    computed: SlotEvidence | None
    """By the reference kernels of the node that wrote this; None: not finite."""


class ApplyCase(_Case, frozen=True, kw_only=True, tag="apply"):
    """An optimizer step. Hashes of the state after it, hex."""

    max_abs: tuple[int, ...]
    stated: str
    computed: str


Case = SlotCase | ApplyCase


class Bundle(msgspec.Struct, frozen=True):
    """One as read."""

    case: Case
    state: State
    sums: GradientSum | None


class Bundles:
    """Writes bundles into a node's output folder, at most LIMITS.bundles of them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def slot(
        self,
        state: State,
        inputs: Tokens,
        targets: Tokens,
        *,
        slot: int,
        peer: bytes,
        stated: SlotEvidence | None,
        computed: SlotEvidence | None,
        ops: kernels.Kernels,
        difference: Difference | None,
    ) -> Path:
        """Save a disputed gradient. Raises CheckpointError with the reason if it cannot be."""
        case = SlotCase(
            step=state.step + 1,
            slot=slot,
            peer=peer.hex(),
            inputs=inputs.tolist(),
            targets=targets.tolist(),
            stated=stated,
            computed=computed,
            difference=difference,
            backend=ops.backend,
            demoted=dict(ops.demoted),
        )
        return self._write(f"slot-{slot:04d}", case, state, None)

    def apply(
        self,
        state: State,
        total: NDArray[np.int32],
        max_abs: tuple[int, ...],
        *,
        peer: bytes,
        stated: bytes,
        computed: bytes,
        ops: kernels.Kernels,
        difference: Difference | None,
    ) -> Path:
        """Save a disputed optimizer step from `state`. Raises CheckpointError."""
        case = ApplyCase(
            step=state.step + 1,
            peer=peer.hex(),
            max_abs=max_abs,
            stated=stated.hex(),
            computed=computed.hex(),
            difference=difference,
            backend=ops.backend,
            demoted=dict(ops.demoted),
        )
        return self._write("apply", case, state, total)

    def _write(self, what: str, case: Case, state: State, total: NDArray[np.int32] | None) -> Path:
        run = state.config.run_id().hex()[:8]
        name = f"wrong-run-{run}-step-{case.step:08d}-{what}"
        parts = {CASE: memoryview(_pretty(case)), STATE: codec.encode(state)}
        if total is not None:
            parts[SUMS] = little_endian(total)
        size = sum(part.nbytes for part in parts.values())
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            kept = [p for p in os.listdir(self._folder) if _NAME.fullmatch(p)]
            if len(kept) >= LIMITS.bundles:
                raise CheckpointError(
                    f"No bundle was saved: {self._folder} holds {len(kept)} already. Remove old "
                    "ones (wrong-…) to have new ones."
                )
            if shutil.disk_usage(self._folder).free < 2 * size:
                raise DiskFullError(f"No bundle was saved: the disk of {self._folder} is full.")
            path = self._folder / name
            number = 1
            while path.exists():
                number += 1
                path = self._folder / f"{name}-{number}"
            unfinished = self._folder / (path.name + _UNFINISHED)
            shutil.rmtree(unfinished, ignore_errors=True)  # of a killed writer
            try:
                unfinished.mkdir()
                for part, data in parts.items():
                    with open(unfinished / part, "wb") as file:
                        file.write(data)
                        file.flush()
                        os.fsync(file.fileno())
                os.replace(unfinished, path)
            except OSError:
                with contextlib.suppress(OSError):
                    shutil.rmtree(unfinished, ignore_errors=True)
                raise
        except OSError as error:
            raise CheckpointError(
                f"No bundle was saved to {self._folder}: {error.strerror}."
            ) from None
        return path


def read(folder: Path) -> Bundle:
    """Read and check a bundle. Raises CheckpointError with a sentence; runs nothing."""
    try:
        with open(folder / CASE, "rb") as file:
            text = file.read(LIMITS.bundle_case_bytes + 1)
        if len(text) > LIMITS.bundle_case_bytes:
            raise CheckpointError(f"{folder / CASE} is larger than any bundle's.")
        case: Case = msgspec.json.decode(text, type=Case)
        state = load(folder / STATE)
        sums = _sums(folder / SUMS, state) if isinstance(case, ApplyCase) else None
    except FileNotFoundError as error:
        if not folder.is_dir():
            raise CheckpointError(f"Cannot read the bundle {folder}: {error.strerror}.") from None
        lacks = Path(error.filename).name
        raise CheckpointError(
            f"{folder} is no bundle that a node saved (wrong-run-…): it lacks {lacks}."
        ) from None
    except OSError as error:
        raise CheckpointError(f"Cannot read the bundle {folder}: {error.strerror}.") from None
    except (msgspec.MsgspecError, RecursionError) as error:
        raise CheckpointError(f"{folder / CASE} is not a bundle's: {told(error)}.") from None
    flaw = _flaw(case, state)
    if flaw is not None:
        raise CheckpointError(f"The bundle {folder} cannot be used: {flaw}.")
    return Bundle(case, state, sums)


def _sums(path: Path, state: State) -> GradientSum:
    size = 4 * state.layout.size
    with open(path, "rb") as file:
        raw = file.read(size + 1)
    if len(raw) != size:
        raise CheckpointError(f"{path} does not hold one sum for each parameter.")
    return np.frombuffer(raw, "<i4").astype(np.int32)


def _flaw(case: Case, state: State) -> str | None:
    config = state.config
    if case.format != FORMAT:
        return f"it has format {case.format}, this version reads {FORMAT}"
    if case.step != state.step + 1:
        return f"its state is of step {state.step}, its case of step {case.step}"
    if isinstance(case, ApplyCase):
        good = len(case.max_abs) == len(state.layout.tensors)
        good = good and all(0 <= n < 2**31 for n in case.max_abs)
        return None if good else "its largest gradients are not one for each tensor"
    if not 0 <= case.slot < config.slots:
        return f"its run has no slot {case.slot}"
    for ids in (case.inputs, case.targets):
        shape = [len(row) for row in ids]
        if shape != [config.model.seq_len] * config.micro_batch:
            return "its token ids are not one micro-batch"
        if not all(0 <= token < config.model.vocab for row in ids for token in row):
            return "it has token ids outside the vocabulary"
    return None


def _pretty(case: Case) -> bytes:
    return msgspec.json.format(msgspec.json.encode(case, order="sorted"), indent=1)
