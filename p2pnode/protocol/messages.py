"""Messages between the step cores of two peers, and their one encoding.

May import: errors, limits.

A message is a small msgpack header and, for some kinds, a payload of raw bytes that is never
looked into here:

    u32 little-endian   length of the header
    header              one tagged Struct below, as a msgpack array
    payload             int32 little-endian values (Contribution, ShardSum) or blob bytes

Steps count from 1: step t takes state t-1 to state t, and state 0 is the initial one. Every fact
is named by its coordinates (step, slots, shard), never by who sent it or when, so that a repeat
can only repeat. Every field is bounded; `decode` raises PeerError for anything else.
"""

from __future__ import annotations

import enum
import hashlib
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta

from p2pnode.errors import PeerError, told
from p2pnode.limits import KIB, LIMITS, MIB

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Payload handle. Sliced and measured by the cores, never read by them."""

PeerId = bytes
"""SHA-256 of a peer's public key, 32 bytes."""

HEADER_BYTES = 8 * MIB
"""Largest header: the evidence of 1,024 slots of a model with a thousand tensors."""
PART_BYTES = 256 * KIB
"""Size of every part of a blob but the last; hashing one takes well under a millisecond."""
MAX_PARTS = 65_536
MAX_TENSORS = 4_096
PIECES = 128
"""Nearly equal pieces of the flat parameter vector. Shards are made of whole pieces, so that a
worker's digests of its pieces hold for any cut into shards (two for each of the largest roster)."""

Id = Annotated[bytes, Meta(min_length=32, max_length=32)]
Digest = Annotated[bytes, Meta(min_length=32, max_length=32)]
RunTag = Annotated[bytes, Meta(min_length=16, max_length=16)]
Step = Annotated[int, Meta(ge=0, le=10_000_000)]
Slot = Annotated[int, Meta(ge=0, le=1_023)]
MaybeSlot = Annotated[int, Meta(ge=-1, le=1_023)]
Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Term = Annotated[int, Meta(ge=0, le=2**53 - 1)]
WEIGHT_MODULUS = 2**64
"""Checksums under a nonce are taken modulo this, and told as signed integers."""
Nonce = Annotated[bytes, Meta(max_length=16)]
Unsigned63 = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Signed64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Slots = Annotated[tuple[Slot, ...], Meta(min_length=1, max_length=1_024)]
"""A set: strictly ascending slot numbers. The set's identity is this tuple."""
Magnitudes = Annotated[
    tuple[Annotated[int, Meta(ge=0, le=2**31 - 1)], ...], Meta(max_length=MAX_TENSORS)
]
Peers = Annotated[tuple[Id, ...], Meta(max_length=LIMITS.peers)]
Text = Annotated[str, Meta(max_length=256)]


