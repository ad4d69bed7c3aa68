"""Lease: keys that end when their owner is silent for too long."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress

from quorumlog.errors import LedgerError
from quorumlog.kv.client.asking import Asking
from quorumlog.kv.errors import InvalidRequest, LeaseNotFound, LockLost
from quorumlog.kv.requests.answers import GrantAnswer, RevokeAnswer
from quorumlog.kv.requests.limits import MAX_TTL_MS
from quorumlog.kv.requests.messages import CommandRequest, KeepAliveRequest, TimeToLiveRequest, checked
from quorumlog.kv.requests.operations import Grant, Revoke, encoded

KEEP_ALIVES_PER_TTL = 3
RETRY_S = 0.02


class Lease:
    """Kept alive by a task until it is revoked or closed. `is_alive` turns false as soon as it may have
    ended, counted on this machine from when the last keep-alive that was answered was sent: always
    before the store ends it. `lost` is set then, whether somebody keeps it alive or not; where the
    machine has slept, up to a third of the TTL after it woke."""

    def __init__(self, asking: Asking, number: int) -> None:
        """One that was granted before; how long it lasts, the first keep-alive tells."""
        self._asking = asking
        self.id = number
        self.ttl_ms = 0
        """As granted: a TTL below three election time-outs is raised."""
        self._alive_until_s = 0.0
        self._process = os.getpid()
        self._task: asyncio.Task[None] | None = None
        self._end: asyncio.TimerHandle | None = None
        self.lost = asyncio.Event()
        """Set once it has ended, or may have."""

    @classmethod
    async def grant(cls, asking: Asking, ttl_s: float, lease_id: int = 0) -> Lease:
        """See `AsyncKeyValueClient.grant`."""
        sent_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        if not 0 < ttl_s <= MAX_TTL_MS / 1000:  # nan is not
            raise InvalidRequest(f"a TTL is above 0 and at most {MAX_TTL_MS // 1000} s, not {ttl_s}")
        command = CommandRequest(command=encoded(Grant(max(1, int(ttl_s * 1000)), lease_id)))
        _, granted = await asking.call(command, GrantAnswer)
        lease = cls(asking, granted.lease)
        lease._lives(granted.ttl_ms, sent_s)
        return lease

    def _lives(self, ttl_ms: int, sent_s: float) -> None:
        """So long from when that was sent which has been answered, unless it was lost before."""
        if self._end is not None and not self.is_alive:
            self.lost.set()
            return
        self.ttl_ms = ttl_ms
        self._alive_until_s = max(self._alive_until_s, sent_s + ttl_ms / 1000)
        if self._end is None:
            self._look()

    def _look(self) -> None:
        """Now, and again when it will have ended if nobody keeps it alive meanwhile."""
        if not self.is_alive:
            self.lost.set()
            return
        self._end = asyncio.get_running_loop().call_later(self._left_s, self._look)

    @property
    def _left_s(self) -> float:
        return self._alive_until_s - time.clock_gettime(time.CLOCK_BOOTTIME)

    @property
    def is_alive(self) -> bool:
        """It certainly has not ended yet."""
        return not self.lost.is_set() and self._left_s > 0 and os.getpid() == self._process

    def keep_alive(self) -> None:
        """From now on, by a task, three times in a TTL."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._keep())

    async def _keep(self) -> None:
        pause_s = self._third_s
        while not self.lost.is_set() and not self._asking.is_closed:
            await asyncio.sleep(pause_s)
            try:
                await self.keep_alive_once()
                pause_s = self._third_s
            except LedgerError:
                pause_s = max(RETRY_S, self._third_s / 10)

    @property
    def _third_s(self) -> float:
        return self.ttl_ms / 1000 / KEEP_ALIVES_PER_TTL

    async def keep_alive_once(self) -> int:
        """The TTL in milliseconds, from when this was sent. Raises LeaseNotFound."""
        timeout_ms = self._asking.timeout_ms
        if self.ttl_ms:
            timeout_ms = min(timeout_ms, max(500.0, 1000 * self._third_s))
        sent_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        asked = checked(KeepAliveRequest(leases=(self.id,)))
        _, (ttl_ms,) = await self._asking.call(asked, list[int], timeout_ms=timeout_ms)
        if not ttl_ms:
            self.lost.set()
            raise LeaseNotFound(f"the lease {self.id} has ended")
        self._lives(ttl_ms, sent_s)
        return ttl_ms

    async def time_to_live(self) -> tuple[int, int, list[bytes]]:
        """(TTL, what is left of it by the leader's clock, both in milliseconds, keys). Raises
        LeaseNotFound."""
        _, told = await self._asking.call(
            checked(TimeToLiveRequest(lease=self.id)), tuple[int, int, list[bytes]]
        )
        return told

    def check(self) -> None:
        """Raises LockLost if it may have ended."""
        if os.getpid() != self._process:
            raise LockLost(
                f"the lease {self.id} was granted before the process forked and stays with the parent:"
                " take another one in this process"
            )
        if not self.is_alive:
            self.lost.set()
            raise LockLost(f"the lease {self.id} may have ended")

    async def revoke(self) -> int:
        """End it; gives how many keys ended with it. Raises LeaseNotFound, OutcomeUnknown."""
        self._stop()
        command = CommandRequest(command=encoded(Revoke(self.id)))
        _, revoked = await self._asking.call(command, RevokeAnswer)
        self.lost.set()
        if self._end is not None:
            self._end.cancel()
        return revoked.deleted

    def _stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def close(self) -> None:
        """Revoke it, if it stands; where nobody answers it ends by itself. Raises nothing."""
        self._stop()
        with suppress(LedgerError):
            await self.revoke()

    async def __aenter__(self) -> Lease:
        self.keep_alive()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()
