"""A secret for two nodes without a code, against whoever carries their messages."""

import secrets

import msgspec
import pytest

from p2pnode.errors import PeerError
from p2pnode.protocol.identity import Identity
from p2pnode.protocol.pairing import (
    Answer,
    Commit,
    Host,
    Newcomer,
    Reveal,
    decode_pairing,
    encode_pairing,
)
from p2pnode.protocol.pairs import MAX_PAIRS, Pairs
from p2pnode.protocol.wordlist import WORDS

ROOM = b"r" * 32
N, H, M = b"n" * 32, b"h" * 32, b"m" * 32
LOW_ORDER = bytes(32)


def halves(newcomer_room=ROOM, newcomer_id=N, host_id=H, host_room=ROOM, host_sees=N, host_me=H):
    newcomer = Newcomer(newcomer_room, newcomer_id, host_id, secrets.token_bytes)
    host = Host(host_room, host_sees, host_me, newcomer.commit, secrets.token_bytes)
    return newcomer, host


def test_both_ends_have_one_secret_and_six_words():
    newcomer, host = halves()
    reveal, at_newcomer = newcomer.on_answer(host.answer)
    at_host = host.on_reveal(reveal)
    assert at_newcomer == at_host
    assert len(at_host.secret) == 32
    words = at_host.words.split()
    assert len(words) == 6
    assert set(words) <= set(WORDS)
    assert repr(at_host.secret) not in repr(at_host)


def test_every_attempt_has_its_own_secret_and_words():
    results = set()
    for _ in range(20):
        newcomer, host = halves()
        reveal, _ = newcomer.on_answer(host.answer)
        results.add(host.on_reveal(reveal).words)
    assert len(results) == 20


@pytest.mark.parametrize("difference", [{"host_room": b"x" * 32}, {"host_sees": M}, {"host_me": M}])
def test_room_and_both_ids_are_bound(difference):
    newcomer, host = halves(**difference)
    reveal, _ = newcomer.on_answer(host.answer)
    with pytest.raises(PeerError, match="another key than committed"):
        host.on_reveal(reveal)


def test_somebody_in_the_middle_shows_other_words():
    """It has keys of its own towards both sides; it may keep both ids as they are, or not."""
    for seen_by_newcomer, seen_by_host in ((H, N), (M, M)):
        newcomer = Newcomer(ROOM, N, seen_by_newcomer, secrets.token_bytes)
        false_host = Host(ROOM, N, seen_by_newcomer, newcomer.commit, secrets.token_bytes)
        false_newcomer = Newcomer(ROOM, seen_by_host, H, secrets.token_bytes)
        host = Host(ROOM, seen_by_host, H, false_newcomer.commit, secrets.token_bytes)
        reveal, at_newcomer = newcomer.on_answer(false_host.answer)
        assert false_host.on_reveal(reveal) == at_newcomer
        false_reveal, _ = false_newcomer.on_answer(host.answer)
        at_host = host.on_reveal(false_reveal)
        assert at_host.secret != at_newcomer.secret
        assert at_host.words != at_newcomer.words


def test_newcomers_key_stays_hidden_until_the_host_has_chosen():
    newcomer, host = halves()
    reveal, _ = newcomer.on_answer(host.answer)
    assert reveal.public not in encode_pairing(newcomer.commit)
    with pytest.raises(PeerError, match="another key than committed"):
        host.on_reveal(Reveal(b"k" * 32))


def test_host_cannot_choose_again_after_the_reveal():
    """Else somebody in the middle could try keys until the words agree."""
    newcomer, host = halves()
    first = newcomer.on_answer(host.answer)
    assert newcomer.on_answer(host.answer) == first, "the same answer may come twice"
    again = Host(ROOM, N, H, newcomer.commit, secrets.token_bytes)
    with pytest.raises(PeerError, match="two answers"):
        newcomer.on_answer(again.answer)


def test_answer_to_an_earlier_attempt_is_ignored():
    newcomer, _ = halves()
    _, other = halves()
    assert newcomer.on_answer(other.answer) is None


def test_keys_that_make_no_secret_are_refused():
    newcomer, _ = halves()
    with pytest.raises(PeerError, match="unsafe key"):
        newcomer.on_answer(Answer(newcomer.commit.commitment, LOW_ORDER))


@pytest.mark.parametrize("raw", [b"", b"\x90", b"\x92\x01\xc0", b"\x91\x09", b"\xc1" * 100])
def test_malformed_messages(raw):
    with pytest.raises(PeerError, match="malformed"):
        decode_pairing(b"\x02" + raw, N)


def test_messages_and_back():
    for message in (Commit(b"c" * 32), Answer(b"c" * 32, b"p" * 32), Reveal(b"p" * 32)):
        assert decode_pairing(encode_pairing(message), N) == message
    with pytest.raises(PeerError):
        decode_pairing(b"\x02" + msgspec.msgpack.encode([1, bytes(31)]), N)


# Conversations under such secrets


