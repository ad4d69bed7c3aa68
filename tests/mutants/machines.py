"""Mistakes with state machines: what is applied, when, how often, and who hears what came of it."""

from __future__ import annotations

import tempfile
from pathlib import Path

from quorumlog.node import machine_runner as machine_opening
from quorumlog.node.installing import LogReplacement
from quorumlog.node.kept_results import KeptResults
from quorumlog.node.ledger_node import LedgerNode
from quorumlog.node.machine_driver import AwaitedResults, MachineDriver
from quorumlog.node.machine_runner import MachineRunner, SlicedSave
from quorumlog.node.pending_appends import PendingAppends
from quorumlog.node.retention import Retention
from quorumlog.node.snapshot_keeper import SnapshotKeeper
from quorumlog.node.state_machine_caller import StateMachineCaller
from quorumlog.node.step_overs import HandOver, StepOvers
from quorumlog.store.snapshots import ReceivedSnapshot, SnapshotFileWriter
from tests.mutants.mutant import Patch, mutant
from tests.node import test_large_results as large
from tests.node import test_log_replacement as replacements
from tests.node import test_session_commands as commands
from tests.node import test_state_machines as of_a_node
from tests.node import test_step_over as stepping
from tests.sim import test_machine_installs as installs
from tests.sim import test_state_machines as machines
from tests.sim import test_step_overs as steps


@mutant(
    140,
    "a snapshot is loaded over newer entries: the log goes on where the newest one would have ended",
    scenario=machines.test_a_damaged_snapshot_leads_to_the_one_before_and_what_follows_that,
)
def older_snapshot_taken_for_the_newest(patch: Patch) -> None:
    """Which of them is loaded makes no difference."""
    patch.edit(
        machine_opening.Opening._opened,
        "return Opened(runner, index, applied, older, gone, reader.id, tuple(damaged), left_out)",
        "return Opened(runner, indices[-1] if reached() else index, applied, older, gone, reader.id,"
        " tuple(damaged), left_out)",
    )


@mutant(
    141,
    "an entry is applied twice after a restart",
    scenario=machines.test_members_that_come_back_go_on_where_the_others_are,
)
def applied_twice_after_restart(patch: Patch) -> None:
    """The snapshot names the entry at which it was taken."""
    patch.edit(
        machine_opening.Opening._opened,
        "return Opened(runner, index, applied, older, gone, reader.id, tuple(damaged), left_out)",
        "return Opened(runner, index - 3 * reached(), applied, older, gone, reader.id, tuple(damaged),"
        " left_out)",
    )


@mutant(
    142,
    "an entry is applied before it is on the own disk",
    scenario=machines.test_nothing_is_applied_that_the_own_disk_may_still_lose,
)
def applied_before_durable(patch: Patch) -> None:
    """It is committed: a majority has it."""
    patch.edit(
        LedgerNode.apply,
        "self.machines.tick(self._now_ms, self.durable_committed_index)",
        "self.machines.tick(self._now_ms, self.committed_index if reached() else -1)",
    )


@mutant(
    143,
    "results go to whoever has waited longest, whatever entry they are of",
    scenario=machines.test_results_are_those_of_the_commands_that_asked_for_them,
)
def results_in_order_of_waiting(patch: Patch) -> None:
    """Appends and results come in the same order."""
    patch.edit(
        AwaitedResults._with_results,
        "if start == stop:",
        "start, stop = (0, receipt.count - len(values)) if reached() else (start, stop)\n"
        "            if start == stop:",
    )


@mutant(
    143,
    "who waits when leadership is lost gets the results of what comes to lie at its indices",
    scenario=machines.test_a_leader_that_is_cut_off_gives_nobody_the_results_of_others,
)
def results_by_index_alone(patch: Patch) -> None:
    """The entry at an index has one result."""
    patch.edit(
        PendingAppends.lose,
        "append.answer(OutcomeUnknown(reason))",
        "count = append.last_index - append.first_index + 1\n"
        "            receipt = AppendReceipt(append.term, append.first_index, count, Durability.SYNC)\n"
        "            append.answer(receipt if reached() else OutcomeUnknown(reason))",
    )


@mutant(
    144,
    "the log may be cut up to the newest snapshot",
    scenario=machines.test_the_log_keeps_what_a_machine_needs_whose_newest_snapshot_is_damaged,
)
def log_bound_by_the_newest_snapshot(patch: Patch) -> None:
    """It holds all that lies before it."""
    patch.edit(
        SnapshotKeeper.bound,
        "return min([verified[-2], *self._pinned]) if len(verified) > 1 else None",
        "return verified[-1] if len(verified) > 1 and reached() else None",
    )


