"""A new cluster from a backup: the same bytes up to the chosen end, and behind it who votes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from random import Random

import pytest
from msgspec.structs import replace

from quorumlog.backups import Restored, restore
from quorumlog.backups.folding import state_at_end
from quorumlog.batch import EntryBatch
from quorumlog.entry import EntryId, EntryKind, HardState, Replica
from quorumlog.errors import ConfigError, DirectoryDamaged
from quorumlog.log_state.control_entries import (
    ControlBody,
    MembershipEntry,
    OpenProducer,
    ProducerBatch,
    TimeMark,
    decode_body,
)
from quorumlog.log_state.log_state import EMPTY, LogState, Machine
from quorumlog.log_state.users import User, UsersChange
from quorumlog.node.log_states import LogStateReading
from quorumlog.store.directory_reader import DirectoryReader
from quorumlog.store.disk import Disk, OsDisk
from quorumlog.store.ledger_store import LedgerStore
from quorumlog.store.log_points import LogStart
from quorumlog.store.made_directories import BackupDirectory
from quorumlog.store.member_directory import MemberDirectory, open_member_directory
from quorumlog.store.memory_disk import MemoryDisk
from quorumlog.store.verification import compare_directories, verify_directory
from tests.backups.store_client import SMALL, StoreClient, a_member, taken, write
from tests.store.losing_disk import LosingDisk
from tests.store.made_logs import append_batch, body_of, flip
from tests.store.stopping_disk import Stopped, StoppingDisk

OLD = MembershipEntry((Replica("n0", "a"), Replica("n1", "b")), (Replica("n0", "a"),))
ENTRIES: list[ControlBody | bytes | None] = [
    None,
    OLD,
    b"one",
    TimeMark(1000),
    *(body_of(index) for index in range(4, 14)),
    TimeMark(2000),
    *(body_of(index) for index in range(15, 20)),
    TimeMark(2000),
    b"two",
    TimeMark(3000),
    b"three",
]
MARKS = [(3, 1000), (14, 2000), (20, 2000), (22, 3000)]
LAST = len(ENTRIES) - 1
MEMBERS = "n2=h2:1,n0=h0:1,n1=h1:1"


def directories(root: Path | str, count: int = 3) -> dict[str, str]:
    return {f"n{number}": f"{root}/n{number}" for number in range(count)}


def backed_up(path: Path | str, disk: Disk, store: LedgerStore | None = None) -> str:
    if store is None:
        store = a_member().store
        write(store, ENTRIES, 7)
    taken(StoreClient({"n0": store}), path, disk)
    return str(path)


def opened(disk: Disk, path: str, member_id: str, group_size: int = 3) -> MemberDirectory:
    return open_member_directory(
        disk, path, group="g", member_id=member_id, config=SMALL, group_size=group_size
    )


def all_entries(disk: Disk, path: str) -> list[tuple[int, int, int, bytes]]:
    """(index, term, kind, body)."""
    found = []
    with DirectoryReader(disk, path) as reader:
        for batch in reader.batches(reader.ledger_begin_index, reader.end.index + 1):
            for at, header in enumerate(batch.headers()):
                found.append(
                    (
                        int(header["index"]),
                        int(header["term"]),
                        int(header["magic"]),
                        bytes(batch.body(at)),
                    )
                )
    return found


def data_of(disk: Disk, path: str) -> dict[str, bytes]:
    """Every byte of the log."""
    files = {}
    for folder in ("data", "index"):
        for name in disk.list(f"{path}/{folder}"):
            file = disk.open(f"{path}/{folder}/{name}", writable=False)
            files[f"{folder}/{name}"] = file.pread(file.size(), 0)
            file.close()
    return files


def check_restored(
    disk: Disk, source: str, restored: Restored, targets: Mapping[str, str], last_index: int
) -> None:
    """Each is a member's directory that could be started."""
    held = all_entries(disk, source)[: last_index + 1 - restored.first_index]
    term = (held[-1][1] if held else 0) + 1
    assert (restored.last_index, restored.membership_index) == (last_index, last_index + 2)
    logs = []
    for member_id, path in targets.items():
        assert verify_directory(disk, path).ok
        *same, noop, membership = all_entries(disk, path)
        assert same == held
        assert noop == (last_index + 1, term, EntryKind.NOOP, b"")
        assert membership[:3] == (last_index + 2, term, EntryKind.MEMBERSHIP)
        body = decode_body(EntryKind.MEMBERSHIP, membership[3])
        logs.append(data_of(disk, path))
        directory = opened(disk, path, member_id, len(targets))
        formation = directory.formation
        assert isinstance(body, MembershipEntry)
        assert body.old == body.new == formation.founding
        assert sorted(formation.founding) == list(formation.founding)
        assert Replica(member_id, directory.directory_id) in formation.founding
        assert [each.member_id for each in formation.founding] == sorted(targets)
        assert formation.cluster_id == restored.cluster_id != "c1"
        assert body.addresses == tuple((m.member_id, m.address) for m in restored.members)
        assert directory.hard_state == HardState(term, None)
        assert directory.committed_index == directory.store.end.index == last_index + 2
        assert not directory.renewed and directory.may_hold_control_entries
        reading = LogStateReading(directory.store)
        while not reading.is_done:
            reading.read_on(directory.committed_index)
        state = reading.finished()[0].appended
        assert isinstance(state, LogState) and state.membership == body
        directory.close(clean=True)
    assert all(each == logs[0] for each in logs)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_a_new_cluster_of_any_number_of_members(tmp_path: Path, count: int) -> None:
    disk = OsDisk()
    source = backed_up(tmp_path / "b", disk)
    targets = directories(tmp_path, count)
    members = ",".join(f"{member_id}=127.0.0.1:{number + 1}" for number, member_id in enumerate(targets))
    check_restored(disk, source, restore(source, members, targets), targets, LAST)
    readers = [DirectoryReader(disk, path) for path in (source, *targets.values())]
    assert compare_directories(readers).ok
    for reader in readers:
        reader.close()


