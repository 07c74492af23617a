"""Worlds for directed tests: nothing happens in them but what the test says."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from p2pnode.protocol import effects as ef
from p2pnode.protocol.effects import Effect
from p2pnode.protocol.messages import Message
from p2pnode.rehearse.defects import Defects
from p2pnode.rehearse.machine import Machine
from p2pnode.rehearse.oracle import check, over
from p2pnode.rehearse.world import World

E = TypeVar("E", bound=Effect)
M = TypeVar("M", bound=Message)


class Recorder:
    """A world in which every effect is noted as (time, machine name, effect)."""

    def __init__(
        self,
        count: int,
        *,
        slots: int = 6,
        steps: int = 8,
        slot_time: float = 0.1,
        defects: dict[int, Defects] | None = None,
        seed: int = 1,
        duplicates: float = 0.0,
        apart: tuple[tuple[int, int], ...] = (),
    ) -> None:
        self.world = World(seed, slots=slots, steps=steps)
        self.world.net.duplicates = duplicates
        self.effects: list[tuple[float, str, Effect]] = []
        self.world.observe = self._note
        self.nodes = [
            self.world.add(slot_time, (defects or {}).get(number)) for number in range(count)
        ]
        for a, b in apart:
            self.world.net.never_link(self.nodes[a], self.nodes[b])
        self.world.start(self.nodes)

    def _note(self, machine: Machine, effect: Effect) -> None:
        self.effects.append((self.world.now, machine.name, effect))

    def when(self, condition: Callable[[], bool], limit: float = 200.0) -> None:
        """Let time pass until the condition holds."""
        assert self.world.run(self.world.now + limit, condition), "it never came to that"

    def pass_time(self, seconds: float) -> None:
        self.world.run(self.world.now + seconds, lambda: False)

    def at_step(self, step: int, node: int = 0) -> None:
        """Let time pass until a node has committed the step."""
        self.when(lambda: self.nodes[node].core.committed >= step)

    def finish(self, limit: float = 300.0) -> None:
        """Let the run end, and check the oracle."""
        self.world.run(self.world.now + limit, lambda: over(self.world))
        check(self.world)

    def join(self, slot_time: float = 0.1) -> Machine:
        machine = self.world.add(slot_time)
        self.world.admit(machine)
        return machine

    def stop(self, node: int) -> int:
        """A machine's owner orders the end of the run after the step under way; which step."""
        machine = self.nodes[node]
        step = machine.core.horizon()
        assert step is not None
        machine.take(machine.chain.stop(machine.identity, step), here=True)
        return step

    def change(self, node: int, *, steps: int | None = None, lr: float | None = None) -> int:
        """A machine's owner changes the settings after the step under way; which step."""
        machine = self.nodes[node]
        step = machine.core.horizon()
        assert step is not None
        config = machine.chain.config.changed(step, steps=steps, lr=lr, warmup=None)
        machine.take(machine.chain.change(machine.identity, step, config), here=True)
        return step

    def of(self, kind: type[E], name: str | None = None) -> list[E]:
        """All effects of a kind so far, of one machine or all."""
        return [
            effect
            for _, who, effect in self.effects
            if isinstance(effect, kind) and name in (None, who)
        ]

    def sent(self, kind: type, name: str | None = None) -> list[ef.Send]:
        """All Sends of a kind of message so far."""
        return [
            effect
            for _, who, effect in self.effects
            if isinstance(effect, ef.Send)
            and isinstance(effect.message, kind)
            and name in (None, who)
        ]

    def messages(self, kind: type[M], name: str | None = None) -> list[M]:
        """All messages of a kind that were sent so far."""
        return [send.message for send in self.sent(kind, name) if isinstance(send.message, kind)]

    def reports(self, kind: ef.Kind, name: str | None = None) -> list[str]:
        return [
            effect.text
            for _, who, effect in self.effects
            if isinstance(effect, ef.Report) and effect.kind is kind and name in (None, who)
        ]

    def leaders(self) -> set[str]:
        return {
            node.name
            for node in self.world.machines.values()
            if node.up and not node.released and node.core.leading
        }
