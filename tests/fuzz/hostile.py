"""A run of simulated machines in which one member also sends what no honest node would.

Its messages are real ones of the run with fields replaced: by valid values, by the field of another
message, or by values of no message. So they get past the decoder, and far into the cores.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from hypothesis import strategies as st

from p2pnode.errors import PeerError
from p2pnode.protocol import effects as ef
from p2pnode.protocol import events as ev
from p2pnode.protocol.messages import Message, decode, encode
from p2pnode.rehearse import toy
from p2pnode.rehearse.machine import Machine
from p2pnode.rehearse.world import World
from tests.fuzz import shapes

NAMES = tuple(shapes.tags(Message))
KINDS = shapes.tags(Message)
_KEPT = 40
"""Real messages of each kind that are remembered to be changed."""

Draw = Callable[[st.SearchStrategy[Any]], Any]


class HostileRun:
    """Three machines, started; the last one misbehaves. `strike` sends one changed message."""

    def __init__(self, seed: int, draw: Draw, nodes: int = 3) -> None:
        self.world = world = World(seed, steps=6)
        self.draw = draw
        self.machines = [world.add() for _ in range(nodes)]
        self.honest = self.machines[:-1]
        self.hostile = self.machines[-1]
        self.seen: dict[str, list[tuple[Message, bytes]]] = {name: [] for name in NAMES}
        self.sent: list[Message] = []
        self.refused = 0
        world.observe = self._observe
        world.start(self.machines)

    def _observe(self, machine: Machine, effect: ef.Effect) -> None:
        if isinstance(effect, ef.Send):
            kept = self.seen[type(effect.message).__name__]
            kept.append((effect.message, bytes(effect.payload)))
            del kept[:-_KEPT]

    def run(self, seconds: float) -> bool:
        """Let time pass; True if every honest machine has ended."""
        return self.world.run(self.world.now + seconds, self.ended)

    def ended(self) -> bool:
        return all(machine.finished or machine.failed for machine in self.honest)

    def strike(self, name: str) -> None:
        """Send one changed message of this kind to an honest machine."""
        target = self.draw(st.sampled_from(self.honest))
        raw = self._changed(name)
        try:
            message, payload = decode(raw)
        except PeerError:
            self.refused += 1  # as the node does, before the core hears of it
            return
        self.sent.append(message)
        via = self.draw(st.sampled_from([None, None, self.honest[0].me]))
        target.feed(ev.MessageReceived(self.hostile.me, message, payload, via))

    def _changed(self, name: str) -> bytes:
        draw, kind = self.draw, KINDS[name]
        real = self.seen[name]
        if real and draw(st.integers(0, 4)):
            message, payload = draw(st.sampled_from(real))
            wire = msgspec.msgpack.decode(b"".join(encode(message))[4:])
        else:
            wire, payload = draw(shapes.values(kind)), b""
            wire[1] = self.honest[0].chain.tag
        for _ in range(draw(st.integers(0, 3))):
            place = draw(st.integers(1, len(wire) - 1))
            match draw(st.integers(0, 2)):
                case 0:
                    wire[place] = draw(shapes.values(kind))[place]
                case 1 if real:
                    other = draw(st.sampled_from(real))[0]
                    wire[place] = msgspec.msgpack.decode(b"".join(encode(other))[4:])[place]
                case _:
                    wire[place] = draw(st.sampled_from(self._facts()))
        if not draw(st.integers(0, 4)):
            wire = draw(shapes.damaged(st.just(wire)))
        payload = draw(
            st.sampled_from(
                [payload, payload, payload[:-1], payload + bytes(4), payload[::-1], b""]
            )
        )
        header = msgspec.msgpack.encode(wire)
        return len(header).to_bytes(4, "little") + header + payload

    def _facts(self) -> list[Any]:
        """Values that mean something in this run."""
        step = max(machine.core.applied for machine in self.honest)
        return [
            *(machine.me for machine in self.machines),
            [machine.me for machine in self.machines],
            [[0, 1, 2], [3, 4, 5]],
            *(step + ahead for ahead in (-1, 0, 1, 2, 3)),
            self.honest[0].work.state.hash,
            [step, self.honest[0].work.state.hash, b"r" * 32],
            [step + 1, 0],
            self.honest[0].core.term,
            [self.honest[0].core.term, 1_000],
            toy.PROBE,
            True,
            None,
        ]


def right(run: HostileRun) -> None:
    """No honest machine has committed, or ended with, a state that is not the undisturbed one."""
    expected = toy.undisturbed(run.world.slots, run.world.steps)
    for machine in run.honest:
        if machine.finished is not None:
            step = machine.finished.step
            assert machine.finished.state_hash == expected[step], f"{machine.name} at step {step}"
    for step, hashes in run.world.commits.items():
        assert hashes == {expected[step]}, f"step {step}"
