"""Everything that reads bytes of strangers, or files that somebody else may have written.

A reader takes any bytes. It may raise the errors it documents, and nothing else; what it allocates
is bounded by a constant and a multiple of what it was given.
"""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from aiortc.sdp import SessionDescription
from multidict import CIMultiDict
from yarl import URL

from p2pnode import errors, signatures
from p2pnode.bench.bits_run import Report
from p2pnode.bundle import CASE, Case
from p2pnode.bundle import read as read_bundle
from p2pnode.config import PRESETS, RunConfig, RunOptions, parse_run_config
from p2pnode.devices import Device, Devices
from p2pnode.export import hf, llama, safetensors
from p2pnode.limits import LIMITS
from p2pnode.memberships import Memberships
from p2pnode.net.ice import filter_description
from p2pnode.net.ice_servers import IceServer
from p2pnode.net.rtc import fingerprint, max_message
from p2pnode.net.seal import FramesLostError, SealedSession
from p2pnode.net.signaling_url import is_loopback, server_url, stun_url
from p2pnode.net.signals import Answer, Gone, Offer, decode_signal
from p2pnode.protocol import messages as step
from p2pnode.protocol.admit_messages import Decision, Knock, decode_decision, decode_knock
from p2pnode.protocol.chain import Record, SignedRecord, begin, decode_records, open_chain
from p2pnode.protocol.code import parse_invite
from p2pnode.protocol.envelope import Channel, _Inside
from p2pnode.protocol.fetch import Fetcher
from p2pnode.protocol.frames import Channel as Lane
from p2pnode.protocol.frames import Reassembler, frame_kind, unpack_relay, unpack_value
from p2pnode.protocol.identity import Identity
from p2pnode.protocol.lobby import (
    Announce,
    LobbyMessage,
    RecordNews,
    check_manifest,
    decode_lobby,
)
from p2pnode.protocol.pairing import PAIRING, PairingMessage, decode_pairing
from p2pnode.protocol.roster import Member, _Both, _Details, open_roster, sign_roster
from p2pnode.protocol.text import clean, visible
from p2pnode.train import checkpoint, codec, ledger, ledger_lines
from p2pnode.train.manifest import Manifest, parse_manifest
from p2pnode.ui import metrics
from p2pnode.ui.events import AnyEvent, Info, from_json, sentence
from signaling import messages as server
from signaling.data.sources import MissingError, SourceError, parts_of
from signaling.data.web import Web, redirect_host, web_url
from signaling.grouping import origin_of, parse_network
from signaling.proof import checked_claim
from signaling.stun import answer

ALICE, BOB = Identity(b"a" * 32), Identity(b"b" * 32)
ROOM, SECRET = b"r" * 32, b"s" * 32
_folder = tempfile.TemporaryDirectory()
FOLDER = Path(_folder.name)
MODEL = PRESETS["nano"].model


@dataclasses.dataclass(frozen=True)
class Reader:
    """`reads`: the types its bytes are decoded as. `errors`: what it may raise."""

    run: Callable[[bytes], object]
    errors: tuple[type[Exception], ...] = ()
    reads: tuple[Any, ...] = ()
    encode: Callable[[Any], bytes] = msgspec.msgpack.encode
    """From the wire form of a type to what `run` takes."""
    factor: int = 64
    """Bytes allocated for each byte given, at most, beside `slack`."""
    slack: int = 256 * 1024


def _message(header: Any) -> bytes:
    raw = msgspec.msgpack.encode(header)
    return len(raw).to_bytes(4, "little") + raw


def _lobby(raw: bytes) -> None:
    message = decode_lobby(raw)
    if isinstance(message, Announce | RecordNews):
        chain = open_chain(message.records, ROOM, [ALICE.peer_id])
        if isinstance(message, Announce):
            check_manifest(chain, message.manifest)


def _frames(raw: bytes) -> None:
    """The bytes cut into frames by a length in front of each, into a channel's reassembly."""
    lane = Reassembler(Lane.BULK)
    lane.set_run(b"run-tag!", 1 << 20)
    while raw:
        size = int.from_bytes(raw[:2], "big")
        frame, raw = raw[2 : 2 + size], raw[2 + size :]
        kind = frame_kind(frame)
        if kind.name in ("PING", "PONG", "ACK"):
            unpack_value(frame)
        elif kind.name != "DATA":
            unpack_relay(frame)
        else:
            lane.receive(frame)


def _envelope(raw: bytes) -> None:
    Channel(ALICE, ROOM, SECRET, BOB.peer_id, bytes).receive(raw)


