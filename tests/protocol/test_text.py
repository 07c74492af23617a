"""Text from strangers is one clean, short, visible line."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pnode.protocol.text import MAX_MARKS, UNNAMED, clean


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("laptop", "laptop"),
        ("  two   words \t here ", "two words here"),
        ("\x1b[2J\x1b[Hpeer approved", "[2J[Hpeer approved"),
        ("\x1b]0;title\x07", "]0;title"),
        ("\x1b]8;;http://127.0.0.1/\x07link", "]8;;http://127.0.0.1/link"),
        ("ann\r\n12:00 INFO bob approved", "ann 12:00 INFO bob approved"),
        ("y\ny\ny\n", "y y y"),
        ("\u202egnp.exe", "gnp.exe"),
        ("\u2066x\u2069", "x"),
        ("a\u200bb\u200dc\ufeffd\u00ade", "abcde"),
        ("line\u2028separator\u2029", "line separator"),
        ("nbsp\u00a0and\u3000wide", "nbsp and wide"),
        ("\ud800lone", "lone"),
        ("\ue000private\U000f0000", "private"),
        ("tag\U000e0041\U000e0042", "tag"),
        ("\x9b31mC1", "31mC1"),
        ("cafe\u0301", "caf\u00e9"),
        ("e\u200b\u0301", "\u00e9"),
        ("\u0301alone", "alone"),
        ("\u0430lice", "\u0430lice"),  # a look-alike is legitimate: the short id tells them apart
        ("\u200b", UNNAMED),
        ("\x00", UNNAMED),
        ("", UNNAMED),
        (" \n ", UNNAMED),
        ("%s%n{0}{name}", "%s%n{0}{name}"),
    ],
)
def test_examples(raw, shown):
    assert clean(raw) == shown


def test_length_is_bounded_before_work_is_done():
    assert clean("A" * 100_000) == "A" * 32
    assert clean("A" * 100, 5) == "AAAAA"


def test_stacked_marks_are_cut():
    zalgo = "a" + "\u0315" * 50 + "b"
    assert clean(zalgo).count("\u0315") == MAX_MARKS


@given(
    st.text(max_size=200) | st.text(st.characters(categories=["Cc", "Cf", "Mn", "Zs"]), max_size=80)
)
def test_result_is_always_presentable(raw):
    shown = clean(raw)
    assert 1 <= len(shown) <= 32
    assert shown == shown.strip()
    assert "  " not in shown
    assert not any(unicodedata.category(char)[0] == "C" for char in shown)
    assert not any(unicodedata.category(char) in ("Zl", "Zp") for char in shown)
    assert unicodedata.is_normalized("NFC", shown)
    assert clean(shown) == shown
