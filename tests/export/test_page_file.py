"""The page as a file: what is in it, and what is refused. `test_html` opens it in a browser."""

from __future__ import annotations

import pytest

from p2pnode import cli
from p2pnode.errors import ExportError
from p2pnode.export import html


def test_no_token_ends_the_element_it_stands_in(make):
    page = html._page({"tokenizer": ["</script><script>alert(1)</script>", "<!--"]}, "AAAA")
    assert "alert(1)</" not in page
    assert page.count("</script>") == 3


def test_the_command_and_what_it_refuses(make, tmp_path):
    trained = make()
    out = tmp_path / "m.html"
    command = ["export", str(trained.path), "--to", "html", str(out)]
    assert cli.main(command) == 0
    assert cli.main(command) == 17
    assert cli.main([*command, "--force"]) == 0
    with pytest.raises(ExportError, match="The page takes"):
        html.export(make("sentencepiece"), tmp_path / "s.html", force=False)
    assert not (tmp_path / "s.html").exists()
