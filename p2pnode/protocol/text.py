"""Text from strangers, made safe for a terminal, a log or a page.

May import: limits.
"""

from __future__ import annotations

import unicodedata

from p2pnode.limits import LIMITS

UNNAMED = "unnamed"
MAX_MARKS = 2
"""Combining marks kept per character: real scripts rarely need more, stacked ones cover lines."""

_SPACES = {"Zs", "Zl", "Zp"}


def visible(text: str) -> str:
    """One line for a terminal in which every character that a terminal could obey, or that does
    not show (line ends, control, format, surrogate), stands as its escape, such as `\\x1b`."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def clean(text: str, max_chars: int = LIMITS.name_chars) -> str:
    """One line of visible text, at most `max_chars` characters, never empty.

    Control, format (bidirectional, zero-width), surrogate, private and unassigned characters
    vanish; every run of white space becomes one space; the rest is normalised to NFC. The caller
    shows a peer's short id beside its name, because look-alike letters are legitimate.
    """
    kept: list[str] = []
    marks = 0
    # A bound first: reading a megabyte to keep 32 characters would be a gift to a sender.
    for char in text[: 8 * max_chars]:
        category = unicodedata.category(char)
        if category in _SPACES or char in "\t\r\n\v\f":
            marks = MAX_MARKS  # a mark cannot sit on a space
            if kept and kept[-1] != " ":
                kept.append(" ")
        elif category.startswith("M"):
            if kept and marks < MAX_MARKS:
                marks += 1
                kept.append(char)
        elif not category.startswith("C"):
            marks = 0
            kept.append(char)
    # Only now: dropping characters can bring a base and its mark together.
    result = unicodedata.normalize("NFC", "".join(kept))[:max_chars].strip()
    return result or UNNAMED
