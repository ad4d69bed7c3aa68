"""Leases of a client, and locks and elections based on them."""

from __future__ import annotations

import asyncio
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, Self, TypedDict, overload

from quorumlog.errors import NO_RIGHT, LedgerError, OutcomeUnknown
from quorumlog.kv.client.asking import Asking
from quorumlog.kv.client.values import BytesLike, Item, Unreadable, V, without_value
from quorumlog.kv.errors import Compacted, InvalidRequest, LeaseNotFound, LockLost
from quorumlog.kv.old_spellings import takes_seconds
from quorumlog.kv.requests import (
    MAX_TTL_MS,
    CommandRequest,
    Compare,
    Grant,
    GrantAnswer,
    KeepAliveRequest,
    Put,
    Range,
    RangeAnswer,
    Relation,
    Revoke,
    RevokeAnswer,
    Target,
    TimeToLiveRequest,
    checked,
    encoded,
)
from quorumlog.net.credentials import ClientUser
from quorumlog.net.tls import ClientTls

if TYPE_CHECKING:
    from quorumlog.kv.client.async_store import AsyncKeyValueClient


# ---------------------------------------------------------------- Lease
# Keys that end when their owner is silent for too long.

KEEP_ALIVES_PER_TTL = 3
RETRY_S = 0.02


