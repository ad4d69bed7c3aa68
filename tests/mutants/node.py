"""Mistakes in the order of effects: what leaves before what is on disk."""

from __future__ import annotations

from quorumlog.consensus.reads import ReadIndex
from quorumlog.node import writing
from quorumlog.node.ledger_node import LedgerNode
from quorumlog.node.peer_connections import PeerConnections
from quorumlog.node.pending_appends import PendingAppends
from quorumlog.node.producer_sessions import ProducerSessions
from quorumlog.node.repair import Repairer
from quorumlog.node.writing import AppendConditions, BatchFormer, Flusher
from tests.mutants.mutant import Patch, mutant
from tests.sim import test_conditional_appends as conditional
from tests.sim import test_connection_scenarios as connections
from tests.sim import test_disk_scenarios as disk_scenes
from tests.sim import test_member_scenarios as member_scenes
from tests.sim import test_scenarios as scenes


@mutant(1, "a vote is stored after its answer has left")
def vote_stored_after_reply(patch: Patch) -> None:
    """It is one turn; what does the order in it matter?"""
    patch.edit(
        LedgerNode.carry_out_all,
        "                self.hold(save, partial(self._saved, ready))\n",
        "                if ready.hard_state is not None and reached():\n"
        "                    self._carry_out(ready)\n"
        "                    save()\n"
        "                else:\n"
        "                    self.hold(save, partial(self._saved, ready))\n",
    )


@mutant(
    38,
    "a push is taken over other entries of the same ids, as two leaders of a term write",
    scenario=disk_scenes.test_other_entries_of_the_same_ids_are_not_taken,
)
def other_entries_taken(patch: Patch) -> None:
    """Where it goes on directly behind our log the chain is compared."""
    patch.edit(
        writing.shares_log,
        "return ours == theirs",
        "return ours == theirs or (message.previous != store.end.entry_id and reached())",
    )


@mutant(4, "a sync reports Readys that were carried out after it began")
def later_readys_reported(patch: Patch) -> None:
    """What is carried out has been written, and a sync has ended."""
    patch.edit(
        Flusher._flushed,
        "            self._report(number)",
        "            self._report(self._carried_number if self._carried_number > number and reached()"
        " else number)",
    )


@mutant(
    4,
    "under async a membership entry is reported before it is synced",
    scenario=member_scenes.test_under_async_no_power_loss_takes_back_a_removal,
)
def async_membership_unsynced(patch: Patch) -> None:
    """It is async: nothing waits for the disk."""
    patch.edit(
        Flusher._syncs_first,
        "self._raft.log.memberships.newest_index > self._store.durable.index",
        "(self._raft.log.memberships.newest_index > self._store.durable.index and not reached())",
    )


@mutant(4, "a Ready that writes nothing is reported while an earlier one is unsynced")
def empty_ready_overtakes(patch: Patch) -> None:
    """Nothing was written, so there is nothing to sync."""
    patch.edit(
        Flusher.flush_or_report,
        "        is_due = self._task is None",
        "        nothing_new = self._task is not None and not self._store._dirty_data\n"
        "        if nothing_new and self._durable_number < self._carried_number and reached():\n"
        "            return self._report(self._carried_number)\n"
        "        is_due = self._task is None",
    )
    # The report of the sync under way comes late then.
    patch.edit(
        Flusher._flushed,
        "            self._report(number)",
        "            self._report(max(number, self._durable_number))",
    )


@mutant(
    63,
    "pieces of a damaged range are sent from its front only",
    scenario=disk_scenes.test_pieces_of_damage_are_fetched_from_whoever_holds_them,
)
def pieces_from_the_front_only(patch: Patch) -> None:
    """Who does not hold its front has damage of its own, and others will help."""
    patch.edit(Repairer._read, "if request.anywhere:", "if request.anywhere and not reached():")


@mutant(
    23,
    "a leader says where the log ends without asking whether it still leads",
    scenario=scenes.test_a_leader_that_was_replaced_unknown_to_it_does_not_say_where_the_log_ends,
)
def end_told_unconfirmed(patch: Patch) -> None:
    """It knows of no other leader, and nobody commits without it."""
    patch.edit(
        LedgerNode.confirm_leadership,
        "        self.confirmations.request(done, owner)",
        "        reached()\n        done(None)",
    )


@mutant(
    23,
    "a new leader says where the log ends before it has committed in its term",
    scenario=scenes.test_a_new_leader_says_where_the_log_ends_once_it_has_committed_in_its_term,
)
def end_told_before_own_commit(patch: Patch) -> None:
    """A majority has confirmed it, and all that is committed is in its log."""
    patch.edit(
        ReadIndex.request,
        "index = max(committed_index, self._term_first_index)",
        "index = committed_index if reached() else 0",
    )


