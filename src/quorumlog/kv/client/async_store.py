"""AsyncKeyValueClient: every verb of the store, for asyncio."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from quorumlog.errors import DiskFull
from quorumlog.kv.client.leasing import Lease
from quorumlog.kv.client.locks import Election, Lock
from quorumlog.kv.client.router import Router
from quorumlog.kv.client.values import (
    Codec,
    DeleteResult,
    Item,
    Key,
    PutResult,
    RangeResult,
    TxnResult,
    Values,
    codec_of,
    key_of,
    range_of,
)
from quorumlog.kv.client.watching import Watching
from quorumlog.kv.requests.answers import (
    CompactAnswer,
    DeleteAnswer,
    LeasesAnswer,
    PutAnswer,
    RangeAnswer,
    TxnAnswer,
)
from quorumlog.kv.requests.frames import Kind, StatusAnswer, Watch
from quorumlog.kv.requests.limits import check
from quorumlog.kv.requests.operations import (
    Command,
    Compact,
    Compare,
    DeleteRange,
    Leases,
    Operation,
    Put,
    Range,
    Relation,
    Target,
    Txn,
    encode,
    encoded,
    writes,
)

TIMEOUT_S = 10.0
PAGE_ITEMS = 1000
_CHANGES_NOTHING = Txn([Compare(b"health", Target.MOD, Relation.EQUAL, -1)], [Put(b"health", b"")], [])
"""No key was changed last at revision -1."""


class AsyncKeyValueClient:
    """Made by `quorumlog.kv.connect_async`. Keys are text or bytes, values what the codec takes."""

    def __init__(
        self,
        servers: str,
        *,
        codec: str | Codec = "bytes",
        timeout_s: float = TIMEOUT_S,
        cluster_id: str = "",
    ) -> None:
        """`cluster_id`: of the store that revisions were kept of, from `status`; every call raises
        ClusterChanged if it is another one by now, such as after a restore. Raises ConfigError."""
        self.router = Router(servers, timeout_s, cluster_id)
        self.values = Values(codec_of(codec))

    async def __aenter__(self) -> AsyncKeyValueClient:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self.router.close()

    async def _command(self, command: Command, answer: type[Any]) -> tuple[int, Any]:
        body = encoded(command)
        check(command, len(body))
        return await self.router.call(Kind.COMMAND, body, answer, changes=True)

    # ---------------------------------------------------------------- writing

    async def put(
        self,
        key: Key,
        value: Any,
        *,
        lease: Lease | int = 0,
        prev_kv: bool = False,
        keeps_lease: bool = False,
    ) -> PutResult:
        """Raises LeaseNotFound, NoSpace, OutcomeUnknown."""
        number = lease.id if isinstance(lease, Lease) else lease
        data = self.values.codec.encode(value)
        command = Put(key_of(key), data, number, prev_kv, keeps_lease=keeps_lease)
        return self.values.put(*await self._command(command, PutAnswer))

    async def delete(self, key: Key, *, prev_kv: bool = False) -> DeleteResult:
        return await self._delete(DeleteRange(key_of(key), b"", prev_kv))

    async def delete_range(self, key: Key, end: Key, *, prev_kv: bool = False) -> DeleteResult:
        """key <= each < end."""
        return await self._delete(DeleteRange(key_of(key), key_of(end), prev_kv))

    async def delete_prefix(self, prefix: Key, *, prev_kv: bool = False) -> DeleteResult:
        return await self._delete(DeleteRange(*range_of(prefix), prev_kv))

    async def _delete(self, command: DeleteRange) -> DeleteResult:
        return self.values.deletion(*await self._command(command, DeleteAnswer))

    async def compare_and_set(
        self, key: Key, value: Any, *, expected_revision: int, lease: Lease | int = 0
    ) -> PutResult | None:
        """Put if the key was changed last at that revision; 0: if it does not exist. None: it was not
        so, and nothing has changed."""
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
    ) -> TxnResult:
        """One of the two lists is carried out, at one revision."""
        command = Txn(list(compare), list(then), list(otherwise))
        check(command, 0)
        if writes(command):
            return self.values.txn(*await self._command(command, TxnAnswer))
        kind = Kind.READ_HERE if stale else Kind.READ
        found = await self.router.call(kind, encoded(command), TxnAnswer, changes=False)
        return self.values.txn(*found)

    # ---------------------------------------------------------------- reading

    async def get(self, key: Key, *, revision: int = 0, stale: bool = False) -> Item | None:
        """Linearizable, unless `stale`: then whatever the member that is asked has applied."""
        found = await self.read_range(Range(key_of(key), revision=revision), stale=stale)
        return found.items[0] if found.items else None

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
    ) -> RangeResult:
        """key <= each < end."""
        asked = Range(
            key_of(key), key_of(end), limit, revision, sort_by, descending, keys_only, count_only
        )
        return await self.read_range(asked, stale=stale)

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
    ) -> RangeResult:
        start, end = range_of(prefix)
        asked = Range(start, end, limit, revision, sort_by, descending, keys_only, count_only)
        return await self.read_range(asked, stale=stale)

    async def read_range(self, asked: Range, *, stale: bool = False) -> RangeResult:
        kind = Kind.READ_HERE if stale else Kind.READ
        revision, found = await self.router.call(kind, encoded(asked), RangeAnswer, changes=False)
        return self.values.range(revision, found, keys_only=asked.keys_only)

    async def scan(
        self, prefix: Key = b"", *, page_items: int = PAGE_ITEMS, keys_only: bool = False
    ) -> AsyncIterator[Item]:
        """Every key that begins so, at one revision, read a page at a time."""
        start, end = range_of(prefix)
        revision = 0
        while True:
            asked = Range(start, end, page_items, revision, keys_only=keys_only, without_count=True)
            page = await self.read_range(asked)
            for item in page.items:
                yield item
            if not page.more:
                return
            revision = revision or page.revision
            start = page.items[-1].key + b"\0"

    def watch(
        self,
        key: Key,
        *,
        end: Key | None = None,
        first_revision: int = 0,
        prev_kv: bool = False,
        puts: bool = True,
        deletions: bool = True,
    ) -> Watching:
        """`async with kv.watch("key") as watch: async for change in watch`. `first_revision` 0: what
        changes from now on."""
        stop = b"" if end is None else key_of(end)
        asked = Watch(key_of(key), stop, first_revision, prev_kv, puts, deletions)
        return Watching(self.router, self.values, asked)

    def watch_prefix(self, prefix: Key, *, first_revision: int = 0, prev_kv: bool = False) -> Watching:
        start, end = range_of(prefix)
        return Watching(self.router, self.values, Watch(start, end, first_revision, prev_kv))

    # ---------------------------------------------------------------- leases, locks, elections

    async def grant(self, ttl_s: float, *, lease_id: int = 0) -> Lease:
        """Its `ttl_ms` says what was granted. `async with` keeps it alive, and revokes it."""
        return await Lease.grant(self.router, ttl_s, lease_id)

    def lease(self, lease_id: int) -> Lease:
        """One that was granted before."""
        return Lease(self.router, lease_id)

    async def leases(self) -> list[tuple[int, int, int]]:
        """(id, TTL in milliseconds, index of the grant) of all that stand."""
        found = await self.router.call(Kind.READ, encode(Leases()), LeasesAnswer, changes=False)
        return found[1].leases

    def lock(self, name: Key, *, ttl_s: float = 10.0) -> Lock:
        """`async with kv.lock("name") as lock: ... lock.token`."""
        return Lock(self, key_of(name), ttl_s)

    def election(self, name: Key, *, ttl_s: float = 10.0) -> Election:
        return Election(self, key_of(name), ttl_s)

    # ---------------------------------------------------------------- the store

    async def compact(self, revision: int) -> None:
        """History below ends. Raises Compacted, FutureRevision."""
        await self._command(Compact(revision), CompactAnswer)

    async def status(self) -> StatusAnswer:
        """Of the member that is asked."""
        found = await self.router.call(Kind.STATUS, b"", StatusAnswer, changes=False)
        return found[1]

    async def health(self, *, timeout_s: float | None = None) -> None:
        """A change that changes nothing is made, which takes what a put takes. Raises what refuses it:
        DiskFull, NoSpace, Unreachable, LeaderNotReady, OutcomeUnknown."""
        body = encoded(_CHANGES_NOTHING)
        await self.router.call(Kind.COMMAND, body, TxnAnswer, changes=True, timeout_s=timeout_s)
        refuses = (await self.status()).refuses  # larger ones
        if refuses:
            raise DiskFull(refuses)
