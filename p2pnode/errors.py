"""The error tree. Every error a user can meet is a sentence, and its class fixes the exit code.

May import: nothing of ours.
"""

from __future__ import annotations


def told(error: Exception) -> str:
    """What a library says is wrong, to be put into a sentence of ours: one short printable line,
    because it may quote what a stranger sent."""
    return ascii(str(error)[:200])[1:-1]


class P2PNodeError(Exception):
    """Base of all errors that are reported as a sentence instead of a traceback."""

    exit_code = 1


class UsageError(P2PNodeError):
    """A flag, an environment variable or a combination of them makes no sense."""

    exit_code = 2


class ConfigError(P2PNodeError):
    """A run configuration is impossible (a size out of bounds, widths that do not divide).

    Its words are put into sentences, so they have no capital and no full stop."""

    exit_code = 3


class ServerUnreachableError(P2PNodeError):
    """The signaling server does not answer, or answers something else."""

    exit_code = 4


class RoomCodeError(P2PNodeError):
    """The room code is mistyped, too weak, or names no room (the server cannot tell which)."""

    exit_code = 5


class RefusedError(P2PNodeError):
    """The host said no, or removed this node from the room."""

    exit_code = 6


class OtherHostError(RefusedError):
    """The room has another host than the one that admitted this node."""


class VersionMismatchError(P2PNodeError):
    """The other side speaks another version of the protocol."""

    exit_code = 7


class RunMismatchError(P2PNodeError):
    """The run's configuration or arithmetic differs from this node's."""

    exit_code = 8


class DataError(P2PNodeError):
    """Training text is missing, unreadable, or not the text the run was started with."""

    exit_code = 9


class SourceAwayError(DataError):
    """Where the text comes from does not answer, or breaks off again and again; it may return."""


class CheckpointError(P2PNodeError):
    """A checkpoint cannot be read or written, or is not what it claims to be."""

    exit_code = 10


class DiskFullError(CheckpointError):
    """There is no room for a checkpoint at the moment; what is there stays."""


class AddressInUseError(P2PNodeError):
    """A port this process wants to listen on is taken, or the address is not this machine's."""

    exit_code = 11


class ArithmeticUnsoundError(P2PNodeError):
    """This machine does not compute the specified bits (probe, gate or floating-point mode)."""

    exit_code = 12


class DivergenceError(P2PNodeError):
    """This node's state differs from the group's and recomputation showed this node to be wrong."""

    exit_code = 13


class NonFiniteError(P2PNodeError):
    """Training produced NaN or infinity, confirmed by a second node; the run ended before it."""

    exit_code = 14


class IdentityError(P2PNodeError):
    """The identity file is missing, damaged, in use elsewhere, or readable by other users."""

    exit_code = 15


class LedgerError(P2PNodeError):
    """A ledger is damaged, or the run it tells of did not come out as it says."""

    exit_code = 18


class RehearsalError(P2PNodeError):
    """A rehearsed run broke the promise: a fault of the protocol was found."""

    exit_code = 20


class BenchmarkError(P2PNodeError):
    """A benchmark could not be made, or what it carried arrived changed."""

    exit_code = 21


class MemoryNeedError(P2PNodeError):
    """The run does not fit into this machine's memory."""

    exit_code = 16


class ExportError(P2PNodeError):
    """A model cannot be written in another tool's format, or an exported one cannot be read."""

    exit_code = 17


class PeerError(P2PNodeError):
    """A peer sent something malformed, oversized or contradictory: it is dropped, we go on."""
