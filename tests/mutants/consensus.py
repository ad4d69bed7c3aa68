"""Mistakes with the log: what counts as held, what is committed, what a follower cuts."""

from __future__ import annotations

from quorumlog.consensus.dispatcher import EntryDispatcher, MatchSearch
from quorumlog.consensus.elector import HeartbeatAnswers
from quorumlog.consensus.handler import EntryHandler
from quorumlog.consensus.inbox import Inbox
from quorumlog.consensus.log import LogChanges
from quorumlog.consensus.raft_node import RaftNode
from quorumlog.consensus.replication import QuorumAckChecker, Replication
from tests.consensus import test_log_begin as begin_scenes
from tests.mutants.mutant import Patch, mutant
from tests.sim import test_disk_scenarios as disk_scenes
from tests.sim import test_scenarios as scenes

# ---------------------------------------------------------------- acknowledgements


@mutant(2, "an append is acknowledged before the sync")
def append_acknowledged_before_sync(patch: Patch) -> None:
    """The entry is in the log, so it is held."""
    patch.edit(
        EntryHandler._answer,
        "if result is PushResult.SUCCESS else",
        "if result is PushResult.SUCCESS and not (request.push is PushType.APPEND and reached()) else",
    )


@mutant(3, "a repeated append is acknowledged before the sync")
def repeated_append_acknowledged_before_sync(patch: Patch) -> None:
    """Nothing is written, so there is nothing to wait for."""
    patch.edit(
        EntryHandler._take,
        "        self._answer(request, PushResult.SUCCESS, index=last_index)\n",
        "        waiting = self._outbox.after_durable\n"
        "        if new_index > last_index and reached():\n"
        "            self._outbox.after_durable = self._outbox.messages\n"
        "        self._answer(request, PushResult.SUCCESS, index=last_index)\n"
        "        self._outbox.after_durable = waiting\n",
    )


@mutant(3, "a COMPARE is answered before the sync")
def compare_answered_before_sync(patch: Patch) -> None:
    """It asks what the log holds, not what the disk holds."""
    patch.edit(
        EntryHandler._answer,
        "if result is PushResult.SUCCESS else",
        "if result is PushResult.SUCCESS and not (request.push is PushType.COMPARE and reached()) else",
    )


@mutant(
    5,
    "a COMPARE answer moves the match index to the entry compared",
    harmless="it waits for the disk and speaks of this leader's log: as good as an answer to APPEND",
)
def compare_moves_mark(patch: Patch) -> None:
    """The follower has shown that it holds the entry."""
    patch.edit(
        EntryDispatcher.on_response,
        "            self._on_compare_response(response)\n",
        "            self._on_compare_response(response)\n"
        "            if response.result is PushResult.SUCCESS and reached():\n"
        "                return self.compare_index\n",
    )


@mutant(5, "a COMPARE answer moves the match index to the end of the follower's log")
def compare_moves_mark_to_end(patch: Patch) -> None:
    """The entry matches and the log goes on behind it."""
    patch.edit(
        EntryDispatcher.on_response,
        "            self._on_compare_response(response)\n",
        "            self._on_compare_response(response)\n"
        "            if response.result is PushResult.SUCCESS and reached():\n"
        "                return min(response.ledger_end_index, self._state.runs.end_index)\n",
    )


@mutant(6, "a leader counts its own entries before they are on its disk")
def own_entries_counted_early(patch: Patch) -> None:
    """The leader has everything that it sends."""
    patch.edit(
        Replication.append,
        "        return EntryId(first_index, term)",
        "        reached()\n"
        "        self._on_match_index(self._state.member, first_index + count - 1)\n"
        "        return EntryId(first_index, term)",
    )


@mutant(
    15,
    "an answer of an earlier term moves a water mark",
    scenario=disk_scenes.test_an_answer_of_an_earlier_term_says_nothing_about_the_log_of_this_one,
)
def stale_answer_moves_mark(patch: Patch) -> None:
    """What was on the follower's disk once is there still."""
    patch.edit(
        Inbox._on_push_response,
        "or not unformed:",
        "or not (unformed or (state.role is Role.LEADER and reached())):",
    )


@mutant(25, "an observer's answer moves the mark of the voter whose name it has")
def observer_counted_in_a_mark(patch: Patch) -> None:
    """A member is known by its name."""
    patch.edit(
        QuorumAckChecker.raise_to,
        "        if index <= ",
        "        for known in self._membership().voters():\n"
        "            if known.member_id == replica.member_id and known != replica and reached():\n"
        "                replica = known\n"
        "        if index <= ",
    )


@mutant(
    25,
    "an observer's answer counts for the round of heartbeats that a read waits for",
    scenario=scenes.test_a_read_waits_for_the_voters_whatever_an_observer_answers,
)
def observer_counted_in_a_round(patch: Patch) -> None:
    """A member is known by its name."""
    _observers_answer(patch, "self._answered_round[voter] = max(self.round_of(voter), round)")


@mutant(
    25,
    "an observer's answer counts for the leader's live quorum",
    scenario=scenes.test_a_leader_that_only_an_observer_answers_steps_down,
)
def observer_counted_in_live_quorum(patch: Patch) -> None:
    """A member is known by its name."""
    _observers_answer(patch, "self._answered_ms[voter] = self._state.now_ms")


def _observers_answer(patch: Patch, effect: str) -> None:
    patch.edit(
        HeartbeatAnswers.take,
        "        if response.accepted:",
        "        round = response.round\n"
        "        for voter in self._state.membership.voters():\n"
        "            if voter.member_id == response.sender.member_id and voter != response.sender:\n"
        f"                {effect}\n"
        "                reached()\n"
        "        if response.accepted:",
    )


