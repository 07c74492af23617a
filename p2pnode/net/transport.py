"""Transport: all that a link needs of a connection.

Implemented by a WebRTC connection (rtc), by a relayed path (relay) and by a list in a test.
May import: protocol.frames.
"""

from __future__ import annotations

from typing import Protocol

from p2pnode.protocol.frames import Channel


class Transport(Protocol):
    """An open connection: what `Link` needs of it."""

    max_message: int
    """Longest frame the peer takes, in bytes."""

    def send(self, channel: Channel, frame: bytes) -> None:
        """Hand over a frame. Raises ConnectionError when the connection is closed."""

    def buffered(self, channel: Channel) -> int:
        """Bytes handed over that have not yet left the channel's own queue."""

    def check(self) -> None:
        """Look after the connection, a few times a second. Raises PeerError if the peer makes it
        hold more than it may, ConnectionError if it can be seen to be of no more use."""
