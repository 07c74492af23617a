"""Checkpoint files of a run, good and bad ones, compared with the states that they should hold.

May import: checkpoint, state, config, errors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from p2pnode.config import RunConfig
from p2pnode.errors import CheckpointError
from p2pnode.train.checkpoint import CheckpointFolder, load
from p2pnode.train.state import State


class RunFiles:
    """The checkpoints of a run in a folder, good and bad."""

    def __init__(self, folder: Path, config: RunConfig, hash_of: Callable[[int], str]) -> None:
        """`hash_of`: the hash (hex) that the state of a step should have, from step 1 on."""
        self._hash_of = hash_of
        self._paths: dict[int, list[Path]] = {}
        for step, path in CheckpointFolder.files_of(folder, config):
            self._paths.setdefault(step, []).append(path)

    def nearest(self, most: int) -> State | None:
        """The state of the newest good checkpoint of at most `most` steps that is the ledger's."""
        for step in sorted(self._paths, reverse=True):
            for path in self._paths[step] if 0 < step <= most else ():
                try:
                    state = load(path)
                except CheckpointError:
                    continue  # compared when its step is computed, if that is asked for
                if state.hash().hex() == self._hash_of(step):
                    return state
        return None

    def differences(self, state: State) -> Iterator[str]:
        """Sentences on files of this state's step that hold something else."""
        for path in self._paths.get(state.step, ()):
            try:
                other = load(path, damaged=True)
            except CheckpointError as error:
                yield f"{path.name} cannot be read: {error}"
                continue
            if other.position != state.position or other.config != state.config:
                yield f"{path.name} is not state {state.step}: its schedule or settings differ."
                continue
            found = _first_value(state, other)
            if found is not None:
                yield f"{path.name} is not state {state.step}: {found}."
            elif _is_damaged(path):
                yield f"{path.name} is damaged: its content is right, the hash in it is not."


def _is_damaged(path: Path) -> bool:
    try:
        load(path)
    except CheckpointError:
        return True
    return False


def _first_value(right: State, wrong: State) -> str | None:
    """Where two states differ first, by tensor."""
    for t in right.layout.tensors:
        for what, a, b in (
            ("weights", right.weights, wrong.weights),
            ("first moment", right.m, wrong.m),
            ("second moment", right.v, wrong.v),
        ):
            bits = a[t.start : t.stop].view("<u4"), b[t.start : t.stop].view("<u4")
            places = (bits[0] != bits[1]).nonzero()[0]
            if places.size:
                i = int(places[0])
                return (
                    f"{t.name}, {what} differ{'' if what == 'weights' else 's'} in {places.size} "
                    f"of {bits[0].size} values, first at {i}: bits {int(bits[1][i]):08x} instead "
                    f"of {int(bits[0][i]):08x}"
                )
    return None
