"""Envelopes against a carrier that reads, drops, repeats, swaps and invents."""

import random
import secrets
from itertools import permutations

import msgspec
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from p2pnode.errors import PeerError
from p2pnode.protocol import envelope
from p2pnode.protocol.envelope import BODY_BYTES, Channel
from p2pnode.protocol.identity import Identity

ROOM, SECRET = b"r" * 32, b"s" * 32
OFFER = b"v=0\r\na=fingerprint:sha-256 AA:BB\r\n"


def channel(me, peer, room=ROOM, secret=SECRET):
    return Channel(me, room, secret, peer.peer_id, secrets.token_bytes)


class Pair:
    """Two channels and a carrier that records everything."""

    def __init__(self):
        self.ids = {"a": Identity.ephemeral(), "b": Identity.ephemeral()}
        self.ends = {}
        self.restart("a")
        self.restart("b")
        self.heard = {"a": [], "b": []}
        self.carried = []

    def restart(self, who):
        other = "b" if who == "a" else "a"
        self.ends[who] = channel(self.ids[who], self.ids[other])

    def carry(self, sender, envelopes):
        """Deliver, and whatever comes of it, until nothing is on the way."""
        way = [(sender, item) for item in envelopes]
        for _ in range(20):
            if not way:
                return
            sender, item = way.pop(0)
            self.carried.append((sender, item))
            to = "b" if sender == "a" else "a"
            opened, replies = self.ends[to].receive(item)
            if opened is not None:
                self.heard[to].append((opened.kind, opened.body))
            way += [(to, reply) for reply in replies]
        pytest.fail("the channels talk without end")

    def say(self, sender, kind, body):
        self.carry(sender, self.ends[sender].send(kind, body))


def refused_or_unheard(end, item):
    """An old envelope is an error, or at most a reason to tell our nonce; it says nothing."""
    try:
        return end.receive(item)[0] is None
    except PeerError:
        return True


@pytest.fixture
def pair():
    return Pair()


def test_messages_arrive_once_and_in_order(pair):
    pair.say("a", "offer", OFFER)
    pair.say("b", "answer", b"1")
    pair.say("b", "answer", b"2")
    pair.say("a", "offer", b"3")
    assert pair.heard == {
        "a": [("answer", b"1"), ("answer", b"2")],
        "b": [("offer", OFFER), ("offer", b"3")],
    }


def test_both_may_start_at_once(pair):
    first, second = pair.ends["a"].send("offer", b"a"), pair.ends["b"].send("offer", b"b")
    pair.carry("a", first)
    pair.carry("b", second)
    assert ("offer", b"a") in pair.heard["b"]
    assert ("offer", b"b") in pair.heard["a"]


def test_sender_is_named_by_the_key_it_signed_with(pair):
    a, b = pair.ends["a"], pair.ends["b"]
    _, hello = b.receive(a.send("offer", OFFER)[0])
    _, sealed = a.receive(hello[0])
    opened, _ = b.receive(sealed[0])
    assert opened is not None
    assert (opened.sender, opened.key) == (pair.ids["a"].peer_id, pair.ids["a"].key)


def test_carrier_sees_neither_text_nor_kind(pair):
    pair.say("a", "offer", OFFER)
    blob = b"".join(item for _, item in pair.carried)
    assert b"fingerprint" not in blob
    assert b"offer" not in blob


def test_repetition_is_refused(pair):
    pair.say("a", "offer", OFFER)
    before = list(pair.heard["b"])
    for sender, item in pair.carried:
        to = "b" if sender == "a" else "a"
        assert refused_or_unheard(pair.ends[to], item)
    assert pair.heard["b"] == before


def test_reordering_never_shows_an_older_message_after_a_newer(pair):
    pair.say("a", "offer", b"0")
    items = [pair.ends["a"].send("offer", bytes([n]))[0] for n in (1, 2, 3)]
    for order in permutations(range(3)):
        fresh = Pair()
        fresh.say("a", "offer", b"0")
        items = [fresh.ends["a"].send("offer", bytes([n]))[0] for n in (1, 2, 3)]
        shown = []
        for index in order:
            try:
                opened, _ = fresh.ends["b"].receive(items[index])
                shown.append(opened.body)
            except PeerError:
                pass
        assert shown == sorted(shown)
        assert shown[-1] == bytes([3])


def test_repetition_after_the_receiver_restarts_is_refused(pair):
    pair.say("a", "offer", OFFER)
    pair.restart("b")
    for sender, item in pair.carried:
        if sender == "a":
            assert refused_or_unheard(pair.ends["b"], item)


