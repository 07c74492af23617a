"""DTLS records in bulk: many packets through OpenSSL's memory buffers with few calls.

pyOpenSSL makes one copy, one lock and several checks a record; its cffi handles are used instead.
May import: nothing of ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from OpenSSL import SSL

RECORD_HEADER_BYTES = 13

MAX_PLAIN_BYTES = 16_384
"""Longest content of a record (RFC 6347, section 4.1)."""

FEED_BYTES = 16_384
"""OpenSSL reads its input in pieces of about this size and loses a record that a cut divides."""

_BUFFER_BYTES = 1 << 17
_CLOSE_NOTIFY = 6  # SSL_ERROR_ZERO_RETURN


class Closed(Exception):
    """The peer ended the DTLS session."""


class Records:
    """The open session of one pyOpenSSL connection over memory buffers."""

    def __init__(self, connection: SSL.Connection) -> None:
        handles: Any = connection
        library: Any = SSL
        self._lib, self._ffi = library._lib, library._ffi
        self._ssl, self._into, self._from = handles._ssl, handles._into_ssl, handles._from_ssl
        self._keep = connection
        self._plain = self._ffi.new("char[]", MAX_PLAIN_BYTES)
        self._sealed = self._ffi.new("char[]", _BUFFER_BYTES)

    def seal(self, packets: Sequence[bytes]) -> tuple[bytes, int]:
        """(records one after another, length of the first); packets: at most 64 KB together.

        Packets of one length make records of one length.
        """
        write, ssl = self._lib.SSL_write, self._ssl
        for packet in packets:
            write(ssl, packet, len(packet))
        data = self.pending()
        if not data:
            self._lib.ERR_clear_error()
            return b"", 0
        return data, RECORD_HEADER_BYTES + int.from_bytes(data[11:13])

    def pending(self) -> bytes:
        """What OpenSSL wants sent: sealed records, alerts, answers in a handshake."""
        length = self._lib.BIO_read(self._from, self._sealed, _BUFFER_BYTES)
        return bytes(self._ffi.buffer(self._sealed, length)) if length > 0 else b""

    def open(self, datagrams: memoryview, each: int) -> list[bytes]:
        """Contents of the records in datagrams of `each` bytes, the last perhaps shorter.

        Records that are damaged, old or doubled are left out. Raises Closed.
        """
        lib, ssl, plain, ffi = self._lib, self._ssl, self._plain, self._ffi
        read = lib.SSL_read
        buffer = ffi.buffer
        out: list[bytes] = []
        feed = max(1, FEED_BYTES // each) * each
        for at in range(0, len(datagrams), feed):
            piece = datagrams[at : at + feed]
            lib.BIO_write(self._into, ffi.from_buffer(piece), len(piece))
            while (length := read(ssl, plain, MAX_PLAIN_BYTES)) > 0:
                out.append(buffer(plain, length)[:])
            ended = lib.SSL_get_error(ssl, length) == _CLOSE_NOTIFY
            lib.ERR_clear_error()
            if ended:
                raise Closed
        return out
