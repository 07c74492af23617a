"""What a node tells its owner. One event is one line on the terminal or one JSON object.

May import: protocol.text.
"""

from __future__ import annotations

import json

import msgspec

from p2pnode.protocol.text import visible


class Event(msgspec.Struct, frozen=True, tag_field="event", tag=str.lower, kw_only=True):
    """Base: the JSON form has the class name in lower case under `event`."""


class Info(Event, frozen=True):
    """Something worth knowing; nothing to do."""

    text: str


class Warn(Event, frozen=True):
    """Something the owner may want to act on."""

    text: str


class Invite(Event, frozen=True):
    """The room is open: how others join it."""

    server: str
    code: str
    command: str


class Waiting(Event, frozen=True):
    """This node waits for the host's answer."""

    host: str


class Knock(Event, frozen=True):
    """A machine asks to join; only the host sees it."""

    peer: str
    name: str
    words: str = ""
    """It has no room code: let it in only if its own terminal shows these words."""


class Compare(Event, frozen=True):
    """This machine asks to join without a code; the host's terminal must show these words."""

    host: str
    words: str


class Joined(Event, frozen=True):
    """A peer is connected; `turn`: through a TURN server."""

    peer: str
    name: str
    connected: int
    turn: bool = False


class Left(Event, frozen=True):
    """A peer is no longer connected."""

    peer: str
    name: str
    reason: str
    connected: int


class RunStarted(Event, frozen=True):
    """The run's configuration is known and this node is ready for it."""

    run: str
    parameters: int
    steps: int
    slots: int
    tokens_per_step: int
    first_step: int
    backend: str
    audit: float = 0.0
    """Share of others' sets that are computed again here."""


class Computing(Event, frozen=True):
    """This node begins to compute slots of a step."""

    step: int
    slots: int


class Step(Event, frozen=True):
    """A step is applied. `loss` in nats per token over all slots of all nodes."""

    step: int
    steps: int
    loss: float
    grad_norm: float
    lr: float
    tokens_per_s: float
    slots_here: int
    nodes: int
    rss_mb: float
    """Resident memory of this process, MB of 2^20 bytes."""
    audited: int = 0
    """Slots of others that were computed again here so far."""


class HeldOut(Event, frozen=True):
    """Held-out loss in nats per token on the run's fixed slots."""

    step: int
    loss: float


class Sample(Event, frozen=True):
    """A prompt and what the model of a step writes after it."""

    step: int
    text: str


class Checkpoint(Event, frozen=True):
    """A checkpoint file is complete on disk. `best`: that of the lowest held-out loss so far."""

    step: int
    path: str
    best: bool = False


class Finished(Event, frozen=True):
    """The run ended here. `hash` is the SHA-256 of the whole state, the same at every node."""

    step: int
    hash: str
    loss: float | None
    """Of the last step this node saw applied; None if it only took the final state over."""
    checkpoint: str
    worst_loop_stall_ms: float
    loop_stalls: int
    """Stalls of the event loop over 100 ms."""
    peak_rss_mb: float
    audited_slots: int = 0
    """Slots of others that were computed again here,"""
    audit_share: float = 0.0
    """and their part of the time for slots, 0 to 1."""
    audits_missed: int = 0
    """Sets that were drawn but left out because this machine was too far behind."""


AnyEvent = (
    Info
    | Warn
    | Invite
    | Waiting
    | Knock
    | Compare
    | Joined
    | Left
    | RunStarted
    | Computing
    | Step
    | HeldOut
    | Sample
    | Checkpoint
    | Finished
)

_decoder = msgspec.json.Decoder(AnyEvent)


def to_json(event: Event) -> str:
    """One line of JSON without its newline."""
    try:
        text = msgspec.json.encode(event).decode()
    except UnicodeEncodeError:  # a path whose bytes are no text
        text = msgspec.json.encode(_visible(event)).decode()
    if text.isprintable():
        return text
    # Such characters stand in strings only, where JSON has escapes for them; logs are read too.
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in text)


def from_json(line: str | bytes) -> AnyEvent:
    """Inverse of `to_json`; raises msgspec.MsgspecError for anything else."""
    return _decoder.decode(line)


def _visible(event: Event) -> Event:
    """The same event with `visible` words."""
    words = {
        name: visible(value)
        for name, value in msgspec.structs.asdict(event).items()
        if isinstance(value, str)
    }
    return msgspec.structs.replace(event, **words)


def sentence(event: Event) -> str | None:
    """The line a person reads, or None for events that are only for programs.

    Safe to print: whoever wrote the words in the event, only this program's layout is obeyed.
    """
    if isinstance(event, Info):  # lists and help are laid out in lines
        return "\n".join(visible(line) for line in event.text.split("\n"))
    event = _visible(event)
    match event:
        case Warn(text=text):
            return f"warning: {text}"
        case Invite():
            return (
                f"Room code: {event.code}\n"
                f"On the other machines run:\n    {event.command}\n"
                "You are the host: machines wait until you approve them here."
            )
        case Waiting():
            return "Waiting for the host to approve this machine."
        case Knock(words=""):
            return f"{event.name} ({event.peer}) asks to join."
        case Knock():
            return (
                f"{event.name} ({event.peer}) asks to join without a code; let it in only if its "
                f"terminal shows: {event.words}"
            )
        case Compare():
            return (
                f"Words to compare: {event.words}\n"
                f"The host ({event.host}) must see the same ones beside this machine's name. If "
                "it does not, somebody is in between: say no, and use a room code."
            )
        case Joined():
            turn = " via TURN" if event.turn else ""
            return f"{event.name} ({event.peer}) is connected{turn}; {event.connected} with you."
        case Left():
            return (
                f"{event.name} ({event.peer}) left: {event.reason}; "
                f"{event.connected} still connected."
            )
        case RunStarted():
            start = f", from step {event.first_step}" if event.first_step else ""
            return (
                f"Run {event.run}: {event.parameters:,} parameters, {event.steps} steps of "
                f"{event.slots} slots{start}; {event.backend} kernels."
                + (f" {event.audit:.3g} of others' sets is audited here." if event.audit else "")
            )
        case Step():
            return (
                f"step {event.step}/{event.steps}  loss {event.loss:.4f}  "
                f"norm {event.grad_norm:.3f}  {event.tokens_per_s:,.0f} tokens/s  "
                f"{event.nodes} node{'s' if event.nodes != 1 else ''}, "
                f"{event.slots_here} slots here"
                + (f", {event.audited} audited so far" if event.audited else "")
            )
        case HeldOut():
            return f"step {event.step}  held-out loss {event.loss:.4f}"
        case Sample():
            return f"step {event.step} writes: {event.text}"
        case Checkpoint():
            best = ", the lowest held-out loss so far," if event.best else ""
            return f"Saved step {event.step}{best} to {event.path}"
        case Finished():
            return (
                f"Finished at step {event.step}"
                + (f": loss {event.loss:.4f}\n" if event.loss is not None else "\n")
                + f"hash {event.hash}\n"
                f"checkpoint {event.checkpoint}\n"
                f"event loop: worst stall {event.worst_loop_stall_ms:.0f} ms, "
                f"{event.loop_stalls} over 100 ms; peak memory {event.peak_rss_mb:.0f} MB"
                + _audits(event)
            )
        case _:
            return None


def _audits(event: Finished) -> str:
    if not event.audited_slots and not event.audits_missed:
        return ""
    text = f"\naudits: {event.audited_slots} slots, {event.audit_share:.1%} of the time for slots"
    return text + (f"; {event.audits_missed} sets left out" if event.audits_missed else "")
