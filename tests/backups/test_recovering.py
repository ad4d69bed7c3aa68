"""What is left of a cluster without a majority: what is said of it, and what becomes of it."""

from __future__ import annotations

from pathlib import Path
from random import Random

import msgspec
import pytest

from quorumlog.backups import RecoveryPlan, plan_recovery, recover_cluster
from quorumlog.backups.folding import state_of
from quorumlog.entry import Formation, HardState, Replica
from quorumlog.errors import ConfigError, DirectoryDamaged
from quorumlog.log_state.control_entries import LEVEL, ControlBody, MembershipEntry, TimeMark
from quorumlog.log_state.log_state import EMPTY, LogState
from quorumlog.store.directory_reader import DirectoryReader
from quorumlog.store.disk import Disk, OsDisk
from quorumlog.store.log_points import LogStart
from quorumlog.store.member_directory import MemberDirectory
from quorumlog.store.snapshots import SnapshotHead
from quorumlog.store.state_files import VERSION_WITH_USERS, load_member
from tests.backups.store_client import write
from tests.store.losing_disk import LosingDisk
from tests.store.made_logs import body_of, open_small, opened
from tests.store.stopping_disk import Stopped

REPLICAS = tuple(Replica(f"n{number}", f"{number}" * 32) for number in range(3))
N0, N1, N2 = REPLICAS
CLUSTER = "ab" * 16
BODIES: list[ControlBody | bytes | None] = [None, TimeMark(1000), *(body_of(i) for i in range(2, 20))]


def made(
    root: str,
    number: int = 0,
    *,
    disk: Disk | None = None,
    committed: int = 9,
    founding: tuple[Replica, ...] = REPLICAS,
    more: list[ControlBody | bytes | None] | None = None,
    term: int = 1,
) -> str:
    """The directory of a voter that was killed: entries 0 to 19, then `more` of `term`."""
    disk, path = disk or OsDisk(), f"{root}/n{number}"
    directory: MemberDirectory = open_small(Path(path), disk=disk, member_id=f"n{number}")
    directory.allow_control_entries()
    directory._record = msgspec.structs.replace(
        directory._record, directory_id=REPLICAS[number].directory_id
    )
    directory.save_formation(Formation((), founding, CLUSTER))
    directory.save_hard_state(HardState(7, None))
    write(directory.store, BODIES, 1)
    write(directory.store, more or [], term)
    directory.write_checkpoint(directory.store.point_on_disk(committed))
    directory.close(clean=True)
    return path


def check_recovered(disk: Disk, path: str, last_index: int, term: int = 8) -> None:
    """It is the only voter of another cluster, above every term, with every entry that it had."""
    before = load_member(disk, path)
    assert before is not None
    with opened(Path(path), disk=disk, group_size=1) as directory:
        assert directory.renewed == ""
        replica = Replica("n0", directory.directory_id)
        assert replica not in REPLICAS
        assert directory.formation.founding == (replica,)
        assert directory.formation.cluster_id not in ("", CLUSTER)
        assert directory.hard_state == HardState(term, None)
        assert directory.store.end.index == last_index + 2 == directory.committed_index
        assert directory.store.end.term == term
        state = state_of(directory.store, -1)
        assert isinstance(state, LogState) and state.membership is not None
        assert state.membership_index == last_index + 2
        assert state.membership.old == state.membership.new == (replica,)
        assert state.time_ms == 1000
    with DirectoryReader(disk, path) as reader:
        held = [batch.body(at) for batch in reader.batches(2, 20) for at in range(batch.count)]
    assert held == BODIES[2:]


def test_it_says_what_may_be_missing_and_what_may_never_have_been_committed() -> None:
    disk = LosingDisk()
    plan = plan_recovery([made("d", disk=disk)], disk=disk)
    assert plan.is_needed
    assert (plan.best.replica, plan.committed_index, plan.uncertain) == (N0, 9, (10, 19))
    assert set(plan.missing) == {N1, N2}
    assert (plan.group, plan.cluster_id, plan.term) == ("g", CLUSTER, 7)


