"""A backup: the same bytes, whatever befalls it, and never that of another log."""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorumlog.entry import Replica
from quorumlog.errors import (
    ConfigError,
    DirectoryDamaged,
    DiskFull,
    IndexOutOfRange,
    ProtocolViolation,
    RangeDamaged,
    Refused,
    StoreFailure,
    Unreachable,
)
from quorumlog.log_state.control_entries import ControlBody, Keep, MembershipEntry, TimeMark
from quorumlog.log_state.log_state import EMPTY, LogState, decode_state
from quorumlog.node.log_states import LogStateReading
from quorumlog.store.directory_reader import DirectoryReader
from quorumlog.store.disk import Disk, OsDisk
from quorumlog.store.ledger_store import LedgerStore
from quorumlog.store.log_points import LogStart
from quorumlog.store.made_directories import BackupDirectory
from quorumlog.store.memory_disk import MemoryDisk
from quorumlog.store.state_files import load_backup
from quorumlog.store.verification import verify_directory
from tests.backups.store_client import SMALL, StoreClient, a_member, taken, write
from tests.log_state import made
from tests.store.losing_disk import LosingDisk
from tests.store.made_logs import body_of, flip
from tests.store.stopping_disk import Stopped, StoppingDisk

BODIES: list[ControlBody | bytes | None] = [None, *(body_of(index) for index in range(1, 30))]
CONTROLS: list[ControlBody | bytes | None] = [
    None,
    MembershipEntry((Replica("n0", "a"),), (Replica("n0", "a"),)),
    *(b"one",) * 5,
    TimeMark(1000),
    *(b"two" * 90,) * 5,
    Keep(3),
    TimeMark(2000),
    b"three",
]


def a_log(*entries: list[ControlBody | bytes | None]) -> LedgerStore:
    """One term for each list."""
    store = a_member().store
    for term, each in enumerate(entries, 1):
        write(store, each, term)
    return store


def entries_of(disk: Disk, path: Path | str) -> list[bytes]:
    with DirectoryReader(disk, str(path)) as reader:
        batches = reader.batches(reader.ledger_begin_index, reader.end.index + 1)
        return [bytes(batch.buffer) for batch in batches]


def bytes_of(store: LedgerStore) -> bytes:
    parts, index = [], store.begin.index + 1
    while index <= store.end.index:
        log_range, batch = store.read_from(index, store.end.index + 1, 1 << 20)
        parts.append(bytes(batch.buffer))
        index = log_range.stop_index
    return b"".join(parts)


def check_whole(disk: Disk, path: Path | str, store: LedgerStore) -> None:
    """The backup is just this log."""
    verified = verify_directory(disk, str(path))
    assert verified.ok, verified
    assert b"".join(entries_of(disk, path)) == bytes_of(store)
    record = load_backup(disk, str(path))
    assert record is not None and record.cut is not None
    end = store.end
    assert (record.cut.index, record.cut.term, record.cut.chain) == (end.index, end.term, end.chain)
    with DirectoryReader(disk, str(path)) as reader:
        assert (reader.readable_index, reader.committed_index) == (end.index, end.index)
        assert (reader.group, reader.formation.cluster_id) == ("g", "c1")
        assert reader.damage == []


# ---------------------------------------------------------------- what is copied


def test_a_backup_holds_the_bytes_of_the_log_and_its_state(tmp_path: Path) -> None:
    store = a_log(BODIES, CONTROLS)
    report = taken(StoreClient({"n0": store}), tmp_path, OsDisk())
    check_whole(OsDisk(), tmp_path, store)
    assert (report.first_index, report.last_index) == (0, store.end.index)
    assert (report.new_entries, report.new_bytes) == (store.end.index + 1, len(bytes_of(store)))
    assert report.time_ms == 2000
    record = load_backup(OsDisk(), str(tmp_path))
    assert record is not None
    state = decode_state(record.record)
    assert isinstance(state, LogState)
    assert (state.time_ms, state.keep_from_index, state.membership) == (2000, 3, CONTROLS[1])


def test_a_second_one_adds_what_is_new(tmp_path: Path) -> None:
    store = a_log(BODIES)
    client = StoreClient({"n0": store})
    first = taken(client, tmp_path, OsDisk())
    assert taken(client, tmp_path, OsDisk()).new_entries == 0
    check_whole(OsDisk(), tmp_path, store)
    for term in range(2, 6):
        write(store, CONTROLS, term)
        assert taken(client, tmp_path, OsDisk()).new_entries == len(CONTROLS)
        check_whole(OsDisk(), tmp_path, store)
    assert first.last_index == len(BODIES) - 1


