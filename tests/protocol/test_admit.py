"""Admission: who gets in, who decides, and what a lying server or stranger cannot do."""

import random
import secrets

import msgspec
import pytest

from p2pnode.errors import RefusedError, UsageError, VersionMismatchError
from p2pnode.protocol import admit, admit_messages, post, waiting_list
from p2pnode.protocol import admit_effects as effects
from p2pnode.protocol.admit_messages import NODE_PROTOCOL, Decision, Knock
from p2pnode.protocol.box import seal
from p2pnode.protocol.envelope import Channel
from p2pnode.protocol.identity import Identity, short_id
from p2pnode.protocol.roster import Member, sign_roster
from signaling.limits import LIMITS
from signaling.messages import MAX_MEMBERS, MAX_WAITING, Relay, View
from tests.protocol.room_world import ROOM, SECRET, Node, World


@pytest.fixture
def world():
    return World()


def members_of(node):
    return [member.name for member in node.admission.roster.members]


def test_first_is_host_and_others_wait_for_its_word(world):
    host, guest = Node("host"), Node("guest")
    world.connect(host)
    assert host.admission.is_host
    assert members_of(host) == ["host"]
    world.connect(guest)
    assert guest.admission.roster is None
    assert host.admission.waiting == {guest.id: "guest"}
    assert host.of(effects.Knocked) == [effects.Knocked(guest.id, "guest")]
    assert guest.of(effects.Standing)[-1] == effects.Standing("waiting", host.id)
    world.carry_out(host, host.admission.approve(guest.id))
    assert members_of(guest) == members_of(host) == ["host", "guest"]
    assert guest.of(effects.Standing)[-1] == effects.Standing("member", host.id)
    assert guest.view.role == "member"
    assert not host.admission.waiting


def test_roster_is_in_join_order_with_keys(world):
    nodes = world.room_of(Node("one"), Node("two"), Node("three"))
    for node in nodes:
        roster = node.admission.roster
        assert roster.ids == tuple(other.id for other in nodes)
        assert [member.relay_key for member in roster.members] == [
            other.identity.relay_key for other in nodes
        ]
        assert roster.successors == tuple(other.id for other in nodes[1:])
        assert roster.epoch == 3


def test_approve_all_asks_nobody(world):
    host, guest = Node("host", approve="all"), Node("guest")
    world.connect(host)
    world.connect(guest)
    assert members_of(guest) == ["host", "guest"]
    assert not host.of(effects.Knocked)


def test_refused_guest_learns_it_and_cannot_come_back(world):
    host, guest = Node("host"), Node("guest")
    world.connect(host)
    world.connect(guest)
    world.carry_out(host, host.admission.refuse(guest.id))
    assert isinstance(guest.error, RefusedError)
    assert guest.number is None
    world.connect(guest)
    assert guest.server_refusal == "dismissed"
    assert not host.admission.waiting
    # Nor after a restart of the server, which has forgotten it: the host has not.
    world.restart_server()
    world.connect(host)
    again = Node("guest", identity=guest.identity)
    world.connect(again)
    assert isinstance(again.error, RefusedError)
    assert len(host.of(effects.Knocked)) == 1, "the host is not asked again"


def test_later_keeps_the_guest_waiting(world):
    host, guest = Node("host"), Node("guest")
    world.connect(host)
    world.connect(guest)
    world.carry_out(host, host.admission.later(guest.id))
    assert "The host has seen you" in guest.of(effects.Note)[-1].text
    assert guest.id in host.admission.waiting
    world.carry_out(host, host.admission.approve(guest.id))
    assert guest.admission.roster is not None


def test_later_asks_about_the_next_one_meanwhile(world):
    host, one, two = Node("host"), Node("one"), Node("two")
    for node in (host, one, two):
        world.connect(node)
    assert host.admission.to_ask == one.id
    world.carry_out(host, host.admission.later(one.id))
    assert host.admission.to_ask == two.id
    assert short_id(one.id) in host.of(effects.Note)[-1].text
    world.carry_out(host, host.admission.later(two.id))
    assert host.admission.to_ask is None
    assert set(host.admission.waiting) == {one.id, two.id}
    world.carry_out(host, host.admission.approve(one.id))
    assert one.admission.roster is not None
    world.disconnect(two)
    world.connect(two)
    assert host.admission.to_ask == two.id, "whoever comes anew is asked about anew"


def test_guest_that_leaves_stops_waiting(world):
    host, guest = Node("host"), Node("guest")
    world.connect(host)
    world.connect(guest)
    world.disconnect(guest)
    assert not host.admission.waiting
    with pytest.raises(UsageError, match="not waiting"):
        host.admission.approve(guest.id)


