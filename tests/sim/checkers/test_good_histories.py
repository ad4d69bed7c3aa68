"""Checkers have nothing to say about clusters that keep their promises."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from sim.log.checkers import all_checkers
from tests.node.cell import SMALL
from tests.sim.checkers.watched_cell import WatchedCell


@pytest.mark.parametrize("flush", ["sync", "async"])
@pytest.mark.parametrize("members", [1, 3])
def test_appends_reads_and_restarts_of_everybody_break_no_promise(members: int, flush: str) -> None:
    cell = WatchedCell(members, storage=replace(SMALL, flush=flush))
    cell.watch(*all_checkers(cell))
    for number in range(members):
        cell.append(b"%d first" % number, b"%d second" % number)
        cell.read(cell.leader())
        restarted = cell.members[number]
        cell.stop(restarted)
        cell.start(restarted)
        cell.append(b"%d third" % number)
    cell.until_whole()
    cell.tell("made_whole")
    assert [append.is_committed for append in cell.operations.appends] == [True] * (2 * members)
    assert cell.operations.reads == members


def test_power_losses_take_nothing_that_was_acknowledged_after_its_sync() -> None:
    cell = WatchedCell()
    cell.watch(*all_checkers(cell))
    for seed, member in enumerate(cell.members):
        cell.append(b"%d" % seed)
        cell.stop(member)
        member.disk.lose_power(random.Random(seed))
        cell.start(member)
    cell.append(b"last")
    cell.until_whole()
    cell.tell("made_whole")
    assert all(member.node.committed_index >= 4 for member in cell.members)


def test_a_follower_that_catches_up_over_several_segments_breaks_no_promise() -> None:
    cell = WatchedCell(storage=replace(SMALL, segment_bytes=2048))
    cell.watch(*all_checkers(cell))
    behind = cell.followers()[0]
    cell.stop(behind)
    for number in range(12):
        cell.append(b"%d." % number + bytes(700))
    cell.start(behind)
    cell.until_whole()
    cell.tell("made_whole")
    assert behind.node.store.end.position > 3 * 2048
