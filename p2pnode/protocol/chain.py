"""The chain of records that says what a room trains: start, changed settings, stop, rewind.

May import: errors, config, identity, and `signaling.messages` for wire types. Sans-IO; no clock.

A record is signed by the host, or by a member that stands in for it, and names the record before
it by hash. A chain is a value: checked when it is opened, never changed afterwards. Two chains with
one first record are ordered (`Chain.beats`): everybody who has seen the same chains holds the same.

States are functions of configuration and data alone, so records decide which steps are made with
which settings, and how far, never what comes out of a step. Messages of a step core carry the
newest record's tag, so that what belongs to an abandoned record is not mixed in.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from p2pnode.config import RunConfig, parse_run_config
from p2pnode.errors import ConfigError, PeerError, told
from p2pnode.protocol.identity import Identity, PeerId, short_id, verify
from signaling.messages import MAX_MEMBERS, Bytes32, Signature, peer_id

RECORDS = 120
"""Records of one chain at most: encoded it fits a control message."""
RECORD_BYTES = 8 * 1024
"""One encoded record: a configuration with all its past, and a roster's worth of excluded ids."""
END = 2**53
"""A step no run reaches."""

_LABEL = b"record"
_NOTHING = bytes(32)

Kind = Literal["start", "change", "stop", "rewind"]


class SignedRecord(msgspec.Struct, frozen=True, array_like=True):
    """Exact bytes of a `Record` and the signature over them."""

    record: Annotated[bytes, Meta(max_length=RECORD_BYTES)]
    signature: Signature


Records = Annotated[tuple[SignedRecord, ...], Meta(min_length=1, max_length=RECORDS)]
"""A chain on the wire."""


