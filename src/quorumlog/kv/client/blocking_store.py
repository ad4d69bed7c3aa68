"""KeyValueClient: the verbs of `AsyncKeyValueClient` for programs without asyncio.

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
    """An iterator of changes, and a context manager that ends it. A new leader is asked for
    what follows the last change that came: none is lost, none comes twice. Raises Compacted where
    history ends above it, ClusterChanged after a restore, and ValueUnreadable, after which
    it goes on behind that value."""

    @property
    def next_revision(self) -> int:
        """Every change below was given. Kept by an application, it goes on from there later; while not
        all changes of a revision were given, it is that one."""
        return self._it.next_revision

    @takes_seconds
    def batch(self, *, timeout_ms: float | None = None) -> list[Change[V]]:
        """At least one change; all changes of a revision come together. Raises TimeoutError if none
        comes in `timeout_ms`, and what its class says."""
        return self._thread.run(self._it.batch(timeout_ms=timeout_ms))

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


class KeyValueClient(BlockingRecipes[V], Generic[V]):
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
        user: ClientUser | None = None,
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
        """Give a key a value; what it was comes back with `prev_kv`. `lease`: one, or its id, which the
        key ends with; without it the key is on none from now on, unless it `keeps_lease`.

        Raises LeaseNotFound, KeyNotFound (`keeps_lease` of no key), NoSpace, OutcomeUnknown.
        """
        return self._thread.run(
            self._it.put(key, value, lease=lease, prev_kv=prev_kv, keeps_lease=keeps_lease)
        )

    def delete(self, key: Key, *, prev_kv: bool = False) -> DeleteResult[V]:
        """Its `deleted` is 0 if there was no such key; what it was comes back with `prev_kv`. Raises
        OutcomeUnknown."""
        return self._thread.run(self._it.delete(key, prev_kv=prev_kv))

    def delete_range(self, key: Key, end: Key, *, prev_kv: bool = False) -> DeleteResult[V]:
        """key <= each < end; else as `delete`."""
        return self._thread.run(self._it.delete_range(key, end, prev_kv=prev_kv))

    def delete_prefix(self, prefix: Key, *, prev_kv: bool = False) -> DeleteResult[V]:
        """Every key that begins so, of an empty prefix all there are; else as `delete`."""
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
        """Put if the key was changed last at that revision; 0: if it does not exist. None: it was not
        so, and nothing has changed. Raises LeaseNotFound, NoSpace, OutcomeUnknown."""
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
        """`then` is carried out if every comparison holds, `otherwise` if not, at one revision; an
        answer to each operation comes back. Values of operations are bytes, as the codec makes them.
        `stale`: of one that only reads. Raises LeaseNotFound, KeyNotFound, NoSpace, OutcomeUnknown;
        Compacted, FutureRevision for what it reads."""
        return self._thread.run(self._it.txn(compare, then, otherwise, stale=stale))

    def get(self, key: Key, *, revision: int = 0, stale: bool = False) -> Item[V] | None:
        """None: there is no such key, or was none at that `revision`; 0: now. Raises Compacted,
        FutureRevision."""
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
        """key <= each < end, in the order of `sort_by`; at most `limit` of them, 0: all. `revision`: as
        they were then, 0: now. `count_only`: no items, `total` alone. Raises Compacted, FutureRevision,
        InvalidRequest above 32 MiB."""
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
        """Every key that begins so, of an empty prefix all there are; else as `range`."""
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
        """As `range`, of a request that is made already."""
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
        """Every key that begins so, at one revision, read `page_items` at a time. Raises Compacted if
        history ends above that revision meanwhile."""
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
        """`with kv.watch("key") as watch: for change in watch`; with `end` all keys before
        that, too. `first_revision`: where it begins, 0: what changes from now on. `prev_kv`: each
        change says what was there before. Raises Unreachable if nobody follows it in `timeout_ms`, and
        what `BlockingWatch` says."""
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
        """As `watch`, of every key that begins so."""
        return BlockingWatch(
            self._thread,
            self._thread.call(
                lambda: self._it.watch_prefix(prefix, first_revision=first_revision, prev_kv=prev_kv)
            ),
        )

    def leases(self) -> list[tuple[int, int, int]]:
        """(id, TTL in milliseconds, index of the grant) of all that stand."""
        return self._thread.run(self._it.leases())

    def compact(self, revision: int) -> None:
        """History below `revision` ends; what stood at it stays readable. Raises Compacted if it ends
        there already, FutureRevision, OutcomeUnknown."""
        self._thread.run(self._it.compact(revision))

    def status(self) -> StatusAnswer:
        """Of the member that is asked: its store's revision, size in bytes, leases, ..."""
        return self._thread.run(self._it.status())

    @takes_seconds
    def health(self, *, timeout_ms: float | None = None) -> None:
        """A change that changes nothing is made, which takes what a put takes. Raises what refuses it:
        DiskFull, NoSpace, Unreachable, LeaderNotReady, OutcomeUnknown."""
        self._thread.run(self._it.health(timeout_ms=timeout_ms))
