"""AsyncKeyValueClient: every operation of the store, for asyncio."""

from __future__ import annotations

import warnings
from collections.abc import AsyncIterator, Generator, Sequence
from typing import Any, Generic, Literal, Self, Unpack, overload

from quorumlog.errors import DiskFull
from quorumlog.kv.client.asking import Asking
from quorumlog.kv.client.leasing import Election, Lease, Lock, PutOptions, RangeOptions
from quorumlog.kv.client.values import (
    BytesLike,
    Codec,
    DeleteResult,
    Item,
    Key,
    PutResult,
    RangeResult,
    TxnResult,
    Unreadable,
    V,
    Values,
    codec_of,
    key_of,
    range_of,
)
from quorumlog.kv.client.watching import Watching
from quorumlog.kv.old_spellings import takes_seconds
from quorumlog.kv.requests import (
    Command,
    CommandRequest,
    Compact,
    CompactAnswer,
    Compare,
    DeleteAnswer,
    DeleteRange,
    Leases,
    LeasesAnswer,
    Operation,
    Put,
    PutAnswer,
    Question,
    QuestionRequest,
    Range,
    RangeAnswer,
    Relation,
    StatusAnswer,
    StoreStatusRequest,
    Target,
    Txn,
    TxnAnswer,
    WatchRequest,
    check,
    encoded,
    writes,
)
from quorumlog.net.credentials import ClientUser
from quorumlog.net.rpc.calls import ANY_MEMBER, LEADER
from quorumlog.net.tls import ClientTls

TIMEOUT_MS = 10_000
PAGE_ITEMS = 1000
_CHANGES_NOTHING = Txn([Compare(b"health", Target.MOD, Relation.EQUAL, -1)], [Put(b"health", b"")], [])
"""A comparison that never holds: no key has mod revision -1."""


