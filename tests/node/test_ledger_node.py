"""The order of effects of one member, on real files, with the flush in the test's hands."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from quorumlog.batch import EntryBatch
from quorumlog.config import MIB, ConsensusConfig, StoreConfig
from quorumlog.consensus.messages import (
    HeartbeatRequest,
    PushEntryRequest,
    PushEntryResponse,
    PushResult,
    PushType,
)
from quorumlog.consensus.ready import Role, RoleChange
from quorumlog.entry import AppendReceipt
from quorumlog.errors import (
    BadRequest,
    BodyTooLarge,
    DiskFull,
    LeaderNotReady,
    NotLeader,
    OutcomeUnknown,
    PendingFull,
    ProtocolViolation,
    RequestTimeout,
)
from quorumlog.log_state.control_entries import MembershipEntry
from quorumlog.node import LedgerNode, NodeHandle
from quorumlog.node.ledger_node import RECENT_BYTES
from quorumlog.node.writing import GATHERING_TURNS
from quorumlog.store.disk import OsDisk
from tests.node.cell import SMALL, Cell, run
from tests.store.residency import is_cached, skip_unless_it_forgets
from tests.store.stopping_disk import StoppingDisk


@pytest.fixture
def cell(tmp_path: Path) -> Iterator[Cell]:
    cell = Cell(tmp_path)
    cell.until(lambda: cell.leader().committed_index >= 0, "the first commit")
    yield cell
    cell.close()


def append(node: LedgerNode, *bodies: bytes) -> list[Any]:
    """Queue one append; its outcome appears in the list."""
    outcomes: list[Any] = []
    node.append(EntryBatch.from_bodies(list(bodies)), 0, outcomes.append)
    return outcomes


def test_an_append_is_acknowledged_once_two_of_three_disks_have_it(cell: Cell) -> None:
    leader = cell.leader()
    first, second = cell.followers()
    cell.hold_flush = {first.replica.member_id, second.replica.member_id}
    outcomes = append(leader, b"x")
    cell.step()
    assert leader.raft.log.durable_index == leader.store.end.index
    assert outcomes == []
    cell.hold_flush.discard(first.replica.member_id)
    cell.until(lambda: outcomes)
    assert isinstance(outcomes[0], AppendReceipt)


def test_the_leaders_own_disk_counts_like_any_other(cell: Cell) -> None:
    """Both followers have it: committed, though the leader's own flush hangs."""
    leader = cell.leader()
    cell.hold_flush = {leader.replica.member_id}
    outcomes = append(leader, b"x")
    cell.until(lambda: outcomes)
    assert leader.raft.log.durable_index < outcomes[0].first_index
    assert leader.durable_committed_index == leader.raft.log.durable_index, (
        "applied runs ahead of the own disk"
    )


def test_a_follower_answers_nothing_that_is_not_on_its_disk(cell: Cell) -> None:
    leader = cell.leader()
    follower = cell.followers()[0]
    name = follower.replica.member_id
    cell.hold_flush = {name}
    cell.hosts[name].trace.clear()
    append(leader, b"x")
    cell.step()
    assert follower.store.end.index == leader.store.end.index
    assert "send PushEntryResponse" not in cell.hosts[name].trace
    cell.hold_flush.clear()
    cell.until(lambda: "send PushEntryResponse" in cell.hosts[name].trace)


def test_appends_that_come_during_a_flush_become_one_batch(cell: Cell) -> None:
    leader = cell.leader()
    name = leader.replica.member_id
    cell.hold_flush = {name}
    outcomes = append(leader, b"alone")
    cell.step()
    before = leader.raft.ledger_end.index
    later = [append(leader, b"%d" % i) for i in range(10)]
    cell.step()
    assert leader.raft.ledger_end.index == before, "a batch was formed while a flush was on its way"
    cell.hold_flush.clear()
    cell.until(lambda: all(later) and outcomes)
    firsts = [outcome[0].first_index for outcome in later]
    assert firsts == list(range(before + 1, before + 11))


def test_a_batch_waits_as_long_as_every_turn_brings_more_writers(cell: Cell) -> None:
    leader = cell.leader()
    end = leader.raft.ledger_end.index
    append(leader, b"a")
    leader.turn()
    assert leader.raft.ledger_end.index == end + 1, "a writer by itself was kept waiting"
    cell.step()
    for _ in range(2):
        append(leader, b"b")
        append(leader, b"c")
        leader.turn()
        assert leader.raft.ledger_end.index == end + 1
        assert leader.next_wakeup_ms() <= cell.now_ms, "nobody would look at the sockets again"
    leader.turn()
    assert leader.raft.ledger_end.index == end + 5
    assert leader.next_wakeup_ms() > cell.now_ms


