"""Draws and small English phrases for the built-in corpus: agreement, articles, numbers.

May import: corpus.words.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import TypeVar

from p2pnode.train.corpus import words
from p2pnode.train.corpus.words import Noun, Person, Verb

T = TypeVar("T")

_BLOCK = struct.Struct("<32H")


class Draws:
    """An endless row of choices that depends on `key` alone (BLAKE2b in counter mode)."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._block = 0
        self._left: list[int] = []

    def below(self, n: int) -> int:
        """An integer in [0, n), n <= 65,536."""
        if not self._left:
            counter = self._block.to_bytes(8, "little")
            digest = hashlib.blake2b(counter, key=self._key, digest_size=64).digest()
            self._left = list(_BLOCK.unpack(digest))
            self._block += 1
        return (self._left.pop() * n) >> 16

    def one(self, options: Sequence[T]) -> T:
        return options[self.below(len(options))]

    def some(self, options: Sequence[T], count: int) -> list[T]:
        """`count` different options, in drawn order."""
        left = list(options)
        return [left.pop(self.below(len(left))) for _ in range(count)]

    def chance(self, percent: int) -> bool:
        return self.below(100) < percent


def number(n: int) -> str:
    """English words for 0 <= n < 1,000; 0 is `no` (as in `no apples`)."""
    if n <= 20:
        return words.NUMBERS[n]
    if n < 100:
        tens, ones = divmod(n, 10)
        return words.TENS[tens - 2] + (f"-{words.NUMBERS[ones]}" if ones else "")
    hundreds, rest = divmod(n, 100)
    head = f"{words.NUMBERS[hundreds]} hundred"
    return f"{head} and {number(rest)}" if rest else head


def count(n: int, noun: Noun) -> str:
    """`one pear`, `three pears`, `no pears`."""
    return f"{number(n)} {noun.one if n == 1 else noun.many}"


def a(phrase: str) -> str:
    """The phrase with its indefinite article."""
    return f"{'an' if phrase[0] in 'aeiou' and not phrase.startswith('use') else 'a'} {phrase}"


def listing(parts: Sequence[str]) -> str:
    """`x`, `x and y`, `x, y and z`."""
    if len(parts) == 1:
        return parts[0]
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


def cap(sentence: str) -> str:
    return sentence[0].upper() + sentence[1:]


def thing(d: Draws) -> tuple[str, Noun]:
    """A described thing without its article (`old wooden box`) and its noun."""
    noun = d.one(words.THINGS)
    described = noun.one
    if d.chance(60):
        described = f"{d.one(words.ADJECTIVES)} {described}"
    return described, noun


def noun_phrase(d: Draws) -> tuple[str, bool]:
    """A subject or object in the third person, and whether it is plural."""
    kind = d.below(5)
    if kind == 0:
        return f"the {d.one(words.JOBS).one}", False
    if kind == 1:
        return f"the {d.one(words.JOBS).many}", True
    if kind == 2:
        animal = d.one(words.ANIMALS).noun
        return f"{number(2 + d.below(9))} {animal.many}", True
    if kind == 3:
        return f"the {d.one(words.ADJECTIVES)} {d.one(words.ANIMALS).noun.one}", False
    pair = d.some(words.PEOPLE, 2)
    return f"{pair[0].name} and {pair[1].name}", True


def present(verb: Verb, plural: bool) -> str:
    return verb.base if plural else verb.third


def relative_clause(d: Draws, plural: bool) -> str:
    """`who live(s) near the mill`: the verb agrees with a head some words before it."""
    lives = "live" if plural else "lives"
    works = "work" if plural else "works"
    place = d.one(words.PLACES)
    return d.one((f"who {lives} near the {place}", f"who {works} at the {place}"))


def plain_sentence(d: Draws, past: bool) -> str:
    """A free sentence: subject, perhaps a relative clause, verb in agreement, object, ending."""
    subject, plural = noun_phrase(d)
    if d.chance(25):
        subject += f" {relative_clause(d, plural)}"
    verb = d.one(words.ACTIONS)
    described, noun = thing(d)
    shape = d.below(4)
    if shape == 0:
        goods = f"{'their' if plural else 'a'} {described}"
        goods = goods if plural else a(described)
    elif shape == 1:
        goods = f"the {described}"
    elif shape == 2:
        goods = f"{number(2 + d.below(11))} {d.one(words.COLOURS)} {noun.many}"
    else:
        goods = f"{a(described)} and {a(d.one(words.FRUITS).one)}"
    if past:
        middle = verb.past if d.chance(70) else f"had {verb.participle}"
    elif d.chance(20):
        middle = f"{'do' if plural else 'does'} not {verb.base}"
    else:
        middle = present(verb, plural)
    ending = d.one((f" {d.one(words.TIMES)}", f" near the {d.one(words.PLACES)}", "", ""))
    return f"{cap(subject)} {middle} {goods}{ending}."


def linked_sentence(d: Draws, who: Person) -> str:
    """A sentence in the past about a known person, by pronoun, with a clause of reason or time."""
    verb = d.one(words.ACTIONS)
    described, _ = thing(d)
    link = d.one(("because", "while", "although", "when", "before", "until"))
    subject, plural = noun_phrase(d)
    was = "were" if plural else "was"
    reason = f"{subject} {was} {d.one(words.MOODS)}"
    main = f"{who.he} {verb.past} the {described}"
    if d.chance(50):
        return f"{cap(main)} {link} {reason}."
    return f"{cap(link)} {reason}, {main}."