def _sealed(inside: Any) -> bytes:
    """An envelope with this inside, as one who has the room's code can make."""
    bob = Channel(BOB, ROOM, SECRET, ALICE.peer_id, bytes)
    header = bob._header(BOB.peer_id, ALICE.peer_id)
    plain = msgspec.msgpack.encode(inside)
    return b"\x01" + bytes(32) + bob._cipher(bytes(32)).encrypt(bytes(12), plain, header)


def _session(raw: bytes) -> None:
    ends = (ALICE.peer_id, b"1" * 16), (BOB.peer_id, b"2" * 16)
    session = SealedSession(ALICE.relay_private_key, BOB.relay_key, *ends, opened_here=True)
    session.unseal(Lane.BULK, raw)
    SealedSession(ALICE.relay_private_key, raw[:32].ljust(32), *ends, opened_here=True)


def _blob(raw: bytes) -> None:
    """The bytes as the index and a part of a blob that was asked for."""
    fetcher = Fetcher(b"r" * 16, b"x" * 32, 1 << 30)
    for ask in (
        lambda: fetcher.index(b"p" * 32, step.BlobIndex(b"r" * 16, b"x" * 32, len(raw)), raw),
        lambda: fetcher.part(b"p" * 32, step.BlobPart(b"r" * 16, b"x" * 32, 0), raw),
    ):
        with contextlib.suppress(errors.PeerError):
            ask()


def _file(name: str, raw: bytes) -> Path:
    path = FOLDER / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(raw)
    path.chmod(0o600)
    return path


def _checkpoint(raw: bytes) -> None:
    checkpoint.load(_file("run-00000000-step-00000001.safetensors", raw))


def _header(meta: Any) -> bytes:
    text = msgspec.json.encode(meta).decode("utf-8", "replace")
    header = msgspec.json.encode({"__metadata__": {"p2pnode": text}})
    return len(header).to_bytes(8, "little") + header


def _devices(raw: bytes) -> None:
    store = Devices(_file("home/devices.json", raw).parent)
    store.known(), store.hosts(), store.blocked()


def _membership(raw: bytes) -> None:
    rooms = Memberships(FOLDER)
    _file(f"rooms/{rooms.path(ROOM).name}", raw)
    saved = rooms.load(ROOM)
    if saved is not None:
        open_roster(saved, ROOM)


def _details(details: Any) -> bytes:
    """A roster with these details: any that the host signs."""
    good = sign_roster(ALICE, ROOM, 1, (Member(ALICE.key, ALICE.relay_key, "alice"),))
    return msgspec.msgpack.encode([good.signed, msgspec.msgpack.encode(details)])


def _signed_claim(claim: Any) -> bytes:
    raw = msgspec.msgpack.encode(claim)
    return msgspec.msgpack.encode([raw, ALICE.sign(b"roster", raw)])


def _chain(raw: bytes) -> None:
    open_chain(decode_records(raw), ROOM, [ALICE.peer_id, BOB.peer_id])


def _one_record(record: Any) -> bytes:
    """A chain of this one record, signed by a member."""
    raw = msgspec.msgpack.encode(record)
    return msgspec.msgpack.encode([[raw, ALICE.sign(b"record", raw)]])


def _ledger(raw: bytes) -> None:
    """As another's file, as this node's own, and as lines that a member sends into a gap."""
    path = _file("other.ledger", raw)
    for _ in ledger_lines.read_lines(path):
        pass
    config = RunOptions(preset="nano").config(
        arithmetic_version=1, gates_digest="0" * 64, data="0" * 64
    )
    own = ledger.Ledger(_file(f"mine/{ledger.file_name(config)}", raw).parent, config)
    entry = ledger.Entry(
        step=own.step + 9, state="0" * 64, loss=1, tokens=1, evidence="0" * 64, parts=""
    )
    own.record(entry, config)
    try:
        own.fill(raw)
    finally:
        own.close()


def _signatures(raw: bytes) -> None:
    path = _file("run.signatures", raw)
    signatures.Signatures(path)
    for one in signatures.read(_file("run.signatures", raw)):
        one.is_genuine(bytes(32))


def _metrics(raw: bytes) -> None:
    path = _file("metrics/metrics.jsonl", raw)
    for _ in metrics.read_metrics(path.parent, "0" * 8):
        pass


def _bundle(raw: bytes) -> None:
    read_bundle(_file(f"bundle/{CASE}", raw).parent)


def _headers(raw: bytes) -> None:
    text = raw.decode("latin-1")
    lines = text.split("\n")
    names = ("X-Forwarded-For", "Forwarded")
    headers = CIMultiDict([(names[i % 2], line) for i, line in enumerate(lines)])
    for address in ("10.0.0.1", "203.0.113.7", lines[0]):
        origin = origin_of(address, headers, [parse_network("10.0.0.0/8")], group_private=True)
        assert len(origin.key) <= 64


