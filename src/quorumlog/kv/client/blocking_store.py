"""KeyValueClient: the operations of `AsyncKeyValueClient` for programs without asyncio.

Written by harness/blocking_clients.py: do not edit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Generic, Literal, Self, Unpack, overload

from quorumlog.errors import Unreachable
from quorumlog.kv.client.async_store import PAGE_ITEMS, TIMEOUT_MS, AsyncKeyValueClient
from quorumlog.kv.client.blocking_recipes import BlockingRecipes
from quorumlog.kv.client.leasing import Lease, PutOptions, RangeOptions
from quorumlog.kv.client.values import (
    BytesLike,
    Change,
    Codec,
    DeleteResult,
    Item,
    Key,
    PutResult,
    RangeResult,
    TxnResult,
    Unreadable,
    V,
)
from quorumlog.kv.client.watching import Watching
from quorumlog.kv.old_spellings import takes_seconds
from quorumlog.kv.requests import Compare, Operation, Range, StatusAnswer, Target
from quorumlog.net.credentials import ClientUser
from quorumlog.net.loop_thread import Shell
from quorumlog.net.tls import ClientTls


class BlockingWatch(Shell[Watching[V]], Generic[V]):
    """An iterator of changes, and a context manager that ends it. It resumes at a new leader after the
    last change received: none is lost, none is repeated. Raises Compacted if history begins above it,
    ClusterChanged after a restore, and ValueUnreadable, after which it continues after that value."""

    @property
    def next_revision(self) -> int:
        """Every change below was returned. An application may store it and resume there later; while
        some changes of a revision are not returned yet, it is that revision."""
        return self._it.next_revision

    @takes_seconds
    def batch(self, *, timeout_ms: float | None = None) -> list[Change[V]]:
        """At least one change; all changes of a revision come together. Raises TimeoutError if none
        comes in `timeout_ms`, and the errors of its class."""
        return self._thread.run(self._it.batch(timeout_ms=timeout_ms))

    def close(self) -> None:
        """End the watch: a waiting caller gets Unreachable. May be repeated."""
        if not self._is_left:
            self._thread.run(self._it.close())

    def __enter__(self) -> Self:
        self._thread.run(self._it.__aenter__())
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Change[V]]:
        while True:
            changes = self._step(self._it._fill)
            try:
                change = changes.popleft()
            except IndexError:  # another thread has taken it
                continue
            yield change


class KeyValueClient(BlockingRecipes[V], Generic[V]):
    """A client of the store. Keys are text (UTF-8) or bytes; values are those of the codec, by default
    bytes.

    Every call raises Unreachable or RequestTimeout if no member answers in `timeout_ms`,
    InvalidRequest for an invalid or too large request (docs/kv.md), ClusterChanged. A change is done;
    or its error says that it is not done; or it raises OutcomeUnknown, or ResultUnknown (done, but
    the response is too large). Reads are linearizable unless `stale`, which reads the state of one
    member."""

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
        super().__init__(
            lambda: AsyncKeyValueClient(
                servers,
                codec=codec,
                timeout_ms=timeout_ms,
                cluster_id=cluster_id,
                errors=errors,
                tls=tls,
                user=user,
            ),
            lambda: Unreachable("the client is closed"),
        )

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
        """Set a key; returns the previous item with `prev_kv`. `lease`: a lease, or its id; the key is
        deleted when it ends. Without it the key has no lease, unless `keeps_lease`. Raises
        LeaseNotFound, KeyNotFound (`keeps_lease` for an absent key), NoSpace, OutcomeUnknown."""
        return self._thread.run(
            self._it.put(key, value, lease=lease, prev_kv=prev_kv, keeps_lease=keeps_lease)
        )

    def delete(self, key: Key, *, prev_kv: bool = False) -> DeleteResult[V]:
        """Delete a key. `deleted` of the result is 0 if there was no such key; the previous item is
        returned with `prev_kv`. Raises OutcomeUnknown."""
        return self._thread.run(self._it.delete(key, prev_kv=prev_kv))

    def delete_range(self, key: Key, end: Key, *, prev_kv: bool = False) -> DeleteResult[V]:
        """Delete the keys from `key` up to, but excluding, `end`; otherwise as `delete`."""
        return self._thread.run(self._it.delete_range(key, end, prev_kv=prev_kv))

    def delete_prefix(self, prefix: Key, *, prev_kv: bool = False) -> DeleteResult[V]:
        """Delete every key with this prefix (an empty prefix: all keys); otherwise as `delete`."""
        return self._thread.run(self._it.delete_prefix(prefix, prev_kv=prev_kv))

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
        """Put if the key's mod revision is `expected_revision`; 0: if the key does not exist. Returns
        None, without a change, otherwise. Raises LeaseNotFound, NoSpace, OutcomeUnknown."""
        return self._thread.run(
            self._it.compare_and_set(key, value, expected_revision=expected_revision, lease=lease)
        )

    def txn(
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
        return self._thread.run(self._it.txn(compare, then, otherwise, stale=stale))

    def get(self, key: Key, *, revision: int = 0, stale: bool = False) -> Item[V] | None:
        """The item of a key, None if it does not exist, or did not at that `revision` (0: now). Raises
        Compacted, FutureRevision."""
        return self._thread.run(self._it.get(key, revision=revision, stale=stale))

    @overload
    def range(
        self, key: Key, end: Key, *, keys_only: Literal[False] = False, **options: Unpack[RangeOptions]
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
        """The keys from `key` up to, but excluding, `end`, in the order of `sort_by`; at most
        `limit`, 0: all. `revision`: as of that revision; 0: the latest. `count_only`: no items, only
        `total`. Raises Compacted, FutureRevision, InvalidRequest above 32 MiB."""
        return self._thread.run(
            self._it.range(
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
        """Every key with this prefix (an empty prefix: all keys); otherwise as `range`."""
        return self._thread.run(
            self._it.prefix(
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
        """As `range`, for a request that exists already."""
        return self._thread.run(self._it.read_range(asked, stale=stale))

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
        """Every key with this prefix, at one revision, read `page_items` at a time. Raises Compacted if
        that revision is compacted meanwhile."""
        return self._each(self._it.scan(prefix, page_items=page_items, keys_only=keys_only))

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
        """`with kv.watch("key") as watch: for change in watch`; with `end` all keys from
        `key` up to, but excluding, `end`. `first_revision`: begin with changes of this revision; 0:
        with later changes only. `prev_kv`: each change has the previous item. Raises Unreachable if
        no member accepts it in `timeout_ms`, and the errors of `BlockingWatch`."""
        return BlockingWatch(
            self._thread,
            self._thread.call(
                lambda: self._it.watch(
                    key,
                    end=end,
                    first_revision=first_revision,
                    prev_kv=prev_kv,
                    puts=puts,
                    deletions=deletions,
                )
            ),
        )

    def watch_prefix(
        self, prefix: Key, *, first_revision: int = 0, prev_kv: bool = False
    ) -> BlockingWatch[V]:
        """As `watch`, for every key with this prefix."""
        return BlockingWatch(
            self._thread,
            self._thread.call(
                lambda: self._it.watch_prefix(prefix, first_revision=first_revision, prev_kv=prev_kv)
            ),
        )

    def leases(self) -> list[tuple[int, int, int]]:
        """(id, TTL in milliseconds, index of the grant) of all leases."""
        return self._thread.run(self._it.leases())

    def compact(self, revision: int) -> None:
        """Discard history below `revision`, which itself stays readable. Raises Compacted if that
        history is discarded already, FutureRevision, OutcomeUnknown."""
        self._thread.run(self._it.compact(revision))

    def status(self) -> StatusAnswer:
        """State of one member: revision, size in bytes, leases, ..."""
        return self._thread.run(self._it.status())

    @takes_seconds
    def health(self, *, timeout_ms: float | None = None) -> None:
        """Commit an entry that changes no key. Raises the errors of a put: DiskFull, NoSpace,
        Unreachable, LeaderNotReady, OutcomeUnknown."""
        self._thread.run(self._it.health(timeout_ms=timeout_ms))