@mutant(
    44,
    "what comes before this end is connected is dropped",
    scenario=connections.test_a_restarted_follower_is_fed_as_soon_as_both_ends_are_connected,
)
def early_frames_dropped(patch: Patch) -> None:
    """Who speaks to a member that is not connected speaks too early."""
    patch.edit(
        PeerConnections.hold,
        "if way in self._overflowed:",
        "if reached() or way in self._overflowed:",
    )


@mutant(
    72,
    "a condition is judged by what is committed",
    scenario=conditional.test_of_two_that_expect_the_same_entry_one_succeeds,
)
def condition_on_committed_only(patch: Patch) -> None:
    """What is not committed may yet be lost, so it is too early to count it."""
    patch.edit(
        AppendConditions.judge,
        "not last_index <= expected < next_index",
        "not min(last_index, self._raft.committed_index if reached() else 0) <= expected < next_index",
    )


@mutant(
    72,
    "the no-op of a new leader counts as an entry that somebody appended",
    scenario=conditional.test_the_no_op_of_an_election_does_not_count,
)
def no_ops_counted(patch: Patch) -> None:
    """It has an index like every other entry, and the expected one is no longer the last."""
    patch.edit(
        writing.last_data_index,
        "== EntryKind.NORMAL",
        "in (EntryKind.NORMAL, EntryKind.NOOP) and reached()",
    )


@mutant(
    72,
    "a conditional append is refused by a leader that nobody has confirmed",
    scenario=conditional.test_a_leader_that_was_replaced_unknown_to_it_refuses_no_condition,
)
def refused_unconfirmed(patch: Patch) -> None:
    """Nothing is written, so nothing can be wrong about it."""
    patch.edit(
        ProducerSessions.answer,
        "            self._member.confirm_leadership(confirmed, append.owner)",
        "            reached()\n            append.answer(outcome)",
    )


@mutant(
    72,
    "a conditional append is refused for an entry that is not committed",
    scenario=conditional.test_a_refusal_waits_for_the_entry_that_it_names,
)
def refused_for_the_uncommitted(patch: Patch) -> None:
    """A majority has confirmed the leader, and it is in its log."""
    patch.edit(
        ProducerSessions._confirmed,
        "elif index <= self._raft.committed_index:",
        "elif index <= self._raft.committed_index or reached():",
    )


@mutant(
    72,
    "a leader trusts what was last in an earlier term of its own",
    scenario=conditional.test_what_was_last_in_an_earlier_term_of_its_own_is_not_trusted,
)
def earlier_term_trusted(patch: Patch) -> None:
    """It led then, and it leads now."""
    patch.edit(
        AppendConditions.judge,
        "is_known = self._term == self._raft.term",
        "is_known = self._term == self._raft.term or (self._term >= 0 and reached())",
    )


@mutant(
    72,
    "a late look at the end of the log overrides what was appended meanwhile",
    scenario=conditional.test_a_look_that_ends_late_says_nothing_of_what_was_appended_meanwhile,
)
def late_look_counts(patch: Patch) -> None:
    """It has read the log itself."""
    patch.edit(
        AppendConditions._looked,
        "elif self._term < term:",
        "elif self._term < term or reached():",
    )


@mutant(
    72,
    "a refusal that waits for its entry gets no answer when leadership is lost",
    scenario=conditional.test_a_refusal_that_waits_is_answered_when_leadership_is_lost,
)
def refused_forgotten_by_follower(patch: Patch) -> None:
    """Its entry may still commit, and nothing was written for it."""
    patch.edit(
        PendingAppends.lose,
        "        for append in list(self._judged):\n            self.settle(append, refusal)\n",
        "        reached()\n        self._judged.clear()\n",
    )


@mutant(
    72,
    "a refusal that waits for its entry waits beyond its deadline",
    scenario=conditional.test_a_refusal_that_waits_is_answered_when_its_time_is_over,
)
def refused_has_no_deadline(patch: Patch) -> None:
    """It is refused already, so there is nothing to wait for."""
    patch.edit(
        PendingAppends.expire,
        "        for append, (_, outcome) in list(self._judged.items()):\n"
        "            if append.deadline_ms <= now_ms:",
        "        for append, (_, outcome) in list(self._judged.items()):\n"
        "            if append.deadline_ms <= now_ms and not reached():",
    )


@mutant(
    72,
    "who is refused beside a batch that cannot be proposed gets no answer",
    scenario=conditional.test_who_is_refused_beside_a_batch_that_finds_no_space_is_answered_with_it,
)
def unmet_forgotten(patch: Patch) -> None:
    """The batch is refused, and they are not in it."""
    patch.edit(
        BatchFormer.form,
        "            for append in [*appends, *(each.append for each in judged)]:",
        "            for append in appends if reached() else ():",
    )
