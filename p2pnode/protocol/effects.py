"""What a step core asks its node to do.

May import: messages.

The node runs Reduce, Weigh, Apply, Rollback, Commit, Verify, Freeze and Load one after the other,
in the order given, in its computing thread, and reports each result as the event of that name.
Compute, Audit and Diagnose run in the same thread and may be overtaken by them (between slots, so
that a set under way holds nobody up). Everything else the node does at once.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Hashable
from typing import TypeAlias

from p2pnode.protocol.messages import (
    Buffer,
    Message,
    PeerId,
    Priority,
    Shard,
    SlotEvidence,
    Summary,
)


@dataclasses.dataclass(frozen=True, slots=True)
class Send:
    """Send a message to a peer, through the neighbour `via` if that is not None.

    A message still queued for the same peer under the same `key` is replaced by this one; one that
    is being sent goes on, and this one is then dropped unless it is a control message.
    """

    peer: PeerId
    message: Message
    payload: Buffer = b""
    priority: Priority = Priority.CONTROL
    key: Hashable = None
    via: PeerId | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Compute:
    """Compute a set on state `step` - 1, the current one or the kept one before it; result Computed
    or SetRefused.

    `reference`: with the reference kernels (to check a claim).
    """

    step: int
    slots: tuple[int, ...]
    reference: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class CancelCompute:
    """Give up this Compute if it runs or waits; no result is expected (one that comes is used).

    Never one with `reference` set, even if it has the same step and slots.
    """

    step: int
    slots: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Reduce:
    """Add `parts` (int32, in roster order); result Reduced or ReduceRefused with this `ticket`.

    `sizes[i]` is the number of slots in part i: honest values are at most `sizes[i]` times the
    largest magnitude of the grid. `digests[i]` are what the pieces of part i must have (see
    pieces.digest_pieces), and `texts[i]` its slots, each with the hash of the tokens that it was
    computed on; none if the part is this node's own.
    """

    step: int
    shard: Shard
    ticket: int
    parts: tuple[Buffer, ...]
    sizes: tuple[int, ...]
    digests: tuple[tuple[bytes, ...], ...]
    texts: tuple[tuple[tuple[int, bytes], ...], ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Weigh:
    """Checksum of a vector whose consecutive parts (int32) are given; result Weighed with this
    `ticket`. `nonce` gives the coefficients (see kernels.weigh); None: those of
    `SlotEvidence.checksum`."""

    ticket: int
    nonce: bytes | None
    parts: tuple[Buffer, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Apply:
    """Optimizer step from state `step` - 1 to `step`; result Applied or ApplyRefused.

    `sums`: all shards in order, together all parameters, int32. The old state must be kept for
    Verify until Commit(step).
    """

    step: int
    sums: tuple[Buffer, ...]
    summary: Summary


@dataclasses.dataclass(frozen=True, slots=True)
class Rollback:
    """Forget Apply(step): the state before it, which was kept, is the current one again."""

    step: int


@dataclasses.dataclass(frozen=True, slots=True)
class Commit:
    """State `step` is committed: the state before it may go, this one may become a checkpoint.

    `summary` and `credits` (peer, slots computed) are None/empty if this peer loaded the state.
    """

    step: int
    state_hash: bytes
    summary: Summary | None
    credits: tuple[tuple[PeerId, int], ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Verify:
    """Recompute Apply(step) with reference arithmetic from the kept state; result Verified."""

    step: int


@dataclasses.dataclass(frozen=True, slots=True)
class Diagnose:
    """Find the first operation of a slot in which the kernels in use differ from the reference,
    and save a bundle that reproduces it; result Diagnosed.

    `said`: what `peer` (maybe this node) stated of it, which is not what the reference kernels
    give; None: that it is not finite.
    """

    step: int
    slot: int
    peer: PeerId
    said: SlotEvidence | None


@dataclasses.dataclass(frozen=True, slots=True)
class Audit:
    """Compute a set of another peer again, on state `step` - 1, which is kept for it until LetGo;
    result Audited. It is in no hurry."""

    step: int
    slots: tuple[int, ...]
    reference: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class LetGo:
    """No Audit or Diagnose of this step is to come; its state need not be kept."""

    step: int


@dataclasses.dataclass(frozen=True, slots=True)
class Rewind:
    """State `step` (with this hash) is the last one before wrong work of `culprits`. This node is
    to order, by a record, that everybody goes back to it and goes on without these peers."""

    step: int
    state_hash: bytes
    culprits: tuple[PeerId, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Freeze:
    """Serialise state `step`, which is the current one; result Frozen."""

    step: int


@dataclasses.dataclass(frozen=True, slots=True)
class Load:
    """Replace the state by the one in `blob`; result Loaded or LoadRefused."""

    step: int
    blob: Buffer


@dataclasses.dataclass(frozen=True, slots=True)
class Recall:
    """Look on disk for parts of the blob of this name, which an earlier life of this node began to
    fetch; result Recalled. What there is of other blobs may go."""

    root: bytes


@dataclasses.dataclass(frozen=True, slots=True)
class Store:
    """Keep a verified part of a blob on disk, in the background, for a Recall after a restart. No
    result: where that does not work it is fetched again."""

    root: bytes
    size: int
    hashes: bytes
    start: int
    """Offset of the payload in the blob, bytes."""
    payload: Buffer


@dataclasses.dataclass(frozen=True, slots=True)
class Spool:
    """Move sums of a step to disk, in the background; result Spooled. They are not changed."""

    step: int
    payloads: tuple[Buffer, ...]


class Kind(enum.Enum):
    """What a Report is about."""

    LEADER = "leader"
    ROSTER = "roster"
    CATCH_UP = "catch-up"
    REFUSED = "refused"
    DIVERGENCE = "divergence"
    NON_FINITE = "non-finite"
    STOP = "stop"


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """A sentence for the log and the user. Peers in the text are short hex ids."""

    kind: Kind
    text: str
    peer: PeerId | None = None
    step: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class DropPeer:
    """Close the link to the peer: it broke the protocol."""

    peer: PeerId
    reason: str


class Ending(enum.Enum):
    """Why a run is over for this node."""

    COMPLETE = "complete"
    STOPPED = "stopped"
    NON_FINITE = "non-finite"


@dataclasses.dataclass(frozen=True, slots=True)
class Finished:
    """The final state is committed. The node saves it, and goes on serving until Released."""

    step: int
    state_hash: bytes
    ending: Ending
    detail: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Released:
    """Nobody needs this node any more; it may close its links."""


class Fault(enum.Enum):
    """Why this node cannot go on."""

    DIVERGENCE = "divergence"
    """Recomputation or the majority showed this node's state to be wrong, or nobody can tell."""
    UNSOUND = "unsound"
    """This machine does not compute the specified bits."""
    TEXT = "text"
    """This machine reads other text than the others."""
    REMOVED = "removed"
    """The host removed this node."""


@dataclasses.dataclass(frozen=True, slots=True)
class Failed:
    """The run ends here for this node, at its last committed state. No effects follow."""

    fault: Fault
    text: str


Effect: TypeAlias = (
    Send
    | Compute
    | CancelCompute
    | Reduce
    | Weigh
    | Apply
    | Rollback
    | Commit
    | Verify
    | Diagnose
    | Audit
    | LetGo
    | Rewind
    | Freeze
    | Load
    | Recall
    | Store
    | Spool
    | Report
    | DropPeer
    | Finished
    | Released
    | Failed
)
