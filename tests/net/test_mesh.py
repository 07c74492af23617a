"""The mesh over real WebRTC on loopback, several meshes in one process."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import resource
import time

import pytest

from p2pnode.errors import PeerError
from p2pnode.limits import LIMITS
from p2pnode.net import mesh as mesh_module
from p2pnode.net.attempt import EARLY_FRAMES, Attempt
from p2pnode.net.events import NO_RUN, LinkUp, Priority, Received
from p2pnode.net.ice import IceMode, IcePolicy, Interface
from p2pnode.net.rtc import RtcTransport
from p2pnode.net.signals import Answer, Offer
from p2pnode.protocol.frames import Channel, DataHeader
from tests.net.fakes import Node, meshes, until

FAST = dataclasses.replace(LIMITS, silence=1.0, heartbeat=0.2, reconnect=0.5, handshake=5.0)
RUN = b"run-tag!"


def transport(node: Node, peer: Node):
    """The raw connection, for a node that plays foul."""
    return node.mesh._peers[peer.id].attempt.transport


@pytest.mark.parametrize("count", [2, 3, 4, 5, 6])
async def test_each_pair_has_one_link_though_all_begin_at_once(count):
    async with meshes(count) as nodes:
        nodes.meet()
        await nodes.linked()
        await asyncio.sleep(0.1)
        for node in nodes.nodes:
            for other in nodes.nodes:
                if node is not other:
                    assert node.ups(other.id) == 1
                    assert not node.downs(other.id)
        offers = [(s, t) for s, t, signal in nodes.signals if isinstance(signal, Offer)]
        assert sorted(offers) == sorted(
            (a.id, b.id) for a in nodes.nodes for b in nodes.nodes if a.id < b.id
        )


@pytest.mark.parametrize("most", [1, 3])
async def test_only_so_many_handshakes_run_at_once(most, monkeypatch):
    at_once: dict[int, int] = {}
    worst = 0

    def counted(name: str) -> None:
        original = getattr(RtcTransport, name)

        async def step(self, *sdp: str):
            nonlocal worst
            owner = id(self._on_frame.__self__._slots)  # one semaphore a mesh
            at_once[owner] = at_once.get(owner, 0) + 1
            worst = max(worst, at_once[owner])
            try:
                return await original(self, *sdp)
            finally:
                at_once[owner] -= 1

        monkeypatch.setattr(RtcTransport, name, step)

    for name in ("offer", "answer", "accept"):
        counted(name)
    async with meshes(6, dataclasses.replace(LIMITS, handshakes=most)) as nodes:
        nodes.meet()
        await nodes.linked()
    assert worst == most


async def test_an_offer_from_the_wrong_side_is_ignored():
    async with meshes(2) as nodes:
        a, b = nodes.nodes
        a.mesh.set_members(nodes.members())
        a.mesh.signal(b.id, Offer(b"x" * 16, "v=0"))
        b.mesh.set_members(nodes.members())
        await nodes.linked()
        a.mesh.signal(b.id, Offer(b"x" * 16, "v=0"))
        a.mesh.signal(b.id, Answer(b"x" * 16, "v=0"))
        await asyncio.sleep(0.1)
        assert a.ups(b.id) == b.ups(a.id) == 1
        assert not a.downs(b.id)


async def test_strangers_get_no_answer():
    async with meshes(2) as nodes:
        a, b = nodes.nodes
        a.mesh.set_members(nodes.members())
        await until(lambda: nodes.signals)
        await asyncio.sleep(0.2)
        assert [type(s) for _, _, s in nodes.signals] == [Offer]
        assert not b.mesh.links()
        # The roster arrives at the other side: the offer that came before it is used.
        b.mesh.set_members(nodes.members())
        await nodes.linked()
        assert len(nodes.signals) == 2


async def test_a_removed_member_is_unlinked():
    async with meshes(3) as nodes:
        nodes.meet()
        await nodes.linked()
        a, b, c = nodes.nodes
        a.mesh.set_members({p: k for p, k in nodes.members().items() if p != c.id})
        assert a.mesh.links() == {b.id}
        assert a.downs(c.id)[0].reason == "no longer a member"
        assert not a.mesh.send(c.id, [b"x"], Priority.CONTROL)
        await until(lambda: c.downs(a.id))
        assert a.id not in c.mesh.links()


async def test_bulk_arrives_whole_while_control_stays_quick():
    async with meshes(2) as nodes:
        nodes.meet()
        await nodes.linked()
        a, b = nodes.nodes
        for node in nodes.nodes:
            node.mesh.set_run(RUN, 8 << 20)
        bulk = [os.urandom(5 << 20) for _ in range(2)]
        assert a.mesh.send(b.id, [b"head", bulk[0]], Priority.SHARD)
        assert b.mesh.send(a.id, [bulk[1]], Priority.STATE)
        for i in range(20):
            a.mesh.send(b.id, [b"control %d" % i], Priority.CONTROL)
        await until(lambda: len(b.messages()) == 21 and len(a.messages()) == 1)
        received = b.messages()
        assert received.index(b"head" + bulk[0]) == 20  # every control message overtook it
        assert a.messages() == [bulk[1]]
        assert {e.run for e in b.events if isinstance(e, Received)} == {RUN}
        assert await a.mesh.drain(5)
        stats = a.mesh.stats(b.id)
        assert stats.rtt is not None
        assert stats.bytes_up > 5 << 20 < stats.bytes_down
        assert b.heard[a.id] > 5 << 20


async def test_in_flight_bytes_and_memory_stay_bounded():
    async with meshes(2) as nodes:
        nodes.meet()
        await nodes.linked()
        a, b = nodes.nodes
        size = 4 << 20
        data = bytes(size)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for i in range(5):
            a.mesh.send(b.id, [i.to_bytes(4, "big"), data], Priority.SHARD)
        a.mesh.send(b.id, [b"last"], Priority.STATE)
        worst_stat = worst_buffer = 0
        b.react = lambda event: isinstance(event, Received) and event.message.clear()
        while sum(isinstance(e, Received) for e in b.events) < 6:
            worst_stat = max(worst_stat, a.mesh.stats(b.id).in_flight)
            worst_buffer = max(worst_buffer, transport(a, b).buffered(Channel.BULK))
            await asyncio.sleep(0.005)
        assert worst_stat <= LIMITS.in_flight_bytes
        assert worst_buffer <= LIMITS.in_flight_bytes
        # One message is being joined; nothing else of the 20 MB may be held.
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
        assert grown < 3 * size


async def test_a_run_can_be_set_from_within_a_message():
    async with meshes(2) as nodes:
        nodes.meet()
        await nodes.linked()
        a, b = nodes.nodes
        a.mesh.set_run(RUN, 1 << 20)
        b.react = lambda event: (
            isinstance(event, Received)
            and event.run == NO_RUN
            and b.mesh.set_run(bytes(event.message), 1 << 20)
        )
        a.mesh.send(b.id, [RUN], Priority.CONTROL, run=NO_RUN)
        a.mesh.send(b.id, [b"plan"], Priority.CONTROL)
        await until(lambda: b.messages() == [RUN, b"plan"])


async def test_a_closed_side_is_noticed_and_met_again():
    async with meshes(2, FAST) as nodes:
        nodes.meet()
        await nodes.linked()
        for quitter, other in ((nodes[0], nodes[1]), (nodes[1], nodes[0])):
            ups = other.ups(quitter.id)
            quitter.mesh.drop(other.id, "was told to")
            await until(lambda: other.downs(quitter.id))  # noqa: B023
            await until(lambda: other.ups(quitter.id) > ups)  # noqa: B023
            await nodes.linked()
        assert nodes[0].downs(nodes[1].id)[0].fault


async def test_silence_is_noticed_and_a_new_connection_made():
    async with meshes(2, FAST) as nodes:
        nodes.meet()
        await nodes.linked()
        a, b = nodes.nodes
        # The network swallows everything: both ends go on, no close is ever seen.
        for x, y in ((a, b), (b, a)):
            dtls = transport(x, y)._connection.sctp.transport
            dtls._send_datagrams = lambda pair, data, each: None
            for protocol in dtls.transport._connection._protocols:
                protocol.transport.sendto = lambda data, addr=None: None
        await until(lambda: a.downs(b.id) and b.downs(a.id))
        assert any("nothing heard" in d.reason for d in a.downs(b.id) + b.downs(a.id))
        await until(lambda: a.ups(b.id) == 2 and b.ups(a.id) == 2)
        a.mesh.send(b.id, [b"again"], Priority.CONTROL)
        await until(lambda: b.messages() == [b"again"])


async def test_lost_signals_are_made_up_for():
    async with meshes(2, dataclasses.replace(FAST, handshake=0.5)) as nodes:
        lost: list[type] = []

        def lose(source, target, signal) -> bool:
            first = type(signal) not in lost
            lost.append(type(signal))
            return first

        nodes.lose = lose
        nodes.meet()
        await nodes.linked()
        assert {Offer, Answer} == set(lost)


async def test_a_peer_that_came_too_late_for_an_offer_gets_another_at_once(monkeypatch):
    monkeypatch.setattr(mesh_module, "FIRST_RETRY", 1_000.0)
    async with meshes(2, dataclasses.replace(LIMITS, handshake=1_000.0)) as nodes:
        a, b = sorted(nodes.nodes, key=lambda node: node.id)
        nodes.lose = lambda *_: True
        a.mesh.set_members(nodes.members())
        await until(lambda: nodes.signals)
        a.mesh.reachable(b.id)
        await asyncio.sleep(0.1)
        assert len(nodes.signals) == 1, "this offer may still be on its way"
        monkeypatch.setattr(mesh_module, "FIRST_RETRY", 0.0)
        nodes.lose = lambda *_: False
        b.mesh.set_members(nodes.members())
        b.mesh.reachable(a.id)
        a.mesh.reachable(b"a stranger")
        a.mesh.reachable(b.id)
        await nodes.linked()
        a.mesh.reachable(b.id)
        b.mesh.reachable(a.id)
        assert not a.downs(b.id)
        assert not b.downs(a.id)


async def test_a_peer_that_comes_back_under_its_id_is_met_again():
    async with meshes(2) as nodes:
        a, b = nodes.nodes
        nodes.meet()
        await nodes.linked()
        a.mesh.set_members({})  # as a new process: it knows nothing of the old link
        a.mesh.set_members(nodes.members())
        await until(lambda: a.ups(b.id) == 2 and b.ups(a.id) == 2)
        assert len(b.mesh.links()) == 1


FOUL = [
    ([DataHeader(0, 0, 3, 3000, NO_RUN).pack() + bytes(1024)] * 2, "was due"),
    ([DataHeader(0, 0, 3, 2**32 - 1, NO_RUN).pack() + bytes(1024)], "announced a message"),
    ([b"garbage that is no frame"], "wire version"),
]


@pytest.mark.parametrize(("frames", "says"), FOUL)
@pytest.mark.parametrize("offers", ["honest", "foul"])
async def test_a_peer_that_plays_foul_is_dropped_by_name(frames, says, offers):
    async with meshes(3, dataclasses.replace(LIMITS, reconnect=60)) as nodes:
        nodes.meet()
        await nodes.linked()
        honest, foul = nodes.nodes[:2] if offers == "honest" else nodes.nodes[1::-1]
        for frame in frames:
            transport(foul, honest).send(Channel.BULK, frame)
        await until(lambda: honest.downs(foul.id))
        down = honest.downs(foul.id)[0]
        assert down.fault
        assert says in down.reason
        assert honest.mesh.links() == {nodes[2].id}
        assert not honest.messages()
        # It is refused for a while, also if it is the one to offer.
        honest.mesh.signal(foul.id, Offer(b"x" * 16, "v=0"))
        assert honest.mesh._peers[foul.id].attempt is None


async def test_an_answer_to_another_attempt_is_ignored():
    async with meshes(2) as nodes:
        a, b = nodes.nodes
        a.mesh.set_members(nodes.members())
        await until(lambda: nodes.signals)
        a.mesh.signal(b.id, Answer(b"x" * 16, "v=0"))
        await asyncio.sleep(0.05)
        b.mesh.set_members(nodes.members())
        await nodes.linked()
        assert [type(signal) for _, _, signal in nodes.signals] == [Offer, Answer]


async def test_peers_are_not_blamed_for_our_own_absence():
    async with meshes(2, FAST) as nodes:
        nodes.meet()
        await nodes.linked()
        a, b = nodes.nodes
        await asyncio.sleep(0.3)
        time.sleep(2 * FAST.silence)  # noqa: ASYNC251 - the loop is held, nobody hears anybody
        await asyncio.sleep(0.6)
        assert not a.downs(b.id)
        assert not b.downs(a.id)


async def test_after_a_sleep_of_the_machine_links_are_made_anew_at_once(monkeypatch):
    """The clock that runs while a machine sleeps has jumped against the other."""
    slept = 0.0
    monkeypatch.setattr(mesh_module, "boot_time", lambda: time.monotonic() + slept)
    async with meshes(2) as nodes:
        nodes.meet()
        await nodes.linked()
        a, b = nodes.nodes
        slept = LIMITS.silence - 1.0
        await asyncio.sleep(0.6)
        assert not a.downs(b.id), "shorter than the silence limit: nobody has given it up"
        slept += 3600.0
        await until(lambda: a.downs(b.id) or b.downs(a.id))
        assert "slept for 3600 s" in [*a.downs(b.id), *b.downs(a.id)][0].reason
        await until(lambda: a.ups(b.id) == b.ups(a.id) >= 2)


async def test_frames_that_come_early_are_kept_and_bounded():
    got, ended = [], []
    attempt = Attempt(
        b"l" * 16, IcePolicy(mode=IceMode.LOOPBACK), asyncio.Semaphore(1), lambda signal: None
    )
    for i in range(EARLY_FRAMES):
        attempt._frame(Channel.CONTROL, b"%d" % i)
    assert attempt._failed is None
    attempt._frame(Channel.CONTROL, b"one too many")
    attempt.take_over(lambda channel, frame: got.append(frame), ended.append)
    assert got == [b"%d" % i for i in range(EARLY_FRAMES)]
    assert isinstance(ended[0], PeerError)
    await attempt.close()


async def test_a_missing_link_is_relayed_and_replaced_when_it_comes():
    async with meshes(3) as nodes:
        a, b, c = nodes.nodes
        blocked = True
        nodes.lose = lambda s, t, signal: blocked and {s, t} == {a.id, c.id}
        nodes.meet()
        await until(lambda: len(b.mesh.links()) == 2)
        assert not a.mesh.send(c.id, [b"no way"], Priority.CONTROL)
        data = os.urandom(1 << 20)
        assert a.mesh.send(c.id, [data], Priority.SHARD, via=b.id)
        assert a.mesh.send(c.id, [b"control"], Priority.CONTROL, via=b.id)
        await until(lambda: len(c.messages()) == 2)
        assert sorted(c.messages(), key=len) == [b"control", data]
        assert c.mesh.send(a.id, [b"back"], Priority.CONTROL, via=b.id)
        await until(lambda: a.messages() == [b"back"])
        assert not b.messages()
        assert a.mesh.stats(c.id).relayed
        assert await a.mesh.drain(5)
        assert not any(isinstance(e, LinkUp) and e.peer == c.id for e in a.events)
        blocked = False
        a.mesh._ended(c.id, a.mesh._peers[c.id].attempt, ConnectionError("try again"))
        await nodes.linked()
        assert not a.mesh.stats(c.id).relayed


async def test_a_node_relays_neither_to_itself_nor_back():
    async with meshes(2, dataclasses.replace(LIMITS, reconnect=60)) as nodes:
        nodes.meet()
        await nodes.linked()
        a, b = nodes.nodes
        a.mesh._forward(b.id, Channel.BULK, b"\x01\x05\x01\x00" + b.id + b"body")
        await until(lambda: b.downs(a.id))
        assert "relay to itself" in b.downs(a.id)[0].reason


async def test_a_failing_handler_is_our_fault_and_not_the_peers():
    async with meshes(2) as nodes:
        nodes.meet()
        await nodes.linked()
        a, b = nodes.nodes
        problems = []
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: problems.append(context)
        )

        def fail(event) -> None:
            if isinstance(event, Received):
                raise ZeroDivisionError

        b.react = fail
        a.mesh.send(b.id, [b"x"], Priority.CONTROL)
        await until(lambda: problems)
        assert isinstance(problems[0]["exception"], ZeroDivisionError)
        assert b.mesh.links() == {a.id}


async def test_default_mode_works_on_a_machine_with_only_loopback(monkeypatch):
    monkeypatch.setattr("p2pnode.net.ice.local_interfaces", lambda: [Interface("lo", "127.0.0.1")])
    async with meshes(2, ice=IcePolicy()) as nodes:
        nodes.meet()
        await nodes.linked()


async def test_messages_that_no_peer_would_take_are_refused_here():
    async with meshes(2) as nodes:
        nodes.meet()
        await nodes.linked()
        a, b = nodes.nodes
        with pytest.raises(ValueError, match="CONTROL message"):
            a.mesh.send(b.id, [bytes(LIMITS.control_bytes + 1)], Priority.CONTROL)
        with pytest.raises(ValueError, match="8 bytes"):
            a.mesh.set_run(b"long run tag", 1)


async def test_closing_leaves_nothing_behind():
    before = asyncio.all_tasks()
    async with meshes(3) as nodes:
        nodes.meet()
        await until(lambda: nodes.signals)  # in the middle of the handshakes
    async with meshes(3) as nodes:
        nodes.meet()
        await nodes.linked()
    await until(lambda: asyncio.all_tasks() == before)
