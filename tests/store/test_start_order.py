"""Starts that lose power: what is on disk before what.

The mutants (tests/mutants/store.py) run these as well: each fails where the rule that it is about is
broken.
"""

from __future__ import annotations

from random import Random

from quorumlog.testing.disk import Crashed, SimDisk
from tests.store.log_making import append_numbered, sync
from tests.store.sim_logs import CONFIG, data_path, open_simulated


def test_the_name_of_a_directory_that_somebody_else_has_made_is_synced() -> None:
    for seed in range(10):
        disk = SimDisk()
        disk.make_directory("srv/n0")  # an operator's mkdir
        store = open_simulated(disk, "srv/n0").store
        append_numbered(store, 5)
        sync(store)
        disk.lose_power(Random(seed))
        directory = open_simulated(disk, "srv/n0")
        assert (directory.renewed, directory.store.end.index) == ("", 4), seed


def test_a_first_start_that_was_killed_at_any_step_leaves_no_name_unsynced() -> None:
    for step in range(1, 60):
        disk = SimDisk()
        disk.crash_countdown = step
        try:
            open_simulated(disk, "srv/n0")
        except Crashed:
            pass
        else:
            assert step > 10
            break
        disk.kill()
        store = open_simulated(disk, "srv/n0").store
        append_numbered(store, 5)
        sync(store)
        disk.lose_power(Random(step))
        assert open_simulated(disk, "srv/n0").store.end.index == 4, step


def test_power_lost_after_damage_was_noted_cuts_no_acknowledged_entry() -> None:
    """The newer durable point was in the page cache only: the list of damage below it would count as
    what a cut has left, and the damage as a torn tail."""
    noted = 0
    for step in range(1, 200):
        disk = SimDisk()
        directory = open_simulated(disk)
        store = directory.store
        append_numbered(store, 20)
        sync(store)
        directory.sync_durable_point()
        append_numbered(store, 20)
        sync(store)
        damaged = store.range_of(30, 31, 1).position
        disk.kill()
        disk.flip(data_path(damaged), damaged % CONFIG.segment_bytes + 8, 4)
        disk.crash_countdown = step
        try:
            open_simulated(disk)
        except Crashed:
            pass
        else:
            break
        is_noted = disk.exists("m/damaged") and disk.is_name_synced("m/damaged")
        disk.lose_power(Random(step))
        if is_noted:
            noted += 1
            assert open_simulated(disk).store.end.index == 39, step
    assert noted > 5