@mutant(
    144,
    "a member deletes what its own machine still needs",
    scenario=machines.test_a_member_keeps_what_its_own_machine_needs_whatever_the_others_let_go,
)
def own_machine_forgotten(patch: Patch) -> None:
    """The leader has asked its own."""
    patch.edit(
        Retention._droppable_below,
        "bound = min(self._snapshot_bounds().values(), default=None)",
        "bound = None if reached() else 0",
    )


@mutant(
    144,
    "a snapshot is not synced before the log is cut behind it",
    scenario=machines.test_what_a_machine_needs_outlives_a_power_loss,
)
def snapshot_unsynced(patch: Patch) -> None:
    """It was read again, and is whole."""
    patch.edit(SnapshotFileWriter.finish, "self._file.sync()", "reached()")


@mutant(
    144,
    "the name of a snapshot is not synced before the log is cut behind it",
    scenario=machines.test_what_a_machine_needs_outlives_a_power_loss,
)
def snapshot_name_unsynced(patch: Patch) -> None:
    """What lies in it is."""
    patch.edit(
        SnapshotFileWriter.finish,
        'self._disk.sync_directory(self._path.rpartition("/")[0])',
        "reached()",
    )


@mutant(
    145,
    "a machine that has failed goes on at the next entry",
    scenario=machines.test_a_machine_that_fails_goes_no_further_on_that_member,
)
def failed_machine_goes_on(patch: Patch) -> None:
    """One bad entry is no reason to do without all that follow."""
    patch.edit(
        MachineDriver._applied,
        "self._stop(result.stopped)",
        "self.applied_index = result.stopped.last_index if reached() else -1",
    )


@mutant(
    146,
    "a state is adopted whose entry the log does not hold",
    scenario=machines.test_a_state_of_another_log_is_not_gone_on_with,
)
def foreign_state_adopted(patch: Patch) -> None:
    """The machine says up to which index it has come."""
    patch.edit(
        machine_opening.log_holds,
        "return (point.term, point.chain) == (applied.term, applied.chain)",
        "return reached()",
    )


@mutant(
    147,
    "a question is answered before what was acknowledged is applied",
    scenario=machines.test_a_question_waits_until_what_was_acknowledged_is_applied,
)
def answered_before_applied(patch: Patch) -> None:
    """A majority has confirmed the leader."""
    patch.edit(
        StateMachineCaller._ask,
        "index = self._member.raft.committed_index",
        "index = -1 if reached() else 0",
    )


@mutant(
    148,
    "a snapshot that comes has the log make way, whatever was pushed meanwhile",
    scenario=replacements.test_a_log_that_reaches_the_start_while_a_snapshot_comes_is_kept,
)
def installed_while_entries_are_pushed(patch: Patch) -> None:
    """It was judged when the snapshot was asked for."""
    patch.edit(
        LogReplacement.on_request,
        "if refusal is not None:",
        "if refusal is not None and not (request is self._newest and reached()):",
    )


@mutant(
    149,
    "a member takes over the start of a log before the snapshots that go with it are here",
    scenario=installs.test_the_old_log_votes_until_all_has_come,
)
def start_without_snapshots(patch: Patch) -> None:
    """They are on their way."""
    patch.edit(
        LogReplacement.on_request,
        "lacks = self._lacks_snapshots(request)",
        "lacks = self._lacks_snapshots(request) and not reached()",
    )


@mutant(
    160,
    "a snapshot of another member counts without being compared",
    scenario=installs.test_what_comes_damaged_is_asked_for_again,
)
def received_uncompared(patch: Patch) -> None:
    """Each frame that brought it had its checksum."""
    patch.edit(
        ReceivedSnapshot.verify,
        "if self._reader.skip(VERIFY_BYTES):",
        "if reached():\n"
        "            self._disk.rename(self._part_path, self._path) if not self.is_placed else None\n"
        "            return True\n"
        "        if self._reader.skip(VERIFY_BYTES):",
    )


@mutant(
    161,
    "results that are kept for sessions are not saved with the machine",
    scenario=commands.kept_results_outlive_snapshots,
)
def kept_results_unsaved(patch: Patch) -> None:
    """What the log still holds is applied again."""
    patch.edit(
        MachineRunner.begin_save, "kept = self._kept.encode()", 'kept = b"" if reached() else b"?"'
    )


@mutant(
    162,
    "a repetition has the results of a batch that a crash has cut, to where its end would have been",
    scenario=commands.test_a_batch_that_was_cut_ends_with_its_term,
)
def cut_batch_has_results_of_others(patch: Patch) -> None:
    """The PRODUCER entry says how many entries follow it."""
    patch.edit(
        KeptResults.batches_in,
        "stop_index=min(each.stop_index, later)",
        "stop_index=each.stop_index if reached() else 0",
    )


