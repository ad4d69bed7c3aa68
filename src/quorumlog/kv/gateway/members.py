"""GatewayMembers: which members have a gateway, and where. Each member's store says so in its status."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress

from quorumlog.errors import LedgerError
from quorumlog.kv.client.link import Link, LinkLost
from quorumlog.kv.client.router import greeting_of
from quorumlog.kv.requests.answers import read_answer
from quorumlog.kv.requests.messages import AnswerResponse, StatusAnswer, StoreStatusRequest
from quorumlog.net.hello import STORE, client_hello

ASK_TIMEOUT_S = 1.0
KNOWN_S = 5.0
"""So long nobody is asked again."""


class GatewayMembers:
    def __init__(self, addresses: Sequence[tuple[str, int]]) -> None:
        """Of the members' stores."""
        self._addresses = addresses
        self._known: dict[tuple[str, int], StatusAnswer] = {}
        self._asked_s = -KNOWN_S

    async def all(self) -> list[tuple[str, str]]:
        """(member id, URL of its gateway); of a member that does not answer, as it was."""
        if time.monotonic() - self._asked_s >= KNOWN_S:
            await asyncio.gather(*[self._ask(address) for address in self._addresses])
            self._asked_s = time.monotonic()
        found = {each.member_id: each.etcd_gateway for each in self._known.values() if each.etcd_gateway}
        return sorted(found.items())

    async def _ask(self, address: tuple[str, int]) -> None:
        with suppress(LedgerError, LinkLost, TimeoutError):
            async with asyncio.timeout(ASK_TIMEOUT_S):
                link = await Link.open(*address)
                try:
                    await greeting_of(link, client_hello(STORE))
                    answered = await link.ask(StoreStatusRequest())
                finally:
                    link.close()
            if isinstance(answered, AnswerResponse):
                self._known[address] = read_answer(answered.answer, StatusAnswer)[1]
