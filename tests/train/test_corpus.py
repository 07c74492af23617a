"""The built-in text is a function of integers, varied, and true to itself."""

from __future__ import annotations

import re
import zlib

import pytest

from p2pnode.train import corpus
from p2pnode.train.corpus import grammar, words
from p2pnode.train.corpus.grammar import Draws, count, listing, number
from p2pnode.train.corpus.lessons import LESSONS, comparing, sorting, sums, surname, walking
from p2pnode.train.corpus.topics import TOPICS, counting, diary, inventory, story


def draws(i: int) -> Draws:
    return Draws(b"test" + i.to_bytes(4, "little"))


def test_text_is_the_same_everywhere():
    """The value is part of the format: another one means other training text under one name."""
    assert corpus.fingerprint() == FINGERPRINT


def test_passages_are_pure_exact_and_different():
    first = [corpus.passage(i, 300) for i in range(50)]
    again = [corpus.passage(i, 300) for i in reversed(range(50))]
    assert first == again[::-1]
    assert all(len(p) == 300 for p in first)
    assert len(set(first)) == 50
    assert corpus.passage(2**64 - 1, 9_000)[:300] == corpus.passage(2**64 - 1, 300)


def test_documents_are_plain_ascii_text():
    for i in range(300):
        text = corpus.document(i.to_bytes(4, "little"))
        assert text.isascii()
        assert "\0" not in text
        assert 60 < len(text) < 2_500


def test_vocabulary_and_variety():
    text = b"".join(corpus.passage(i, 2_000) for i in range(200)).decode()
    assert len(set(re.findall(r"[a-z]+", text.lower()))) > 600
    # Neither noise nor a few phrases over and over.
    ratio = len(zlib.compress(text.encode(), 9)) / len(text)
    assert 0.15 < ratio < 0.5


@pytest.mark.parametrize("topic", TOPICS + LESSONS, ids=lambda topic: topic.__name__)
def test_every_topic_is_varied(topic):
    texts = {topic(draws(i)) for i in range(100)}
    assert len(texts) > 95


def test_counts_come_out_right():
    for i in range(200):
        text = counting(draws(i))
        told = re.findall(r"Now \w+ has ([\w-]+(?: hundred and [\w-]+)?) ", text)
        answer = int(re.search(r"has (\d+)\.$", text)[1])
        assert told[-1] == number(answer)


def test_sums_come_out_right():
    for i in range(100):
        rows = [int(n) for n in re.findall(r" (\d+)$", inventory(draws(i)), re.MULTILINE)]
        assert sum(rows[:-1]) == rows[-1]
        days = re.findall(r"^(\w+):", diary(draws(i)), re.MULTILINE)
        first = words.DAYS.index(days[0])
        assert days == [words.DAYS[(first + k) % 7] for k in range(len(days))]


def test_a_story_keeps_its_hero_and_place():
    for i in range(100):
        text = story(draws(i))
        name = re.search(r"called (\w+) in", text)[1]
        place = re.search(r'"it is at the ([\w ]+)\."', text)[1]
        assert text.count(name) >= 3
        assert f"to the {place} " in text.rsplit("\n", 1)[-1]


def test_lessons_are_right():
    for i in range(100):
        for x, sign, y, z in re.findall(r"(\d+)([-+*])(\d+)=(\d+)\.", sums(draws(i))):
            a, b = int(x), int(y)
            assert int(z) == {"+": a + b, "-": a - b, "*": a * b}[sign]
        lines = sorting(draws(i)).split("\n")
        listed = [line.split(": ")[1].split(".")[0].split(", ") for line in (lines[0], lines[1])]
        assert sorted(listed[0]) == listed[1]
        text = comparing(draws(i))
        pairs = re.findall(r"(\w+) is \w+ than (\w+)\.", text)
        first = re.search(r"\? (\w+) is the", text)[1]
        assert first not in [worse for _, worse in pairs]


def test_walks_end_where_their_steps_lead():
    names = {number(n): n for n in range(1, 100)}
    for i in range(100):
        text = walking(draws(i))
        at = {"north": 0, "east": 0}
        for steps, way in re.findall(r"goes ([\w-]+) steps? (\w+)", text):
            axis = "north" if way in ("north", "south") else "east"
            at[axis] += names[steps] * (1 if way == axis else -1)
        told = {"north": 0, "east": 0}
        for steps, way in re.findall(r"([\w-]+) (north|south|east|west)", text.rsplit("is ", 1)[1]):
            axis = "north" if way in ("north", "south") else "east"
            told[axis] += names[steps] * (1 if way == axis else -1)
        assert told == at


def test_family_names_are_many():
    assert len({surname(draws(i)) for i in range(3_000)}) > 2_000


def test_small_grammar():
    assert [number(n) for n in (0, 7, 20, 21, 40, 99, 100, 342)] == [
        "no",
        "seven",
        "twenty",
        "twenty-one",
        "forty",
        "ninety-nine",
        "one hundred",
        "three hundred and forty-two",
    ]
    fox = words.Noun("fox", "foxes")
    assert (count(1, fox), count(2, fox), count(0, fox)) == ("one fox", "two foxes", "no foxes")
    assert tuple(map(grammar.a, ("owl", "useful box", "box"))) == (
        "an owl",
        "a useful box",
        "a box",
    )
    assert listing(["x"]) == "x"
    assert listing(["x", "y", "z"]) == "x, y and z"


def test_draws_are_bounded_and_cover():
    d = draws(1)
    assert {d.below(3) for _ in range(200)} == {0, 1, 2}
    assert sorted(d.some(range(10), 10)) == list(range(10))


FINGERPRINT = "707b724336d303f18bb285329090846a4845660198f8232bc635a935074583cb"
