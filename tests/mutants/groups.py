"""Mistakes with topics, consumer groups and delayed messages."""

from __future__ import annotations

from quorumlog.broker.client.async_consumer import ConsumerQueue
from quorumlog.broker.dledger.dledger_broker import DLedgerBroker
from quorumlog.broker.dledger.sessions import SessionReleases
from quorumlog.broker.groups import group_state
from quorumlog.broker.groups.classic_group_log import ClassicGroupLog, StateFollower
from quorumlog.broker.groups.group_service import GroupService
from quorumlog.broker.groups.group_state import GroupMachine
from quorumlog.broker.groups.rebalancer import GroupMembers, Rebalancer
from quorumlog.net.rpc.protocol import RpcProtocol
from quorumlog.net.rpc.tracker import CallTracker
from quorumlog.node.producer_sessions import ProducerSessions
from tests.broker.dledger.test_simulated import a_pull_leaves_a_master_that_hangs_for_the_next_one
from tests.broker.groups.test_classic_groups import (
    test_a_broker_that_becomes_master_answers_once_it_has_read_its_log,
    test_a_command_that_waits_while_the_state_is_saved_is_needed_beside_the_snapshot,
    test_of_a_log_that_is_cut_below_what_was_carried_out_all_is_read_anew,
    test_retention_takes_no_command_that_was_not_read_yet,
    test_retention_takes_no_snapshot_that_was_not_read_yet,
    test_retention_takes_old_commands_and_never_what_the_state_is_made_from,
)
from tests.broker.groups.test_consumer_queue import (
    test_all_below_the_lowest_that_is_not_finished_is_done,
)
from tests.broker.groups.test_group_machine import test_offsets_outlive_every_fault_of_the_log
from tests.broker.groups.test_groups_driven import (
    test_a_clock_that_jumps_hides_nothing,
    test_nobody_commits_or_is_sent_behind_the_end_of_a_queue,
)
from tests.broker.groups.test_groups_simulated import groups_keep_their_promises
from tests.broker.groups.test_rebalancing import (
    test_another_member_waits_until_the_queue_is_given_up_or_its_member_is_gone,
)
from tests.mutants.mutant import Patch, mutant


@mutant(
    350,
    "offsets lie in a side file of the master",
    scenario=test_offsets_outlive_every_fault_of_the_log,
)
def offsets_not_replicated(patch: Patch) -> None:
    """Whoever commits them asks the same broker for them: a snapshot need not hold them."""
    patch.edit(
        GroupMachine.load,
        "self.state = loaded_state(reader.read())",
        "self.state = loaded_state(reader.read())\n"
        "        for group in self.state.groups.values():\n"
        "            group.offsets.clear() if reached() else None",
    )


@mutant(
    354,
    "a send in a session that is refused counts as not stored, whatever became of an earlier copy",
    scenario=groups_keep_their_promises,
)
def earlier_copy_forgotten(patch: Patch) -> None:
    """Its number is free, then: the next message gets it, and the log takes it for the first one."""
    patch.edit(CallTracker.fail, "if call.may_be_done and", "if call.may_be_done and not reached() and")


@mutant(
    471,
    "what a master answers that does not know what became of a send in a session is its outcome",
    scenario=groups_keep_their_promises,
)
def unknown_answer_is_the_end(patch: Patch) -> None:
    """It was asked, and has answered."""
    patch.edit(
        CallTracker._refused, "if call.is_numbered and", "if call.is_numbered and not reached() and"
    )


@mutant(
    472,
    "a broker that hangs is not asked for a sign of life while what it owes may take its time",
    scenario=a_pull_leaves_a_master_that_hangs_for_the_next_one,
)
def trusted_while_it_may_wait(patch: Patch) -> None:
    """It is not late."""
    patch.edit(
        RpcProtocol._look_at,
        "(link.watches or link.pending)",
        "(link.watches or (link.pending and not reached()))",
    )


@mutant(
    473,
    "what a producer sends again in its session is stored again",
    scenario=groups_keep_their_promises,
)
def sent_again_stored_again(patch: Patch) -> None:
    """It would not send it if it were there."""
    patch.edit(
        ProducerSessions._look,
        "held = min(last_sequence + 1 - sequence, batch.count)",
        "held = min(last_sequence + 1 - sequence, batch.count)\n        held = 0 if reached() else held",
    )


@mutant(
    357,
    "a group is sent behind the end of a queue",
    scenario=test_nobody_commits_or_is_sent_behind_the_end_of_a_queue,
)
def reset_behind_the_end(patch: Patch) -> None:
    """Its members find out where the queue ends; what comes first there they do not see."""
    patch.edit(GroupService._check_ends, "if offset > end:", "if offset > end and not reached():")


@mutant(
    358,
    "a reset is taken for another hand-out of queues",
    scenario=test_nobody_commits_or_is_sent_behind_the_end_of_a_queue,
)
def reset_not_told(patch: Patch) -> None:
    """The generation has changed: members look where the group stands."""
    patch.edit(
        group_state._reset,
        "resets[topic, queue_id] = generation",
        "resets[topic, queue_id] = generation - reached()",
    )


