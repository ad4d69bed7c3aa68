"""GatewayMembers: which members have a gateway, and where. Each member's store says so in its status."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from quorumlog.errors import LedgerError
from quorumlog.kv.client.asking import Asking
from quorumlog.kv.requests.messages import StatusAnswer, StoreStatusRequest
from quorumlog.net.rpc.calls import RequestTarget, TargetKind

ASK_TIMEOUT_S = 1.0
KNOWN_S = 5.0
"""So long nobody is asked again."""


class GatewayMembers:
    def __init__(self, asking: Asking) -> None:
        self._asking = asking
        self._known: dict[str, StatusAnswer] = {}
        self._asked_s = -KNOWN_S

    async def all(self) -> list[tuple[str, str]]:
        """(member id, URL of its gateway); of a member that does not answer, as it was."""
        if time.monotonic() - self._asked_s >= KNOWN_S:
            await asyncio.gather(*[self._ask(address) for address in self._asking.addresses])
            self._asked_s = time.monotonic()
        found = {each.member_id: each.etcd_gateway for each in self._known.values() if each.etcd_gateway}
        return sorted(found.items())

    async def _ask(self, address: str) -> None:
        target = RequestTarget(TargetKind.ADDRESS, address)
        with suppress(LedgerError):
            _, self._known[address] = await self._asking.call(
                StoreStatusRequest(), StatusAnswer, target=target, timeout_ms=1000 * ASK_TIMEOUT_S
            )
