"""`devices`: lists and changes what this machine's owner has decided about others.

May import: everything but cli and demo.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal

from p2pnode.devices import Device, Devices
from p2pnode.errors import IdentityError, UsageError

Action = Literal["list", "forget", "block", "allow"]


def devices(home: Path, action: Action, identifier: str | None) -> int:
    """Raises UsageError for an id that names no device, IdentityError for an unusable file."""
    store = Devices(home)
    if action == "list":
        if identifier is not None:
            raise UsageError("`devices list` takes no id.")
        devices = store.all()
        for device in devices:
            print(_line(device))
        if not devices:
            print("No machine has been let in, blocked or followed yet.", file=sys.stderr)
        return 0
    device = _find(store, identifier)
    try:
        if action == "forget":
            store.forget(device.peer)
        else:
            store.decide(device.peer, device.name, "blocked" if action == "block" else "known")
    except OSError as error:
        raise IdentityError(f"Cannot write {store.path}: {error.strerror}.") from None
    done = {"forget": "forgotten", "block": "blocked", "allow": "known"}[action]
    print(f"{device.short}  {device.name}  is {done}; nodes that run learn it at their next start")
    return 0


def _find(store: Devices, identifier: str | None) -> Device:
    if not identifier:
        raise UsageError("Name a device by its id, as `devices list` shows it.")
    found = [device for device in store.all() if device.short.startswith(identifier.lower())]
    if len(found) != 1:
        count = f"{len(found)} devices have" if found else "No device has"
        raise UsageError(
            f"{count} an id that begins with {identifier!r}; `devices list` shows them."
        )
    return found[0]


def _line(device: Device) -> str:
    state = "blocked" if device.blocked else "known" if device.times else "host"
    return f"{device.short}  {state:<7}  let in {device.times} times  {device.name}"
