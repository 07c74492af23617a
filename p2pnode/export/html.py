"""One web page that holds a model and generates with it, offline and with the same bits.

The page's scripts (folder `page`) carry out docs/ARITHMETIC.md; weights are baked in as products
take them, int8. Its content policy forbids every request. May import: siblings, train, errors.
"""

from __future__ import annotations

import base64
import hashlib
import string
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from p2pnode.export import files
from p2pnode.export.vocabulary import byte_level_bpe, tokenizer_json
from p2pnode.train.arithmetic import kernels
from p2pnode.train.layout import F32, layout_of
from p2pnode.train.model import rotation_for
from p2pnode.train.tokenizer import Tokenizer, byte_level
from p2pnode.train.trained import Trained

_SCRIPTS = ("arithmetic.js", "model.js", "sampler.js", "tokenizer.js", "app.js")


def export(trained: Trained, path: Path, *, force: bool) -> list[Path]:
    """Write the page; returns it in a list. Raises ExportError."""
    files.refuse_existing([path], force)
    facts: dict[str, Any] = {"tokenizer": _vocabulary(trained.tokenizer)}
    files.make_folder(path.parent)
    tensors, blob = _weights(trained)
    config = trained.state.config
    facts |= {
        "about": f"{trained.state.layout.size:,} parameters after {trained.state.step:,} steps. "
        "Everything is in this page; it asks no network. The same seed gives the same text as "
        f"`p2pnode generate` on {trained.path.name}.",
        "shape": msgspec.to_builtins(config.model),
        "tensors": tensors,
    }
    page = _page(facts, base64.b64encode(blob).decode("ascii"))
    files.write(path, [page.encode("utf-8")])
    return [path]


def _page(facts: dict[str, Any], weights: str) -> str:
    style = _source("style.css")
    script = '"use strict";\n' + "\n".join(_source(name) for name in _SCRIPTS)
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    # No text of the tokenizer's may end the element that it stands in.
    told = msgspec.json.encode(facts).decode("utf-8").replace("<", "\\u003c")
    return string.Template(_source("page.html")).substitute(
        policy=policy, style=style, facts=told, weights=weights, script=script
    )


def _source(name: str) -> str:
    return resources.files("p2pnode.export").joinpath("page", name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode()


def _vocabulary(tokenizer: Tokenizer) -> dict[str, Any]:
    """What page/tokenizer.js is made of. Raises ExportError for other kinds."""
    bpe = byte_level_bpe(tokenizer_json(tokenizer), "The page")
    table = byte_level()
    return {
        "tokens": [bpe.tokens.get(number) for number in range(tokenizer.vocabulary)],
        "special": sorted(bpe.special),
        "separator": tokenizer.separator,
        "merges": [" ".join(pair) for pair in bpe.merges],
        "alphabet": [table[byte] for byte in range(256)],
    }


def _weights(trained: Trained) -> tuple[list[dict[str, object]], bytes]:
    """Names and places of all tensors, and their bytes: float32 ones as they are, of each matrix
    the scales of its rows and then int8. The embedding is looked up, so it stays float32."""
    model = trained.state.config.model
    ops = kernels.load(reference=True)
    rotation = rotation_for(model)
    views = layout_of(model).views(trained.state.weights)
    table: list[dict[str, object]] = []
    blob = bytearray()

    def put(name: str, floats: F32, q: bytes = b"") -> None:
        count = len(q) or floats.size
        place = {"name": name, "start": len(blob), "count": count}
        table.append(place | ({"rows": floats.size} if q else {}))
        blob.extend(floats.astype("<f4").tobytes() + q + bytes(-len(q) % 4))

    for name, values in (*views.items(), ("cos", rotation.cos), ("sin", rotation.sin)):
        if values.ndim == 1 or name in ("embed", "cos", "sin"):
            put(name, values)
        else:
            quantised = ops.quantise_rows(np.ascontiguousarray(values), kernels.INT8_LIMIT)
            put(name, quantised.scale, quantised.q.tobytes())
    return table, bytes(blob)
