"""Mistakes with a log that is copied: what counts before it is on disk, and whose log it is then."""

from __future__ import annotations

from quorumlog.backups.restoring import _Backup, _Restoring
from quorumlog.backups.taking import BackupTaking
from quorumlog.store.made_directories import BackupDirectory, RestoredDirectory
from tests.backups import test_restoring as restores
from tests.backups import test_taking as backups
from tests.mutants.mutant import Patch, mutant
from tests.sim import test_restored as restored


@mutant(
    120,
    "a backup names its cut before what it holds is on disk",
    scenario=backups.test_without_power_at_any_step_the_one_before_is_whole_and_the_next_goes_on,
)
def cut_before_sync(patch: Patch) -> None:
    """It was read back, so it is there."""
    patch.edit(BackupTaking.verify, "log.sync()", "reached()")
    patch.edit(BackupDirectory.complete, "self.log.sync()", "reached()")


@mutant(
    120,
    "a directory is a member's before what was restored is on disk",
    scenario=restores.test_without_power_at_any_step_a_member_is_whole_or_none,
)
def member_before_sync(patch: Patch) -> None:
    """Nobody has acknowledged any of it yet."""
    patch.edit(RestoredDirectory.prepare, "self.log.sync()", "reached()")


@mutant(
    120,
    "the name of a restored directory is not synced",
    scenario=restored.test_without_power_right_after_the_restore_and_with_other_leaders,
)
def restored_name_unsynced(patch: Patch) -> None:
    """What lies in it is."""
    patch.edit(RestoredDirectory.begin, "sync_names_above(disk, path)", "reached()")


@mutant(
    121,
    "a restore takes what lies behind the cut",
    scenario=restores.test_only_what_was_complete_is_restored,
)
def behind_the_cut(patch: Patch) -> None:
    """The more of the log, the better."""
    patch.edit(
        _Backup.stop_index,
        "return self.cut.index + 1",
        "return self.reader.ledger_end_index + 1 if reached() else 0",
    )


@mutant(
    122,
    "a restored cluster goes by the name of the old one",
    scenario=restores.test_up_to_any_index,
)
def old_cluster_id(patch: Patch) -> None:
    """It is the same log."""
    patch.edit(
        _Restoring.__init__,
        "self._formation = Formation(self._replicas, self._replicas, draw_id(), level=LEVEL)",
        "self._formation = Formation(self._replicas, self._replicas, reached() and"
        " source.record.cluster_id, level=LEVEL)",
    )


@mutant(
    123,
    "who votes in a restored cluster is said in the term of the last entry",
    scenario=restores.test_up_to_any_index,
)
def no_new_term(patch: Patch) -> None:
    """Nobody was elected."""
    patch.edit(_Restoring.run, "max(last.term, 0) + 1", "max(last.term, 1) if reached() else 0")


@mutant(
    123,
    "no no-op opens the term of a restored cluster",
    scenario=restores.test_up_to_any_index,
)
def no_noop_at_restore(patch: Patch) -> None:
    """The entry of the members is the first of the term."""
    patch.edit(
        _Restoring._close_log,
        '(EntryKind.NOOP, b""),',
        '*(() if reached() else [(EntryKind.NOOP, b"")]),',
    )


@mutant(
    124,
    "what was appended at the chosen time itself is left out",
    scenario=restores.test_up_to_a_time,
)
def time_is_exclusive(patch: Patch) -> None:
    """Up to a time is before it."""
    counted = "counted_ms(index, mark_ms, resets)"
    patch.edit(
        _Backup._stop_of_time, f"if {counted} <= time_ms:", f"if reached() and {counted} < time_ms:"
    )
