"""A peer connection with the fast path inside, if the installed libraries allow it.

The fast path uses private names of aiortc, aioice, pyOpenSSL and asyncio. They are checked once;
where one is missing, aiortc's own path is used and one line of warning says why.
May import: of net.fast: dtls, sctp.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable
from typing import Any

from aioice import ice as aioice_ice
from aiortc import (
    RTCConfiguration,
    RTCPeerConnection,
    rtcdtlstransport,
    rtcpeerconnection,
    rtcsctptransport,
)
from OpenSSL import SSL

from p2pnode.net.fast.dtls import FastDtlsTransport
from p2pnode.net.fast.sctp import FastSctpTransport

log = logging.getLogger(__name__)

_SCTP = (
    *("_abort", "_data_channel_flush", "_data_channel_receive", "_data_channel_send"),
    *("_get_extensions", "_handle_data", "_receive_chunk", "_reset_deferred_streams", "_send"),
    *("_send_chunk", "_set_extensions", "_set_state", "_transmit_reconfig"),
)
_DTLS = ("_recv_next", "_send_data", "_write_ssl")
_OPENSSL = ("BIO_read", "BIO_write", "ERR_clear_error", "SSL_get_error", "SSL_read", "SSL_write")
_SOURCES: tuple[tuple[Callable[..., Any], tuple[str, ...]], ...] = (
    (
        rtcsctptransport.RTCSctpTransport.__init__,
        (
            *("_advertised_rwnd", "_association_state", "_data_channel_queue", "_data_channels"),
            *("_inbound_streams", "_last_received_tsn", "_local_partial_reliability"),
            *("_local_port", "_local_tsn", "_local_verification_tag", "_loop"),
            *("_outbound_stream_seq", "_remote_port"),
            *("_reconfig_deferred", "_reconfig_queue", "_remote_max_message_size", "_rto"),
        ),
    ),
    (rtcdtlstransport.RTCDtlsTransport.__init__, ("_ssl", "_state")),
    (aioice_ice.Connection.__init__, ("_nominated", "_protocols", "_queue")),
    (SSL.Connection.__init__, ("_from_ssl", "_into_ssl", "_ssl")),
)
"""Attributes that are set where the object is made."""


class FastPeerConnection(RTCPeerConnection):
    """An RTCPeerConnection whose data channels take the fast path."""

    sctp_class: type[FastSctpTransport] = FastSctpTransport
    dtls_class: type[FastDtlsTransport] = FastDtlsTransport

    def _RTCPeerConnection__createSctpTransport(self) -> None:
        """The base names the classes it makes; they are exchanged for the time of this call."""
        module: Any = rtcpeerconnection
        base: Any = super()
        stock = module.RTCSctpTransport, module.RTCDtlsTransport
        module.RTCSctpTransport, module.RTCDtlsTransport = self.sctp_class, self.dtls_class
        try:
            base._RTCPeerConnection__createSctpTransport()
        finally:
            module.RTCSctpTransport, module.RTCDtlsTransport = stock


def peer_connection(configuration: RTCConfiguration) -> RTCPeerConnection:
    """A connection with the fast path if it can be had."""
    if unsupported() is None:
        return FastPeerConnection(configuration)
    return RTCPeerConnection(configuration)


@functools.cache
def unsupported() -> str | None:
    """What keeps the fast path from being used, or None. Warns once."""
    reason = missing()
    if reason is not None:
        log.warning("data channels take aiortc's own, slower path: %s", reason)
    return reason


def missing() -> str | None:
    """The first name that the installed libraries lack, in words."""
    library: Any = getattr(SSL, "_lib", None)
    needed: list[tuple[object, tuple[str, ...]]] = [
        (rtcsctptransport.RTCSctpTransport, _SCTP),
        (rtcdtlstransport.RTCDtlsTransport, _DTLS),
        (RTCPeerConnection, ("_RTCPeerConnection__createSctpTransport",)),
        (rtcpeerconnection, ("RTCDtlsTransport", "RTCSctpTransport")),
        (SSL, ("_ffi", "_lib")),
        (library, _OPENSSL),
    ]
    for owner, names in needed:
        for name in names:
            if not hasattr(owner, name):
                return f"{_name(owner)} has no {name}"
    for made, names in _SOURCES:
        source = set(made.__code__.co_names)
        for name in names:
            if name not in source:
                return f"{made.__qualname__} sets no {name}"
    if len(inspect.signature(rtcsctptransport.RTCSctpTransport._send).parameters) != 7:
        return "RTCSctpTransport._send takes other arguments"
    return None


def _name(owner: object) -> str:
    return str(getattr(owner, "__name__", type(owner).__name__))