def test_repetition_after_the_sender_restarts_is_refused(pair):
    pair.say("a", "offer", b"old")
    old = [item for sender, item in pair.carried if sender == "a"]
    pair.restart("a")
    pair.say("a", "offer", b"new")
    for item in old:
        assert refused_or_unheard(pair.ends["b"], item)
    pair.say("a", "offer", b"newer")
    assert [body for _, body in pair.heard["b"]] == [b"old", b"new", b"newer"]


def test_last_message_reaches_a_restarted_peer(pair):
    pair.say("a", "offer", b"1")
    pair.say("b", "answer", b"2")
    pair.restart("b")
    pair.say("a", "offer", b"3")
    assert pair.heard["b"] == [("offer", b"1"), ("offer", b"3")], (
        "what was answered is not said again"
    )


def test_many_restarts_renew_the_nonce_and_still_refuse_old_envelopes(pair):
    pair.say("a", "offer", b"first")
    old = [item for sender, item in pair.carried if sender == "a"]
    for number in range(2 * envelope._PAST_NONCES):
        pair.restart("a")
        pair.say("a", "offer", str(number).encode())
        assert pair.heard["b"][-1] == ("offer", str(number).encode())
        assert len(pair.ends["b"]._past) < envelope._PAST_NONCES
    for item in old:
        assert refused_or_unheard(pair.ends["b"], item)


def test_reflection_is_refused(pair):
    pair.say("a", "offer", OFFER)
    for sender, item in pair.carried:
        with pytest.raises(PeerError, match="could not be opened"):
            pair.ends[sender].receive(item)


def test_envelope_for_another_peer_is_refused(pair):
    third = Identity.ephemeral()
    pair.say("a", "offer", OFFER)
    for sender, item in pair.carried:
        with pytest.raises(PeerError, match="could not be opened"):
            channel(third, pair.ids[sender]).receive(item)


def test_envelope_said_to_be_from_another_peer_is_refused(pair):
    third = Identity.ephemeral()
    pair.say("a", "offer", OFFER)
    for _, item in pair.carried:
        with pytest.raises(PeerError, match="could not be opened"):
            channel(pair.ids["b"], third).receive(item)


@pytest.mark.parametrize(("room", "secret"), [(b"x" * 32, SECRET), (ROOM, b"x" * 32)])
def test_other_room_or_code_is_refused(pair, room, secret):
    stranger = channel(pair.ids["a"], pair.ids["b"], room, secret)
    with pytest.raises(PeerError, match="other room code"):
        pair.ends["b"].receive(stranger.send("offer", OFFER)[0])


def test_every_damaged_byte_is_noticed(pair):
    item = pair.ends["a"].send("offer", OFFER)[0]
    for position in range(0, len(item), 7):
        damaged = bytearray(item)
        damaged[position] ^= 1
        with pytest.raises(PeerError):
            pair.ends["b"].receive(bytes(damaged))
    for length in (0, 1, 20, 40, len(item) - 1):
        with pytest.raises(PeerError):
            pair.ends["b"].receive(item[:length])


def forge(pair, forger, *, key, change):
    """An envelope that a holder of the room code makes in the name of `a`, echoing b's nonce."""
    a, b = pair.ids["a"], pair.ids["b"]
    true = channel(a, b)
    inside = envelope._Inside(key, bytes(32), pair.ends["b"]._nonce, 99, "offer", OFFER, bytes(64))
    signature = forger.sign(b"envelope", *true._signed(b.peer_id, inside))
    inside = msgspec.structs.replace(inside, signature=signature, **change)
    salt = secrets.token_bytes(32)
    sealed = true._cipher(salt).encrypt(
        bytes(12), msgspec.msgpack.encode(inside), true._header(a.peer_id, b.peer_id)
    )
    return envelope.VERSION + salt + sealed


def test_the_forging_helper_can_make_a_genuine_one(pair):
    item = forge(pair, pair.ids["a"], key=pair.ids["a"].key, change={})
    opened, _ = pair.ends["b"].receive(item)
    assert opened.body == OFFER


def test_code_holder_cannot_speak_for_another(pair):
    mallory = Identity.ephemeral()
    with pytest.raises(PeerError, match="signature is wrong"):
        pair.ends["b"].receive(forge(pair, mallory, key=pair.ids["a"].key, change={}))
    with pytest.raises(PeerError, match="another node's key"):
        pair.ends["b"].receive(forge(pair, mallory, key=mallory.key, change={}))


@pytest.mark.parametrize(
    "change",
    [
        {"body": OFFER.replace(b"AA:BB", b"CC:DD")},
        {"kind": "answer"},
        {"counter": 100},
        {"nonce": b"n" * 32},
    ],
    ids=["fingerprint", "kind", "counter", "nonce"],
)
def test_nothing_signed_can_be_swapped(pair, change):
    item = forge(pair, pair.ids["a"], key=pair.ids["a"].key, change=change)
    with pytest.raises(PeerError, match="signature is wrong"):
        pair.ends["b"].receive(item)


