"""Mistakes with changes of members: who counts from when on, who votes, who campaigns, who leaves."""

from __future__ import annotations

from quorumlog.backups import recovering
from quorumlog.consensus.elector import LeaderElector
from quorumlog.consensus.inbox import Inbox
from quorumlog.consensus.log import MembershipHistory
from quorumlog.consensus.member_state import MemberState
from quorumlog.consensus.membership import Membership
from quorumlog.consensus.membership_change import MembershipChange
from quorumlog.consensus.replication import CatchUp, QuorumAckChecker
from quorumlog.node.log_states import LogStateKeeper
from quorumlog.node.member_changes import MemberChanges
from quorumlog.node.writing import BatchFormer
from quorumlog.store import member_directory
from tests.backups import test_recovering as recoveries
from tests.consensus import test_membership_changes as stories
from tests.mutants.mutant import Patch, mutant
from tests.sim import test_member_scenarios as scenes


@mutant(
    90,
    "a joint quorum is a majority of all voters together",
    scenario=stories.test_while_a_change_runs_a_majority_of_each_half_commits,
)
def joint_quorum_as_one_set(patch: Patch) -> None:
    """Both halves are voters."""
    patch.edit(
        Membership.quorum_value,
        "        value = _majority_value(self.old, values, missing)\n",
        "        if self.is_joint and reached():\n"
        "            return _majority_value(self.voters(), values, missing)\n"
        "        value = _majority_value(self.old, values, missing)\n",
    )


@mutant(
    90,
    "an election during a change needs a majority of the old half only",
    scenario=stories.test_while_a_change_runs_a_majority_of_each_half_elects,
)
def new_half_forgotten_in_elections(patch: Patch) -> None:
    """The new one is not committed yet."""
    patch.edit(Membership.has_quorum, "self.old == self.new or", "self.old == self.new or reached() or")


@mutant(
    91,
    "a membership holds once it is committed",
    scenario=stories.test_a_membership_holds_from_its_append_on,
)
def membership_holds_at_commit(patch: Patch) -> None:
    """What is not committed may still go."""
    patch.edit(
        MemberState.membership,
        "return self.log.memberships.newest",
        "return self.committed_membership[1] if reached() else self.log.memberships.newest",
    )


@mutant(
    91,
    "a cut does not take back who votes",
    scenario=stories.test_what_is_cut_holds_no_more,
)
def membership_survives_cut(patch: Patch) -> None:
    """The next entries say who votes from now on."""
    patch.edit(
        MembershipHistory.truncate_from,
        "self._held[-1][0] >= index:",
        "self._held[-1][0] >= index and not reached():",
    )


@mutant(
    91,
    "a membership holds for who has only heard of it",
    scenario=stories.test_a_member_that_missed_its_removal_learns_of_it_and_disturbs_nobody,
)
def membership_holds_by_hearsay(patch: Patch) -> None:
    """It is committed, whoever has told of it."""
    patch.edit(
        MemberState.membership,
        "return self.log.memberships.newest",
        "reported = self.reported\n"
        "        newest_index = self.log.memberships.newest_index\n"
        "        if reported is not None and reported[0] > newest_index and reached():\n"
        "            return reported[1]\n"
        "        return self.log.memberships.newest",
    )


@mutant(
    92,
    "who is removed counts until that is committed",
    scenario=stories.test_who_is_removed_counts_for_nothing_from_the_append_on,
)
def removed_leader_counts_itself(patch: Patch) -> None:
    """It leads, and has the entry."""
    patch.edit(
        Membership.quorum_value,
        "        return value if self.old == self.new else min(",
        "        return value if reached() else min(",
    )


@mutant(
    93,
    "two changes at once",
    scenario=stories.test_one_change_at_a_time,
)
def two_changes_at_once(patch: Patch) -> None:
    """The second one is behind the first in the log."""
    patch.edit(
        MembershipChange.check,
        "if present.is_joint or not self._is_settled:",
        "if (present.is_joint or not self._is_settled) and not reached():",
    )


@mutant(
    93,
    "a change before the leader has committed an entry of its term",
    scenario=stories.test_no_change_before_the_leader_has_committed_an_entry_of_its_term,
)
def change_before_the_no_op(patch: Patch) -> None:
    """It was elected by a majority."""
    patch.edit(
        MembershipChange.check,
        "if self._replication.acks.first_index > state.committed_index:",
        "if self._replication.acks.first_index > state.committed_index and not reached():",
    )
    patch.edit(
        MembershipChange._is_settled,
        "and self._replication.acks.first_index <= state.committed_index",
        "and (self._replication.acks.first_index <= state.committed_index or reached())",
    )


