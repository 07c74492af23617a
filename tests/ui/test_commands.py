"""What is typed at the prompt: every command, and every mistake as a sentence."""

from __future__ import annotations

import pytest

from p2pnode.errors import UsageError
from p2pnode.protocol.identity import PeerId, short_id
from p2pnode.ui.commands import Commands
from p2pnode.ui.events import Event, Info, Warn


def peer(text: str) -> PeerId:
    """A peer whose short id is this text."""
    import base64

    return base64.b32decode(text.replace("-", "").upper()) + bytes(27)


ME, ALICE, ALAN, BOB = (peer(t) for t in ("meme-meme", "alic-eeee", "alan-nnnn", "bobb-obbb"))


class FakeNode:
    """Writes down what it is told; refuses to decide about those who do not wait."""

    def __init__(self) -> None:
        self.did: list[tuple] = []
        self.asked: PeerId | None = BOB
        self.waits = {BOB: "bob", ALICE: "alice", ALAN: "alan"}
        self.here = [(ME, "me", "this machine"), (ALICE, "bobb-obbb", "connected, 3 ms")]

    def waiting(self) -> dict[PeerId, str]:
        return self.waits

    def members(self) -> list[tuple[PeerId, str, str]]:
        return self.here

    def decide(self, peer: PeerId, verdict: str) -> None:
        self.did.append((verdict, peer))

    def kick(self, peer: PeerId) -> None:
        if peer == ME:
            raise UsageError("The host cannot be removed.")
        self.did.append(("kick", peer))

    def start(self) -> None:
        self.did.append(("start",))

    def stop(self) -> None:
        self.did.append(("stop",))

    def leave(self) -> None:
        self.did.append(("leave",))


@pytest.fixture
def node() -> FakeNode:
    return FakeNode()


@pytest.fixture
def shown() -> list[Event]:
    return []


@pytest.fixture
def commands(node: FakeNode, shown: list[Event]) -> Commands:
    return Commands(node, shown.append)


def test_short_ids_are_what_the_tests_say() -> None:
    assert [short_id(p) for p in (ME, BOB)] == ["meme-meme", "bobb-obbb"]


@pytest.mark.parametrize(
    ("line", "done"),
    [
        ("y", ("yes", BOB)),
        ("yes", ("yes", BOB)),
        ("n", ("no", BOB)),
        ("no", ("no", BOB)),
        ("l", ("later", BOB)),
        ("later", ("later", BOB)),
        ("  YES  ", ("yes", BOB)),
        ("yes alic", ("yes", ALICE)),
        ("no ALIC-EEEE", ("no", ALICE)),
        ("later alan-nnnn", ("later", ALAN)),
        ("b", ("block", BOB)),
        ("block alic", ("block", ALICE)),
        ("kick alic", ("kick", ALICE)),
        ("start", ("start",)),
        ("stop", ("stop",)),
        ("quit", ("leave",)),
        ("exit", ("leave",)),
        ("leave", ("leave",)),
    ],
)
def test_commands(
    line: str, done: tuple, commands: Commands, node: FakeNode, shown: list[Event]
) -> None:
    commands.line(line)
    assert node.did == [done]
    assert shown == []


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("fly", "no command 'fly'; type help"),
        ("yes al", "2 machines have an id that begins with 'al'"),
        ("yes zz", "No machine has an id that begins with 'zz'"),
        ("yes a b", "one machine by its id"),
        ("kick", "one machine by its id"),
        ("kick bobb", "No machine"),  # it waits; it is no member
        ("yes meme", "No machine"),  # a member; it does not wait
        ("kick meme", "cannot be removed"),
        ("stop the presses", "stop stands alone"),
        ("start now", "start stands alone"),
        ("quit smoking", "quit stands alone"),
        ("\x1b[2J", "no command '\\x1b[2j'"),
    ],
)
def test_mistakes_become_sentences(
    line: str, words: str, commands: Commands, node: FakeNode, shown: list[Event]
) -> None:
    commands.line(line)
    (told,) = shown
    assert isinstance(told, Warn)
    assert words in told.text
    assert node.did == []


@pytest.mark.parametrize("line", ["yes alice", "no bob", "kick me", "yes -", "yes *"])
def test_names_never_match(
    line: str, commands: Commands, node: FakeNode, shown: list[Event]
) -> None:
    """A stranger chooses a name; it must not be able to stand for another machine."""
    commands.line(line)
    if line == "no bob":  # here the name is also the beginning of the right id
        assert node.did == [("no", BOB)]
    else:
        assert node.did == []
        assert isinstance(shown[0], Warn)


def test_a_name_that_looks_like_an_id_does_not_match(commands: Commands, node: FakeNode) -> None:
    """alice calls herself by bob's id: kicking that id must not hit alice."""
    node.here = [(ALICE, "bobb-obbb", "connected")]
    commands.line("kick bobb-obbb")
    assert node.did == []


def test_an_answer_with_nobody_waiting(
    commands: Commands, node: FakeNode, shown: list[Event]
) -> None:
    node.asked = None
    node.waits = {}
    commands.line("y")
    assert node.did == []
    assert isinstance(shown[0], Warn)
    assert "Nobody is waiting" in shown[0].text


def test_an_answer_without_a_question_names_no_machine(
    commands: Commands, node: FakeNode, shown: list[Event]
) -> None:
    node.asked = None  # all who wait were put off
    commands.line("y")
    assert node.did == []
    assert isinstance(shown[0], Warn)
    assert "by its id" in shown[0].text


@pytest.mark.parametrize("line", ["", "   ", "\t"])
def test_an_empty_line_is_nothing(
    line: str, commands: Commands, node: FakeNode, shown: list[Event]
) -> None:
    commands.line(line)
    assert (node.did, shown) == ([], [])


def test_help_names_every_command(commands: Commands, shown: list[Event]) -> None:
    commands.line("help")
    (told,) = shown
    assert isinstance(told, Info)
    for word in ("yes", "no", "later", "start", "peers", "kick", "stop", "quit"):
        assert word in told.text


def test_peers(commands: Commands, node: FakeNode, shown: list[Event]) -> None:
    commands.line("peers")
    (told,) = shown
    assert isinstance(told, Info)
    assert told.text.splitlines() == [
        "  meme-meme  me  this machine",
        "  alic-eeee  bobb-obbb  connected, 3 ms",
        "  bobb-obbb  bob  waits for your answer",
        "  alic-eeee  alice  waits for your answer",
        "  alan-nnnn  alan  waits for your answer",
    ]
    node.here, node.waits = [], {}
    commands.line("peers")
    assert isinstance(shown[1], Info)
    assert "nobody" in shown[1].text
