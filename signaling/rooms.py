"""The server's decisions: who is in which room, as what, and who may reach whom. Sans-IO.

May import: grouping, groups, limits, messages, proof, room, throttle.

The app reports connections, frames and time, and carries out the effects each call returns. It
owns no socket and no clock. Nothing here is persistent: after a restart members bring their
signed roster, and the role of host goes to its signer's key only.
"""

from __future__ import annotations

import dataclasses

import msgspec

from signaling.grouping import Origin
from signaling.groups import Groups
from signaling.limits import LIMITS, Limits
from signaling.messages import (
    PROTOCOL,
    Challenge,
    Dismiss,
    FromServer,
    Group,
    IceServer,
    Nearby,
    PeerId,
    Publish,
    Refused,
    Register,
    Relay,
    Relayed,
    RosterClaim,
    View,
    Welcome,
    decode_from_node,
    peer_id,
)
from signaling.proof import checked_claim, proves_key
from signaling.room import Room
from signaling.throttle import Bucket, Buckets


class Send(msgspec.Struct, frozen=True):
    """Queue a message to a connection."""

    connection: int
    message: FromServer


class Close(msgspec.Struct, frozen=True):
    """End a connection after what was queued; no more frames of it count."""

    connection: int


class Lend(msgspec.Struct, frozen=True):
    """Send the connection what is lent to this peer, which the host has approved."""

    connection: int
    peer: PeerId


Effect = Send | Close | Lend

_REFUSALS = {
    "version": "This server speaks another protocol version.",
    "proof": "The registration is not signed by the key that it states.",
    "unavailable": "There is no such room, or it lets nobody in.",
    "contested": "Another host has taken this room.",
    "dismissed": "The host has turned this node away.",
    "replaced": "The same identity has registered again.",
    "busy": "The server is full or asked too often; try again later.",
    "broken": "The node sent what no node sends, or too much of it.",
}


@dataclasses.dataclass
class _Connection:
    number: int
    origin: Origin
    nonce: bytes
    since: float
    """When it opened."""
    register_by: float
    messages: Bucket
    bytes: Bucket
    peer: PeerId | None = None
    room: Room | None = None
    view: View | None = None
    lend_at: float = 0.0