def _text(raw: bytes) -> None:
    text = raw.decode("utf-8", "surrogateescape")
    assert clean(text).isprintable()
    assert 0 < len(clean(text)) <= 32
    assert visible(text).isprintable()
    for line in (sentence(Info(text=text)) or "").split("\n"):
        assert line.isprintable()


def _words(run: Callable[[str], object]) -> Callable[[bytes], None]:
    return lambda raw: run(raw.decode("utf-8", "surrogateescape")) and None


def _url(text: str) -> None:
    url = server_url(text)
    is_loopback(url)
    stun_url(url, 3478)


def _description(raw: bytes) -> None:
    """As `RtcTransport` does; what is left is parsed by aiortc, whose errors are all caught."""
    sdp = raw.decode("utf-8", "replace")[:16_384]
    fingerprint(sdp), max_message(sdp)
    with contextlib.suppress(Exception):
        SessionDescription.parse(filter_description(sdp))


_SERVED = Web(web_url("https://example.org/texts/"), [redirect_host("cdn.example.org")])


def _redirect(text: str) -> None:
    """As the source of a text that the server serves; what is left is a place it may ask."""
    target = _SERVED._next(URL("https://example.org/texts/a"), text)
    assert target.scheme == "https"
    assert target.raw_host in ("example.org", "cdn.example.org")


PEER = errors.PeerError
MSGSPEC = (msgspec.MsgspecError, RecursionError)

BUFFER = LIMITS.bundle_case_bytes + (1 << 20)
"""A file's buffer is taken whole before the file is read."""

READERS = {
    "frames": Reader(_frames, (PEER, errors.VersionMismatchError)),
    "step-message": Reader(step.decode, (PEER,), (step.Message,), _message),
    "lobby-message": Reader(_lobby, (PEER, errors.ConfigError), (LobbyMessage,)),
    "signal": Reader(decode_signal, (PEER,), (Offer | Answer | Gone,)),
    "envelope": Reader(_envelope, (PEER,), (_Inside,), _sealed),
    "relayed-frame": Reader(_session, (PEER, FramesLostError)),
    "pairing": Reader(
        lambda raw: decode_pairing(raw, b"p" * 32),
        (PEER,),
        (PairingMessage,),
        lambda wire: PAIRING + msgspec.msgpack.encode(wire),
    ),
    "knock": Reader(decode_knock, MSGSPEC, (Knock,)),
    "decision": Reader(decode_decision, MSGSPEC, (Decision,)),
    "roster": Reader(lambda raw: open_roster(raw, ROOM), (PEER,), (_Both,)),
    "roster-details": Reader(lambda raw: open_roster(raw, ROOM), (PEER,), (_Details,), _details),
    "blob": Reader(_blob),
    "from-server": Reader(server.decode_from_server, MSGSPEC, (server.FromServer,)),
    "from-node": Reader(server.decode_from_node, MSGSPEC, (server.FromNode,)),
    "server-roster": Reader(lambda raw: checked_claim(raw, ROOM, 64), (), (server.SignedRoster,)),
    "server-claim": Reader(
        lambda raw: checked_claim(raw, ROOM, 64), (), (server.RosterClaim,), _signed_claim
    ),
    "stun": Reader(lambda raw: answer(raw, ("203.0.113.7", 4242))),
    "headers": Reader(_headers),
    "records": Reader(_chain, (PEER, errors.ConfigError), (tuple[SignedRecord, ...],)),
    "record": Reader(_chain, (PEER, errors.ConfigError), (Record,), _one_record),
    "bundle": Reader(
        _bundle, (errors.CheckpointError,), (Case,), msgspec.json.encode, slack=BUFFER
    ),
    "ledger": Reader(
        _ledger,
        (errors.LedgerError,),
        (ledger_lines.Line,),
        lambda wire: msgspec.json.encode(wire, order="sorted") + b"\n",
        slack=BUFFER,
    ),
    "signatures": Reader(
        _signatures,
        (errors.LedgerError,),
        (signatures.Signed,),
        lambda wire: msgspec.json.encode(wire) + b"\n",
        slack=BUFFER,
    ),
    "metrics": Reader(
        _metrics,
        (),
        (metrics.Metrics,),
        lambda wire: msgspec.json.encode(wire) + b"\n",
        slack=BUFFER,
    ),
    "run-config": Reader(
        parse_run_config, (errors.ConfigError,), (RunConfig,), msgspec.json.encode
    ),
    "manifest": Reader(parse_manifest, (errors.DataError,), (Manifest,), msgspec.json.encode),
    "checkpoint": Reader(_checkpoint, (errors.CheckpointError,), (codec.Meta,), _header),
    "checkpoint-header": Reader(
        _checkpoint,
        (errors.CheckpointError,),
        (codec._Header,),
        lambda wire: (raw := msgspec.json.encode(wire)) and len(raw).to_bytes(8, "little") + raw,
    ),
    "exported-weights": Reader(
        lambda raw: safetensors.read(_file("model.safetensors", raw), {"norm": (4,)}),
        (errors.ExportError,),
        (dict[str, safetensors._Entry],),
        lambda wire: (raw := msgspec.json.encode(wire)) and len(raw).to_bytes(8, "little") + raw,
    ),
    "exported-config": Reader(
        lambda raw: hf._compare_shape(_file("config.json", raw), llama.shape_fields(MODEL)),
        (errors.ExportError,),
        slack=BUFFER,
    ),
    "identity": Reader(
        lambda raw: Identity.load(_file("identity.key", raw)), (errors.IdentityError,)
    ),
    "devices": Reader(_devices, (errors.IdentityError,), (list[Device],), msgspec.json.encode),
    "membership": Reader(_membership, (PEER,)),
    "events": Reader(from_json, MSGSPEC, (AnyEvent,), msgspec.json.encode),
    "bench-report": Reader(
        lambda raw: msgspec.json.decode(raw, type=Report), MSGSPEC, (Report,), msgspec.json.encode
    ),
    "invite": Reader(_words(parse_invite), (errors.RoomCodeError,)),
    "server-url": Reader(_words(_url), (errors.UsageError,)),
    "served-name": Reader(_words(parts_of), (MissingError,)),
    "redirect": Reader(_words(_redirect), (SourceError,)),
    "source-address": Reader(_words(web_url), (ValueError,)),
    "ice-server": Reader(_words(IceServer.parse), (errors.UsageError,)),
    "session-description": Reader(_description, (PEER,), factor=256),
    "text": Reader(_text, factor=128),
}