def test_kick_is_a_new_epoch_without_the_member(world):
    host, one, two = world.room_of(Node("host"), Node("one"), Node("two"))
    world.carry_out(host, host.admission.kick(one.id))
    assert isinstance(one.error, RefusedError)
    assert "removed" in str(one.error)
    assert one.number is None
    assert members_of(two) == members_of(host) == ["host", "two"]
    assert two.of(effects.RosterChanged)[-1].removed == (one.id,)
    world.connect(one)
    assert one.server_refusal == "dismissed"


def test_kicked_while_away_is_told_by_the_next_roster(world):
    host, one, two = world.room_of(Node("host"), Node("one"), Node("two"))
    world.disconnect(one)
    world.carry_out(host, host.admission.kick(one.id))
    one.log += one.admission.on_roster(two.admission.roster.encode())  # over the mesh
    assert isinstance(one.error, RefusedError)


def test_only_the_host_decides(world):
    host, one = world.room_of(Node("host"), Node("one"))
    with pytest.raises(UsageError, match="Only the host"):
        one.admission.kick(host.id)
    with pytest.raises(UsageError, match="not a member"):
        host.admission.kick(host.id)
    with pytest.raises(UsageError, match="not a member"):
        host.admission.kick(b"x" * 32)
    with pytest.raises(UsageError, match="not waiting"):
        host.admission.refuse(one.id)


def test_other_protocol_version_is_refused_with_the_reason(world, monkeypatch):
    host, guest = Node("host"), Node("guest")
    world.connect(host)
    knock = msgspec.msgpack.encode(Knock(admit_messages.NODE_PROTOCOL + 1, "guest", b"k" * 32))
    monkeypatch.setattr(
        guest.admission,
        "_ask_to_enter",
        lambda _: guest.admission._post.send(host.id, "knock", knock),
    )
    world.connect(guest)
    assert isinstance(guest.error, VersionMismatchError)
    assert not host.admission.waiting


def test_names_are_clean_wherever_they_are_shown(world):
    host, guest = Node("host"), Node("guest")
    guest.admission._name = "\x1b[2Jy\ny\u202e" + "x" * 200
    world.connect(host)
    world.connect(guest)
    shown = host.admission.waiting[guest.id]
    assert shown == "[2Jy y" + "x" * 26
    assert host.of(effects.Knocked)[0].name == shown
    world.carry_out(host, host.admission.approve(guest.id))
    assert members_of(guest)[1] == shown


# Messages for the mesh


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


# A server that lies


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


# Coming back


def test_everyone_finds_back_after_a_server_restart_in_any_order(world):
    nodes = world.room_of(Node("host"), Node("one"), Node("two"))
    for order in ((1, 2, 0), (2, 0, 1), (0, 1, 2)):
        world.restart_server()
        for index in order:
            world.connect(nodes[index])
        assert [node.view.role for node in nodes] == ["host", "member", "member"]
        world.carry_out(nodes[1], nodes[1].admission.signal(nodes[2].id, "offer", b"again"))
        assert nodes[2].of(effects.Signal)[-1].body == b"again"
    late = Node("late")
    world.connect(late)
    world.carry_out(nodes[0], nodes[0].admission.approve(late.id))
    assert members_of(late) == ["host", "one", "two", "late"]


def test_newcomer_that_comes_first_after_a_restart_gives_way(world):
    host, one = world.room_of(Node("host"), Node("one"))
    world.restart_server()
    early = Node("early")
    world.connect(early)
    assert early.admission.is_host
    world.connect(one)
    assert early.view.role == "waiting"
    world.connect(host)
    assert not early.admission.is_host
    assert host.admission.waiting == {early.id: "early"}
    world.carry_out(host, host.admission.approve(early.id))
    assert members_of(early) == ["host", "one", "early"]


def test_waiting_guest_never_becomes_host_by_a_restart(world):
    host, guest = Node("host"), Node("guest")
    world.connect(host)
    world.connect(guest)
    world.restart_server()
    world.connect(guest)
    assert guest.server_refusal == "unavailable"
    world.connect(host)
    world.connect(guest)
    assert guest.view.role == "waiting"
    assert guest.id in host.admission.waiting


