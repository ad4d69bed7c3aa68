"""Data directories of a stopped member, written through the store."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from quorumlog.batch import EntryBatch
from quorumlog.config import StoreConfig
from quorumlog.entry import EntryKind, HardState
from quorumlog.log_state.control_entries import TimeMark, encode_body
from quorumlog.store.disk import OsDisk
from quorumlog.store.log_points import LogPoint
from quorumlog.store.member_directory import open_member_directory

SMALL_SEGMENTS = StoreConfig(segment_bytes=4096, index_segment_bytes=3200)


def write_directory(
    path: Path,
    bodies: Sequence[bytes | TimeMark | None],
    *,
    committed_index: int,
    group: str = "default",
) -> Path:
    """A member that stopped with `bodies` on disk (None: a no-op, which opens another term; or a time
    mark) and knew of `committed_index`."""
    directory = open_member_directory(
        OsDisk(), str(path), group=group, member_id="n0", config=SMALL_SEGMENTS, group_size=3
    )
    store = directory.store
    term = 0
    for body in bodies:
        if isinstance(body, TimeMark):
            directory.allow_control_entries()
            batch = EntryBatch.control(EntryKind.TIME, encode_body(body))
        else:
            batch = EntryBatch.noop() if body is None else EntryBatch.from_bodies([body])
        term += int(batch.headers()["magic"][0]) == EntryKind.NOOP
        end = store.end
        batch.stamp(end.index + 1, term, store.plan(batch.sizes), end.chain)
        store.append(batch)
    directory.save_hard_state(HardState(term, None))
    task = store.begin_sync()
    assert task is not None
    task.run()
    store.finish_sync(task)
    if committed_index >= 0:
        entry_id = store.id_at(committed_index)
        chain = store.chain_at(committed_index)
        directory.write_checkpoint(LogPoint(committed_index, entry_id.term, chain, 0))
    directory.close(clean=True)
    return path


def flip_bit_of_body(path: Path, body: bytes) -> None:
    """Damage the first occurrence of `body` in the data segments, at its last byte."""
    for segment in sorted((path / "data").iterdir()):
        at = segment.read_bytes().find(body)
        if at >= 0:
            with segment.open("r+b") as file:
                file.seek(at + len(body) - 1)
                file.write(bytes([body[-1] ^ 1]))
            return
    raise AssertionError(f"{body!r} is not in {path}")
