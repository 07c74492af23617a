"""More kinds of documents: lessons whose answers follow by rule, from easy to hard.

Sums, spelling, sorting, comparing and walking about take a small model long to learn, so the loss
goes on falling after the stories are known. May import: corpus.words, corpus.grammar.
"""

from __future__ import annotations

import itertools

from p2pnode.train.corpus import words
from p2pnode.train.corpus.grammar import Draws, a, cap, count, listing, number


def surname(d: Draws) -> str:
    """One of some seven thousand made-up family names."""
    return "".join(d.one(part) for part in words.NAME_PARTS)


def sums(d: Draws) -> str:
    """Addition, subtraction and multiplication, in words and in figures."""
    lines = []
    for _ in range(3 + d.below(4)):
        x, y = 1 + d.below(99), 1 + d.below(99)
        kind = d.below(3)
        if kind == 0:
            lines.append(f"{cap(number(x))} and {number(y)} make {number(x + y)}: {x}+{y}={x + y}.")
        elif kind == 1:
            more, less = x + y, y
            lines.append(
                f"{cap(number(more))} less {number(less)} leaves {number(x)}: {more}-{less}={x}."
            )
        else:
            x, y = 2 + x % 11, 2 + y % 11
            lines.append(f"{cap(number(x))} times {number(y)} is {number(x * y)}: {x}*{y}={x * y}.")
    return "\n".join(lines)


def spelling(d: Draws) -> str:
    """Words letter by letter, forwards and backwards, and their lengths."""
    lines = []
    for noun in d.some(words.THINGS, 3 + d.below(3)):
        word = noun.one
        letters = ", ".join(word)
        lines.append(
            d.one(
                (
                    f"{cap(word)} is spelt {letters}.",
                    f"{cap(word)} has {number(len(word))} letters: {letters}.",
                    f"Read backwards, {word} is {word[::-1]}.",
                    f"{cap(word)} begins with {word[0]} and ends with {word[-1]}.",
                )
            )
        )
    return " ".join(lines)


def sorting(d: Draws) -> str:
    """A list in any order, then by the alphabet; numbers likewise by size."""
    goods = [noun.one for noun in d.some(words.THINGS, 4 + d.below(4))]
    numbers = [d.below(1_000) for _ in range(4 + d.below(4))]
    return (
        f"The {d.one(words.JOBS).one} wrote down: {', '.join(goods)}.\n"
        f"By the alphabet: {', '.join(sorted(goods))}.\n"
        f"The numbers were {', '.join(map(str, numbers))}.\n"
        f"By size: {', '.join(map(str, sorted(numbers)))}. The largest is {max(numbers)}."
    )


def comparing(d: Draws) -> str:
    """Who is older than whom, told out of order; the first and the last follow."""
    people = d.some(words.PEOPLE, 3 + d.below(3))
    more, most, least = d.one(
        (
            ("older", "oldest", "youngest"),
            ("taller", "tallest", "shortest"),
            ("richer", "richest", "poorest"),
            ("faster", "fastest", "slowest"),
        )
    )
    names = [person.name for person in people]
    pairs = list(itertools.pairwise(names))
    facts = [f"{x} is {more} than {y}." for x, y in d.some(pairs, len(pairs))]
    return (
        f"{' '.join(facts)} Who is the {most}? {names[0]} is the {most}. "
        f"Who is the {least}? {names[-1]} is the {least}. From first to last: {listing(names)}."
    )


def walking(d: Draws) -> str:
    """Steps in four directions and where they lead, told after each."""
    who = d.one(words.PEOPLE)
    east = north = 0
    lines = [f"{who.name} {surname(d)} starts at the {d.one(words.PLACES)}."]
    for _ in range(3 + d.below(4)):
        length = 1 + d.below(9)
        way = d.one(("east", "west", "north", "south"))
        east += length * ((way == "east") - (way == "west"))
        north += length * ((way == "north") - (way == "south"))
        steps = count(length, words.Noun("step", "steps"))
        lines.append(f"{cap(who.he)} goes {steps} {way}. Now {who.he} is {_offset(east, north)}.")
    return " ".join(lines)


def _offset(east: int, north: int) -> str:
    parts = []
    if north:
        parts.append(f"{number(abs(north))} {'north' if north > 0 else 'south'}")
    if east:
        parts.append(f"{number(abs(east))} {'east' if east > 0 else 'west'}")
    return " and ".join(parts) or "back at the start"


def calendar(d: Draws) -> str:
    """Days and months forwards and backwards."""
    lines = []
    for _ in range(3 + d.below(3)):
        names, unit = d.one(((words.DAYS, "day"), (words.MONTHS, "month")))
        at, by = d.below(len(names)), 1 + d.below(12)
        amount = count(by, words.Noun(unit, unit + "s"))
        later = names[(at + by) % len(names)]
        earlier = names[(at - by) % len(names)]
        lines.append(
            d.one(
                (
                    f"If it is {names[at]}, in {amount} it will be {later}.",
                    f"If it is {names[at]}, {amount} ago it was {earlier}.",
                )
            )
        )
    return " ".join(lines)


def riddle(d: Draws) -> str:
    """Facts first, the animal last."""
    x = d.one(words.ANIMALS)
    hints = d.some(
        (
            f"It lives in {x.home}.",
            f"It eats {x.food}.",
            f"It is {x.colour}.",
            f"It {x.habit}.",
            f"It has {number(x.legs)} legs.",
        ),
        4,
    )
    asker, other = d.some(words.PEOPLE, 2)
    return (
        f'"I know {a(x.kind)}," says {asker.name}. "{" ".join(hints)} What is it?"\n'
        f'"It is {a(x.noun.one)}!" says {other.name}.'
    )


def register(d: Draws) -> str:
    """People with family names, trades and towns, then questions about them."""
    rows = [
        (person, surname(d), d.one(words.JOBS).one, d.one(words.TOWNS))
        for person in d.some(words.PEOPLE, 3 + d.below(3))
    ]
    lines = [f"{p.name} {family}, {job}, {town}" for p, family, job, town in rows]
    for p, family, job, town in d.some(rows, 3):
        lines.append(
            d.one(
                (
                    f"What is the trade of {p.name}? {cap(p.he)} is {a(job)}.",
                    f"Where does {p.name} live? {cap(p.he)} lives in {town}.",
                    f"Which {job} lives in {town}? That is {p.name} {family}.",
                    f"What is the family name of {p.name}? It is {family}.",
                )
            )
        )
    return "\n".join(lines)


LESSONS = (sums, spelling, sorting, comparing, walking, calendar, riddle, register)
