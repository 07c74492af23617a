"""The weights a run starts from where they were given to it (`--init`): their name, their file.

A run's configuration holds their name, which is that of their bytes as a blob (`protocol.fetch`),
so members ask each other for them by it, and whoever sends others is found out.
May import: share, export, protocol.fetch, train, config, errors.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec
import numpy as np

from p2pnode.config import ModelConfig, RunConfig
from p2pnode.errors import CheckpointError
from p2pnode.export import files, hf
from p2pnode.protocol.fetch import Blob
from p2pnode.share import share
from p2pnode.train import tokenizer
from p2pnode.train.layout import F32, layout_of
from p2pnode.train.state import little_endian


@dataclasses.dataclass(frozen=True)
class FirstWeights:
    """Flat float32 [P], and the same as it is handed to members."""

    values: F32
    blob: Blob

    @property
    def name(self) -> str:
        """`RunConfig.init`."""
        return self.blob.root.hex()


def given(
    config: RunConfig, export: Path | None, folder: Path, *, resumed: bool
) -> tuple[RunConfig, FirstWeights | None]:
    """At the host: the run's configuration with the name of its weights, and these.

    export: what `--init` names. folder: of the checkpoints, where they are kept from now on. None:
    the seed makes them. Raises ExportError, CheckpointError, DataError.
    """
    if export is None:
        first = kept(folder, config) if config.init else None
        if config.init and first is None:
            raise CheckpointError(
                f"The run began with given weights, and {_path(folder, config.init)} is not here: "
                "copy it from another machine, or give --init as then."
            )
        return config, first
    values = hf.load(export, config.model, tokenizer.beside(config.tokenizer, folder))
    first = _made(values)
    if resumed and first.name != config.init:
        raise CheckpointError(
            "The run to be resumed did not begin with these weights; leave --init out."
        )
    keep(folder, first)
    return msgspec.structs.replace(config, init=first.name), first


def size_of(model: ModelConfig) -> int:
    """Bytes of a model's weights."""
    return 4 * layout_of(model).size


def keep(folder: Path, first: FirstWeights) -> None:
    """Write them beside the checkpoints, for a resume. Raises ExportError."""
    files.make_folder(folder)
    files.write(_path(folder, first.name), [little_endian(first.values)])


def kept(folder: Path, config: RunConfig) -> FirstWeights | None:
    """Those of a run from its folder; None if they are not there. Raises CheckpointError."""
    path = _path(folder, config.init)
    try:
        with open(path, "rb") as file:
            return read(file.read(size_of(config.model) + 1), config)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise CheckpointError(f"Cannot read {path}: {error.strerror}") from None


def read(raw: bytes, config: RunConfig) -> FirstWeights:
    """Those of a run from their bytes. Raises CheckpointError if they are others."""
    if len(raw) == size_of(config.model):
        first = _made(np.frombuffer(raw, "<f4").astype(np.float32))
        if first.name == config.init and np.isfinite(first.values).all():
            return first
    raise CheckpointError("The weights that the run begins with are damaged, or others.")


def _made(values: F32) -> FirstWeights:
    return FirstWeights(values, share(bytes(little_endian(values))))


def _path(folder: Path, name: str) -> Path:
    return folder / f"init-{name[:16]}.f32"
