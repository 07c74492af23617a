"""Checkpoints on disk: written atomically, checked when read, the oldest removed.

May import: codec, state, config, errors.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import stat
from pathlib import Path

from p2pnode.config import RunConfig
from p2pnode.errors import CheckpointError, DiskFullError
from p2pnode.train import codec
from p2pnode.train.state import State

_NAME = re.compile(r"run-(?P<run>[0-9a-f]{8})-step-(?P<step>[0-9]{8})\.safetensors")
_BEST = "best-"
_UNFINISHED = ".tmp"


def file_name(run: bytes, step: int) -> str:
    """The name of a run's checkpoint; zero-padded, so that names sort as steps do."""
    return f"run-{run.hex()[:8]}-step-{step:08d}.safetensors"


def _step_in(config: RunConfig, name: str) -> int:
    """The step of a checkpoint's name, if it is one of run `config`, else -1."""
    match = _NAME.fullmatch(name)
    if match is None:
        return -1
    step = int(match["step"])
    return step if config.at(step).run_id().hex()[:8] == match["run"] else -1


def load(path: str | os.PathLike[str], *, damaged: bool = False) -> State:
    """Read and check one checkpoint. Raises CheckpointError; memory is bounded by the file.
    `damaged`: see `codec.decode`."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # a pipe would be waited for
            raise CheckpointError("Cannot read it: it is no file.")
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            prefix = file.read(codec.PREFIX)
            header = codec.header_size(prefix)
            head = prefix + file.read(header - codec.PREFIX)
            expected = codec.total_size(codec.parse_header(head), header)
            if size != expected:
                raise CheckpointError(
                    f"The checkpoint has {size} bytes instead of {expected}: "
                    "it was cut off or added to."
                )
            data = head + file.read(expected - header)
        return codec.decode(data, damaged=damaged)
    except OSError as error:
        raise CheckpointError(f"Cannot read {os.fspath(path)}: {error.strerror}") from None
    except CheckpointError as error:
        raise CheckpointError(f"{os.fspath(path)}: {error}") from None


class CheckpointFolder:
    """The checkpoints of one node; one process at a time writes into a folder."""

    def __init__(self, folder: str | os.PathLike[str], keep: int = 3) -> None:
        """Make the folder if need be and remove what a killed writer left. CheckpointError."""
        if keep < 1:
            raise ValueError("at least one checkpoint is kept")
        self.folder = Path(folder)
        self._keep = keep
        self._good: set[str] = set()
        self.skipped: list[str] = []
        """Names that `newest` passed over because they are damaged."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for path in self.folder.glob(f"*{_UNFINISHED}"):
                if _NAME.fullmatch(path.name.removesuffix(_UNFINISHED).removeprefix(_BEST)):
                    path.unlink(missing_ok=True)
        except OSError as error:
            raise self._cannot_write(error) from None

    @staticmethod
    def files_of(folder: Path, config: RunConfig) -> list[tuple[int, Path]]:
        """(step, path) of all files named as checkpoints of run `config`, the best ones too."""
        found = []
        for path in sorted(folder.glob("*run-*.safetensors")):
            step = _step_in(config, path.name.removeprefix(_BEST))
            if step >= 0:
                found.append((step, path))
        return found

    def newest(self, run: bytes | None = None) -> tuple[Path, State] | None:
        """The valid checkpoint with the most steps (of one run, if its id is given), or None.

        Damaged files are passed over (`skipped`) and left where they are.
        """
        self.skipped = []
        for name in self._names(run):
            try:
                state = load(self.folder / name)
            except CheckpointError:
                self.skipped.append(name)
                continue
            self._good.add(name)
            return self.folder / name, state
        return None

    def newest_of(self, config: RunConfig, last: int) -> State | None:
        """The valid state of run `config` with the most steps, at most `last`; its first steps
        may have been made with earlier settings. None if there is none."""
        for name in self._names(None):
            match = _NAME.fullmatch(name)
            assert match is not None  # only such names are listed
            step = int(match["step"])
            made_by = config.at(step)
            if step > last or made_by.run_id().hex()[:8] != match["run"]:
                continue
            try:
                state = load(self.folder / name)
            except CheckpointError:
                continue
            if state.config == made_by:
                self._good.add(name)
                return state
        return None

    def discard(self, config: RunConfig, after: int) -> None:
        """Remove this run's states of later steps: they hold wrong work."""
        for name in self._names(None):
            if _step_in(config, name) > after:
                with contextlib.suppress(OSError):
                    (self.folder / name).unlink()
                self._good.discard(name)
        for path in self._best_files():
            if _step_in(config, path.name.removeprefix(_BEST)) > after:
                with contextlib.suppress(OSError):
                    path.unlink()

    def save(self, run: bytes, step: int, data: bytes | memoryview, *, spare: bool = False) -> Path:
        """Write the bytes of a committed state so that a crash leaves the old file or the new.

        Then remove this run's checkpoints beyond the newest `keep` good ones. `spare`: only if
        the disk has room for another one after it, since a full disk harms more than this program.
        Raises DiskFullError, or CheckpointError (no permission); nothing unfinished is left behind.
        """
        name = file_name(run, step)
        path = self._write(name, data, spare)
        self._good.add(name)
        self._rotate(run, name)
        return path

    def save_best(self, config: RunConfig, step: int, data: bytes | memoryview) -> Path:
        """Write the state of the lowest held-out loss of run `config`, as `best-NAME`; then remove
        the one before. Rotation leaves it alone. Errors as for `save`."""
        name = _BEST + file_name(config.at(step).run_id(), step)
        path = self._write(name, data, spare=True)
        for old in self._best_files():
            if old.name != name and _step_in(config, old.name.removeprefix(_BEST)) >= 0:
                with contextlib.suppress(OSError):
                    old.unlink()
        return path

    def _best_files(self) -> list[Path]:
        found = self.folder.glob(f"{_BEST}*")
        return [path for path in found if _NAME.fullmatch(path.name.removeprefix(_BEST))]

    def _write(self, name: str, data: bytes | memoryview, spare: bool) -> Path:
        self._check_room(memoryview(data).nbytes * (2 if spare else 1))
        path = self.folder / name
        unfinished = self.folder / (name + _UNFINISHED)
        try:
            with open(unfinished, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(unfinished, path)
            self._sync_folder()
        except OSError as error:
            with contextlib.suppress(OSError):
                unfinished.unlink(missing_ok=True)
            raise self._cannot_write(error) from None
        return path

    def _rotate(self, run: bytes, written: str) -> None:
        good = 0
        for name in self._names(run):
            if good >= self._keep and name != written:
                with contextlib.suppress(OSError):
                    (self.folder / name).unlink()
                self._good.discard(name)
            elif self._is_good(name):
                good += 1

    def _is_good(self, name: str) -> bool:
        """Damaged files must not count among those that are kept."""
        if name not in self._good:
            try:
                load(self.folder / name)
            except CheckpointError:
                return False
            self._good.add(name)
        return True

    def _names(self, run: bytes | None) -> list[str]:
        """Checkpoint names in the folder, most steps first; of equal steps, any fixed order."""
        try:
            matches = [_NAME.fullmatch(name) for name in os.listdir(self.folder)]
        except OSError as error:
            raise CheckpointError(f"Cannot read {self.folder}: {error.strerror}") from None
        wanted = None if run is None else run.hex()[:8]
        found = [m for m in matches if m and wanted in (None, m["run"])]
        return [m[0] for m in sorted(found, key=lambda m: (m["step"], m["run"]), reverse=True)]

    def _check_room(self, wanted: int) -> None:
        try:
            free = shutil.disk_usage(self.folder).free
        except OSError as error:
            raise self._cannot_write(error) from None
        if free < wanted:
            raise DiskFullError(
                f"No checkpoint was written: {self.folder} has {free / 1e6:,.1f} MB free, and "
                f"{wanted / 1e6:,.1f} MB should be."
            )

    def _sync_folder(self) -> None:
        """Make the rename itself durable; Windows has no such call and needs none."""
        if os.name == "nt":
            return
        handle = os.open(self.folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def _cannot_write(self, error: OSError) -> CheckpointError:
        full = error.errno in (errno.ENOSPC, getattr(errno, "EDQUOT", None))  # not on Windows
        kind = DiskFullError if full else CheckpointError
        return kind(f"Cannot write checkpoints to {self.folder}: {error.strerror}.")
