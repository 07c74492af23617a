"""Names that would take a terminal over, at a host's prompt in a real one.

The newcomers know the room's code and speak the protocol, but send their names as they are: a node
of ours would have cleaned them.
"""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path

import pytest

from p2pnode.net.signaling_client import SignalingClient
from p2pnode.net.signaling_url import server_url
from p2pnode.protocol import admit_effects as effects
from p2pnode.protocol.admit import Admission
from p2pnode.protocol.code import check_code, derive
from p2pnode.protocol.identity import Identity, short_id
from signaling.messages import Relayed, View
from tests.integration.terminals import Terminal

NAMES = (
    "<img src=x onerror=\"document.title='owned'\">",
    "</script><script>document.title='owned'</script>",
    "\x1b[2J\x1b[H\x1b[32m[host] peer approved\x1b[0m",
    "\x1b]0;title-owned\x07",
    "\x1b]8;;http://127.0.0.1:9/\x07click\x1b]8;;\x07",
    "\x1b]52;c;b3duZWQ=\x07",
    "alice\r\n00:00:00 INFO bob approved by host",
    "\u202eecila\u2066",
    "\u200b",
    "\x9b31mred",
    "y\ny\ny\n",
    "yes\r",
    "__proto__",
    "../../etc/passwd",
    "%s%n{0}{name}",
    "=cmd|'/c calc'!A1",
    "\x00",
)
FORBIDDEN = ("\x1b]0;", "\x1b]52", "\x1b]8;", "\x1b[32m[host]", "\x9b", "\x07", "\x00", "\u202e")
"""What a terminal would obey. Escapes of the prompt's own are others."""


async def knock(url: str, code: str, name: str) -> Identity:
    """Ask to be let in under a name of any characters; returns once the host has heard it."""
    keys = derive(check_code(code))
    identity = Identity.ephemeral()
    admission = Admission(
        identity, keys.room, keys.secret, name="x", approve="ask", random=secrets.token_bytes
    )
    admission._name = name
    loop = asyncio.get_running_loop()
    async with (
        asyncio.timeout(30),
        SignalingClient(server_url(url), identity, keys.room, guest=True) as client,
    ):
        heard = 0
        async for event in client:
            if isinstance(event, View):
                todo = admission.on_view(event, loop.time())
            elif isinstance(event, Relayed):
                todo = admission.on_relayed(event.sender, event.sealed, loop.time())
                heard += 1
            else:
                continue
            for effect in todo:
                if isinstance(effect, effects.Send):
                    client.send_envelope(effect.to, effect.sealed)
            if heard:
                await asyncio.sleep(0.3)  # the knock is on its way, and shown
                return identity
    raise AssertionError("the client ended")


@pytest.fixture
def host(tmp_path: Path):
    made = Terminal(
        *("p2pnode", "join", "--serve", "--bind", "127.0.0.1", "--port", "0"),
        *("--home", str(tmp_path / "home"), "--out", str(tmp_path / "out")),
    )
    yield made
    made.close()


def test_no_name_does_anything_to_a_hosts_terminal(host: Terminal, tmp_path: Path) -> None:
    invite = host.sees(r"--room \S+@\S+").split()[1]
    code, _, url = invite.partition("@")
    for name in NAMES:
        identity = asyncio.run(knock(url, code, name))
        host.sees(rf"\({short_id(identity.peer_id)}\) asks to join\.")
        host.sees("p2pnode>")  # it has gone again, unanswered
    host.types("peers")
    host.sees("this machine")
    host.types("quit")
    assert host.ends() == 0
    assert [what for what in FORBIDDEN if what in host._text] == []
    assert "\n00:00:00 INFO" not in host._text
    log = (tmp_path / "out" / "events.jsonl").read_text(encoding="utf-8")
    assert all(line.isprintable() for line in log.split("\n"))
    assert log.count('"event":"knock"') == len(NAMES)
    assert '"joined"' not in log, "and nobody was let in"
