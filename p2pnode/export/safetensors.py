"""Float32 tensors as a safetensors file: the one that other tools read, and back.

May import: train.layout, train.state, limits, errors.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np

from p2pnode.errors import ExportError
from p2pnode.limits import LIMITS
from p2pnode.train.layout import F32
from p2pnode.train.state import little_endian

_PREFIX = 8
_FLOAT = 4


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def parts(tensors: dict[str, F32]) -> Iterator[bytes | memoryview]:
    """The file, piece by piece, so that large ones are not held twice."""
    table: dict[str, object] = {"__metadata__": {"format": "pt"}}  # transformers wants to know
    start = 0
    for name, values in tensors.items():
        stop = start + _FLOAT * values.size
        table[name] = {"dtype": "F32", "shape": values.shape, "data_offsets": (start, stop)}
        start = stop
    header = msgspec.json.encode(table)
    header += b" " * (-len(header) % 8)
    yield len(header).to_bytes(_PREFIX, "little")
    yield header
    for values in tensors.values():
        yield little_endian(values.reshape(-1))


def read(path: Path, shapes: dict[str, tuple[int, ...]]) -> dict[str, F32]:
    """The tensors of exactly these names and shapes, float32. Raises ExportError.

    Nothing is read but what the shapes ask for, and nothing in the file is run.
    """
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(_PREFIX), "little")
            if not 2 <= length <= min(LIMITS.checkpoint_header_bytes, size - _PREFIX):
                raise ExportError(f"{path} is not a safetensors file.")
            table = _table(path, file.read(length))
            _compare(path, table, shapes)
            begin = _PREFIX + length
            found = {}
            for name, shape in shapes.items():
                start, stop = table[name].data_offsets
                if stop - start != _FLOAT * int(np.prod(shape)) or not 0 <= start <= size - begin:
                    raise ExportError(f"{path}: the place of {name} does not fit its shape.")
                file.seek(begin + start)
                raw = file.read(stop - start)
                if len(raw) != stop - start:
                    raise ExportError(f"{path} was cut off: {name} is not whole.")
                found[name] = np.frombuffer(raw, "<f4").astype(np.float32).reshape(shape)
            return found
    except OSError as error:
        raise ExportError(f"Cannot read {path}: {error.strerror}") from None


def _table(path: Path, header: bytes) -> dict[str, _Entry]:
    try:
        table = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
        table.pop("__metadata__", None)
        return {name: msgspec.json.decode(raw, type=_Entry) for name, raw in table.items()}
    except (msgspec.MsgspecError, RecursionError):
        raise ExportError(f"{path} is not a safetensors file: its header differs.") from None


def _compare(path: Path, table: dict[str, _Entry], shapes: dict[str, tuple[int, ...]]) -> None:
    for name, shape in shapes.items():
        if name not in table:
            raise ExportError(f"{path} has no tensor {name}.")
        entry = table[name]
        if entry.dtype != "F32":
            raise ExportError(f"{path}: {name} is {ascii(entry.dtype)[:20]}; it must be F32.")
        if entry.shape != shape:
            raise ExportError(f"{path}: {name} has shape {entry.shape}; it must be {shape}.")
    if extra := sorted(table.keys() - shapes.keys()):
        raise ExportError(f"{path} has a tensor {ascii(extra[0])[:80]} that the model lacks.")
