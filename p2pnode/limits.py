"""Every number that bounds what others can make this node do, with its reason.

May import: nothing of ours.
"""

from __future__ import annotations

import dataclasses

KIB = 1024
MIB = 1024 * KIB


@dataclasses.dataclass(frozen=True)
class Limits:
    """Bounds shared by the node's parts. Sizes in bytes, times in seconds."""

    fragment_bytes: int = 48 * KIB
    """Payload of one data-channel message; under the 64 KiB that old peers announce."""
    control_bytes: int = 1 * MIB
    """Largest control message (plan, evidence); the largest roster and 1,024 slots fit."""
    bulk_bytes: int = 256 * MIB
    """Largest bulk message (one shard or state part), before the run's sizes narrow it."""
    in_flight_bytes: int = 1 * MIB
    """Most bytes handed to one connection and not yet acknowledged by it: aiortc sends all
    channels from one queue, so a heartbeat waits behind them."""
    in_flight_seconds: float = 0.5
    """The same bound in time at the measured rate, beyond what the path's own delay holds; the
    smaller of the two holds."""
    peers: int = 64
    """Largest roster: a full mesh beyond it has no use on home lines."""
    silence: float = 8.0
    """A peer from which no frame came for this long is dropped; with the scheduling delay of a
    busy machine this stays within the promised 10 s."""
    stall: float = 16.0
    """A link on which nothing that was sent gets acknowledged for this long is made anew, however
    lively its heartbeats: two silences, so that a peer that is held up is not mistaken for it."""
    heartbeat: float = 1.0
    """Interval of status messages: several must be lost before silence is reached."""
    handshakes: int = 3
    """Connection attempts at once: DTLS handshakes are CPU-heavy on old machines."""
    gather: float = 2.0
    """Cap on ICE gathering; aioice itself would wait up to 5 s for a STUN server."""
    handshake: float = 20.0
    """Each half of a connection attempt (waiting for the answer; connecting) may take this long:
    a full roster that connects three at a time on slow machines fits."""
    reconnect: float = 30.0
    """Longest pause between connection attempts to one peer; the first is half a second."""
    sdp_candidates: int = 32
    """Addresses taken from one remote session description: each costs connectivity checks."""
    partial_messages: int = 2
    """Unfinished messages per channel: one of each priority that shares the bulk channel."""
    queued_bytes: int = 1024 * MIB
    """Most bytes waiting for one peer. They are views of arrays that exist anyway."""
    message_rate: float = 2_000.0
    """Messages a second one peer may send us in the long run; a short run of tiny steps needs
    a few hundred."""
    message_burst: float = 10_000.0
    """Messages that may come at once, as they do after this node was suspended."""
    relay_in_flight_bytes: int = 256 * KIB
    """In-flight bound of a relayed link: eight of them fit the relay's queue for one peer."""
    relay_queue_bytes: int = 2 * MIB
    """Relayed frames that wait at the relay for one peer; more are dropped."""
    kept_steps: int = 8
    """Averaged shards kept for peers that fell behind."""
    kept_bytes: int = 256 * MIB
    """Those that may be in memory; the older ones lie in a file."""
    name_chars: int = 32
    """Longest peer name shown."""
    data_files: int = 16_384
    """Files in a data folder; the manifest names each and every node hashes each."""
    data_bytes: int = 512 * MIB
    """Training text, which each node holds in memory."""
    data_entries: int = 200_000
    """Directory entries looked at while a data folder is walked: /, by mistake, ends soon."""
    manifest_bytes: int = 8 * MIB
    """Canonical manifest: data_files entries with long names fit."""
    shared_data_bytes: int = 64 * MIB
    """Text handed to a peer that lacks it; larger sets are copied by other means."""
    data_groups: int = 65_536
    """Row groups that a run reads, of tables; the manifest names each: 8 MiB hold as many."""
    group_bytes: int = 256 * MIB
    """Text of one row group, which is read as a whole; a thousand web pages have 4 MB."""
    whole_file_bytes: int = 1024 * MIB
    """A file that its server sends only as a whole; it goes to a temporary file."""
    block_cache_bytes: int = 16 * MIB
    """Blocks of one remote file kept in memory."""
    token_memory_bytes: int = 256 * MIB
    """Encoded row groups kept in memory; a hundred of a thousand web pages have 200 MB."""
    token_cache_bytes: int = 4 * 1024 * MIB
    """Encoded row groups kept on disk; 2 * 10^9 tokens of two bytes."""
    tokenizer_bytes: int = 16 * MIB
    """A tokenizer file: those of 128,000 tokens have 9 MB."""
    vocabulary: int = 131_072
    """Tokens of a vocabulary, as `ModelConfig.vocab` bounds them."""
    checkpoint_header_bytes: int = 1 * MIB
    """Header of a checkpoint: three entries for each tensor of the deepest model fit."""
    metrics_bytes: int = 64 * MIB
    """File of metrics; an older one of the same size is kept beside it."""
    metrics_line_bytes: int = 64 * KIB
    """One line of it: a full roster fits."""
    ledger_line_bytes: int = 32 * KIB
    """One line of a ledger: a configuration with all its past, and checks of the deepest model's
    tensors. A line of `tiny` has 0.9 KB."""
    ledger_loose: int = 10_000
    """Steps that wait in memory until somebody hands over the ledger's lines before them."""
    ledger_part_bytes: int = 256 * KIB
    """Lines handed over in one message."""
    ledger_signature_bytes: int = 4 * MIB
    """File of who signed a ledger: 64 members, 200 times each; then the newest of each."""
    bundles: int = 8
    """Reproduction bundles kept in a folder; a machine that is often wrong fills no disk."""
    bundle_case_bytes: int = 16 * MIB
    """Text of a bundle: 2 x 131,071 token ids and the evidence of a slot fit."""


LIMITS = Limits()
