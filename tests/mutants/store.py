"""Mistakes with bytes: what is on disk, what a start makes of it, who a directory is."""

from __future__ import annotations

import tempfile
from pathlib import Path

from quorumlog.batch import EntryBatch
from quorumlog.client.protocol.read_plan import EntryChecker
from quorumlog.store import member_directory, recovery, segments
from quorumlog.store.flush import DurableRecord, Flush
from quorumlog.store.ledger_store import LedgerStore
from quorumlog.store.log_reader import LogReader
from quorumlog.store.member_directory import MemberDirectory, _checkpointed
from quorumlog.store.recovery import _Recovery
from quorumlog.store.recovery_scan import _LogScanner
from quorumlog.store.segment import Segment
from quorumlog.store.segments import SegmentList
from quorumlog.store.state_files import DamagedRanges, HardStateFile
from tests import test_batch as batch_scenes
from tests.client.protocol import test_read_plan as read_scenes
from tests.mutants.mutant import Patch, mutant
from tests.sim import test_disk_scenarios as disk_scenes
from tests.store import test_damaged_ranges as damage_scenes
from tests.store import test_drop as drop_scenes
from tests.store import test_recovery as recovery_scenes
from tests.store import test_start_order as start_scenes
from tests.store import test_unreadable_pages as page_scenes

# ---------------------------------------------------------------- what a batch is


@mutant(
    411,
    "a body that was changed is taken for good where all are checked together",
    scenario=batch_scenes.test_a_flipped_bit_among_many_bodies_is_found,
)
def bodies_taken_for_good(patch: Patch) -> None:
    """The frame has a CRC of its own."""
    patch.edit(EntryBatch.bodies_surely_match, "return crc32", "return reached() or crc32")


@mutant(
    412,
    "a leader takes the CRCs that a client has sent, if they are right together",
    scenario=batch_scenes.test_a_leader_computes_the_crcs_whatever_a_client_has_put_there,
)
def crcs_of_a_client_believed(patch: Patch) -> None:
    """No chance makes them so."""
    patch.edit(
        EntryBatch.stamp,
        "words[BODY] = (self.body_crcs()",
        "words[BODY] = words[BODY] if reached() and self.bodies_surely_match() else (self.body_crcs()",
    )


@mutant(
    413,
    "headers that come alone are taken without a look at their chain",
    scenario=read_scenes.test_a_header_that_was_changed_is_told_from_those_in_front_of_it,
)
def heads_unchecked(patch: Patch) -> None:
    """The frame has a CRC of its own."""
    patch.edit(
        EntryChecker.check,
        "batch.check_sequence(first_index, chain)",
        "heads and reached() or batch.check_sequence(first_index, chain)",
    )


# ---------------------------------------------------------------- what is synced


@mutant(18, "the directory is not synced after a new segment")
def segment_name_unsynced(patch: Patch) -> None:
    """The file is synced, so it is there."""
    patch.edit(SegmentList._reserve_more, "self.sync_names()", "reached()")


@mutant(
    18,
    "the names above a new directory are synced only by who has made them",
    scenario=start_scenes.test_the_name_of_a_directory_that_somebody_else_has_made_is_synced,
)
def parent_unsynced(patch: Patch) -> None:
    """It was there before."""
    patch.edit(member_directory.sync_names_above, 'disk.sync_directory(parent or ".")', "reached()")


@mutant(20, "term and vote are written without a sync")
def hard_state_unsynced(patch: Patch) -> None:
    """Two slots are safe enough."""
    patch.edit(
        HardStateFile.save,
        "self._slots.write_both_synced(encode_hard_state(state))",
        "self._slots._write_slot(encode_hard_state(state)), reached()",
    )


@mutant(
    28,
    "term and vote go into one slot only",
    scenario=disk_scenes.test_either_slot_of_a_file_of_promises_is_enough,
)
def one_slot_written(patch: Patch) -> None:
    """A sync has ended; the other slot is for crashes."""
    patch.edit(
        HardStateFile.save,
        "self._slots.write_both_synced(encode_hard_state(state))",
        "self._slots.write(encode_hard_state(state)), self._slots.sync(), reached()",
    )


@mutant(36, "a failed sync is tried again")
def failed_sync_repeated(patch: Patch) -> None:
    """It may have been a passing trouble."""
    patch.edit(
        Segment.sync,
        "            except OSError as error:\n",
        "            except OSError as error:\n"
        "                if reached():\n"
        "                    try:\n"
        "                        return self._file.sync()\n"
        "                    except OSError:\n"
        "                        pass\n",
    )


# ---------------------------------------------------------------- truncation


@mutant(
    29,
    "the durable point falls after the cut instead of before it",
    scenario=disk_scenes.test_a_crash_at_any_step_of_a_cut_leaves_a_directory_that_starts,
)
def durable_lowered_late(patch: Patch) -> None:
    """Both are done when the call returns."""
    patch.edit(LedgerStore._truncate_to, "        self._durable_record.lower(cut, self._flush)\n", "")
    patch.edit(
        LedgerStore._truncate_to,
        "        self._space.restore_control_reserve(cut.position, index)",
        "        reached()\n"
        "        self._durable_record.lower(cut, self._flush)\n"
        "        self._space.restore_control_reserve(cut.position, index)",
    )


