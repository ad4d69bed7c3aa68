"""Each checker of promises, outcomes and amounts finds what breaks them, and says who and where."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from quorumlog.consensus.messages import (
    AnyMessage,
    FormResponse,
    HeartbeatRequest,
    PushEntryResponse,
    PushResult,
    PushType,
    VoteRequest,
    VoteResponse,
    VoteResult,
)
from quorumlog.consensus.ready import Envelope
from quorumlog.entry import AppendReceipt, EntryId, Formation, HardState
from quorumlog.errors import NotLeader, OutcomeUnknown, StoreFailure
from quorumlog.testing.operations import ClientAppend
from quorumlog.testing.promises import CommittedLog
from sim.log.checkers import Violation
from sim.log.checkers.acknowledged_appends import AcknowledgedAppends
from sim.log.checkers.bounded_memory import BoundedMemory
from sim.log.checkers.message_rate import MessageRate, calm_limit, sick_limit
from sim.log.checkers.promises_on_disk import PromisesOnDisk
from tests.node.cell import SMALL
from tests.sim.checkers.watched_cell import WatchedCell

# ---------------------------------------------------------------- promises on disk


class Promises:
    """A cell with a leader, and a follower about to promise too much."""

    def __init__(self, flush: str = "sync") -> None:
        self.cell = WatchedCell(storage=replace(SMALL, flush=flush))
        self.checker = PromisesOnDisk(self.cell)
        self.cell.watch(self.checker)
        self.cell.append(b"a")
        self.cell.until_whole()
        self.follower, self.other = self.cell.followers()
        self.term = self.follower.node.raft.term

    def send(self, message: AnyMessage, to: Any = None) -> None:
        self.checker.sent(self.follower, Envelope((to or self.cell.leader()).replica, message))

    def vote(self, term: int, candidate: Any) -> None:
        self.send(
            VoteResponse(
                sender=self.follower.replica,
                term=self.term,
                vote_term=term,
                pre_vote=False,
                result=VoteResult.ACCEPT,
            ),
            candidate,
        )

    def acknowledge(self, index: int) -> None:
        self.send(
            PushEntryResponse(
                sender=self.follower.replica,
                term=self.term,
                push=PushType.APPEND,
                result=PushResult.SUCCESS,
                index=index,
            )
        )


def test_a_message_of_a_term_that_is_not_on_the_platter_is_found() -> None:
    promises = Promises()
    request = VoteRequest(
        sender=promises.follower.replica,
        term=promises.term + 1,
        vote_term=promises.term + 2,
        pre_vote=True,
        ledger_end=EntryId(-1, -1),
    )
    with pytest.raises(
        Violation, match=r"sends VoteRequest in term 2; on its platter is HardState\(term=1"
    ):
        promises.send(request)


def test_a_term_that_is_only_in_the_cache_of_the_disk_is_found() -> None:
    promises = Promises()
    member = promises.follower
    hard_state_file = member.node.directory._hard_state_file
    member.disk.fail_next_sync("hardstate")
    with pytest.raises(StoreFailure, match="cannot be synced"):
        hard_state_file.save(HardState(promises.term + 1, None))
    heartbeat = HeartbeatRequest(
        sender=member.replica, term=promises.term + 1, round=1, committed_index=-1
    )
    with pytest.raises(Violation, match="sends HeartbeatRequest in term 2; on its platter is"):
        promises.send(heartbeat)


@pytest.mark.parametrize("what", ["founding", "pending"])
def test_a_cluster_id_that_is_not_on_the_platter_is_found(what: str) -> None:
    promises = Promises()
    member = promises.follower
    directory: Any = member.node.directory
    founding, cluster_id = directory.formation.founding, directory.formation.cluster_id
    if what == "pending":
        directory.formation = Formation()  # its assertion knows better
        directory.save_formation(Formation(founding, pending_id=cluster_id))
    said: Any = {"pending": founding, "founding": founding if what == "founding" else ()}
    answer = FormResponse(
        sender=member.replica, term=promises.term, number=1, cluster_id=cluster_id, **said
    )
    promises.send(answer)
    with pytest.raises(Violation, match=r"speaks of .* as another; on its platter is Formation"):
        promises.send(msgspec.structs.replace(answer, cluster_id="another"))


def test_a_vote_for_somebody_else_than_the_platter_says_is_found() -> None:
    promises = Promises()
    with pytest.raises(
        Violation, match=r"votes twice in term 1|gives its vote in term 1 to .*platter is"
    ):
        promises.vote(promises.term, promises.other)


def test_two_votes_in_one_term_are_found_also_when_the_platter_has_a_higher_one() -> None:
    promises = Promises()
    promises.vote(0, promises.cell.leader())
    with pytest.raises(Violation, match="votes twice in term 0"):
        promises.vote(0, promises.other)


def test_a_directory_whose_term_fell_is_found_at_its_next_start() -> None:
    cell = WatchedCell(1)
    member = cell.members[0]
    cell.watch(PromisesOnDisk(cell))
    cell.leader()
    older = member.disk.snapshot()
    for _ in range(2):
        cell.stop(member)
        cell.start(member)
        cell.leader()
    cell.stop(member)
    member.disk.restore(older)
    with pytest.raises(Violation, match=r"starts with HardState\(term=1.* on its platter was .*term=3"):
        cell.start(member)


def test_a_directory_whose_older_copy_was_put_back_owes_only_what_the_copy_promises() -> None:
    cell = WatchedCell(1)
    member = cell.members[0]
    cell.watch(PromisesOnDisk(cell))
    cell.leader()
    older = member.disk.snapshot()
    for _ in range(2):
        cell.stop(member)
        cell.start(member)
        cell.leader()
    cell.stop(member)
    member.disk.restore(older)
    cell.tell("put_back", member)
    cell.start(member)
    cell.append(b"a")


def with_an_unsynced_entry(promises: Promises) -> int:
    """Index of an entry that the follower has written and not synced."""
    cell, member = promises.cell, promises.follower
    cell.cell.hold_flush.add(member.member_id)
    cell.append(b"b")
    cell.cell.until(lambda: member.node.store.end.index == 2, "the entry is written")
    assert member.node.store.durable.index < 2
    return 2


def test_an_entry_acknowledged_before_its_bytes_are_synced_is_found() -> None:
    promises = Promises()
    promises.acknowledge(promises.follower.node.store.end.index)
    index = with_an_unsynced_entry(promises)
    with pytest.raises(Violation, match=r"entry 2 .* is acknowledged .* are not all on the platter"):
        promises.acknowledge(index)


def test_an_entry_acknowledged_above_damage_that_may_not_be_committed_is_found() -> None:
    promises = Promises()
    cell, member = promises.cell, promises.follower
    cell.append(b"b")
    cell.until_whole()
    position = member.node.store.range_of(1, 2, 1).position
    cell.stop(member)
    member.disk.flip(f"{member.path}/data/{0:020d}", position + 32, 1)
    cell.start(member)
    promises.acknowledge(0)
    with pytest.raises(Violation, match=r"acknowledges entry 2 .* damaged is entry 1 .* up to -1"):
        promises.acknowledge(2)
    member.node.raft._state.commit_up_to(1)
    promises.acknowledge(2)


def test_an_async_member_may_acknowledge_what_it_has_written_and_no_more() -> None:
    promises = Promises("async")
    index = with_an_unsynced_entry(promises)
    promises.acknowledge(index)
    with pytest.raises(Violation, match=r"acknowledges entry 3 .* its log ends at 2"):
        promises.acknowledge(index + 1)


def test_an_entry_acknowledged_above_the_end_of_the_log_is_found() -> None:
    promises = Promises()
    with pytest.raises(Violation, match=r"acknowledges entry 7 .* its log ends at 1"):
        promises.acknowledge(7)


# ---------------------------------------------------------------- acknowledged appends


class Outcomes:
    """Two acknowledged appends of two entries each, at 1 .. 2 and 3 .. 4."""

    def __init__(self, flush: str = "sync") -> None:
        self.cell = WatchedCell(1, storage=replace(SMALL, flush=flush))
        self.first = self.cell.append(b"a", b"b")
        self.second = self.cell.append(b"c", b"d")
        self.log = CommittedLog(self.cell)
        self.checker = AcknowledgedAppends(self.cell, self.log)

    def broken(self, why: str) -> None:
        with pytest.raises(Violation, match=why):
            self.checker.made_whole()


def lost_append(number: int) -> ClientAppend:
    """Acknowledged at 5 .. 6, where the log has ended."""
    receipt = AppendReceipt(1, 5, 2, "async")  # type: ignore[arg-type]
    return ClientAppend(number, (b"e", b"f"), "n0", 9_000.0, returned_ms=9_001.0, outcome=receipt)


def test_true_outcomes_are_accepted() -> None:
    outcomes = Outcomes()
    outcomes.checker.made_whole()
    outcomes.first.outcome = OutcomeUnknown("")
    outcomes.second.outcome = None
    outcomes.cell.operations.appends.append(
        ClientAppend(3, (b"x",), "n0", 0.0, returned_ms=1.0, outcome=NotLeader(""))
    )
    outcomes.checker.made_whole()


def test_an_acknowledged_append_that_is_not_in_the_log_is_found() -> None:
    outcomes = Outcomes()
    outcomes.cell.operations.appends.append(lost_append(3))
    outcomes.broken("append 3 .* but the final log holds 0 of its 2 bodies.* entries from 5 on are lost")


def test_an_acknowledged_append_may_only_be_lost_where_a_power_loss_took_it() -> None:
    outcomes = Outcomes("async")
    outcomes.cell.operations.appends.append(lost_append(3))
    outcomes.log.forget_from(6)
    outcomes.broken("entries from 5 on are lost .a power loss explains it from: 6")
    outcomes.log.forget_from(5)
    outcomes.cell.trace.counts.clear()
    outcomes.checker.made_whole()
    assert outcomes.cell.trace.counts["async: an acknowledged append is lost"] == 1


def test_an_acknowledged_append_at_another_index_is_found() -> None:
    outcomes = Outcomes()
    outcomes.first.outcome = AppendReceipt(1, 2, 2, "sync")  # type: ignore[arg-type]
    outcomes.broken(r"append 1 .*: the final log holds 2 of its 2 bodies, at \[1, 2\], of term 1")


def test_a_refused_append_that_is_in_the_log_is_found() -> None:
    outcomes = Outcomes()
    outcomes.first.outcome = NotLeader("no")
    outcomes.broken(r"append 1 .*NotLeader.* but the final log holds 2 of its 2 bodies, at \[1, 2\]")


def test_an_append_that_is_in_the_log_twice_is_found() -> None:
    outcomes = Outcomes()
    outcomes.cell.append(b"a", b"b")
    outcomes.cell.operations.appends.pop()
    outcomes.broken("append 1 .* which is no prefix of it")


def test_an_unknown_append_of_which_a_part_in_the_middle_is_missing_is_found() -> None:
    outcomes = Outcomes()
    outcomes.first.outcome = None
    outcomes.first.bodies = (b"a", b"between", b"b")
    outcomes.broken("append 1 to n0 .no answer.: .* which is no prefix of it")


def test_an_unknown_append_that_is_not_contiguous_is_found() -> None:
    outcomes = Outcomes()
    outcomes.cell.operations.appends = [ClientAppend(1, (b"a", b"b", b"d"), "n0", 0.0), outcomes.second]
    outcomes.second.bodies = (b"c",)
    outcomes.second.outcome = None
    outcomes.broken(r"append 1 .*at \[1, 2, 4\], which is not contiguous")


def test_an_entry_that_nobody_appended_is_found() -> None:
    outcomes = Outcomes()
    outcomes.cell.operations.appends.remove(outcomes.second)
    outcomes.broken("entry 3 of term 1 was appended by nobody")


def test_an_append_below_one_that_had_returned_before_it_was_called_is_found() -> None:
    outcomes = Outcomes()
    first, second = outcomes.first, outcomes.second
    first.called_ms, first.returned_ms = second.returned_ms + 1.0, second.returned_ms + 2.0
    outcomes.broken("append 1 .* lies at 1, below append 2 .* ends at 4")


def test_an_acknowledgement_above_everything_committed_is_found_at_once() -> None:
    outcomes = Outcomes()
    with pytest.raises(Violation, match="but entries are committed up to -1 only"):
        outcomes.checker.appended(outcomes.first)


# ---------------------------------------------------------------- amounts


def heartbeat_of(leader: Any) -> HeartbeatRequest:
    return HeartbeatRequest(
        sender=leader.replica, term=leader.node.raft.term, round=1, committed_index=-1
    )


def test_a_leader_that_says_too_much_while_nothing_happens_is_found_when_the_second_is_over() -> None:
    cell = WatchedCell()
    cell.append(b"a")
    cell.until_whole()
    checker = MessageRate(cell)
    cell.watch(checker)
    leader = cell.leader()
    start_ms = cell.now_ms
    while cell.now_ms < start_ms + 5_000:
        cell.cell.step()
    for _ in range(calm_limit(leader.node.config.consensus, 2) + 1):
        checker.sent(leader, Envelope(cell.followers()[0].replica, heartbeat_of(leader)))
    with pytest.raises(Violation, match="messages although nothing happened in second"):
        while cell.now_ms < start_ms + 8_000:
            cell.cell.step()


def test_a_storm_is_found_at_once_whatever_happens() -> None:
    cell = WatchedCell()
    cell.is_faulty = True
    checker = MessageRate(cell)
    leader = cell.leader()
    envelope = Envelope(cell.followers()[0].replica, heartbeat_of(leader))
    for _ in range(sick_limit(leader.node.config.consensus, 2)):
        checker.sent(leader, envelope)
    with pytest.raises(Violation, match="messages besides APPEND and COMMIT"):
        checker.sent(leader, envelope)


def test_what_the_core_keeps_beyond_its_bounds_is_found() -> None:
    cell = WatchedCell()
    cell.append(b"a")
    leader = cell.leader()
    checker = BoundedMemory(cell)
    checker.turned(leader)
    raft = leader.node.raft
    envelope = Envelope(cell.followers()[0].replica, heartbeat_of(leader))

    raft._outbox.messages.append(envelope)
    with pytest.raises(
        Violation, match="1 messages or proposals left in the core after a turn, limit 0"
    ):
        checker.turned(leader)
    raft._outbox.messages.clear()

    limit = leader.node.config.consensus.max_waiting_pushes
    raft._handler._waiting.extend([(0, 0, envelope.message)] * (limit + 1))
    with pytest.raises(
        Violation, match=r"257 pushes ahead of the log \(max_waiting_pushes\), limit 256"
    ):
        checker.turned(leader)
    raft._handler._waiting.clear()

    dispatcher = next(iter(raft.replication.dispatchers.values()))
    dispatcher._window.pushes.append((9, 1 << 30))
    with pytest.raises(Violation, match="bytes on their way to n"):
        checker.turned(leader)
    dispatcher._window.pushes.clear()

    raft.log._ends.append((1, 1))
    with pytest.raises(Violation, match="1 undurable changes of the log, limit 0"):
        checker.turned(leader)
