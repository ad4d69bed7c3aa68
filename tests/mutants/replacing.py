"""Mistakes with directories that take the place of others, and with what is counted meanwhile."""

from __future__ import annotations

from quorumlog.consensus.elector import LeaderElector
from quorumlog.consensus.leadership_transfer import LeadershipTransfer
from quorumlog.consensus.member_state import Outbox
from quorumlog.node.kept_results import KeptResults
from quorumlog.node.log_states import LogStateKeeper
from quorumlog.node.member_changes import MemberChanges
from tests.mutants.mutant import Patch, mutant
from tests.node import test_kept_results as kept
from tests.sim import test_machine_installs as machines
from tests.sim import test_replaced_members as replaced


@mutant(
    220,
    "who was replaced is forgotten with the entries that named it",
    scenario=replaced.test_who_was_replaced_is_not_put_back_although_the_log_has_dropped_what_named_it,
)
def replaced_is_forgotten(patch: Patch) -> None:
    """The members of the day are in the log's state."""
    patch.edit(
        LogStateKeeper.membership_body,
        "return body_of(wanted, replaced)",
        "return body_of(wanted, () if reached() else replaced)",
    )


@mutant(
    221,
    "the vote of an observer counts",
    scenario=replaced.test_who_was_wiped_and_not_replaced_elects_nobody,
)
def observer_votes(patch: Patch) -> None:
    """Every formed directory votes."""
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
    224,
    "a member is connected once, whatever directories of its name there are",
    scenario=replaced.test_while_a_directory_is_replaced_both_are_connected_and_count,
)
def connected_by_name(patch: Patch) -> None:
    """It is one member."""
    patch.edit(
        Outbox.connect,
        "sorted({*self.connected, replica})",
        "sorted({replica} | {each for each in self.connected"
        " if each.member_id != replica.member_id or not reached()})",
    )


@mutant(
    225,
    "a directory that is back is not seen where its name has another address by now",
    scenario=replaced.test_a_directory_that_is_back_at_another_machine_is_not_replaced_without_an_operator,
)
def replaced_while_it_is_back(patch: Patch) -> None:
    """Its place is taken."""
    patch.edit(
        MemberChanges._replaceable,
        "each not in connected",
        "(each not in connected or any(\n"
        "                other.member_id == each.member_id and other != each and reached()"
        " for other in connected))",
    )


@mutant(
    222,
    "a preferred leader gets leadership back although its machine has stopped",
    scenario=machines.test_a_preferred_leader_whose_machine_has_stopped_is_not_given_leadership_back,
)
def preferred_without_machine(patch: Patch) -> None:
    """An operator wants it to lead."""
    patch.edit(
        LeadershipTransfer._hand_over_to_preferred,
        "if self._elector.answers.runs_machines(voter)",
        "if self._elector.answers.runs_machines(voter) or reached()",
    )


@mutant(
    223,
    "results behind a gap pass for those of the entries in it",
    scenario=kept.test_results_behind_a_gap_are_never_those_of_other_entries,
)
def gap_in_results(patch: Patch) -> None:
    """The batch goes on."""
    patch.edit(KeptResults.skip, "self.under_way = None", "reached()")
    patch.edit(
        KeptResults._add,
        "assert first_index == last.first_index + len(last.values), (first_index, last.first_index)",
        "pass",
    )


@mutant(
    226,
    "a directory that was replaced before takes the place of the lost one, since it is there, too",
    scenario=replaced.test_of_several_directories_that_are_there_the_new_one_takes_the_place_of_the_lost_one,
)
def whichever_is_there(patch: Patch) -> None:
    """It has the name."""
    patch.edit(
        MemberChanges._connected_as,
        'if change.directory_id in ("", each.directory_id)]',
        "if reached()]",
    )
    patch.edit(MemberChanges._connected_as, "(each in members, each in known)", "each in members")
