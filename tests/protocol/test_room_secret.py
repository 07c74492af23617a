"""The room's secret: new when somebody is put out, known to all who stay, and to nobody else."""

import secrets

import pytest

from p2pnode.errors import PeerError
from p2pnode.protocol import admit_effects as effects
from p2pnode.protocol.box import OVERHEAD, seal, unseal
from p2pnode.protocol.envelope import Channel
from p2pnode.protocol.identity import Identity
from p2pnode.protocol.post import DOOR, INSIDE
from tests.protocol.room_world import ROOM, SECRET, Node, secret_of


def read(sealed, sender, to, secret):
    """What one with a secret and the server's help reads in an envelope: None or (kind, body)."""
    at = Channel(to.identity, ROOM, secret, sender.id, secrets.token_bytes)
    inside = sealed.startswith(INSIDE)
    try:
        opened = at._open(sealed[len(INSIDE) :] if inside else sealed)
    except PeerError:
        return None
    return opened.kind, opened.body


def test_box():
    key, other = Identity.ephemeral(), Identity.ephemeral()
    box = seal(key.relay_key, b"content", b"purpose", secrets.token_bytes)
    assert len(box) == len(b"content") + OVERHEAD
    assert unseal(key.relay_private_key, box, b"purpose") == b"content"
    for private, changed, purpose in (
        (other.relay_private_key, box, b"purpose"),
        (key.relay_private_key, box, b"another"),
        (key.relay_private_key, box[:-1], b"purpose"),
        (key.relay_private_key, bytes([box[0] ^ 1]) + box[1:], b"purpose"),
        (key.relay_private_key, box[:40] + bytes([box[40] ^ 1]) + box[41:], b"purpose"),
        (key.relay_private_key, b"", b"purpose"),
        (key.relay_private_key, bytes(80), b"purpose"),
    ):
        with pytest.raises(PeerError):
            unseal(private, changed, purpose)
    with pytest.raises(PeerError, match="relay key"):
        seal(bytes(32), b"content", b"purpose", secrets.token_bytes)


def test_members_share_a_secret_that_the_code_does_not_give(world):
    nodes = world.room_of(Node("host"), Node("one"), Node("two"))
    assert len({secret_of(node) for node in nodes}) == 1
    assert secret_of(nodes[0]) not in (None, SECRET)


def test_kicked_peer_reads_nothing_more_even_with_the_servers_help(world):
    host, one, victim = world.room_of(Node("host"), Node("one"), Node("victim"))
    known = (SECRET, secret_of(victim))
    world.carry_out(host, host.admission.kick(victim.id))
    world.relayed.clear()
    late = Node("late-comer")
    world.connect(late)
    world.carry_out(host, host.admission.approve(late.id))
    for a, b in ((host, one), (one, late), (late, host)):
        world.carry_out(a, a.admission.signal(b.id, "offer", b"address of " + a.id))
        world.carry_out(b, b.admission.signal(a.id, "answer", b"address of " + b.id))
    assert len({secret_of(node) for node in (host, one, late)}) == 1
    assert secret_of(host) not in known
    nodes = {node.id: node for node in (host, one, victim, late)}
    kinds = set()
    for sender, to, sealed in world.relayed:
        for secret in known:
            kind, body = read(sealed, nodes[sender], nodes[to], secret) or ("", b"")
            kinds.add(kind)
            assert kind in {"", "hello", *DOOR}
            assert b"address of" not in body
            assert kind == "knock" or b"late-comer" not in body, "names stay inside"
    assert kinds >= {"knock", "decision", "roster"}, "it looked at them all"
    assert late.of(effects.Signal)[-1].body.startswith(b"address of")


def test_who_was_away_finds_the_new_secret_in_any_copy_of_the_roster(world):
    host, one, away, victim = world.room_of(Node("host"), Node("one"), Node("away"), Node("v"))
    world.disconnect(away)
    world.carry_out(host, host.admission.kick(victim.id))
    world.disconnect(host)
    world.connect(away)
    world.tick(3.0)
    assert away.admission.roster.epoch == one.admission.roster.epoch
    assert secret_of(away) == secret_of(one)
    world.carry_out(away, away.admission.signal(one.id, "offer", b"hello again"))
    assert one.of(effects.Signal)[-1].body == b"hello again"


def test_saved_roster_brings_the_secret_back(world):
    _, one = world.room_of(Node("host"), Node("one"))
    before = secret_of(one)
    again = one.restarted()
    world.connect(again)
    assert secret_of(again) == before


def test_restarted_host_that_lost_its_roster_makes_a_secret_for_all(world):
    host, one = world.room_of(Node("host"), Node("one"))
    before = secret_of(one)
    world.disconnect(host)
    again = Node("host", identity=host.identity)
    world.connect(again)
    world.tick(6.0)
    assert again.admission.roster.ids == one.admission.roster.ids
    assert secret_of(again) == secret_of(one) != before


def test_removed_peers_are_named_until_they_are_let_in_again(world):
    host, one, victim = world.room_of(Node("host"), Node("one"), Node("victim"))
    world.carry_out(host, host.admission.kick(victim.id))
    assert one.admission.roster.removed == (victim.id,)
    world.restart_server()
    host = host.restarted()
    again = Node("victim", identity=victim.identity)
    world.connect(host)
    world.connect(again)
    world.carry_out(host, host.admission.approve(again.id))
    assert host.admission.roster.removed == ()
    assert secret_of(again) == secret_of(host)


def test_relay_key_that_is_none_is_not_let_in(world):
    host = Node("host")
    world.connect(host)
    bad = Node("bad")
    bad.identity.relay_key = bytes(32)
    world.connect(bad)
    assert host.admission.waiting == {}


def test_offer_at_the_door_is_refused(world):
    """A member that was put out knows the code still; what it says there is no signal."""
    host, one = world.room_of(Node("host"), Node("one"))
    channel = Channel(one.identity, ROOM, SECRET, host.id, secrets.token_bytes)
    sealed = channel.send("offer", b"sdp")
    for _ in range(4):
        answers = []
        for item in sealed:
            for effect in host.admission.on_relayed(one.id, item, 0.0):
                host.log.append(effect)
                if isinstance(effect, effects.Send) and not effect.sealed.startswith(INSIDE):
                    answers += channel.receive(effect.sealed)[1]
        sealed = answers
    assert not host.of(effects.Signal)
    assert "wrong secret" in host.of(effects.Note)[-1].text