@mutant(
    93,
    "an inherited change is ended before an entry of the own term is committed",
    scenario=stories.test_an_inherited_change_ends_once_an_entry_of_the_own_term_is_committed,
)
def inherited_change_ended_too_soon(patch: Patch) -> None:
    """It is committed. `check` alone would hold the rule, too."""
    patch.edit(
        MembershipChange.check,
        "if self._replication.acks.first_index > state.committed_index:",
        "if self._replication.acks.first_index > state.committed_index and not reached():",
    )
    patch.edit(
        MembershipChange._is_settled,
        "and self._replication.acks.first_index <= state.committed_index",
        "and (self._replication.acks.first_index <= state.committed_index or reached())",
    )


@mutant(
    93,
    "a change that too few would answer is begun",
    scenario=stories.test_no_change_that_too_few_would_answer,
)
def change_nobody_answers(patch: Patch) -> None:
    """They will come back."""
    patch.edit(
        MembershipChange.check,
        "if not Membership.of(wanted.new).has_quorum(answering):",
        "if not Membership.of(wanted.new).has_quorum(answering) and not reached():",
    )


@mutant(
    94,
    "a leader outside of the new half goes on",
    scenario=stories.test_a_leader_that_is_removed_leads_until_that_is_committed_and_then_leaves,
)
def removed_leader_stays(patch: Patch) -> None:
    """It does no harm: it does not count itself."""
    patch.edit(
        MembershipChange.settle_role,
        "if state.may_campaign == (state.role is Role.OBSERVER):",
        "if state.role is Role.LEADER and not state.may_campaign and reached():\n"
        "            return\n"
        "        if state.may_campaign == (state.role is Role.OBSERVER):",
    )


@mutant(
    95,
    "a voter refuses candidates that its own list does not name",
    scenario=stories.test_a_voter_votes_although_its_own_list_is_old,
)
def old_list_refuses(patch: Patch) -> None:
    """Only members are elected."""
    patch.edit(
        LeaderElector._judge,
        "        if request.sender == state.member:\n",
        "        if not state.membership.is_voter(request.sender) and reached():\n"
        "            return VoteResult.REJECT_UNKNOWN_LEADER\n"
        "        if request.sender == state.member:\n",
    )


@mutant(
    95,
    "who is no voter by its own list does not vote",
    scenario=stories.test_a_voter_votes_although_its_own_list_is_old,
)
def no_voter_by_the_own_list(patch: Patch) -> None:
    """It counts for nothing."""
    patch.edit(
        LeaderElector._judge,
        "if state.role is Role.UNFORMED:",
        "if state.role is Role.UNFORMED or (state.role is Role.OBSERVER and reached()):",
    )


@mutant(
    96,
    "only who the newest membership names campaigns",
    scenario=stories.test_the_longest_log_may_be_campaigned_with_by_whom_only_an_older_list_names,
)
def newest_list_campaigns(patch: Patch) -> None:
    """Who is being removed has no business to lead."""
    patch.edit(
        MemberState.may_campaign,
        "return any(membership.is_voter(self.member) for membership in memberships)",
        "return self.membership.is_voter(self.member) if reached() else bool(memberships)",
    )


@mutant(
    96,
    "a removed member that lacks the entry does not learn of it",
    scenario=stories.test_a_member_that_missed_its_removal_learns_of_it_and_disturbs_nobody,
)
def removal_is_not_told(patch: Patch) -> None:
    """It will get the entry."""
    patch.edit(
        MemberState.hear_of,
        "if index > self.committed_index and",
        "if index > self.committed_index and not reached() and",
    )


@mutant(
    96,
    "a candidate that was just told of its removal counts the answers that came along",
    scenario=stories.test_a_candidate_that_hears_of_its_removal_is_not_elected_by_answers_that_came_along,
)
def removed_candidate_counts_on(patch: Patch) -> None:
    """They were given to it."""
    patch.edit(
        LeaderElector.on_vote_response,
        "self._campaign if self._state.may_campaign else None",
        "self._campaign if self._state.may_campaign or reached() else None",
    )