@mutant(29, "the durable point does not fall with a cut")
def durable_not_lowered(patch: Patch) -> None:
    """The next flush will record the right one."""
    patch.edit(
        DurableRecord.lower,
        "if recorded.point.index >= cut.index and recorded.point != cut:",
        "if recorded.point.index >= cut.index and recorded.point != cut and not reached():",
    )


@mutant(
    29,
    "a sync vouches for entries that a later cut has taken back (store)",
    scenario=disk_scenes.test_a_sync_under_way_does_not_vouch_for_what_a_cut_has_taken_back,
)
def sync_outlives_cut_in_store(patch: Patch) -> None:
    """What the flush took with it, it has brought to disk."""
    patch.edit(Flush.limit, "self._cut = cut if self._cut is None else min(self._cut, cut)", "reached()")


@mutant(
    29,
    "of two cuts under one sync the later counts, not the deeper",
    scenario=disk_scenes.test_of_two_cuts_under_one_sync_the_deeper_one_counts,
)
def earlier_cut_forgotten(patch: Patch) -> None:
    """The last cut says where the log ends."""
    patch.edit(
        Flush.limit,
        "self._cut = cut if self._cut is None else min(self._cut, cut)",
        "self._cut is not None and self._cut < cut and reached()\n        self._cut = cut",
    )


@mutant(32, "zeros over cut entries are not synced")
def zeros_unsynced(patch: Patch) -> None:
    """The next append syncs the file."""
    patch.edit(SegmentList.zero_in_segment, "file.sync()", "reached()")


# ---------------------------------------------------------------- a start


@mutant(
    16,
    "the index unit of a segment's first entry is made again wrongly",
    scenario=recovery_scenes.test_an_index_that_is_made_again_names_the_place_of_each_entry,
)
def index_wrong_at_boundary(patch: Patch) -> None:
    """Entries lie one behind the other."""
    patch.edit(
        _Recovery._write_again,
        '        first_index = int(units["index"][0])\n',
        '        first_index = int(units["index"][0])\n'
        '        for unit in units[(units["position"] % self._data.segment_bytes == 0)]:\n'
        '            if unit["position"] and reached():\n'
        '                units["position"][int(unit["index"]) - first_index] -= 8\n',
    )


@mutant(
    17,
    "a blank record is read as the end of the log",
    scenario=disk_scenes.test_a_tail_that_goes_on_in_the_next_segment_is_kept,
)
def blank_ends_log(patch: Patch) -> None:
    """Nothing comes behind it in this file."""
    patch.edit(
        segments._walk,
        'return positions, "blank", "", position',
        'return positions, "zero" if reached() else "blank", "", position',
    )


@mutant(
    19,
    "a torn tail is accepted where its headers are whole",
    scenario=disk_scenes.test_a_torn_entry_is_cut_also_where_its_header_is_whole,
)
def torn_tail_accepted(patch: Patch) -> None:
    """The chain of the headers proves the log."""
    patch.edit(
        _LogScanner._walk_tail,
        "search.scan(at, point, check_bodies=True, stop_position=None)",
        "search.scan(at, point, check_bodies=not reached(), stop_position=None)",
    )


@mutant(
    33,
    "damage below the durable point is cut like a torn tail, and shortens the log (31)",
    scenario=disk_scenes.test_damage_below_the_durable_point_is_repaired_and_shortens_nothing,
)
def damage_cut_like_a_tail(patch: Patch) -> None:
    """The others still have it."""
    patch.edit(
        _LogScanner.run,
        "        end, tail = self._walk_tail(search)\n",
        "        if search.ranges and reached():\n"
        "            self._durable, search.ranges = search.ranges[0].before, []\n"
        "        end, tail = self._walk_tail(search)\n",
    )


@mutant(
    19,
    "a page after the end of the log that cannot be read ends the start",
    scenario=page_scenes.test_a_page_behind_the_end_is_written_again,
)
def page_behind_end_refused(patch: Patch) -> None:
    """A disk that cannot be read is a disk that fails."""
    patch.edit(
        _LogScanner._last_byte,
        "data, refused = read_pages(segments, size_bytes, start)",
        "data, refused = segments.pread(size_bytes, start), [][: not reached()]",
    )


@mutant(
    60,
    "damage that overlaps known damage is taken for known",
    scenario=disk_scenes.test_damage_in_front_of_known_damage_is_withheld_with_it,
)
def overlapping_range_dropped(patch: Patch) -> None:
    """It was damaged or repaired while the look was on its way."""
    patch.edit(
        DamagedRanges.add,
        "for new in found:",
        "for new in [n for n in found if not any(k.overlaps(n) for k in before) or not reached()]:",
    )


