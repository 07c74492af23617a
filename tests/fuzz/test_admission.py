"""What insiders seal into envelopes, and what a server does, into live admission cores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from p2pnode.protocol import admit_effects as effects
from p2pnode.protocol import admit_messages as bodies
from p2pnode.protocol.envelope import BODY_BYTES
from p2pnode.protocol.pairing import PAIRING, PairingMessage
from p2pnode.protocol.pairs import PAIR_ENVELOPE
from p2pnode.protocol.roster import Member, sign_roster
from signaling.messages import MAX_WAITING, Relay, View
from tests.fuzz import shapes
from tests.fuzz.effort import effort
from tests.protocol.room_world import ROOM, SECRET, Node, World
from tests.protocol.room_world import SECRET as CODE

Draw = Callable[[st.SearchStrategy[Any]], Any]
KINDS = [bodies.KNOCK, bodies.DECISION, bodies.ROSTER, bodies.ASK, "signal", "", "\x1b[2J"]
BODIES = (
    shapes.values(bodies.Knock)
    | shapes.damaged(shapes.values(bodies.Knock))
    | shapes.values(bodies.Decision)
    | shapes.damaged(shapes.values(bodies.Decision))
)
PAIRINGS = shapes.values(PairingMessage) | shapes.damaged(shapes.values(PairingMessage))


class House:
    """A host with two members, and one who has the code and says anything (`mallory`)."""

    def __init__(self, draw: Draw, *, approved: bool) -> None:
        self.draw = draw
        self.world = world = World()
        self.host, self.ann, self.ben = nodes = (
            Node("host", nearby=True),
            Node("ann"),
            Node("ben"),
        )
        world.room_of(*nodes)
        self.mallory = Node("mallory")
        world.connect(self.mallory)
        if approved:
            world.carry_out(self.host, self.host.admission.approve(self.mallory.id))
        self.epoch = self.host.admission.roster.epoch
        self.ids = self.host.admission.roster.ids

    def honest(self) -> tuple[Node, ...]:
        return self.host, self.ann, self.ben

    def body(self) -> bytes:
        draw = self.draw
        mallory = self.mallory.identity
        match draw(st.integers(0, 4)):
            case 0:  # a roster of its own making
                members = [Member(n.identity.key, n.identity.relay_key, "x") for n in self.honest()]
                mine = Member(mallory.key, mallory.relay_key, "x")
                return sign_roster(
                    mallory, ROOM, draw(st.integers(1, 99)), (*members, mine)
                ).encode()
            case 1:  # the true one
                return self.host.admission.roster.encode()
            case 2:
                decision = bodies.Decision("yes", "", self.host.admission.roster.encode(), SECRET)
                return bodies.encode(decision)
            case 3:
                return draw(st.binary(max_size=50))
        return msgspec.msgpack.encode(draw(BODIES))[:BODY_BYTES]

    def strike(self) -> None:
        """One envelope of mallory to anybody, by way of the server."""
        draw, world, mallory = self.draw, self.world, self.mallory
        to = draw(st.sampled_from(self.honest()))
        match draw(st.integers(0, 5)):
            case 0:
                sealed = [PAIRING + msgspec.msgpack.encode(draw(PAIRINGS))]
            case 1:
                sealed = [PAIR_ENVELOPE + draw(st.binary(max_size=100))]
            case 2 if world.relayed:
                sealed = [draw(st.sampled_from(world.relayed))[2]]
            case _:
                channel = mallory.admission._post._channel(to.id, CODE)
                kind = draw(st.sampled_from(KINDS))
                sealed = channel.send(kind, self.body())
        for envelope in sealed:
            if mallory.number is not None:
                world.frame(mallory, Relay(to.id, envelope))


@effort(30)
@given(data=st.data(), approved=st.booleans())
def test_an_insider_changes_nobodys_room(data: st.DataObject, approved: bool) -> None:
    house = House(data.draw, approved=approved)
    for _ in range(data.draw(st.integers(1, 15))):
        house.strike()
        house.world.tick(data.draw(st.sampled_from([0.1, 3.0, 11.0])))
    for node in house.honest():
        roster = node.admission.roster
        assert roster.host == house.host.id
        assert set(house.ids) - {house.mallory.id} <= set(roster.ids)
        assert approved or house.mallory.id not in roster.ids
        assert node.error is None, "nobody leaves"
        assert len(node.admission.waiting) <= MAX_WAITING
        for note in node.of(effects.Note):
            assert note.text.isprintable()
            assert len(note.text) < 500
        for signal in node.of(effects.Signal):
            assert approved or signal.peer != house.mallory.id
    house.world.carry_out(house.ann, house.ann.admission.signal(house.ben.id, "signal", b"still"))
    assert house.ben.of(effects.Signal)[-1] == effects.Signal(house.ann.id, "signal", b"still")


VIEWS = shapes.values(View)


@effort(40)
@given(data=st.data())
def test_whatever_a_server_shows_the_roster_stays_the_hosts(data: st.DataObject) -> None:
    """Views of every kind, replayed and swapped envelopes, in any order, to members and host."""
    house = House(data.draw, approved=False)
    world = house.world
    known = [node.id for node in (*house.honest(), house.mallory)]
    for _ in range(data.draw(st.integers(1, 12))):
        node = data.draw(st.sampled_from(house.honest()))
        if data.draw(st.booleans()):
            wire = data.draw(VIEWS)
            for name in ("members", "waiting"):
                wire[name] = data.draw(st.lists(st.sampled_from(known), max_size=4))
            wire["host"] = data.draw(st.sampled_from([None, *known]))
            view = msgspec.convert(wire, View)
            world.carry_out(node, node.admission.on_view(view, world.now))
        else:
            sender, _, sealed = data.draw(st.sampled_from(world.relayed))
            sender = data.draw(st.sampled_from([sender, *known]))
            world.carry_out(node, node.admission.on_relayed(sender, sealed, world.now))
        world.tick(data.draw(st.sampled_from([0.1, 6.0, 11.0])))
    for node in house.honest():
        roster = node.admission.roster
        assert roster.host == house.host.id
        assert roster.ids[:3] == house.ids[:3]
        assert house.mallory.id not in roster.ids
        assert node.error is None
