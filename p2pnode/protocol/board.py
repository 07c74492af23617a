"""The facts that all parts of a step core share, and the list of effects they write to.

May import: effects, identity, messages, peers, plan, setup. Holds data; decides nothing.
"""

from __future__ import annotations

from collections.abc import Hashable

from msgspec import structs

from p2pnode.protocol.effects import Effect, Ending, Failed, Fault, Kind, Report, Send
from p2pnode.protocol.identity import short_id
from p2pnode.protocol.messages import (
    Buffer,
    Message,
    PeerId,
    Plan,
    PlanKey,
    Priority,
    Status,
)
from p2pnode.protocol.peers import Peers
from p2pnode.protocol.plan import NO_PLAN
from p2pnode.protocol.setup import Setup


def short(peer: PeerId) -> str:
    """How a peer is named in reports: by the id that the prompt and `peers` show."""
    return short_id(peer)


class Board:
    """Shared state of one run at one node."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.me = setup.me
        self.limits = setup.limits
        self.peers = Peers(setup.me, setup.members, setup.limits)
        self.now = 0.0
        self.out: list[Effect] = []
        self._good: list[tuple[PeerId, Status]] | None = None

        self.applied = setup.applied
        self.committed = setup.applied
        self.hashes: dict[int, bytes] = {setup.applied: setup.state_hash}
        """Own state hashes of the last steps."""

        self.term = 0
        self.leader: PeerId | None = None
        self.leading = False
        self.plans: dict[int, Plan] = {}
        self.newest: Plan | None = None
        self.excluded: set[PeerId] = set(setup.excluded)
        """Peers whose work is not taken any more."""

        self.ending = Ending.STOPPED if setup.stopped else Ending.COMPLETE
        self.detail = ""
        self.last_step = setup.steps
        self.leaving = False
        self.lacking = False
        """The text of this node's slots cannot be had at the moment."""
        self.auditing = 0
        """Sets of others that are computed again here."""
        self.wronged = False
        """Wrong work was found that a record is to take back."""
        self.diagnosing = False
        """This node finds out whether, and how, its own work is wrong."""
        self.dismissed = ""
        """Why it takes no more part, told when that is known."""
        self.doubted: tuple[int, int] | None = None
        """Step and slot of which another peer says that this node reads other text there."""
        self.confessed: set[PeerId] = set()
        self.failure: Failed | None = None
        self.tickets = 0
        """Of Weigh effects so far."""
        self.over = False
        """Failed or released: nothing more is done."""

    @property
    def plan(self) -> Plan | None:
        """Plan of the step this node works on."""
        return self.plans.get(self.applied + 1)

    @property
    def newest_key(self) -> PlanKey:
        return self.newest.key if self.newest else NO_PLAN

    def good(self, peer: PeerId) -> bool:
        """Alive, a member, and its work is taken."""
        if peer in self.excluded:
            return False
        return not self.leaving if peer == self.me else self.peers.live(peer, self.now)

    def good_peers(self) -> list[tuple[PeerId, Status]]:
        """Other members that are good and have sent a status, in join order."""
        if self._good is None:
            self._good = [
                (peer, entry.status)
                for peer, entry in self.peers.items()
                if entry.status is not None and self.good(peer)
            ]
        return self._good

    def peers_changed(self) -> None:
        """Time has passed or a peer is another: `good_peers` has to look again."""
        self._good = None

    def exclude(self, peer: PeerId) -> None:
        """Take no work of this peer any more."""
        self.excluded.add(peer)
        self.peers_changed()

    def reachable(self, peer: PeerId) -> bool:
        """There is a way to the peer now."""
        return peer in self.peers and self.peers.route(peer, self.now)[0]

    def send(
        self,
        peer: PeerId,
        message: Message,
        payload: Buffer = b"",
        priority: Priority = Priority.CONTROL,
        key: Hashable = None,
    ) -> bool:
        """Send if there is a way to the peer; says whether there was."""
        if peer not in self.peers:
            return False
        if message.run != self.setup.run:  # made, or first sent, under an earlier record
            message = structs.replace(message, run=self.setup.run)
        reachable, via = self.peers.route(peer, self.now)
        if reachable:
            self.out.append(Send(peer, message, payload, priority, key, via))
        return reachable

    def report(self, kind: Kind, text: str, peer: PeerId | None = None, step: int = 0) -> None:
        """Tell the owner. `peer`: whom it is about."""
        self.out.append(Report(kind, text, peer, step))

    def dismiss(self, text: str) -> None:
        """This node's work is wrong. It takes no more part, and fails once it knows how."""
        self.dismissed = self.dismissed or text
        self.leaving = True

    def put_out(self) -> None:
        """The others have excluded this node. If it is finding out why, that is told first."""
        if self.doubted is not None and self.doubted[0] > self.committed:
            step, slot = self.doubted
            self.fail(
                Fault.TEXT,
                f"The tokens of slot {slot} of step {step} are others here than at the machines "
                "that go on: this machine's text, its version of p2pnode or of the package "
                "tokenizers is another, or its memory is damaged. Install what the host has, "
                "delete the folder text-cache, and start it again.",
            )
            return
        text = (
            "The others take no more work from this machine: something it sent was wrong. "
            "Start it again to run the gates; their logs say what it was."
        )
        if self.diagnosing:
            self.dismiss(text)
        else:
            self.fail(Fault.UNSOUND, text)

    def fail(self, fault: Fault, text: str) -> None:
        """This node cannot go on; `core` says good-bye to the others."""
        if not self.over:
            self.over = self.leaving = True
            self.failure = Failed(fault, text)