@settings(max_examples=40, deadline=None)
@given(
    parts=st.lists(
        st.lists(st.none() | made.BODIES | st.binary(max_size=400), min_size=1, max_size=20),
        min_size=1,
        max_size=4,
    )
)
def test_of_whatever_entries_in_however_many_parts(
    parts: list[list[ControlBody | bytes | None]],
) -> None:
    disk, store = MemoryDisk(), a_member().store
    client = StoreClient({"n0": store})
    for term, part in enumerate(parts, 1):
        write(store, part, term)
        taken(client, "b", disk)
        check_whole(disk, "b", store)
    reading = LogStateReading(store)
    while not reading.is_done:
        reading.read_on(store.end.index)
    record = load_backup(disk, "b")
    assert record is not None
    assert decode_state(record.record) == reading.finished()[0].appended


def test_a_follower_gives_the_entries_and_the_next_one_where_it_fails(tmp_path: Path) -> None:
    store, same, lagging = a_log(BODIES), a_log(BODIES), a_log(BODIES[:9])
    client = StoreClient({"n0": store, "n1": lagging, "n2": same})
    client.refuse = {"n2": (20, RangeDamaged("its disk"))}
    report = taken(client, tmp_path, OsDisk())
    assert client.asked == ["n1", "n2", "n0"]
    assert report.member_id == "n0"
    check_whole(OsDisk(), tmp_path, store)


def test_of_a_named_member_what_it_knows(tmp_path: Path) -> None:
    store, lagging = a_log(BODIES), a_log(BODIES[:9])
    client = StoreClient({"n0": store, "n1": lagging})
    assert taken(client, tmp_path, OsDisk(), from_member="n1").last_index == 8
    assert taken(client, tmp_path, OsDisk()).last_index == len(BODIES) - 1
    again = taken(client, tmp_path, OsDisk(), from_member="n1")
    assert (again.last_index, again.new_entries) == (len(BODIES) - 1, 0)
    check_whole(OsDisk(), tmp_path, store)
    with pytest.raises(Refused, match="there is no member 'n7'; the group has n0, n1"):
        taken(client, tmp_path, OsDisk(), from_member="n7")


def test_nobody_can_give_the_rest(tmp_path: Path) -> None:
    store = a_log(BODIES)
    client = StoreClient({"n0": store})
    client.refuse = {"n0": (20, RangeDamaged("its disk"))}
    with pytest.raises(Unreachable, match="no member could send the entries from 20 on: n0: its disk"):
        taken(client, tmp_path, OsDisk())
    client.refuse = {}
    assert taken(client, tmp_path, OsDisk()).new_entries == len(BODIES) - 20
    check_whole(OsDisk(), tmp_path, store)


# ---------------------------------------------------------------- a log that has lost its first entries


def drop(member: object, least_index: int) -> LogStart:
    store = member.store  # type: ignore[attr-defined]
    point = store.boundaries.newest(least_index)
    assert point is not None
    start = LogStart(point, EMPTY.encode())
    member.save_start(start)  # type: ignore[attr-defined]
    store.drop_before(start)()
    return start


def test_a_log_without_its_first_entries_is_backed_up_from_where_it_begins(tmp_path: Path) -> None:
    member = a_member()
    store = member.store
    write(store, BODIES)
    start = drop(member, 20)
    client = StoreClient({"n0": store})
    report = taken(client, tmp_path, OsDisk())
    assert report.first_index == start.point.index + 1 > 10
    check_whole(OsDisk(), tmp_path, store)
    write(store, BODIES, 2)
    taken(client, tmp_path, OsDisk())
    check_whole(OsDisk(), tmp_path, store)


def test_the_backup_keeps_what_the_log_drops(tmp_path: Path) -> None:
    member, whole = a_member(), a_log(BODIES, BODIES)
    client = StoreClient({"n0": member.store})
    write(member.store, BODIES)
    taken(client, tmp_path, OsDisk())
    write(member.store, BODIES, 2)
    drop(member, 20)
    taken(client, tmp_path, OsDisk())
    check_whole(OsDisk(), tmp_path, whole)


def test_the_boundary_itself_is_enough_to_go_on(tmp_path: Path) -> None:
    member = a_member()
    client = StoreClient({"n0": member.store})
    write(member.store, BODIES)
    boundary = member.store.boundaries.newest(len(BODIES))
    assert boundary is not None
    shorter = a_log(BODIES[: boundary.index + 1])
    taken(StoreClient({"n0": shorter}), tmp_path, OsDisk())
    assert drop(member, len(BODIES)).point.index == boundary.index
    taken(client, tmp_path, OsDisk())
    check_whole(OsDisk(), tmp_path, a_log(BODIES))


