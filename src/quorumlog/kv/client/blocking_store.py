"""KeyValueClient: the verbs of `AsyncKeyValueClient` for programs without asyncio, and like a dict.

It runs the asynchronous client on a thread of its own; any number of threads may share one.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, Generic, Literal, Self, TypeVar, Unpack, overload

from quorumlog.errors import Unreachable
from quorumlog.kv.client.asking import CLOSED
from quorumlog.kv.client.async_store import PAGE_ITEMS, TIMEOUT_S, AsyncKeyValueClient
from quorumlog.kv.client.call_options import PutOptions, RangeOptions
from quorumlog.kv.client.codecs import BytesLike, Codec, V
from quorumlog.kv.client.leasing import Lease
from quorumlog.kv.client.locks import Election, Lock
from quorumlog.kv.client.values import (
    Change,
    DeleteResult,
    Item,
    Key,
    PutResult,
    RangeResult,
    TxnResult,
    key_of,
)
from quorumlog.kv.client.watching import Watching
from quorumlog.kv.requests.messages import StatusAnswer
from quorumlog.kv.requests.operations import Compare, Operation, Range, Target

T = TypeVar("T")


class BlockingWatch(Generic[V]):
    """An iterator of changes; `with` ends it. See `Watching`."""

    def __init__(self, client: KeyValueClient[V], watching: Watching[V]) -> None:
        self._client = client
        self._watching = watching

    @property
    def next_revision(self) -> int:
        """See `Watching.next_revision`."""
        return self._watching.next_revision

    def batch(self, timeout_s: float | None = None) -> list[Change[V]]:
        """At least one change; all changes of a revision come together. Raises TimeoutError if none
        comes in `timeout_s`, and what `Watching` does."""

        async def in_time() -> list[Change[V]]:
            async with asyncio.timeout(timeout_s):
                return await self._watching.batch()

        return self._client.run(in_time())

    def __iter__(self) -> Iterator[Change[V]]:
        while True:
            yield self._client.run(self._watching.fill()).popleft()

    def __enter__(self) -> Self:
        self._client.run(self._watching.__aenter__())
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Nothing more comes; may be repeated."""
        with suppress(Unreachable):  # its client is closed
            self._client.run(self._watching.close())


