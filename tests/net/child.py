"""A mesh in a process of its own, for tests that kill or stop it or put it into another network.

Speaks one JSON object a line: {"key": hex} first; {"signal": hex} both ways; {"members": {id: key}}
from the parent; {"up": hex} and {"down": hex} to it. Answers each message with the same message, or
if told {"quiet": true}, tells its hash ({"got": hex}); {"send": [id, hex]} has it send one, and
{"hold": [seconds, times]} holds its event loop for so long, so often.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import sys
import time

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from p2pnode.limits import LIMITS
from p2pnode.net.events import LinkDown, LinkUp, MeshEvent, Priority, Received
from p2pnode.net.ice import IceMode, IcePolicy
from p2pnode.net.ice_servers import IceServer
from p2pnode.net.mesh import Mesh
from p2pnode.net.signals import decode_signal, encode_signal

FAST = dataclasses.replace(LIMITS, silence=3.0, heartbeat=0.2, reconnect=0.5, handshake=5.0)


def say(**what: object) -> None:
    print(json.dumps(what), flush=True)


async def main(me: bytes, mode: str, servers: list[str]) -> None:
    loop = asyncio.get_running_loop()
    key = X25519PrivateKey.generate()
    quiet = False

    def on_event(event: MeshEvent) -> None:
        if isinstance(event, LinkUp):
            say(up=event.peer.hex(), turn=mesh.via_turn(event.peer))
        elif isinstance(event, LinkDown):
            say(down=event.peer.hex(), reason=event.reason)
        elif isinstance(event, Received) and quiet:
            say(got=hashlib.sha256(event.message).hexdigest())
        elif isinstance(event, Received):
            mesh.send(event.peer, [event.message], Priority.SHARD)

    mesh = Mesh(
        me,
        on_event=on_event,
        send_signal=lambda peer, signal: say(to=peer.hex(), signal=encode_signal(signal).hex()),
        ice=IcePolicy(mode=IceMode(mode), servers=[IceServer.parse(url) for url in servers]),
        relay_key=key,
        limits=FAST,
    )
    mesh.start()
    say(key=key.public_key().public_bytes_raw().hex())
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        told = json.loads(line)
        if "members" in told:
            mesh.set_members(
                {bytes.fromhex(p): bytes.fromhex(k) for p, k in told["members"].items()}
            )
        elif "send" in told:
            peer, message = map(bytes.fromhex, told["send"])
            mesh.send(peer, [message], Priority.SHARD)
        elif "hold" in told:
            seconds, times = told["hold"]
            for _ in range(times):
                time.sleep(seconds)  # noqa: ASYNC251
                await asyncio.sleep(0.1)
            say(held=times)
        elif "quiet" in told:
            quiet = told["quiet"]
        else:
            mesh.signal(bytes.fromhex(told["from"]), decode_signal(bytes.fromhex(told["signal"])))
    await mesh.close()


if __name__ == "__main__":
    asyncio.run(main(bytes.fromhex(sys.argv[1]), *json.loads(sys.argv[2])))
