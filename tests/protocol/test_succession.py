"""A host that is lost for good: the next member in join order stands in for it, and nobody else."""

import pytest

from p2pnode.errors import RefusedError, UsageError
from p2pnode.protocol import admit_effects as effects
from p2pnode.protocol.roster import Member, sign_roster
from p2pnode.protocol.succession import BELIEVE, TAKEOVER
from tests.protocol.room_world import ROOM, Node, secret_of

LONG = TAKEOVER + 1.0


def lose(world, node):
    """A host goes for good, and everybody has noticed."""
    world.disconnect(node)
    world.tick(1.0)
    world.tick(LONG)


def member_of(node, name="x"):
    return Member(node.identity.key, node.identity.relay_key, name)


def let_in(world, by, node):
    """A newcomer knocks, and is let in by this node's owner."""
    world.connect(node)
    world.tick(11.0)
    assert node.id in by.admission.waiting
    world.carry_out(by, by.admission.approve(node.id))


def test_the_next_in_order_lets_a_newcomer_in(world):
    host, one, two = world.room_of(Node("host"), Node("one"), Node("two"))
    before = secret_of(two)
    lose(world, host)
    assert one.admission.decides
    assert not two.admission.decides
    assert one.view.role == "acting"
    assert [note for note in one.of(effects.Note) if "decides" in note.text]
    late = Node("late")
    let_in(world, one, late)
    for node in (one, two, late):
        assert node.admission.roster.host == one.id
        assert node.admission.roster.ids == (host.id, one.id, two.id, late.id)
        assert secret_of(node) == before
    assert late.view.role == "member"


def test_nobody_stands_in_for_a_host_that_is_there_or_just_away(world):
    host, one = world.room_of(Node("host"), Node("one"))
    world.tick(10 * TAKEOVER)
    assert not one.admission.decides
    world.disconnect(host)
    world.tick(1.0)
    world.tick(TAKEOVER - 3.0)
    assert not one.admission.decides
    assert one.view.role == "member"
    late = Node("late")
    world.connect(late)
    assert late.view.host is None
    with pytest.raises(UsageError):
        one.admission.kick(host.id)


def test_a_link_shows_that_the_host_is_there_whatever_the_server_says(world):
    host, one = world.room_of(Node("host"), Node("one"))
    world.disconnect(host)
    for _ in range(20):
        world.carry_out(one, one.admission.on_links({host.id}, world.now))
        world.tick(TAKEOVER / 4)
    assert one.view.role == "acting", "the server cannot see links"
    assert not one.admission.decides
    late = Node("late")
    world.connect(late)
    world.tick(11.0)
    assert one.admission.waiting == {}
    world.carry_out(one, one.admission.on_links(set(), world.now))
    world.tick(LONG)
    world.tick(11.0)
    assert one.admission.waiting == {late.id: "late"}


def test_a_turn_comes_without_any_event(world):
    """The server is away too: the node's own timer tells."""
    host, one = world.room_of(Node("host"), Node("one"))
    world.disconnect(host)
    world.disconnect(one)
    admission = one.admission
    admission._view = None
    admission.on_links({host.id}, world.now)
    admission.on_links(set(), world.now + 5.0)
    at = admission.next_deadline()
    assert at == world.now + 5.0 + TAKEOVER or at == world.now + TAKEOVER
    out = admission.on_tick(at)
    assert admission.decides
    assert any(isinstance(effect, effects.Note) for effect in out)
    assert admission.next_deadline() is None


def test_a_host_that_comes_back_goes_on_with_whom_was_let_in_and_put_out(world):
    nodes = world.room_of(Node("host"), Node("one"), Node("two"), Node("bad"))
    host, one, two, bad = nodes
    lose(world, host)
    late = Node("late")
    let_in(world, one, late)
    known = secret_of(bad)
    world.carry_out(one, one.admission.kick(bad.id))
    again = host.restarted()
    world.connect(again)
    newest = one.admission.roster.encode()
    world.carry_out(again, again.admission.on_roster(newest))
    assert again.admission.roster.ids == (host.id, one.id, two.id, late.id)
    for node in (one, two, late):
        assert node.admission.roster.epoch == again.admission.roster.epoch
        assert node.admission.roster.host == host.id
        assert secret_of(node) == secret_of(again) != known
    assert not one.admission.decides
    assert again.view.role == "host"
    epoch = again.admission.roster.epoch
    world.carry_out(again, again.admission.on_roster(newest))
    assert again.admission.roster.epoch == epoch, "once is enough"