def test_writers_that_never_pause_do_not_keep_a_batch_waiting(cell: Cell) -> None:
    leader = cell.leader()
    end = leader.raft.ledger_end.index
    for _ in range(GATHERING_TURNS):
        append(leader, b"a")
        append(leader, b"b")
        leader.turn()
    assert leader.raft.ledger_end.index == end
    append(leader, b"c")
    leader.turn()
    assert leader.raft.ledger_end.index == end + 2 * GATHERING_TURNS + 1


def test_lost_leadership_answers_unknown_at_once_and_refuses_what_was_only_queued(
    cell: Cell, monkeypatch: Any
) -> None:
    monkeypatch.setattr("quorumlog.node.writing.QUEUE_WAIT_MS", 10**9)
    leader = cell.leader()
    name = leader.replica.member_id
    cell.cut_off = {name}
    cell.hold_flush = {name}
    proposed = append(leader, b"proposed")
    cell.step()
    queued = append(leader, b"queued")
    cell.until(lambda: proposed and queued)
    assert isinstance(proposed[0], OutcomeUnknown)
    assert isinstance(queued[0], NotLeader) or queued[0].code == 505
    assert queued[0].retriable
    assert not proposed[0].retriable


def test_an_unknown_append_is_committed_or_gone_but_never_both(cell: Cell) -> None:
    old = cell.leader()
    name = old.replica.member_id
    cell.cut_off = {name}
    proposed = append(old, b"lost")
    cell.step()
    new = cell.until(lambda: next((n for n in [cell.leader()] if n is not old), None))
    kept = append(new, b"kept")
    cell.until(lambda: kept and proposed)
    assert isinstance(proposed[0], OutcomeUnknown)
    assert isinstance(kept[0], AppendReceipt)
    cell.cut_off = set()
    cell.until(lambda: old.committed_index == new.committed_index)
    assert old.store.end == new.store.end
    batch = old.readable_range(0, -1, 1 << 20)
    assert isinstance(batch, EntryBatch)
    assert [bytes(b) for b in batch.bodies() if b] == [b"kept"]


