"""Small directories for tests: real members' directories, filled through the real store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from quorumlog.batch import EntryBatch
from quorumlog.config import StoreConfig
from quorumlog.entry import HardState
from quorumlog.store.disk import Disk, OsDisk
from quorumlog.store.ledger_store import LedgerStore
from quorumlog.store.member_directory import MemberDirectory, open_member_directory

SMALL = StoreConfig(segment_bytes=1024, index_segment_bytes=320, reserve_step_bytes=4096)


def open_small(
    path: Path,
    *,
    disk: Disk | None = None,
    group: str = "g",
    member_id: str = "n0",
    config: StoreConfig = SMALL,
    group_size: int = 3,
) -> MemberDirectory:
    return open_member_directory(
        disk or OsDisk(),
        str(path),
        group=group,
        member_id=member_id,
        config=config,
        group_size=group_size,
    )


@contextmanager
def opened(path: Path, *, clean: bool = True, **options: object) -> Iterator[MemberDirectory]:
    directory = open_small(path, **options)  # type: ignore[arg-type]
    try:
        yield directory
    finally:
        directory.close(clean)


def append(store: LedgerStore, bodies: Sequence[bytes], term: int) -> None:
    append_batch(store, EntryBatch.from_bodies(bodies), term)


def append_noop(store: LedgerStore, term: int) -> None:
    append_batch(store, EntryBatch.noop(), term)


def append_batch(store: LedgerStore, batch: EntryBatch, term: int) -> None:
    positions = store.plan(batch.sizes)
    batch.stamp(store.end.index + 1, term, positions, store.end.chain)
    store.append(batch)


def sync(store: LedgerStore) -> None:
    task = store.begin_sync()
    if task is not None:
        task.run()
        store.finish_sync(task)


def body_of(index: int) -> bytes:
    return b"%d:" % index + bytes([index % 251]) * (index * 7 % 90)


def fill(directory: MemberDirectory, count: int, *, term: int = 1) -> None:
    """A no-op, then bodies, up to `count` entries in all; synced, and committed to the end."""
    if directory.hard_state.term < term:
        directory.save_hard_state(HardState(term, None))
    store = directory.store
    append_noop(store, term)
    first = store.end.index + 1
    stop = count
    for low in range(first, stop, 8):
        append(store, [body_of(index) for index in range(low, min(low + 8, stop))], term)
    sync(store)
    directory.write_checkpoint(store.end)


def make_directory(path: Path, count: int = 60, *, member_id: str = "n0") -> Path:
    """A cleanly stopped member's directory: terms 1 and 2, several segments."""
    with opened(path, member_id=member_id) as directory:
        fill(directory, count // 2, term=1)
        fill(directory, count, term=2)
    return path


def flip(path: Path, position: int, mask: int = 0x40) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= mask
    path.write_bytes(data)
