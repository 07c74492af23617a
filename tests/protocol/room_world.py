"""Admission at several nodes around the server's real core, without sockets or time."""

from __future__ import annotations

import secrets
from collections import deque

from p2pnode.protocol import admit_effects as effects
from p2pnode.protocol.admit import Admission
from p2pnode.protocol.identity import Identity
from signaling import rooms
from signaling.grouping import Origin
from signaling.messages import (
    PROTOCOL,
    Dismiss,
    Publish,
    Refused,
    Register,
    Relay,
    Relayed,
    View,
    encode,
    registration_parts,
)

ROOM, SECRET = b"r" * 32, b"s" * 32


class Node:
    """One node's admission and what became of it."""

    def __init__(self, name, approve="ask", identity=None, secret=SECRET, **more):
        self.name = name
        self.identity = identity or Identity.ephemeral()
        self.id = self.identity.peer_id
        self.admission = Admission(
            *(self.identity, ROOM, secret),
            name=name,
            approve=approve,
            random=secrets.token_bytes,
            **more,
        )
        self.roster_blob = None if self.admission.roster is None else more["saved"].signed
        self.number = None
        self.view = None
        self.server_refusal = None
        self.log = []
        self.is_started = False

    def restarted(self, approve="ask", **more):
        """The same machine after a restart, with the roster that it had saved."""
        saved = self.admission.roster
        return Node(self.name, approve, identity=self.identity, saved=saved, **more)

    def of(self, kind):
        return [effect for effect in self.log if isinstance(effect, kind)]

    @property
    def error(self):
        refusals = self.of(effects.Refused)
        return refusals[-1].error if refusals else None


class World:
    """The server and its connections. `tamper(sender, to, sealed)` may replace what is relayed."""

    def __init__(self):
        self.now = 1000.0
        self.numbers = 0
        self.online = {}
        self.tamper = None
        self.relayed = []
        self.server = rooms.Rooms(self.now)
        self.way = deque()
        self.is_carrying = False

    def restart_server(self):
        """A new, empty server; every connection is gone."""
        for node in self.online.values():
            node.number = None
        self.online = {}
        self.server = rooms.Rooms(self.now)

    def connect(self, node):
        self.numbers += 1
        number = node.number = self.numbers
        node.server_refusal = None
        self.online[number] = node
        nonce = secrets.token_bytes(32)
        self.server.on_connect(number, Origin("198.51.100.1", None), nonce, self.now)
        register = Register(
            PROTOCOL,
            ROOM,
            node.identity.key,
            node.identity.sign(b"register", *registration_parts(nonce, ROOM)),
            "guest" if node.view is not None and node.view.role != "host" else "any",
            node.roster_blob,
        )
        beginning = [] if node.is_started else node.admission.start()
        node.is_started = True
        self.frame(node, register)
        self.carry_out(node, beginning)

    def disconnect(self, node):
        del self.online[node.number]
        self.serve(self.server.on_disconnect(node.number, self.now))
        node.number = None

    def frame(self, node, message):
        """Frames arrive in the order in which all nodes sent them."""
        self.way.append((node, node.number, encode(message)))
        if self.is_carrying:
            return
        self.is_carrying = True
        while self.way:
            sender, number, raw = self.way.popleft()
            if number is not None and sender.number == number:
                self.serve(self.server.on_frame(number, raw, self.now))
        self.is_carrying = False

    def serve(self, server_effects):
        for effect in server_effects:
            node = self.online.get(effect.connection)
            if node is None:
                continue
            if isinstance(effect, rooms.Close):
                del self.online[effect.connection]
                node.number = None
                continue
            message = effect.message
            if isinstance(message, View):
                node.view = message
                self.carry_out(node, node.admission.on_view(message, self.now))
            elif isinstance(message, Relayed):
                self.relay(node, message)
            elif isinstance(message, Refused):
                node.server_refusal = message.reason

    def relay(self, node, message):
        sealed = message.sealed
        self.relayed.append((message.sender, node.id, sealed))
        if self.tamper is not None:
            sealed = self.tamper(message.sender, node.id, sealed)
        if sealed is not None:
            self.carry_out(node, node.admission.on_relayed(message.sender, sealed, self.now))

    def carry_out(self, node, admission_effects):
        node.log += admission_effects
        for effect in admission_effects:
            if isinstance(effect, effects.Send):
                self.frame(node, Relay(effect.to, effect.sealed))
            elif isinstance(effect, effects.Publish):
                node.roster_blob = effect.signed
                self.frame(node, Publish(effect.signed))
            elif isinstance(effect, effects.DismissPeer):
                self.frame(node, Dismiss(effect.peer))
            elif isinstance(effect, effects.RosterChanged):
                node.roster_blob = effect.roster.signed

    def tick(self, seconds):
        """Let time pass for everyone."""
        self.now += seconds
        self.serve(self.server.on_tick(self.now))
        for node in list(self.online.values()):
            self.carry_out(node, node.admission.on_tick(self.now))

    def room_of(self, *nodes):
        """Connect nodes one after the other, the first being host; all are approved."""
        for node in nodes:
            self.connect(node)
            host = nodes[0].admission
            for peer in list(host.waiting):
                self.carry_out(nodes[0], host.approve(peer))
        return nodes


def secret_of(node):
    return node.admission._post._inside


def members_of(node):
    return [member.name for member in node.admission.roster.members]