def test_the_best_log_is_the_one_that_voters_prefer(tmp_path: Path) -> None:
    founding = (*REPLICAS, Replica("n3", "3"), Replica("n4", "4"))
    longer = made(str(tmp_path), 0, founding=founding, more=[b"a", b"b"])
    newer = made(str(tmp_path), 1, founding=founding, more=[None], term=2, committed=15)
    plan = plan_recovery([longer, newer])
    assert plan.best.directory == newer
    assert plan.uncertain == (16, 20)


def test_what_another_directory_proves_counts_if_it_is_the_same_entry(tmp_path: Path) -> None:
    founding = (*REPLICAS, Replica("n3", "3"), Replica("n4", "4"))
    best = made(str(tmp_path), 0, founding=founding, more=[None], term=3)
    same = made(str(tmp_path), 1, founding=founding, committed=18)
    assert plan_recovery([best, same]).committed_index == 18
    other = made(str(tmp_path / "x"), 1, founding=founding, more=[b"another"], committed=20)
    assert plan_recovery([best, other]).committed_index == 9


def test_releases_that_do_not_know_what_the_log_holds_are_refused_as_before(tmp_path: Path) -> None:
    """They would note the entries as damaged, for good."""
    path = made(str(tmp_path))
    with opened(Path(path)) as directory:
        directory.allow_control_entries(LEVEL)
    recover_cluster(plan_recovery([path]))
    record = load_member(OsDisk(), path)
    assert record is not None
    assert record.version == VERSION_WITH_USERS
    check_recovered(OsDisk(), path, 19)


@pytest.mark.parametrize("level", [0, LEVEL])
def test_a_group_of_the_release_before_is_not_finished_by_it(tmp_path: Path, level: int) -> None:
    path = made(str(tmp_path))
    with opened(Path(path)) as directory:
        directory.save_formation(Formation((), REPLICAS, CLUSTER, level=level))
    recover_cluster(plan_recovery([path]))
    record = load_member(OsDisk(), path)
    assert record is not None
    assert record.formation.level == level


def test_a_majority_is_not_recovered(tmp_path: Path) -> None:
    paths = [made(str(tmp_path), number) for number in range(2)]
    plan = plan_recovery(paths)
    assert not plan.is_needed
    with pytest.raises(ConfigError, match="are a majority: start them"):
        recover_cluster(plan)


def test_a_directory_that_forgot_its_promises_is_nobody_in_the_majority(tmp_path: Path) -> None:
    paths = [made(str(tmp_path), number) for number in range(2)]
    (tmp_path / "n1" / "hardstate").write_bytes(bytes(8192))
    plan = plan_recovery(paths)
    assert plan.is_needed
    assert plan.best.replica == N0


def test_who_votes_is_what_the_log_says(tmp_path: Path) -> None:
    only_n0 = MembershipEntry((N0,), (N0,), addresses=(("n0", "h:1"),))
    joint = MembershipEntry(REPLICAS, (N0,))
    alone = plan_recovery([made(str(tmp_path / "a"), more=[joint, only_n0], committed=21)])
    assert not alone.is_needed
    assert alone.address == "h:1"
    # While the last entry is not known to be committed a majority of the old ones may be needed.
    assert plan_recovery([made(str(tmp_path / "b"), more=[joint, only_n0], committed=20)]).is_needed


def test_a_recovered_directory_is_the_only_voter_of_a_new_cluster() -> None:
    disk = LosingDisk()
    path = made("d", disk=disk)
    recovered = recover_cluster(plan_recovery([path], disk=disk), disk=disk)
    assert (recovered.last_index, recovered.membership_index, recovered.term) == (19, 21, 8)
    check_recovered(disk, path, 19)
    assert not plan_recovery([path], disk=disk).is_needed


