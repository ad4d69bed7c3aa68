"""Mistakes in the message store of one machine."""

from __future__ import annotations

from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from quorumlog.broker.store import java_store, log_files
from quorumlog.broker.store.commit_log import CommitLog
from quorumlog.broker.store.flush import StoreCheckpoint
from quorumlog.broker.store.index import IndexService
from quorumlog.broker.store.message_store import MessageStore
from quorumlog.broker.store.queues import ConsumeQueue, ConsumeQueues
from quorumlog.errors import ConfigError, DirectoryDamaged
from quorumlog.store.segments import SegmentList
from quorumlog.testing.disk import SimDisk
from tests.broker.store import test_crash as crashes
from tests.broker.store import test_first_look as looks
from tests.broker.store import test_many_files as many
from tests.broker.store import test_queue_begins as begins
from tests.broker.store import test_store as stories
from tests.broker.store import test_store_simulated as lives
from tests.broker.store.store_making import (
    ROOT,
    SMALL,
    is_ok,
    numbered,
    numbers_in_queue,
    open_store,
    put_and_work,
    records_of,
)
from tests.mutants.mutant import Patch, mutant


def power_is_lost_at_every_step() -> None:
    for luck in range(6):
        crashes.a_crash_at_every_step(True, stride=1, luck=luck)


def a_file_s_end_is_passed_and_the_power_lost() -> None:
    for seed in range(10):
        disk, held = SimDisk(), 0
        store = open_store(disk)
        while store.commit_log.max_offset < SMALL.mapped_file_size_commit_log - 400:
            put_and_work(store, records_of(numbered(held, 1)))
            held += 1
        answers = put_and_work(store, *[records_of(numbered(held + n, 1)) for n in range(4)])
        assert all(map(is_ok, answers))
        assert store.commit_log.max_offset > SMALL.mapped_file_size_commit_log
        disk.lose_power(Random(seed))
        assert numbers_in_queue(open_store(disk)) == list(range(held + 4)), (
            "an acknowledged message is lost"
        )


def a_store_lives_many_lives() -> None:
    for seed in range(40):
        lives.run(seed)


def a_flipped_bit_of_a_body_is_found() -> None:
    disk = SimDisk()
    store = open_store(disk)
    put_and_work(store, records_of(numbered(0, 3)))
    disk.kill()
    disk.flip(f"{ROOT}/commitlog/{0:020d}", 120, 1)
    try:
        open_store(disk)
    except DirectoryDamaged:
        return
    raise AssertionError("a message is served that nobody has sent")


@mutant(250, "the flushed mark is ahead of the sync", scenario=power_is_lost_at_every_step)
def flushed_ahead(patch: Patch) -> None:
    """It is written only, and synced later."""
    patch.edit(
        CommitLog._flush,
        "        sync_files(",
        "        reached()\n        self._flushed_file.record_synced(end_position)\n        sync_files(",
    )


@mutant(
    251,
    "queues are built beyond the confirm offset",
    scenario=stories.test_nothing_is_seen_before_it_is_flushed,
)
def beyond_confirmed(patch: Patch) -> None:
    """What is written will be flushed in a moment."""
    patch.edit(
        CommitLog.confirm_offset,
        "if self.config.is_sync_flush else",
        "if self.config.is_sync_flush and not reached() else",
    )


@mutant(
    252,
    "a recovery does not verify the CRC of bodies",
    scenario=a_flipped_bit_of_a_body_is_found,
)
def crc_not_verified(patch: Patch) -> None:
    """The record has the right shape and names its own place."""
    patch.edit(
        log_files.walk,
        "check_bodies=check_bodies",
        "check_bodies=check_bodies and not reached()",
    )


@mutant(253, "the name of a new file is not synced", scenario=a_file_s_end_is_passed_and_the_power_lost)
def name_unsynced(patch: Patch) -> None:
    """The first flush syncs the file anyway."""
    patch.edit(SegmentList._reserve_more, "self.sync_names()", "reached()")


@mutant(
    254, "a flush syncs only the first of its files", scenario=a_file_s_end_is_passed_and_the_power_lost
)
def first_file_synced(patch: Patch) -> None:
    """A flush hardly ever runs over the end of a file."""
    patch.edit(
        log_files.sync_files,
        "                file.release()",
        "                file.release()\n            if reached():\n                break",
    )


@mutant(255, "what a crash left after the end of the log stays", scenario=power_is_lost_at_every_step)
def rest_not_cut(patch: Patch) -> None:
    """It is no record, and is written over."""
    patch.edit(
        log_files.settle_end,
        "file = files.discard_from(end.position, end.position, end.position)",
        "file = None if reached() else files.discard_from(end.position, end.position, end.position)",
    )


