"""What the owner can type at the prompt.

May import: ui.events, errors, protocol.identity for short ids. Knows the node by `Actions` only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from p2pnode.errors import UsageError
from p2pnode.protocol.identity import PeerId, short_id
from p2pnode.ui.events import Event, Info, Warn

HELP = """commands:
  y, n, l, b      answer the question in the prompt: yes, no, later (the next one is asked about
                  meanwhile), or block it for good
  yes ID, no ID   answer for another waiting machine (ID as shown, its beginning suffices)
  start           host: begin the run with the machines that are connected
  peers           who is in the room, and who waits
  kick ID         host: remove a machine
  stop            host: end the run after the current step; everybody saves it
  change NAME=VALUE ...
                  host: go on with other settings; steps, lr and warmup can change
  quit            leave; what is done so far is saved"""

_ANSWERS = {"y": "yes", "yes": "yes", "n": "no", "no": "no", "l": "later", "later": "later"}
_ANSWERS |= {"b": "block", "block": "block"}
_ALONE = frozenset({"peers", "help", "start", "stop", "quit", "exit", "leave"})


class Actions(Protocol):
    """What commands do; the node."""

    @property
    def asked(self) -> PeerId | None: ...
    def waiting(self) -> dict[PeerId, str]: ...
    def members(self) -> list[tuple[PeerId, str, str]]: ...
    def decide(self, peer: PeerId, verdict: str) -> None: ...
    def kick(self, peer: PeerId) -> None: ...
    def start(self) -> None: ...
    def stop(self) -> None: ...
    def change(self, steps: int | None, lr: float | None, warmup: int | None) -> None: ...
    def leave(self) -> None: ...


class Commands:
    """Carries out typed lines; a mistake becomes a sentence, never an exception."""

    def __init__(self, node: Actions, show: Callable[[Event], None]) -> None:
        self._node = node
        self._show = show

    def line(self, text: str) -> None:
        """One typed line."""
        words = text.split()
        if not words:
            return
        try:
            self._do(words[0].lower(), words[1:])
        except UsageError as error:
            self._show(Warn(text=str(error)))

    def _do(self, command: str, rest: list[str]) -> None:
        if command in _ALONE and rest:  # a sentence that begins like a command is none
            raise UsageError(f"{command} stands alone; there is nothing to add to it.")
        if command in _ANSWERS:
            self._node.decide(self._whom(rest), _ANSWERS[command])
        elif command == "kick":
            self._node.kick(self._find(rest, {p: n for p, n, _ in self._node.members()}))
        elif command == "peers":
            self._peers()
        elif command == "help":
            self._show(Info(text=HELP))
        elif command in ("start", "stop"):
            getattr(self._node, command)()
        elif command == "change":
            self._change(rest)
        elif command in ("quit", "exit", "leave"):
            self._node.leave()
        else:
            raise UsageError(f"There is no command {command!r}; type help.")

    def _change(self, rest: list[str]) -> None:
        """`change steps=400 lr=0.001`."""
        given: dict[str, str] = {}
        for word in rest:
            name, equals, value = word.partition("=")
            if not equals or not value:
                raise UsageError("Type what changes, such as: change steps=400 lr=0.001")
            if name not in ("steps", "lr", "warmup"):
                raise UsageError(
                    f"{name!r} cannot change while a run goes on, only steps, lr and warmup can: "
                    "all else is part of the model, of its data, or of what a slot is. Start a "
                    "new run for that."
                )
            given[name] = value
        if not given:
            raise UsageError("Type what changes, such as: change steps=400 lr=0.001")
        try:
            steps, warmup = (
                int(given[name]) if name in given else None for name in ("steps", "warmup")
            )
            lr = float(given["lr"]) if "lr" in given else None
        except ValueError:
            raise UsageError("Steps and warmup are whole numbers, lr is a number.") from None
        self._node.change(steps, lr, warmup)

    def _whom(self, rest: list[str]) -> PeerId:
        if rest:
            return self._find(rest, self._node.waiting())
        if self._node.asked is None:
            raise UsageError(
                "Say whom you mean by its id; `peers` shows who waits."
                if self._node.waiting()
                else "Nobody is waiting."
            )
        return self._node.asked

    @staticmethod
    def _find(rest: list[str], among: dict[PeerId, str]) -> PeerId:
        """The peer whose short id begins as typed; names do not count, they can be forged."""
        if len(rest) != 1:
            raise UsageError("Name one machine by its id, as `peers` shows it.")
        found = [peer for peer in among if short_id(peer).startswith(rest[0].lower())]
        if len(found) != 1:
            raise UsageError(
                f"{len(found) or 'No'} machine{'s have' if len(found) > 1 else ' has'} an id that "
                f"begins with {rest[0]!r}; `peers` shows them."
            )
        return found[0]

    def _peers(self) -> None:
        lines = [
            f"  {short_id(peer)}  {name}  {state}" for peer, name, state in self._node.members()
        ]
        lines += [
            f"  {short_id(peer)}  {name}  waits for your answer"
            for peer, name in self._node.waiting().items()
        ]
        self._show(Info(text="\n".join(lines) or "  nobody is here"))