def test_a_host_without_its_disk_follows_who_stands_in(world):
    host, one = world.room_of(Node("host"), Node("one"))
    lose(world, host)
    late = Node("late")
    let_in(world, one, late)
    again = Node("host", identity=host.identity)
    world.connect(again)
    world.tick(11.0)
    assert again.admission.roster.host == one.id
    assert one.admission.is_host


def test_two_that_stood_in_on_two_sides_become_one(world):
    """Both signed a roster; the earlier in join order goes on, with all."""
    host, one, two, three = world.room_of(*(Node(name) for name in ("h", "one", "two", "three")))
    world.disconnect(one)
    lose(world, host)
    ours = Node("ours")
    let_in(world, two, ours)
    theirs = Node("theirs")
    # The other side: `one` has another server, and saw nobody either.
    world.carry_out(one, one.admission.on_links(set(), world.now))
    one.admission._view = None
    one.admission.on_links(set(), world.now)
    one.admission.on_tick(world.now + LONG)
    assert one.admission.decides
    one.admission._list.add(member_of(theirs, "theirs"), "")
    one.admission.approve(theirs.id)
    assert one.admission.roster.epoch == two.admission.roster.epoch
    before = two.admission.roster
    assert two.admission.on_roster(one.admission.roster.encode()) == [], "it waits for the other"
    one.admission.on_roster(before.encode())
    merged = one.admission.roster
    assert set(merged.ids) == {host.id, one.id, two.id, three.id, ours.id, theirs.id}
    for node in (two, three, ours):
        node.admission.on_roster(merged.encode())
        assert node.admission.roster.ids == merged.ids
        assert node.admission.roster.host == one.id
        assert secret_of(node) == secret_of(one)


def test_whom_nothing_can_be_sealed_to_is_not_taken_over(world):
    """Who stood in names a member that would keep every later roster from being signed."""
    host, one = world.room_of(Node("host"), Node("one"))
    ghost = Member(Node("ghost").identity.key, bytes(32), "ghost")
    fake = sign_roster(one.identity, ROOM, 50, (member_of(host), member_of(one), ghost))
    world.carry_out(host, host.admission.on_roster(fake.encode()))
    assert host.admission.roster.ids == (host.id, one.id)
    assert host.admission.roster.epoch == 51


def test_a_member_cannot_take_over_while_the_host_is_there(world):
    host, one, mallory = world.room_of(Node("host"), Node("one"), Node("mallory"))
    for members in (
        (member_of(one), member_of(mallory)),
        (member_of(host), member_of(one), member_of(mallory)),
    ):
        fake = sign_roster(mallory.identity, ROOM, 50, members)
        for node in (one, host):
            roster = node.admission.roster
            world.carry_out(node, node.admission.on_roster(fake.encode()))
            assert node.admission.roster.host == host.id
            assert node.admission.roster.ids == roster.ids
    world.disconnect(host)
    world.tick(1.0)
    world.tick(LONG)
    fake = sign_roster(mallory.identity, ROOM, 60, (member_of(one), member_of(mallory)))
    world.carry_out(one, one.admission.on_roster(fake.encode()))
    assert one.admission.roster.host in (host.id, one.id), "it is before mallory in order"


def test_an_epoch_that_nobody_could_follow_is_not_believed(world):
    host, one, two = world.room_of(Node("host"), Node("one"), Node("two"))
    lose(world, host)
    members = tuple(member_of(node) for node in (host, one, two))
    fake = sign_roster(one.identity, ROOM, 2**53, members)
    world.carry_out(two, two.admission.on_roster(fake.encode()))
    assert two.admission.roster.host == host.id


def test_others_believe_it_a_little_sooner(world):
    """They may have noticed later that the host is away; before that they ignore the roster."""
    host, one, two = world.room_of(Node("host"), Node("one"), Node("two"))
    members = (*host.admission.roster.members,)
    new = sign_roster(one.identity, ROOM, host.admission.roster.epoch + 1, members)
    world.disconnect(host)
    world.tick(1.0)
    world.tick(BELIEVE - 3.0)
    two.admission.on_links(set(), world.now)
    two.admission.on_roster(new.encode())
    assert two.admission.roster.host == host.id
    two.admission.on_links(set(), world.now + 5.0)
    two.admission.on_roster(new.encode())
    assert two.admission.roster.host == one.id


def test_who_is_put_out_by_who_stands_in_leaves(world):
    host, one, two = world.room_of(Node("host"), Node("one"), Node("two"))
    lose(world, host)
    world.carry_out(one, one.admission.kick(two.id))
    two.admission.on_links(set(), world.now)
    world.carry_out(two, two.admission.on_roster(one.admission.roster.encode()))
    assert isinstance(two.error, RefusedError)
