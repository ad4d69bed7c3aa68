"""DurableFile: the point never moves ahead of what was recorded, nor back by itself."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from quorumlog.store.disk import OsDisk
from quorumlog.store.durable_file import (
    DURABLE_ORIGIN,
    DurableFile,
    DurablePoint,
    encode_durable_point,
    read_durable_point,
)
from quorumlog.store.log_points import LogPoint
from quorumlog.store.slot_file import SLOT_BYTES
from tests.store.stopping_disk import StoppingDisk

disk = OsDisk()


def point(index: int) -> DurablePoint:
    return DurablePoint(LogPoint(index, 3, 0xCAFE0000 + index, 100 * index + 100), 64 * index)


def test_golden_payload() -> None:
    durable = DurablePoint(LogPoint(5, 2, 0xDEADBEEF, 1000), 512)
    assert encode_durable_point(durable).hex() == (
        "00000000000000050000000000000002deadbeef00000000000003e8000000000000020000"
    )


def test_a_new_file_is_at_the_origin(tmp_path: Path) -> None:
    DurableFile.create(disk, str(tmp_path)).close()
    file = DurableFile.open(disk, str(tmp_path))
    assert file.load() == DURABLE_ORIGIN == DurablePoint(LogPoint(-1, -1, 0, 0), 0)
    file.close()


def test_the_newest_recorded_point_is_loaded(tmp_path: Path) -> None:
    file = DurableFile.create(disk, str(tmp_path))
    for index in range(20):
        file.record(point(index))
        if index % 3 == 0:
            file.sync()
        assert file.load() == point(index)
        assert read_durable_point(disk, str(tmp_path)) == point(index)
    file.close()


def test_recording_is_not_synced_and_an_idle_sync_costs_nothing(tmp_path: Path) -> None:
    counting = StoppingDisk()
    file = DurableFile.create(counting, str(tmp_path))
    counting.steps.clear()
    for index in range(5):
        file.record(point(index))
    assert {what for what, _ in counting.steps} == {"write"}
    counting.steps.clear()
    file.sync()
    file.sync()
    assert [what for what, _ in counting.steps] == ["sync"]
    file.close()


def test_a_point_moves_back_only_by_name_and_then_in_both_slots(tmp_path: Path) -> None:
    file = DurableFile.create(disk, str(tmp_path))
    file.record(point(10))
    with pytest.raises(AssertionError):
        file.record(point(9))
    file.record_both_synced(point(4))
    file.close()
    data = bytearray((tmp_path / "durable").read_bytes())
    for slot in (0, 1):
        torn = bytearray(data)
        torn[slot * SLOT_BYTES + 30] ^= 1
        (tmp_path / "durable").write_bytes(torn)
        assert read_durable_point(disk, str(tmp_path)) == point(4)


def test_no_good_slot_is_no_point(tmp_path: Path) -> None:
    assert read_durable_point(disk, str(tmp_path)) is None
    (tmp_path / "durable").write_bytes(bytes(2 * SLOT_BYTES))
    assert read_durable_point(disk, str(tmp_path)) is None
    file = DurableFile.open(disk, str(tmp_path))
    assert file.load() is None
    file.close()


def test_a_flush_thread_records_while_another_syncs(tmp_path: Path) -> None:
    file = DurableFile.create(disk, str(tmp_path))
    finished = threading.Event()

    def sync_until_finished() -> None:
        while not finished.is_set():
            file.sync()

    syncing = threading.Thread(target=sync_until_finished)
    syncing.start()
    for index in range(500):
        file.record(point(index))
        # What a killed process leaves must be this point, or the one that replaced it.
        assert read_durable_point(disk, str(tmp_path)) == point(index)
    finished.set()
    syncing.join()
    file.close()