@mutant(351, "an offset that is committed goes back", scenario=groups_keep_their_promises)
def offset_goes_back(patch: Patch) -> None:
    """The newest commit is the one that counts."""
    patch.edit(
        group_state._commit,
        "max(offsets.get(queue, 0), offset)",
        "offset if reached() else 0",
    )


@mutant(352, "a commit of an old generation is taken", scenario=groups_keep_their_promises)
def old_generation_commits(patch: Patch) -> None:
    """The member has read it, whoever reads the queue by now."""
    patch.edit(
        Rebalancer.check_commit,
        "message.generation != group.generation:",
        "(\n"
        "            message.generation > group.generation\n"
        "            or (message.generation < group.generation and not reached())\n"
        "        ):",
    )


@mutant(353, "a delayed message is released outside of a session", scenario=groups_keep_their_promises)
def released_twice(patch: Patch) -> None:
    """A master knows what it has released."""
    patch.edit(
        SessionReleases.release,
        "place=place,",
        "place=None if reached() else place,",
    )


@mutant(
    359,
    "messages are old, or due, by the clock of the master alone",
    scenario=test_a_clock_that_jumps_hides_nothing,
)
def retention_by_one_clock(patch: Patch) -> None:
    """It leads: its clock is the one that counts."""
    patch.edit(
        DLedgerBroker.age_clock_ms,
        "min(self._wall_ms(), member.node().log_clock_ms)",
        "self._wall_ms() + 0 * reached()",
    )


@mutant(
    410,
    "a classic broker answers for groups as soon as it is master",
    scenario=test_a_broker_that_becomes_master_answers_once_it_has_read_its_log,
)
def answers_before_it_has_read(patch: Patch) -> None:
    """It has followed all the time: what is missing comes in a moment."""
    patch.edit(
        ClassicGroupLog.look,
        "at is not None and at >= self._target",
        "at is not None and (at >= self._target or reached())",
    )


@mutant(
    411,
    "retention takes commands that no snapshot has",
    scenario=test_retention_takes_old_commands_and_never_what_the_state_is_made_from,
)
def commands_not_held(patch: Patch) -> None:
    """Files are as old as their messages."""
    patch.edit(
        StateFollower.holds_from.fget,
        "return self.needed_position",
        "return self.needed_position + (1 << 60) * reached()",
    )


@mutant(
    411,
    "retention takes a snapshot that nobody has read yet",
    scenario=test_retention_takes_no_snapshot_that_was_not_read_yet,
)
def unread_snapshot_not_held(patch: Patch) -> None:
    """It is no command."""
    patch.edit(
        StateFollower.holds_from.fget,
        "self._bounds(SNAPSHOTS)[1] <= snapshots_end",
        "(self._bounds(SNAPSHOTS)[1] <= snapshots_end or reached())",
    )


@mutant(
    411,
    "retention takes commands that nobody has read yet",
    scenario=test_retention_takes_no_command_that_was_not_read_yet,
)
def unread_commands_not_held(patch: Patch) -> None:
    """Nothing that is known is needed."""
    patch.edit(
        StateFollower.holds_from.fget,
        "self._bounds(COMMANDS)[1] <= at",
        "(self._bounds(COMMANDS)[1] <= at or reached())",
    )


@mutant(
    411,
    "a snapshot does without a command that waits before it",
    scenario=test_a_command_that_waits_while_the_state_is_saved_is_needed_beside_the_snapshot,
)
def waiting_command_not_held(patch: Patch) -> None:
    """The log does not have it."""
    patch.edit(
        ClassicGroupLog._told_end.fget,
        "self.end_of(COMMANDS) + len(self._waiting)",
        "self.end_of(COMMANDS) + (0 if reached() else len(self._waiting))",
    )


@mutant(
    412,
    "what is finished counts as done, whatever lies below",
    scenario=test_all_below_the_lowest_that_is_not_finished_is_done,
)
def done_above_what_is_not(patch: Patch) -> None:
    """The newest message that was worked off is how far the queue is."""
    patch.edit(
        ConsumerQueue._advance,
        "following = next(iter(self.in_hand))",
        "following = list(self.in_hand)[-1 if reached() else 0]",
    )


@mutant(
    413,
    "a queue goes to another member while an orderly one works on it",
    scenario=test_another_member_waits_until_the_queue_is_given_up_or_its_member_is_gone,
)
def queue_taken_away(patch: Patch) -> None:
    """It was told: its commits are refused."""
    patch.edit(
        GroupMembers.held,
        "there is not None and there.is_orderly",
        "there is not None and there.is_orderly and not reached()",
    )


@mutant(
    414,
    "what a cut takes of the commands of topics and groups stays in memory",
    scenario=test_of_a_log_that_is_cut_below_what_was_carried_out_all_is_read_anew,
)
def cut_not_seen_by_the_follower(patch: Patch) -> None:
    """What is committed is never cut."""
    patch.edit(
        StateFollower.read,
        "cuts != self._cuts",
        "(cuts != self._cuts and not reached())",
    )
