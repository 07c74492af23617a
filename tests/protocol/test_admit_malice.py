"""Admission: what a server that lies, or a stranger, cannot do, and how much it can take."""

import secrets

import msgspec
import pytest

from p2pnode.protocol import admit, post, waiting_list
from p2pnode.protocol import admit_effects as effects
from p2pnode.protocol.admit_messages import NODE_PROTOCOL, Decision, Knock
from p2pnode.protocol.box import seal
from p2pnode.protocol.envelope import Channel
from p2pnode.protocol.identity import Identity
from p2pnode.protocol.roster import Member, sign_roster
from signaling.messages import MAX_MEMBERS, MAX_WAITING, Relay, View
from tests.protocol.room_world import ROOM, SECRET, Node, members_of


def test_signals_pass_between_members(world):
    host, one, two = world.room_of(Node("host"), Node("one"), Node("two"))
    world.carry_out(one, one.admission.signal(two.id, "offer", b"sdp"))
    assert two.of(effects.Signal) == [effects.Signal(one.id, "offer", b"sdp")]
    world.carry_out(two, two.admission.signal(one.id, "answer", b"sdp2"))
    assert one.of(effects.Signal) == [effects.Signal(two.id, "answer", b"sdp2")]
    assert not host.of(effects.Signal)


def boxed(node, roster):
    """A roster as it is sent to a node."""
    key = node.identity.relay_key
    return seal(key, roster.encode(), b"roster" + ROOM, secrets.token_bytes)


def test_code_holder_who_is_not_approved_reaches_no_mesh(world):
    """Knowing the code is not enough: an offer counts only from a roster member."""
    host, one, stranger = *world.room_of(Node("host"), Node("one")), Node("stranger")
    world.connect(stranger)
    channel = Channel(stranger.identity, ROOM, SECRET, host.id, secrets.token_bytes)
    sealed = channel.send("offer", b"sdp")
    for _ in range(4):  # the exchange of nonces, then the offer
        answers = []
        for item in sealed:
            for effect in host.admission.on_relayed(stranger.id, item, 0.0):
                host.log.append(effect)
                if isinstance(effect, effects.Send):
                    answers += channel.receive(effect.sealed)[1]
        sealed = answers
    assert not host.of(effects.Signal)
    assert "came under the wrong secret" in host.of(effects.Note)[-1].text
    assert stranger.admission.signal(one.id, "offer", b"sdp") == []


def test_waiting_peer_sees_nobody_and_reaches_nobody_but_the_host(world):
    host, one, stranger = *world.room_of(Node("host"), Node("one")), Node("stranger")
    world.connect(stranger)
    assert stranger.view == View("waiting", host.id)
    before = len(one.log)
    world.frame(stranger, Relay(one.id, b"anything"))
    assert len(one.log) == before
    assert stranger.number is not None, "it cannot tell that there is such a peer"


def test_envelopes_of_unknown_peers_are_ignored(world):
    (host,) = world.room_of(Node("host"))
    out = host.admission.on_relayed(b"q" * 32, b"anything", 0.0)
    assert [type(effect) for effect in out] == [effects.Note]
    assert len(host.admission._post) == 0, "strangers must not make us keep anything"