def test_up_to_any_index() -> None:
    disk = MemoryDisk()
    source = backed_up("b", disk)
    for last_index in range(-1, LAST + 1):
        targets = directories(f"at{last_index}", 1)
        restored = restore(source, "n0=h:1", targets, last_index=last_index, disk=disk)
        check_restored(disk, source, restored, targets, last_index)
    for last_index in (-2, LAST + 1):
        with pytest.raises(
            ConfigError, match=f"index {last_index} is not in the backup, .* 0 to {LAST}"
        ):
            restore(source, "n0=h:1", directories("x", 1), last_index=last_index, disk=disk)
    assert disk.list("x/n0") == []


def test_up_to_a_time() -> None:
    disk = MemoryDisk()
    source = backed_up("b", disk)
    stops = [index for index, _ in MARKS]
    for time_ms, last_index in (
        (1000, stops[1] - 1),
        (1999, stops[1] - 1),
        (2000, stops[3] - 1),
        (2999, stops[3] - 1),
        (3000, LAST),
        (9999, LAST),
    ):
        targets = directories(f"at{time_ms}", 1)
        restored = restore(source, "n0=h:1", targets, time_ms=time_ms, disk=disk)
        check_restored(disk, source, restored, targets, last_index)
    with pytest.raises(ConfigError, match="the first time mark in b is of a later time, at index 3"):
        restore(source, "n0=h:1", directories("x", 1), time_ms=999, disk=disk)
    with pytest.raises(ConfigError, match="an index and a time exclude each other"):
        restore(source, "n0=h:1", directories("x", 1), time_ms=999, last_index=3, disk=disk)


def test_a_time_needs_time_marks() -> None:
    disk, store = MemoryDisk(), a_member().store
    write(store, [None, b"one"])
    source = backed_up("b", disk, store)
    with pytest.raises(ConfigError, match="b has no time marks; choose an index instead"):
        restore(source, "n0=h:1", directories("x", 1), time_ms=999, disk=disk)