def test_signature_for_one_recipient_does_not_hold_for_another(pair):
    """A member that receives an envelope cannot reseal its inside for a third one."""
    a, b, third = pair.ids["a"], pair.ids["b"], Identity.ephemeral()
    target = channel(third, a)
    inside = envelope._Inside(a.key, bytes(32), target._nonce, 1, "offer", OFFER, bytes(64))
    signature = a.sign(b"envelope", *channel(a, b)._signed(b.peer_id, inside))
    inside = msgspec.structs.replace(inside, signature=signature)
    salt = secrets.token_bytes(32)
    to_third = channel(a, third)
    sealed = to_third._cipher(salt).encrypt(
        bytes(12), msgspec.msgpack.encode(inside), to_third._header(a.peer_id, third.peer_id)
    )
    with pytest.raises(PeerError, match="signature is wrong"):
        target.receive(envelope.VERSION + salt + sealed)


def test_keys_are_never_used_twice(pair):
    """The constant GCM nonce is sound only with a fresh salt for every envelope."""
    salts = {pair.ends["a"].send("offer", OFFER)[0][1:33] for _ in range(100)}
    assert len(salts) == 100


def test_inside_that_is_no_envelope_is_refused(pair):
    a, b = pair.ids["a"], pair.ids["b"]
    for plain in (b"", b"\xc0", msgspec.msgpack.encode(["x"]), b"\xdd\xff\xff\xff\xff"):
        salt = secrets.token_bytes(32)
        cipher: AESGCM = pair.ends["b"]._cipher(salt)
        sealed = cipher.encrypt(bytes(12), plain, pair.ends["b"]._header(a.peer_id, b.peer_id))
        with pytest.raises(PeerError):
            pair.ends["b"].receive(envelope.VERSION + salt + sealed)


def test_what_does_not_fit_is_a_bug_of_the_caller(pair):
    for kind, body in (("offer", bytes(BODY_BYTES + 1)), ("k" * 17, b""), ("hello", b"")):
        with pytest.raises(ValueError, match="not a message"):
            pair.ends["a"].send(kind, body)
    pair.say("a", "offer", bytes(BODY_BYTES))
    assert len(pair.heard["b"][-1][1]) == BODY_BYTES


def test_unseen_messages_are_bounded(pair):
    for number in range(100):
        pair.ends["a"].send(f"kind {number}", b"")
    pair.say("a", "offer", b"last")
    assert len(pair.heard["b"]) == envelope._UNSEEN
    assert pair.heard["b"][-1] == ("offer", b"last")


def test_a_restarted_peer_is_not_told_what_has_been_overtaken(pair):
    """A roster of before told again makes it drop who has come since."""
    pair.say("b", "offer", b"")
    for body in (b"two", b"three", b"four"):
        pair.ends["a"].send("roster", body)
        pair.ends["a"].send("other", body)
    pair.restart("b")
    pair.say("b", "offer", b"")
    assert pair.heard["b"] == [("roster", b"four"), ("other", b"four")]


@pytest.mark.parametrize("seed", range(100))
def test_any_carrier_shows_each_message_at_most_once_and_in_order(seed):
    """Dropped, repeated, reordered, kept for later, either end restarting at any time."""
    rng = random.Random(seed)
    pair = Pair()
    way, kept, said = [], [], {"a": 0, "b": 0}
    shown = {"a": [], "b": []}
    for _ in range(150):
        who = rng.choice("ab")
        happening = rng.random()
        if happening < 0.05:
            pair.restart(who)
        elif happening < 0.4:
            said[who] += 1
            way += [(who, item) for item in pair.ends[who].send("m", b"%d" % said[who])]
        elif happening < 0.5 and kept:
            way.append(rng.choice(kept))
        elif way:
            sender, item = way.pop(rng.randrange(min(3, len(way))))
            kept.append((sender, item))
            if rng.random() < 0.2:
                continue
            to = "b" if sender == "a" else "a"
            try:
                opened, replies = pair.ends[to].receive(item)
            except PeerError:
                continue
            if opened is not None:
                shown[to].append(int(opened.body))
            way += [(to, reply) for reply in replies]
    for who, other in (("a", "b"), ("b", "a")):
        # A restarted receiver may be told the last few messages again: it knows nothing of them.
        assert set(shown[who]) <= set(range(1, said[other] + 1))
    pair.heard = {"a": [], "b": []}
    pair.say("a", "m", b"end")
    pair.say("b", "m", b"end")
    assert pair.heard["a"].count(("m", b"end")) == pair.heard["b"].count(("m", b"end")) == 1
