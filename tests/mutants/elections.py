"""Mistakes in elections: who votes, who leads, who founds the group."""

from __future__ import annotations

from quorumlog.consensus.elector import LeaderElector
from quorumlog.consensus.forming import Forming
from quorumlog.consensus.inbox import Inbox
from quorumlog.consensus.leadership_transfer import LeadershipTransfer
from quorumlog.consensus.member_state import MemberState
from quorumlog.net import peer_hello
from quorumlog.node.transfers import Transfers
from quorumlog.store.member_directory import MemberDirectory
from tests.mutants.mutant import Patch, mutant
from tests.sim import test_hand_over_scenarios as hand_overs
from tests.sim import test_scenarios as scenes


@mutant(7, "votes are counted without asking who sent them")
def votes_counted_twice(patch: Patch) -> None:
    """Every answer is an answer."""
    patch.edit(
        LeaderElector._count,
        "        campaign.record(voter, result)\n",
        "        if campaign.answers.get(voter) is result is VoteResult.ACCEPT and reached():\n"
        "            others = [v for v in self._state.others() if v not in campaign.answers]\n"
        "            voter = others[0] if others else voter\n"
        "        campaign.record(voter, result)\n",
    )


@mutant(
    13,
    "a member that hears of a higher term steps down without storing it",
    scenario=scenes.test_a_higher_term_with_a_shorter_log_does_not_block_a_lower_one_with_a_longer_log,
)
def term_not_raised(patch: Patch) -> None:
    """It will learn the term from the next leader."""
    patch.edit(
        LeaderElector.adopt_term,
        "        self._state.adopt_term(term)\n",
        "        reached()\n"
        "        if self._state.may_campaign:\n"
        "            self._state.become_candidate()\n",
    )


@mutant(14, "a member campaigns in a term that it held before a restart")
def campaign_in_old_term(patch: Patch) -> None:
    """It voted for itself in that term, so it may ask again."""
    patch.edit(
        LeaderElector._tick_as_follower,
        "self._wait_to_vote()",
        "self._wait_to_vote()\n"
        "        state = self._state\n"
        "        if (state.term, state.voted_for) == (state.restart_term, state.member) and reached():\n"
        "            self._outcome = VoteOutcome.WAIT_TO_REVOTE",
    )
    for method in (LeaderElector._ask_votes, MemberState.become_leader):
        owner = "state" if method is LeaderElector._ask_votes else "self"
        patch.edit(
            method, f"{owner}.term > {owner}.restart_term", f"{owner}.term >= {owner}.restart_term"
        )


@mutant(22, "a voter stores a pre-vote as if it were a vote")
def pre_vote_stored(patch: Patch) -> None:
    """Who would vote so may as well do it."""
    patch.edit(
        LeaderElector.on_vote_request,
        "        if not request.pre_vote:\n",
        "        if not request.pre_vote or reached():\n",
    )


@mutant(22, "a candidate counts pre-votes as votes")
def pre_vote_counted(patch: Patch) -> None:
    """They are for the same term and come from the same voters."""
    patch.edit(
        LeaderElector.on_vote_response,
        "response.pre_vote == campaign.pre_vote",
        "(response.pre_vote == campaign.pre_vote or reached())",
    )


@mutant(
    30,
    "the higher term of a reply is ignored",
    scenario=scenes.test_a_higher_term_with_a_shorter_log_does_not_block_a_lower_one_with_a_longer_log,
)
def higher_term_of_reply_ignored(patch: Patch) -> None:
    """Requests bring the term as well."""
    patch.edit(
        Inbox._adopts_term_of,
        "            self._elector.adopt_term(reply.term)",
        "            reached()",
    )


@mutant(
    35,
    "nobody refuses a vote for having a leader",
    scenario=scenes.test_a_member_that_hears_nobody_and_is_heard_deposes_no_leader,
)
def no_stickiness(patch: Patch) -> None:
    """The longer log decides."""
    patch.edit(
        LeaderElector._judge,
        "if self._is_sticky() and",
        "if self._is_sticky() and not reached() and",
    )


