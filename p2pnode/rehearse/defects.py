"""What can be wrong with a simulated machine, and what it makes of a payload then.

May import: toy; protocol for the type of a payload.
"""

from __future__ import annotations

from dataclasses import dataclass

from p2pnode.protocol.messages import Buffer
from p2pnode.rehearse import toy


@dataclass
class Defects:
    """What is wrong with a machine; steps count from 1, 0 means never."""

    bad_probe_at: int = 0
    no_probe_at: int = 0
    wrong_apply_at: int = 0
    denies: bool = False
    """A wrong apply is not found by its own recomputation, other text not by its hash."""
    wrong_gradient_at: int = 0
    """Its gradients of this step are wrong, in the same way in everything it says about them: only
    an audit finds it."""
    misreads_at: int = 0
    """It reads other text than the others in one slot of this step, wherever it reads it. Unless it
    `denies`, it finds that out when another's text is not its own."""
    false_claim_at: int = 0
    strips_probe_at: int = 0
    """Its contributions from this step on say that no probe ran."""
    corrupts_parts_at: int = 0
    """Its contributions to this step have another payload than it pledged."""
    adds_wrongly_at: int = 0
    """The first sum it makes of this step is wrong, for itself too; a recount is right."""
    corrupts_sums_at: int = 0
    """Its sums of this step have another payload than their summary says."""
    two_faced_at: int = 0
    """Of its sums of this step, every other peer in join order gets a corrupted one."""
    forges_sums_at: int = 0
    """Its sums of this step are wrong, but have the checksum of the evidence."""
    forges_some_at: int = 0
    """Every other peer in join order gets such sums."""
    two_faced_work_at: int = 0
    """It pledges and sends other work of this step to every other peer, with the same checksum."""
    contradicts_evidence_at: int = 0
    """The bytes that it pledges and sends for this step are not those of its evidence."""
    lies_in_check_at: int = 0
    """It tells wrong checksums of what it contributed to this step."""
    hides_at: int = 0
    """It adds something else to its own shards of this step than it pledged, and tells checksums
    that fit: only an audit finds it."""
    withholds_at: int = 0
    """It tells none."""
    wrong_summary_at: int = 0
    """Its sums of this step have another summary than their evidence gives."""

    @property
    def wrong_state(self) -> bool:
        """Its state may differ from what the sums it has give."""
        return self.wrong_apply_at > 0

    @property
    def unseen(self) -> bool:
        """Only an audit finds it."""
        return self.wrong_gradient_at > 0 or self.hides_at > 0

    @property
    def grave(self) -> bool:
        """Who is right can only be told while all are in one group."""
        return self.wrong_state or self.unseen or self.misreads_at > 0

    def __str__(self) -> str:
        parts = [
            f"{name.removesuffix('_at').replace('_', ' ')}"
            + (f" at step {value}" if name.endswith("_at") else "")
            for name, value in vars(self).items()
            if value
        ]
        return ", ".join(parts) or "sound"


def off_by_one(payload: Buffer) -> Buffer:
    """The payload with every value one more."""
    return toy.pack([value + 1 for value in toy.unpack(payload)])


def forge(payload: Buffer, low: int) -> bytes:
    """Other values, which begin at element `low`, with the same fixed checksum."""
    values = list(toy.unpack(payload))
    values[0] += low + 2
    values[1] -= low + 1
    return toy.pack(values)
