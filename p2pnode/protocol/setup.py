"""What a step core must know about its run before the first event.

May import: limits, messages.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from p2pnode.limits import LIMITS, Limits
from p2pnode.protocol.messages import PeerId


def _never() -> bool:
    return False


@dataclasses.dataclass(frozen=True, slots=True)
class Setup:
    """One node's view of a run at its start. Steps count from 1 (see messages)."""

    me: PeerId
    run: bytes
    """Tag of the newest record (see chain)."""
    parameters: int
    """Length of the flat parameter vector; a payload of all of it has 4 bytes for each."""
    tensors: int
    slots: int
    """Slots per step (M)."""
    steps: int
    """Number of the last step."""
    state_hash: bytes
    """Hash of the state this node starts from: the initial one, or a checkpoint."""
    boot: int
    """Random 63-bit number, new at every start of the node."""
    probe: bytes
    """Hash that the kernel probe must give."""
    members: tuple[PeerId, ...]
    """Members of the run in join order, the host first, with this node."""
    sign: Callable[[bytes], bytes]
    """This node's signature of a digest of 32 bytes."""
    signed: Callable[[PeerId, bytes, bytes], bool]
    """Whether the member made this signature of this digest; False for one who is no member."""
    secret: bytes
    """Random bytes that nobody else knows, new at every start: nonces are made of them."""
    applied: int = 0
    """Number of that state: steps applied and committed."""
    stopped: bool = False
    """The last step was ordered: the run's configuration has more."""
    excluded: tuple[PeerId, ...] = ()
    """Peers that take no part: their work was wrong."""
    audit: Callable[[], bool] = _never
    """Draws, for a set of another peer, whether it is computed again here."""
    limits: Limits = LIMITS