def test_server_can_neither_read_nor_change_nor_repeat(world):
    host, one, two = world.room_of(Node("host"), Node("one"), Node("two"))
    kept = []

    def swap(sender, to, sealed):
        kept.append(sealed)
        damaged = bytearray(sealed)
        damaged[len(sealed) // 2] ^= 0x40
        return bytes(damaged)

    world.tamper = swap
    world.carry_out(one, one.admission.signal(two.id, "offer", b"fingerprint AA"))
    assert not two.of(effects.Signal)
    world.tamper = None
    world.carry_out(one, one.admission.signal(two.id, "offer", b"fingerprint AA"))
    # Once: it has taken the place of the first, which waited for the nonces that were spoilt.
    assert len(two.of(effects.Signal)) == 1
    for sealed in [*(item for _, _, item in world.relayed), *kept]:
        for node in (host, one, two):
            for claimed in (host.id, one.id, two.id):
                before = len(node.of(effects.Signal))
                node.log += node.admission.on_relayed(claimed, sealed, world.now)
                assert len(node.of(effects.Signal)) == before
    assert b"fingerprint" not in b"".join(sealed for _, _, sealed in world.relayed)


def test_member_does_not_follow_a_server_to_another_host(world):
    host, one = world.room_of(Node("host"), Node("one"))
    mallory = Identity.ephemeral()
    mine = Member(mallory.key, mallory.relay_key, "mallory")
    member = one.admission.roster.members[1]
    fake = sign_roster(mallory, ROOM, 1000, (mine, member))
    one.log += one.admission.on_roster(fake.encode())
    assert "another host" in one.of(effects.Note)[-1].text
    one.log += one.admission.on_view(View("member", mallory.peer_id, 1000), world.now)
    assert one.admission.roster.host == host.id
    assert one.error is None


def test_stranger_with_the_code_cannot_admit_or_refuse(world):
    """A waiting code holder, helped by the server, sends decisions to another waiting peer."""
    host, mallory, guest = Node("host"), Node("mallory"), Node("guest")
    for node in (host, mallory, guest):
        world.connect(node)
    guest.admission._view = View("waiting", host.id, members=(mallory.id,))
    mine = Member(mallory.identity.key, mallory.identity.relay_key, "m")
    theirs = Member(guest.identity.key, guest.identity.relay_key, "g")
    fake = boxed(guest, sign_roster(mallory.identity, ROOM, 9, (mine, theirs)))
    channel = Channel(mallory.identity, ROOM, SECRET, guest.id, secrets.token_bytes)
    opening = guest.admission.on_relayed(mallory.id, channel.send("x", b"")[0], 0.0)
    channel.receive(opening[0].sealed)
    for kind, body in (
        ("roster", fake),
        ("decision", msgspec.msgpack.encode(Decision("yes", roster=fake))),
        ("decision", msgspec.msgpack.encode(Decision("no"))),
    ):
        guest.log += guest.admission.on_relayed(mallory.id, channel.send(kind, body)[0], 0.0)
    assert guest.admission.roster is None
    assert guest.error is None
    assert "not the host" in guest.of(effects.Note)[-1].text


def test_host_is_not_talked_out_of_its_role(world):
    host, one = world.room_of(Node("host"), Node("one"))
    decision = msgspec.msgpack.encode(Decision("no", "removed"))
    world.carry_out(one, one.admission._post.send(host.id, "decision", decision))
    assert host.error is None
    assert host.admission.is_host


def test_old_epoch_does_not_bring_a_removed_member_back(world):
    host, one, two = world.room_of(Node("host"), Node("one"), Node("two"))
    old = two.admission.roster.encode()
    world.carry_out(host, host.admission.kick(one.id))
    assert two.admission.on_roster(old) == []
    assert members_of(two) == ["host", "two"]


@pytest.mark.parametrize("kind", ["knock", "decision", "roster"])
def test_malformed_bodies_are_ignored(world, kind):
    host, one = world.room_of(Node("host"), Node("one"))
    for sender, receiver in ((host, one), (one, host)):
        for body in (b"", b"\xff" * 100, msgspec.msgpack.encode({"name": "x" * 10_000})):
            world.carry_out(sender, sender.admission._post.send(receiver.id, kind, body))
        assert receiver.error is None
        assert members_of(receiver) == ["host", "one"]


def test_notes_hold_nothing_that_a_terminal_would_obey(world):
    host, one = world.room_of(Node("host"), Node("one"))
    bodies = ({"verdict": "\x1b[2J\n"}, {"verdict": "yes", "roster": b"\x1b"})
    for kind, body in (("\x1b[2J", {}), *(("decision", body) for body in bodies)):
        world.now += admit.QUIET
        out = one.admission._post.send(host.id, kind, msgspec.msgpack.encode(body))
        world.carry_out(one, out)
        world.carry_out(host, host.admission._post.send(one.id, kind, msgspec.msgpack.encode(body)))
    texts = [note.text for note in host.of(effects.Note) + one.of(effects.Note)]
    assert texts
    assert all(text.isprintable() for text in texts)


def test_notes_about_bad_envelopes_are_few(world):
    host, one = world.room_of(Node("host"), Node("one"))
    notes = []
    for n in range(100):
        notes += host.admission.on_relayed(one.id, b"junk", world.now + n * admit.QUIET / 10)
    assert len(notes) == 10


def test_waiting_list_is_bounded(world):
    (host,) = world.room_of(Node("host"))
    knock = msgspec.msgpack.encode(Knock(NODE_PROTOCOL, "x", b"k" * 32))
    for number in range(MAX_WAITING + 5):
        stranger = Identity.ephemeral()
        waiting = (*host.admission._view.waiting, stranger.peer_id)[-MAX_WAITING:]
        host.admission._view = View("host", host.id, 1, (host.id,), waiting)
        channel = Channel(stranger, ROOM, SECRET, host.id, secrets.token_bytes)
        (hello,) = channel.send("knock", knock)
        (answer,) = host.admission.on_relayed(stranger.peer_id, hello, 0.0)
        (sealed,) = channel.receive(answer.sealed)[1]
        out = host.admission.on_relayed(stranger.peer_id, sealed, 0.0)
        assert any(isinstance(effect, effects.Knocked) for effect in out) == (number < MAX_WAITING)
    assert len(host.admission.waiting) == MAX_WAITING


def test_channels_and_dismissals_are_bounded(world):
    (host,) = world.room_of(Node("host"))
    for number in range(2000):
        host.admission._dismiss(number.to_bytes(32, "big"), "")
    assert len(host.admission._post) == post.MAX_CHANNELS
    assert len(host.admission._list._dismissed) == waiting_list.MAX_DISMISSED


def test_full_room_says_later(world):
    (host,) = world.room_of(Node("host"))
    me = host.admission.roster.members[0]
    others = tuple(
        Member(identity.key, identity.relay_key, "x")
        for identity in (Identity.ephemeral() for _ in range(MAX_MEMBERS - 1))
    )
    world.carry_out(host, host.admission._new_epoch((me, *others), 2))
    guest = Node("guest")
    world.connect(guest)
    world.carry_out(host, host.admission.approve(guest.id))
    assert "The room is full" in guest.of(effects.Note)[-1].text
    assert "The room is full" in host.of(effects.Note)[-1].text
    assert host.admission.to_ask is None
    assert guest.admission.roster is None
    world.carry_out(host, host.admission.kick(others[0].id))
    world.carry_out(host, host.admission.approve(guest.id))
    assert guest.admission.roster is not None


def test_a_server_cannot_use_up_a_hosts_epochs(world):
    """It shows a host epochs that nobody has signed, up to the last one there is."""
    host, member = Node("host"), Node("member")
    world.room_of(host, member)
    for epoch in (2**53, admit.BELIEVED_EPOCH + 1, 2**53):
        view = msgspec.structs.replace(host.view, epoch=epoch)
        world.carry_out(host, host.admission.on_view(view, world.now))
        world.tick(admit.RECOVER)
    assert host.admission.roster.epoch < 10
    view = msgspec.structs.replace(host.view, epoch=admit.BELIEVED_EPOCH)
    world.carry_out(host, host.admission.on_view(view, world.now))
    world.tick(admit.RECOVER)
    assert host.admission.roster.epoch == admit.BELIEVED_EPOCH + 1
    world.carry_out(host, host.admission.kick(member.id))
    assert host.admission.roster.epoch == admit.BELIEVED_EPOCH + 2
