"""The reference may use only operations whose bits IEEE-754 or integer arithmetic fixes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernels import reference

SOURCES = sorted(Path(reference.__file__).parent.glob("*.py"))

ALLOWED_NUMPY = {
    # types and layout
    "float32", "float64", "int8", "int16", "int32", "int64", "ndarray", "array", "asarray",
    "ascontiguousarray", "arange", "concatenate", "empty", "expand_dims", "full", "ones",
    "swapaxes", "zeros",
    # correctly rounded, exact, or integer
    "abs", "count_nonzero", "multiply", "rint", "sqrt", "where",
}  # fmt: skip
FORBIDDEN_METHODS = {
    "sum", "mean", "max", "min", "dot", "prod", "cumsum", "std", "var", "ptp", "trace",
}  # fmt: skip


def faults(source: str) -> Iterator[str]:
    """What in this module has bits that nobody promises."""
    tree = ast.parse(source)
    integer_only = {"integer_max", "integer_product"}
    exempt = {
        id(inner)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef) and function.name in integer_only
        for inner in ast.walk(function)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp | ast.AugAssign):
            if isinstance(node.op, ast.MatMult) and id(node) not in exempt:
                yield "@ outside integer_product"
            # Powers of Python integers are written as literals: 2**31.
            if isinstance(node.op, ast.Pow) and not (
                isinstance(node, ast.BinOp)
                and isinstance(node.left, ast.Constant)
                and isinstance(node.right, ast.Constant)
            ):
                yield "**"
        if isinstance(node, ast.Attribute):
            if isinstance(node.value, ast.Name) and node.value.id == "np":
                if node.attr not in ALLOWED_NUMPY and not (
                    node.attr == "max" and id(node) in exempt
                ):
                    yield f"np.{node.attr}"
            elif node.attr in FORBIDDEN_METHODS:
                yield f".{node.attr}"
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [a.name for a in node.names]
            module = getattr(node, "module", None) or ""
            # numpy as np only, so that the names above are seen
            if {module.split(".")[0], *names} & {"math", "cmath", "scipy"} or module == "numpy":
                yield f"import of {module or names}"
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("sum", "pow", "max", "min")
            and not (node.func.id in ("max", "min") and all(map(is_integer, node.args)))
        ):
            yield f"{node.func.id}()"


def is_integer(node: ast.expr) -> bool:
    """A literal, or bit lengths: the only places where the built-in max is used."""
    return isinstance(node, ast.Constant) or "bit_length" in ast.dump(node)


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: p.name)
def test_reference_uses_only_pinned_operations(path: Path) -> None:
    assert list(faults(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    "line",
    [
        "y = np.sum(x)", "y = x.sum()", "y = np.mean(x)", "y = x.mean(0)", "y = a @ b", "a @= b",
        "y = np.einsum('ij->i', x)", "y = np.exp(x)", "y = np.maximum(a, b)", "y = np.max(x)",
        "y = x.max()", "y = x ** 2", "y = 2.0 ** n", "y = np.power(x, y)", "y = np.dot(a, b)",
        "import math", "from math import exp", "from numpy import exp",
        "y = sum(x)", "y = np.add.reduce(x)",
        "y = np.tanh(x)", "y = max(a, b)", "y = np.add.at(a, i, b)", "y = np.linalg.norm(x)",
    ],
)  # fmt: skip
def test_the_check_sees_what_it_forbids(line: str) -> None:
    assert list(faults(line)) != []
