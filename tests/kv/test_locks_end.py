"""Who gives up to wait for a lock does so in time, whether or not the store answers."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from quorumlog.kv.client import leasing as locks
from quorumlog.kv.client.leasing import Lock


class SilentLease:
    id = 7

    def keep_alive(self) -> None: ...

    def check(self) -> None: ...

    async def close(self) -> None:
        await asyncio.Event().wait()


class SilentStore:
    async def grant(self, ttl_s: float) -> SilentLease:
        return SilentLease()

    async def txn(self, *_: object) -> None:
        await asyncio.Event().wait()


def test_a_lock_of_a_silent_store_is_waited_for_as_long_as_was_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(locks, "MOST_LEAVING_S", 0.01)

    async def run() -> None:
        lock = Lock(cast(Any, SilentStore()), b"l", 10.0)
        acquiring = asyncio.ensure_future(lock.acquire(timeout_ms=10))
        done, _ = await asyncio.wait({acquiring}, timeout=60)
        assert done
        assert isinstance(acquiring.exception(), TimeoutError)

    asyncio.run(run())
