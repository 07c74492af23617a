"""Admission: whoever comes back, after whatever was lost, finds the newest roster."""

import random

import pytest

from p2pnode.errors import RefusedError
from p2pnode.protocol import admit
from p2pnode.protocol import admit_effects as effects
from p2pnode.protocol.identity import Identity
from p2pnode.protocol.roster import Member, sign_roster
from signaling.limits import LIMITS
from signaling.messages import View
from tests.protocol.room_world import ROOM, Node, World, members_of
from tests.protocol.test_admit_malice import boxed


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
