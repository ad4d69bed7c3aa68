"""Who answers at a member's address, asked on a connection of its own."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from quorumlog.config import MemberAddress
from quorumlog.net.hello import Hello
from quorumlog.net.peer_hello import Identity, identity_of
from quorumlog.server.peers.dialler import Dialler

PROBE_TIMEOUT_S = 1.0
"""Below the time in which whoever waits for the outcome gives its own connection up."""


async def who_answers(
    dialler: Dialler, group: str, address: MemberAddress, rival: Identity, sentence: str
) -> Identity | None:
    """None if nobody greets in time. Whoever it is is told of its rival, unless it is that itself."""
    hello = Hello(role="client", run_id=rival.run_id, rival=sentence)
    with suppress(OSError, UnicodeError):
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            for host in await dialler.names.addresses_of(address.host):
                with suppress(OSError):
                    answer = await dialler.ask(address, host, group, hello)
                    return None if answer is None else identity_of(answer)
    return None