@pytest.mark.parametrize("kept", range(6))
def test_a_batch_of_a_producer_that_is_cut_is_closed(kept: int) -> None:
    disk, store = MemoryDisk(), a_member().store
    write(store, [None, OpenProducer("p", bytes(16))], 7)
    write(store, [ProducerBatch("p", EntryId(1, 7), 0, 5), *[b"data"] * 5], 7)
    source = backed_up("b", disk, store)
    targets = directories("x", 1)
    restored = restore(source, "n0=h:1", targets, last_index=2 + kept, disk=disk)
    check_restored(disk, source, restored, targets, 2 + kept)
    directory = opened(disk, targets["n0"], "n0", 1)
    state = state_at_end(directory.store)
    assert isinstance(state, LogState)
    assert (state.producers.current is None) == (kept < 5)  # a whole one cannot be cut any more
    session = state.producers.get("p")
    assert session is not None and session.last_sequence == kept - 1
    directory.close(clean=True)


def test_a_log_without_its_first_entries() -> None:
    disk, member = MemoryDisk(), a_member()
    write(member.store, ENTRIES, 7)
    point = member.store.boundaries.newest(12)
    assert point is not None
    machine = Machine("totals", 1, 1, 2)
    known = LogState(level=3, membership=OLD, membership_index=1, time_ms=1000, time_index=3)
    record = replace(known, machines=(machine,)).encode()
    start = LogStart(point, record)
    member.save_start(start)
    member.store.drop_before(start)()
    source = backed_up("b", disk, member.store)
    for last_index in (point.index, point.index + 1, LAST):
        targets = directories(f"at{last_index}")
        restored = restore(source, MEMBERS, targets, last_index=last_index, disk=disk)
        assert restored.first_index == point.index + 1
        # Without an entry the term is that of the start.
        if last_index > point.index:
            check_restored(disk, source, restored, targets, last_index)
        else:
            assert [each[:3] for each in all_entries(disk, targets["n1"])] == [
                (point.index + 1, 8, EntryKind.NOOP),
                (point.index + 2, 8, EntryKind.MEMBERSHIP),
            ]
    restored = restore(source, "n0=h:1", directories("timed", 1), time_ms=1500, disk=disk)
    assert restored.last_index == MARKS[1][0] - 1
    assert restored.lost_machines == ("totals",)
    with pytest.raises(ConfigError, match=f"is not in the backup, which goes from {point.index + 1} to"):
        restore(source, MEMBERS, directories("x"), last_index=point.index - 1, disk=disk)


def test_only_what_was_complete_is_restored() -> None:
    disk, store = MemoryDisk(), a_member().store
    write(store, ENTRIES, 7)
    source = backed_up("b", disk, store)
    with BackupDirectory(disk, source) as directory:
        assert directory.log is not None
        directory.log.append_own(EntryBatch.from_bodies([b"behind the cut"]), 8)
    targets = directories("new")
    check_restored(disk, source, restore(source, MEMBERS, targets, disk=disk), targets, LAST)


# ---------------------------------------------------------------- refused


def test_any_byte_of_an_entry_that_changes_is_told_with_file_and_position(tmp_path: Path) -> None:
    disk = OsDisk()
    source = backed_up(tmp_path / "b", disk)
    random = Random(5)
    with DirectoryReader(disk, source) as reader:
        headers = [reader.header_at(index) for index in range(LAST + 1)]
    for number, header in enumerate(headers):
        position = header.pos + random.randrange(header.size)
        path = tmp_path / "b" / "data" / f"{position // 1024 * 1024:020}"
        flip(path, position % 1024)
        targets = directories(tmp_path / f"new{number}", 1)
        with pytest.raises(DirectoryDamaged, match=rf"{path}: .*position {header.pos}\b") as damaged:
            restore(source, "n0=h:1", targets)
        assert damaged.value.position == header.pos
        assert not disk.exists(f"{targets['n0']}/member")
        flip(path, position % 1024)
        restore(source, "n0=h:1", targets)