def test_a_gap_is_told_and_the_backup_stays_as_it_is(tmp_path: Path) -> None:
    member = a_member()
    client = StoreClient({"n0": member.store})
    write(member.store, BODIES[:10])
    taken(client, tmp_path, OsDisk())
    write(member.store, BODIES[10:])
    start = drop(member, 25)
    with pytest.raises(IndexOutOfRange, match=r"begins at index \d+ by now, and .* ends at 9: .*stays"):
        taken(client, tmp_path, OsDisk())
    check_whole(OsDisk(), tmp_path, a_log(BODIES[:10]))
    other = tmp_path / "another"
    assert taken(client, other, OsDisk()).first_index == start.point.index + 1


def test_one_that_was_never_complete_begins_anew_behind_a_gap(tmp_path: Path) -> None:
    member = a_member()
    client = StoreClient({"n0": member.store})
    write(member.store, BODIES)
    client.refuse = {"n0": (8, RangeDamaged("its disk"))}
    with pytest.raises(Unreachable):
        taken(client, tmp_path, OsDisk())
    client.refuse = {}
    start = drop(member, 25)
    assert taken(client, tmp_path, OsDisk()).first_index == start.point.index + 1
    check_whole(OsDisk(), tmp_path, member.store)


def test_a_follower_gives_what_the_leader_has_dropped(tmp_path: Path) -> None:
    leader, follower = a_member(), a_log(BODIES)
    client = StoreClient({"n0": leader.store, "n1": follower})
    write(leader.store, BODIES[:10])
    shorter = StoreClient({"n0": a_log(BODIES[:10])})
    taken(shorter, tmp_path, OsDisk())
    write(leader.store, BODIES[10:])
    assert drop(leader, 25).point.index > 10
    assert taken(client, tmp_path, OsDisk()).member_id == "n1"
    check_whole(OsDisk(), tmp_path, follower)


def test_a_disk_that_is_full_stops_it_until_there_is_space(tmp_path: Path) -> None:
    store = a_log(BODIES)
    client = StoreClient({"n0": store})
    taken(client, tmp_path, OsDisk())
    write(store, BODIES * 3, 2)
    full = OSError(errno.ENOSPC, "No space left on device")
    grown = StoppingDisk(
        -1, lambda what, path: full if (what, "data" in path) == ("create", True) else None
    )
    with pytest.raises(DiskFull, match=f"no space to create {tmp_path}/data/"):
        taken(client, tmp_path, grown)
    replaced = StoppingDisk(-1, lambda what, path: full if path.endswith("backup.tmp") else None)
    with pytest.raises(StoreFailure, match=r"backup cannot be written: No space .*; make space on its"):
        taken(client, tmp_path, replaced)
    record = load_backup(OsDisk(), str(tmp_path))
    assert record is not None and record.cut is not None
    assert record.cut.index == len(BODIES) - 1
    taken(client, tmp_path, OsDisk())
    check_whole(OsDisk(), tmp_path, store)


# ---------------------------------------------------------------- another log


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ("cluster", "its cluster id is c1, and that of n0 c2"),
        ("entry", "entry 29 is another one there"),
        ("shorter", "it ends at entry 29, and the log at entry 9"),
    ],
)
def test_the_backup_of_another_log_is_left_alone(tmp_path: Path, change: str, what: str) -> None:
    taken(StoreClient({"n0": a_log(BODIES)}), tmp_path, OsDisk())
    if change == "cluster":
        other = StoreClient({"n0": a_log(BODIES, BODIES)}, cluster_id="c2")
    elif change == "entry":
        other = StoreClient({"n0": a_log([None, b"another", *BODIES[2:]], BODIES)})
    else:
        other = StoreClient({"n0": a_log(BODIES[:10])})
    with pytest.raises(ConfigError, match=f"is the backup of another log: {what}"):
        taken(other, tmp_path, OsDisk())
    check_whole(OsDisk(), tmp_path, a_log(BODIES))


def test_entries_of_another_length_of_segments_are_not_taken(tmp_path: Path) -> None:
    client = StoreClient({"n0": a_log(BODIES)})
    client.config = type(SMALL)(segment_bytes=2048, index_segment_bytes=320)
    with pytest.raises(ProtocolViolation, match="lie elsewhere"):
        taken(client, tmp_path, OsDisk())


