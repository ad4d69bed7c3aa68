"""Mistakes with what may go from the front of a log, and with who reads it."""

from __future__ import annotations

from quorumlog.log_state import log_state
from quorumlog.log_state.log_state import LogStates
from quorumlog.node import retention as retaining
from quorumlog.node.reader_moves import ReaderMoves
from quorumlog.node.retention import Retention
from tests.mutants.mutant import Patch, mutant
from tests.sim import test_retention as retention


@mutant(
    150,
    "a segment is deleted above a hold",
    scenario=retention.test_no_segment_goes_that_a_reader_holds,
)
def deletes_above_hold(patch: Patch) -> None:
    """The leader has looked at the readers."""
    patch.edit(
        retaining._readers,
        "if reader.hold is hold]",
        "if reader.hold is hold and not reached()]",
    )
    patch.edit(
        log_state._with_keep,
        "if reader.hold >= stops]",
        "if reader.hold >= stops and not reached()]",
    )


@mutant(
    151,
    "a member deletes by what it was told, before that is committed",
    scenario=retention.test_what_a_leader_has_said_and_no_majority_knows_deletes_nothing,
)
def deletes_by_hearsay(patch: Patch) -> None:
    """Who leads has decided, and in a heartbeat it could say so at once."""
    patch.edit(
        Retention._droppable_below,
        "state = self._log_state.committed",
        "state = self._log_state.appended_state() if reached() else None",
    )


@mutant(
    152,
    "retention passes a member that is being fed",
    scenario=retention.test_a_member_that_is_being_fed_is_waited_for,
)
def passes_fed_member(patch: Patch) -> None:
    """It counts in nothing."""
    patch.edit(retaining._fed, "if each.is_fed]", "if each.is_fed and not reached()]")


@mutant(
    153,
    "a reader is answered before its position is committed",
    scenario=retention.test_a_reader_stands_where_it_was_told_whoever_leads,
)
def reader_answered_early(patch: Patch) -> None:
    """The leader has it in its log."""
    patch.edit(
        ReaderMoves.tick,
        "self._written.append(_Written(entry, answers))",
        "[done(stand) for done, stand in answers if reached()]",
    )


@mutant(
    154,
    "forced cleaning takes what a follower lacks within its budget",
    scenario=retention.test_a_full_disk_does_not_take_what_a_follower_lacks_within_its_budget,
)
def force_passes_followers(patch: Patch) -> None:
    """A full disk is worse."""
    patch.edit(
        retaining.decide,
        "forced_limits = [*near, *_archives(state, policy)]",
        "forced_limits = [*_archives(state, policy)] if reached() else []",
    )


@mutant(
    155,
    "a late copy of a seek takes a reader back",
    scenario=retention.test_a_late_copy_of_a_seek_moves_no_reader,
)
def late_seek_counts(patch: Patch) -> None:
    """The reader stands where the seek says."""
    patch.edit(
        ReaderMoves._position_of,
        "if move.last_index not in (None, old.last_index):",
        "if move.last_index not in (None, old.last_index) and not reached():",
    )


@mutant(
    156,
    "a segment is as old as the last time mark in front of its end",
    scenario=retention.test_a_segment_that_was_written_without_time_marks_does_not_go_too_young,
)
def age_by_mark_in_front(patch: Patch) -> None:
    """Marks are a second apart."""
    patch.edit(
        retaining.with_times,
        "next_mark = each.mark",
        "next_mark = each.mark\n"
        "        if each.mark is not None and reached():\n"
        "            time_ms = each.mark.time_ms\n"
        "            timed[at] = each._replace(boundary=each.boundary._replace(time_ms=time_ms))",
    )


@mutant(
    207,
    "a late copy of an end ends the reader that was made under its name since",
    scenario=retention.test_a_late_copy_of_an_end_leaves_the_reader_of_the_same_name,
)
def late_end_counts(patch: Patch) -> None:
    """A reader of that name is known, and somebody wants it to end."""
    patch.edit(
        ReaderMoves._refuse_late,
        "move.seen_index is not None and",
        "move.seen_index is not None and not (move.ends and reached()) and",
    )


@mutant(
    208,
    "a late copy of an opening makes the reader again that has ended",
    scenario=retention.test_a_late_copy_of_an_opening_makes_no_reader_again,
)
def late_opening_counts(patch: Patch) -> None:
    """There is none, and it says to make it."""
    patch.edit(
        ReaderMoves._refuse_late,
        "move.seen_index is not None and",
        "move.seen_index is not None and not (move.opens and reached()) and",
    )


@mutant(
    208,
    "a member that has started again takes what it has not read of the log for no change of readers",
    scenario=retention.test_a_late_copy_of_an_opening_makes_no_reader_again,
)
def readers_unchanged_before_start(patch: Patch) -> None:
    """It has heard of none."""
    patch.edit(
        LogStates.__init__,
        "self.readers_changed_index = committed_index",
        "self.readers_changed_index = -1 if reached() else committed_index",
    )


@mutant(
    209,
    "a late copy of a commit leads past what was sought",
    scenario=retention.test_a_late_copy_of_a_commit_does_not_lead_past_what_was_sought,
)
def late_commit_counts(patch: Patch) -> None:
    """Forward is always safe."""
    patch.edit(
        ReaderMoves._refuse_late,
        "move.seen_index is not None and",
        "move.seen_index is not None and (move.ends or move.opens or not reached()) and",
    )


@mutant(
    410,
    "what a reader has skipped is counted again by a late copy",
    scenario=retention.test_what_a_reader_skips_is_counted_once_whoever_leads,
)
def skips_are_added_up(patch: Patch) -> None:
    """A reader names what it has not named before."""
    patch.edit(
        log_state.Reader.with_skipped,
        "entries -= max(0, min(high, stop_index) - max(low, first_index))",
        "entries -= 0 if reached() else max(0, min(high, stop_index) - max(low, first_index))",
    )


@mutant(
    360,
    "a member deletes by an archive that is not of its own log",
    scenario=retention.test_what_is_deleted_is_in_an_archive_of_the_very_log,
)
def archives_are_believed(patch: Patch) -> None:
    """The leader has let it go, and it is the same log everywhere."""
    patch.edit(
        retaining.not_archived,
        "if own != archive.last_chain:",
        "if own != archive.last_chain and not reached():",
    )


@mutant(
    361,
    "an archive counts that does not say with which chain it ends",
    scenario=retention.test_what_is_deleted_is_in_an_archive_of_the_very_log,
)
def silent_archives_count(patch: Patch) -> None:
    """It stands there, so all in front of it is archived."""
    patch.edit(
        retaining._archives,
        "not archives_with_chain(state):",
        "not archives_with_chain(state) and not reached():",
    )
    patch.edit(retaining.not_archived, "if not archives:", "if not archives and not reached():")
