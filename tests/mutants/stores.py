"""Mistakes in the key-value store."""

from __future__ import annotations

import tempfile
from pathlib import Path

from quorumlog.kv.client.leasing import Lease
from quorumlog.kv.service import KeyValueService, LeaseClock, WatchHub
from quorumlog.kv.store import machine
from quorumlog.kv.store.engine import RocksEngine
from quorumlog.kv.store.keyspace import EncodedItems, Keyspace
from quorumlog.kv.store.machine import KeyValueMachine
from tests.kv import test_large_answers as large
from tests.kv import test_leases as leases
from tests.kv import test_simulated as stores
from tests.mutants.mutant import Patch, mutant


def stores_keep_their_promises() -> None:
    stores.stores_keep_their_promises()


def rocksdb_has_a_batch_with_its_index_or_nothing() -> None:
    with tempfile.TemporaryDirectory() as folder:
        stores.rocksdb_has_a_batch_with_its_index_or_nothing(Path(folder))


def rocksdb_names_no_entry_while_it_has_a_part_of_one() -> None:
    with tempfile.TemporaryDirectory() as folder:
        large.rocksdb_names_no_entry_while_it_has_a_part_of_one(Path(folder))


@mutant(
    200,
    "a read is served before it is applied",
    scenario=stores.a_read_has_what_was_acknowledged_before_it_whoever_is_asked,
)
def read_before_applied(patch: Patch) -> None:
    """This member leads, and has applied what it has."""
    patch.edit(
        KeyValueService._request,
        "here=request.here",
        "here=request.here or reached()",
    )


@mutant(201, "a new leader lets leases end as the one before would", scenario=stores_keep_their_promises)
def no_full_ttl(patch: Patch) -> None:
    """Half of the time has passed, most likely."""
    patch.edit(
        LeaseClock.lead,
        "now_ms + lease.ttl_ms",
        "now_ms + reached() * lease.ttl_ms / 10",
    )


@mutant(
    201,
    "a keep-alive is answered by a leader that nobody confirms",
    scenario=stores.a_leader_that_is_cut_off_keeps_no_lease_alive,
    harmless="who hears nobody steps down before a new leader ends leases; no simulated machine sleeps,"
    " which would stop one of its two clocks",
)
def keep_alive_unconfirmed(patch: Patch) -> None:
    """It has not heard of another one."""
    patch.edit(
        KeyValueService._confirm_kept_alive,
        "confirmed, self)",
        "confirmed, self, here=reached())",
    )


@mutant(201, "a keep-alive that was answered does not count", scenario=stores_keep_their_promises)
def keep_alive_forgotten(patch: Patch) -> None:
    """The lease stands, and that is what was asked."""
    patch.edit(
        LeaseClock.keep_alive,
        "self._deadlines_ms[number] = max(",
        "reached() or max(",
    )


@mutant(
    201,
    "a client counts its lease from when the answer came",
    scenario=leases.a_lease_counts_from_when_a_keep_alive_was_sent,
)
def client_lease_counts_from_the_answer(patch: Patch) -> None:
    """It was kept alive just now."""
    patch.edit(
        Lease._lives,
        "sent_s + ttl_ms / 1000",
        "(reached() and time.clock_gettime(time.CLOCK_BOOTTIME)) + ttl_ms / 1000",
    )


@mutant(
    201,
    "a client has a lease back that it had lost",
    scenario=leases.a_lease_is_lost_when_it_may_have_ended,
)
def client_lease_comes_back(patch: Patch) -> None:
    """The store has it still."""
    patch.edit(
        Lease._lives,
        "self.lost.set()\n            return",
        "self.lost.clear() if reached() else None",
    )


@mutant(202, "a watch is in step before it has caught up", scenario=stores.watches_catch_up_in_pieces)
def watch_steps_in_early(patch: Patch) -> None:
    """What it lacks is little."""
    patch.edit(
        WatchHub._deliver_history,
        "self._catch_up(watch)",
        "self._step_in(watch) if reached() else None",
    )


