"""KeyValueClient: the verbs of `AsyncKeyValueClient` without asyncio; and it is like a dict,
keeps leases alive, and holds locks in `with` blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, Unpack, overload

from quorumlog.blocking import Blocking
from quorumlog.errors import Unreachable
from quorumlog.kv.client.async_store import PAGE_ITEMS, TIMEOUT_MS, AsyncKeyValueClient
from quorumlog.kv.client.leasing import Election, Lease, Lock, PutOptions, RangeOptions
from quorumlog.kv.client.values import (
    BytesLike,
    Change,
    Codec,
    Item,
    Key,
    PutResult,
    RangeResult,
    Unreadable,
    V,
    key_of,
)
from quorumlog.kv.client.watching import Watching
from quorumlog.kv.old_spellings import takes_seconds
from quorumlog.kv.requests import Range
from quorumlog.net.loop_thread import ClientShell, Shell
from quorumlog.net.tls import ClientTls


class BlockingWatch(Shell[Watching[V]], Generic[V]):
    """An iterator of changes, and a context manager that ends it. A new leader is asked for
    what follows the last change that came: none is lost, none comes twice. Raises Compacted where
    history ends above it, ClusterChanged after a restore, and ValueUnreadable, after which
    it goes on behind that value."""

    @property
    def next_revision(self) -> int:
        """Every change below was given. Kept by an application, it goes on from there later; while not
        all changes of a revision were given, it is that one."""
        return self._it.next_revision

    batch = Blocking[Watching[V]]().waits(Watching.batch)

    def close(self) -> None:
        """Nothing more comes: who waits for it raises Unreachable. May be repeated."""
        if not self._is_left:
            self._thread.run(self._it.close())

    def __enter__(self) -> Self:
        self._thread.run(self._it.__aenter__())
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Change[V]]:
        while True:
            given = self._step(self._it._fill)
            try:
                change = given.popleft()
            except IndexError:  # another thread has taken it
                continue
            yield change


class KeyValueClient(ClientShell[AsyncKeyValueClient[V]], Generic[V]):
    """A client of the store. Keys are text (UTF-8) or bytes, values what the codec takes
    and gives: bytes, unless another one is named.

    Every call raises Unreachable or RequestTimeout if no member answers in `timeout_ms`, InvalidRequest
    for what makes no sense or is too large (docs/kv.md), ClusterChanged. One that changes something is
    done, refused and certainly not done, or raises OutcomeUnknown: nobody can tell; ResultUnknown: it
    is done, and its answer is too large. Reads miss nothing that any client was told before, unless
    `stale`: then they give what the member that is asked has applied.
    """

    def __init__(
        self,
        servers: str,
        *,
        codec: Literal["bytes"] | Codec[V] = "bytes",
        timeout_ms: float = TIMEOUT_MS,
        cluster_id: str = "",
        errors: Unreadable = "raise",
        tls: ClientTls | None = None,
    ) -> None:
        """`servers`: HOST:PORT,... of the members' stores, not of their logs. `timeout_ms`: a call's.
        `cluster_id`: of the store that revisions were kept of, from `status`; every call raises
        ClusterChanged if it is another one by now, such as after a restore. `errors`: of a value that
        the codec cannot read, "raise" ValueUnreadable, give it "raw", as bytes, or "skip" it, as if it
        were not there. Raises ConfigError."""
        super().__init__(
            lambda: AsyncKeyValueClient(
                servers,
                codec=codec,
                timeout_ms=timeout_ms,
                cluster_id=cluster_id,
                errors=errors,
                tls=tls,
            ),
            lambda: Unreachable("the client is closed"),
        )

    _kv = Blocking[AsyncKeyValueClient[V]]()

    delete = _kv.waits(AsyncKeyValueClient.delete)
    delete_range = _kv.waits(AsyncKeyValueClient.delete_range)
    delete_prefix = _kv.waits(AsyncKeyValueClient.delete_prefix)
    txn = _kv.waits(AsyncKeyValueClient.txn)
    get = _kv.waits(AsyncKeyValueClient.get)
    read_range = _kv.waits(AsyncKeyValueClient.read_range)
    leases = _kv.waits(AsyncKeyValueClient.leases)
    compact = _kv.waits(AsyncKeyValueClient.compact)
    status = _kv.waits(AsyncKeyValueClient.status)
    health = _kv.waits(AsyncKeyValueClient.health)

    if TYPE_CHECKING:

        @overload
        def put(self, key: Key, value: V, **options: Unpack[PutOptions]) -> PutResult[V]: ...
        @overload
        def put(
            self: KeyValueClient[bytes], key: Key, value: BytesLike, **options: Unpack[PutOptions]
        ) -> PutResult[bytes]: ...
        def put(self, *given: Any, **options: Any) -> Any: ...

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
        def compare_and_set(self, *given: Any, **options: Any) -> Any: ...

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
        def range(self, *given: Any, **options: Any) -> Any: ...

        @overload
        def prefix(
            self, prefix: Key, *, keys_only: Literal[False] = False, **options: Unpack[RangeOptions]
        ) -> RangeResult[V]: ...
        @overload
        def prefix(
            self, prefix: Key, *, keys_only: bool, **options: Unpack[RangeOptions]
        ) -> RangeResult[V | None]: ...
        def prefix(self, *given: Any, **options: Any) -> Any: ...

    else:
        put = _kv.waits(AsyncKeyValueClient.put)
        compare_and_set = _kv.waits(AsyncKeyValueClient.compare_and_set)
        range = _kv.waits(AsyncKeyValueClient.range)
        prefix = _kv.waits(AsyncKeyValueClient.prefix)

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
        return self._each(self._it.scan(prefix, page_items=page_items, keys_only=keys_only))

    def _watched(self, begin: Callable[[], Watching[V]]) -> BlockingWatch[V]:
        return BlockingWatch(self._thread, self._thread.call(begin))

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
        """`with kv.watch("key") as watch: for change in watch`; with `end` all keys before
        that, too. `first_revision`: where it begins, 0: what changes from now on. `prev_kv`: each
        change says what was there before. Raises Unreachable if nobody follows it in `timeout_ms`, and
        what `BlockingWatch` says."""
        return self._watched(
            lambda: self._it.watch(
                key,
                end=end,
                first_revision=first_revision,
                prev_kv=prev_kv,
                puts=puts,
                deletions=deletions,
            )
        )

    def watch_prefix(
        self, prefix: Key, *, first_revision: int = 0, prev_kv: bool = False
    ) -> BlockingWatch[V]:
        """As `watch`, of every key that begins so."""
        return self._watched(
            lambda: self._it.watch_prefix(prefix, first_revision=first_revision, prev_kv=prev_kv)
        )

    # ---------------------------------------------------------------- besides the verbs

    def __getitem__(self, key: Key) -> V:
        item = self._thread.run(self._it.get(key))
        if item is None:
            raise KeyError(key)
        return item.value

    @overload
    def __setitem__(self, key: Key, value: V) -> None: ...

    @overload
    def __setitem__(self: KeyValueClient[bytes], key: Key, value: BytesLike) -> None: ...

    def __setitem__(self, key: Key, value: Any) -> None:
        self._thread.run(self._it.put(key, value))

    def __delitem__(self, key: Key) -> None:
        if not self._thread.run(self._it.delete(key)).deleted:
            raise KeyError(key)

    def __contains__(self, key: Key) -> bool:
        asked = Range(key_of(key), count_only=True)
        return self._thread.run(self._it.read_range(asked)).total > 0

    def __iter__(self) -> Iterator[bytes]:
        for item in self._each(self._it.scan(keys_only=True)):
            yield item.key

    def __len__(self) -> int:
        return self._thread.run(self._it.prefix("", count_only=True)).total

    def grant(self, ttl_s: float, *, lease_id: int = 0, keeps_alive: bool = True) -> Lease:
        """As `AsyncKeyValueClient.grant`; kept alive by this client until that is closed, or the lease
        revoked, unless told otherwise."""

        client = self._it

        async def granted() -> Lease:
            lease = await client.grant(ttl_s, lease_id=lease_id)
            if keeps_alive:
                lease.keep_alive()
            return lease

        return self._thread.run(granted())

    def revoke(self, lease: Lease | int) -> int:
        """End a lease, or that of an id; gives how many keys ended with it. Raises LeaseNotFound,
        OutcomeUnknown."""
        given = lease if isinstance(lease, Lease) else self._it.lease(lease)
        return self._thread.run(given.revoke())

    def keep_alive(self, lease: Lease | int) -> int:
        """Once; gives its TTL in milliseconds. Raises LeaseNotFound."""
        given = lease if isinstance(lease, Lease) else self._it.lease(lease)
        return self._thread.run(given.keep_alive_once())

    def time_to_live(self, lease: Lease | int) -> tuple[int, int, list[bytes]]:
        """See `Lease.time_to_live`."""
        given = lease if isinstance(lease, Lease) else self._it.lease(lease)
        return self._thread.run(given.time_to_live())

    @takes_seconds
    @contextmanager
    def lock(self, name: Key, *, ttl_s: float = 10.0, timeout_ms: float | None = None) -> Iterator[Lock]:
        """`with kv.lock("name") as lock: ... lock.token`, on a lease of `ttl_s` seconds. Waits for
        `timeout_ms` at most, then raises TimeoutError; without it for as long as others hold it. Raises
        LockLost if its lease ends meanwhile."""
        lock = self._it.lock(name, ttl_s=ttl_s)
        try:  # an interrupt may come as it is given
            self._thread.run(lock.acquire(timeout_ms=timeout_ms))
            yield lock
        finally:
            self._thread.run(lock.release())

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
        election = self._it.election(name, ttl_s=ttl_s)
        try:
            self._thread.run(election.campaign(value))
            yield election
        finally:
            self._thread.run(election.resign())

    def leader(self, name: Key) -> Item[V | None] | None:
        """Of an election; see `Election.leader`."""
        return self._thread.run(self._it.election(name).leader())
