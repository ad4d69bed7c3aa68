"""Backups that are refused for what their log, or an earlier run of them, is."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from quorumlog.client.status_rows import MemberStatusRow
from quorumlog.errors import ConfigError, DirectoryDamaged, Unreachable
from quorumlog.log_state.control_entries import ControlBody
from quorumlog.log_state.log_state import EMPTY
from quorumlog.store.disk import OsDisk
from quorumlog.store.ledger_store import LedgerStore
from quorumlog.store.log_points import LogPoint, LogStart
from quorumlog.store.member_directory import CopiedLog, make_files
from quorumlog.store.memory_disk import MemoryDisk
from quorumlog.store.state_files import load_backup
from tests.backups.store_client import SMALL, StoreClient, a_member, taken, write
from tests.store.made_logs import body_of, flip

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


def test_a_flipped_body_of_an_earlier_run_is_seen_by_the_next(tmp_path: Path) -> None:
    store = a_member().store
    write(store, BODIES)
    client = StoreClient({"n0": store})
    before = taken(client, tmp_path, OsDisk())
    flip(tmp_path / "data" / f"{1024:020}", 300)
    write(store, [b"more"])
    with pytest.raises(DirectoryDamaged, match=rf"data/{1024:020}.*position.*the backup is damaged"):
        taken(client, tmp_path, OsDisk())
    record = load_backup(OsDisk(), str(tmp_path))
    assert record is not None and record.cut is not None
    assert record.cut.index == before.last_index  # no new cut counts, and no hold moves
    # What an earlier run has verified is not read again where that is asked for.
    assert taken(client, tmp_path, OsDisk(), verify="new").new_entries == 0
    with pytest.raises(ConfigError, match="verify must be all or new, not 'none'"):
        taken(client, tmp_path, OsDisk(), verify="none")


class JustStarted(StoreClient):
    """Nobody knows of a committed entry until it was asked a few times, or `end_index` has waited."""

    def __init__(self, store: LedgerStore, asked_before: int) -> None:
        super().__init__({"n0": store})
        self.left = asked_before

    def status(self) -> list[MemberStatusRow]:
        self.left -= 1
        rows = super().status()
        return [replace(row, committed_index=-1) for row in rows] if self.left >= 0 else rows


@pytest.mark.parametrize("from_member", [None, "n0"])
def test_a_member_that_has_just_started_is_waited_for(tmp_path: Path, from_member: str | None) -> None:
    store = a_member().store
    write(store, BODIES)
    report = taken(JustStarted(store, 2), tmp_path, OsDisk(), from_member=from_member)
    assert report.last_index == len(BODIES) - 1
    never = JustStarted(store, 1 << 30)
    never.timeout_ms = 1
    with pytest.raises(Unreachable, match="knows of"):
        taken(never, tmp_path / "never", OsDisk(), from_member=from_member)
    assert not (tmp_path / "never" / "data").exists()
