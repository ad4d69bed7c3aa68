"""What each revision changed, as the members applied it, and what etcd answers from that."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

from quorumlog.kv.etcd import messages_pb2 as pb
from quorumlog.kv.requests import FROM_KEY, KeyValue, decode_key_value
from quorumlog.kv.store.keyspace import Changed, Ended, StoreChange
from quorumlog.testing.promises import Violation

Item = tuple[bytes, int, int, int, bytes, int]
"""(key, create revision, modify revision, version, value, lease); version 0: it was deleted."""
_COMPARED = {
    pb.Compare.VERSION: (3, "version"),
    pb.Compare.CREATE: (1, "create_revision"),
    pb.Compare.MOD: (2, "mod_revision"),
    pb.Compare.VALUE: (4, "value"),
}


def item_of(kv: KeyValue | pb.KeyValue) -> Item:
    return kv.key, kv.create_revision, kv.mod_revision, kv.version, kv.value, kv.lease


class Truth:
    def __init__(self) -> None:
        self.changes: dict[int, list[Item]] = {}
        """By revision."""
        self.applied_ms: dict[int, float] = {}
        """When the first member had applied a revision."""
        self.ended_ms: dict[int, float] = {}
        """When the first member had applied the end of a lease."""
        self._versions: dict[bytes, list[tuple[int, Item]]] = {}

    @property
    def newest(self) -> int:
        return next(reversed(self.changes), 0)

    def applied(self, items: list[StoreChange], now_ms: float) -> None:
        """By some member. Raises Violation where another one has applied something else."""
        for each in items:
            if isinstance(each, Ended):
                self.ended_ms.setdefault(each.lease, now_ms)
            elif isinstance(each, Changed):
                found = [item_of(decode_key_value(written.kv)) for written in each.written]
                known = self.changes.get(each.revision)
                if known is None:
                    self._changed(each.revision, found, now_ms)
                elif known != found:
                    raise Violation(f"{each.revision} is {known} at one member, {found} at another")

    def _changed(self, revision: int, items: list[Item], now_ms: float) -> None:
        if revision <= self.newest:
            raise Violation(f"revision {revision} is applied after {self.newest}")
        self.changes[revision], self.applied_ms[revision] = items, now_ms
        for item in items:
            self._versions.setdefault(item[0], []).append((revision, item))

    def item(self, key: bytes, revision: int) -> Item | None:
        """As it was then; None: it was not there."""
        versions = self._versions.get(key, [])
        place = bisect_right(versions, revision, key=lambda version: version[0])
        found = versions[place - 1][1] if place else None
        return found if found is not None and found[3] else None

    def items(self, key: bytes, end: bytes, revision: int) -> list[Item]:
        there = (self.item(each, revision) for each in sorted(self._versions) if within(each, key, end))
        return [item for item in there if item is not None]

    # ---------------------------------------------------------------- answers

    def check(self, request: Any, response: Any) -> None:
        """That etcd answers so at the revision of the response's header. Raises Violation."""
        revision = response.header.revision
        if isinstance(request, pb.RangeRequest):
            self._check_range(request, response, revision)
        elif isinstance(request, pb.PutRequest):
            before = self.item(request.key, revision - 1)
            now = self.item(request.key, revision)
            create, version = (revision, 1) if before is None else (before[1], before[3] + 1)
            made = request.key, create, revision, version, request.value, request.lease
            _same(request, "what it has put", now, made)
            previous = item_of(response.prev_kv) if response.HasField("prev_kv") else None
            _same(request, "what was there", previous, before if request.prev_kv else None)
        elif isinstance(request, pb.DeleteRangeRequest):
            gone = self.items(request.key, request.range_end, revision - 1)
            gone = gone if response.deleted else []
            _same(request, "how many it has deleted", response.deleted, len(gone))
            _same(request, "what is left", self.items(request.key, request.range_end, revision), [])
            previous_items = [item_of(kv) for kv in response.prev_kvs]
            _same(request, "what it has deleted", previous_items, gone if request.prev_kv else [])
        elif isinstance(request, pb.TxnRequest):
            self._check_txn(request, response, revision)

    def _check_range(self, request: pb.RangeRequest, response: pb.RangeResponse, revision: int) -> None:
        there = self.items(request.key, request.range_end, request.revision or revision)
        limit = request.limit or len(there)
        _same(request, "what is there", [item_of(kv) for kv in response.kvs], there[:limit])
        _same(
            request, "count and more", (response.count, response.more), (len(there), len(there) > limit)
        )

    def _check_txn(self, request: pb.TxnRequest, response: pb.TxnResponse, revision: int) -> None:
        """One that writes where it succeeds, and nowhere else."""
        holds = all(self._holds(each, revision - response.succeeded) for each in request.compare)
        _same(request, "whether it succeeds", response.succeeded, holds)
        asked = request.success if holds else request.failure
        for operation, answer in zip(asked, response.responses, strict=True):
            of_which = operation.WhichOneof("request")
            inner = getattr(answer, of_which.replace("request", "response"))
            _same(request, "the revision of a part", inner.header.revision, revision)
            self.check(getattr(operation, of_which), inner)

    def _holds(self, compare: pb.Compare, revision: int) -> bool:
        place, field = _COMPARED[compare.target]
        item = self.item(compare.key, revision)
        if item is None and field == "value":
            return False
        found: Any = 0 if item is None else item[place]
        than: Any = getattr(compare, field)
        return bool(
            {
                pb.Compare.EQUAL: found == than,
                pb.Compare.NOT_EQUAL: found != than,
                pb.Compare.GREATER: found > than,
                pb.Compare.LESS: found < than,
            }[compare.result]
        )


def within(key: bytes, first: bytes, end: bytes) -> bool:
    return key == first if not end else first <= key and (end == FROM_KEY or key < end)


def _same(request: Any, what: str, found: object, there: object) -> None:
    if found != there:
        raise Violation(f"{what} of {request!s} is {found}, and there was {there}")
