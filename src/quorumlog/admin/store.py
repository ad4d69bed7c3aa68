"""A key-value store on a member."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from quorumlog.admin.looks import Look, Sample, Table, request_samples
from quorumlog.kv.endpoint import KeyValueEndpoint
from quorumlog.kv.service import StoreFigures


def look_at_store(endpoint: KeyValueEndpoint, group: str) -> Look:
    """On the loop of its member, which decides whether it is ready."""
    if not endpoint.is_open:
        return Look(group, "store", unready=("its store is not open",))
    figures = endpoint.service.figures()
    return Look(
        group,
        "store",
        leads=figures.leads,
        samples=(*_samples(figures), *request_samples("store", endpoint.requests)),
        tables=partial(_tables, figures),
    )


def _samples(figures: StoreFigures) -> Iterator[Sample]:
    yield Sample("quorumlog_mvcc_current_revision", figures.revision)
    yield Sample("quorumlog_mvcc_compact_revision", figures.compacted_revision)
    yield Sample("quorumlog_mvcc_keys", figures.keys)
    yield Sample("quorumlog_mvcc_db_total_size_in_bytes", figures.size_bytes)
    yield Sample("quorumlog_server_quota_backend_bytes", figures.quota_bytes)
    yield Sample("quorumlog_mvcc_watchers", figures.watches)
    yield Sample("quorumlog_mvcc_slow_watchers", figures.behind)
    for operation, times in figures.carried_out.items():
        yield Sample(f"quorumlog_mvcc_{operation}_total", times)
    yield Sample("quorumlog_lease_objects", figures.leases)


def _tables(figures: StoreFigures) -> list[Table]:
    names = ("keys", "revision", "compacted_revision", "leases", "watches", "size_bytes", "quota_bytes")
    row = tuple(getattr(figures, name) for name in names)
    return [Table("Store", tuple(name.replace("_", " ") for name in names), [row])]