def test_restarted_host_gets_its_roster_back_from_a_member(world):
    host, one, two = world.room_of(Node("host"), Node("one"), Node("two"))
    world.disconnect(host)
    again = Node("host", identity=host.identity)
    world.connect(again)
    assert again.admission.is_host
    assert members_of(again) == ["host", "one", "two"]
    assert again.admission.roster.epoch > 3
    assert members_of(two) == ["host", "one", "two"]
    late = Node("late")
    world.connect(late)
    world.carry_out(again, again.admission.approve(late.id))
    assert members_of(one) == ["host", "one", "two", "late"]


def test_restarted_host_whose_members_are_gone_starts_anew(world):
    host, one = world.room_of(Node("host"), Node("one"))
    world.disconnect(one)
    world.disconnect(host)
    again = Node("host", identity=host.identity)
    world.connect(again)
    assert again.admission.roster is None
    world.tick(admit.RECOVER)
    assert members_of(again) == ["host"]
    assert again.admission.roster.epoch == 3
    # The member is not in the new roster, so it must be approved again.
    world.connect(one)
    assert list(again.admission.waiting) == [one.id]
    world.carry_out(again, again.admission.approve(one.id))
    assert members_of(one) == ["host", "one"]


def test_host_and_server_that_restart_together_get_the_room_back(world):
    """As when the host runs the server in its own process."""
    host, one, two, bad = world.room_of(*(Node(name) for name in ("host", "one", "two", "bad")))
    world.restart_server()
    again = Node("host", identity=host.identity, approve="all")
    world.connect(again)
    assert members_of(again) == ["host"]
    late = Node("late")
    world.connect(late)
    assert members_of(late) == ["host", "late"]
    again.admission._list.dismiss(bad.id)
    world.connect(one)
    world.connect(two)
    world.tick(admit.PATIENCE)
    for node in (again, one, two, late):
        assert members_of(node) == ["host", "one", "two", "late"]
        assert node.error is None


def test_restarted_member_gets_in_without_being_asked_about_again(world):
    host, one = world.room_of(Node("host"), Node("one"))
    world.disconnect(one)
    again = Node("one", identity=one.identity)
    world.connect(again)
    world.tick(admit.PATIENCE)
    assert members_of(again) == ["host", "one"]
    assert len(host.of(effects.Knocked)) == 1


def test_restarted_member_gets_in_while_the_host_is_away(world):
    host, one, two = world.room_of(Node("host"), Node("one"), Node("two"))
    world.disconnect(host)
    world.disconnect(one)
    again = Node("one", identity=one.identity)
    world.connect(again)
    world.tick(admit.PATIENCE)
    assert members_of(again) == ["host", "one", "two"]
    assert two.error is None


def test_while_the_host_is_away_only_the_newest_roster_is_taken(world):
    """A restarted member asks another one; an old roster of the host's is not good enough."""
    host, one, two = world.room_of(Node("host"), Node("one"), Node("two"))
    old = sign_roster(host.identity, ROOM, 2, host.admission.roster.members)
    world.disconnect(host)
    world.disconnect(one)
    again = Node("one", identity=one.identity)
    world.connect(again)
    world.carry_out(two, two.admission._post.send(again.id, "roster", boxed(again, old)))
    assert again.admission.roster is None
    assert "not the host here" in again.of(effects.Note)[-1].text
    world.tick(admit.PATIENCE)
    assert again.admission.roster.epoch == 3


# With a roster saved before a restart


def test_saved_member_is_in_at_once_whatever_the_server_forgot(world):
    host, one, _ = world.room_of(Node("host"), Node("one"), Node("two"))
    world.restart_server()
    again = one.restarted()
    world.connect(again)
    assert again.of(effects.RosterChanged) == [effects.RosterChanged(host.admission.roster, ())]
    assert again.view.role == "member"
    assert again.of(effects.Standing) == [effects.Standing("member", host.id)]
    world.connect(host)
    assert host.view.role == "host"
    assert not host.admission.waiting
    assert len(host.of(effects.Knocked)) == 2, "one question for each, long ago"


def test_saved_roster_of_others_makes_nobody_a_member(world):
    host, _ = world.room_of(Node("host"), Node("one"))
    stranger = Node("stranger", saved=host.admission.roster)
    assert stranger.admission.roster is None
    assert stranger.admission.start() == []


def test_saved_host_opens_the_room_without_its_members(world):
    """And whoever it removed does not come back through an old roster."""
    host, one, bad = world.room_of(Node("host"), Node("one"), Node("bad"))
    old = bad.admission.roster
    world.carry_out(host, host.admission.kick(bad.id))
    world.restart_server()
    again = host.restarted()
    back = Node("bad", identity=bad.identity, saved=old)
    world.connect(back)
    world.connect(again)
    assert again.view.role == "host"
    assert members_of(again) == ["host", "one"]
    world.tick(admit.RECOVER)
    assert members_of(again) == ["host", "one"]
    assert back.id not in again.admission.roster.ids
    world.connect(one.restarted())
    assert not [p for p in again.admission.waiting if p == one.id]