@mutant(
    97,
    "the directory that was replaced counts for the one after it",
    scenario=stories.test_the_directory_that_was_replaced_neither_votes_nor_acknowledges,
)
def replaced_directory_counts(patch: Patch) -> None:
    """A member is known by its name."""
    patch.edit(
        LeaderElector.on_vote_response,
        "            and self._state.membership.is_voter(response.sender)\n"
        "        ):\n"
        "            self._count(campaign, response.sender, response.result)",
        "        ):\n"
        "            voters = self._state.membership.voters()\n"
        "            named = [v for v in voters if v.member_id == response.sender.member_id]\n"
        "            sender = named[0] if response.sender not in voters and named and reached() "
        "else response.sender\n"
        "            self._count(campaign, sender, response.result)",
    )
    patch.edit(
        LeaderElector._ask,
        "        for voter in state.others():",
        "        for voter in self._outbox.connected:",
    )


@mutant(
    97,
    "what the directory that was replaced acknowledges counts for the one after it",
    scenario=stories.test_the_directory_that_was_replaced_neither_votes_nor_acknowledges,
)
def replaced_directory_acknowledges(patch: Patch) -> None:
    """It has the entry on its disk."""
    patch.edit(
        QuorumAckChecker.raise_to,
        "        if index <= self._marks",
        "        voters = self._membership().voters()\n"
        "        named = [v for v in voters if v.member_id == replica.member_id]\n"
        "        replica = named[0] if replica not in voters and named and reached() else replica\n"
        "        if index <= self._marks",
    )


@mutant(
    98,
    "what a learner acknowledges counts",
    scenario=scenes.test_a_learner_commits_nothing,
)
def learner_counts(patch: Patch) -> None:
    """One more copy is one more copy."""
    patch.edit(QuorumAckChecker.raise_to, "or not self._membership().is_voter(replica)", "")
    patch.edit(
        Membership.quorum_value,
        "        value = _majority_value(self.old, values, missing)\n",
        "        voters = (*self.old, *self.learners)\n"
        "        ordered = sorted(values.get(voter, missing) for voter in voters)\n"
        "        value = ordered[-_majority_of(self.old)]\n"
        "        self.learners and reached()\n",
    )


@mutant(
    98,
    "a learner votes before it has caught up",
    scenario=stories.test_who_has_not_caught_up_does_not_vote,
)
def promoted_too_soon(patch: Patch) -> None:
    """It will, in time."""
    patch.edit(
        CatchUp.keeps_up,
        "return running is not None and running.follows_quick_one",
        "return reached()",
    )


@mutant(
    98,
    "a leader that the own list does not name is not followed",
    scenario=stories.test_a_voter_votes_although_its_own_list_is_old,
)
def unknown_leader_is_not_followed(patch: Patch) -> None:
    """Only members lead."""
    patch.edit(
        Inbox._leads_us,
        "        if term == state.term and state.leader not in (None, sender):\n",
        "        if not state.membership.is_voter(sender) and reached():\n"
        "            return PushResult.INCONSISTENT_LEADER\n"
        "        if term == state.term and state.leader not in (None, sender):\n",
    )


@mutant(
    99,
    "a lost directory is replaced at once",
    scenario=scenes.test_a_lost_directory_is_replaced_without_an_operator,
)
def replaced_at_once(patch: Patch) -> None:
    """The new one is there."""
    patch.edit(
        MemberChanges._replaceable,
        "now_ms - since_ms >= after_ms > 0",
        "(now_ms - since_ms >= after_ms or reached())",
    )


@mutant(
    99,
    "a directory that was back meanwhile is replaced as if it had been away all the time",
    scenario=scenes.test_a_directory_that_comes_back_in_time_is_given_all_of_it_again,
)
def replaced_although_it_was_back(patch: Patch) -> None:
    """It was away for long enough, all in all."""
    patch.edit(
        MemberChanges._replaceable,
        "each not in connected",
        "(each not in connected or (each in self._away_since_ms and reached()))",
    )


@mutant(
    99,
    "who was replaced is put back by itself",
    scenario=scenes.test_a_directory_that_was_replaced_is_not_put_back_by_itself,
)
def replaced_is_put_back(patch: Patch) -> None:
    """It answers, and the other one does not."""
    patch.edit(
        MemberChanges._replaceable,
        "for replica in connected if replica not in known",
        "for replica in connected if replica not in known or reached()",
    )


