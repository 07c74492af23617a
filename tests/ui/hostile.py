"""Words that a stranger could choose, to be shown on a terminal, and what is visible of them."""

from __future__ import annotations

import unicodedata

HOSTILE = (
    "\x1b[2J\x1b[H",  # clears the screen
    "\x1b]0;title\x07",
    "\x1b]52;c;cm0gLXJm\x07",  # writes to the clipboard
    "\x9b31m",  # one-byte form of ESC [
    "bob\r\nmallory (aaaa-aaaa) is connected",  # forges a line
    "bob\nwarning: nothing\x0b\x0c\x85\u2028\u2029",
    "abc\b\b\bxyz\x7f\x00",
    "\u202egnorw\u2066\u200b\u200d\ufeff",  # turns text round, hides
    "\ud800\udfff\U000e0041\ue000",
)


def unsafe(text: str) -> list[str]:
    """Characters that a terminal could obey, or that do not show; line ends are for the caller."""
    return [
        char
        for char in text
        if unicodedata.category(char)[0] == "C" or unicodedata.category(char) in ("Zl", "Zp")
    ]
