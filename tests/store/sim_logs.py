"""Members' directories on a simulated disk, which loses power and cannot read pages."""

from __future__ import annotations

import itertools

from quorumlog.config import StoreConfig
from quorumlog.entry import HardState
from quorumlog.store.member_directory import MemberDirectory, open_member_directory
from quorumlog.testing.disk import PAGE_BYTES, SimDisk

CONFIG = StoreConfig(
    segment_bytes=4 * PAGE_BYTES,
    index_segment_bytes=PAGE_BYTES,
    disk_full_ratio=1.0,
    reserve_step_bytes=2 * PAGE_BYTES,
)
TERM = 5
_directory_ids = map("id{}".format, itertools.count())


def open_simulated(
    disk: SimDisk, path: str = "m", *, config: StoreConfig = CONFIG, group_size: int = 3
) -> MemberDirectory:
    """In a term above those of the entries that tests append."""
    directory = open_member_directory(
        disk,
        path,
        group="g",
        member_id="n0",
        config=config,
        group_size=group_size,
        draw_id=lambda: next(_directory_ids),
    )
    if directory.hard_state.term < TERM:
        directory.save_hard_state(HardState(TERM, None))
    return directory


def data_path(position: int, path: str = "m") -> str:
    """Of the segment that holds a byte of the log."""
    return f"{path}/data/{position // CONFIG.segment_bytes * CONFIG.segment_bytes:020d}"


def make_unreadable(disk: SimDisk, position: int, path: str = "m") -> None:
    """The page that holds a byte of the log."""
    name = data_path(position, path)
    disk.unreadable.add((name, position % CONFIG.segment_bytes // PAGE_BYTES))