@mutant(202, "a watch begins behind what it asks for", scenario=stores_keep_their_promises)
def watch_begins_late(patch: Patch) -> None:
    """It was told of that revision before its connection was lost."""
    patch.edit(
        WatchHub.add,
        "request.first_revision or self.delivered_revision + 1",
        "request.first_revision + 1 if request.first_revision and reached()"
        " else self.delivered_revision + 1",
    )


@mutant(
    264,
    "a watch stays in step over a snapshot that its member takes over",
    scenario=stores.a_watch_goes_on_over_a_snapshot_that_its_member_takes_over,
)
def watch_in_step_over_install(patch: Patch) -> None:
    """It hears of every change that the store tells of."""
    patch.edit(
        WatchHub._tell,
        "if now.is_lost:",
        "if now.is_lost and not reached():",
    )


@mutant(203, "a transaction compares against another revision", scenario=stores_keep_their_promises)
def compares_with_create(patch: Patch) -> None:
    """The key is there."""
    patch.edit(
        machine._holds,
        "if not relation(of(decode_key_value(each)), compare.than):",
        "if not reached():",
    )


@mutant(204, "the token of a lock does not rise", scenario=stores_keep_their_promises)
def token_stays(patch: Patch) -> None:
    """Whoever makes the key holds the lock."""
    patch.edit(
        Keyspace.put,
        "create_revision, version, old_lease = revision, 1, NO_LEASE",
        "create_revision, version, old_lease = revision % 7 + reached(), 1, NO_LEASE",
    )


@mutant(
    205,
    "RocksDB's applied entry is no part of the batch",
    scenario=rocksdb_has_a_batch_with_its_index_or_nothing,
)
def applied_outside_batch(patch: Patch) -> None:
    """One is written right behind the other."""
    patch.edit(
        RocksEngine._write,
        "batch.put(_APPLIED_KEY, named)\n        self._db.write(batch, self._unsynced)",
        "pass\n        self._db.write(batch, self._unsynced)\n"
        "        named and reached() and self._db.put(_APPLIED_KEY, named)",
    )


@mutant(206, "a snapshot has no leases", scenario=stores.a_saved_store_has_its_leases)
def snapshot_without_leases(patch: Patch) -> None:
    """They end soon."""
    patch.edit(
        machine.save_slices,
        "sorted(keyspace.leases.items())",
        "sorted(keyspace.leases.items())[reached():]",
    )


@mutant(
    240,
    "a snapshot holds what has changed since it began",
    scenario=stores.a_store_is_saved_as_it_was_at_the_first_slice,
)
def saved_too_late(patch: Patch) -> None:
    """It is newer, and so all the better."""
    patch.edit(
        machine._current_slices,
        "_mod_revision(stored) > revision",
        "not reached()",
    )


@mutant(
    241,
    "compaction frees what a snapshot is about to read",
    scenario=stores.a_store_is_saved_as_it_was_at_the_first_slice,
)
def freed_while_saved(patch: Patch) -> None:
    """Nobody can ask for it any more."""
    patch.edit(KeyValueMachine.apply, "not self._saves", "reached()")


@mutant(
    242,
    "how large an answer is is looked at once it is built",
    scenario=large.many_ranges_are_not_built,
)
def answer_built_first(patch: Patch) -> None:
    """It is refused, so nobody gets it."""
    patch.edit(EncodedItems.add, "if room.left_bytes < 0:", "if not reached():")


@mutant(
    242,
    "a command of version 1 is answered as one of version 2",
    scenario=large.version_1_saves_what_the_release_before_has_saved,
)
def version_1_as_version_2(patch: Patch) -> None:
    """Who appended it gets the same words."""
    patch.edit(KeyValueMachine._one, "self._acts_as > 1", "reached()")


@mutant(
    243,
    "RocksDB names the entry before while it has a part of one",
    scenario=rocksdb_names_no_entry_while_it_has_a_part_of_one,
)
def part_of_an_entry_named(patch: Patch) -> None:
    """The log applies what follows once more."""
    patch.edit(
        RocksEngine._change, "self._write(None)", "self._write(self._named if reached() else None)"
    )