class Rooms:
    """All connections and rooms. `now` is monotonic time in seconds."""

    def __init__(
        self,
        now: float,
        *,
        limits: Limits = LIMITS,
        ice: tuple[IceServer, ...] = (),
        stun_port: int = 0,
        lends: bool = False,
    ) -> None:
        self._limits = limits
        self._welcome = Welcome(ice, stun_port)
        self._lends = lends
        self._settled_at = now + limits.settle_seconds
        self._connections: dict[int, _Connection] = {}
        self._per_address: dict[str, int] = {}
        self._rooms: dict[bytes, Room] = {}
        self._groups = Groups(limits.groups, limits.group_seconds)
        many = limits.addresses
        self._joins = Buckets(limits.joins_rate, limits.joins_burst, many)
        self._address_messages = Buckets(
            limits.address_messages_rate, limits.address_messages_burst, many
        )
        self._address_bytes = Buckets(limits.address_bytes_rate, limits.address_bytes_burst, many)
        self._all_joins = Bucket(limits.all_joins_rate, limits.all_joins_burst, now)

    @property
    def connections(self) -> int:
        return len(self._connections)

    @property
    def rooms(self) -> int:
        return len(self._rooms)

    def member_at(self, number: int) -> tuple[PeerId, str] | None:
        """Id and address (for limits) of the approved member at a connection; None: it is none."""
        connection = self._connections.get(number)
        if connection is None or connection.peer is None or connection.room is None:
            return None
        if connection.room.role(connection.peer) == "waiting":
            return None
        return connection.peer, connection.origin.key

    # Events

    def on_connect(self, number: int, origin: Origin, nonce: bytes, now: float) -> list[Effect]:
        """A WebSocket opened. `number` is new; `nonce`: 32 fresh random bytes."""
        limits, address = self._limits, origin.key
        at_address = self._per_address.get(address, 0)
        if (
            len(self._connections) >= limits.connections
            or at_address >= limits.connections_per_address
        ):
            return _refuse(number, "busy")
        self._per_address[address] = at_address + 1
        self._connections[number] = _Connection(
            number,
            origin,
            nonce,
            now,
            now + limits.register_seconds,
            Bucket(limits.messages_rate, limits.messages_burst, now),
            Bucket(limits.bytes_rate, limits.bytes_burst, now),
        )
        return [Send(number, Challenge(PROTOCOL, nonce))]

    def on_frame(self, number: int, raw: bytes, now: float) -> list[Effect]:
        """A binary frame arrived."""
        connection = self._connections.get(number)
        if connection is None:
            return []
        cost = self._limits.waiting_cost if _waits(connection) else 1.0
        if not (
            connection.messages.take(cost, now) and connection.bytes.take(cost * len(raw), now)
        ):
            return self._expel(connection, "broken", now)
        key = connection.origin.key
        if not (
            self._address_messages.take(key, 1, now)
            and self._address_bytes.take(key, len(raw), now)
        ):
            return self._expel(connection, "busy", now)
        try:
            message = decode_from_node(raw)
        except (msgspec.MsgspecError, RecursionError):
            return self._expel(connection, "broken", now)
        room, peer = connection.room, connection.peer
        if isinstance(message, Register):
            if room is not None:
                return self._expel(connection, "broken", now)
            return self._on_register(connection, message, now)
        if isinstance(message, Nearby):
            if room is not None:
                return self._expel(connection, "broken", now)
            return self._on_nearby(connection, message, now)
        if room is None or peer is None:
            return self._expel(connection, "broken", now)
        if isinstance(message, Relay):
            return self._on_relay(room, peer, message, now)
        if peer not in room.members:
            return self._expel(connection, "broken", now)
        if isinstance(message, Publish):
            return self._on_publish(connection, room, message, now)
        if peer not in (room.host, room.acting):
            return []  # it was, a moment ago
        return self._on_dismiss(room, message, now)

    def on_disconnect(self, number: int, now: float) -> list[Effect]:
        """A WebSocket closed, by whichever side; also call it after `Close` was carried out."""
        connection = self._connections.get(number)
        return [] if connection is None else self._forget(connection, now)

    def on_tick(self, now: float) -> list[Effect]:
        """Call about once a second: ends what has been idle for too long."""
        effects: list[Effect] = []
        self._groups.forget_unused(self._is_used, now)
        for connection in list(self._connections.values()):
            if connection.room is None and now >= connection.register_by:
                effects += self._expel(connection, "broken", now)
            elif _waits(connection) and now >= connection.since + self._limits.waiting_seconds:
                effects += self._expel(connection, "busy", now)
        for room in list(self._rooms.values()):
            effects += self._show(room, now) if room.host not in room.connected else []
            effects += self._lend(room, now)
            since = room.empty_since
            if since is not None and now >= since + self._limits.empty_room_seconds:
                del self._rooms[room.id]
                for number in list(room.connected.values()):
                    effects += self._expel(self._connections[number], "unavailable", now)
        return effects

    # Registration

    def _on_register(self, connection: _Connection, register: Register, now: float) -> list[Effect]:
        if not self._may_join(connection, now):
            return self._expel(connection, "busy", now)
        if register.protocol != PROTOCOL:
            return self._expel(connection, "version", now)
        if not proves_key(register, connection.nonce):
            return self._expel(connection, "proof", now)
        peer = peer_id(register.key)
        room = self._rooms.get(register.room)
        effects: list[Effect] = []
        claim = None
        if register.roster is not None:
            claim = checked_claim(register.roster, register.room, self._limits.members)
            if claim is None:
                return self._expel(connection, "broken", now)
            if peer not in claim.members:
                claim = None
        if room is not None and peer in room.dismissed:
            return self._expel(connection, "dismissed", now)
        if room is None:
            if register.want == "guest" and claim is None:
                return self._expel(connection, "unavailable", now)
            if len(self._rooms) >= self._limits.rooms:
                return self._expel(connection, "busy", now)
            host = peer if claim is None else peer_id(claim.host_key)
            provisional = claim is None and now < self._settled_at
            room = Room(register.room, host, provisional, self._limits, now)
            self._rooms[room.id] = room
        if not room.takes_join(now):
            return self._expel(connection, "busy", now)
        if claim is not None and not self._reconcile(room, claim, now):
            return self._expel(connection, "contested", now)
        if room.role(peer) == "waiting" and (
            peer not in room.connected and len(room.waiting()) >= self._limits.waiting
        ):
            return self._expel(connection, "unavailable", now)
        older = room.connected.get(peer)
        connection.peer, connection.room = peer, room
        room.connected[peer] = connection.number
        if older is not None:
            effects += self._expel(self._connections[older], "replaced", now)
        effects.append(Send(connection.number, self._welcome))
        return effects + self._show(room, now)

    def _may_join(self, connection: _Connection, now: float) -> bool:
        by_address = self._joins.take(connection.origin.key, 1, now)
        return by_address and self._all_joins.take(1, now)

    def _on_nearby(self, connection: _Connection, nearby: Nearby, now: float) -> list[Effect]:
        origin = connection.origin
        if not self._may_join(connection, now):
            return self._expel(connection, "busy", now)
        if origin.group is None:
            return [Send(connection.number, Group(None, origin.no_group))]
        room = self._groups.room_of(origin.group, nearby.room, self._is_used, now)
        if room is None and nearby.room is not None:
            return self._expel(connection, "busy", now)
        return [Send(connection.number, Group(room, "none" if room is None else ""))]

    def _is_used(self, room_id: bytes) -> bool:
        room = self._rooms.get(room_id)
        return room is not None and room.has_member_connected()

    def _reconcile(self, room: Room, claim: RosterClaim, now: float) -> bool:
        """Bring a returning member's roster and the room together; False if they are at odds."""
        if room.host == peer_id(claim.host_key):
            if claim.epoch > room.epoch:
                room.adopt(claim)
            return True
        if peer_id(claim.host_key) in room.members:
            # Somebody stood in for the host, on one side of a cut perhaps: the members settle it.
            if claim.epoch > room.epoch and room.may_lead(peer_id(claim.host_key)):
                room.adopt(claim)
            return True
        if room.provisional and now < self._settled_at:
            # Its founder came after the restart, before those whose room this is; it now waits.
            room.adopt(claim)
            return True
        return False

    # Inside a room

    def _on_relay(self, room: Room, sender: PeerId, relay: Relay, now: float) -> list[Effect]:
        number = room.connected.get(relay.to)
        if number is None or not room.may_relay(sender, relay.to):
            return []  # left a moment ago, or none of the sender's business: it sees no difference
        if not room.carries(len(relay.sealed), now):
            return []  # as if lost on the way: whoever needs an answer asks again
        return [Send(number, Relayed(sender, relay.sealed))]

    def _on_publish(
        self, connection: _Connection, room: Room, publish: Publish, now: float
    ) -> list[Effect]:
        claim = checked_claim(publish.roster, room.id, self._limits.members)
        if claim is None or peer_id(claim.host_key) != connection.peer:
            return self._expel(connection, "broken", now)
        if claim.epoch > room.epoch and room.may_lead(connection.peer):
            room.adopt(claim)
        return self._show(room, now)

    def _on_dismiss(self, room: Room, dismiss: Dismiss, now: float) -> list[Effect]:
        if dismiss.peer in room.members:
            return []  # a host first publishes a roster without the member
        room.dismiss(dismiss.peer, self._limits.dismissed)
        number = room.connected.get(dismiss.peer)
        if number is None:
            return []
        return self._expel(self._connections[number], "dismissed", now)

    def _show(self, room: Room, now: float) -> list[Effect]:
        """Send a view to everyone whose view has changed, and note whether the room is empty."""
        if room.has_member_connected():
            room.empty_since = None
        elif room.empty_since is None:
            room.empty_since = now
        room.watch_host(now, self._limits.takeover_seconds)
        effects: list[Effect] = []
        for peer, number in room.connected.items():
            connection = self._connections[number]
            view = room.view(peer)
            if view != connection.view:
                connection.view = view
                effects.append(Send(number, view))
        return effects + self._lend(room, now)

    def _lend(self, room: Room, now: float) -> list[Effect]:
        """TURN credentials, and the right to read text, for members that have none, or none that
        last. A host counts as one as soon as it has company, since a stranger who founds a room is
        a host too."""
        effects: list[Effect] = []
        if not self._lends or len(room.connected) == 1:
            return effects
        for peer, number in room.connected.items():
            connection = self._connections[number]
            if room.role(peer) != "waiting" and now >= connection.lend_at:
                connection.lend_at = now + self._limits.turn_seconds / 2
                effects.append(Lend(number, peer))
        return effects

    def _expel(self, connection: _Connection, reason: str, now: float) -> list[Effect]:
        return [*_refuse(connection.number, reason), *self._forget(connection, now)]

    def _forget(self, connection: _Connection, now: float) -> list[Effect]:
        del self._connections[connection.number]
        address = connection.origin.key
        self._per_address[address] -= 1
        if not self._per_address[address]:
            del self._per_address[address]
        room, peer = connection.room, connection.peer
        if room is None or peer is None or room.connected.get(peer) != connection.number:
            return []
        del room.connected[peer]
        return self._show(room, now) if room.id in self._rooms else []


def _waits(connection: _Connection) -> bool:
    room, peer = connection.room, connection.peer
    return room is not None and peer is not None and room.role(peer) == "waiting"


def _refuse(number: int, reason: str) -> list[Effect]:
    return [Send(number, Refused(reason, _REFUSALS[reason])), Close(number)]