class KeyValueClient(Generic[V]):
    """Made by `quorumlog.kv.connect`. `kv["a"] = "1"`, `"a" in kv`, `for key in kv`, `del kv["a"]`.
    Verbs, and what each call raises, are those of `AsyncKeyValueClient`."""

    def __init__(
        self,
        servers: str,
        *,
        codec: Literal["bytes"] | Codec[V] = "bytes",
        timeout_s: float = TIMEOUT_S,
        cluster_id: str = "",
    ) -> None:
        """As of `AsyncKeyValueClient`."""
        self._is_closed = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="quorumlog-kv-client", daemon=True
        )
        self._thread.start()

        async def make() -> AsyncKeyValueClient[V]:
            return AsyncKeyValueClient(servers, codec=codec, timeout_s=timeout_s, cluster_id=cluster_id)

        try:
            self._client = self.run(make())
        except BaseException:
            self._end()
            raise

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Something of the asynchronous client, on its thread. Raises what that does, and Unreachable
        once this one is closed."""
        if self._is_closed:
            work.close()
            raise Unreachable(CLOSED)
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except CancelledError:
            raise Unreachable(CLOSED) from None  # by another thread, meanwhile
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """End its thread, connections, watches and the keeping of its leases; may be repeated."""
        if not self._is_closed:
            self._is_closed = True
            asyncio.run_coroutine_threadsafe(self._client.close(), self._loop).result()
            self._end()

    def _end(self) -> None:
        self._is_closed = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(asyncio.sleep(0))  # what other threads have begun meanwhile
        while tasks := asyncio.all_tasks(self._loop):
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # ---------------------------------------------------------------- like a dict

    def __getitem__(self, key: Key) -> V:
        item = self.get(key)
        if item is None:
            raise KeyError(key)
        return item.value

    @overload
    def __setitem__(self, key: Key, value: V) -> None: ...

    @overload
    def __setitem__(self: KeyValueClient[bytes], key: Key, value: BytesLike) -> None: ...

    def __setitem__(self, key: Key, value: Any) -> None:
        self.put(key, value)

    def __delitem__(self, key: Key) -> None:
        if not self.delete(key).deleted:
            raise KeyError(key)

    def __contains__(self, key: Key) -> bool:
        asked = Range(key_of(key), count_only=True)
        return self.run(self._client.read_range(asked)).total > 0

    def __iter__(self) -> Iterator[bytes]:
        for item in self.scan(keys_only=True):
            yield item.key

    def __len__(self) -> int:
        return self.prefix("", count_only=True).total

    # ---------------------------------------------------------------- verbs

    @overload
    def put(self, key: Key, value: V, **options: Unpack[PutOptions]) -> PutResult[V]: ...

    @overload
    def put(
        self: KeyValueClient[bytes], key: Key, value: BytesLike, **options: Unpack[PutOptions]
    ) -> PutResult[bytes]: ...

    def put(
        self,
        key: Key,
        value: Any,
        *,
        lease: Lease | int = 0,
        prev_kv: bool = False,
        keeps_lease: bool = False,
    ) -> PutResult[Any]:
        """See `AsyncKeyValueClient.put`."""
        return self.run(
            self._client.put(key, value, lease=lease, prev_kv=prev_kv, keeps_lease=keeps_lease)
        )

    def get(self, key: Key, *, revision: int = 0, stale: bool = False) -> Item[V] | None:
        """See `AsyncKeyValueClient.get`."""
        return self.run(self._client.get(key, revision=revision, stale=stale))

    def delete(self, key: Key, *, prev_kv: bool = False) -> DeleteResult[V]:
        """See `AsyncKeyValueClient.delete`."""
        return self.run(self._client.delete(key, prev_kv=prev_kv))

    def delete_range(self, key: Key, end: Key, *, prev_kv: bool = False) -> DeleteResult[V]:
        """See `AsyncKeyValueClient.delete_range`."""
        return self.run(self._client.delete_range(key, end, prev_kv=prev_kv))

    def delete_prefix(self, prefix: Key, *, prev_kv: bool = False) -> DeleteResult[V]:
        """See `AsyncKeyValueClient.delete_prefix`."""
        return self.run(self._client.delete_prefix(prefix, prev_kv=prev_kv))

    @overload
    def compare_and_set(
        self, key: Key, value: V, *, expected_revision: int, lease: Lease | int = 0
    ) -> PutResult[V] | None: ...

    @overload
    def compare_and_set(
        self: KeyValueClient[bytes],
        key: Key,
        value: BytesLike,
        *,
        expected_revision: int,
        lease: Lease | int = 0,
    ) -> PutResult[bytes] | None: ...

    def compare_and_set(
        self, key: Key, value: Any, *, expected_revision: int, lease: Lease | int = 0
    ) -> PutResult[Any] | None:
        """See `AsyncKeyValueClient.compare_and_set`."""
        return self.run(
            self._client.compare_and_set(key, value, expected_revision=expected_revision, lease=lease)
        )

    def txn(
        self,
        compare: Sequence[Compare] = (),
        then: Sequence[Operation] = (),
        otherwise: Sequence[Operation] = (),
        *,
        stale: bool = False,
    ) -> TxnResult[V]:
        """See `AsyncKeyValueClient.txn`."""
        return self.run(self._client.txn(compare, then, otherwise, stale=stale))

    @overload
    def range(
        self,
        key: Key,
        end: Key,
        *,
        keys_only: Literal[False] = False,
        **options: Unpack[RangeOptions],
    ) -> RangeResult[V]: ...

    @overload
    def range(
        self, key: Key, end: Key, *, keys_only: bool, **options: Unpack[RangeOptions]
    ) -> RangeResult[V | None]: ...

    def range(
        self,
        key: Key,
        end: Key,
        *,
        limit: int = 0,
        revision: int = 0,
        descending: bool = False,
        sort_by: Target = Target.KEY,
        keys_only: bool = False,
        count_only: bool = False,
        stale: bool = False,
    ) -> RangeResult[Any]:
        """See `AsyncKeyValueClient.range`."""
        return self.run(
            self._client.range(
                key,
                end,
                limit=limit,
                revision=revision,
                descending=descending,
                sort_by=sort_by,
                keys_only=keys_only,
                count_only=count_only,
                stale=stale,
            )
        )

    @overload
    def prefix(
        self, prefix: Key, *, keys_only: Literal[False] = False, **options: Unpack[RangeOptions]
    ) -> RangeResult[V]: ...

    @overload
    def prefix(
        self, prefix: Key, *, keys_only: bool, **options: Unpack[RangeOptions]
    ) -> RangeResult[V | None]: ...

    def prefix(
        self,
        prefix: Key,
        *,
        limit: int = 0,
        revision: int = 0,
        descending: bool = False,
        sort_by: Target = Target.KEY,
        keys_only: bool = False,
        count_only: bool = False,
        stale: bool = False,
    ) -> RangeResult[Any]:
        """See `AsyncKeyValueClient.prefix`."""
        return self.run(
            self._client.prefix(
                prefix,
                limit=limit,
                revision=revision,
                descending=descending,
                sort_by=sort_by,
                keys_only=keys_only,
                count_only=count_only,
                stale=stale,
            )
        )

    def read_range(self, asked: Range, *, stale: bool = False) -> RangeResult[V | None]:
        """See `AsyncKeyValueClient.read_range`."""
        return self.run(self._client.read_range(asked, stale=stale))

    @overload
    def scan(
        self, prefix: Key = b"", *, page_items: int = PAGE_ITEMS, keys_only: Literal[False] = False
    ) -> Iterator[Item[V]]: ...

    @overload
    def scan(
        self, prefix: Key = b"", *, page_items: int = PAGE_ITEMS, keys_only: bool
    ) -> Iterator[Item[V | None]]: ...

    def scan(
        self, prefix: Key = b"", *, page_items: int = PAGE_ITEMS, keys_only: bool = False
    ) -> Iterator[Item[Any]]:
        """See `AsyncKeyValueClient.scan`."""
        items = self._client.scan(prefix, page_items=page_items, keys_only=keys_only)
        while True:
            try:
                item = self.run(_next_of(items))
            except StopAsyncIteration:
                return
            yield item

    def watch(
        self,
        key: Key,
        *,
        end: Key | None = None,
        first_revision: int = 0,
        prev_kv: bool = False,
        puts: bool = True,
        deletions: bool = True,
    ) -> BlockingWatch[V]:
        """`with kv.watch("key") as changes: for change in changes`; else as of
        `AsyncKeyValueClient.watch`."""

        async def begin() -> Watching[V]:
            return self._client.watch(
                key,
                end=end,
                first_revision=first_revision,
                prev_kv=prev_kv,
                puts=puts,
                deletions=deletions,
            )

        return BlockingWatch(self, self.run(begin()))

    def watch_prefix(
        self, prefix: Key, *, first_revision: int = 0, prev_kv: bool = False
    ) -> BlockingWatch[V]:
        """As `watch`, of every key that begins so."""

        async def begin() -> Watching[V]:
            return self._client.watch_prefix(prefix, first_revision=first_revision, prev_kv=prev_kv)

        return BlockingWatch(self, self.run(begin()))

    def grant(self, ttl_s: float, *, lease_id: int = 0, keeps_alive: bool = True) -> Lease:
        """As `AsyncKeyValueClient.grant`; kept alive by this client until that is closed, or the lease
        revoked, unless told otherwise."""

        async def granted() -> Lease:
            lease = await self._client.grant(ttl_s, lease_id=lease_id)
            if keeps_alive:
                lease.keep_alive()
            return lease

        return self.run(granted())

    def revoke(self, lease: Lease | int) -> int:
        """End a lease, or that of an id; gives how many keys ended with it. Raises LeaseNotFound,
        OutcomeUnknown."""
        given = lease if isinstance(lease, Lease) else self._client.lease(lease)
        return self.run(given.revoke())

    def keep_alive(self, lease: Lease | int) -> int:
        """Once; gives its TTL in milliseconds. Raises LeaseNotFound."""
        given = lease if isinstance(lease, Lease) else self._client.lease(lease)
        return self.run(given.keep_alive_once())

    def time_to_live(self, lease: Lease | int) -> tuple[int, int, list[bytes]]:
        """See `Lease.time_to_live`."""
        given = lease if isinstance(lease, Lease) else self._client.lease(lease)
        return self.run(given.time_to_live())

    def leases(self) -> list[tuple[int, int, int]]:
        """See `AsyncKeyValueClient.leases`."""
        return self.run(self._client.leases())

    @contextmanager
    def lock(self, name: Key, *, ttl_s: float = 10.0, timeout_s: float | None = None) -> Iterator[Lock]:
        """`with kv.lock("name") as lock: ... lock.token`, on a lease of `ttl_s` seconds. Waits for
        `timeout_s` at most, then raises TimeoutError; without it for as long as others hold it. Raises
        LockLost if its lease ends meanwhile."""
        lock = self._client.lock(name, ttl_s=ttl_s)
        self.run(lock.acquire(timeout_s))
        try:
            yield lock
        finally:
            self.run(lock.release())

    @overload
    def leadership(
        self, name: Key, value: V, *, ttl_s: float = 10.0
    ) -> AbstractContextManager[Election[V]]: ...

    @overload
    def leadership(
        self: KeyValueClient[bytes], name: Key, value: BytesLike, *, ttl_s: float = 10.0
    ) -> AbstractContextManager[Election[bytes]]: ...

    @contextmanager
    def leadership(self, name: Key, value: Any, *, ttl_s: float = 10.0) -> Iterator[Election[Any]]:
        """`with kv.leadership("name", "me") as election` waits until this one leads, on a lease of
        `ttl_s` seconds, with `value` for whoever asks for the `leader`; `election.check()` raises
        LockLost once it may not lead any more."""
        election = self._client.election(name, ttl_s=ttl_s)
        self.run(election.campaign(value))
        try:
            yield election
        finally:
            self.run(election.resign())

    def leader(self, name: Key) -> Item[V | None] | None:
        """Of an election; see `Election.leader`."""
        return self.run(self._client.election(name).leader())

    def compact(self, revision: int) -> None:
        """See `AsyncKeyValueClient.compact`."""
        self.run(self._client.compact(revision))

    def status(self) -> StatusAnswer:
        """See `AsyncKeyValueClient.status`."""
        return self.run(self._client.status())

    def health(self) -> None:
        """A change that changes nothing is made, which takes what a put takes. Raises what refuses it:
        DiskFull, NoSpace, Unreachable, LeaderNotReady, OutcomeUnknown."""
        self.run(self._client.health())


async def _next_of(items: AsyncIterator[Item[T]]) -> Item[T]:
    return await anext(items)
