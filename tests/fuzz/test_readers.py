"""Each reader of strangers' bytes against any bytes, good ones that were damaged, and a corpus."""

from __future__ import annotations

import re
from inspect import getsource as inspect_source
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import inspect

from tests.fuzz import shapes
from tests.fuzz.effort import effort
from tests.fuzz.readers import READERS, allocated, read, seeds

CORPUS = Path(__file__).parent / "corpus"
QUICK = effort(30)


def parts(kind: object) -> set[str]:
    """Names of all structures inside a type."""
    seen: set[str] = set()
    todo = [inspect.type_info(kind)]
    while todo:
        info = todo.pop()
        if isinstance(info, inspect.StructType | inspect.DataclassType):
            if info.cls.__qualname__ in seen:
                continue
            seen.add(info.cls.__qualname__)
            todo += [field.type for field in info.fields]
        for name in ("item_type", "key_type", "value_type"):
            if hasattr(info, name):
                todo.append(getattr(info, name))
        todo += getattr(info, "types", ())
    return seen


READ = set().union(*(parts(kind) for reader in READERS.values() for kind in reader.reads))


def test_every_type_that_is_decoded_has_a_reader() -> None:
    """A new message, or a new place that decodes, fails here until it is fuzzed."""
    decoded = {name: parts(decoder.type) for name, decoder in shapes.decoders().items()}
    assert len(decoded) >= 15, "they are found"
    assert {name: missing for name, all_ in decoded.items() if (missing := all_ - READ)} == {}
    inline = [
        (module.__name__, name, parts(getattr(module, name)))
        for module in shapes.modules()
        for name in re.findall(r"\.decode\([^()]*?, type=(\w+)\)", inspect_source(module))
    ]
    assert len(inline) >= 4, "they are found"
    assert [(module, name, all_ - READ) for module, name, all_ in inline if all_ - READ] == []


@pytest.mark.parametrize("name", READERS)
@QUICK
@given(raw=st.binary(max_size=200))
def test_any_bytes(name: str, raw: bytes) -> None:
    read(name, raw)
    for seed in seeds(name):
        read(name, seed[: len(raw)] + raw)


@pytest.mark.parametrize("name", [name for name, reader in READERS.items() if reader.reads])
@QUICK
@given(data=st.data())
def test_valid_and_damaged_values(name: str, data: st.DataObject) -> None:
    reader = READERS[name]
    for kind in reader.reads:
        wire = shapes.values(kind)
        raw = reader.encode(data.draw(wire | shapes.damaged(wire)))
        read(name, raw)
        cut = data.draw(st.integers(0, len(raw)))
        read(name, raw[:cut])
        read(name, raw[:cut] + b"\xc1" + raw[cut + 1 :])


@pytest.mark.parametrize("name", READERS)
def test_memory_is_bounded_by_what_came(name: str) -> None:
    reader = READERS[name]
    big = [b"\xdd\xff\xff\xff\xff" * 40_000, b"[" * 200_000, b"\xff" * 200_000, b"a,1:" * 50_000]
    for seed in [*seeds(name), *big, *(seed + big[0] for seed in seeds(name))]:
        assert allocated(name, seed) <= reader.slack + reader.factor * len(seed)


def test_the_bound_on_memory_sees() -> None:
    READERS["greedy"] = type(READERS["text"])(lambda raw: bytearray(1 << 24))
    try:
        assert allocated("greedy", b"x") > READERS["greedy"].slack + 64
    finally:
        del READERS["greedy"]


@pytest.mark.parametrize("path", sorted(CORPUS.glob("*/*")), ids=lambda path: path.parent.name)
def test_the_corpus(path: Path) -> None:
    """Inputs that once did harm, or that reach far."""
    read(path.parent.name, path.read_bytes())