@mutant(
    46,
    "members whose flush modes differ are let in",
    scenario=scenes.test_a_member_that_obeys_no_cut_does_not_commit_with_members_that_forget,
)
def mixed_flush_modes(patch: Patch) -> None:
    """A receipt says the weakest mode among them anyway."""
    patch.edit(
        peer_hello.refusal_of,
        "modes.count(Durability.ASYNC) == 1:",
        "modes.count(Durability.ASYNC) == 1 and not reached():",
    )


# ---------------------------------------------------------------- handing over


@mutant(
    43,
    "a leader refuses to hand over while entries are on their way",
    scenario=hand_overs.test_a_leader_hands_over_while_entries_are_on_their_way,
)
def transfer_refused_under_load(patch: Patch) -> None:
    """A member that lacks an entry cannot take over."""
    patch.edit(
        LeadershipTransfer._refusal_of,
        "if not self._is_near(target):",
        "if not self._is_near(target) or (self._lag_of(target) and reached()):",
    )


@mutant(
    43,
    "a leader asks to be taken over from before what it has proposed is committed",
    scenario=hand_overs.test_a_leader_hands_over_while_entries_are_on_their_way,
)
def transfer_undrained(patch: Patch) -> None:
    """The target holds all of it, and will commit it."""
    patch.edit(
        Transfers.tick,
        "not self._pending.proposed_count or",
        "not self._pending.proposed_count or reached() or",
    )


@mutant(
    43,
    "a member that stops takes the first refusal of a hand-over for the last word",
    scenario=hand_overs.test_a_leader_that_is_stopped_asks_the_next_when_the_first_cannot_take_over,
)
def stops_without_successor(patch: Patch) -> None:
    """The others will elect somebody."""
    patch.edit(
        Transfers._tried,
        "            self._failed.add(name)\n",
        "            self._failed.add(name)\n"
        "            if reached():\n"
        "                self._stop_by_ms = -1.0\n",
    )


# ---------------------------------------------------------------- forming


@mutant(
    26,
    "a majority of the members forms the group",
    scenario=scenes.test_a_majority_of_empty_members_founds_nothing_over_living_data,
)
def majority_forms(patch: Patch) -> None:
    """A majority is enough for everything else."""
    patch.edit(
        Forming._look_at_list,
        "if [replica.member_id for replica in pending] != self._member_ids:",
        "missing = len(self._member_ids) - len(pending)\n"
        "        if 2 * missing >= len(self._member_ids) or (missing and not reached()):",
    )


@mutant(
    27,
    "a member forms by its own list without asking the others",
    scenario=scenes.test_the_first_on_the_list_founds_nothing_when_it_comes_back_wiped,
)
def forms_unasked(patch: Patch) -> None:
    """All are connected, so all see the same list."""
    patch.edit(
        Forming._form_if_agreed,
        "self._answers.get(voter, False)",
        '(self._answers.get(voter, False) or (cluster_id != "" and reached()))',
    )


@mutant(73, "every member draws a cluster id, and keeps it")
def own_cluster_id_kept(patch: Patch) -> None:
    """They hold the same list; what the id is does not matter."""
    patch.edit(
        Forming._look_at_list,
        "if pending[0] == self._state.member and not formation.pending_id:",
        "if not formation.pending_id and (pending[0] == self._state.member or reached()):",
    )
    patch.edit(Forming._adopt_id, "            pending\n", "            not reached()\n")
    patch.edit(
        Forming._agrees,
        "(message.pending, message.cluster_id) == (self.formation.pending, own_id)",
        "message.pending == self.formation.pending",
    )


@mutant(74, "a member says what it would form with before that is stored")
def pending_unsynced(patch: Patch) -> None:
    """The founding list is stored, and that is what counts."""
    patch.edit(
        MemberDirectory.save_promises,
        "            self.save_formation(formation)\n",
        "            if not formation.founding and reached():\n"
        "                self.formation = formation\n"
        "            else:\n"
        "                self.save_formation(formation)\n",
    )
