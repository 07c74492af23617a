"""What a node tells its step core: things that arrived, and results of effects it ran.

May import: messages.

Results of effects may come in any order and late; the core ignores those it no longer needs.
"""

from __future__ import annotations

import dataclasses
from typing import TypeAlias

from p2pnode.protocol.messages import Buffer, Message, PeerId, Shard, SlotEvidence


@dataclasses.dataclass(frozen=True, slots=True)
class Start:
    """Take part from now on. `lead`: this node is the host and begins the run.

    Before it the core only takes note of members, links and statuses, and asks for nothing.
    """

    lead: bool


@dataclasses.dataclass(frozen=True, slots=True)
class LinkUp:
    """A direct link to the peer works, for the first time or again."""

    peer: PeerId


@dataclasses.dataclass(frozen=True, slots=True)
class LinkDown:
    """The direct link is gone, and with it whatever was on its way."""

    peer: PeerId


@dataclasses.dataclass(frozen=True, slots=True)
class Heard:
    """A frame came over the direct link: a sign of life, also amid a long message.

    `nbytes` counts bulk bytes only (0 for control frames and pings).
    """

    peer: PeerId
    nbytes: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class MessageReceived:
    """A whole message. `via` names the neighbour that relayed it, None for a direct link."""

    peer: PeerId
    message: Message
    payload: Buffer = b""
    via: PeerId | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Computed:
    """Result of Compute. `payload`: exact sum of the set's gradients, all parameters, int32.
    `pieces`: SHA-256 of each of its pieces (see pieces.digest_pieces)."""

    step: int
    slots: tuple[int, ...]
    reference: bool
    probe: bytes
    evidence: tuple[SlotEvidence, ...]
    payload: Buffer
    pieces: tuple[bytes, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class SetRefused:
    """Compute met a gradient that is not finite in `slot`; the set has no sum."""

    step: int
    slots: tuple[int, ...]
    reference: bool
    slot: int
    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class Reduced:
    """Result of Reduce: the sum of its parts, int32. `read`: all of others' text was here, and is
    the same."""

    step: int
    shard: Shard
    ticket: int
    payload: Buffer
    read: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class ReduceRefused:
    """Part number `part` of Reduce is not what its worker pledged, or nothing honest; or it was
    computed on other text than this machine has in `slot`, whose tokens here have `token_hash`."""

    step: int
    shard: Shard
    ticket: int
    part: int
    reason: str
    slot: int = -1
    token_hash: bytes = b""


@dataclasses.dataclass(frozen=True, slots=True)
class Weighed:
    """Result of Weigh."""

    ticket: int
    value: int


@dataclasses.dataclass(frozen=True, slots=True)
class Applied:
    """Result of Apply. The state before it is kept until Commit."""

    step: int
    state_hash: bytes


@dataclasses.dataclass(frozen=True, slots=True)
class ApplyRefused:
    """Apply refused; the state is what it was before.

    `non_finite`: the new state would not be finite. Otherwise the sums contradict the summary.
    """

    step: int
    reason: str
    non_finite: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Verified:
    """Result of Verify. `tensor` is None if the apply was right, else the first tensor that
    differs from the reference arithmetic, and `operation` what made it so. `saved` says where a
    bundle that reproduces it lies, or why there is none."""

    step: int
    tensor: str | None
    operation: str = ""
    saved: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Diagnosed:
    """Result of Diagnose. `tensor` and `operation`: the first in which the kernels in use here
    differ from the reference; `tensor` is None if they do not. `saved` as above."""

    step: int
    slot: int
    peer: PeerId
    tensor: str | None
    operation: str
    saved: str


@dataclasses.dataclass(frozen=True, slots=True)
class Audited:
    """Result of Audit: what the set's worker should have pledged. `evidence` is empty if a slot is
    not finite, None if the state was not there any more."""

    step: int
    slots: tuple[int, ...]
    reference: bool
    evidence: tuple[SlotEvidence, ...] | None
    pieces: tuple[bytes, ...] = ()
    payload: Buffer = b""
    """The sum of the set's gradients, int32; empty if that was not asked for (`reference`)."""


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    """Result of Freeze: canonical bytes of the committed state, the same at every peer.

    `part_hashes`: SHA-256 of each PART_BYTES of `payload` (see fetch.part_hashes).
    """

    step: int
    state_hash: bytes
    payload: Buffer
    part_hashes: bytes


@dataclasses.dataclass(frozen=True, slots=True)
class Loaded:
    """Result of Load: the state is now the loaded one."""

    step: int
    state_hash: bytes


@dataclasses.dataclass(frozen=True, slots=True)
class LoadRefused:
    """Load found the bytes to be no valid state of this run; the state is what it was."""

    step: int
    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class Recalled:
    """Result of Recall: the blob as far as it is here. `parts`: numbers of those whose hashes were
    found right; none if there is nothing, and then the rest means nothing."""

    root: bytes
    size: int = 0
    hashes: bytes = b""
    blob: bytearray = dataclasses.field(default_factory=bytearray)
    parts: frozenset[int] = frozenset()


@dataclasses.dataclass(frozen=True, slots=True)
class Spooled:
    """Result of Spool: the same bytes, read from disk when they are needed; None if there is no
    room for them."""

    step: int
    payloads: tuple[Buffer, ...] | None
    reason: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class RosterChanged:
    """The signed member list: ids in join order, the host's, and who was removed."""

    members: tuple[PeerId, ...]
    kicked: tuple[PeerId, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Redirected:
    """A new record holds, under which what this node has applied is right (`Chain.goes_on`)."""

    run: bytes
    """Its tag."""
    last_step: int
    stopped: bool
    branch: int
    """Peers that were further than this step have to go back."""
    here: bool = False
    """It was signed by this node's owner, so others may not know of it yet."""


@dataclasses.dataclass(frozen=True, slots=True)
class LeaveRequested:
    """The owner of this machine wants to go: tell the others, take no more work."""


@dataclasses.dataclass(frozen=True, slots=True)
class Supply:
    """Whether the text of this node's slots is lacking, and has been for a while."""

    lacking: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Tick:
    """`next_deadline()` has come."""


Event: TypeAlias = (
    Start
    | LinkUp
    | LinkDown
    | Heard
    | MessageReceived
    | Computed
    | SetRefused
    | Reduced
    | ReduceRefused
    | Weighed
    | Applied
    | ApplyRefused
    | Verified
    | Diagnosed
    | Audited
    | Frozen
    | Loaded
    | LoadRefused
    | Recalled
    | Spooled
    | RosterChanged
    | Redirected
    | LeaveRequested
    | Supply
    | Tick
)