def test_saved_member_that_was_removed_meanwhile_is_told(world):
    host, one, _ = world.room_of(Node("host"), Node("one"), Node("two"))
    world.disconnect(one)
    world.carry_out(host, host.admission.kick(one.id))
    world.restart_server()
    world.connect(host)
    again = one.restarted()
    world.connect(again)
    assert isinstance(again.error, RefusedError)


def test_saved_member_goes_to_no_other_host(world):
    """Whoever took the room at an honest server keeps it there; a lying server is not believed."""
    host, one = world.room_of(Node("host"), Node("one"))
    world.restart_server()
    world.tick(LIMITS.settle_seconds)
    taker, again = Node("taker"), one.restarted()
    world.connect(taker)
    world.connect(again)
    assert again.server_refusal == "contested"
    again.log += again.admission.on_view(View("waiting", taker.id), world.now)
    assert "goes by the host that it knows" in again.of(effects.Note)[-1].text
    assert not again.of(effects.Send)
    assert again.admission.roster.host == host.id
    world.tick(admit.RETRY)
    assert not again.of(effects.Send)


# Known and blocked devices


def test_decisions_are_told_so_that_they_can_be_remembered(world):
    host, one, bad = Node("host"), Node("one"), Node("bad")
    for node in (host, one, bad):
        world.connect(node)
    world.carry_out(host, host.admission.approve(one.id))
    world.carry_out(host, host.admission.block(bad.id))
    assert host.of(effects.Decided) == [
        effects.Decided(one.id, "one", "known"),
        effects.Decided(bad.id, "bad", "blocked"),
    ]
    assert isinstance(bad.error, RefusedError)
    world.carry_out(host, host.admission.kick(one.id))
    assert host.of(effects.Decided)[-1] == effects.Decided(one.id, "", "forgotten")
    with pytest.raises(UsageError, match="not waiting"):
        host.admission.block(one.id)


def test_known_devices_need_no_question(world):
    one, stranger = Node("one"), Node("stranger")
    host = Node("host", "known", known={one.id})
    for node in (host, one, stranger):
        world.connect(node)
    assert members_of(one) == ["host", "one"]
    assert host.of(effects.Decided) == [effects.Decided(one.id, "one", "known")]
    assert list(host.admission.waiting) == [stranger.id]


def test_known_devices_are_asked_about_under_ask(world):
    one = Node("one")
    host = Node("host", "ask", known={one.id})
    world.connect(host)
    world.connect(one)
    assert list(host.admission.waiting) == [one.id]


@pytest.mark.parametrize("approve", ["ask", "known", "all"])
def test_blocked_devices_are_turned_away_unasked(world, approve):
    bad = Node("bad")
    host = Node("host", approve, blocked={bad.id}, known={bad.id})
    world.connect(host)
    world.connect(bad)
    assert isinstance(bad.error, RefusedError)
    assert not host.of(effects.Knocked)
    assert members_of(host) == ["host"]


def test_letting_everyone_in_makes_nobody_known(world):
    host, one = Node("host", "all"), Node("one")
    world.connect(host)
    world.connect(one)
    assert members_of(host) == ["host", "one"]
    assert not host.of(effects.Decided)


def test_kicked_device_is_known_no_longer(world):
    one = Node("one")
    host = Node("host", "known", known={one.id})
    world.connect(host)
    world.connect(one)
    world.carry_out(host, host.admission.kick(one.id))
    host.admission._list._dismissed.clear()
    world.restart_server()
    world.connect(host)
    world.connect(Node("one", identity=one.identity))
    assert list(host.admission.waiting) == [one.id]


def test_member_that_was_blocked_meanwhile_is_removed_at_the_start(world):
    host, one, bad = world.room_of(Node("host"), Node("one"), Node("bad"))
    world.disconnect(host)
    again = host.restarted(blocked={bad.id})
    world.connect(again)
    assert members_of(again) == ["host", "one"]
    assert isinstance(bad.error, RefusedError)
    world.tick(admit.PATIENCE)  # then they ask for the roster they have heard of
    assert members_of(one) == ["host", "one"]


