"""Our kernels are found by place, whatever else is called `kernels`."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import p2pnode
from p2pnode.errors import ArithmeticUnsoundError, NonFiniteError
from p2pnode.train import arithmetic
from p2pnode.train.arithmetic import kernels, refusals

ROOT = Path(p2pnode.__file__).resolve().parent.parent


def foreign(folder: Path) -> Path:
    package = folder / "kernels"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("FOREIGN = True\nLOADED = []\n", encoding="utf-8")
    return folder


def run(code: str, *path: Path) -> str:
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(map(str, path)))
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("first", ["foreign first", "ours first"])
def test_a_foreign_kernels_is_neither_used_nor_shadowed(tmp_path, first):
    imports = ["import kernels", "from p2pnode.train.arithmetic import kernels as ours"]
    if first == "ours first":
        imports.reverse()
    code = "\n".join(
        [
            *imports,
            "import sys",
            "assert kernels.FOREIGN and ours.P2PNODE_KERNELS and ours is not kernels",
            "assert sys.modules['kernels'] is kernels",
            "assert not hasattr(kernels, 'load')",
            "print(ours.__name__, ours.load(reference=True).backend)",
        ]
    )
    assert run(code, foreign(tmp_path), ROOT).split() == ["p2pnode_kernels", "reference"]


def test_an_installed_copy_beside_a_foreign_one(tmp_path):
    """As a wheel lays it out: ours inside p2pnode, the foreign one beside it."""
    site = foreign(tmp_path / "site")
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "p2pnode", site / "p2pnode", ignore=ignore)
    shutil.copytree(ROOT / "kernels", site / "p2pnode" / "kernels", ignore=ignore)
    code = "from p2pnode.train.arithmetic import kernels; print(kernels.__file__)"
    assert Path(run(code, site).strip()) == site / "p2pnode" / "kernels" / "__init__.py"


def test_a_package_without_the_marker_is_not_ours(tmp_path):
    site = foreign(tmp_path)
    (site / "p2pnode").mkdir()
    with pytest.raises(ArithmeticUnsoundError, match="missing"):
        arithmetic.locate(site / "p2pnode")


def test_types_pickle_by_the_registered_name():
    kind = arithmetic.kernels.Quantised
    assert kind.__module__.startswith("p2pnode_kernels.")
    assert pickle.loads(pickle.dumps(kind)) is kind  # noqa: S301 - our own bytes


@pytest.mark.parametrize(
    ("error", "ours"),
    [
        (kernels.NonFiniteInputError, NonFiniteError),
        (kernels.FloatModeError, ArithmeticUnsoundError),
        (kernels.UnsoundError, ArithmeticUnsoundError),
    ],
)
def test_refusals_become_errors_of_the_project(error: type[Exception], ours: type) -> None:
    with pytest.raises(ours, match="slot 3: why"), refusals("slot 3"):
        raise error("why")