def read(name: str, raw: bytes) -> None:
    """Run one reader; its documented errors are swallowed. Their own texts must be short and
    printable, because they reach terminals and logs."""
    reader = READERS[name]
    try:
        reader.run(raw)
    except MSGSPEC as error:
        if msgspec.MsgspecError not in reader.errors:
            raise AssertionError(f"{name} lets msgspec's error through: {error}") from error
    except reader.errors as error:
        text = str(error)
        if len(text) > 1_200 or not text.isprintable():
            raise AssertionError(f"{len(text)} characters: {text[:200]!a}") from error


def allocated(name: str, raw: bytes) -> int:
    """Bytes that reading takes at its peak."""
    tracemalloc.start()
    try:
        read(name, raw)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


_SDP = f"""v=0
o=- 1 1 IN IP4 0.0.0.0
s=-
t=0 0
a=group:BUNDLE 0
m=application 9 UDP/DTLS/SCTP webrtc-datachannel
c=IN IP4 0.0.0.0
a=mid:0
a=sctp-port:5000
a=max-message-size:65536
a=candidate:1 1 udp 2130706431 192.0.2.1 9 typ host
a=end-of-candidates
a=ice-ufrag:abcd
a=ice-pwd:abcdefghijklmnopqrstuvwx
a=fingerprint:sha-256 {":".join(["AB"] * 32)}
a=setup:actpass
"""


def seeds(name: str) -> list[bytes]:
    """Good inputs to begin from, beside those in the corpus."""
    config = RunOptions(preset="nano").config(
        arithmetic_version=1, gates_digest="0" * 64, data="0" * 64
    )
    roster = sign_roster(
        ALICE, ROOM, 3, tuple(Member(i.key, i.relay_key, "x") for i in (ALICE, BOB))
    )
    good = {
        "run-config": [config.canonical()],
        "records": [begin(ALICE, ROOM, config, b"").encode()],
        "roster": [roster.encode()],
        "membership": [roster.encode()],
        "server-roster": [roster.signed],
        "envelope": Channel(BOB, ROOM, SECRET, ALICE.peer_id, bytes).send("offer", b"v=0"),
        "identity": [b"p2pnode identity 1\n" + b"61" * 32 + b"\n"],
        "stun": [b"\x00\x01\x00\x00\x21\x12\xa4\x42" + bytes(12)],
        "headers": [b'203.0.113.7, 10.0.0.1\nfor="[2001:db8::1]:4711";proto=http'],
        "invite": [b"maple-orbit-tunnel@http://example.org:8765"],
        "server-url": [b"https://[2001:db8::1]:8765/path/ws"],
        "session-description": [_SDP.replace("\n", "\r\n").encode()],
        "served-name": [b"sub/a.parquet"],
        "redirect": [b"/b", b"https://cdn.example.org/x?y=1", b"//aaa[host]\xc3\xa9@"],
        "source-address": [b"https://example.org/a/", b"//aaa[host]\xc3\xa9@"],
        "ice-server": [b"turn:user:word@example.org:3478"],
    }
    return good.get(name, [])
