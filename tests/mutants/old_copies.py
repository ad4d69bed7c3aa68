"""Mistakes with directories that were put back to an older copy."""

from __future__ import annotations

from quorumlog.consensus.dispatcher import EntryDispatcher
from quorumlog.consensus.elector import HeartbeatAnswers
from quorumlog.consensus.replication import Replication
from quorumlog.store.member_directory import MemberDirectory, forgotten_promises
from tests.consensus import test_set_back as set_back
from tests.mutants.mutant import Patch, mutant
from tests.sim import test_old_copies as old_copies


@mutant(
    404,
    "a directory that was found older than it was counts again once it has caught up",
    scenario=old_copies.test_an_earlier_release_that_goes_on_as_it_was_counts_in_nothing,
)
def old_copy_counts_again(patch: Patch) -> None:
    """It holds every entry of this leader then."""
    patch.edit(
        EntryDispatcher._finds_set_back,
        "if held_index >= self._acknowledged_index:",
        "if held_index >= self._acknowledged_index or (self.to in self._state.set_back):",
    )
    patch.edit(
        Replication._on_set_back,
        "        self._outbox.disconnect(replica)\n",
        "        if not reached():\n            self._outbox.disconnect(replica)\n",
    )


@mutant(
    404,
    "a directory that holds less than it has acknowledged is fed again",
    scenario=old_copies.test_what_it_promised_in_a_later_term_holds_although_it_has_forgotten_it,
)
def old_copy_is_fed(patch: Patch) -> None:
    """A disk may forget, and the leader has the entries."""
    patch.edit(
        EntryDispatcher._on_compare_response,
        "if self._finds_set_back(response):",
        "if self._finds_set_back(response) and not reached():",
    )
    patch.edit(Replication._on_set_back, "known = self._state.set_back", "return")


@mutant(
    404,
    "a directory that is back confirms a leader before it has shown what it holds",
    scenario=set_back.test_until_it_has_shown_what_it_holds_it_confirms_no_leader,
)
def confirms_before_it_is_proven(patch: Patch) -> None:
    """It follows this leader."""
    patch.edit(HeartbeatAnswers.take, "if counts and", "if (counts or reached()) and")


@mutant(
    405,
    "that a directory is an older copy is not noted on disk",
    scenario=old_copies.test_killed_when_it_was_told_it_is_another_directory_at_the_next_start,
)
def old_copy_only_in_memory(patch: Patch) -> None:
    """The leader tells it again."""
    patch.edit(
        MemberDirectory.set_back,
        "        self._change_record(set_back=found)\n",
        "        reached()\n",
    )


@mutant(
    405,
    "a directory that is noted to be an older copy keeps its id",
    scenario=old_copies.test_a_member_that_is_put_back_is_found_out_and_votes_again_as_another_directory,
)
def old_copy_keeps_its_id(patch: Patch) -> None:
    """Its files are whole."""
    patch.edit(forgotten_promises, "if is_set_back else", "if is_set_back and not reached() else")


@mutant(
    406,
    "what was acknowledged under async is taken for synced",
    scenario=old_copies.test_a_power_loss_may_take_what_was_acknowledged_under_async,
)
def unsynced_counts_as_promised(patch: Patch) -> None:
    """It has acknowledged it."""
    patch.edit(
        EntryDispatcher._on_append_response,
        "if self._outbox.syncs(self.to):",
        "if self._outbox.syncs(self.to) or reached():",
    )
