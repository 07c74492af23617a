"""The page of field reports names tests that exist."""

import re
from pathlib import Path

TESTS = Path(__file__).parent
PAGE = (TESTS.parent / "docs" / "FIELD_REPORTS.md").read_text(encoding="utf-8")
NAMES = sorted(set(re.findall(r"`(test_[a-z0-9_]+)`", PAGE)))


def test_every_named_test_exists() -> None:
    sources = "".join(path.read_text(encoding="utf-8") for path in TESTS.rglob("test_*.py"))
    files = {path.stem for path in TESTS.rglob("test_*.py")}
    missing = [n for n in NAMES if f"def {n}(" not in sources and n not in files]
    assert missing == []
    assert len(NAMES) > 40


def test_every_report_has_a_verdict() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("|") and "---" not in line]
    reports = [[cell.strip() for cell in row.split("|")[1:]] for row in rows]
    verdicts = [cells[3] for cells in reports if cells[0] != "report"]
    assert len(verdicts) >= 40
    assert all(re.match(r"\**(holds|fixed|partly|due)", verdict) for verdict in verdicts)
