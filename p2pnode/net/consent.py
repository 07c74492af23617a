"""Consent: a connection goes on only while the other side answers (RFC 7675).

aioice gives each question half a second, so a path that is slow while bulk data fills it, or an
event loop that is held now and then, looks dead. Here an answer may take as long as the RFC leaves.
Whether the *peer* is alive is not judged here but by the heartbeats of the link.
May import: nothing of ours.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import Any

from aioice import stun

log = logging.getLogger(__name__)

INTERVAL = 5.0
"""Seconds between questions, give or take a fifth (RFC 7675, section 5.1)."""

RETRANSMISSIONS = 2
"""With them a question waits 0.5 + 1 + 2 = 3.5 s for its answer."""

FAILURES = 3
"""So many unanswered questions in a row end the connection: at most 3 × (6 + 3.5) s, which is the
30 s of the RFC. Questions are counted, not seconds: a machine that slept has asked nothing."""


async def keep_consent(ice: Any, interval: float = INTERVAL) -> None:
    """In place of aioice.Connection.query_consent: ask until nobody answers, then close."""
    failures = 0
    while failures < FAILURES:
        await asyncio.sleep(interval * random.uniform(0.8, 1.2))
        for pair in list(ice._nominated.values()):
            try:
                await pair.protocol.request(
                    ice.build_request(pair, nominate=False),
                    pair.remote_addr,
                    integrity_key=ice.remote_password.encode(),
                    retransmissions=RETRANSMISSIONS,
                )
            except stun.TransactionError:
                failures += 1
            else:
                failures = 0
    log.info("the other side answers no more: the connection ends")
    ice._query_consent_task = None  # close() would wait for this very task
    await ice.close()