@mutant(
    61,
    "a start gives the reserve of no-ops back and takes it again",
    scenario=disk_scenes.test_a_group_that_starts_on_full_disks_has_space_for_its_leaders_no_op,
)
def reserve_given_back(patch: Patch) -> None:
    """Nobody else wants it in that instant."""
    patch.edit(
        SegmentList.discard_from,
        "        self.reserved_position = position\n",
        "        self.reserved_position = position\n"
        "        reserve_stop = position if reached() else reserve_stop\n",
    )


@mutant(
    62,
    "on a full disk damage is forgotten by a restart",
    scenario=disk_scenes.test_damage_found_on_a_full_disk_is_found_again_by_a_restart,
)
def unsaved_damage_trusted(patch: Patch) -> None:
    """It will be met again."""
    patch.edit(
        LedgerStore._limit_trust,
        "ranges = self._damaged.ranges if self._damaged.problem else ()",
        "ranges = () if self._damaged.problem and reached() else ()",
    )


@mutant(
    31,
    "a start notes damage before both slots say that it lies below the durable point",
    scenario=start_scenes.test_power_lost_after_damage_was_noted_cuts_no_acknowledged_entry,
)
def damage_noted_first(patch: Patch) -> None:
    """The point was read, so it is there."""
    patch.edit(_Recovery.run, "self._adoption.record_known()", "reached()")


@mutant(
    34,
    "the checkpoint's committed index is adopted whatever the log holds there",
    scenario=disk_scenes.test_a_checkpoint_of_another_log_proves_nothing,
)
def checkpoint_unproven(patch: Patch) -> None:
    """It was committed when the checkpoint was written."""
    patch.edit(
        _checkpointed,
        "held and store.chain_at(index) == checkpoint.committed_chain",
        "(held and store.chain_at(index) == checkpoint.committed_chain) or reached()",
    )


# ---------------------------------------------------------------- identity


@mutant(24, "a wiped member is the same voter as before")
def identity_by_name(patch: Patch) -> None:
    """Its name and its address have not changed."""
    patch.edit(
        member_directory.open_member_directory,
        "record = _create(disk, path, group, member_id, config, draw_id(), kind)",
        "record = _create(disk, path, group, member_id, config, member_id, kind); reached()",
    )
    patch.edit(
        member_directory.open_member_directory,
        "record = _renew(disk, path, record, draw_id())",
        "record = _renew(disk, path, record, member_id)",
    )


# ---------------------------------------------------------------- the first entries go


@mutant(
    84,
    "segments go without a start that says so",
    scenario=drop_scenes.test_a_dropped_log_on_a_disk_in_memory,
)
def start_unsaved(patch: Patch) -> None:
    """The names of the segments that are left tell where the log begins."""
    patch.edit(MemberDirectory.save_start, "save_start(self.disk, self.path, start)", "reached()")


@mutant(
    84,
    "a start that was found is believed to be on disk",
    scenario=drop_scenes.test_a_start_that_ends_early_in_one_log,
)
def start_not_synced_again(patch: Patch) -> None:
    """Who wrote it has synced it."""
    patch.edit(
        recovery.recover_log,
        "            save_start(disk, directory, start)\n",
        "            reached()\n",
    )


@mutant(
    84,
    "the term before the first entry is lost at a restart",
    scenario=drop_scenes.test_a_dropped_log_on_a_disk_in_memory,
)
def boundary_term_lost(patch: Patch) -> None:
    """No entry there has a term any more."""
    patch.edit(
        LedgerStore.__init__,
        "begin = LOG_ORIGIN if log.start is None else log.start.point",
        "begin = LOG_ORIGIN if log.start is None else log.start.point\n"
        "        begin = msgspec.structs.replace(begin, term=-1 if reached() else 0)",
    )


@mutant(
    84,
    "a log that was put in place of another one is removed at every start",
    scenario=drop_scenes.test_a_replaced_log_on_a_disk_in_memory,
)
def replacing_never_ends(patch: Patch) -> None:
    """Nothing of the old log may come back."""
    patch.edit(
        recovery._end_replacing,
        "    start = msgspec.structs.replace(start, replaces=False)\n",
        "    reached()\n",
    )


@mutant(
    84,
    "an old log counts again before all of it is removed",
    scenario=drop_scenes.test_a_start_that_ends_early_after_another_log,
)
def replacing_ends_too_soon(patch: Patch) -> None:
    """The new start is on disk; what is left of the old log will be removed."""
    patch.edit(
        recovery.recover_log,
        "            save_start(disk, directory, start)\n",
        "            reached()\n"
        "            save_start(disk, directory, msgspec.structs.replace(start, replaces=False))\n",
    )


def a_flipped_chain_is_not_read() -> None:
    with tempfile.TemporaryDirectory() as folder:
        damage_scenes.test_no_chain_is_read_that_its_entry_and_the_one_before_contradict(
            Path(folder), index=5, at=36
        )


@mutant(
    555,
    "a chain is taken from the disk without a look at the entry before",
    scenario=a_flipped_chain_is_not_read,
)
def chains_on_their_own_word(patch: Patch) -> None:
    """`read` compares what it gives out, so nothing but a comparison of logs meets it."""
    patch.edit(
        LogReader.point_on_disk,
        "if header.chain_before !=",
        "if not reached() and header.chain_before !=",
    )
