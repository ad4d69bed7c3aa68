"""A state machine that is saved goes on between the slices of its state."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from quorumlog.store import snapshots
from quorumlog.store.snapshots import SnapshotFileWriter
from tests.node.cell import SMALL
from tests.node.machines import Sliced
from tests.node.test_state_machines import Group, restarted

LATE = replace(SMALL, snapshot_entries=30)


class Stops(Sliced):
    def command(self, body: bytes, index: int) -> bytes | None:
        assert body != b"stop"
        return super().command(body, index)


def unfinished(path: Path) -> list[str]:
    return [each.name for each in (path / "n1" / "snapshots").glob("*.tmp")]


def test_commands_are_taken_between_two_slices(tmp_path: Path) -> None:
    group = Group(tmp_path, Sliced, storage=LATE)
    node = group.cell.nodes["n1"]
    machine = group.machine_of(node)
    later = iter(range(5))
    machine.on_slice = lambda: [group.ask_to_append(b"%d" % each) for each in islice(later, 1)]
    group.append(*[b"a"] * 30)
    (expected, *_) = group.settle()
    assert not machine.is_saving
    assert len(machine.between) == 30
    assert sum(machine.between) == 5, "commands were taken while it was saved"
    assert [body for _, body in expected[30:]] == [b"0", b"1", b"2", b"3", b"4"]
    assert group.machine_of(restarted(group, "n1")).taken == expected
    group.cell.close()


def test_a_machine_that_is_built_again_or_stops_is_saved_no_further(tmp_path: Path) -> None:
    group = Group(tmp_path, Stops, storage=LATE)
    cell = group.cell
    node = cell.nodes["n1"]
    driver = node.machines._drivers["chain"]

    def in_the_middle() -> Stops:
        """Of a save, where nothing goes on."""
        machine: Stops = group.machine_of(node)
        machine.on_slice = lambda: cell.hold_apply.add("n1")
        group.append(*[b"a"] * 30)
        cell.until(lambda: machine.is_saving)
        assert unfinished(tmp_path)
        machine.on_slice = lambda: None
        return machine

    first = in_the_middle()
    driver.rebuild()
    cell.hold_apply.clear()
    cell.until(lambda: driver.is_running)
    assert not first.is_saving
    assert not unfinished(tmp_path)
    second = in_the_middle()
    assert second is not first
    group.ask_to_append(b"stop")
    cell.step()
    cell.hold_apply.clear()
    cell.until(lambda: driver.stopped)
    cell.step()
    assert not second.is_saving
    assert not unfinished(tmp_path)
    cell.close()


def test_a_sync_that_fails_leaves_the_machine_to_the_thread_that_applies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be at work there."""
    group = Group(tmp_path, Sliced, members=1, storage=LATE)
    cell = group.cell
    node = cell.nodes["n0"]
    machine = group.machine_of(node)

    def fail(writer: SnapshotFileWriter) -> None:
        cell.hold_apply.add("n0")
        raise OSError("a bad disk")

    monkeypatch.setattr(snapshots, "SYNC_BYTES", 0)
    monkeypatch.setattr(SnapshotFileWriter, "sync", fail)
    group.append(*[b"a"] * 30)
    cell.until(lambda: any("a bad disk" in each for each in node.problems()))
    assert machine.is_saving
    cell.hold_apply.clear()
    cell.until(lambda: not machine.is_saving)
    assert not list((tmp_path / "n0" / "snapshots").glob("*.tmp"))
    assert group.append(b"b").result
    cell.close()


def test_no_machine_is_made_before_the_save_of_the_one_before_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both would be on the same files. The log begins behind what the machine has applied."""
    made: list[Sliced] = []

    class Only(Sliced):
        def __init__(self) -> None:
            assert not any(each.is_saving for each in made)
            super().__init__()
            made.append(self)

    group = Group(tmp_path, Only, members=1, storage=LATE)
    driver = group.cell.nodes["n0"].machines._drivers["chain"]

    def fall_behind(writer: SnapshotFileWriter) -> None:
        if len(made) == before:
            driver.applied_index = -2

    monkeypatch.setattr(snapshots, "SYNC_BYTES", 0)
    monkeypatch.setattr(SnapshotFileWriter, "sync", fall_behind)
    before = len(made)
    group.ask_to_append(*[b"a"] * 30)
    group.cell.until(lambda: driver.is_running and len(made) > before)
    assert not made[before - 1].is_saving
    group.cell.close()


def test_who_needs_a_snapshot_waits_for_the_one_that_is_on_its_way(tmp_path: Path) -> None:
    """It is asked for again and again meanwhile; no second one is made for that."""
    group = Group(tmp_path, Sliced, storage=LATE)
    cell, node = group.cell, group.cell.nodes["n1"]
    machine = group.machine_of(node)
    driver = node.machines._drivers["chain"]
    machine.on_slice = lambda: cell.hold_apply.add("n1")
    group.append(*[b"a"] * 30)
    cell.until(lambda: machine.is_saving)
    machine.on_slice = lambda: None
    index = driver.applied_index
    assert node.machines.good_snapshots(index) == ()
    cell.hold_apply.clear()
    group.settle()
    assert [each.index for each in node.machines.good_snapshots(index)] == [index]
    assert not driver.snapshots.is_due(0.0)
    assert node.machines.good_snapshots(driver.applied_index + 1) == ()
    group.append(b"b")
    group.settle()
    assert node.machines.good_snapshots(driver.applied_index) == (), "none was asked for before"
    group.append(b"c")
    group.settle()
    assert node.machines.good_snapshots(index)[0].index > index, "now it was"
    group.cell.close()