class Record(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One decision about a run."""

    room: Bytes32
    index: Annotated[int, Meta(ge=0, le=RECORDS - 1)]
    before: Bytes32
    """SHA-256 of the record before; zeros in the first."""
    kind: Kind
    config: Annotated[bytes, Meta(max_length=5 * 1024)]
    """start, change: canonical RunConfig that holds from now on; else empty: as before."""
    text: Annotated[bytes, Meta(max_length=32)]
    """start: name of the blob with the run's text (see fetch); empty: it is not handed out."""
    step: Annotated[int, Meta(ge=0, le=10_000_000)]
    """change, rewind: state that the run goes on from; stop: last step."""
    state: Annotated[bytes, Meta(max_length=32)]
    """rewind: hash of that state, which was committed. Else empty: it may be yet to come."""
    excluded: Annotated[tuple[PeerId, ...], Meta(max_length=MAX_MEMBERS)]
    """Peers that take no part any more, those of the records before among them."""
    key: Bytes32
    """Ed25519 key of the signer."""

    @property
    def signer(self) -> PeerId:
        return peer_id(self.key)


_decoder = msgspec.msgpack.Decoder(Record)
_chains = msgspec.msgpack.Decoder(Records)


@dataclasses.dataclass(frozen=True)
class Chain:
    """A verified chain. Make one with `begin`, `open_chain` or from a shorter one."""

    signed: tuple[SignedRecord, ...]
    records: tuple[Record, ...]
    ids: tuple[bytes, ...]
    """SHA-256 of each record."""
    config: RunConfig
    """What the newest steps are made with; `config.at(step)` for older ones."""
    last_step: int
    """Where the run ends: at its last step, or where it was ordered to stop."""

    @property
    def tag(self) -> bytes:
        """What messages of the step core carry: first 16 bytes of the newest record's id."""
        return self.ids[-1][:16]

    @property
    def newest(self) -> Record:
        return self.records[-1]

    @property
    def stopped(self) -> bool:
        """Whether the run ends before its configuration says."""
        return self.last_step < self.config.steps

    @property
    def text(self) -> bytes:
        """Name of the blob with the run's text; empty: it is not handed out."""
        return self.records[0].text

    @property
    def excluded(self) -> tuple[PeerId, ...]:
        return self.newest.excluded

    def encode(self) -> bytes:
        """For a file; see `decode_records`."""
        return msgspec.msgpack.encode(self.signed)

    # Longer chains

    def change(self, signer: Identity, step: int, config: RunConfig) -> Chain:
        """After `step` the run goes on with `config`, made by `RunConfig.changed`."""
        return self._sign(signer, "change", config.canonical(), step, b"", self.excluded)

    def stop(self, signer: Identity, step: int) -> Chain:
        """The run ends after `step`."""
        return self._sign(signer, "stop", b"", step, b"", self.excluded)

    def rewind(
        self, signer: Identity, step: int, state: bytes, culprits: Sequence[PeerId]
    ) -> Chain:
        """The run goes back to committed state `step` (hash `state`), without these peers."""
        excluded = tuple(dict.fromkeys((*self.excluded, *culprits)))
        return self._sign(signer, "rewind", b"", step, state, excluded)

    def _sign(
        self,
        signer: Identity,
        kind: Kind,
        config: bytes,
        step: int,
        state: bytes,
        excluded: tuple[PeerId, ...],
    ) -> Chain:
        """Raises ConfigError if the chain is full."""
        if len(self.records) >= RECORDS:
            raise ConfigError(f"a room takes {RECORDS} such orders; open a new one")
        record = Record(
            room=self.newest.room,
            index=len(self.records),
            before=self.ids[-1],
            kind=kind,
            config=config,
            text=b"",
            step=step,
            state=state,
            excluded=excluded,
            key=signer.key,
        )
        return self.extended(_signed(record, signer))

    def extended(self, signed: SignedRecord) -> Chain:
        """With one more record. Raises PeerError if it breaks a rule, and ConfigError if nobody
        can compute what it asks for."""
        record = _decode(signed)
        follows = (record.room, record.index, record.before)
        if follows != (self.newest.room, len(self.records), self.ids[-1]):
            raise PeerError("sent a record that does not follow the one before it")
        if not set(self.excluded) <= set(record.excluded):
            raise PeerError("sent a record that takes an excluded peer back")
        if record.signer in self.excluded:
            raise PeerError(f"sent a record of {short_id(record.signer)}, who is excluded")
        if record.text or bool(record.config) != (record.kind == "change"):
            raise PeerError(f"sent a {record.kind} record with parts that are not its own")
        if bool(record.state) != (record.kind == "rewind") or record.step > self.last_step:
            raise PeerError(f"sent a {record.kind} record of a state that the run does not have")
        config, last_step = self.config, self.last_step
        if record.kind == "change":
            config = _config(record)
            if config != _expected(self.config, record.step, config):
                raise PeerError("sent a record that changes what a run can not change")
            last_step = config.steps
        elif record.kind == "stop":
            last_step = record.step
        elif record.kind == "start" or record.excluded == self.excluded:
            raise PeerError(f"sent a {record.kind} record that has no place there")
        return Chain(
            (*self.signed, signed),
            (*self.records, record),
            (*self.ids, _id(signed)),
            config,
            last_step,
        )

    # Two chains

    def shared(self, other: Chain) -> int:
        """How many first records the two have in common; 0: they are of different runs."""
        pairs = zip(self.ids, other.ids, strict=False)
        return next(
            (i for i, (a, b) in enumerate(pairs) if a != b), min(len(self.ids), len(other.ids))
        )

    def beats(self, other: Chain, order: Sequence[PeerId]) -> bool:
        """Whether this chain counts, and not that one of the same run: the longer one, of equals
        the one whose first record of its own was signed by who is earlier in `order`, the members
        in join order. The steps reached do not matter."""
        shared = self.shared(other)
        if shared == 0 or len(self.ids) != len(other.ids):
            return shared > 0 and len(self.ids) > len(other.ids)
        if shared == len(self.ids):
            return False
        return self._precedence(shared, order) < other._precedence(shared, order)

    def _precedence(self, index: int, order: Sequence[PeerId]) -> tuple[int, bytes]:
        signer = self.records[index].signer
        return (order.index(signer) if signer in order else len(order)), self.ids[index]

    def branch(self, older: Chain) -> int:
        """The last step whose state is the same one, made in the same way, under both chains."""
        shared = self.shared(older)
        own = (*self.records[shared:], *older.records[shared:])
        return min((record.step for record in own), default=END)

    def goes_on(self, older: Chain, applied: int) -> bool:
        """Whether a step core that has applied so many steps under the older chain goes on as it
        is; else it has to start again, from an older state (see `limit`)."""
        whole = self.discarded_after(older) == END
        return whole and applied <= min(self.branch(older), self.last_step)

    def limit(self, older: Chain | None) -> int:
        """The last step whose state, kept under the older chain (None: nobody knows which), is
        one of this run, if the settings that made it are those of `config.at(step)`."""
        return min(self.last_step, self.discarded_after(older))

    def discarded_after(self, older: Chain | None) -> int:
        """States of later steps made under the older chain hold wrong work (see rewind)."""
        new = self.records[self.shared(older) if older is not None else 0 :]
        return min((record.step for record in new if record.kind == "rewind"), default=END)


def begin(signer: Identity, room: bytes, config: RunConfig, text: bytes) -> Chain:
    """The chain of a new run: one record. The same arguments give the same chain."""
    record = Record(
        room=room,
        index=0,
        before=_NOTHING,
        kind="start",
        config=config.canonical(),
        text=text,
        step=0,
        state=b"",
        excluded=(),
        key=signer.key,
    )
    return _first(_signed(record, signer), room)


def open_chain(
    signed: Sequence[SignedRecord],
    room: bytes,
    order: Sequence[PeerId],
    former: Sequence[PeerId] = (),
    known: Chain | None = None,
) -> Chain:
    """Check a chain that came from others, or from a file.

    order: the members, who may sign; host and successors in join order. former: members that were
    removed since; they may have signed what is older than `known`, the chain held so far. Raises
    PeerError with a sentence, and ConfigError if nobody can compute what it asks for.
    """
    chain: Chain | None = None
    for one in signed:
        index = len(chain.ids) if chain is not None else 0
        if known is not None and index < len(known.ids) and _id(one) == known.ids[index]:
            pass  # its signer was asked for when it was taken
        else:
            signer = _decode(one).signer
            may = signer in order or (signer in former and known is None)
            if not may:
                raise PeerError(f"sent a record of {short_id(signer)}, who may not sign one")
        chain = _first(one, room) if chain is None else chain.extended(one)
    if chain is None:
        raise PeerError("sent a chain without a record")
    return chain


def decode_records(raw: bytes) -> tuple[SignedRecord, ...]:
    """Inverse of `Chain.encode`, unchecked. Raises PeerError."""
    try:
        return _chains.decode(raw)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise PeerError(f"a chain of records is malformed ({told(error)})") from None


def _first(signed: SignedRecord, room: bytes) -> Chain:
    record = _decode(signed)
    rest = (record.index, record.before, record.step, record.state, record.excluded)
    if record.room != room or record.kind != "start" or rest != (0, _NOTHING, 0, b"", ()):
        raise PeerError("sent a chain that does not begin with a start in this room")
    config = _config(record)
    return Chain((signed,), (record,), (_id(signed),), config, config.steps)


def _expected(old: RunConfig, step: int, new: RunConfig) -> RunConfig | None:
    """The one configuration with the changeable settings of `new` that may follow `old`."""
    try:
        return old.changed(step, steps=new.steps, lr=new.lr, warmup=new.warmup)
    except ConfigError:
        return None


def _config(record: Record) -> RunConfig:
    config = parse_run_config(record.config)
    if config.canonical() != record.config:
        raise PeerError("sent a record whose configuration is not in its one canonical form")
    return config


@functools.lru_cache(maxsize=2 * RECORDS)
def _decode(signed: SignedRecord) -> Record:
    """Raises PeerError for one that is malformed or not signed by its key. What it has checked it
    remembers: members repeat their chains."""
    try:
        record = _decoder.decode(signed.record)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise PeerError(f"sent a malformed record ({told(error)})") from None
    if not verify(record.key, signed.signature, _LABEL, signed.record):
        raise PeerError("sent a record that its signer did not sign")
    return record


def _signed(record: Record, signer: Identity) -> SignedRecord:
    raw = msgspec.msgpack.encode(record)
    return SignedRecord(raw, signer.sign(_LABEL, raw))


def _id(signed: SignedRecord) -> bytes:
    return hashlib.sha256(signed.record).digest()