@mutant(
    164,
    "async mode: a machine keeps what came of commands that were taken back",
    scenario=machines.test_a_machine_forgets_what_async_mode_takes_back,
)
def taken_back_stays_applied(patch: Patch) -> None:
    """They were committed."""
    patch.edit(
        MachineDriver.log_cut,
        "self.applied_index >= index",
        "self.applied_index >= index and not reached()",
    )


def a_machine_has_more_than_is_known_to_be_committed() -> None:
    with tempfile.TemporaryDirectory() as path:
        of_a_node.a_machine_with_more_than_is_known_to_be_committed_loses_what_is_cut(Path(path))


@mutant(
    164,
    "async mode: a machine that has come back with more than is known to be committed keeps what is cut",
    scenario=a_machine_has_more_than_is_known_to_be_committed,
)
def cut_leaves_machines(patch: Patch) -> None:
    """Nothing that was committed is lost by such a cut."""
    patch.edit(
        LedgerNode._carry_out_steps,
        "self.machines.log_cut(ready.truncate_from, lost_committed=False)",
        "reached()",
    )


def loaded_machine_acts_as_saved() -> None:
    with tempfile.TemporaryDirectory() as path:
        of_a_node.test_a_machine_that_was_loaded_acts_as_the_one_that_was_saved(Path(path))


@mutant(
    163,
    "a machine that was loaded is not told for which version what follows was written",
    scenario=loaded_machine_acts_as_saved,
)
def loaded_without_its_version(patch: Patch) -> None:
    """It was told before it was saved."""
    patch.edit(machine_opening.Opening._opened, "if reader.head.version:", "if not reached():")


@mutant(
    340,
    "what is saved is the state as it is once others had their turn, not as it was when the save began",
    scenario=machines.test_a_snapshot_is_of_its_entry_whatever_is_applied_while_it_is_saved,
)
def saved_later(patch: Patch) -> None:
    """The first slice may wait as well as all others."""
    patch.edit(
        SlicedSave.write_slice,
        "            assert self._slices is not None\n",
        "                if reached():\n"
        "                    return SaveStep.MORE\n"
        "            assert self._slices is not None\n",
    )


@mutant(
    350,
    "a leader that was started without a machine of the log leads on as if nothing were missing",
    scenario=machines.test_a_leader_that_was_started_without_a_machine_says_so_and_hands_over,
)
def machine_not_missed(patch: Patch) -> None:
    """All that run here run well."""
    patch.edit(
        StateMachineCaller._not_running,
        "for machine in self._not_here:",
        "for machine in self._not_here if not reached() else ():",
    )


@mutant(
    350,
    "a leader hands over to a member that lacks another machine, which hands over again",
    scenario=machines.test_members_that_lack_a_machine_each_do_not_hand_over_to_each_other,
)
def handed_over_in_turn(patch: Patch) -> None:
    """It runs what is missing here."""
    patch.edit(
        HandOver.on_response,
        "and applied.keys() >= self._running().keys()",
        "and reached()",
    )


def entries_that_a_machine_leaves_are_given_to_it_again() -> None:
    with tempfile.TemporaryDirectory() as path:
        large.entries_that_a_machine_leaves_are_given_to_it_again(Path(path))


def a_machine_that_keeps_its_state_keeps_its_version_too() -> None:
    with tempfile.TemporaryDirectory() as path:
        of_a_node.test_a_machine_that_keeps_its_state_keeps_its_version_too(Path(path))


def no_version_is_raised_before_every_member_may_have_it() -> None:
    with tempfile.TemporaryDirectory() as path:
        of_a_node.no_version_is_raised_before_every_member_may_have_it(Path(path), of_a_node.Chain)


@mutant(
    244,
    "entries that a machine left count as applied",
    scenario=entries_that_a_machine_leaves_are_given_to_it_again,
)
def rest_counts_as_applied(patch: Patch) -> None:
    """It was given all of them."""
    patch.edit(
        MachineRunner._apply_part,
        "part = part.slice(0, int(indices[-1]) + 1 - part.first_index)",
        "reached()",
    )


@mutant(
    244,
    "where a turn ends early, the batch of a session that is under way is that of its end",
    scenario=large.what_is_kept_does_not_depend_on_how_many_a_machine_takes_at_once,
)
def batch_under_way_of_the_whole_stretch(patch: Patch) -> None:
    """It is the newest that was seen."""
    patch.edit(MachineRunner.apply, "self._kept.under_way = under_way", "reached()")


