"""Every event has a JSON form, and a sentence where one is meant; neither can hurt a terminal."""

from __future__ import annotations

import json
import typing

import msgspec
import pytest

from p2pnode.ui import events as ui
from p2pnode.ui.events import from_json, sentence, to_json
from tests.ui.examples import EXAMPLES
from tests.ui.hostile import HOSTILE, unsafe

KINDS = typing.get_args(ui.AnyEvent)


def test_every_event_has_an_example() -> None:
    defined = {
        value
        for value in vars(ui).values()
        if isinstance(value, type) and issubclass(value, ui.Event) and value is not ui.Event
    }
    assert set(KINDS) == defined == {type(event) for event, _ in EXAMPLES}


@pytest.mark.parametrize(("event", "words"), EXAMPLES)
def test_json_and_back(event: ui.Event, words: object) -> None:
    line = to_json(event)
    assert "\n" not in line
    assert json.loads(line)["event"] == type(event).__name__.lower()
    assert from_json(line) == from_json(line.encode()) == event


@pytest.mark.parametrize(("event", "words"), EXAMPLES)
def test_sentences(event: ui.Event, words: tuple[str, ...] | None) -> None:
    text = sentence(event)
    if words is None:
        assert text is None
        return
    assert text is not None
    for word in words:
        assert word in text


@pytest.mark.parametrize(
    "line", ["", "{}", "null", '{"event":"other"}', '{"event":"info"}', "\xff"]
)
def test_what_is_no_event(line: str) -> None:
    with pytest.raises(msgspec.MsgspecError):
        from_json(line)


@pytest.mark.parametrize("hostile", HOSTILE, ids=ascii)
@pytest.mark.parametrize("event", [event for event, words in EXAMPLES if words], ids=type)
def test_hostile_words_do_not_reach_the_terminal_raw(event: ui.Event, hostile: str) -> None:
    """In every field, whoever should have cleaned it: only the layout of this program counts."""
    fields = {
        name: hostile
        for name, value in msgspec.structs.asdict(event).items()
        if isinstance(value, str)
    }
    text = sentence(msgspec.structs.replace(event, **fields))
    assert text is not None
    layout = sentence(event)
    assert layout is not None
    lines = text.split("\n")
    if not isinstance(event, ui.Info):  # its writers lay it out themselves
        assert len(lines) == len(layout.split("\n"))
    assert unsafe("".join(lines)) == []


def test_a_path_whose_bytes_are_no_text_has_a_json_form() -> None:
    event = ui.Checkpoint(step=1, path=b"/runs/caf\xe9".decode("utf-8", "surrogateescape"))
    assert json.loads(to_json(event))["path"] == "/runs/caf\\udce9"


def test_what_was_hidden_can_be_read() -> None:
    event = ui.Knock(peer="aaaa-bbbb", name="\x1b[2Jbob\u202e")
    assert sentence(event) == "\\x1b[2Jbob\\u202e (aaaa-bbbb) asks to join."


def test_names_in_other_scripts_stay_as_they_are() -> None:
    event = ui.Knock(peer="aaaa-bbbb", name="Zoë 漢字 Жук 🚲")
    assert sentence(event) == "Zoë 漢字 Жук 🚲 (aaaa-bbbb) asks to join."


@pytest.mark.parametrize("words", HOSTILE)
def test_hostile_words_do_not_reach_a_log_raw(words: str) -> None:
    """The JSON form holds them as escapes, and gives them back to programs."""
    event = ui.Left(peer="aaaa-bbbb", name="bob", reason=words, connected=1)
    line = to_json(event)
    assert unsafe(line) == []
    assert line.isprintable()
    if "\ud800" not in words:
        assert from_json(line) == event


def test_ordinary_words_of_all_languages_stay_readable_in_a_log() -> None:
    assert "Zoë 北京 😀" in to_json(ui.Info(text="Zoë 北京 😀"))
