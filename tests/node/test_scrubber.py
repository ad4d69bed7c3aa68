"""The scrub finds what nobody reads, at its own pace, and rests."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from quorumlog.config import StoreConfig
from quorumlog.node.repair import PAUSE_MS, ScrubStatus
from quorumlog.store.log_points import Examination
from tests.node.cell import SMALL, Cell
from tests.node.test_ledger_node import append
from tests.node.test_repair import filled, is_whole, same_everywhere, scribble, segment


@pytest.fixture(autouse=True)
def small_memory(monkeypatch: Any) -> None:
    monkeypatch.setattr("quorumlog.node.ledger_node.RECENT_BYTES", 4096)


@pytest.mark.parametrize("offset", [4, 8, 24, 36, 40, 44, 60])
def test_damage_in_an_entry_that_nobody_reads_is_found_and_repaired(tmp_path: Path, offset: int) -> None:
    cell = filled(tmp_path)
    damaged = cell.followers()[0]
    scribble(damaged, tmp_path, 150, offset=offset)
    cell.now_ms += SMALL.scrub_start_delay_ms
    damaged = tmp_path / damaged.replica.member_id / "set-aside"
    cell.until(damaged.exists, "the damaged bytes are kept aside")
    cell.until(lambda: all(is_whole(node) for node in cell.nodes.values()))
    cell.until(lambda: len({node.store.end for node in cell.nodes.values()}) == 1)
    same_everywhere(cell, tmp_path)
    cell.close()


def test_what_was_looked_at_while_the_log_was_cut_is_looked_at_again(
    tmp_path: Path,
) -> None:
    cell = alone(tmp_path)
    node, host = cell.nodes["n0"], cell.hosts["n0"]
    store = node.store
    scribble(node, tmp_path, 30, offset=60)
    looks = []

    def cut_after_the_first(found: Any) -> None:
        if isinstance(found, Examination):
            looks.append(found)
            if len(looks) == 1:
                assert found.ranges
                store.truncate_from(store.end.index)

    host.on_read = cut_after_the_first
    cell.now_ms += SMALL.scrub_start_delay_ms
    cell.until(lambda: node.scrub_status().passes)
    assert [(each.first_index, each.stop_index) for each in store.damaged] == [(30, 31)]


def test_a_bad_blank_record_and_a_bad_index_unit_are_written_again(tmp_path: Path) -> None:
    cell = filled(tmp_path)
    member = cell.followers()[0].replica.member_id
    first, index = segment(tmp_path, member, 0), tmp_path / member / "index" / f"{0:020d}"
    whole = first.read_bytes(), index.read_bytes()
    blank = whole[0].rindex(b"\xff\xff\xff\xff")
    first.write_bytes(whole[0][:blank] + bytes(8) + whole[0][blank + 8 :])
    index.write_bytes(bytes(32) + whole[1][32:])
    cell.now_ms += SMALL.scrub_start_delay_ms
    cell.until(lambda: (first.read_bytes(), index.read_bytes()) == whole)
    cell.close()


def alone(path: Path, **storage: Any) -> Cell:
    """One member with 400 KB of log."""
    config = StoreConfig(
        segment_bytes=SMALL.segment_bytes, index_segment_bytes=SMALL.index_segment_bytes, **storage
    )
    cell = Cell(path, members=1, storage=config)
    for _ in range(20):
        outcomes = append(cell.leader(), *[b"y" * 1000] * 20)
        cell.until(lambda outcomes=outcomes: outcomes)
    return cell


def read_bytes(cell: Cell, milliseconds: int) -> int:
    """What the scrub looks at in this time."""
    sizes = []

    def count(found: Any) -> None:
        if isinstance(found, Examination):
            sizes.append(found.size_bytes)

    cell.hosts["n0"].on_read = count
    for _ in range(milliseconds // 10):
        cell.step(10)
    return sum(sizes)


def test_a_pass_keeps_its_pace_and_is_followed_by_a_long_rest(tmp_path: Path) -> None:
    cell = alone(tmp_path, scrub_bytes_per_second=100_000)
    assert read_bytes(cell, 1000) == 0
    cell.now_ms += SMALL.scrub_start_delay_ms
    largest_step = SMALL.segment_bytes
    assert read_bytes(cell, 2000) <= 200_000 + largest_step
    whole = cell.nodes["n0"].store.end.position
    assert read_bytes(cell, 4000) >= whole - 200_000 - largest_step - 10_000
    assert read_bytes(cell, 2000) == 0
    assert cell.nodes["n0"].next_wakeup_ms() > cell.now_ms
    cell.now_ms += PAUSE_MS
    assert read_bytes(cell, 2000) > 100_000
    cell.close()


def test_status_says_how_far_it_has_come(tmp_path: Path) -> None:
    cell = alone(tmp_path, scrub_bytes_per_second=100_000, scrub_start_delay_ms=30_000)
    node = cell.nodes["n0"]
    stop = node.store.end.index + 1
    cell.step()
    assert node.scrub_status() == ScrubStatus(-1, -1, 0, -1)
    cell.now_ms += 30_000
    seen = []
    while not node.scrub_status().passes:
        cell.step()
        seen.append(node.scrub_status()[:2])
    indices = [index for index, stop_index in seen[:-1] if stop_index == stop]
    assert len(indices) == len(seen) - 1
    assert indices == sorted(indices)
    assert 0 < indices[0] < indices[-1] == stop
    assert node.scrub_status() == ScrubStatus(-1, -1, 1, 0)
    cell.step(5000)
    assert node.scrub_status() == ScrubStatus(-1, -1, 1, 5000)
    cell.close()


def test_it_can_be_switched_off(tmp_path: Path) -> None:
    cell = alone(tmp_path, scrub_bytes_per_second=0)
    cell.now_ms += PAUSE_MS
    assert read_bytes(cell, 2000) == 0
    cell.close()


def test_a_pass_follows_the_pace_that_a_running_member_is_given(tmp_path: Path) -> None:
    cell = alone(tmp_path, scrub_bytes_per_second=0)
    node = cell.nodes["n0"]

    def pace(bytes_per_second: int) -> None:
        storage = replace(node.config.storage, scrub_bytes_per_second=bytes_per_second)
        node.configure(replace(node.config, storage=storage))

    assert read_bytes(cell, 1000) == 0
    pace(100_000)
    first = read_bytes(cell, 1000)
    assert first > 0
    assert node.scrub_status().next_index > 0
    pace(0)
    cell.step()
    assert read_bytes(cell, 1000) == 0
    pace(100_000_000)
    cell.until(lambda: node.scrub_status().passes == 1)
    cell.close()
