"""The settings of one machine (NodeConfig) and where its files lie. Nothing here changes a result.

May import: errors.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from p2pnode.errors import UsageError

Approve = Literal["ask", "known", "all"]


@dataclasses.dataclass(frozen=True)
class TextChoice:
    """What this machine's owner says of text: `--data`, `--column`, `--tokenizer`."""

    data: str | None = None
    """A path, a folder, a pattern or a URL; None: what the run needs, or the built-in text."""
    column: str = "text"
    tokenizer: str | None = None
    """Path or hub name; None: that of the run, or bytes."""


@dataclasses.dataclass(frozen=True)
class NodeConfig:
    """What `join` was told about this machine."""

    signal: str
    """Address of the signaling server, as `net.signaling_url.server_url` reads it."""
    code: str | None
    """Room code; None lets a host make one."""
    name: str
    home: Path
    """Folder of this node's key, of its rooms' rosters and of the devices it knows."""
    out: Path
    """Folder of checkpoints and logs; nothing is written elsewhere but the key and the cache."""
    nearby: bool = False
    """Meet nodes behind the same public address, without a code."""
    guest: bool = False
    """Never become host: end with an error when the room has none."""
    approve: Approve = "ask"
    start_when: int | None = None
    """Start the run by itself when this many nodes (the host included) are connected."""
    reference: bool = False
    """Compute with the numpy reference kernels instead of numba."""
    threads: int | None = None
    """Threads that compute; None: physical cores, less one for the network."""
    addresses: Literal["auto", "loopback", "all", "relay"] = "auto"
    ice_servers: tuple[str, ...] = ()
    """STUN and TURN servers, as `net.ice_servers.IceServer.parse` reads them."""
    init: Path | None = None
    """Host: folder of an exported model whose weights the run starts from."""
    audit: float = 0.01
    """Share of other nodes' sets that are computed again here, 0 to 1."""
    checkpoint_every: int = 100
    keep: int = 3
    """Checkpoints kept by rotation."""
    keep_best: bool = True
    """Also keep the state of the lowest held-out loss."""
    sample_every: int = 0
    """Steps between samples of text; 0: none."""
    sample_prompt: str = "The "
    track: str | None = None
    """Tool that figures are handed to (ui.trackers)."""
    json_events: bool = False
    """Write events as JSON lines to standard output instead of sentences."""


def default_home() -> Path:
    """Folder of the long-lived key: P2PNODE_HOME, or the platform's folder for settings. Raises
    UsageError if this user has no home."""
    if home := os.environ.get("P2PNODE_HOME"):
        return Path(home)
    try:
        if sys.platform == "win32":
            base = Path(os.environ.get("APPDATA") or Path.home() / "AppData" / "Roaming")
        elif sys.platform == "darwin":
            base = Path.home() / "Library" / "Application Support"
        else:
            base = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    except RuntimeError:
        raise UsageError(
            "This user has no home folder; say by --home or P2PNODE_HOME where this machine's key "
            "is to lie."
        ) from None
    return base / "p2pnode"


def signal_url(given: str | None) -> str:
    """The signaling server to use: the flag, then P2PNODE_SIGNAL, then an error that explains."""
    url = given or os.environ.get("P2PNODE_SIGNAL")
    if not url:
        raise UsageError(
            "No signaling server given. On the first machine run `python -m p2pnode join --serve`: "
            "it starts one and prints the exact command for the others. Or name a server with "
            "--signal http://HOST:8765 or the environment variable P2PNODE_SIGNAL."
        )
    return url.rstrip("/")


def ice_servers(stun: Sequence[str], turn: Sequence[str]) -> tuple[str, ...]:
    """Addresses from --stun and --turn; without --turn those in P2PNODE_TURN, split at spaces (a
    password on a command line can be read by every user of the machine)."""
    turn = turn or os.environ.get("P2PNODE_TURN", "").split()
    for text in stun:
        if not text.startswith("stun:"):
            raise UsageError(f"--stun {text}: write stun:HOST:PORT")
    for text in turn:
        if not text.startswith(("turn:", "turns:")):
            raise UsageError(
                "A TURN server is written turn:USER:PASSWORD@HOST:PORT (or turns:, for TLS)."
            )
    return (*stun, *turn)


def room_code(given: str | None, file: Path | None) -> str | None:
    """The room code from the flag, a file, or P2PNODE_ROOM, in this order; None if nowhere."""
    if given is not None and file is not None:
        raise UsageError("Give the room code by --room or by --room-file, not by both.")
    if file is not None:
        try:
            return file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"Cannot read the room code from {file}: {error}.") from None
    return given if given is not None else os.environ.get("P2PNODE_ROOM") or None
