"""Admission of nodes that came without the room's code."""

import secrets

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2pnode.errors import RefusedError, RoomCodeError, UsageError
from p2pnode.protocol import admit
from p2pnode.protocol import admit_effects as effects
from p2pnode.protocol.envelope import VERSION, Channel
from p2pnode.protocol.identity import Identity
from p2pnode.protocol.pairing import PAIRING, Host, Newcomer, decode_pairing, encode_pairing
from p2pnode.protocol.pairs import PAIR_ENVELOPE, Pairs
from signaling.messages import View
from tests.protocol.room_world import ROOM, SECRET, Node


def host_of(world, **options):
    host = Node("host", nearby=True, **options)
    world.connect(host)
    return host


def newcomer(world, name="guest", identity=None, approve="all", **options):
    """`approve`: `all` follows any host without a question."""
    guest = Node(name, approve, identity=identity, secret=None, **options)
    guest.view = View("waiting", None)  # as after finding the room: it never founds one
    world.connect(guest)
    return guest


def words_of(guest):
    return guest.of(effects.Paired)[-1].words


def secret_of(node):
    return node.admission._post.secret


def test_words_are_the_same_at_both_ends_and_approval_brings_the_secret(world):
    host = host_of(world)
    guest = newcomer(world)
    words = words_of(guest)
    assert len(words.split()) == 6
    assert host.of(effects.Knocked) == [effects.Knocked(guest.id, "guest", words)]
    assert host.admission.words(guest.id) == words
    assert secret_of(guest) is None, "not before the host has said yes"
    world.carry_out(host, host.admission.approve(guest.id))
    assert guest.admission.roster.ids == (host.id, guest.id)
    assert secret_of(guest) == SECRET
    assert SECRET not in b"".join(sealed for _, _, sealed in world.relayed)
    assert host.admission.words(guest.id) == ""


def test_a_newcomer_enters_only_after_its_owner_has_compared_too(world):
    host = host_of(world)
    guest = newcomer(world, approve="ask")
    assert guest.admission.unsure_of == (host.id, host.admission.words(guest.id))
    world.carry_out(host, host.admission.approve(guest.id))
    assert guest.admission.roster is None
    assert secret_of(guest) is None
    world.tick(admit.RETRY)  # asking again changes nothing
    assert guest.admission.roster is None
    world.carry_out(guest, guest.admission.follow(host.id, world.now))
    assert guest.admission.roster.ids == (host.id, guest.id)
    assert guest.admission.unsure_of is None
    assert guest.of(effects.Decided) == [effects.Decided(host.id, "", "host")]


def test_a_newcomer_may_answer_before_the_host(world):
    host = host_of(world)
    guest = newcomer(world, approve="ask")
    world.carry_out(guest, guest.admission.follow(host.id, world.now))
    assert guest.admission.roster is None
    world.carry_out(host, host.admission.approve(guest.id))
    assert guest.admission.roster.ids == (host.id, guest.id)


def test_a_host_that_was_followed_before_is_no_question(world):
    host = host_of(world)
    guest = newcomer(world, approve="ask", hosts={host.id})
    assert guest.admission.unsure_of is None
    world.carry_out(host, host.admission.approve(guest.id))
    assert guest.admission.roster is not None


def test_a_restarted_member_is_not_asked(world):
    host = host_of(world)
    guest = newcomer(world, approve="ask")
    world.carry_out(guest, guest.admission.follow(host.id, world.now))
    world.carry_out(host, host.admission.approve(guest.id))
    world.disconnect(guest)
    again = guest.restarted(secret=None)
    world.connect(again)
    assert again.admission.unsure_of is None
    world.tick(admit.RETRY)
    assert secret_of(again) == SECRET


@pytest.mark.parametrize("block", [False, True])
def test_a_newcomer_that_says_no_leaves(world, block):
    host = host_of(world)
    guest = newcomer(world, approve="ask")
    world.carry_out(guest, guest.admission.shun(host.id, block=block))
    assert isinstance(guest.error, RefusedError)
    world.carry_out(host, host.admission.approve(guest.id))
    assert guest.admission.roster is None
    assert bool(guest.of(effects.Decided)) is block


