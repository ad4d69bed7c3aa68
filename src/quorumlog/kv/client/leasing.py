"""Lease: keys that end when their owner is silent for too long."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

from quorumlog.errors import LedgerError
from quorumlog.kv.client.router import Router
from quorumlog.kv.errors import InvalidRequest, LeaseNotFound, LockLost
from quorumlog.kv.requests.answers import GrantAnswer, RevokeAnswer
from quorumlog.kv.requests.frames import KeepAlive, Kind
from quorumlog.kv.requests.limits import MAX_TTL_MS
from quorumlog.kv.requests.operations import Grant, Revoke, encoded

KEEP_ALIVES_PER_TTL = 3


class Lease:
    """Kept alive by a task until it is revoked or closed. `is_alive` turns false as soon as it may have
    ended, counted on this machine from when the last keep-alive that was answered was sent: always
    before the store ends it."""

    def __init__(self, router: Router, number: int, ttl_ms: int, sent_s: float) -> None:
        self._router = router
        self.id = number
        self.ttl_ms = ttl_ms
        """As granted: a TTL below two election time-outs is raised."""
        self._alive_until_s = sent_s + ttl_ms / 1000
        self._task: asyncio.Task[None] | None = None
        self.lost = asyncio.Event()
        """Set once it has ended, or may have."""

    @classmethod
    async def grant(cls, router: Router, ttl_s: float, lease_id: int = 0) -> Lease:
        sent_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        if not 0 < ttl_s <= MAX_TTL_MS / 1000:  # nan is not
            raise InvalidRequest(f"a TTL is above 0 and at most {MAX_TTL_MS // 1000} s, not {ttl_s}")
        command = encoded(Grant(max(1, int(ttl_s * 1000)), lease_id))
        _, granted = await router.call(Kind.COMMAND, command, GrantAnswer, changes=True)
        return cls(router, granted.lease, granted.ttl_ms, sent_s)

    @property
    def is_alive(self) -> bool:
        return not self.lost.is_set() and time.clock_gettime(time.CLOCK_BOOTTIME) < self._alive_until_s

    def keep_alive(self) -> None:
        """From now on, by a task."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._keep())

    async def _keep(self) -> None:
        while self.is_alive:
            await asyncio.sleep(self.ttl_ms / 1000 / KEEP_ALIVES_PER_TTL)
            with suppress(LedgerError):
                await self.keep_alive_once()
        self.lost.set()

    async def keep_alive_once(self) -> int:
        """The TTL in milliseconds, from when this was sent. Raises LeaseNotFound."""
        sent_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        body = encoded(KeepAlive([self.id]))
        timeout_s = min(self._router.timeout_s, max(0.5, self.ttl_ms / 1000 / KEEP_ALIVES_PER_TTL))
        _, kept = await self._router.call(
            Kind.KEEP_ALIVE, body, list[int], changes=False, timeout_s=timeout_s
        )
        if not kept[0]:
            self.lost.set()
            raise LeaseNotFound(f"the lease {self.id} has ended")
        self._alive_until_s = max(self._alive_until_s, sent_s + kept[0] / 1000)
        return kept[0]

    async def time_to_live(self) -> tuple[int, int, list[bytes]]:
        """(TTL, what is left of it by the leader's clock, both in milliseconds, keys). Raises
        LeaseNotFound."""
        _, told = await self._router.call(
            Kind.TIME_TO_LIVE, encoded(self.id), tuple[int, int, list[bytes]], changes=False
        )
        return told

    def check(self) -> None:
        """Raises LockLost if it may have ended."""
        if not self.is_alive:
            self.lost.set()
            raise LockLost(f"the lease {self.id} may have ended")

    async def revoke(self) -> int:
        """How many keys ended with it. Raises LeaseNotFound."""
        self._stop()
        command = encoded(Revoke(self.id))
        _, revoked = await self._router.call(Kind.COMMAND, command, RevokeAnswer, changes=True)
        self.lost.set()
        return revoked.deleted

    def _stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def close(self) -> None:
        """Revoke it, if it stands."""
        self._stop()
        with suppress(LedgerError):
            await self.revoke()

    async def __aenter__(self) -> Lease:
        self.keep_alive()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()