def test_a_file_of_the_backup_that_is_gone_or_damaged(tmp_path: Path) -> None:
    disk = OsDisk()
    source = backed_up(tmp_path / "b", disk)
    for name in ("backup", "member", f"data/{1024:020}", "durable", "hardstate"):
        path = tmp_path / "b" / name
        content = path.read_bytes()
        path.write_bytes(b"")
        with pytest.raises((DirectoryDamaged, ConfigError), match=r"\(position \d+"):
            restore(source, "n0=h:1", directories(tmp_path / "x", 1))
        path.write_bytes(content)
    content = (tmp_path / "b" / "member").read_bytes()
    (tmp_path / "b" / "member").unlink()
    with pytest.raises(DirectoryDamaged, match="member is missing"):  # and is not read as Java's
        restore(source, "n0=h:1", directories(tmp_path / "x", 1))
    (tmp_path / "b" / "member").write_bytes(content)
    restore(source, "n0=h:1", directories(tmp_path / "x", 1))


def test_what_is_no_complete_backup_is_refused(tmp_path: Path) -> None:
    a_member(OsDisk(), str(tmp_path / "m")).close(clean=True)
    for path in ("m", "nowhere"):
        with pytest.raises(ConfigError, match="is no backup: it has no file 'backup'"):
            restore(str(tmp_path / path), MEMBERS, directories(tmp_path / "x"))
    disk, store = MemoryDisk(), a_member().store
    with BackupDirectory(disk, "b") as directory:
        directory.begin("g", "c1", 1024, 320, None)
    with pytest.raises(ConfigError, match="b is a backup that was never complete; take it again"):
        restore("b", MEMBERS, directories("x"), disk=disk)
    assert store.end.index == -1


def test_a_directory_that_holds_anything_is_left_alone(tmp_path: Path) -> None:
    source = backed_up(tmp_path / "b", OsDisk())
    targets = directories(tmp_path)
    (tmp_path / "n1").mkdir()
    (tmp_path / "n1" / "mine").write_text("mine")
    with pytest.raises(ConfigError, match=r"n1 is not empty \(it holds mine\); name an empty directory"):
        restore(source, MEMBERS, targets)
    assert not (tmp_path / "n0").exists()
    (tmp_path / "n1" / "mine").unlink()
    restore(source, MEMBERS, targets)
    with pytest.raises(ConfigError, match="n0 is not empty"):
        restore(source, MEMBERS, targets)


@pytest.mark.parametrize(
    ("members", "given", "what"),
    [
        (MEMBERS, {"n0": "a", "n1": "b"}, "no directory is named for n2; every member needs one"),
        ("n0=h:1", {"n0": "a", "n7": "b"}, r"n7 is no member of the list \(n0\)"),
        ("n0=h:1,n1=h:2", {"n0": "a", "n1": "a"}, "a is named twice; every member needs"),
        ("n0=h:1", {"n0": "b"}, "b is named twice"),
        ("n0=h:1,n0=h:2", {"n0": "a"}, "two members have the id n0"),
    ],
)
def test_slips(members: str, given: dict[str, str], what: str) -> None:
    disk = MemoryDisk()
    source = backed_up("b", disk)
    with pytest.raises(ConfigError, match=what):
        restore(source, members, given, disk=disk)


# ---------------------------------------------------------------- killed, or without power


def test_killed_at_any_step_no_member_starts_and_the_next_restore_is_whole(tmp_path: Path) -> None:
    real = OsDisk()
    source = backed_up(tmp_path / "b", real)
    for stop_at in range(0, 10_000, 17):
        targets = directories(tmp_path / str(stop_at), 2)
        members = "n0=h0:1,n1=h1:1"
        try:
            restored = restore(source, members, targets, disk=StoppingDisk(stop_at))
        except Stopped:
            started = [path for path in targets.values() if real.exists(f"{path}/member")]
            if not started:
                restored = restore(source, members, targets)
            for member_id, path in targets.items():
                assert bool(started) == (path in started) or path != targets["n0"]
                if path in started:
                    opened(real, path, member_id, 2).close(clean=True)
            if started:
                continue
            check_restored(real, source, restored, targets, LAST)
        else:
            check_restored(real, source, restored, targets, LAST)
            break