def test_a_blocked_host_is_not_even_asked_about(world):
    host = host_of(world)
    guest = newcomer(world, approve="ask", blocked={host.id})
    assert isinstance(guest.error, RefusedError)
    assert not host.admission.waiting


def test_only_the_host_in_question_can_be_answered(world):
    host = host_of(world)
    guest = newcomer(world, approve="ask")
    for peer in (guest.id, b"x" * 32):
        with pytest.raises(UsageError):
            guest.admission.follow(peer, world.now)
        with pytest.raises(UsageError):
            guest.admission.shun(peer, block=True)
    with pytest.raises(UsageError):
        host.admission.follow(host.id, world.now)


def test_after_approval_everything_is_as_in_a_room(world):
    host = host_of(world)
    first, second = newcomer(world, "first"), newcomer(world, "second")
    for peer in list(host.admission.waiting):
        world.carry_out(host, host.admission.approve(peer))
    third = Node("third")  # one with the code
    world.connect(third)
    assert host.admission.words(third.id) == ""
    assert host.of(effects.Knocked)[-1] == effects.Knocked(third.id, "third", "")
    world.carry_out(host, host.admission.approve(third.id))
    nodes = (host, first, second, third)
    assert len({node.admission.roster.signed for node in nodes}) == 1
    for sender in nodes:
        for to in nodes:
            if sender is not to:
                body = f"{sender.name} {to.name}".encode()
                world.carry_out(sender, sender.admission.signal(to.id, "offer", body))
                assert to.of(effects.Signal)[-1] == effects.Signal(sender.id, "offer", body)


def test_after_it_has_the_secret_a_pair_is_over(world):
    host = host_of(world)
    guest = newcomer(world)
    world.carry_out(host, host.admission.approve(guest.id))
    world.relayed.clear()
    world.carry_out(guest, guest.admission.signal(host.id, "offer", b"1"))
    world.carry_out(host, host.admission.signal(guest.id, "offer", b"2"))
    assert guest.of(effects.Signal)[-1].body == b"2"
    assert len(host.admission._post._pairs) == 0
    assert all(not sealed.startswith(PAIR_ENVELOPE) for _, _, sealed in world.relayed[-2:])


def test_refusal(world):
    host = host_of(world)
    guest = newcomer(world)
    world.carry_out(host, host.admission.refuse(guest.id))
    assert isinstance(guest.error, RefusedError)
    assert secret_of(guest) is None


def test_host_that_did_not_ask_for_it_hears_nobody_without_the_code(world):
    host = Node("host")
    world.connect(host)
    guest = newcomer(world)
    world.tick(admit.RETRY)
    assert not host.of(effects.Knocked)
    assert not guest.of(effects.Paired)
    assert any("without the room's code" in note.text for note in host.of(effects.Note))


def test_members_that_are_not_host_pair_with_nobody(world):
    host = host_of(world)
    member = Node("member", nearby=True)
    world.connect(member)
    world.carry_out(host, host.admission.approve(member.id))
    stranger = Identity.ephemeral()
    raw = encode_pairing(Newcomer(ROOM, stranger.peer_id, member.id, secrets.token_bytes).commit)
    member.admission._view = View("member", host.id, 2, (host.id, member.id, stranger.peer_id))
    out = member.admission.on_relayed(stranger.peer_id, raw, world.now)
    assert [type(effect) for effect in out] == [effects.Note]


def test_restarted_member_gets_in_again_by_its_key_with_new_words(world):
    host = host_of(world)
    guest = newcomer(world)
    world.carry_out(host, host.admission.approve(guest.id))
    world.disconnect(guest)
    again = newcomer(world, identity=guest.identity)
    world.tick(admit.PATIENCE)
    assert words_of(again) != words_of(guest)
    assert secret_of(again) == SECRET
    assert again.admission.roster.ids == (host.id, guest.id)
    assert not host.admission.waiting


def test_waiting_newcomer_that_restarts_changes_the_words_in_the_prompt(world):
    host = host_of(world)
    guest = newcomer(world)
    world.disconnect(guest)
    again = newcomer(world, identity=guest.identity)
    assert host.admission.words(guest.id) == words_of(again) != words_of(guest)
    assert host.of(effects.Knocked)[-1].words == words_of(again)