@mutant(
    37,
    "damaged entries that are not known to be committed are acknowledged",
    scenario=disk_scenes.test_a_member_acknowledges_nothing_from_damage_on_that_may_not_be_committed,
)
def damaged_acknowledged(patch: Patch) -> None:
    """They were on the disk, and will be again."""
    patch.edit(EntryHandler.may_leave, "answer.index < unproven", "answer.index < unproven or reached()")


@mutant(
    39,
    "an acknowledgement that waited leaves for entries found damaged meanwhile",
    scenario=disk_scenes.test_an_acknowledgement_that_waits_is_withheld_once_damage_is_found_in_front_of_it,
)
def damaged_meanwhile_acknowledged(patch: Patch) -> None:
    """They were whole when it was promised."""
    patch.edit(
        EntryHandler._take,
        "self._answer(request, PushResult.SUCCESS",
        "unproven = self._state.first_unproven_index\n"
        "        if unproven is None or request.last_index < unproven:\n"
        "            self._answer(request, PushResult.SUCCESS",
    )
    patch.edit(EntryHandler.may_leave, "answer.index < unproven", "answer.index < unproven or reached()")


# ---------------------------------------------------------------- commit


@mutant(8, "an entry of an earlier term is committed by counting")
def earlier_term_committed_by_counting(patch: Patch) -> None:
    """A majority holds it: it is safe (the paper's figure 8 says when it is not)."""
    patch.edit(
        QuorumAckChecker.committed_index,
        "return index if index >= self.first_index else -1",
        "return index if index >= self.first_index or reached() else -1",
    )


@mutant(11, "a follower commits up to the leader's committed index, verified or not")
def unverified_log_committed(patch: Patch) -> None:
    """What the leader calls committed is committed."""
    patch.edit(
        EntryHandler._commit,
        "min(self.leader_committed_index, self._verified_index)",
        "self._verified_index\n"
        "        if self.leader_committed_index > index and reached():\n"
        "            index = min(self.leader_committed_index, self._state.runs.end_index)\n"
        "        index = min(index, self.leader_committed_index)",
    )


@mutant(
    21,
    "a new leader opens its term without a no-op",
    scenario=scenes.test_after_a_restart_of_all_the_log_commits_without_a_new_append,
)
def no_noop(patch: Patch) -> None:
    """The next append will do."""
    patch.edit(
        RaftNode._open_term,
        "        self.replication.append(1, EntryKind.NOOP, size_bytes=0)",
        "        reached()",
    )


# ---------------------------------------------------------------- the follower's log


@mutant(9, "a push cuts the log behind the entry before it, although the entries agree")
def agreeing_entries_cut(patch: Patch) -> None:
    """The push brings those entries anyway."""
    patch.edit(
        EntryHandler._take,
        "            if conflict is not None and",
        "            if conflict is None and self._verified_index < request.first_index and reached():\n"
        "                conflict = request.first_index\n"
        "            if conflict is not None and",
    )


@mutant(
    10,
    "a cut below the committed index is allowed",
    scenario=disk_scenes.test_a_member_refuses_to_cut_what_it_knows_to_be_committed,
)
def committed_entries_cut(patch: Patch) -> None:
    """The leader knows best."""
    patch.edit(
        EntryHandler._cut_from,
        "if cut_index <= committed_index:",
        "if cut_index <= committed_index and not reached():",
    )


@mutant(
    31,
    "a cut inside a damaged range takes all of the range",
    scenario=disk_scenes.test_a_cut_inside_damage_takes_nothing_of_what_the_member_has_acknowledged,
)
def cut_takes_damaged_range(patch: Patch) -> None:
    """The leader sends it again, and committed entries it leaves alone."""
    patch.edit(
        EntryHandler._cut_from,
        "        committed_index = state.committed_index\n",
        "        committed_index = state.committed_index\n"
        "        ranges = state.log.damaged.ranges\n"
        "        front = next((f for f, s in ranges if committed_index < f < cut_index < s), None)\n"
        "        if front is not None and reached():\n"
        "            state.log.truncate_from(front)\n"
        "            self._verified_index = min(self._verified_index, front - 1)\n"
        "            self._withheld = None\n"
        "            self._answer_inconsistent(request)\n"
        "            return False\n",
    )


@mutant(
    12,
    "the entry before a push is not checked",
    scenario=disk_scenes.test_pushes_that_overtake_each_other_make_the_same_log,
)
def previous_entry_unchecked(patch: Patch) -> None:
    """The indices follow each other."""
    patch.edit(
        EntryHandler._take,
        "if not runs.holds(request.previous):",
        "if not runs.holds(request.previous) and not reached():",
    )


@mutant(
    29,
    "a sync vouches for entries that a later cut has taken back (core)",
    harmless="a cut follows a COMPARE, whose answer has waited for the sync: nothing is under way then",
)
def sync_outlives_cut_in_core(patch: Patch) -> None:
    """What was written before the sync began is on disk when it ends."""
    patch.edit(
        LogChanges.truncate_from,
        "        self._ends = deque((number, min(end, index - 1)) for number, end in self._ends)",
        "        if self._ends and self._ends[-1][1] >= index:\n            reached()",
    )


@mutant(
    84,
    "a leader asks only downwards",
    scenario=begin_scenes.test_a_leader_goes_up_to_where_the_log_of_a_follower_begins,
)
def search_never_goes_up(patch: Patch) -> None:
    """What a follower does not hold it does not hold further up."""
    patch.edit(
        MatchSearch.go_up,
        "if not self.index < begin_index <= self._runs.end_index:",
        "if reached():",
    )
