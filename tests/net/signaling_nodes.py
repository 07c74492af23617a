"""Nodes at a signaling server, real or played by a test."""

import asyncio
import random
import secrets

from aiohttp import web

from p2pnode.net.signaling_client import Offline, SignalingClient
from p2pnode.net.signaling_url import server_url
from p2pnode.protocol import admit_effects as effects
from p2pnode.protocol.admit import Admission
from p2pnode.protocol.identity import Identity
from signaling.messages import Relayed, View

ROOM, SECRET = b"r" * 32, b"s" * 32

SOON = 30.0
"""Seconds after which a test gives up."""


def client_of(server, identity=None, room=ROOM):
    address = server if isinstance(server, str) else server.url
    return SignalingClient(
        server_url(address), identity or Identity.ephemeral(), room, rng=random.Random(1)
    )


async def next_of(client, kind, wanted=lambda _: True):
    """The next event of a kind for which `wanted` holds."""
    async with asyncio.timeout(SOON):
        async for event in client:
            if isinstance(event, kind) and wanted(event):
                return event
    raise AssertionError("events ended")


class Node:
    """A node's signaling side as the real node runs it: client, admission, effects."""

    def __init__(self, name, server, approve="all", identity=None, saved=None):
        self.identity = identity or Identity.ephemeral()
        self.id = self.identity.peer_id
        self.client = client_of(server, self.identity)
        self.admission = Admission(
            *(self.identity, ROOM, SECRET),
            name=name,
            approve=approve,
            random=secrets.token_bytes,
            saved=saved,
        )
        self.log = []
        self.carry_out(self.admission.start())
        self.changed = asyncio.Event()
        self.view = None

    async def __aenter__(self):
        await self.client.__aenter__()
        self.tasks = [asyncio.create_task(self.run()), asyncio.create_task(self.tick())]
        return self

    async def __aexit__(self, *details):
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        await self.client.__aexit__(*details)

    async def run(self):
        loop = asyncio.get_running_loop()
        async for event in self.client:
            if isinstance(event, View):
                self.view = event
                self.carry_out(self.admission.on_view(event, loop.time()))
            elif isinstance(event, Relayed):
                out = self.admission.on_relayed(event.sender, event.sealed, loop.time())
                self.carry_out(out)
            elif isinstance(event, Offline):
                self.view = None
            self.changed.set()

    async def tick(self):
        while True:
            await asyncio.sleep(0.1)
            self.carry_out(self.admission.on_tick(asyncio.get_running_loop().time()))
            self.changed.set()

    def carry_out(self, out):
        self.log += out
        for effect in out:
            if isinstance(effect, effects.Send):
                self.client.send_envelope(effect.to, effect.sealed)
            elif isinstance(effect, effects.Publish):
                self.client.publish_roster(effect.signed)
            elif isinstance(effect, effects.DismissPeer):
                self.client.dismiss(effect.peer)
            elif isinstance(effect, effects.RosterChanged):
                self.client.set_roster(effect.roster.signed)

    async def until(self, condition):
        async with asyncio.timeout(SOON):
            while not condition(self):
                self.changed.clear()
                await self.changed.wait()

    def has_members(self, *nodes):
        roster = self.admission.roster
        return roster is not None and roster.ids == tuple(node.id for node in nodes)


class fake_server:
    """A WebSocket server with a given conversation. `async with` gives its address."""

    def __init__(self, conversation, path="/ws"):
        self.conversation = conversation
        self.path = path

    async def __aenter__(self):
        async def handler(request):
            ws = web.WebSocketResponse()
            await ws.prepare(request)
            await self.conversation(ws)
            await ws.close()
            return ws

        app = web.Application()
        app.router.add_get(self.path, handler)
        self.runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", 0)
        await site.start()
        return f"http://127.0.0.1:{self.runner.addresses[0][1]}"

    async def __aexit__(self, *_):
        await self.runner.cleanup()


async def failure(url):
    """The error of a first connection."""
    async with asyncio.timeout(SOON):
        try:
            async with client_of(url):
                raise AssertionError("it should not have connected")
        except AssertionError:
            raise
        except Exception as error:
            return error


async def tcp_server(respond):
    async def serve(reader, writer):
        await respond(reader, writer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    return server, server.sockets[0].getsockname()[1]
