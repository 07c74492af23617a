"""The computing thread of a simulated machine: what waits for it, and how long each task takes.

May import: protocol, work; machine for its type.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from p2pnode.protocol import effects as ef
from p2pnode.rehearse.work import Task, Work

if TYPE_CHECKING:
    from p2pnode.rehearse.machine import Machine


@dataclass
class Lane:
    """Tasks that run one after the other."""

    waiting: deque[Task] = field(default_factory=deque)
    running: Task | None = None


class Thread:
    """The thread of one life of a machine. Its lanes run beside each other: what the group waits
    for does not wait for slots."""

    def __init__(self, machine: Machine, work: Work) -> None:
        self._machine = machine
        self._work = work
        self._common, self._own, self._spare = self._lanes = Lane(), Lane(), Lane()
        """What the group waits for, own slots, and others' slots."""

    def queue(self, task: Task) -> None:
        """Do it after what waits in its lane."""
        lane = self._common
        if isinstance(task, ef.Compute):
            lane = self._own
        elif isinstance(task, ef.Audit | ef.Diagnose):
            lane = self._spare
        lane.waiting.append(task)
        self.go_on()

    def cancel(self, unwanted: ef.Compute) -> None:
        """This set is not computed any more."""
        lane = self._own
        if lane.running == unwanted:
            lane.running = None
        lane.waiting = deque(task for task in lane.waiting if task != unwanted)
        self.go_on()

    def end(self) -> None:
        """The process has gone."""
        for lane in self._lanes:
            lane.running = None
            lane.waiting.clear()

    def go_on(self) -> None:
        """Begin what can begin; own slots wait for their text."""
        for lane in self._lanes:
            waits = self._machine.lacking and lane is self._own
            if lane.running is None and lane.waiting and not waits:
                self._start(lane, lane.waiting.popleft())

    def _start(self, lane: Lane, task: Task) -> None:
        machine, world = self._machine, self._machine.world
        lane.running = task

        def done() -> None:
            if lane.running is not task:
                return
            if world.now < machine.paused_until:
                world.at(machine.paused_until, done)
                return
            lane.running = None
            event = self._work.perform(task)
            self.go_on()
            if event is not None:
                machine.feed(event)

        world.at(world.now + self._duration(task), done)

    def _duration(self, task: Task) -> float:
        slot_time = self._machine.slot_time
        if isinstance(task, ef.Diagnose):
            return 10.0 * slot_time
        if isinstance(task, ef.Compute | ef.Audit):
            factor = 5.0 if task.reference else 1.0
            return slot_time * len(task.slots) * factor
        return 0.0 if isinstance(task, ef.Commit) else min(0.1 * slot_time, 0.05)