@pytest.mark.parametrize("lost", range(1, 9))
def test_any_lost_message_is_made_good(world, lost):
    count = 0

    def lose(sender, to, sealed):
        nonlocal count
        count += 1
        return None if count == lost else sealed

    world.tamper = lose
    host = host_of(world)
    guest = newcomer(world)
    for _ in range(4):
        world.tick(admit.RETRY)
    assert host.admission.words(guest.id) == words_of(guest)
    world.carry_out(host, host.admission.approve(guest.id))
    for _ in range(4):
        world.tick(admit.RETRY)
    assert secret_of(guest) == SECRET
    assert guest.admission.roster is not None


def test_members_survive_a_restart_of_the_server(world):
    host = host_of(world)
    guest = newcomer(world)
    world.carry_out(host, host.admission.approve(guest.id))
    world.restart_server()
    world.connect(guest)
    world.connect(host)
    third = newcomer(world, "third")
    world.carry_out(host, host.admission.approve(third.id))
    for node in (host, guest, third):
        assert node.admission.roster.epoch == 3
    world.carry_out(guest, guest.admission.signal(third.id, "offer", b"1"))
    assert third.of(effects.Signal)[-1].body == b"1"


def test_own_group_without_its_code_is_a_sentence(world):
    guest = Node("guest", secret=None)
    world.carry_out(guest, guest.admission.on_view(View("host", guest.id, 3, (guest.id,)), 0.0))
    assert isinstance(guest.error, RoomCodeError)
    assert "--room" in str(guest.error)


class Middle:
    """A malicious server: it is host to the newcomer and newcomer to the host, each under an
    identity of its own (it cannot sign with theirs), and passes on what they say."""

    def __init__(self, host, guest):
        self.host, self.guest = host, guest
        self.false_host, self.false_guest = Identity.ephemeral(), Identity.ephemeral()
        self.to_guest = Pairs(self.false_host, ROOM, secrets.token_bytes)
        self.to_host = Pairs(self.false_guest, ROOM, secrets.token_bytes)
        self.read = []

    def carry(self, node, out, identity, pairs, as_host, pass_on):
        """Answer what `node` sends to `identity`; what can be read of it is passed on."""
        node.log += out
        for effect in out:
            if not isinstance(effect, effects.Send) or effect.to != identity.peer_id:
                continue
            if effect.sealed.startswith(PAIRING):
                replies = pairs.receive(node.id, effect.sealed, as_host=as_host)
            else:
                opened, replies = pairs.open(node.id, effect.sealed)
                if opened is not None:
                    self.read.append((node.name, opened.kind))
                    pass_on(opened.kind, opened.body)
            for reply in replies:
                more = node.admission.on_relayed(identity.peer_id, reply, 0.0)
                self.carry(node, more, identity, pairs, as_host, pass_on)

    def from_host(self, out):
        self.carry(self.host, out, self.false_guest, self.to_host, False, self.pass_to_guest)

    def from_guest(self, out):
        self.carry(self.guest, out, self.false_host, self.to_guest, True, self.pass_to_host)

    def pass_to_guest(self, kind, body):
        for raw in self.to_guest.send(self.guest.id, kind, body):
            self.from_guest(self.guest.admission.on_relayed(self.false_host.peer_id, raw, 0.0))

    def pass_to_host(self, kind, body):
        for raw in self.to_host.send(self.host.id, kind, body):
            self.from_host(self.host.admission.on_relayed(self.false_guest.peer_id, raw, 0.0))

    def run(self):
        alone = View("host", self.host.id, 0, (self.host.id,), (self.false_guest.peer_id,))
        self.from_host(self.host.admission.on_view(alone, 0.0))
        self.from_host(
            self.host.admission.on_relayed(
                self.false_guest.peer_id, self.to_host.begin(self.host.id), 0.0
            )
        )
        shown = View("waiting", self.false_host.peer_id)
        self.from_guest(self.guest.admission.on_view(shown, 0.0))