class Lease:
    """A lease, kept alive by a task until it is revoked or closed. `is_alive` turns false as soon as
    the lease may have ended: one TTL, by this machine's clock, after the last answered keep-alive was
    sent, which is always before the store ends it. `lost` is set then; after a sleep of the machine,
    up to a third of the TTL after it woke."""

    def __init__(self, asking: Asking, number: int) -> None:
        """A lease granted earlier; the first keep-alive returns its TTL."""
        self._asking = asking
        self.id = number
        self.ttl_ms = 0
        """As granted: a TTL below three election time-outs is raised."""
        self._alive_until_s = 0.0
        self._process = os.getpid()
        self._task: asyncio.Task[None] | None = None
        self._end: asyncio.TimerHandle | None = None
        self.lost = asyncio.Event()
        """Set once the lease has ended or may have, or its user may no longer keep it alive."""
        self._refusal: LedgerError | None = None

    def is_of(self, asking: Asking) -> bool:
        """True if it was granted to that client, or before the process forked: it refuses calls then."""
        return self._asking is asking or os.getpid() != self._process

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
        """The keep-alive sent at `sent_s` was answered: the lease lives one TTL longer, unless it is
        lost already."""
        if self._end is not None and not self.is_alive:
            self.lost.set()
            return
        self.ttl_ms = ttl_ms
        self._alive_until_s = max(self._alive_until_s, sent_s + ttl_ms / 1000)
        if self._end is None:
            self._look()

    def _look(self) -> None:
        """Check whether the lease has ended, now and again when it ends unless kept alive."""
        if not self.is_alive:
            self.lost.set()
            return
        self._end = asyncio.get_running_loop().call_later(self._left_s, self._look)

    @property
    def _left_s(self) -> float:
        return self._alive_until_s - time.clock_gettime(time.CLOCK_BOOTTIME)

    @property
    def is_alive(self) -> bool:
        """True while the lease certainly has not ended."""
        return not self.lost.is_set() and self._left_s > 0 and os.getpid() == self._process

    def keep_alive(self) -> None:
        """Start a task that keeps the lease alive, three times in a TTL."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._keep())

    async def _keep(self) -> None:
        pause_s = self._third_s
        while not self.lost.is_set() and not self._asking.is_closed:
            await asyncio.sleep(pause_s)
            try:
                await self.keep_alive_once()
                pause_s = self._third_s
            except NO_RIGHT as refusal:
                self._refusal = refusal
                self.lost.set()
            except LedgerError:
                pause_s = max(RETRY_S, self._third_s / 10)

    @property
    def _third_s(self) -> float:
        return self.ttl_ms / 1000 / KEEP_ALIVES_PER_TTL

    async def keep_alive_once(self) -> int:
        """Send one keep-alive; returns the TTL in milliseconds, which counts from sending. Raises
        LeaseNotFound."""
        timeout_ms = self._asking.timeout_ms
        if self.ttl_ms:
            timeout_ms = min(timeout_ms, max(500.0, 1000 * self._third_s))
        sent_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        request = checked(KeepAliveRequest(leases=(self.id,)))
        _, (ttl_ms,) = await self._asking.call(request, list[int], timeout_ms=timeout_ms)
        if not ttl_ms:
            self.lost.set()
            raise LeaseNotFound(f"the lease {self.id} has ended")
        self._lives(ttl_ms, sent_s)
        return ttl_ms

    async def time_to_live(self) -> tuple[int, int, list[bytes]]:
        """(TTL, time left by the leader's clock, both in milliseconds, keys). Raises LeaseNotFound."""
        _, grant_answer = await self._asking.call(
            checked(TimeToLiveRequest(lease=self.id)), tuple[int, int, list[bytes]]
        )
        return grant_answer

    def check(self) -> None:
        """Raises LockLost if it may have ended; Forbidden, NotAuthenticated if its user may no longer
        keep it alive."""
        if self._refusal is not None:
            raise self._refusal
        if os.getpid() != self._process:
            raise LockLost(
                f"the lease {self.id} was granted before the process forked and stays with the parent:"
                " take another one in this process"
            )
        if not self.is_alive:
            self.lost.set()
            raise LockLost(f"the lease {self.id} may have ended")

    async def revoke(self) -> int:
        """End it; returns how many keys were deleted with it. Raises LeaseNotFound, OutcomeUnknown."""
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
        """Revoke it; if no member answers, it expires by itself. Raises nothing."""
        self._stop()
        with suppress(LedgerError):
            await self.revoke()

    async def __aenter__(self) -> Lease:
        self.keep_alive()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()


# ---------------------------------------------------------------- Locks and elections
# Keys on leases, in the order in which they were made.
#
# A waiter watches the key before its own. The fencing token is the create revision of the holder's key:
# it rises with each holder, so what the lock protects can refuse who held it before and does not know
# yet.

MOST_LEAVING_S = 1.0
"""Seconds that a client which gives up its place waits for the end of its lease."""


class _Place(Generic[V]):
    """A client's own key among the keys of a name."""

    def __init__(self, client: AsyncKeyValueClient[V], name: bytes, ttl_s: float) -> None:
        self._client = client
        self._prefix = name + b"//"
        self._places = self._prefix + b"0", self._prefix + b"g"
        """First key and end of the range: leases in hexadecimal. With one slash, or a whole prefix, a
        client that waits for `a` would also wait for the holders of `a/b`."""
        self._ttl_s = ttl_s
        self.lease: Lease | None = None
        self.key = b""
        self.token = 0
        """The create revision of the own key; higher for each later holder."""
        self._is_entering = False

    async def _enter(self, value: bytes) -> None:
        """Take a place, and wait until it is the first. Raises InvalidRequest."""
        if self._is_entering or self.is_held:  # nobody would end the lease of the place before
            raise InvalidRequest(
                "this object holds its place already, or waits for it: release it first, or make another"
                " object for each task"
            )
        self._is_entering = True
        try:
            lease = self.lease = await self._granted()
            lease.keep_alive()
            self.key = self._prefix + b"%016x" % lease.id
            self.token = await self._take(lease, value)
            await self._wait(lease)
        except BaseException:
            leaving = asyncio.ensure_future(self._leave())
            await asyncio.wait({leaving}, timeout=MOST_LEAVING_S)  # it goes on, where nobody answers
            raise
        finally:
            self._is_entering = False

    async def _granted(self) -> Lease:
        while True:
            with suppress(OutcomeUnknown):  # one that nobody knows of ends by itself
                return await self._client.grant(self._ttl_s)

    async def _take(self, lease: Lease, value: bytes) -> int:
        """Create the key. After a repetition the existing key is our own: its name has our lease."""
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
        """Returns once that key may be gone: what a watch has missed by a compaction is read again."""
        with suppress(Compacted):
            async with self._client.watch(key, first_revision=first_revision, puts=False) as watch:
                loop = asyncio.get_running_loop()
                news, lost = loop.create_task(watch.batch()), loop.create_task(lease.lost.wait())
                try:
                    await asyncio.wait({news, lost}, return_when=asyncio.FIRST_COMPLETED)
                    if not news.done():
                        lease.check()
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
        """Raises LockLost if another client may hold it."""
        if self.lease is None:
            raise LockLost("it is not held")
        self.lease.check()

    @property
    def is_held(self) -> bool:
        return self.lease is not None and self.lease.is_alive


class Lock(_Place[Any]):
    """`async with kv.lock("name") as lock`. Pass `lock.token` to the protected resource, and let it
    refuse a token lower than an earlier one: a paused holder may learn late that it has lost the
    lock."""

    @takes_seconds
    async def acquire(self, *, timeout_ms: float | None = None) -> int:
        """Wait for it, `timeout_ms` at most; returns the token. Raises TimeoutError, LockLost if its
        lease ends meanwhile, InvalidRequest if this object holds or awaits it already."""
        async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
            await self._enter(b"")
        return self.token

    async def release(self) -> None:
        """Release it: delete its key and end its lease; if no member answers, both end with the TTL.
        Raises nothing."""
        await self._leave()

    async def __aenter__(self) -> Self:
        await self.acquire()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.release()


class Election(_Place[V]):
    """The first of the candidates leads, until its lease ends."""

    @overload
    async def campaign(self, value: V) -> int: ...

    @overload
    async def campaign(self: Election[bytes], value: BytesLike) -> int: ...

    async def campaign(self, value: Any) -> int:
        """Returns its token once this client leads. `value`: returned by `leader` then. Raises LockLost
        if its lease ends meanwhile, InvalidRequest if this object leads or campaigns already."""
        await self._enter(self._client.values.codec.encode(value))
        return self.token

    @overload
    async def proclaim(self, value: V) -> None: ...

    @overload
    async def proclaim(self: Election[bytes], value: BytesLike) -> None: ...

    async def proclaim(self, value: Any) -> None:
        """Set another value, while this client leads. Raises LockLost if it does not lead,
        OutcomeUnknown."""
        self.check()
        assert self.lease is not None
        ours = Compare(self.key, Target.CREATE, Relation.EQUAL, self.token)
        data = self._client.values.codec.encode(value)
        done = await self._client.txn([ours], [Put(self.key, data, self.lease.id)])
        if not done.succeeded:
            raise LockLost("another candidate leads")

    async def leader(self) -> Item[V | None] | None:
        """The value of the leader, and its token as `create_revision`; None: there is no leader. The
        value is None if the codec cannot read it, as the empty value of a lock or that of another
        program's codec."""
        first = Range(*self._places, 1, sort_by=Target.CREATE)
        _, found = await self._client._question(first, RangeAnswer)
        if not found.kvs:
            return None
        item: Item[V | None] = without_value(found.kvs[0])
        with suppress(Exception):
            item = item._replace(value=self._client.values.codec.decode(found.kvs[0].value))
        return item

    async def resign(self) -> None:
        """Give up leadership; if no member answers, it ends with the TTL. Raises nothing."""
        with suppress(LedgerError):
            await self._leave()


# ----------------------------------------------------------------
# Options that several calls share, by name: `async_store` says what each means.


class StoreClientOptions(TypedDict, total=False):
    """Options of `quorumlog.kv.connect`, besides the codec."""

    timeout_ms: float
    cluster_id: str
    errors: Unreadable
    tls: ClientTls | None
    user: ClientUser | None


class PutOptions(TypedDict, total=False):
    """Options of `AsyncKeyValueClient.put`."""

    lease: Lease | int
    prev_kv: bool
    keeps_lease: bool


class RangeOptions(TypedDict, total=False):
    """Options of `AsyncKeyValueClient.range`, besides `keys_only`."""

    limit: int
    revision: int
    descending: bool
    sort_by: Target
    count_only: bool
    stale: bool
