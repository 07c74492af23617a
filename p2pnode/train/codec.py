"""A state as safetensors bytes: the checkpoint's content and what late joiners receive.

Written by hand because the bytes must be the same from every node and every library version:
weights, then Adam's moments, in layout order; one metadata key with one canonical JSON text and in
it no names, times or versions. Any safetensors reader opens the file. Reading accepts exactly these
bytes: from the metadata the whole header is made again and compared.

May import: state, layout, config, limits, errors.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from p2pnode.config import RunConfig
from p2pnode.errors import CheckpointError, ConfigError
from p2pnode.limits import LIMITS
from p2pnode.train.layout import F32, Layout, layout_of
from p2pnode.train.state import Position, State, little_endian

FORMAT = 1
PREFIX = 8
"""Bytes that hold the header's length."""
_KEY = "p2pnode"
_GROUPS = ("", "adam.m.", "adam.v.")
_FLOAT = 4


class Meta(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The one metadata text of a checkpoint."""

    config: RunConfig
    format: int
    position: Position
    state: str
    """The state's hash, 64 hex digits: a flipped bit anywhere is found."""


class _Header(msgspec.Struct):
    metadata: dict[str, str] = msgspec.field(name="__metadata__")


def encode(state: State) -> memoryview:
    """The canonical bytes of a state."""
    meta = Meta(state.config, FORMAT, state.position, state.hash().hex())
    header = _header(meta)
    data = np.empty(total_size(meta, len(header)), np.uint8)
    data[: len(header)] = np.frombuffer(header, np.uint8)
    start = len(header)
    # Array assignment releases the GIL; joining 300 MB of bytes held it for a second.
    for part in (state.weights, state.m, state.v):
        stop = start + _FLOAT * part.size
        data[start:stop] = np.frombuffer(little_endian(part), np.uint8)
        start = stop
    return data.data


def decode(data: bytes | memoryview, *, damaged: bool = False) -> State:
    """The state in canonical bytes. Raises CheckpointError with a sentence, and runs nothing.

    `damaged`: also values that cannot be right, to find out which they are; never train on them.
    """
    view = memoryview(data)
    meta = parse_header(view)
    start = PREFIX + int.from_bytes(view[:PREFIX], "little")
    size = layout_of(meta.config.model).size
    if len(view) != start + _FLOAT * 3 * size:
        raise CheckpointError(
            f"The checkpoint has {len(view)} bytes instead of {start + _FLOAT * 3 * size}: "
            "it was cut off or added to."
        )
    weights, m, v = (
        _floats(view[start + _FLOAT * i * size : start + _FLOAT * (i + 1) * size]) for i in range(3)
    )
    state = State(meta.config, meta.position, weights, m, v)
    if damaged:
        return state
    flaw = state.flaw()
    if flaw is not None:
        raise CheckpointError(f"The checkpoint cannot be used: it has {flaw}.")
    if state.hash().hex() != meta.state:
        raise CheckpointError("The checkpoint is damaged: its content does not match its hash.")
    return state


def header_size(prefix: bytes | memoryview) -> int:
    """Length of prefix and header from the first 8 bytes. Raises CheckpointError if absurd."""
    length = int.from_bytes(prefix[:PREFIX], "little")
    if len(prefix) < PREFIX or length > LIMITS.checkpoint_header_bytes:
        raise CheckpointError("This is not a checkpoint of p2pnode: it does not begin like one.")
    return PREFIX + length


def parse_header(data: bytes | memoryview) -> Meta:
    """Check everything before the tensors and return the metadata. Raises CheckpointError."""
    head = bytes(data[: header_size(data)])
    try:
        text = msgspec.json.decode(head[PREFIX:], type=_Header).metadata[_KEY]
        meta = msgspec.json.decode(text, type=Meta)
        meta.config.check()
    except (msgspec.MsgspecError, KeyError, RecursionError):
        raise CheckpointError("This is not a checkpoint of p2pnode: its header differs.") from None
    except ConfigError as error:
        raise CheckpointError(f"The checkpoint cannot be used: {error}.") from None
    if meta.format != FORMAT:
        raise CheckpointError(
            f"The checkpoint has format {meta.format}; this version reads format {FORMAT}."
        )
    if head != _header(meta):
        raise CheckpointError("The checkpoint's header is not in its one canonical form.")
    return meta


def total_size(meta: Meta, header: int) -> int:
    """Bytes of the whole file whose prefix and header have `header` bytes."""
    return header + _FLOAT * 3 * layout_of(meta.config.model).size


def _header(meta: Meta) -> bytes:
    """Prefix and header; spaces fill it up so that the tensors are aligned."""
    text = msgspec.json.encode(meta, order="sorted").decode("ascii")
    table: dict[str, object] = {"__metadata__": {_KEY: text}}
    table.update(_entries(layout_of(meta.config.model)))
    header = msgspec.json.encode(table)
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(PREFIX, "little") + header


def _entries(layout: Layout) -> Iterator[tuple[str, object]]:
    for i, group in enumerate(_GROUPS):
        base = i * layout.size
        for t in layout.tensors:
            offsets = (_FLOAT * (base + t.start), _FLOAT * (base + t.stop))
            yield group + t.name, {"dtype": "F32", "shape": t.shape, "data_offsets": offsets}


def _floats(raw: memoryview) -> F32:
    return np.frombuffer(raw, "<f4").astype(np.float32)
