"""A log whose clocks were ten years ahead for a while, and whose time was reset: everybody who asks when
an entry was appended hears the same."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from quorumlog import LocalCluster, StoreConfig, connect
from quorumlog.append_times import milliseconds_of
from quorumlog.backups import backup, restore
from quorumlog.client import LedgerClient, MemberStatusRow
from quorumlog.errors import IndexOutOfRange
from quorumlog.log_state.control_entries import LEVEL, ClockReset, TimeMark
from quorumlog.log_state.log_state import Reset, Resets
from quorumlog.pipelines.archive import Archive
from quorumlog.pipelines.archiving import archive
from quorumlog.pipelines.places import Place, open_log
from quorumlog.store.disk import OsDisk
from quorumlog.store.state_files import VERSION_WITH_KINDS_OF_LEVEL_6, load_member
from tests.client.test_time import leader_of, write
from tests.waiting import eventually

SMALL = StoreConfig(
    segment_bytes=16 * 1024, index_segment_bytes=3200, reserve_step_bytes=16 * 1024, max_entry_bytes=8192
)
T0 = datetime(2026, 11, 23, 10, tzinfo=UTC)
HOUR = timedelta(hours=1)
YEARS = timedelta(days=3650)


def at_ms(time: datetime) -> int:
    return milliseconds_of(time)


class Log:
    """Forty entries each: right, ten years ahead, right again behind a reset at two o'clock."""

    def __init__(self, cluster: LocalCluster, log: LedgerClient) -> None:
        self.cluster, self.log = cluster, log
        self.expected: dict[int, datetime] = {}
        self.reset_index = -1
        self.driver = leader_of(cluster)
        eventually(lambda: not self.driver.members_below(LEVEL))
        self.run(T0, T0)
        self.run(T0 + YEARS, T0 + 2 * HOUR)

    def run(self, said: datetime, counted: datetime) -> None:
        for number in range(10):
            write(self.driver, TimeMark(at_ms(said + timedelta(seconds=number))))
            after = min(counted, said) + (timedelta(seconds=number) if said == counted else 0 * HOUR)
            for _ in range(4):
                self.expected[self.log.append(bytes(500)).last_index] = after

    def reset(self) -> None:
        write(self.driver, ClockReset(at_ms(T0 + 2 * HOUR)))
        self.reset_index = self.driver.node.committed_index
        self.run(T0 + 3 * HOUR, T0 + 3 * HOUR)


@pytest.fixture
def made() -> Iterator[Log]:
    with LocalCluster(3, storage=SMALL, time_marks=False) as cluster, connect(cluster.servers) as log:
        yield Log(cluster, log)


def times_of(entries: Any) -> dict[int, datetime]:
    return {each.index: each.append_time for each in entries}


def test_whoever_asks_hears_the_same(made: Log, tmp_path: Path) -> None:
    log, servers = made.log, made.cluster.servers
    place = Place(servers=servers)
    early = str(tmp_path / "early")
    archive(place, early, part_bytes=8_000)  # before the reset: it goes on behind it
    assert Archive.open(early).time_ms_at(60) > at_ms(T0 + YEARS) - 1
    made.reset()
    assert log.clock_resets() == (Reset(made.reset_index, at_ms(T0 + 2 * HOUR)),)
    assert times_of(log.read(0, with_time=True)) == made.expected
    for index, time in made.expected.items():
        assert log.time_at(index) == time
    table = pa.Table.from_batches(list(log.read_arrow(0, columns=["index", "append_time"])))
    assert dict(zip(*(table[name].to_pylist() for name in table.column_names), strict=True)) == (
        made.expected
    )
    for since in (T0 + 5 * HOUR / 3600, T0 + HOUR, T0 + 2 * HOUR, T0 + 3 * HOUR, T0 + YEARS):
        first_index = log.index_at(since)
        assert first_index <= min((i for i, t in made.expected.items() if t > since), default=1 << 60)
        assert len({time for i, time in made.expected.items() if i >= first_index and time < since}) <= 1

    late = str(tmp_path / "late")
    archive(place, early, part_bytes=8_000)
    archive(place, late, part_bytes=8_000)
    rows = pq.read_table(f"{late}/parts", columns=["index", "append_time"])
    assert dict(zip(rows["index"].to_pylist(), rows["append_time"].to_pylist(), strict=True)) == (
        made.expected
    )
    stopped = tmp_path / "stopped"
    member = next(each for each in ("n0", "n1", "n2") if each != made.cluster.leader())
    eventually(lambda: made.cluster.server(member).drivers[0].node.committed_index >= log.end_index())
    made.cluster.kill(member)
    shutil.copytree(made.cluster.directory / member, stopped)
    for each in (place, Place(archive=late), Place(archive=early), Place(path=str(stopped))):
        opened = open_log(each)
        assert {index: opened.time_ms_at(index) for index in made.expected} == {
            index: at_ms(time) for index, time in made.expected.items()
        }, each
        opened.close()


def test_followers_that_do_not_know_the_reset_yet_are_not_asked_for_times(
    made: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = {index: made.log.time_at(index) for index in made.expected}
    known = max(said)
    made.reset()
    real_status, real_resets, real_time = (
        getattr(LedgerClient, name) for name in ("status", "clock_resets", "time_at")
    )

    def status(self: LedgerClient) -> list[MemberStatusRow]:
        return [
            replace(row, committed_index=known) if row.role == "follower" else row
            for row in real_status(self)
        ]

    def clock_resets(self: LedgerClient, *, from_member: str | None = None) -> Resets:
        return real_resets(self) if from_member is None else ()

    def time_at(self: LedgerClient, index: int, *, from_member: str | None = None) -> Any:
        if from_member is None:
            return real_time(self, index)
        if index > known:
            raise IndexOutOfRange(f"index {index} is above {known}")
        return said.get(index, said[min(said)])

    for name, late in (("status", status), ("clock_resets", clock_resets), ("time_at", time_at)):
        monkeypatch.setattr(LedgerClient, name, late)
    place = Place(servers=made.cluster.servers)
    archive(place, str(tmp_path / "a"), part_bytes=8_000)
    rows = pq.read_table(tmp_path / "a" / "parts", columns=["index", "append_time"])
    assert dict(zip(rows["index"].to_pylist(), rows["append_time"].to_pylist(), strict=True)) == (
        made.expected
    )
    with closing(open_log(place)) as opened:
        assert {index: opened.time_ms_at(index) for index in made.expected} == {
            index: at_ms(time) for index, time in made.expected.items()
        }


def test_a_backup_is_restored_up_to_a_time_that_counts(made: Log, tmp_path: Path) -> None:
    made.reset()
    taken = str(tmp_path / "backup")
    backup(made.cluster.servers, taken)
    for until in (T0 + timedelta(seconds=4), T0 + HOUR, T0 + 2 * HOUR, T0 + 3 * HOUR):
        restored = restore(
            taken,
            "n0=127.0.0.1:1",
            {"n0": tmp_path / f"restored-{at_ms(until)}"},
            time_ms=at_ms(until),
        )
        entries = [index for index, time in made.expected.items() if time <= until]
        behind = [index for index, time in made.expected.items() if time > until]
        assert entries[-1] <= restored.last_index < min(behind, default=1 << 60)
        record = load_member(OsDisk(), restored.members[0].directory)
        assert record is not None
        assert record.version == VERSION_WITH_KINDS_OF_LEVEL_6
    record = load_member(OsDisk(), taken)
    assert record is not None
    assert record.version == VERSION_WITH_KINDS_OF_LEVEL_6
