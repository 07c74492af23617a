"""`tokenizer train` on texts and tables."""

from pathlib import Path

import pytest

from p2pnode import cli
from p2pnode.errors import DataError, UsageError
from p2pnode.train.tokenizer import open_tokenizer
from tests.harness.real_text import passages, write_parquet


@pytest.mark.parametrize("form", ["text", "table"])
def test_a_vocabulary_of_a_text(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = passages()[:100]
    if form == "table":
        data = write_parquet(tmp_path / "t.parquet", texts, 20)
    else:
        data = tmp_path / "t.txt"
        data.write_text("\n".join(texts), encoding="utf-8")
    out = tmp_path / "words.json"
    command = ["tokenizer", "train", str(out), "--data", str(data), "--size", "600"]
    assert cli.main(command) == 0
    assert "600 tokens; a model's vocabulary is 640 with it" in capsys.readouterr().out
    tokenizer = open_tokenizer(str(out))
    assert (tokenizer.vocabulary, tokenizer.separator) == (600, 0)
    for text in texts:
        assert tokenizer.decode(tokenizer.encode(text)) == text.encode()
    assert len(tokenizer.encode(texts[0])) < len(texts[0].encode()) / 1.5
    assert cli.main(command) == UsageError.exit_code
    assert "--force" in capsys.readouterr().err
    assert cli.main([*command, "--force"]) == 0


def test_what_cannot_be(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.txt").write_text("text")
    command = ["tokenizer", "train", str(tmp_path / "out"), "--data", str(tmp_path / "t.txt")]
    assert cli.main([*command, "--size", "256"]) == DataError.exit_code
    assert "257 to 131072" in capsys.readouterr().err
    assert cli.main([*command[:-1], str(tmp_path / "none")]) == DataError.exit_code
    assert not (tmp_path / "out").exists()
