"""How much memory there is, also in a container, and how much was taken."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from p2pnode.process_memory import free_memory, peak_rss


def group(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("_", ".", 1)).write_text(text)


def proc(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "cgroup"
    path.write_text(text)
    return path


def test_without_a_limit_the_machine_s(tmp_path):
    machine = psutil.virtual_memory().total
    assert machine / 1000 < free_memory(tmp_path / "none", tmp_path) <= machine
    group(tmp_path / "a", memory_max="max\n", memory_current="1000\n")
    assert free_memory(proc(tmp_path, "0::/a\n"), tmp_path) > machine / 1000


def test_the_smallest_of_all_groups_above(tmp_path):
    group(tmp_path / "a", memory_max="5000\n", memory_current="4000\n")
    group(tmp_path / "a" / "b", memory_max="3000\n", memory_current="500\n")
    assert free_memory(proc(tmp_path, "0::/a/b\n"), tmp_path) == 1000
    (tmp_path / "a" / "memory.stat").write_text("anon 7\ninactive_file 900\n")
    assert free_memory(proc(tmp_path, "0::/a/b\n"), tmp_path) == 1900


def test_the_older_form(tmp_path):
    group(
        tmp_path / "memory" / "box",
        memory_limit_in_bytes="8000\n",
        memory_usage_in_bytes="3000\n",
        memory_stat="inactive_file 1\ntotal_inactive_file 200\n",
    )
    text = "9:name=systemd:/box\n4:cpu,memory:/box\n1:cpu:/\n"
    assert free_memory(proc(tmp_path, text), tmp_path) == 5200


def test_a_container_s_own_group_is_shown_as_the_root(tmp_path):
    group(tmp_path, memory_max="2000\n", memory_current="1500\n")
    assert free_memory(proc(tmp_path, "0::/docker/abc\n"), tmp_path) == 500


def test_more_than_the_limit_is_taken(tmp_path):
    group(tmp_path, memory_max="2000\n", memory_current="2500\n")
    assert free_memory(proc(tmp_path, "0::/\n"), tmp_path) == 0


@pytest.mark.parametrize("text", ["", "nonsense\n", "0::\n", "a:b\n", "0::/../../etc\n"])
def test_unknown_forms_are_passed_over(tmp_path, text):
    assert free_memory(proc(tmp_path, text), tmp_path / "void") > 0


def test_the_peak_is_this_process_s_own():
    before = peak_rss()
    taken = bytearray(300_000_000)
    assert peak_rss() - before > 200_000_000
    del taken
    child = "from p2pnode.process_memory import peak_rss; print(peak_rss())"
    assert 5_000_000 < int(subprocess.check_output([sys.executable, "-c", child])) < 200_000_000