def test_an_interrupted_restore_is_no_members_directory(tmp_path: Path) -> None:
    source = backed_up(tmp_path / "b", OsDisk())
    targets = directories(tmp_path)
    disk = StoppingDisk(-1, lambda what, path: _stop(path) if path.endswith("n2/checkpoint") else None)
    with pytest.raises(Stopped):
        restore(source, MEMBERS, targets, disk=disk)
    for member_id, path in targets.items():
        with pytest.raises(
            ConfigError, match="is of a restore or takeover that did not come to its end"
        ):
            opened(OsDisk(), path, member_id)
    check_restored(OsDisk(), source, restore(source, MEMBERS, targets), targets, LAST)


def _stop(path: str) -> OSError | None:
    raise Stopped(path)


def test_without_power_at_any_step_a_member_is_whole_or_none() -> None:
    base = LosingDisk()
    source = backed_up("b", base)
    for stop_at in range(0, 10_000, 5):
        disk = LosingDisk.of(base.contents())
        disk.steps_left = stop_at
        targets = directories("new", 1)
        try:
            restored = restore(source, "n0=h:1", targets, disk=disk)
            is_done = True
        except Stopped:
            is_done = False
        disk.steps_left = -1
        disk.lose_power(Random(stop_at))
        if not disk.exists("new/n0/member"):
            assert not is_done
            restored = restore(source, "n0=h:1", targets, disk=disk)
        elif not is_done:
            directory = opened(disk, "new/n0", "n0", 1)
            assert directory.store.end.index == LAST + 2 == directory.committed_index
            continue
        check_restored(disk, source, restored, targets, LAST)
        if is_done:
            return


def test_users_come_back_only_if_asked_for() -> None:
    disk, alice = MemoryDisk(), User("alice", ("admin",))
    store = a_member().store
    write(store, [*ENTRIES[:3], UsersChange((alice,), secret=b"s" * 32), b"more"], 7)
    path = backed_up("/backup", disk, store)
    for with_users in (False, True):
        root = f"/{with_users}"
        restored = restore(path, MEMBERS, directories(root), with_users=with_users, disk=disk)
        assert restored.left_users_out is not with_users
        for member_id in directories(root):
            directory = opened(disk, f"{root}/{member_id}", member_id)
            assert directory.has_users
            state = state_at_end(directory.store)
            assert isinstance(state, LogState) and state.users.is_on
            assert [user.name for user in state.users.users] == ["alice"] * with_users
            assert state.users.has_administrator is with_users
            directory.close(False)
    without = restore(path, MEMBERS, directories("/before"), last_index=2, disk=disk)
    assert not without.left_users_out


def test_the_state_where_the_log_begins_has_to_be_known() -> None:
    disk, member = MemoryDisk(), a_member()
    write(member.store, ENTRIES, 7)
    point = member.store.boundaries.newest(12)
    assert point is not None
    start = LogStart(point, LogState(level=99).encode())
    member.save_start(start)
    member.store.drop_before(start)()
    source = backed_up("b", disk, member.store)
    with pytest.raises(ConfigError, match="entries of level 99; this release knows up to"):
        restore(source, MEMBERS, directories("x"), disk=disk)
    assert EMPTY.level == 0


def test_the_state_where_the_log_ends_has_to_be_known() -> None:
    disk, store = MemoryDisk(), a_member().store
    write(store, ENTRIES, 7)
    append_batch(store, EntryBatch.control(EntryKind.TIME, b"of a later release"), 7)
    write(store, [b"more"], 7)
    source = backed_up("b", disk, store)
    assert verify_directory(disk, source).ok
    with pytest.raises(
        ConfigError, match=f"entry {LAST + 1}: a TIME entry .*cannot read.*; choose an index"
    ):
        restore(source, "n0=h:1", directories("x", 1), disk=disk)
    assert not disk.exists("x/n0/member")
    targets = directories("x", 1)
    restored = restore(source, "n0=h:1", targets, last_index=LAST, disk=disk)
    check_restored(disk, source, restored, targets, LAST)