@pytest.mark.parametrize(("name", "term"), [("hardstate", 2), ("durable", 8)])
def test_a_group_of_one_that_forgot_its_promises_goes_the_same_road(
    tmp_path: Path, name: str, term: int
) -> None:
    """Of terms behind its last entry nobody knows then: another cluster need not."""
    path = made(str(tmp_path), founding=(N0,))
    assert not plan_recovery([path]).is_needed
    (tmp_path / "n0" / name).write_bytes(bytes(8192))
    with pytest.raises(DirectoryDamaged, match=f"run: quorumlog recover --unsafe {path}"):
        open_small(Path(path), group_size=1)
    plan = plan_recovery([path])
    assert plan.is_needed and plan.best.forgotten
    recover_cluster(plan)
    check_recovered(OsDisk(), path, 19, term)


def test_killed_at_any_step_it_is_the_old_directory_or_the_recovered_one() -> None:
    _ended_at_any_step(power=True)


def test_without_power_at_any_step_it_is_the_old_directory_or_the_recovered_one() -> None:
    _ended_at_any_step(power=False)


def _ended_at_any_step(*, power: bool) -> None:
    base = LosingDisk()
    made("old", disk=base)
    seen = set()
    for stop_at in range(10_000):
        disk = LosingDisk.of(base.contents())
        plan = plan_recovery(["old/n0"], disk=disk)
        disk.steps_left = stop_at
        try:
            recover_cluster(plan, disk=disk)
            is_done = True
        except Stopped:
            is_done = False
        disk.steps_left = -1
        if not power:
            disk.lose_power(Random(stop_at))
        if is_done:
            check_recovered(disk, "old/n0", 19)
            assert seen == {False, True}
            return
        seen.add(is_new(disk, "old/n0"))
        check_either(disk, "old/n0", plan)


def is_new(disk: Disk, path: str) -> bool:
    record = load_member(disk, path)
    assert record is not None
    return record.formation.cluster_id != CLUSTER


def check_either(disk: Disk, path: str, plan: RecoveryPlan) -> None:
    if is_new(disk, path):
        check_recovered(disk, path, 19)
        return
    with opened(Path(path), disk=disk) as directory:
        assert directory.directory_id == N0.directory_id
        assert directory.formation.founding == REPLICAS
        assert directory.hard_state == HardState(7, None)
        assert directory.store.end.index == 19
        assert directory.committed_index == 9
    assert plan_recovery([path], disk=disk).uncertain == plan.uncertain


def test_what_is_no_survivor_is_refused(tmp_path: Path) -> None:
    path = made(str(tmp_path))
    with pytest.raises(ConfigError, match="named twice"):
        plan_recovery([path, f"{path}/"])
    other = made(str(tmp_path / "x"), 1)
    with opened(Path(other), member_id="n1"), pytest.raises(ConfigError, match="in use"):
        plan_recovery([path, other])
    with opened(tmp_path / "unformed"):
        pass
    with pytest.raises(ConfigError, match="never belonged to a group that formed"):
        plan_recovery([str(tmp_path / "unformed")])
    with pytest.raises(ConfigError, match="holds no log"):
        plan_recovery([str(tmp_path)])
    recover_cluster(plan_recovery([path]))
    with pytest.raises(ConfigError, match="name the directories of one cluster"):
        plan_recovery([path, other])


def test_it_says_what_was_committed_and_would_be_lost_for_certain(tmp_path: Path) -> None:
    """A survivor was being given a log, and the group had committed entries up to 25 by then; the state
    of its machine has come, and not the entries up to that."""
    path = made(str(tmp_path))
    disk = OsDisk()
    with opened(Path(path), disk=disk) as directory:
        point = directory.store.boundaries.newest(19)
        assert point is not None
        start = LogStart(point, EMPTY.encode(), owed_index=25)
        directory.save_start(start)
        directory.store.drop_before(start)()
        writer = directory.snapshots.create(SnapshotHead("counter", 1, (24, 1, 7)))
        writer.write(b"state")
        writer.finish()
    plan = plan_recovery([path])
    assert plan.best.owed_index == 25
    assert plan.lost == (20, 25)
    (sentence,) = plan.best.snapshots_ahead
    assert "the state machine counter cannot continue with this log" in sentence
    assert "of entry 24, and the log ends with 19" in sentence
