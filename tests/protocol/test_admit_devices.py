"""Admission: devices that the owner has decided about before."""

import pytest

from p2pnode.errors import RefusedError, UsageError
from p2pnode.protocol import admit
from p2pnode.protocol import admit_effects as effects
from tests.protocol.room_world import Node, members_of


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
