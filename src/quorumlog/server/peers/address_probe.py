"""Who answers at a member's address, asked on a connection of its own."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from quorumlog.config import MemberAddress
from quorumlog.net.connection import Connection, LoopTurn
from quorumlog.net.frame import Frame
from quorumlog.net.hello import Hello, HelloResponse
from quorumlog.net.peer_hello import Identity, identity_of
from quorumlog.server.peers.name_lookup import NameLookup

PROBE_TIMEOUT_S = 1.0
"""Below the time in which whoever waits for the outcome gives its own connection up."""


async def who_answers(
    loop_turn: LoopTurn,
    names: NameLookup,
    group: str,
    address: MemberAddress,
    rival: Identity,
    sentence: str,
) -> Identity | None:
    """None if nobody greets in time. Whoever it is is told of its rival, unless it is that itself."""
    loop = asyncio.get_running_loop()
    greeting: asyncio.Future[Identity | None] = loop.create_future()

    def took(connection: Connection, frame: Frame) -> None:
        if not greeting.done() and isinstance(frame.message, HelloResponse):
            greeting.set_result(identity_of(frame.message))

    def lost(connection: Connection, closed_by_peer: bool) -> None:
        if not greeting.done():
            greeting.set_result(None)

    connection = Connection(loop_turn, took, lost, f"probe->{address}")
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            for host in await names.addresses_of(address.host):
                with suppress(OSError):
                    await loop.create_connection(lambda: connection, host, address.port)
                    connection.send(group, Hello(role="client", run_id=rival.run_id, rival=sentence))
                    return await greeting
    except (OSError, TimeoutError, UnicodeError):
        pass
    finally:
        connection.abort()
    return None