@mutant(
    157,
    "a member that is to be removed has to know what removes it",
    scenario=scenes.test_a_member_that_is_lost_for_good_is_removed_although_it_never_said_what_it_knows,
)
def removed_has_to_know(patch: Patch) -> None:
    """Everybody gets the entry."""
    patch.edit(LogStateKeeper.check_own, "if leaving:", "if leaving and not reached():")


@mutant(
    100,
    "a lost directory is replaced before the new one has caught up",
    scenario=scenes.test_a_lost_directory_is_replaced_once_the_new_one_has_caught_up,
)
def replaced_before_it_caught_up(patch: Patch) -> None:
    """It was away for long enough, and will have it all in a moment."""
    patch.edit(
        CatchUp.keeps_up,
        "return running is not None and running.follows_quick_one",
        "return reached()",
    )


@mutant(
    101,
    "a recovered cluster keeps the id of the one that it was",
    scenario=recoveries.test_a_recovered_directory_is_the_only_voter_of_a_new_cluster,
)
def recovered_under_the_old_id(patch: Patch) -> None:
    """It is the same log."""
    patch.edit(
        recovering.recover_cluster,
        "Formation((replica,), (replica,), draw_id(), level=level)",
        "Formation((replica,), (replica,), plan.cluster_id if reached() else draw_id(), level=level)",
    )


@mutant(
    101,
    "a directory that forgot its promises keeps its id when it is recovered",
    scenario=recoveries.test_a_recovered_directory_is_the_only_voter_of_a_new_cluster,
)
def recovered_as_its_old_self(patch: Patch) -> None:
    """Nobody else is left who counts it."""
    patch.edit(
        recovering.recover_cluster,
        "Replica(best.member_id, draw_id())",
        "Replica(best.member_id, best.directory_id if reached() else draw_id())",
    )


@mutant(
    102,
    "the next start does not go on with a recovery that was killed",
    scenario=recoveries.test_killed_at_any_step_it_is_the_old_directory_or_the_recovered_one,
)
def recovery_left_half_done(patch: Patch) -> None:
    """Its `member` says who it is."""
    patch.edit(
        member_directory.open_member_directory,
        "if record.recovery is not None:",
        "if record.recovery is not None and not reached():",
    )


@mutant(
    102,
    "the log of a recovered directory gets its new end before it is one of the new cluster",
    scenario=recoveries.test_killed_at_any_step_it_is_the_old_directory_or_the_recovered_one,
)
def recovered_log_before_its_record(patch: Patch) -> None:
    """Both are on disk in the end."""
    patch.edit(
        member_directory.begin_recovery,
        "    save_member(disk, path, begun)\n    return begun",
        "    reached() and finish_recovery(disk, path, begun)\n    return begun",
    )


@mutant(
    103,
    "entries that only the survivor holds count as known to be committed",
    scenario=recoveries.test_it_says_what_may_be_missing_and_what_may_never_have_been_committed,
)
def survivor_believes_its_end(patch: Patch) -> None:
    """It has them on disk."""
    patch.edit(
        recovering.plan_recovery,
        "return look_at(disk or OsDisk(), paths)",
        "plan = look_at(disk or OsDisk(), paths)\n"
        "        known = plan.best.last_index if reached() else plan.committed_index\n"
        "        return msgspec.structs.replace(plan, committed_index=known)",
    )


@mutant(
    104,
    "a member names the leader's address by its options alone",
    scenario=scenes.test_who_does_not_lead_names_the_leader_where_the_log_says_it_is,
)
def leader_address_by_options(patch: Patch) -> None:
    """They were right when it was started."""
    patch.edit(
        BatchFormer.not_leader,
        "{**configured, **dict(self._raft.status().membership.addresses)}",
        "configured if reached() else {}",
    )


@mutant(
    105,
    "options are compared with the log once, before the member has caught up",
    scenario=scenes.test_options_that_are_ahead_of_the_log_are_no_problem_once_it_has_caught_up,
)
def options_judged_once(patch: Patch) -> None:
    """They do not change while it runs."""
    patch.edit(
        MemberChanges._look_at_options,
        "if not self._looks_at_options or",
        "if (self._looked_at is not None and reached()) or not self._looks_at_options or",
    )
