"""The wheel, installed away from the checkout: everything is inside and finds itself."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def pip(*arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pip("wheel", str(ROOT), "--no-deps", "--no-build-isolation", "--quiet", "-w", str(folder))
    (made,) = folder.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def site(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    pip("install", "--no-deps", "--no-compile", "--quiet", "--target", str(folder), str(wheel))
    return folder


def run(site: Path, cwd: Path, *arguments: str, path: tuple[Path, ...] = ()) -> str:
    """Python with the installed wheel, away from the checkout; returns standard output."""
    paths = os.pathsep.join(str(p) for p in (*path, site))
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": paths},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


LOAD = """
import sys
from p2pnode.train.arithmetic import kernels
loaded = kernels.load(reference=True)
print(kernels.__file__)
print(kernels.gates_digest())
print(sorted(name for name in sys.modules if name.split(".")[0] == "kernels"))
"""


def test_the_wheel_holds_the_sources_and_nothing_else(wheel: Path) -> None:
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    expected = {
        prefix + str(path.relative_to(ROOT / folder).as_posix())
        for folder, prefix in {
            "p2pnode": "p2pnode/",
            "signaling": "signaling/",
            "kernels": "p2pnode/kernels/",
            "static": "signaling/static/",
        }.items()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert names == expected
    assert "p2pnode/kernels/__init__.py" in names
    assert not any(name.startswith(("kernels/", "static/", "tests/")) for name in names)


def test_the_wheel_says_what_it_is(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        text = archive.read(metadata).decode()
        assert any(name.endswith("LICENSE") for name in archive.namelist())
    assert "Name: p2pnode" in text
    assert "License-Expression: MIT" in text
    assert "Requires-Python: >=3.11" in text


def test_the_commands_run(site: Path, tmp_path: Path) -> None:
    assert run(site, tmp_path, "-m", "p2pnode", "--version").startswith("p2pnode ")
    assert "join" in run(site, tmp_path, "-m", "p2pnode", "--help")
    assert "rendezvous" in run(site, tmp_path, "-m", "signaling", "--help")


def test_kernels_load_from_inside_the_package(site: Path, tmp_path: Path) -> None:
    where, _, loaded = run(site, tmp_path, "-c", LOAD).splitlines()
    assert Path(where) == site / "p2pnode" / "kernels" / "__init__.py"
    assert loaded == "[]"  # under a name of their own


def test_a_foreign_package_of_the_same_name_does_no_harm(site: Path, tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    (foreign / "kernels").mkdir(parents=True)
    (foreign / "kernels" / "__init__.py").write_text("raise RuntimeError('the wrong kernels')\n")
    ours = run(site, tmp_path, "-c", LOAD).splitlines()
    assert run(site, tmp_path, "-c", LOAD, path=(foreign,)).splitlines() == ours
    # And it stays importable under its own name beside ours.
    (foreign / "kernels" / "__init__.py").write_text("FOREIGN = True\n")
    both = LOAD + "import kernels as other\nprint(other.FOREIGN, other is kernels)\n"
    assert run(site, tmp_path, "-c", both, path=(foreign,)).splitlines()[-1] == "True False"


def test_the_installed_arithmetic_is_the_checkouts(site: Path, tmp_path: Path) -> None:
    installed = run(site, tmp_path, "-c", LOAD).splitlines()[1]
    here = run(ROOT, tmp_path, "-c", LOAD).splitlines()[1]
    assert installed == here


def test_the_landing_page_is_inside(site: Path, tmp_path: Path) -> None:
    code = "from signaling.page import static_folder; print(static_folder())"
    folder = Path(run(site, tmp_path, "-c", code).strip())
    assert folder == site / "signaling" / "static"
    assert {p.name for p in folder.iterdir()} == {p.name for p in (ROOT / "static").iterdir()}