def test_blocked_device_does_not_come_back_with_a_recovered_roster(world):
    host, one, bad = world.room_of(Node("host"), Node("one"), Node("bad"))
    world.disconnect(host)
    again = Node("host", identity=host.identity, blocked={bad.id})
    world.connect(again)
    world.tick(admit.RECOVER)
    assert members_of(again) == ["host", "one"]
    assert members_of(one) == ["host", "one"]


def test_lost_roster_is_asked_for(world):
    host, one = world.room_of(Node("host"), Node("one"))
    world.tamper = lambda sender, to, sealed: None if to == one.id else sealed
    two = Node("two")
    world.connect(two)
    world.carry_out(host, host.admission.approve(two.id))
    assert members_of(one) == ["host", "one"]
    world.tamper = None
    world.tick(admit.PATIENCE)
    world.tick(admit.RETRY)
    assert members_of(one) == ["host", "one", "two"]


def test_lost_knock_is_repeated(world):
    host, guest = Node("host"), Node("guest")
    world.connect(host)
    world.tamper = lambda *_: None
    world.connect(guest)
    assert not host.admission.waiting
    world.tamper = None
    world.tick(admit.RETRY)
    assert host.admission.waiting == {guest.id: "guest"}
    world.tick(admit.RETRY)
    assert len(host.of(effects.Knocked)) == 1, "a repeated knock is not a new one"


def test_repetition_ends_with_the_answer(world):
    host, guest = world.room_of(Node("host"), Node("guest"))
    world.tick(admit.RETRY)
    before = len(world.relayed)
    for _ in range(10):
        world.tick(admit.RETRY)
    assert len(world.relayed) == before
    assert guest.admission.next_deadline() is None
    assert host.admission.next_deadline() is None


def test_host_that_counted_anew_joins_its_two_rosters(world):
    """Two epochs of one number, both signed by it: one before, one after it lost its state."""
    host, one = world.room_of(Node("host"), Node("one"))
    other = Identity.ephemeral()
    roster = host.admission.roster
    members = (roster.members[0], Member(other.key, other.relay_key, "other"))
    before = sign_roster(host.identity, ROOM, roster.epoch, members)
    world.carry_out(host, host.admission.on_roster(before.encode()))
    assert members_of(host) == members_of(one) == ["host", "other", "one"]
    assert host.admission.roster.epoch == roster.epoch + 1


def test_host_that_lost_count_is_believed_if_it_speaks_itself(world):
    host, one = world.room_of(Node("host"), Node("one"))
    lower = sign_roster(host.identity, ROOM, 1, one.admission.roster.members)
    world.carry_out(one, one.admission.on_roster(lower.encode()))
    assert one.admission.roster.epoch == 2
    world.carry_out(host, host.admission._post.send(one.id, "roster", boxed(one, lower)))
    assert one.admission.roster.epoch == 1


@pytest.mark.parametrize("seed", range(60))
def test_whatever_happens_everyone_ends_with_the_host_s_newest_roster(seed):
    """Connections break, servers and nodes restart, envelopes are lost; then it becomes calm."""
    rng = random.Random(seed)
    world = World()
    nodes = [Node(f"n{number}", approve="all") for number in range(5)]
    world.connect(nodes[0])
    world.tamper = lambda sender, to, sealed: None if rng.random() < 0.2 else sealed
    for _ in range(60):
        index = rng.randrange(len(nodes))
        node = nodes[index]
        happening = rng.random()
        if happening < 0.04:
            world.restart_server()
        elif happening < 0.12 and nodes[0].number is not None:
            if node.number is not None:
                world.disconnect(node)
            nodes[index] = Node(node.name, "all", node.identity)
        elif node.number is None and (index == 0 or nodes[0].number is not None):
            world.connect(node)
        elif node.number is not None and happening < 0.3:
            world.disconnect(node)
        world.tick(rng.choice((0.1, 1.0, admit.PATIENCE, admit.RETRY)))
    world.tamper = None
    for _ in range(6):
        for node in nodes:
            if node.number is None:
                world.connect(node)
        world.tick(admit.RETRY)
        for one in nodes:  # as over the mesh
            for other in nodes:
                if one.admission.roster is not None:
                    encoded = one.admission.roster.encode()
                    world.carry_out(other, other.admission.on_roster(encoded))
    newest = nodes[0].admission.roster
    assert nodes[0].admission.is_host
    assert sorted(newest.ids) == sorted(node.id for node in nodes)
    for node in nodes:
        assert node.error is None
        assert node.admission.roster.signed == newest.signed
    world.carry_out(nodes[1], nodes[1].admission.signal(nodes[2].id, "offer", b"sdp"))
    assert nodes[2].of(effects.Signal)[-1].body == b"sdp"


# Bounds


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