class Two:
    """A newcomer `n` and a host `h`; `carry` delivers everything, `heard` is what h understood."""

    def __init__(self):
        self.ids = {"n": Identity.ephemeral(), "h": Identity.ephemeral()}
        self.ends = {name: self.end(name) for name in self.ids}
        self.heard = {"n": [], "h": []}

    def end(self, name):
        return Pairs(self.ids[name], ROOM, secrets.token_bytes)

    def id(self, name):
        return self.ids[name].peer_id

    def carry(self, to, messages):
        sender = "n" if to == "h" else "h"
        for raw in messages:
            if raw.startswith(b"\x02"):
                replies = self.ends[to].receive(self.id(sender), raw, as_host=to == "h")
            else:
                opened, replies = self.ends[to].open(self.id(sender), raw)
                self.heard[to] += [] if opened is None else [opened.body]
            self.carry(sender, replies)

    def pair(self):
        self.carry("h", [self.ends["n"].begin(self.id("h"))])

    def say(self, sender, body):
        to = "h" if sender == "n" else "n"
        self.carry(to, self.ends[sender].send(self.id(to), "text", body))


@pytest.fixture
def two():
    return Two()


def test_they_talk_and_know_that_they_do(two):
    assert two.ends["n"].send(two.id("h"), "text", b"x") == [], "nothing to seal it under"
    two.pair()
    assert not two.ends["h"].is_heard(two.id("n"))
    two.say("n", b"hello")
    assert two.heard["h"] == [b"hello"]
    assert two.ends["h"].is_heard(two.id("n"))
    assert two.ends["n"].is_heard(two.id("h"))
    two.say("h", b"welcome")
    assert two.heard["n"] == [b"welcome"]
    assert two.ends["n"].words(two.id("h")) == two.ends["h"].words(two.id("n")) != ""


def test_pairing_started_in_a_peers_name_does_not_displace_it(two):
    two.pair()
    two.say("n", b"one")
    words = two.ends["h"].words(two.id("n"))
    forged = Newcomer(ROOM, two.id("n"), two.id("h"), secrets.token_bytes)
    (raw,) = two.ends["h"].receive(two.id("n"), encode_pairing(forged.commit), as_host=True)
    reveal, _ = forged.on_answer(decode_pairing(raw, two.id("h")))
    two.ends["h"].receive(two.id("n"), encode_pairing(reveal), as_host=True)
    assert two.ends["h"].words(two.id("n")) == words
    two.say("h", b"two")
    two.say("n", b"three")
    assert two.heard == {"n": [b"two"], "h": [b"one", b"three"]}


def test_restarted_newcomer_displaces_its_own_pairing(two):
    two.pair()
    two.say("n", b"one")
    before = two.ends["h"].words(two.id("n"))
    two.ends["n"] = two.end("n")
    two.pair()
    two.say("n", b"two")
    assert two.heard["h"] == [b"one", b"two"]
    assert two.ends["h"].words(two.id("n")) == two.ends["n"].words(two.id("h")) != before


def test_envelope_sealed_for_one_pair_cannot_be_resealed_for_another(two):
    """Somebody between two nodes, with the ids of both and a secret with each, must not be able to
    pass a signed message on: the signature covers the secret."""
    n, h = two.ids["n"], two.ids["h"]
    to_n, to_h = two.end("h"), two.end("n")  # plays host to n and newcomer to h
    host, newcomer = two.ends["h"], two.ends["n"]

    def meet(asking, asking_id, answering, answering_id):
        commit = asking.begin(answering_id)
        (answer,) = answering.receive(asking_id, commit, as_host=True)
        (reveal,) = asking.receive(answering_id, answer, as_host=False)
        answering.receive(asking_id, reveal, as_host=True)

    meet(newcomer, n.peer_id, to_n, h.peer_id)
    meet(to_h, n.peer_id, host, h.peer_id)
    (hello,) = newcomer.send(h.peer_id, "knock", b"let me in")
    inner = to_n._pairs[n.peer_id].next[0]
    outer = to_h._pairs[h.peer_id].current[0]
    inside = inner._open(hello[1:])
    salt = secrets.token_bytes(32)
    header = outer._header(n.peer_id, h.peer_id)
    resealed = outer._cipher(salt).encrypt(bytes(12), msgspec.msgpack.encode(inside), header)
    with pytest.raises(PeerError, match="signature is wrong"):
        host.open(n.peer_id, b"\x03\x01" + salt + resealed)


def test_lost_and_repeated_messages(two):
    n, h = two.ends["n"], two.ends["h"]
    commit = n.begin(two.id("h"))
    first = h.receive(two.id("n"), commit, as_host=True)
    assert h.receive(two.id("n"), commit, as_host=True) == first
    reveal = n.receive(two.id("h"), first[0], as_host=False)
    words = n.words(two.id("h"))
    assert n.receive(two.id("h"), first[0], as_host=False) == reveal
    assert n.words(two.id("h")) == words
    for _ in range(2):
        assert h.receive(two.id("n"), reveal[0], as_host=True) == []
    assert h.words(two.id("n")) == words
    assert h.receive(two.id("n"), encode_pairing(Answer(N, N)), as_host=True) == []
    two.say("n", b"fine")
    assert two.heard["h"] == [b"fine"]


def test_envelopes_before_a_pairing_are_refused(two):
    with pytest.raises(PeerError, match="before a pairing"):
        two.ends["h"].open(two.id("n"), b"\x03" + bytes(100))


def test_newcomer_answers_no_newcomers(two):
    commit = two.end("h").begin(two.id("n"))
    assert two.ends["n"].receive(two.id("h"), commit, as_host=False) == []


def test_pairs_are_bounded(two):
    for n in range(MAX_PAIRS + 10):
        peer = n.to_bytes(32, "big")
        commit = Newcomer(ROOM, peer, two.id("h"), secrets.token_bytes).commit
        two.ends["h"].receive(peer, encode_pairing(commit), as_host=True)
    assert len(two.ends["h"]) == MAX_PAIRS