def test_other_directories_are_left_alone(tmp_path: Path) -> None:
    client = StoreClient({"n0": a_log(BODIES)})
    member = tmp_path / "member"
    a_member(OsDisk(), str(member)).close(clean=True)
    with pytest.raises(ConfigError, match="is the directory of a member of a log, not a backup"):
        taken(client, member, OsDisk())
    other = tmp_path / "other"
    other.mkdir()
    (other / "mine.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"holds files of other software \(mine.txt\)"):
        taken(client, other, OsDisk())
    assert [each.name for each in other.iterdir()] == ["mine.txt"]
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot be used for a backup: "):
        taken(client, tmp_path / "file", OsDisk())


def test_one_at_a_time(tmp_path: Path) -> None:
    client = StoreClient({"n0": a_log(BODIES)})
    taken(client, tmp_path, OsDisk())
    with (
        BackupDirectory(OsDisk(), str(tmp_path)),
        pytest.raises(ConfigError, match="is in use: another backup goes there"),
    ):
        taken(client, tmp_path, OsDisk())
    taken(client, tmp_path, OsDisk())


# ---------------------------------------------------------------- damage


def test_a_damaged_backup_is_not_added_to(tmp_path: Path) -> None:
    store = a_log(BODIES)
    client = StoreClient({"n0": store})
    taken(client, tmp_path, OsDisk())
    segment = tmp_path / "data" / f"{2048:020}"
    segment.unlink()
    write(store, BODIES, 2)
    for _ in range(2):
        with pytest.raises(DirectoryDamaged, match=r"position \d+.*the backup is damaged"):
            taken(client, tmp_path, OsDisk())


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    client = StoreClient({"n0": a_log(BODIES)})
    with BackupTaking_of(client, tmp_path) as taking:
        taking.prepare()
        taking.copy()
        flip(tmp_path / "data" / f"{1024:020}", 300)
        with pytest.raises(DirectoryDamaged, match=f"data/{1024:020}"):
            taking.verify()
    record = load_backup(OsDisk(), str(tmp_path))
    assert record is not None and record.cut is None


def BackupTaking_of(client: StoreClient, path: Path):  # type: ignore[no-untyped-def]  # noqa: N802
    from quorumlog.backups.taking import BackupTaking

    return BackupTaking(client, str(path), disk=OsDisk())  # type: ignore[arg-type]


# ---------------------------------------------------------------- killed, or without power


def test_killed_at_any_step_the_one_before_is_whole_and_the_next_goes_on(tmp_path: Path) -> None:
    old, new = a_log(CONTROLS), a_log(CONTROLS, CONTROLS)
    steps = 0
    for stop_at in range(0, 10_000, 9):
        path = tmp_path / str(stop_at)
        taken(StoreClient({"n0": old}), path, OsDisk())
        disk = StoppingDisk(stop_at)
        try:
            taken(StoreClient({"n0": new}), path, disk)
        except Stopped:
            steps += 1
        else:
            break
        record = load_backup(OsDisk(), str(path))
        assert record is not None and record.cut is not None
        assert record.cut.index in (old.end.index, new.end.index)
        taken(StoreClient({"n0": new}), path, OsDisk())
        check_whole(OsDisk(), path, new)
    assert steps > 5


def test_the_first_one_killed_at_any_step_is_none_and_the_next_is_whole(tmp_path: Path) -> None:
    store, steps = a_log(CONTROLS), 0
    for stop_at in range(0, 10_000, 9):
        path = tmp_path / str(stop_at)
        try:
            taken(StoreClient({"n0": store}), path, StoppingDisk(stop_at))
        except Stopped:
            steps += 1
        else:
            break
        taken(StoreClient({"n0": store}), path, OsDisk())
        check_whole(OsDisk(), path, store)
    assert steps > 8


def test_without_power_at_any_step_the_one_before_is_whole_and_the_next_goes_on() -> None:
    old, new = a_log(CONTROLS), a_log(CONTROLS, CONTROLS)
    base = LosingDisk()
    taken(StoreClient({"n0": old}), "b", base)
    for stop_at in range(0, 10_000, 5):
        disk = LosingDisk.of(base.contents())
        disk.steps_left = stop_at
        try:
            taken(StoreClient({"n0": new}), "b", disk)
            is_done = True
        except Stopped:
            is_done = False
        disk.steps_left = -1
        disk.lose_power(Random(stop_at))
        record = load_backup(disk, "b")
        assert record is not None and record.cut is not None
        if is_done:
            assert record.cut.index == new.end.index
        taken(StoreClient({"n0": new}), "b", disk)
        check_whole(disk, "b", new)
        if is_done:
            return