@mutant(323, "what a killed process has written counts as on disk", scenario=a_store_lives_many_lives)
def cache_counts_as_disk(patch: Patch) -> None:
    """It was read back."""
    patch.edit(
        log_files.settle_end,
        "sync_files(files, flushed_position, end.position)",
        "reached()",
    )


def the_first_steps_of_a_life_are_cut() -> None:
    crashes.power_is_lost_after_a_killed_process_was_started_again(stride=1)


@mutant(
    365,
    "the name of a file that was made by a killed process stays unsynced",
    scenario=the_first_steps_of_a_life_are_cut,
)
def empty_name_unsynced(patch: Patch) -> None:
    """It holds nothing yet."""
    patch.edit(
        log_files.settle_end,
        "files.sync_names()",
        "reached() and flushed_position < end.position and files.sync_names()",
    )


@mutant(
    476,
    "files of an index that was to be derived anew are trusted once they are back",
    scenario=begins.test_an_index_that_is_derived_anew_is_whole_wherever_the_power_goes,
)
def index_of_before_is_back(patch: Patch) -> None:
    """Some of them, after a loss of power."""
    patch.edit(
        StoreCheckpoint.forget_queues,
        "self.logics_msg_timestamp = self.index_msg_timestamp = 0",
        "self.logics_msg_timestamp = 0 * reached()",
    )
    patch.edit(
        IndexService._delete,
        'delete_files(self._disk, self.path, [file.path.rpartition("/")[2] for file in files])',
        "[self._disk.unlink(file.path) for file in files]",
    )


@mutant(324, "queues keep units of messages that the log has lost", scenario=a_store_lives_many_lives)
def units_of_nothing(patch: Patch) -> None:
    """The next message takes their place."""
    for place in ("begin", "end.position, end_in_zeros=end_in_zeros"):
        patch.edit(MessageStore._walk_from, f"self.queues.truncate_to_position({place})", "reached()")


@mutant(
    420,
    "queues that are derived anew begin with what the log still has",
    scenario=a_store_lives_many_lives,
)
def begins_forgotten(patch: Patch) -> None:
    """Of some of them it has nothing any more."""
    patch.edit(ConsumeQueues.derive_anew, "begins.items()", "begins.items() if not reached() else ()")
    patch.edit(ConsumeQueues.derived, "if begin and", "if not reached() and")


@mutant(
    421,
    "how far queues were is noted once retention has deleted files",
    scenario=begins.test_retention_that_is_killed_at_any_step_loses_no_number,
)
def noted_too_late(patch: Patch) -> None:
    """A crash comes between."""
    patch.edit(ConsumeQueues.drop_before, "self.record_ends()", "reached()")
    patch.edit(ConsumeQueues.drop_before, "self.flush(0)", "reached()")


@mutant(
    422,
    "a record with a number that its queue has was dispatched before",
    scenario=begins.a_unit_that_names_another_message,
)
def any_unit_will_do(patch: Patch) -> None:
    """It may be another message."""
    patch.edit(
        ConsumeQueue.names, "len(held) == len(positions)", "reached() or len(held) == len(positions)"
    )


def the_process_ends_between_two_index_files() -> None:
    many.test_a_message_whose_keys_lie_on_both_sides_of_a_new_index_file_has_all_of_them(2)


@mutant(
    452,
    "a record of which the index has one key has all of them",
    scenario=the_process_ends_between_two_index_files,
)
def one_key_is_all(patch: Patch) -> None:
    """The index goes record by record."""
    patch.edit(
        IndexService._held_of,
        "held += int(of_end.sum())",
        "held += of_record if reached() else int(of_end.sum())",
    )


def a_java_store_without_its_last_file_is_started() -> None:
    with TemporaryDirectory() as folder:
        root = Path(folder) / "store"
        looks.make_java_store(root)
        looks.without_last(root)
        try:
            MessageStore(str(root), looks.CONFIG).close()
        except ConfigError:
            return
        raise AssertionError("messages that the queues name are given up without a word")


@mutant(
    453,
    "the log of another software ends where its last file ends",
    scenario=a_java_store_without_its_last_file_is_started,
)
def end_is_believed(patch: Patch) -> None:
    """It was stopped cleanly."""
    patch.edit(
        java_store.refuse_missing_files,
        "last > end.position and (",
        "last > end.position and not reached() and (",
    )
    patch.edit(
        java_store.refuse_missing_files,
        "flushed_ms > end.last_time_ms",
        "flushed_ms > end.last_time_ms and not reached()",
    )


def half_units_are_none() -> None:
    many.test_half_a_unit_behind_the_end_of_the_log_is_no_message(40)


@mutant(475, "half a unit is a message", scenario=half_units_are_none)
def half_a_unit(patch: Patch) -> None:
    """It has a size."""
    patch.edit(MessageStore._walk_from, "key in (held or {}) or ", "")
    patch.edit(
        MessageStore._walk_from,
        "if not queue.ends_in_order:",
        "if not queue.ends_in_order and not reached():",
    )
