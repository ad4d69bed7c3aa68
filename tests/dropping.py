"""A stopped member's directory loses the first segments of its log, as retention drops them."""

from __future__ import annotations

from pathlib import Path

from quorumlog.config import StoreConfig
from quorumlog.log_state.log_state import EMPTY
from quorumlog.store.disk import OsDisk
from quorumlog.store.log_points import LogStart
from quorumlog.store.member_directory import open_member_directory


def drop_before_newest_boundary(
    path: Path, storage: StoreConfig, *, last_index: int = 1 << 60, member_id: str = "n0"
) -> LogStart:
    """`last_index`: of the boundary at most."""
    directory = open_member_directory(
        OsDisk(), str(path), group="default", member_id=member_id, config=storage, group_size=3
    )
    point = directory.store.boundaries.newest(last_index)
    assert point is not None
    start = LogStart(point, EMPTY.encode())
    directory.save_start(start)
    directory.store.drop_before(start)()
    directory.close(clean=True)
    return start
