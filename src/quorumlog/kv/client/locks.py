"""Locks and elections: keys on leases, in the order in which they were made.

Whoever waits watches the one before. The fencing token is the create revision of the holder's key: it
rises with each holder, so what the lock protects can refuse who held it before and does not know yet.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, Self, overload

from quorumlog.errors import LedgerError, OutcomeUnknown
from quorumlog.kv.client.codecs import BytesLike, V
from quorumlog.kv.client.leasing import Lease
from quorumlog.kv.client.values import Item, without_value
from quorumlog.kv.errors import LockLost
from quorumlog.kv.old_spellings import takes_seconds
from quorumlog.kv.requests.answers import RangeAnswer
from quorumlog.kv.requests.operations import Compare, Put, Range, Relation, Target

if TYPE_CHECKING:
    from quorumlog.kv.client.async_store import AsyncKeyValueClient

MOST_LEAVING_S = 1.0
"""Whoever has given up to wait for a place waits so long for its end."""


class _Place(Generic[V]):
    """A key of our own among those of a name."""

    def __init__(self, client: AsyncKeyValueClient[V], name: bytes, ttl_s: float) -> None:
        self._client = client
        self._prefix = name + b"//"
        self._places = self._prefix + b"0", self._prefix + b"g"
        """From and to: leases in hexadecimal. With one slash, or all that begins so, who waits for `a`
        would wait for the holders of `a/b` as well."""
        self._ttl_s = ttl_s
        self.lease: Lease | None = None
        self.key = b""
        self.token = 0
        """The create revision of the own key: rises with each holder."""

    async def _enter(self, value: bytes) -> None:
        """Take a place, and wait until it is the first."""
        lease = self.lease = await self._granted()
        lease.keep_alive()
        try:
            self.key = self._prefix + b"%016x" % lease.id
            self.token = await self._take(lease, value)
            await self._wait(lease)
        except BaseException:
            leaving = asyncio.ensure_future(self._leave())
            await asyncio.wait({leaving}, timeout=MOST_LEAVING_S)  # it goes on, where nobody answers
            raise

    async def _granted(self) -> Lease:
        while True:
            with suppress(OutcomeUnknown):  # one that nobody knows of ends by itself
                return await self._client.grant(self._ttl_s)

    async def _take(self, lease: Lease, value: bytes) -> int:
        """A repetition finds the key there: it is ours, by the lease in its name."""
        absent = Compare(self.key, Target.CREATE, Relation.EQUAL, 0)
        while True:
            lease.check()
            with suppress(OutcomeUnknown):
                await self._client.txn([absent], [Put(self.key, value, lease.id)])
                found = await self._client.read_range(Range(self.key, keys_only=True))
                if not found.items:
                    raise LockLost(f"the lease {lease.id} has ended")
                return found.items[0].create_revision

    async def _wait(self, lease: Lease) -> None:
        while True:
            # Only keys: what others hold may be in words that the codec of this one does not read.
            before = Range(
                *self._places,
                1,
                sort_by=Target.CREATE,
                descending=True,
                keys_only=True,
                max_create=self.token - 1,
            )
            found = await self._client.read_range(before)
            if not found.items:
                break
            first_revision = found.revision + 1
            await self._gone(lease, found.items[0].key, first_revision)
        lease.check()

    async def _gone(self, lease: Lease, key: bytes, first_revision: int) -> None:
        async with self._client.watch(key, first_revision=first_revision, puts=False) as watch:
            loop = asyncio.get_running_loop()
            news, lost = loop.create_task(watch.batch()), loop.create_task(lease.lost.wait())
            try:
                await asyncio.wait({news, lost}, return_when=asyncio.FIRST_COMPLETED)
                if not news.done():
                    raise LockLost(f"the lease {lease.id} has ended while it waited")
                news.result()
            finally:
                for task in (news, lost):
                    task.cancel()

    async def _leave(self) -> None:
        lease, self.lease = self.lease, None
        if lease is not None:
            await lease.close()

    def check(self) -> None:
        """Raises LockLost if it may be somebody else's by now."""
        if self.lease is None:
            raise LockLost("it is not held")
        self.lease.check()

    @property
    def is_held(self) -> bool:
        return self.lease is not None and self.lease.is_alive


class Lock(_Place[Any]):
    """`async with kv.lock("name") as lock`. Hand `lock.token` to what the lock protects, and have it
    refuse a lower one than it has seen: one that was paused may learn late that it holds none."""

    @takes_seconds
    async def acquire(self, *, timeout_ms: float | None = None) -> int:
        """Wait for it, `timeout_ms` at most; gives the token. Raises TimeoutError, LockLost if its lease
        ends meanwhile."""
        async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
            await self._enter(b"")
        return self.token

    async def release(self) -> None:
        """Its key and its lease end; where nobody answers, once the TTL is over. Raises nothing."""
        await self._leave()

    async def __aenter__(self) -> Self:
        await self.acquire()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.release()


class Election(_Place[V]):
    """Whoever is the first of those that campaign leads, until its lease ends."""

    @overload
    async def campaign(self, value: V) -> int: ...

    @overload
    async def campaign(self: Election[bytes], value: BytesLike) -> int: ...

    async def campaign(self, value: Any) -> int:
        """Returns once this one leads: its token. `value`: what `leader` gives then. Raises LockLost if
        its lease ends meanwhile."""
        await self._enter(self._client.values.codec.encode(value))
        return self.token

    @overload
    async def proclaim(self, value: V) -> None: ...

    @overload
    async def proclaim(self: Election[bytes], value: BytesLike) -> None: ...

    async def proclaim(self, value: Any) -> None:
        """Another value, while it leads. Raises LockLost if it does not, OutcomeUnknown."""
        self.check()
        assert self.lease is not None
        ours = Compare(self.key, Target.CREATE, Relation.EQUAL, self.token)
        data = self._client.values.codec.encode(value)
        done = await self._client.txn([ours], [Put(self.key, data, self.lease.id)])
        if not done.succeeded:
            raise LockLost("somebody else leads")

    async def leader(self) -> Item[V | None] | None:
        """The value of who leads, and its token as `create_revision`; None: nobody does. The value is
        None if the codec cannot read it: that of a lock is empty, and another program may have another
        codec."""
        first = Range(*self._places, 1, sort_by=Target.CREATE)
        _, found = await self._client._question(first, RangeAnswer)
        if not found.kvs:
            return None
        item: Item[V | None] = without_value(found.kvs[0])
        with suppress(Exception):
            item = item._replace(value=self._client.values.codec.decode(found.kvs[0].value))
        return item

    async def resign(self) -> None:
        """Somebody else may lead; where nobody answers, once the TTL is over. Raises nothing."""
        with suppress(LedgerError):
            await self._leave()