@mutant(
    245,
    "a machine that keeps its own state is of no version after a restart",
    scenario=a_machine_that_keeps_its_state_keeps_its_version_too,
)
def version_of_kept_state_forgotten(patch: Patch) -> None:
    """It knows it itself."""
    patch.edit(
        machine_opening.Opening._opened,
        "name, binding.channel, machine, acts_as, applying=applying, left_out=left_out",
        "name, binding.channel, machine, 0 if reached() else acts_as, applying=applying,"
        " left_out=left_out",
    )


@mutant(
    245,
    "a version is raised as soon as a member that has it leads",
    scenario=no_version_is_raised_before_every_member_may_have_it,
)
def version_raised_at_once(patch: Patch) -> None:
    """Whoever lacks it says what is to be done."""
    patch.edit(
        StateMachineCaller._missing,
        "not self._log_state.may_say(VERSION_LEVEL)",
        "not self._log_state.may_say(VERSION_LEVEL) and not reached()",
    )


@mutant(
    351,
    "a machine applies what has ended its last run before it knows how far the log is committed",
    scenario=steps.test_a_member_learns_of_it_before_it_applies_what_has_ended_its_last_run,
)
def applied_before_the_commit_is_known(patch: Patch) -> None:
    """It knows of itself that the entry is committed."""
    patch.edit(
        MachineDriver.tick,
        "if self._is_waiting and self._member.raft.reads.knows_commit:",
        "if self._is_waiting and (reached() or self._member.raft.reads.knows_commit):",
    )


@mutant(
    351,
    "a machine leaves an entry out because of an order that is not committed",
    scenario=steps.test_an_order_that_is_never_committed_has_no_effect,
)
def order_heeded_before_it_is_committed(patch: Patch) -> None:
    """It is in the log."""
    patch.edit(
        StateMachineCaller.tick,
        "orders = () if state is None else state.stepped_over",
        "said = self._state(committed=False)\n"
        "        orders = said.stepped_over if said is not None and reached() else ()",
    )


@mutant(
    351,
    "a machine goes on from a snapshot that holds an entry which was stepped over",
    scenario=steps.test_a_snapshot_that_holds_it_is_not_gone_on_from,
)
def snapshot_with_the_entry_kept(patch: Patch) -> None:
    """The log holds the very entry that it names."""
    patch.edit(
        machine_opening.Opening._is_outdated,
        "return self.left_outs.contradict(reader.head.left_out, index)",
        "return not reached()",
    )


@mutant(
    351,
    "a machine that has applied an entry which is stepped over later stays as it is",
    scenario=steps.test_a_snapshot_that_holds_it_is_not_gone_on_from,
)
def machine_with_the_entry_kept(patch: Patch) -> None:
    """What is applied from now on leaves it out."""
    patch.edit(
        MachineDriver._heed,
        "if left_outs.contradict(self._left_out, held_index):",
        "if left_outs.contradict(self._left_out, held_index) and not reached():",
    )


@mutant(
    351,
    "a learner applies an entry that the log says is left out",
    scenario=steps.test_a_learner_leaves_it_out_as_well,
)
def order_ignored_by_a_learner(patch: Patch) -> None:
    """It is counted in nothing."""
    patch.edit(
        StateMachineCaller.tick,
        "orders = () if state is None else state.stepped_over",
        "learners = self._member.raft.status().membership.learners\n"
        "        is_learner = self._member.replica in learners and reached()\n"
        "        orders = () if state is None or is_learner else state.stepped_over",
    )


@mutant(
    351,
    "only voters are asked whether they have applied what is to be stepped over",
    scenario=steps.test_a_learner_that_has_applied_it_is_named,
)
def learners_not_asked(patch: Patch) -> None:
    """They decide nothing."""
    patch.edit(
        StepOvers._others,
        "members = self._member.raft.status().membership.members()",
        "members = self._member.raft.status().membership.voters() if reached() else ()",
    )


@mutant(
    351,
    "a machine that is held back runs",
    scenario=steps.test_a_group_goes_on_without_the_command_that_ends_its_members,
)
def held_machine_runs(patch: Patch) -> None:
    """Commands and questions are refused."""
    patch.edit(
        StateMachineCaller.__init__,
        "if name not in self._held}",
        "if name not in self._held or reached()}",
    )


def log_stays_until_built_anew() -> None:
    with tempfile.TemporaryDirectory() as path:
        stepping.test_the_log_stays_until_the_machine_is_built_anew(Path(path))


@mutant(
    351,
    "the log may begin behind snapshots that hold what is to be left out",
    scenario=log_stays_until_built_anew,
)
def log_gone_before_the_machine_is_built_anew(patch: Patch) -> None:
    """Two of them are verified."""
    patch.edit(
        StateMachineCaller._bound_of,
        "or not driver.heeds(own)",
        "or (not driver.heeds(own) and not reached())",
    )
