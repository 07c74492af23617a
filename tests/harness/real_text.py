"""Real text in the forms that people have it in, made from this project's own pages."""

import random
from pathlib import Path

import pyarrow
import pyarrow.parquet

ROOT = Path(__file__).parents[2]


def passages() -> list[str]:
    """Paragraphs and functions of a few hundred characters."""
    found: list[str] = []
    for path in sorted([*ROOT.glob("docs/*.md"), *ROOT.glob("p2pnode/**/*.py")]):
        for part in path.read_text(encoding="utf-8").split("\n\n"):
            if len(part) >= 40:
                found.append(part.strip())
    return found


def write_parquet(path: Path, texts: list[str], rows: int) -> Path:
    """One file with `rows` texts in a row group, checksums on its pages, and a column beside that
    is far larger than the text and that nobody needs."""
    bulk = random.Random(3)
    pages = [bulk.randbytes(8_000) for _ in texts]
    table = pyarrow.table({"page": pages, "text": texts})
    pyarrow.parquet.write_table(
        table, path, row_group_size=rows, write_page_checksum=True, compression="zstd"
    )
    return path