def test_server_in_the_middle_shows_different_words():
    host, guest = Node("host", nearby=True), Node("guest", secret=None)
    middle = Middle(host, guest)
    middle.run()
    assert ("guest", "knock") in middle.read, "the attack worked as far as it can"
    knocked = host.of(effects.Knocked)
    assert [knock.name for knock in knocked] == ["guest"], "the host is asked about that name"
    assert len(words_of(guest).split()) == len(knocked[0].words.split()) == 6
    assert knocked[0].words != words_of(guest)
    assert host.admission.roster.ids == (host.id,)
    # Both owners compare, and the host says no: nothing but the name was learnt.
    middle.from_host(host.admission.refuse(middle.false_guest.peer_id))
    assert secret_of(guest) is None
    assert guest.admission.roster is None


def test_server_in_the_middle_cannot_keep_the_ids_of_both(world):
    """Then the words differ all the same, and nothing that either signs can be passed on."""
    host = host_of(world)
    guest = Node("guest", secret=None)
    guest.view = View("waiting", None)
    forged = {}

    def tamper(sender, to, sealed):
        """Keep the two apart by keys of its own; drop what it cannot make."""
        if not sealed.startswith(PAIRING):
            return sealed
        message = decode_pairing(sealed, sender)
        if sender == guest.id and "host" not in forged:
            forged["host"] = Host(ROOM, guest.id, host.id, message, secrets.token_bytes)
            forged["newcomer"] = Newcomer(ROOM, guest.id, host.id, secrets.token_bytes)
            return encode_pairing(forged["newcomer"].commit)
        if sender == host.id:
            forged["reveal"], _ = forged["newcomer"].on_answer(message)
            return encode_pairing(forged["host"].answer)
        return encode_pairing(forged["reveal"])

    world.tamper = tamper
    world.connect(guest)
    assert words_of(guest) != host.admission._post.words(guest.id) != ""
    assert not host.of(effects.Knocked)
    assert not host.admission.waiting


def test_known_key_does_not_let_the_server_in_in_its_name(world):
    """The host knows the guest; a server that pairs in the guest's name cannot sign its knock."""
    host = host_of(world)
    guest = newcomer(world)
    world.carry_out(host, host.admission.approve(guest.id))
    world.disconnect(guest)
    newcomer_half = Newcomer(ROOM, guest.id, host.id, secrets.token_bytes)
    mallory = Identity.ephemeral()
    (answer,) = host.admission.on_relayed(guest.id, encode_pairing(newcomer_half.commit), world.now)
    reveal, paired = newcomer_half.on_answer(decode_pairing(answer.sealed, host.id))
    assert host.admission.on_relayed(guest.id, encode_pairing(reveal), world.now) == []
    channel = Channel(mallory, ROOM, paired.secret, host.id, secrets.token_bytes)
    channel._header = lambda *_: VERSION + ROOM + guest.id + host.id
    for sealed in channel.send(admit.KNOCK, b""):
        out = host.admission.on_relayed(guest.id, PAIR_ENVELOPE + sealed, world.now)
        assert "signed with another node's key" in out[0].text
    assert host.admission._post.words(guest.id) == words_of(guest), "the true pair is in use"


@given(
    raw=st.binary(max_size=200)
    | st.tuples(st.integers(0, 4), st.binary(max_size=33), st.binary(max_size=33)).map(
        msgspec.msgpack.encode
    )
    | st.just(b"\x91" * 100_000),
    first=st.sampled_from([PAIRING, PAIR_ENVELOPE, PAIR_ENVELOPE + VERSION, b"\x04"]),
)
@settings(max_examples=300)
def test_nothing_that_the_server_makes_up_breaks_either_side(raw, first):
    host, guest = Node("host", nearby=True), Node("guest", secret=None)
    host.admission.on_view(View("host", host.id, 0, (host.id,), (guest.id,)), 0.0)
    guest.admission.on_view(View("waiting", host.id), 0.0)
    for node, sender in ((host, guest), (guest, host)):
        out = node.admission.on_relayed(sender.id, first + raw, 0.0)
        assert {type(effect) for effect in out} <= {effects.Send, effects.Note}
    assert not host.admission.waiting
    assert secret_of(guest) is None
