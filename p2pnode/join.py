"""`join`: prepares what a node needs, runs it, and turns its end into an exit code.

May import: everything but cli and demo; the signaling server only for `--serve`.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator

from p2pnode.config import RunOptions
from p2pnode.door import Ticket
from p2pnode.errors import AddressInUseError, CheckpointError, ExportError, UsageError
from p2pnode.folder_lock import FolderLock, PlaceLock
from p2pnode.net.ice import IcePolicy
from p2pnode.net.nearby import find_nearby
from p2pnode.net.signaling_url import is_loopback, server_url
from p2pnode.node import Node
from p2pnode.node_config import NodeConfig, TextChoice
from p2pnode.polite import ending_signals
from p2pnode.protocol.code import RoomKeys, check_code, derive, generate_code
from p2pnode.protocol.identity import Identity, short_id
from p2pnode.texts import check_choice
from p2pnode.ui.console import EventLog, open_console
from p2pnode.ui.trackers import load_tool
from p2pnode.worker import Urgency, Worker


async def join(
    config: NodeConfig,
    options: RunOptions,
    text: TextChoice,
    resume: str | None,
    serve: tuple[str, int] | None,
) -> int:
    """Run one node to its end. `serve`: address and port of a signaling server to run here."""
    if config.track is not None:
        load_tool(config.track, config.out)
    # Before anything is started or anybody is asked:
    options.check()
    _check_paths(config, resume)
    worker = Worker()
    try:
        await worker.submit(Urgency.EXCHANGE, check_choice, text)
        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(FolderLock(config.out))
            if serve is not None:
                config = await stack.enter_async_context(_served(config, *serve))
            _check_nearby(config)
            return await _join(config, options, text, resume, worker)
    finally:
        worker.close()


async def _join(
    config: NodeConfig, options: RunOptions, text: TextChoice, resume: str | None, worker: Worker
) -> int:
    server = server_url(config.signal)
    identity = Identity.load_or_create(config.home / "identity.key")
    if not config.name:
        config = dataclasses.replace(config, name=f"node-{short_id(identity.peer_id)[:4]}")
    code = check_code(config.code) if config.code else generate_code()
    # scrypt takes half a second: off the loop.
    keys = await worker.submit(Urgency.EXCHANGE, derive, code)
    if config.nearby:
        room = await find_nearby(server, keys.room, guest=config.guest)
        if room != keys.room:  # its host tells the secret once it has let this node in
            config, code, keys = dataclasses.replace(config, guest=True), "", RoomKeys(room, None)
    ticket = Ticket(config, identity, code, keys, server)
    place = PlaceLock(config.home, keys.room)
    with place, open_console(config.json_events, time.monotonic) as shown:
        console = EventLog(shown, config.out / "events.jsonl", time.monotonic)
        node = Node(ticket, options, text, resume, worker=worker, console=console)
        with _signals(node):
            await node.run()
    return 0


def _check_paths(config: NodeConfig, resume: str | None) -> None:
    """Raises CheckpointError and ExportError for a --resume or --init that is not there."""
    if resume not in (None, "auto") and not os.path.exists(resume):
        raise CheckpointError(f"--resume: there is no file or folder {resume!r}.")
    if config.init is not None and not config.init.is_dir():
        raise ExportError(f"--init: there is no folder {os.fspath(config.init)!r}.")


def _check_nearby(config: NodeConfig) -> None:
    """Raises UsageError where everyone behind a public address would be let in unseen."""
    if config.nearby and config.approve == "all" and not is_loopback(server_url(config.signal)):
        raise UsageError(
            "--approve all would let in everyone behind the same public address: with --nearby it "
            "works only at a server on this machine (127.0.0.1). Leave it out, or use a room code."
        )


@contextlib.contextmanager
def _signals(node: Node) -> Iterator[None]:
    """Ctrl-C, a closed terminal and a polite kill all leave cleanly and save."""
    loop = asyncio.get_running_loop()
    numbers = ending_signals()
    previous = {}
    for number in numbers:
        try:
            loop.add_signal_handler(number, node.leave)
        except NotImplementedError:  # Windows: only the classic handlers exist
            previous[number] = signal.signal(
                number, lambda *_: loop.call_soon_threadsafe(node.leave)
            )
    try:
        yield
    finally:
        for number in numbers:
            if number in previous:
                signal.signal(number, previous[number])
            else:
                loop.remove_signal_handler(number)


@contextlib.asynccontextmanager
async def _served(config: NodeConfig, bind: str, port: int) -> AsyncIterator[NodeConfig]:
    """Run the signaling server in this process; yields the config that uses it.

    Our own node goes through the address that the others use too: on loopback it would offer its
    peers loopback addresses only.
    """
    from signaling.app import BindError, SignalingServer

    try:
        async with SignalingServer(bind, port, group_private=config.nearby) as server:
            address = bind
            if bind in ("0.0.0.0", "::"):
                address = IcePolicy().addresses()[0]
            host = f"[{address}]" if ":" in address else address
            url = f"http://{host}:{server.port}"
            print(f"Signaling server at {url}", file=sys.stderr)
            if config.nearby:
                print(
                    "warning: whoever reaches this server over a private address can knock without "
                    "a code (--nearby).",
                    file=sys.stderr,
                )
            yield dataclasses.replace(config, signal=url)
    except BindError as error:
        raise AddressInUseError(str(error)) from None