class AsyncKeyValueClient(Generic[V]):
    """A client of the store. Keys are text (UTF-8) or bytes; values are those of the codec, by default
    bytes.

    Every call raises Unreachable or RequestTimeout if no member answers in `timeout_ms`,
    InvalidRequest for an invalid or too large request (docs/kv.md), ClusterChanged. A change is done;
    or its error says that it is not done; or it raises OutcomeUnknown, or ResultUnknown (done, but
    the response is too large). Reads are linearizable unless `stale`, which reads the state of one
    member."""

    @takes_seconds
    def __init__(
        self,
        servers: str,
        *,
        codec: Literal["bytes"] | Codec[V] = "bytes",
        timeout_ms: float = TIMEOUT_MS,
        cluster_id: str = "",
        errors: Unreadable = "raise",
        tls: ClientTls | None = None,
        user: ClientUser | None = None,
    ) -> None:
        """`servers`: HOST:PORT,... of the members' stores, not of their logs. `timeout_ms`: of each
        call. `cluster_id`: from `status`, of the store whose revisions the application has kept;
        every call raises ClusterChanged if the store is another one, such as after a restore.
        `errors`: handling of a value that the codec cannot read: "raise" ValueUnreadable, return it
        "raw", as bytes, or "skip" the item. Raises ConfigError."""
        self.asking = Asking(servers, timeout_ms, cluster_id, tls, user)
        self.values = Values(codec_of(codec), errors)

    async def __aenter__(self) -> Self:
        return self

    def __await__(self) -> Generator[Any, Any, Self]:
        """`await connect_async(...)`, as in earlier releases."""
        warnings.warn(
            "kv.connect_async is no longer a coroutine: remove the `await`; the next release"
            " does not accept it",
            DeprecationWarning,
            stacklevel=2,
        )
        yield from ()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close its connections: waiting and later calls raise Unreachable. May be repeated."""
        await self.asking.close()

    async def _command(self, command: Command, answer: type[Any]) -> tuple[int, Any]:
        body = encoded(command)
        check(command, len(body))
        return await self.asking.call(CommandRequest(command=body), answer)

    # ---------------------------------------------------------------- writing

    @overload
    async def put(self, key: Key, value: V, **options: Unpack[PutOptions]) -> PutResult[V]: ...

    @overload
    async def put(
        self: AsyncKeyValueClient[bytes], key: Key, value: BytesLike, **options: Unpack[PutOptions]
    ) -> PutResult[bytes]: ...

    async def put(
        self,
        key: Key,
        value: Any,
        *,
        lease: Lease | int = 0,
        prev_kv: bool = False,
        keeps_lease: bool = False,
    ) -> PutResult[Any]:
        """Set a key; returns the previous item with `prev_kv`. `lease`: a lease, or its id; the key is
        deleted when it ends. Without it the key has no lease, unless `keeps_lease`. Raises
        LeaseNotFound, KeyNotFound (`keeps_lease` for an absent key), NoSpace, OutcomeUnknown."""
        number = lease.id if isinstance(lease, Lease) else lease
        data = self.values.codec.encode(value)
        command = Put(key_of(key), data, number, prev_kv, keeps_lease=keeps_lease)
        return self.values.put(*await self._command(command, PutAnswer))

    async def delete(self, key: Key, *, prev_kv: bool = False) -> DeleteResult[V]:
        """Delete a key. `deleted` of the result is 0 if there was no such key; the previous item is
        returned with `prev_kv`. Raises OutcomeUnknown."""
        return await self._delete(DeleteRange(key_of(key), b"", prev_kv))

    async def delete_range(self, key: Key, end: Key, *, prev_kv: bool = False) -> DeleteResult[V]:
        """Delete the keys from `key` up to, but excluding, `end`; otherwise as `delete`."""
        return await self._delete(DeleteRange(key_of(key), key_of(end), prev_kv))

    async def delete_prefix(self, prefix: Key, *, prev_kv: bool = False) -> DeleteResult[V]:
        """Delete every key with this prefix (an empty prefix: all keys); otherwise as `delete`."""
        return await self._delete(DeleteRange(*range_of(prefix), prev_kv))

    async def _delete(self, command: DeleteRange) -> DeleteResult[V]:
        return self.values.deletion(*await self._command(command, DeleteAnswer))

    @overload
    async def compare_and_set(
        self, key: Key, value: V, *, expected_revision: int, lease: Lease | int = 0
    ) -> PutResult[V] | None: ...

    @overload
    async def compare_and_set(
        self: AsyncKeyValueClient[bytes],
        key: Key,
        value: BytesLike,
        *,
        expected_revision: int,
        lease: Lease | int = 0,
    ) -> PutResult[bytes] | None: ...

    async def compare_and_set(
        self, key: Key, value: Any, *, expected_revision: int, lease: Lease | int = 0
    ) -> PutResult[Any] | None:
        """Put if the key's mod revision is `expected_revision`; 0: if the key does not exist. Returns
        None, without a change, otherwise. Raises LeaseNotFound, NoSpace, OutcomeUnknown."""
        number = lease.id if isinstance(lease, Lease) else lease
        name = key_of(key)
        compare = Compare(name, Target.MOD, Relation.EQUAL, expected_revision)
        done = await self.txn([compare], [Put(name, self.values.codec.encode(value), number)])
        return PutResult(done.revision, None) if done.succeeded else None

    async def txn(
        self,
        compare: Sequence[Compare] = (),
        then: Sequence[Operation] = (),
        otherwise: Sequence[Operation] = (),
        *,
        stale: bool = False,
    ) -> TxnResult[V]:
        """Execute `then` if every comparison holds, else `otherwise`, at one revision; returns a
        response per operation. Values of operations are bytes, encoded by the codec. `stale`: for a
        transaction that only reads. Raises LeaseNotFound, KeyNotFound, NoSpace, OutcomeUnknown;
        Compacted, FutureRevision for its reads."""
        command = Txn(list(compare), list(then), list(otherwise))
        check(command, 0)
        if writes(command):
            return self.values.txn(*await self._command(command, TxnAnswer), command)
        return self.values.txn(*await self._question(command, TxnAnswer, stale), command)

    async def _question(
        self, question: Question, answer: type[Any], stale: bool = False
    ) -> tuple[int, Any]:
        request = QuestionRequest(question=encoded(question), here=bool(stale))
        return await self.asking.call(request, answer, target=ANY_MEMBER if stale else LEADER)

    # ---------------------------------------------------------------- reading

    async def get(self, key: Key, *, revision: int = 0, stale: bool = False) -> Item[V] | None:
        """The item of a key, None if it does not exist, or did not at that `revision` (0: now). Raises
        Compacted, FutureRevision."""
        found = await self._read_range(Range(key_of(key), revision=revision), stale)
        return found.items[0] if found.items else None

    @overload
    async def range(
        self,
        key: Key,
        end: Key,
        *,
        keys_only: Literal[False] = False,
        **options: Unpack[RangeOptions],
    ) -> RangeResult[V]: ...

    @overload
    async def range(
        self, key: Key, end: Key, *, keys_only: bool, **options: Unpack[RangeOptions]
    ) -> RangeResult[V | None]: ...

    async def range(
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
        """The keys from `key` up to, but excluding, `end`, in the order of `sort_by`; at most
        `limit`, 0: all. `revision`: as of that revision; 0: the latest. `count_only`: no items, only
        `total`. Raises Compacted, FutureRevision, InvalidRequest above 32 MiB."""
        request = Range(
            key_of(key), key_of(end), limit, revision, sort_by, descending, keys_only, count_only
        )
        return await self._read_range(request, stale)

    @overload
    async def prefix(
        self, prefix: Key, *, keys_only: Literal[False] = False, **options: Unpack[RangeOptions]
    ) -> RangeResult[V]: ...

    @overload
    async def prefix(
        self, prefix: Key, *, keys_only: bool, **options: Unpack[RangeOptions]
    ) -> RangeResult[V | None]: ...

    async def prefix(
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
        """Every key with this prefix (an empty prefix: all keys); otherwise as `range`."""
        start, end = range_of(prefix)
        request = Range(start, end, limit, revision, sort_by, descending, keys_only, count_only)
        return await self._read_range(request, stale)

    async def read_range(self, asked: Range, *, stale: bool = False) -> RangeResult[V | None]:
        """As `range`, for a request that exists already."""
        return await self._read_range(asked, stale)

    async def _read_range(self, request: Range, stale: bool = False) -> RangeResult[Any]:
        revision, found = await self._question(request, RangeAnswer, stale)
        return self.values.range(revision, found, keys_only=request.keys_only)

    @overload
    def scan(
        self, prefix: Key = b"", *, page_items: int = PAGE_ITEMS, keys_only: Literal[False] = False
    ) -> AsyncIterator[Item[V]]: ...

    @overload
    def scan(
        self, prefix: Key = b"", *, page_items: int = PAGE_ITEMS, keys_only: bool
    ) -> AsyncIterator[Item[V | None]]: ...

    async def scan(
        self, prefix: Key = b"", *, page_items: int = PAGE_ITEMS, keys_only: bool = False
    ) -> AsyncIterator[Item[Any]]:
        """Every key with this prefix, at one revision, read `page_items` at a time. Raises Compacted if
        that revision is compacted meanwhile."""
        start, end = range_of(prefix)
        revision = 0
        while True:
            request = Range(start, end, page_items, revision, keys_only=keys_only, without_count=True)
            newest, page = await self._question(request, RangeAnswer)
            revision = revision or newest
            for item in self.values.range(revision, page, keys_only=keys_only).items:
                yield item
            if not page.more:
                return
            start = page.kvs[-1].key + b"\0"

    def watch(
        self,
        key: Key,
        *,
        end: Key | None = None,
        first_revision: int = 0,
        prev_kv: bool = False,
        puts: bool = True,
        deletions: bool = True,
    ) -> Watching[V]:
        """`async with kv.watch("key") as watch: async for change in watch`; with `end` all keys from
        `key` up to, but excluding, `end`. `first_revision`: begin with changes of this revision; 0:
        with later changes only. `prev_kv`: each change has the previous item. Raises Unreachable if
        no member accepts it in `timeout_ms`, and the errors of `Watching`."""
        stop = b"" if end is None else key_of(end)
        request = WatchRequest(
            key=key_of(key),
            end=stop,
            first_revision=first_revision,
            prev_kv=prev_kv,
            puts=puts,
            deletions=deletions,
        )
        return Watching(self.asking, self.values, request)

    def watch_prefix(
        self, prefix: Key, *, first_revision: int = 0, prev_kv: bool = False
    ) -> Watching[V]:
        """As `watch`, for every key with this prefix."""
        start, end = range_of(prefix)
        request = WatchRequest(key=start, end=end, first_revision=first_revision, prev_kv=prev_kv)
        return Watching(self.asking, self.values, request)

    # ---------------------------------------------------------------- leases, locks, elections

    async def grant(self, ttl_s: float, *, lease_id: int = 0) -> Lease:
        """A lease of `ttl_s` seconds; its `ttl_ms` is the granted TTL, at least three election
        time-outs. `async with` keeps it alive, and revokes it at the end. `lease_id` 0: chosen by the
        store. Raises LeaseExists, OutcomeUnknown."""
        return await Lease.grant(self.asking, ttl_s, lease_id)

    def lease(self, lease_id: int) -> Lease:
        """A handle of an existing lease, by its id; sends no request."""
        return Lease(self.asking, lease_id)

    async def leases(self) -> list[tuple[int, int, int]]:
        """(id, TTL in milliseconds, index of the grant) of all leases."""
        found: LeasesAnswer = (await self._question(Leases(), LeasesAnswer))[1]
        return found.leases

    def lock(self, name: Key, *, ttl_s: float = 10.0) -> Lock:
        """`async with kv.lock("name") as lock: ... lock.token`, on a lease of `ttl_s` seconds. Waits
        while others hold it. Raises LockLost if its lease ends meanwhile."""
        return Lock(self, key_of(name), ttl_s)

    def election(self, name: Key, *, ttl_s: float = 10.0) -> Election[V]:
        """An election to `campaign` in, on a lease of `ttl_s` seconds, or to ask for its `leader`."""
        return Election(self, key_of(name), ttl_s)

    # ---------------------------------------------------------------- the store

    async def compact(self, revision: int) -> None:
        """Discard history below `revision`, which itself stays readable. Raises Compacted if that
        history is discarded already, FutureRevision, OutcomeUnknown."""
        await self._command(Compact(revision), CompactAnswer)

    async def status(self) -> StatusAnswer:
        """State of one member: revision, size in bytes, leases, ..."""
        found = await self.asking.call(StoreStatusRequest(), StatusAnswer, target=ANY_MEMBER)
        return found[1]

    @takes_seconds
    async def health(self, *, timeout_ms: float | None = None) -> None:
        """Commit an entry that changes no key. Raises the errors of a put: DiskFull, NoSpace,
        Unreachable, LeaderNotReady, OutcomeUnknown."""
        request = CommandRequest(command=encoded(_CHANGES_NOTHING))
        await self.asking.call(request, TxnAnswer, timeout_ms=timeout_ms)
        refuses = (await self.asking.call(StoreStatusRequest(), StatusAnswer))[1].refuses  # larger ones
        if refuses:
            raise DiskFull(refuses)
