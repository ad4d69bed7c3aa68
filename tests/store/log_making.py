"""Making logs for the tests of the stores: small segments, bodies that name themselves."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence

import numpy as np

from quorumlog.batch import EntryBatch
from quorumlog.config import StoreConfig
from quorumlog.entry_header import HEADER_BYTES
from quorumlog.store.disk import Disk, OsDisk
from quorumlog.store.durable_file import DurableFile
from quorumlog.store.ledger_store import LedgerStore
from quorumlog.store.recovery import RecoveryReport

SMALL = StoreConfig(segment_bytes=1024, index_segment_bytes=256, disk_full_ratio=1.0)
"""Four entries of 200 bytes a data segment, eight entries an index segment."""


def body(index: int, term: int = 1, size: int = 200) -> bytes:
    """Bytes that name their entry."""
    return f"{index}:{term};".encode().ljust(size, b".")[:size]


def append_bodies(store: LedgerStore, bodies: Sequence[bytes], term: int = 1) -> None:
    """Stamp and append one batch, as a leader does."""
    append_batch(store, EntryBatch.from_bodies(bodies), term)


def append_noop(store: LedgerStore, term: int) -> None:
    append_batch(store, EntryBatch.noop(), term, control=True)


def append_batch(store: LedgerStore, batch: EntryBatch, term: int, *, control: bool = False) -> None:
    positions = store.plan(batch.sizes, control=control)
    batch.stamp(store.end.index + 1, term, positions, store.end.chain)
    store.append(batch)


def append_numbered(store: LedgerStore, count: int, term: int = 1, size: int = 200) -> None:
    first = store.end.index + 1
    append_bodies(store, [body(first + i, term, size) for i in range(count)], term)


def sync(store: LedgerStore) -> None:
    task = store.begin_sync()
    if task is not None:
        task.run()
        store.finish_sync(task)


def read_log(store: LedgerStore, limit_bytes: int = 1 << 20) -> list[tuple[int, int, bytes]]:
    """(index, term, body) of every entry, no-ops with an empty body; digests checked on the way."""
    entries: list[tuple[int, int, bytes]] = []
    index = store.begin.index + 1
    while index <= store.end.index:
        log_range = store.range_of(index, store.end.index + 1, limit_bytes)
        batch = store.read(log_range)
        batch.check_bodies()
        headers = batch.headers()
        entries += zip(
            headers["index"].tolist(),
            headers["term"].tolist(),
            map(bytes, batch.bodies()),
            strict=True,
        )
        index = log_range.stop_index
    return entries


def repair_from(twin: LedgerStore, store: LedgerStore, limit_bytes: int = 600) -> list[tuple[int, int]]:
    """Repair every range of `store` with another member's copy; returns the ranges, as indices."""
    ranges = list(store.damaged)
    while store.damaged:
        left = store.damaged[0]
        batch = twin.read(twin.range_of(left.first_index, left.stop_index, limit_bytes))
        store.write_piece(left, store.check_piece(left, batch), batch)
    return [(each.first_index, each.stop_index) for each in ranges]


def numbered(count: int, term: int = 1, size: int = 200, first: int = 0) -> list[tuple[int, int, bytes]]:
    return [(i, term, body(i, term, size)) for i in range(first, first + count)]


def make_directory(path: str, disk: Disk | None = None) -> None:
    """What a member's directory has before its log is opened for the first time."""
    disk = disk or OsDisk()
    disk.make_directory(path)
    DurableFile.create(disk, path).close()


def open_store(
    path: str, config: StoreConfig = SMALL, disk: Disk | None = None
) -> tuple[LedgerStore, RecoveryReport]:
    disk = disk or OsDisk()
    durable = DurableFile.open(disk, path)
    try:
        return LedgerStore.recover(disk, path, config, durable)
    except BaseException:
        durable.close()
        raise


def new_store(path: str, config: StoreConfig = SMALL, disk: Disk | None = None) -> LedgerStore:
    make_directory(path, disk)
    return open_store(path, config, disk)[0]


def copy_directory(source: str, target: str) -> str:
    if os.path.exists(target):
        shutil.rmtree(target)
    shutil.copytree(source, target)
    return target


def sizes_of(bodies: Sequence[bytes]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array([len(b) + HEADER_BYTES for b in bodies], np.int64)
