"""Backups that are refused for what their log, or an earlier run of them, is."""

from __future__ import annotations

from pathlib import Path

import pytest

from quorumlog.errors import ConfigError, DirectoryDamaged
from quorumlog.log_state.control_entries import ControlBody
from quorumlog.log_state.log_state import EMPTY
from quorumlog.store.directory.copied_log import CopiedLog, make_files
from quorumlog.store.disk import OsDisk
from quorumlog.store.files.backup_file import load_backup
from quorumlog.store.ledger_store import LogPoint, LogStart
from quorumlog.store.memory_disk import MemoryDisk
from tests.backups.store_client import SMALL, StoreClient, a_member, taken, write
from tests.store.made_logs import body_of

BODIES: list[ControlBody | bytes | None] = [None, *(body_of(index) for index in range(1, 30))]


def test_a_log_behind_an_old_store_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    disk = MemoryDisk()
    disk.make_directory("/n0")
    make_files(disk, "/n0", LogStart(LogPoint(-1, -1, 0, 4 * SMALL.segment_bytes), EMPTY.encode()))
    store = CopiedLog.open(disk, "/n0", SMALL).store
    write(store, BODIES)
    with pytest.raises(ConfigError, match="classic store"):
        taken(StoreClient({"n0": store}), tmp_path, OsDisk())
    assert load_backup(OsDisk(), str(tmp_path)) is None


def test_a_segment_of_zeros_from_an_earlier_run_is_seen_by_the_next(tmp_path: Path) -> None:
    store = a_member().store
    write(store, BODIES)
    client = StoreClient({"n0": store})
    taken(client, tmp_path, OsDisk())
    segment = tmp_path / "data" / f"{1024:020}"
    segment.write_bytes(bytes(1024))
    with pytest.raises(DirectoryDamaged, match=segment.name):
        taken(client, tmp_path, OsDisk())
