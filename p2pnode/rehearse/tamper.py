"""What a simulated machine with defects sends in place of what its core asks it to.

May import: protocol, defects, toy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from msgspec import structs

from p2pnode.protocol import effects as ef
from p2pnode.protocol.messages import (
    Answer,
    Buffer,
    Contribution,
    PeerId,
    Pledge,
    Shard,
    ShardSum,
    Slots,
    pledge_digest,
)
from p2pnode.protocol.pieces import digest_pieces
from p2pnode.rehearse import toy
from p2pnode.rehearse.defects import Defects, forge, off_by_one


def tampered(
    send: ef.Send,
    defects: Defects,
    me: PeerId,
    *,
    odd: bool,
    computed: Callable[[int, Slots], Buffer],
) -> ef.Send | None:
    """What the machine `me` sends; None: nothing. `odd`: the receiver is one of every other peer in
    join order. `computed`: the sum of a set of a step that this machine has computed."""
    message = send.message
    changed = send
    if isinstance(message, Pledge):
        if 0 < defects.strips_probe_at <= message.step:
            changed = replace(send, message=_signed_anew(message, me, probe=b""))
        if message.step == defects.two_faced_work_at and odd and message.peer == me:
            other = forge(computed(message.step, message.slots), 0)
            forged = digest_pieces(other, Shard(0, 1), toy.PARAMETERS)
            changed = replace(send, message=_signed_anew(message, me, pieces=forged))
    elif isinstance(message, Contribution):
        if message.step == defects.corrupts_parts_at:
            changed = replace(send, payload=off_by_one(send.payload))
        if message.step == defects.two_faced_work_at and odd:
            low, high = message.shard.bounds(toy.PARAMETERS)
            other = forge(computed(message.step, message.slots), 0)
            changed = replace(send, payload=other[4 * low : 4 * high])
    elif isinstance(message, Answer):
        if message.step == defects.lies_in_check_at and message.values:
            values = tuple((slots, value ^ 1) for slots, value in message.values)
            changed = replace(send, message=structs.replace(message, values=values))
        if message.step == defects.withholds_at:
            return None
    elif isinstance(message, ShardSum):
        low, high = message.shard.bounds(toy.PARAMETERS)
        forger = message.step in (defects.forges_sums_at, defects.forges_some_at if odd else 0)
        if forger and high - low > 1:
            changed = replace(send, payload=forge(send.payload, low))
        if message.step in (defects.corrupts_sums_at, defects.two_faced_at if odd else 0):
            changed = replace(send, payload=off_by_one(send.payload))
        if message.step == defects.wrong_summary_at:
            wrong = structs.replace(message.summary, loss=message.summary.loss + 1)
            changed = replace(send, message=structs.replace(message, summary=wrong))
    return changed


def _signed_anew(pledge: Pledge, me: PeerId, **changes: object) -> Pledge:
    changed = structs.replace(pledge, **changes)
    return structs.replace(changed, signature=toy.sign(me, pledge_digest(changed)))
