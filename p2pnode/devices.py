"""The devices this machine's owner has decided about, kept in the home folder.

A device is a node's key, by its peer id. Known ones were let in at the prompt, hosts' rooms were
entered without a code, blocked ones are never asked about again. May import: private_file, errors,
protocol.identity, protocol.text.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from p2pnode.errors import IdentityError
from p2pnode.private_file import write_private
from p2pnode.protocol.identity import PeerId, short_id
from p2pnode.protocol.text import clean

DEVICES = 4096
"""Devices remembered; beyond it the oldest known one is forgotten, then the oldest blocked one."""
MAX_BYTES = 2 * 1024 * 1024


class Device(msgspec.Struct, frozen=True):
    """One device. `times`: how often it was let in."""

    id: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    name: Annotated[str, Meta(max_length=128)]
    """What it called itself at first sight; others may call themselves the same."""
    blocked: bool = False
    times: Annotated[int, Meta(ge=0)] = 0
    host: bool = False
    """Its owner and this one have compared words, and this machine entered its room."""

    @property
    def peer(self) -> PeerId:
        return bytes.fromhex(self.id)

    @property
    def short(self) -> str:
        return short_id(self.peer)


_decoder = msgspec.json.Decoder(list[Device])


class Devices:
    """The file `home`/devices.json. It is read anew for every question and every change, so that
    a running node and a command do not undo each other's."""

    def __init__(self, home: Path) -> None:
        self.path = home / "devices.json"

    def all(self) -> list[Device]:
        """In the order of first sight. Raises IdentityError for a damaged file: to take it for an
        empty one would let the blocked ask again."""
        try:
            raw = self.path.read_bytes()
            if len(raw) > MAX_BYTES:
                raise ValueError("too long")
            return [msgspec.structs.replace(d, name=clean(d.name)) for d in _decoder.decode(raw)]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise IdentityError(f"Cannot read {self.path}: {error.strerror}.") from None
        except (ValueError, msgspec.MsgspecError, RecursionError) as error:
            raise IdentityError(
                f"{self.path} is damaged ({clean(str(error), 120)}). Restore it from a copy; or "
                "remove it to forget all known and blocked devices."
            ) from None

    def known(self) -> frozenset[PeerId]:
        """Let in before. Raises IdentityError, as `all`."""
        return frozenset(
            device.peer for device in self.all() if device.times and not device.blocked
        )

    def hosts(self) -> frozenset[PeerId]:
        """Whose rooms were entered without a code. Raises IdentityError, as `all`."""
        return frozenset(device.peer for device in self.all() if device.host and not device.blocked)

    def blocked(self) -> frozenset[PeerId]:
        """Never asked about again. Raises IdentityError, as `all`."""
        return frozenset(device.peer for device in self.all() if device.blocked)

    def decide(self, peer: PeerId, name: str, verdict: Literal["known", "blocked", "host"]) -> None:
        """Let in once more, followed as a host, or blocked from now on. Raises OSError,
        IdentityError."""
        devices = {device.peer: device for device in self.all()}
        old = devices.get(peer) or Device(peer.hex(), clean(name))
        devices[peer] = Device(
            old.id,
            old.name,
            blocked=verdict == "blocked",
            times=old.times + (verdict == "known"),
            host=old.host or verdict == "host",
        )
        kept = list(devices.values())
        while len(kept) > DEVICES:
            kept.remove(next((device for device in kept if not device.blocked), kept[0]))
        self._write(kept)

    def forget(self, peer: PeerId) -> None:
        """As if it had never been seen. Raises OSError, IdentityError."""
        devices = self.all()
        kept = [device for device in devices if device.peer != peer]
        if len(kept) < len(devices):
            self._write(kept)

    def _write(self, devices: list[Device]) -> None:
        write_private(self.path, msgspec.json.format(msgspec.json.encode(devices)))
