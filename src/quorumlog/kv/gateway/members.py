"""GatewayMembers: which members have a gateway, and where. Each member's store says so as it greets."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from quorumlog.errors import Unreachable
from quorumlog.kv.client.link import Link, LinkLost
from quorumlog.kv.requests.frames import Hello, Kind, Welcome

ASK_TIMEOUT_S = 1.0
KNOWN_S = 5.0
"""So long nobody is asked again."""
_welcome = msgspec.msgpack.Decoder(Welcome).decode


class GatewayMembers:
    def __init__(self, addresses: Sequence[tuple[str, int]]) -> None:
        """Of the members' stores."""
        self._addresses = addresses
        self._known: dict[tuple[str, int], Welcome] = {}
        self._asked_s = -KNOWN_S

    async def all(self) -> list[tuple[str, str]]:
        """(member id, URL of its gateway); of a member that does not answer, as it was."""
        if time.monotonic() - self._asked_s >= KNOWN_S:
            await asyncio.gather(*[self._ask(address) for address in self._addresses])
            self._asked_s = time.monotonic()
        found = {each.member_id: each.etcd_gateway for each in self._known.values() if each.etcd_gateway}
        return sorted(found.items())

    async def _ask(self, address: tuple[str, int]) -> None:
        with suppress(Unreachable, LinkLost, TimeoutError, msgspec.DecodeError):
            async with asyncio.timeout(ASK_TIMEOUT_S):
                link = await Link.open(*address)
                try:
                    kind, body = await link.ask(Kind.HELLO, msgspec.msgpack.encode(Hello()))
                finally:
                    link.close()
            if kind is Kind.WELCOME:
                self._known[address] = _welcome(body)
