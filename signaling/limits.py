"""Every number that bounds what strangers can make the server do, with its reason.

May import: messages.
"""

from __future__ import annotations

import dataclasses

from signaling.messages import MAX_MEMBERS, MAX_WAITING, MESSAGE_BYTES


@dataclasses.dataclass(frozen=True)
class Limits:
    """Sizes in bytes, times in seconds, rates per second with the burst they may save up."""

    connections: int = 8192
    """Open WebSockets; each costs 22 KiB and an open file. Beyond the files that the system
    allows accepting fails sooner, harmlessly."""
    connections_per_address: int = 256
    """A class room or a proxy in front shares one address; one machine cannot take all places."""
    rooms: int = 1024
    """Rooms remembered, also those whose members are away for the moment."""
    members: int = MAX_MEMBERS
    """Members of a room: a full mesh beyond it has no use on home lines."""
    waiting: int = MAX_WAITING
    """Peers waiting in one room: more than a host would want to read through."""
    dismissed: int = 256
    """Peers a room's host has turned away and the server remembers; the oldest are forgotten,
    and the host's node, which remembers more, turns them away again."""
    message_bytes: int = MESSAGE_BYTES
    register_seconds: float = 10.0
    """Time to prove a key after connecting; idle strangers do not keep a place."""
    messages_rate: float = 50.0
    messages_burst: float = 400.0
    """Enough for offers to 63 peers at once, with the exchanges that precede them."""
    bytes_rate: float = 128 * 1024.0
    bytes_burst: float = 2 * 1024 * 1024.0
    """The same in bytes, an SDP or roster being up to 16 KiB; no use as a file carrier."""
    address_messages_rate: float = 500.0
    address_messages_burst: float = 8_000.0
    """All connections of one address together: twenty nodes that join a room at once fit; a
    machine with hundreds of connections gains nothing by them."""
    address_bytes_rate: float = 1024 * 1024.0
    address_bytes_burst: float = 32 * 1024 * 1024.0
    """The same in bytes."""
    room_joins_rate: float = 4.0
    room_joins_burst: float = 256.0
    """Registrations in one room, from wherever: all that it holds may return at once, twice, but
    nobody shows its members new views all the time."""
    room_messages_rate: float = 1_000.0
    room_messages_burst: float = 20_000.0
    """What is relayed in one room, from wherever: 64 nodes that all meet at once fit."""
    room_bytes_rate: float = 2 * 1024 * 1024.0
    room_bytes_burst: float = 64 * 1024 * 1024.0
    """The same in bytes."""
    waiting_seconds: float = 1800.0
    """How long one may wait for the host without a break. Nodes come back by themselves, at the
    end of the list; who does not is gone, and its place free."""
    waiting_cost: float = 10.0
    """How many times dearer the messages of those who wait are: a knock needs three small ones,
    and the host must not be drowned by strangers."""
    outgoing_bytes: int = 2 * 1024 * 1024
    outgoing_messages: int = 1024
    """Unsent to one connection; a reader slower than that is cut off and may come back. From half
    of it on, relayed envelopes are dropped, so that a room cannot have one member cut off."""
    unused_connections: int = 512
    """TCP connections without a WebSocket (page visitors, port scanners); the oldest go first."""
    unused_seconds: float = 15.0
    """How long such a connection may stay."""
    tls_seconds: float = 10.0
    """How long a TLS handshake may take: until it is done the connection counts nowhere else."""
    joins_rate: float = 2.0
    joins_burst: float = 128.0
    """Registrations per address: a room's worth of nodes may return at once behind one router."""
    all_joins_rate: float = 50.0
    all_joins_burst: float = 2048.0
    """Registrations of everyone together: with it, guessing a 40-bit code takes centuries."""
    addresses: int = 8192
    """Addresses whose recent use is counted; the least recent are forgotten. As many as
    connections, so that no connected one is."""
    groups: int = 2048
    """Addresses with a group: every room may have one, and as many may be about to be founded."""
    group_seconds: float = 30.0
    """How long a proposed group waits for its room, or one whose members have all gone for them:
    a registration takes seconds, a reconnection at most 15."""
    empty_room_seconds: float = 600.0
    """A room without a connected member is forgotten after this; a household's outage or a
    host's restart is shorter, and members bring their signed roster back anyway."""
    takeover_seconds: float = 60.0
    """A host that has been away for so long is lost, as far as newcomers go: they are shown the
    first member in join order that is here. A restart takes less."""
    settle_seconds: float = 60.0
    """After its start a server has forgotten all rooms. For so long a room founded by a newcomer
    gives way to one whose members return with their signed roster (they retry every 15 s)."""
    turn_seconds: int = 6 * 3600
    """What a TURN credential lasts; it is renewed after half of that. A member that is removed can
    use its own for so long, and a transfer that began with it goes on at its end."""
    stun_rate: float = 200.0
    stun_burst: float = 400.0
    """STUN answers of the whole server: gathering needs a handful per node and connection."""
    stun_address_rate: float = 50.0
    stun_address_burst: float = 200.0
    """The same for one address, so that nobody has all of them."""
    data_cache_bytes: int = 256 * 1024 * 1024
    """Text of `--data-proxy` kept in memory (--data-proxy-cache). The nodes of a run read the same
    eight row groups at about the same time: some tens of megabytes."""
    data_hour_bytes: int = 8 * 1024 * 1024 * 1024
    """Text served to everyone in any hour (--data-proxy-hourly). Half of it may be taken at once:
    a run begins with much, and goes on with little."""
    data_request_bytes: int = 8 * 1024 * 1024
    """Most bytes of one request: as many as a node asks for."""
    data_member_rate: float = 2 * 1024 * 1024.0
    data_member_burst: float = 512 * 1024 * 1024.0
    """Bytes for one member, counted in whole blocks; training reads some kilobytes a second."""
    data_address_rate: float = 8 * 1024 * 1024.0
    data_address_burst: float = 2048 * 1024 * 1024.0
    """The same for all members behind one address, a school perhaps."""
    data_questions_rate: float = 10.0
    data_questions_burst: float = 200.0
    """Requests of one member for text, the vain ones too."""
    data_requests: int = 64
    data_member_requests: int = 4
    """Requests that are being answered, of everyone and of one member: a block of memory each."""
    data_pending: int = 64
    """Blocks on their way from sources, waiting ones included."""
    data_reads: int = 4
    """The same from one web server at a time, so that one which hangs stops no other."""
    data_tries: int = 3
    data_idle_seconds: float = 15.0
    data_read_seconds: float = 60.0
    """Attempts for a block of a web server; how long nothing may come, and how long each may take.
    A node that gives up meanwhile asks again, and finds the block."""
    data_files: int = 4096
    """Files whose size and version are remembered."""
    data_write_seconds: float = 60.0
    """How long a reader may take for a block: slower than 17 KiB/s is of no use to it."""


LIMITS = Limits()
