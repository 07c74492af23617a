"""The core of the server with its connections, without sockets."""

import dataclasses

from signaling.grouping import Origin
from signaling.limits import LIMITS
from signaling.messages import Refused, Relayed, View, encode
from signaling.rooms import Close, Lend, Rooms, Send
from tests.signaling.peers import register


class Server:
    """The core with its connections; what was sent to each is kept."""

    def __init__(self, **limits):
        self.now = 100.0
        self.limits = dataclasses.replace(LIMITS, **limits)
        self.rooms = Rooms(self.now, limits=self.limits, lends=True)
        self.got = {}
        self.lent = []
        self.closed = set()
        self.count = 0

    def do(self, effects):
        for effect in effects:
            if isinstance(effect, Send):
                self.got.setdefault(effect.connection, []).append(effect.message)
            elif isinstance(effect, Lend):
                self.lent.append((effect.connection, effect.peer))
            else:
                assert isinstance(effect, Close)
                self.closed.add(effect.connection)
                self.do(self.rooms.on_disconnect(effect.connection, self.now))

    def open(self, address="192.0.2.1", group=None):
        self.count += 1
        nonce = bytes([self.count % 256]) * 32
        self.do(self.rooms.on_connect(self.count, Origin(address, group), nonce, self.now))
        return self.count, nonce

    def say(self, number, message):
        raw = message if isinstance(message, bytes) else encode(message)
        self.do(self.rooms.on_frame(number, raw, self.now))

    def join(self, identity, address="192.0.2.1", **options):
        number, nonce = self.open(address)
        self.say(number, register(identity, nonce, **options))
        return number

    def leave(self, number):
        self.do(self.rooms.on_disconnect(number, self.now))

    def tick(self, seconds):
        self.now += seconds
        self.do(self.rooms.on_tick(self.now))

    def view(self, number):
        return [m for m in self.got[number] if isinstance(m, View)][-1]

    def refusal(self, number):
        last = self.got[number][-1]
        assert (number in self.closed) == isinstance(last, Refused)
        return last.reason if isinstance(last, Refused) else None

    def mail(self, number):
        return [m for m in self.got[number] if isinstance(m, Relayed)]
