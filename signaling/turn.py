"""Time-limited credentials for TURN servers that share a secret with this server.

The scheme is coturn's `use-auth-secret`, from draft-uberti-behave-turn-rest-00: the user name is
the time of expiry and a label, the password its HMAC. Nobody has to tell the TURN server about it.
May import: limits, messages.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import time
from collections.abc import Sequence

from signaling.limits import LIMITS
from signaling.messages import DataOffer, IceServer, Loan, PeerId

_URL = re.compile(r"turns?:(\[[0-9A-Fa-f:.]+\]|[^\s:?/@\[\]]+)(:\d{1,5})?(\?transport=(udp|tcp))?")
_MAX_URLS = 8
_MIN_SECRET = 16


def turn_url(text: str) -> str:
    """`turn:HOST[:PORT][?transport=udp|tcp]`, or the same with turns:. Raises ValueError."""
    if len(text) > 256 or not _URL.fullmatch(text):
        raise ValueError(
            f"{text!r} is not the address of a TURN server; write turn:HOST:PORT (no user name)"
        )
    return text


class TurnLender:
    """Makes credentials for the given servers."""

    def __init__(
        self, urls: Sequence[str], secret: str, seconds: int = LIMITS.turn_seconds
    ) -> None:
        """urls: as `turn_url` takes them, all with the same secret. seconds: what each loan lasts.
        Raises ValueError."""
        if not 1 <= len(urls) <= _MAX_URLS:
            raise ValueError(f"between 1 and {_MAX_URLS} TURN servers can be lent")
        if len(secret) < _MIN_SECRET:
            raise ValueError(f"the secret of a TURN server has at least {_MIN_SECRET} characters")
        self._urls = tuple(turn_url(url) for url in urls)
        self._secret = secret.encode()
        self._seconds = seconds

    def lend(self, peer: PeerId, data: DataOffer | None = None) -> Loan:
        """For one peer, from now on; `data` goes with it. Its label is always the same, so that
        the TURN server can bound what one user takes, and is no peer id, which the TURN server
        need not learn."""
        label = hmac.digest(self._secret, b"label" + peer, hashlib.sha256)[:8].hex()
        # The TURN server compares this with its own clock: the one use of the time of day.
        username = f"{int(time.time()) + self._seconds}:{label}"
        password = hmac.digest(self._secret, username.encode(), hashlib.sha1)
        return Loan(
            (IceServer(self._urls, username, base64.b64encode(password).decode()),),
            self._seconds,
            data,
        )
