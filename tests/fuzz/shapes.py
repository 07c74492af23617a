"""Values of every type that strangers' bytes are decoded as, found by looking at the decoders.

A type is walked by msgspec's own description of it, so a new message or field is covered by itself.
`values` gives valid ones in wire form (lists, maps, numbers, text, bytes), `damaged` the same with
a few places changed to what should not be there.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import msgspec
from hypothesis import strategies as st
from msgspec import inspect

import p2pnode
import signaling

Wire = Any
"""What msgspec encodes: None, bool, int, float, str, bytes, list, dict."""

FEW = 4
"""Elements of an array, at most; the sizes at the bounds are added by `damaged`."""


def modules() -> Iterator[ModuleType]:
    """Every module of the two packages but the ones that run when imported, and those that need
    PyTorch where it is not installed."""
    for package in (p2pnode, signaling):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if found.name.endswith("__main__"):
                continue
            try:
                yield importlib.import_module(found.name)
            except ModuleNotFoundError as error:
                if error.name != "torch":
                    raise


def decoders() -> dict[str, msgspec.msgpack.Decoder[Any] | msgspec.json.Decoder[Any]]:
    """All decoders of the two packages, by `module.name`."""
    kinds = (msgspec.msgpack.Decoder, msgspec.json.Decoder)
    return {
        f"{module.__name__}.{name}": value
        for module in modules()
        for name, value in vars(module).items()
        if isinstance(value, kinds)
    }


def values(kind: Any) -> st.SearchStrategy[Wire]:
    """Valid values of a type, in wire form."""
    return _of(inspect.type_info(kind))


def _of(info: inspect.Type) -> st.SearchStrategy[Wire]:
    match info:
        case inspect.NoneType():
            return st.none()
        case inspect.BoolType():
            return st.booleans()
        case inspect.IntType():
            low = info.ge if info.ge is not None else -(2**63)
            high = info.le if info.le is not None else 2**63 - 1
            return st.sampled_from(sorted({low, high})) | st.integers(low, min(high, low + 40))
        case inspect.FloatType():
            return st.floats(info.ge, info.le, allow_nan=False, allow_infinity=False)
        case inspect.StrType() if info.pattern is not None:
            return st.from_regex(info.pattern, fullmatch=True)
        case inspect.StrType():
            return st.text(min_size=info.min_length or 0, max_size=min(info.max_length or 20, 20))
        case inspect.BytesType():
            least, most = info.min_length or 0, info.max_length or 64
            sizes = st.sampled_from(sorted({least, min(most, least + 3)}))
            # Few different ones, so that values name the same things again.
            return st.builds(lambda byte, size: bytes([byte]) * size, st.integers(0, 4), sizes)
        case inspect.LiteralType():
            return st.sampled_from(info.values)
        case inspect.UnionType():
            return st.one_of([_of(part) for part in info.types])
        case inspect.VarTupleType() | inspect.ListType():
            least = info.min_length or 0
            return st.lists(_of(info.item_type), min_size=least, max_size=max(least, FEW))
        case inspect.TupleType():
            return st.tuples(*(_of(part) for part in info.item_types)).map(list)
        case inspect.DictType():
            return st.dictionaries(_of(info.key_type), _of(info.value_type), max_size=FEW)
        case inspect.StructType():
            return _struct(info)
        case inspect.DataclassType():
            return st.fixed_dictionaries({f.encode_name: _of(f.type) for f in info.fields})
    raise NotImplementedError(f"no values for {info}")


def _struct(info: inspect.StructType) -> st.SearchStrategy[Wire]:
    fields = [(field.encode_name, _of(field.type)) for field in info.fields]
    tag = [] if info.tag is None else [st.just(info.tag)]
    if info.array_like:
        return st.tuples(*tag, *(strategy for _, strategy in fields)).map(list)
    named = dict(fields)
    if info.tag is not None:
        named[info.tag_field or "type"] = st.just(info.tag)
    return st.fixed_dictionaries(named)


def tags(kind: Any) -> dict[str, Any]:
    """The messages of a type by name: the members of a union, else the type itself."""
    info = inspect.type_info(kind)
    parts = info.types if isinstance(info, inspect.UnionType) else (info,)
    return {part.cls.__name__: part.cls for part in parts if isinstance(part, inspect.StructType)}


_JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([-1, 0, 1, 63, 64, 65, 1023, 1024, 2**31, 2**53, 2**63, 2**64 - 1, -(2**63)]),
    st.sampled_from([float("nan"), float("inf"), -0.0, 1e308]),
    st.sampled_from(["", "\x1b[2J", "\x00", "A" * 4096, "\u202e", "../../x", "%s%n{0}"]),
    st.sampled_from([b"", b"\xff" * 31, b"\x00" * 32, b"z" * 70_000]),
    st.sampled_from([[], {}, [[]], {"": {}}, list(range(2_000)), [[0] * 70] * 70]),
)


@st.composite
def damaged(draw: st.DrawFn, intact: st.SearchStrategy[Wire]) -> Wire:
    """A value with up to three places replaced, doubled, swapped or left out."""
    value = draw(intact)
    for _ in range(draw(st.integers(1, 3))):
        value = _damage(draw, value)
    return value


def _damage(draw: st.DrawFn, value: Wire) -> Wire:
    if isinstance(value, list) and value:
        place = draw(st.integers(0, len(value) - 1))
        match draw(st.integers(0, 5)):
            case 0:
                return value[:place] + value[place + 1 :]
            case 1:
                return value[: place + 1] + value[place:]
            case 2:
                other = draw(st.integers(0, len(value) - 1))
                return [*value[:place], value[other], *value[place + 1 :]]
            case _:
                return [*value[:place], _damage(draw, value[place]), *value[place + 1 :]]
    if isinstance(value, dict) and value:
        name = draw(st.sampled_from(sorted(value, key=repr)))
        if draw(st.booleans()):
            return {**value, name: _damage(draw, value[name])}
        return {key: kept for key, kept in value.items() if key != name}
    return draw(_JUNK)
