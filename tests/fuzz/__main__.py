"""Coverage-guided fuzzing of the readers: `python -m tests.fuzz --seconds 120 [READER ...]`.

Needs the `fuzz` extra (atheris). Each reader runs in a process of its own, from its seeds and the
corpus. An input that harms is written to tests/fuzz/corpus/READER/, where the suite finds it; the
exit code is then 1.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus"
MEMORY_MB = 1024
"""A process that takes more than this has failed."""
SLOW = 2
"""Seconds that one input may take."""


def fuzz(name: str, folder: Path, seconds: int, length: int) -> None:
    """In a process of its own; ends it."""
    import atheris

    with atheris.instrument_imports(include=["p2pnode", "signaling"]):
        from tests.fuzz import readers

    inputs = folder / name
    inputs.mkdir()
    for number, seed in enumerate(readers.seeds(name)):
        (inputs / f"seed-{number}").write_bytes(seed)
    options = [
        f"-max_total_time={seconds}",
        f"-max_len={length}",
        f"-rss_limit_mb={MEMORY_MB}",
        f"-timeout={SLOW}",
        f"-artifact_prefix={folder}/found-",
        "-print_final_stats=1",
        "-verbosity=0",
    ]
    known = [str(path) for path in (CORPUS / name,) if path.is_dir()]
    atheris.Setup([name, *options, str(inputs), *known], lambda raw: readers.read(name, raw))
    atheris.Fuzz()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("readers", nargs="*", metavar="READER", help="all, if none is named")
    parser.add_argument("--seconds", type=int, default=60, help="for each reader")
    parser.add_argument("--length", type=int, default=4096, help="longest input, bytes")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.folder is not None:
        fuzz(arguments.readers[0], arguments.folder, arguments.seconds, arguments.length)
    from tests.fuzz.readers import READERS  # only here: what fuzz imports is instrumented

    names = arguments.readers or list(READERS)
    if unknown := set(names) - set(READERS):
        parser.error(f"there are {', '.join(READERS)}; not {', '.join(sorted(unknown))}")
    failed = False
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-m", "tests.fuzz", name, "--folder", folder]
            command += [f"--seconds={arguments.seconds}", f"--length={arguments.length}"]
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                check=False,
                env={**os.environ, "TMPDIR": folder},
            )
            count = re.search(r"number_of_executed_units:\s*(\d+)", done.stderr)
            found = sorted(Path(folder).glob("found-*"))
            print(f"{name:<18} {int(count[1]) if count else 0:>10,} inputs, {len(found)} harmful")
            for path in found:
                (CORPUS / name).mkdir(parents=True, exist_ok=True)
                shutil.copy(path, CORPUS / name / path.name.removeprefix("found-"))
            if found or done.returncode:
                failed = True
                print(done.stderr[-3_000:])
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