class _Part(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Base of the structures that messages are made of."""


def piece_start(piece: int, parameters: int) -> int:
    """First element of a piece in a vector of `parameters` elements."""
    return parameters * piece // PIECES


class Shard(_Part, frozen=True):
    """Part `index` of the flat parameter vector cut into `count` nearly equal runs of pieces."""

    index: Annotated[int, Meta(ge=0, le=LIMITS.peers - 1)]
    count: Annotated[int, Meta(ge=1, le=LIMITS.peers)]

    @property
    def pieces(self) -> tuple[int, int]:
        """First and one-past-last piece of the shard."""
        return PIECES * self.index // self.count, PIECES * (self.index + 1) // self.count

    def bounds(self, parameters: int) -> tuple[int, int]:
        """First and one-past-last element of the shard in a vector of `parameters` elements."""
        first, last = self.pieces
        return piece_start(first, parameters), piece_start(last, parameters)


class SlotEvidence(_Part, frozen=True):
    """What a peer states about one slot it computed. The same from every honest peer."""

    slot: Slot
    token_hash: Digest
    digest: Digest
    """SHA-256 of the slot's whole gradient on the grid."""
    checksum: Unsigned63
    """Linear checksum of that gradient modulo 2^63: checksums of slots add up to their sum's."""
    clamps: Unsigned63
    max_abs: Magnitudes
    """Largest |q| per tensor."""
    loss: Signed64
    """Loss in units of 2^-24."""
    tokens: Count


class Summary(_Part, frozen=True):
    """What all slots of a step say together; a pure function of the step."""

    loss: Signed64
    tokens: Unsigned63
    clamps: Unsigned63
    max_abs: Magnitudes
    checksum: Unsigned63
    evidence: Digest
    """SHA-256 over the slots' evidence in slot order."""


class Seen(_Part, frozen=True):
    """Names a pledge that the sender has: its worker, set and state before, and what it says."""

    peer: Id
    slots: Slots
    base: Digest
    digest: Digest
    """`pledge_digest`."""


SeenPledges = Annotated[tuple[Seen, ...], Meta(max_length=4_096)]


class Work(_Part, frozen=True):
    """One set and the roster positions of those who compute it (more than one: a backup)."""

    slots: Slots
    workers: Annotated[
        tuple[Annotated[int, Meta(ge=0, le=LIMITS.peers - 1)], ...],
        Meta(min_length=1, max_length=LIMITS.peers),
    ]


class PlanKey(_Part, frozen=True, order=True):
    """Order of plans: a later term wins, then within a term the later attempt."""

    term: Term
    attempt: Count


class FrozenState(_Part, frozen=True):
    """A committed state that a donor holds still for joiners."""

    step: Step
    state_hash: Digest
    root: Digest
    """Name of the blob with its bytes (see BlobIndex)."""


class Claim(_Part, frozen=True):
    """`slot` of `step` has a gradient that is not finite. Everybody checks it for himself."""

    step: Step
    slot: Slot


class _Message(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Base of all messages: `run` is the tag of the newest record of the chain (see chain)."""

    run: RunTag


class Status(_Message, frozen=True, tag=1):
    """Heartbeat: all that others need to know of a peer. Sent every second and on change."""

    boot: Unsigned63
    """Random per start of the node; `seq` counts within it."""
    seq: Unsigned63
    term: Term
    leader: Id | None
    leading: bool
    """The sender holds the lead in this term (a restarted leader does not)."""
    applied: Step
    state_hash: Digest
    """Of state `applied`."""
    committed: Step
    """`applied` or, while its hashes are compared, `applied` - 1."""
    committed_hash: Digest
    plan: PlanKey
    """Newest plan known, (0, 0) if none."""
    current: PlanKey
    """Plan known for step `applied` + 1, (0, 0) if none."""
    links: Peers
    """Peers with a direct link that works."""
    sets: Annotated[tuple[Slots, ...], Meta(max_length=1_024)]
    """Sets of step `applied` + 1 the sender holds the gradient of."""
    before: Annotated[tuple[Slots, ...], Meta(max_length=1_024)]
    """The same of step `applied`, until that is committed."""
    speed: Annotated[float, Meta(ge=0.0, le=1e9)]
    """Slots per second, 0 while unknown."""
    kept_from: Step
    """Sums of the steps from here to `applied` can be had from the sender; `applied` + 1: none."""
    wants_state: bool
    """No live peer can serve the sums the sender lacks."""
    received: Unsigned63
    """Bulk bytes received so far: shows that a transfer moves."""
    frozen: FrozenState | None
    verified: Step
    """Last step whose apply the sender recomputed with reference arithmetic and found right."""
    checked: Step
    """Last step whose sums the sender found to be those of the contributions. Its `state_hash` of
    a later step says nothing yet."""
    claim: Claim | None
    auditing: Count
    """Sets of others that the sender computes again, or has found wrong and that no record has
    taken back; the run does not end before."""
    lacking: bool
    """The text of the sender's slots is not there and cannot be had at the moment: the leader gives
    it none as long as others have it."""
    leaving: bool

    def holds(self, step: int) -> tuple[Slots, ...]:
        """Sets of the step that the sender holds the gradient of."""
        if step == self.applied + 1:
            return self.sets
        return self.before if step == self.applied else ()


class Plan(_Message, frozen=True, tag=2):
    """Leader to all: who takes part in a step, who computes what, who adds what."""

    key: PlanKey
    leader: Id
    step: Step
    roster: Annotated[tuple[Id, ...], Meta(min_length=1, max_length=LIMITS.peers)]
    """In join order."""
    observers: Peers
    """Catching up: they get the sums but have no work."""
    work: Annotated[tuple[Work, ...], Meta(min_length=1, max_length=1_024)]
    """Sets; together they hold every slot exactly once."""
    owners: Annotated[
        tuple[Annotated[int, Meta(ge=0, le=LIMITS.peers - 1)], ...],
        Meta(min_length=1, max_length=LIMITS.peers),
    ]
    """Roster position of the owner of each shard; its length is the number of shards."""
    freeze: bool
    """Hold the state committed before this step still for the observers."""
    excluded: Peers
    """Peers that get no more work, because their work was wrong or the host removed them."""


class Contribution(_Message, frozen=True, tag=3):
    """Worker to owner. Payload: the shard of the sum of the set's gradients, int32. It counts only
    with the worker's pledge for the set, whose digests its bytes must have."""

    step: Step
    base: Digest
    """Hash of the state before the step, from which the gradients were computed."""
    slots: Slots
    shard: Shard


class ShardSum(_Message, frozen=True, tag=4):
    """Owner, or anybody who applied the step, to all. Payload: the sum over all slots, int32."""

    step: Step
    base: Digest
    """Hash of the state before the step."""
    shard: Shard
    summary: Summary


class Want(_Message, frozen=True, tag=5):
    """Ask for what is missing of a step: contributions of a set, or sums."""

    step: Step
    slots: Annotated[tuple[Slot, ...], Meta(max_length=1_024)]
    """The set whose contributions are wanted; empty: sums are wanted."""
    shards: Annotated[tuple[Shard, ...], Meta(max_length=LIMITS.peers)]
    """Which shards; empty: all of the step, as the holder has them."""


class Accuse(_Message, frozen=True, tag=6):
    """To the leader and to `peer`: it broke a rule; it should get no more work."""

    peer: Id
    step: Step
    slot: MaybeSlot
    """The slot that it computed wrongly; -1: something else is wrong."""
    reason: Text
    token_hash: Annotated[bytes, Meta(max_length=32)] = b""
    """If it computed the slot on other text: the hash of the tokens that the sender has there."""


class Confess(_Message, frozen=True, tag=7):
    """To all: recomputation showed that the sender's own work in `step` was wrong."""

    step: Step
    slot: MaybeSlot
    """The slot it computed wrongly; -1: its apply."""
    tensor: Text
    """The first one that differs, and the operation that made it so."""
    operation: Text


class BlobWant(_Message, frozen=True, tag=8):
    """Ask for part `part` of a blob, or for its index (-1)."""

    root: Digest
    part: Annotated[int, Meta(ge=-1, le=MAX_PARTS - 1)]


class BlobIndex(_Message, frozen=True, tag=9):
    """The parts of a blob. Payload: their SHA-256 hashes, 32 bytes each."""

    root: Digest
    size: Annotated[int, Meta(ge=0, le=MAX_PARTS * PART_BYTES)]


class BlobPart(_Message, frozen=True, tag=10):
    """One part of a blob. Payload: its bytes."""

    root: Digest
    part: Annotated[int, Meta(ge=0, le=MAX_PARTS - 1)]


class Pledge(_Message, frozen=True, tag=11):
    """Worker to all, before any sum is known: what it computed. Signed, so that anybody may pass
    it on, and two that differ prove a lie to anybody."""

    peer: Id
    """The worker."""
    step: Step
    base: Digest
    """Hash of the state before the step, from which the gradients were computed."""
    slots: Slots
    probe: Annotated[bytes, Meta(max_length=32)]
    """Hash of the kernel probe that ran with the set; empty: it did not run."""
    evidence: Annotated[tuple[SlotEvidence, ...], Meta(min_length=1, max_length=1_024)]
    """One for each of `slots`."""
    pieces: Annotated[tuple[Digest, ...], Meta(min_length=PIECES, max_length=PIECES)]
    """SHA-256 of each piece of the sum of the set's gradients, int32 little-endian."""
    signature: Annotated[bytes, Meta(max_length=64)]
    """The worker's, of `pledge_digest`."""


class Challenge(_Message, frozen=True, tag=12):
    """To a worker, by who has all sums of the step: what are your sets' checksums under this
    nonce? With an empty nonce only: which pledges have you got?"""

    step: Step
    base: Digest
    """Hash of the state before the step."""
    nonce: Nonce
    seen: SeenPledges
    """The step's pledges that the sender has: who has others of the same sets sends them."""


class Answer(_Message, frozen=True, tag=13):
    """The answer to a Challenge."""

    step: Step
    nonce: Nonce
    values: Annotated[tuple[tuple[Slots, Signed64], ...], Meta(max_length=1_024)]
    """Checksum under the nonce of each set that the sender holds (see kernels.weigh)."""
    seen: SeenPledges


class Wrong(_Message, frozen=True, tag=20):
    """To all: the sender computed a pledged slot again, and it is not as pledged. The pledge is
    signed, so nobody can be said to have stated what it did not."""

    pledge: Pledge
    slot: Slot
    truth: SlotEvidence | None
    """What the reference kernels of the sender gave; None: it is not finite. If it is what was
    pledged, then the worker told the sender's check another checksum than that of its pledge."""


Message: TypeAlias = (
    Status
    | Plan
    | Contribution
    | ShardSum
    | Want
    | Accuse
    | Confess
    | BlobWant
    | BlobIndex
    | BlobPart
    | Pledge
    | Challenge
    | Answer
    | Wrong
)


class Priority(enum.IntEnum):
    """Order of sending to one peer; lower goes first."""

    CONTROL = 0
    SHARD = 1
    STATE = 2


_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(Message)
_WITH_PAYLOAD = (Contribution, ShardSum, BlobIndex, BlobPart)


def encode(message: Message, payload: Buffer = b"") -> list[Buffer]:
    """The wire form as buffers to be sent one after the other; the payload is not copied."""
    header = _encoder.encode(message)
    buffers: list[Buffer] = [len(header).to_bytes(4, "little") + header]
    if len(payload):
        buffers.append(payload)
    return buffers


def pledge_digest(pledge: Pledge) -> bytes:
    """SHA-256 of all that a pledge says, without its signature: what its worker signs. Without the
    tag too: the state it starts from names its run, and it stays true under a later record."""
    plain = msgspec.structs.replace(pledge, run=bytes(16), signature=b"")
    return hashlib.sha256(b"p2pnode/1 pledge" + _encoder.encode(plain)).digest()


def as_weight(value: int) -> int:
    """A checksum under a nonce as it is told: signed, modulo 2^64."""
    return (value + WEIGHT_MODULUS // 2) % WEIGHT_MODULUS - WEIGHT_MODULUS // 2


def decode(raw: Buffer) -> tuple[Message, memoryview]:
    """Message and payload (a view into `raw`). Raises PeerError with what is wrong."""
    view = memoryview(raw)
    if len(view) < 4:
        raise PeerError(f"a message of {len(view)} bytes is too short to have a header")
    length = int.from_bytes(view[:4], "little")
    if length > HEADER_BYTES or length > len(view) - 4:
        raise PeerError(f"a header of {length} bytes does not fit its message of {len(view)} bytes")
    try:
        message: Message = _decoder.decode(view[4 : 4 + length])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise PeerError(f"not a message of this protocol: {told(error)}") from None
    payload = view[4 + length :]
    if len(payload) and not isinstance(message, _WITH_PAYLOAD):
        raise PeerError(f"{type(message).__name__} carries {len(payload)} bytes it should not have")
    return message, payload
