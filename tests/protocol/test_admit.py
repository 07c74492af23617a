"""Admission: who gets in, and who decides."""

import msgspec
import pytest

from p2pnode.errors import RefusedError, UsageError, VersionMismatchError
from p2pnode.protocol import admit_effects as effects
from p2pnode.protocol import admit_messages
from p2pnode.protocol.admit_messages import Knock
from p2pnode.protocol.identity import short_id
from tests.protocol.room_world import Node, members_of


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