def test_a_follower_behind_memory_is_fed_from_files(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("quorumlog.node.ledger_node.RECENT_BYTES", 4096)
    cell = Cell(tmp_path)
    leader = cell.leader()
    behind = cell.followers()[0]
    cell.cut_off = {behind.replica.member_id}
    for _ in range(40):
        outcomes = append(leader, *[b"y" * 500] * 20)
        cell.until(lambda outcomes=outcomes: outcomes)
    cell.cut_off = set()
    cell.until(lambda: behind.committed_index == leader.committed_index >= 800)
    assert behind.store.end == leader.store.end
    cell.close()


def test_uncommitted_bytes_are_bounded(tmp_path: Path) -> None:
    cell = Cell(tmp_path, max_uncommitted_bytes=2000)
    leader = cell.leader()
    cell.cut_off = {node.replica.member_id for node in cell.followers()}
    first = append(leader, b"x" * 1500)
    cell.step()
    second = append(leader, b"x" * 1500)
    assert isinstance(second[0], PendingFull)
    assert second[0].retry_after_ms > 0
    assert first == []
    cell.close()


def test_an_append_without_a_quorum_ends_as_unknown_in_time(tmp_path: Path) -> None:
    patient = ConsensusConfig(heartbeat_interval_ms=1000)
    cell = Cell(tmp_path, append_timeout_ms=200, consensus=patient)
    leader = cell.leader()
    cell.until(lambda: leader.committed_index >= 0)
    cell.cut_off = {node.replica.member_id for node in cell.followers()}
    started = cell.now_ms
    outcomes = append(leader, b"x")
    cell.until(lambda: outcomes)
    assert isinstance(outcomes[0], OutcomeUnknown)
    assert leader.raft.role is Role.LEADER
    assert cell.now_ms - started <= 400
    cell.close()


def test_a_refusal_that_nobody_confirms_is_answered_in_time(tmp_path: Path) -> None:
    """A leader that is cut off may have been replaced, and judges by what another has long cut."""
    patient = ConsensusConfig(heartbeat_interval_ms=1000)
    cell = Cell(tmp_path, consensus=patient)
    leader = cell.leader()
    first = append(leader, b"x")
    cell.until(lambda: first)
    cell.cut_off = {node.replica.member_id for node in cell.followers()}
    started = cell.now_ms
    outcomes: list[Any] = []
    gone: list[Any] = []
    for done, owner in ((outcomes.append, "stays"), (gone.append, "goes")):
        leader.append(EntryBatch.from_bodies([b"y"]), 200, done, owner, expected_last=-1)
    cell.step()
    assert leader.next_wakeup_ms() <= cell.now_ms + 100
    leader.discard_requests_of("goes")
    cell.until(lambda: outcomes)
    assert isinstance(outcomes[0], RequestTimeout)
    assert "expected_last is -1" in str(outcomes[0])
    assert leader.raft.role is Role.LEADER
    assert cell.now_ms - started <= 400
    cell.until(lambda: leader.raft.role is not Role.LEADER)
    assert (len(outcomes), gone) == (1, [])
    cell.close()


def test_bad_appends_are_refused_and_change_nothing(cell: Cell) -> None:
    leader = cell.leader()
    end = leader.store.end
    assert isinstance(append(leader)[0], BadRequest)
    too_large = append(leader, b"x" * SMALL.segment_bytes)
    assert isinstance(too_large[0], BodyTooLarge)
    assert str(SMALL.entry_limit_bytes - 48) in str(too_large[0])
    with pytest.raises(ProtocolViolation):
        leader.append(EntryBatch.noop(), 0, lambda outcome: None)
    cell.step()
    assert leader.store.end == end


def test_a_running_member_takes_other_limits(cell: Cell) -> None:
    leader = cell.leader()
    config = leader.config
    limits = replace(
        config, max_uncommitted_bytes=1, storage=replace(config.storage, max_entry_bytes=100)
    )
    leader.configure(limits)
    assert isinstance(append(leader, b"x" * 53)[0], BodyTooLarge)
    first, second = append(leader, b"x" * 52), append(leader, b"x")
    assert isinstance(second[0], PendingFull)
    cell.until(lambda: first)
    leader.configure(config)
    for node in cell.nodes.values():
        storage = replace(node.config.storage, disk_full_ratio=1e-9)
        node.configure(replace(node.config, storage=storage))
    outcomes: list[Any] = []

    def append_to_leader() -> type:
        asked = append(cell.leader(), b"x" * 40_000)
        outcomes.append(cell.until(lambda: asked)[0])
        return type(outcomes[-1])

    while append_to_leader() is AppendReceipt:  # what is reserved already is taken
        assert len(outcomes) < 10
    assert isinstance(outcomes[-1], DiskFull)
    for node in cell.nodes.values():
        storage = replace(node.config.storage, disk_full_ratio=0.99)
        node.configure(replace(node.config, storage=storage))
    cell.until(lambda: append_to_leader() is AppendReceipt)


def test_a_leader_whose_own_disk_hangs_goes_on_with_the_others(cell: Cell) -> None:
    leader = cell.leader()
    cell.hold_flush = {leader.replica.member_id}
    first = append(leader, b"first")
    cell.until(lambda: first)
    second = append(leader, b"second")
    cell.until(lambda: second)
    assert isinstance(second[0], AppendReceipt)
    assert leader.raft.log.durable_index < first[0].first_index


def test_a_member_whose_term_waits_for_the_disk_learns_of_nothing(cell: Cell) -> None:
    """Watches leave it for another one, though it has heard who leads."""
    leader, follower = cell.leader(), cell.followers()[0]
    endpoint = NodeHandle(lambda: follower, lambda act: act())
    assert endpoint.knows_leader
    host = cell.hosts[follower.replica.member_id]
    host.holds_promises = True
    later = HeartbeatRequest(
        sender=leader.replica, term=leader.raft.term + 1, round=1, committed_index=-1
    )
    follower.receive(later)
    follower.turn()
    assert follower.is_held and follower.raft.leader == leader.replica
    assert not endpoint.knows_leader
    host.holds_promises = False
    run(host.promises)
    assert endpoint.knows_leader


def test_a_deposed_leader_answers_what_waits_before_its_term_is_on_disk(cell: Cell) -> None:
    leader, follower = cell.leader(), cell.followers()[0]
    cell.hold_flush = set(cell.nodes)
    outcomes = append(leader, b"x")
    cell.step()
    assert outcomes == []
    host = cell.hosts[leader.replica.member_id]
    host.holds_promises = True
    later = HeartbeatRequest(
        sender=follower.replica, term=leader.raft.term + 1, round=1, committed_index=-1
    )
    leader.receive(later)
    leader.turn()
    assert leader.is_held
    assert isinstance(outcomes[0], OutcomeUnknown)
    host.holds_promises = False
    run(host.promises)


def test_a_queued_append_ends_in_time_with_all_that_its_owner_queued_behind_it(
    cell: Cell, monkeypatch: Any
) -> None:
    monkeypatch.setattr("quorumlog.node.writing.QUEUE_WAIT_MS", 10**9)
    leader = cell.leader()
    cell.hold_flush = set(cell.nodes)
    append(leader, b"on its way")
    cell.step()
    outcomes: list[Any] = []
    for owner, timeout_ms in (("a", 100), ("b", 5000), ("a", 5000)):
        batch = EntryBatch.from_bodies([owner.encode()])
        leader.append(batch, timeout_ms, lambda o, w=owner: outcomes.append((w, o)), owner)
    cell.until(lambda: outcomes)
    assert [who for who, _ in outcomes] == ["a", "a"]
    assert all(isinstance(outcome, RequestTimeout) for _, outcome in outcomes)
    cell.hold_flush.clear()
    cell.until(lambda: len(outcomes) == 3)
    assert isinstance(outcomes[2][1], AppendReceipt)


def test_pushes_that_fit_one_by_one_but_not_together_are_refused_not_taken(tmp_path: Path) -> None:
    """Two arrive in one turn of a follower whose disk is full: it must refuse, and live."""
    disks = {f"n{i}": _NoSpaceDisk() for i in range(3)}
    cell = Cell(tmp_path, disks=dict(disks))
    leader = cell.leader()
    follower = cell.followers()[0]
    name = follower.replica.member_id
    sent: list[PushEntryRequest] = []
    cell.cut_off = {name}

    def fill() -> bool:
        outcomes = append(leader, b"z" * 3000)
        cell.until(lambda: outcomes)
        return leader.store.end.index >= 40

    cell.until(fill)
    disks[name].full = True
    found = leader.store.range_of(0, 1 << 40, 1 << 30)
    while found is not None:
        for index in range(found.first_index, found.stop_index):
            one = leader.store.range_of(index, index + 1, 1 << 20)
            entries = leader.store.read(one)
            sent.append(
                PushEntryRequest(
                    sender=leader.replica,
                    term=leader.raft.term,
                    push=PushType.APPEND,
                    committed_index=-1,
                    previous=one.previous.entry_id,
                    first_index=index,
                    count=1,
                    term_runs=entries.term_runs(),
                    previous_chain=one.previous.chain,
                    batch=entries,
                )
            )
        stop = found.stop_index
        found = leader.store.range_of(stop, 1 << 40, 1 << 30) if stop <= leader.store.end.index else None
    for message in sent:
        follower.receive(message)
    follower.turn()
    assert follower.problems()
    assert follower.store.end.index < leader.store.end.index
    disks[name].full = False
    cell.cut_off = set()
    cell.until(lambda: follower.store.end == leader.store.end)
    cell.close()


def test_a_push_that_overlaps_other_entries_of_the_same_ids_is_refused_and_changes_nothing(
    cell: Cell,
) -> None:
    """A directory put back from an older copy may lead a term for the second time. Its push would make
    the log go on behind entries that are not those before it."""
    leader, follower = cell.leader(), cell.followers()[0]
    outcomes = append(leader, b"first", b"second")
    cell.until(lambda: outcomes and follower.committed_index == 2)
    end, before = follower.store.end, follower.store.chain_at(0)
    batch = EntryBatch.from_bodies([b"1st", b"2nd", b"3rd"])
    begin = follower.store.range_of(1, 2, 1).position
    batch.stamp(1, leader.raft.term, begin + batch.starts, before)
    push = PushEntryRequest(
        sender=leader.replica,
        term=leader.raft.term,
        push=PushType.APPEND,
        committed_index=2,
        previous=follower.store.id_at(0),
        first_index=1,
        count=3,
        term_runs=batch.term_runs(),
        previous_chain=before,
        batch=batch,
    )
    follower.receive(push)
    follower.turn()
    cell.step()  # its place in the log is looked at, and the connection may be another one by then
    with pytest.raises(ProtocolViolation, match="holds other entries up to index 2 than this member"):
        follower.receive(push)
    follower.turn()
    assert follower.store.end == end
    outcomes = append(leader, b"third")
    cell.until(lambda: outcomes and follower.committed_index == 3)


def test_only_the_leader_takes_appends_and_the_others_name_it(cell: Cell) -> None:
    leader = cell.leader()
    refused = append(cell.followers()[0], b"x")
    assert isinstance(refused[0], NotLeader)
    assert refused[0].leader_id == leader.replica.member_id
    assert refused[0].leader_address == str(leader.config.own_address)


def test_who_asks_whether_a_leader_still_leads_hears_once_unless_it_has_gone(cell: Cell) -> None:
    leader = cell.leader()
    confirmed: list[Any] = []
    leader.confirm_leadership(confirmed.append)
    cell.until(lambda: confirmed)
    assert confirmed == [None]
    cell.cut_off = {node.replica.member_id for node in cell.followers()}
    refused: list[Any] = []
    gone: list[Any] = []
    leader.confirm_leadership(refused.append, owner="stays")
    leader.confirm_leadership(gone.append, owner="goes")
    leader.discard_requests_of("goes")
    cell.until(lambda: leader.raft.role is not Role.LEADER, "a leader without a majority")
    assert [type(refusal) for refusal in refused] == [LeaderNotReady]
    assert gone == []
    later: list[Any] = []
    leader.confirm_leadership(later.append)
    assert [type(refusal) for refusal in later] == [LeaderNotReady]


def test_a_new_leader_denies_nothing_that_was_acknowledged_before_it(tmp_path: Path) -> None:
    """It holds the entry, but until its own no-op is committed it does not know that it may serve it."""
    before = Cell(tmp_path)
    kept = append(before.leader(), b"kept")
    before.until(lambda: kept)
    before.close()
    cell = Cell(tmp_path)
    cell.hold_flush = set(cell.nodes)
    leader = cell.leader()
    assert leader.committed_index < kept[0].first_index
    with pytest.raises(LeaderNotReady):
        leader.readable_range(kept[0].first_index, -1, 1 << 20)
    with pytest.raises(LeaderNotReady):
        leader.readable_range(0, -1, 1 << 20)  # "all that is committed" would lack it
    cell.hold_flush.clear()
    cell.until(lambda: leader.committed_index > kept[0].first_index)
    found = leader.readable_range(kept[0].first_index, -1, 1 << 20)
    batch = found if isinstance(found, EntryBatch) else leader.store.read_from(*found)[1]
    assert bytes(batch.body(0)) == b"kept"
    cell.close()


class _NoSpaceFile:
    def __init__(self, file: Any, disk: _NoSpaceDisk) -> None:
        self._file = file
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def allocate(self, position: int, size_bytes: int) -> None:
        if self._disk.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        self._file.allocate(position, size_bytes)


class _NoSpaceDisk(OsDisk):
    """A disk that gives no more space while `full`; what was reserved can still be written."""

    full = False

    def open(self, path: str, *, writable: bool = True, create: bool = False) -> Any:
        return _NoSpaceFile(super().open(path, writable=writable, create=create), self)


def test_a_batch_that_lingers_waits_for_more_and_not_longer(tmp_path: Path) -> None:
    cell = Cell(tmp_path, 1, linger_ms=50)
    leader = cell.leader()
    cell.until(lambda: leader.committed_index >= 0)
    end = leader.store.end.index
    first = append(leader, b"first")
    asked_ms = cell.now_ms
    cell.step(20)
    second = append(leader, b"second")
    assert leader.next_wakeup_ms() <= asked_ms + 50
    cell.step(20)
    assert leader.store.end.index == end
    cell.until(lambda: first and second)
    assert leader.store.end.index == end + 2
    assert cell.now_ms < asked_ms + 100
    cell.close()


def test_a_full_disk_refuses_appends_keeps_elections_and_ends_by_itself(tmp_path: Path) -> None:
    disks = {f"n{i}": _NoSpaceDisk() for i in range(3)}
    cell = Cell(tmp_path, disks=dict(disks))
    leader = cell.leader()

    def fill() -> DiskFull | None:
        outcomes = append(leader, b"z" * 4000)
        cell.until(lambda: outcomes)
        return outcomes[0] if isinstance(outcomes[0], DiskFull) else None

    for disk in disks.values():
        disk.full = True
    refusal = cell.until(fill, "DiskFull")
    assert refusal.retriable
    assert leader.problems()
    for _ in range(200):  # leaders without space do not hand over to each other for ever
        append(cell.leader(), b"z" * 4000)
        cell.step(50)
    assert cell.leader().raft.term <= 4
    old = cell.leader()
    end = old.store.end
    cell.cut_off = {old.replica.member_id}
    new = cell.until(lambda: next((n for n in [cell.leader()] if n is not old), None))
    cell.until(lambda: new.committed_index > end.index, "the no-op of a new leader on a full disk")
    cell.cut_off = set()
    for disk in disks.values():
        disk.full = False
    leader = cell.leader()
    outcomes = append(leader, b"space again")
    cell.until(lambda: outcomes)
    assert isinstance(outcomes[0], AppendReceipt)
    cell.until(lambda: not leader.problems())
    cell.until(lambda: len({node.store.end for node in cell.nodes.values()}) == 1)
    cell.close()


def test_changes_of_members_leave_room_for_no_ops_on_a_full_disk(tmp_path: Path) -> None:
    disks = {f"n{i}": _NoSpaceDisk() for i in range(3)}
    cell = Cell(tmp_path, disks=dict(disks))
    leader = cell.leader()
    cell.until(lambda: leader.committed_index >= 0)
    voters = tuple(node.replica for node in cell.nodes.values())
    body = MembershipEntry(
        voters, voters, addresses=tuple((f"n{i}", f"{i}".rjust(255)) for i in range(3))
    )
    for disk in disks.values():
        disk.full = True
    refused = False
    while not refused:
        try:
            leader.propose_control(body)
        except DiskFull:
            refused = True
        cell.step()
    cell.until(lambda: leader.committed_index == leader.store.end.index)
    for _ in range(20):  # an election each
        old = cell.leader()
        cell.cut_off = {old.replica.member_id}
        new = cell.until(lambda old=old: next((n for n in [cell.leader()] if n is not old), None))
        cell.until(lambda new=new: new.committed_index == new.store.end.index)
        cell.cut_off = set()
        cell.until(lambda: len({node.store.end for node in cell.nodes.values()}) == 1)
    cell.close()


def test_members_with_space_again_take_over_although_nobody_sends_them_data(tmp_path: Path) -> None:
    disks = {f"n{i}": _NoSpaceDisk() for i in range(3)}
    cell = Cell(tmp_path, disks=dict(disks))
    cell.leader()
    for disk in disks.values():
        disk.full = True
    for _ in range(400):  # until all have refused; small ones find room for longer than large ones
        append(cell.leader(), b"z" * 4000)
        append(cell.leader(), b"small")
        cell.step(50)
    assert cell.leader().raft.term <= 4
    full = cell.leader().replica.member_id
    for member, disk in disks.items():
        disk.full = member == full

    def is_taken() -> bool:
        outcomes = append(cell.leader(), b"z" * 4000)
        cell.step(50)
        return bool(outcomes) and isinstance(outcomes[0], AppendReceipt)

    cell.until(is_taken, "an append that is taken")
    assert cell.leader().replica.member_id != full
    cell.close()


def test_leaders_with_full_disks_do_not_hand_over_in_a_circle_for_entries_as_small_as_no_ops(
    tmp_path: Path,
) -> None:
    disks = {f"n{i}": _NoSpaceDisk() for i in range(3)}
    cell = Cell(tmp_path, disks=dict(disks))
    cell.leader()
    for disk in disks.values():
        disk.full = True
    outcomes: list[Any] = []
    while not outcomes or not isinstance(outcomes[0], DiskFull):
        outcomes = append(cell.leader(), *[b""] * 500)
        cell.until(lambda outcomes=outcomes: outcomes)
    term = cell.leader().raft.term
    for _ in range(500):
        append(cell.leader(), b"")
        cell.step(20)
    assert cell.leader().raft.term <= term + 3
    cell.close()


def test_with_most_disks_full_appends_are_refused_rather_than_taken_and_not_committed(
    tmp_path: Path,
) -> None:
    disks = {f"n{i}": _NoSpaceDisk() for i in range(3)}
    cell = Cell(tmp_path, disks=dict(disks))
    full, leader = cell.followers()[0], cell.leader()

    def is_known() -> bool:
        append(leader, b"z" * 4000)
        cell.step(50)
        return bool(full.problems())

    disks[full.replica.member_id].full = True
    cell.until(is_known, "a follower that knows that it is full")
    disks[leader.replica.member_id].full = True
    for _ in range(40):  # what was reserved is taken still
        append(cell.leader(), b"z" * 4000)
        cell.step(50)
    outcomes: list[Any] = []
    for _ in range(100):
        outcomes += [append(cell.leader(), b"z" * 4000)]
        cell.step(50)
    assert {type(outcome) for each in outcomes for outcome in each} == {DiskFull}
    assert all(outcomes)
    disks[cell.leader().replica.member_id].full = False
    outcomes.clear()

    def is_taken() -> bool:
        outcomes.append(append(cell.leader(), b"z" * 4000))
        cell.step(50)
        return any(isinstance(outcome, AppendReceipt) for each in outcomes for outcome in each)

    cell.until(is_taken, "an append that is taken")
    cell.close()


def test_a_leader_refuses_what_the_followers_have_no_space_for(tmp_path: Path) -> None:
    disks = {f"n{i}": _NoSpaceDisk() for i in range(3)}
    cell = Cell(tmp_path, disks=dict(disks))
    leader = cell.leader()
    followers = sorted(node.replica.member_id for node in cell.followers())
    for member in followers:
        disks[member].full = True

    def refusal() -> DiskFull | None:
        outcomes = append(leader, b"z" * 4000)
        cell.step(50)
        return outcomes[0] if outcomes and isinstance(outcomes[0], DiskFull) else None

    assert f"no space on {followers[0]}, {followers[1]}" in str(cell.until(refusal))
    assert leader.raft.role is Role.LEADER
    disks[followers[0]].full = False
    cell.until(lambda: refusal() is None)
    outcomes = append(leader, b"space again")
    cell.until(lambda: outcomes)
    assert isinstance(outcomes[0], AppendReceipt)
    cell.close()


def test_an_acknowledgement_does_not_leave_for_entries_found_damaged_while_it_waited(
    cell: Cell,
) -> None:
    leader = cell.leader()
    first, second = cell.followers()
    cell.hold_flush = {first.replica.member_id, second.replica.member_id}
    outcomes = append(leader, b"x")
    cell.until(lambda: not first.is_idle)
    index = first.store.end.index
    first.raft.on_damaged(index, index + 1)
    cell.hold_flush = {second.replica.member_id}
    cell.until(lambda: first.is_idle)
    cell.step(500)
    assert not outcomes
    first.raft.on_repaired([])
    cell.until(lambda: outcomes)
    assert isinstance(outcomes[0], AppendReceipt)


def test_as_many_bytes_in_fewer_entries_prove_no_space_in_the_index(tmp_path: Path) -> None:
    storage = StoreConfig(segment_bytes=16 * MIB, index_segment_bytes=MIB, reserve_step_bytes=8 * MIB)
    disks = {f"n{i}": _NoSpaceDisk() for i in range(3)}
    cell = Cell(tmp_path, storage=storage, disks=dict(disks))
    outcomes = append(cell.leader(), b"")
    cell.until(lambda: outcomes)
    for disk in disks.values():
        disk.full = True
    while not isinstance(outcomes[0], DiskFull):
        outcomes = append(cell.leader(), *[b""] * 1000)
        cell.until(lambda outcomes=outcomes: outcomes)
    term = cell.leader().raft.term
    for _ in range(60):
        append(cell.leader(), *[b""] * 1000)
        cell.step(10)
        append(cell.leader(), b"z" * 48000)
        cell.step(10)
    assert cell.leader().raft.term <= term + 3
    cell.close()


def test_a_hand_over_to_a_member_that_has_no_space_either_goes_on_to_the_next(tmp_path: Path) -> None:
    """n0 and n1 are full, three have space. The new leader n1 is asked for space before anybody has
    answered its first heartbeat, so it does not know yet that n0 is full, too."""
    disks = {f"n{i}": _NoSpaceDisk() for i in range(5)}
    cell = Cell(tmp_path, 5, disks=dict(disks))
    cell.until(lambda: cell.leader().committed_index >= 0)
    if cell.leader().replica.member_id != "n0":
        transferred: list[Any] = []
        cell.leader().transfer("n0", transferred.append)
        cell.until(lambda: transferred)
    disks["n0"].full = disks["n1"].full = True
    for member, host in cell.hosts.items():

        def ask_the_new_leader(change: RoleChange, member: str = member) -> None:
            if change.role is Role.LEADER:
                append(cell.nodes[member], b"z" * 4000)

        host.on_role_change = ask_the_new_leader
    full: list[str] = []

    def is_taken() -> bool:
        leader = cell.leader()
        outcomes = append(leader, b"z" * 4000)
        cell.step(10)
        if outcomes and isinstance(outcomes[0], DiskFull):
            full.append(leader.replica.member_id)
        return bool(full and outcomes) and isinstance(outcomes[0], AppendReceipt)

    refused_ms = cell.until(lambda: is_taken() or (full and cell.now_ms))
    cell.until(is_taken, "an append that is taken")
    assert cell.now_ms - (cell.now_ms if refused_ms is True else refused_ms) < 5000
    cell.close()


def test_a_restart_keeps_what_was_acknowledged(tmp_path: Path) -> None:
    cell = Cell(tmp_path)
    leader = cell.leader()
    outcomes = [append(leader, b"%d" % i) for i in range(20)]
    cell.until(lambda: all(outcomes))
    cell.close()
    again = Cell(tmp_path)
    leader = again.leader()
    again.until(lambda: leader.committed_index >= outcomes[-1][0].last_index)
    batch = leader.readable_range(outcomes[0][0].first_index, -1, 1 << 20)
    if not isinstance(batch, EntryBatch):
        _, batch = leader.store.read_from(*batch)
    assert [bytes(b) for b in batch.bodies() if b] == [b"%d" % i for i in range(20)]
    again.close()


SMALL_SEGMENTS = StoreConfig(
    segment_bytes=4 * MIB, index_segment_bytes=MIB, reserve_step_bytes=2 * MIB, disk_full_ratio=1.0
)
BY_DEFAULT = StoreConfig(flush="async", disk_full_ratio=1.0)


def steps_in_turns(cell: Cell, disk: StoppingDisk, bodies: list[bytes], appends: int) -> Counter[str]:
    """What the thread that has heartbeats to send does to the disk of n0 while it appends."""
    leader = cell.leader()
    cell.hold_flush.add("n0")
    in_turns: Counter[str] = Counter()
    for _ in range(appends):
        outcomes = append(leader, *bodies)
        while not outcomes:
            disk.steps.clear()
            cell.step(1)
            in_turns.update(what for what, _ in disk.steps)
            flushes = cell.hosts["n0"].flushes
            while flushes:
                work, done = flushes.pop(0)
                result = work()
                disk.steps.clear()
                done(result)  # the thread of the turns again
                in_turns.update(what for what, _ in disk.steps)
    return in_turns


@pytest.mark.parametrize(
    ("storage", "bodies", "growing", "appends"),
    [
        (SMALL_SEGMENTS, [b"x" * 20_000] * 10, 11, 50),
        (BY_DEFAULT, [b"x" * MIB] * 4, 16, 34),
        (BY_DEFAULT, [b""] * 10_000, 14, 30),
    ],
    ids=["segments", "data of async", "index of async"],
)
def test_a_turn_makes_no_space(
    tmp_path: Path, storage: StoreConfig, bodies: list[bytes], growing: int, appends: int
) -> None:
    """It comes and goes in front of it, and the thread that has heartbeats to send only writes. A log
    that has just begun has little space ahead: a bulk load outruns it a few times until it has grown."""
    disk = StoppingDisk()
    cell = Cell(tmp_path, 1, storage=storage, disks={"n0": disk})
    append(cell.leader(), b"first")
    cell.step()
    young = steps_in_turns(cell, disk, bodies, growing)
    assert young["allocate"] <= 7, "one for each time that the log has doubled"
    assert set(young) <= {"write", "allocate", "sync"}
    assert set(steps_in_turns(cell, disk, bodies, appends)) == {"write"}
    assert storage is not SMALL_SEGMENTS or len(list((tmp_path / "n0" / "data").iterdir())) >= 3
    cell.hold_flush.clear()
    cell.close()


def test_members_leave_only_the_newest_data_in_memory(tmp_path: Path) -> None:
    """Also one that was down and is fed from files, and the leader that reads these for it."""
    skip_unless_it_forgets(tmp_path)
    storage = StoreConfig(
        segment_bytes=64 * MIB, index_segment_bytes=MIB, page_cache_bytes=2 * MIB, disk_full_ratio=1.0
    )
    cell = Cell(tmp_path, storage=storage)
    cell.leader()
    cell.kill("n2")
    for _ in range(RECENT_BYTES // MIB + 10):
        outcomes = append(cell.leader(), *[b"x" * 4048] * 256)
        cell.until(lambda outcomes=outcomes: outcomes)
    cell.start("n2")
    end = cell.leader().store.end
    cell.until(lambda: cell.nodes["n2"].store.durable.index == end.index)
    for member in cell.nodes:
        data = tmp_path / member / "data" / f"{0:020d}"
        assert [is_cached(data, at) for at in (MIB, 6 * MIB, end.position - MIB)] == [False, False, True]
    cell.close()


def test_a_time_mark_costs_no_write_and_no_sync_of_its_own(tmp_path: Path) -> None:
    cell = Cell(tmp_path, time_marks=True)
    leader = cell.leader()
    cell.until(lambda: leader.committed_index >= 0 and leader.raft.answers.quorum_clock_ms() > 0)
    host = cell.hosts[leader.replica.member_id]
    appends: list[Counter[str]] = []
    for later_ms in (0, 2_000, 0):  # the second of them has a mark in front, as the first has
        for each in cell.hosts.values():
            each.clock_ms += later_ms
        cell.step(200)
        host.trace.clear()
        outcomes = append(leader, b"x")
        cell.step()
        assert outcomes
        appends.append(Counter(host.trace))
    _, marked, plain = appends
    assert leader.store.end.index == 5
    assert leader.log_time_ms() == host.clock_ms
    for effect in ("flush asked", "send PushEntryRequest"):
        assert marked[effect] == plain[effect] > 0, (marked, plain)
    cell.close()


def test_what_may_commit_something_is_heard_at_once(tmp_path: Path) -> None:
    cell = Cell(tmp_path)
    leader, outcomes = cell.leader(), list[object]()
    leader.append(EntryBatch.from_bodies([b"x"]), 0, outcomes.append)
    cell.until(
        lambda: outcomes and leader.durable_committed_index == leader.committed_index, "a receipt"
    )
    cell.step()
    answer = PushEntryResponse(
        sender=cell.followers()[0].replica,
        term=leader.raft.term,
        push=PushType.APPEND,
        result=PushResult.SUCCESS,
        index=leader.committed_index,
    )
    assert leader.may_wait(answer)
    for changes in (
        {"index": leader.committed_index + 1},
        {"term": leader.raft.term + 1},
        {"result": PushResult.DISK_FULL},
        {"push": PushType.COMPARE},
    ):
        assert not leader.may_wait(msgspec.structs.replace(answer, **changes)), changes
    cell.hold_flush.add(leader.replica.member_id)
    cell.drops = lambda sender, to, message: isinstance(message, PushEntryResponse)
    leader.append(EntryBatch.from_bodies([b"y"]), 0, outcomes.append)
    cell.step()
    assert leader.waits_for_others, "nobody has answered"
    assert not any(each.waits_for_others or each.may_wait(answer) for each in cell.followers())
    leader.append(EntryBatch.from_bodies([b"z"]), 0, outcomes.append)
    assert not leader.waits_for_others, "the next batch waits for the flush"
    cell.hold_flush.clear()
    cell.drops = lambda sender, to, message: False
    cell.until(lambda: len(outcomes) == 3, "all receipts")
    cell.close()
    alone = Cell(tmp_path / "alone", members=1)
    assert not alone.leader().waits_for_others
    alone.close()
