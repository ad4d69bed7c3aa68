"""A member whose first segments go while it works: who reads there, who is fed from there, what is
cut."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from quorumlog.batch import EntryBatch
from quorumlog.config import StoreConfig
from quorumlog.consensus.messages import PushEntryRequest, PushType
from quorumlog.consensus.ready import Envelope
from quorumlog.errors import IndexOutOfRange
from quorumlog.log_state.log_state import EMPTY
from quorumlog.node import LedgerNode
from quorumlog.store.disk import OsDisk
from quorumlog.store.log_points import ColdRange, LogStart
from quorumlog.store.state_files import START_NAME, load_start
from tests.node.cell import Cell, run
from tests.node.test_ledger_node import append
from tests.store.stopping_disk import StoppingDisk

SEGMENTS = StoreConfig(segment_bytes=2048, index_segment_bytes=320, reserve_step_bytes=2048)


def fill(cell: Cell, count: int = 60) -> LedgerNode:
    leader = cell.leader()
    for _ in range(count // 10):
        receipts = [append(leader, b"x" * 100) for _ in range(10)]
        cell.until(lambda receipts=receipts: all(receipts), "an acknowledgement")
    end = leader.store.end.index
    others = [node for member, node in cell.nodes.items() if member not in cell.cut_off]
    cell.until(lambda: all(node.durable_committed_index == end for node in others), "all of it")
    return leader


def boundary(node: LedgerNode, at: int = -1) -> LogStart:
    """Of the newest segment but one, or another."""
    point = node.store.boundaries.newest(node.durable_committed_index - 1)
    assert point is not None
    for _ in range(-1 - at):
        point = node.store.boundaries.newest(point.index - 1)
        assert point is not None
    return LogStart(point, EMPTY.encode())


def test_the_log_begins_behind_the_start_and_a_reader_below_is_told_where(tmp_path: Path) -> None:
    cell = Cell(tmp_path, storage=SEGMENTS)
    leader = fill(cell)
    start = boundary(leader)
    first_index = start.point.index + 1
    assert leader.drops.begin(start)
    assert leader.drops.is_under_way and not leader.drops.begin(start), "one at a time"
    assert leader.store.begin.index == -1, "the start is not on disk yet"
    cell.until(lambda: not leader.drops.is_under_way, "the end of the drop")
    assert leader.store.begin == start.point == load_start_of(leader).point
    with pytest.raises(IndexOutOfRange) as refused:
        leader.readable_range(first_index - 1, -1, 1000)
    assert refused.value.ledger_begin_index == first_index
    assert not isinstance(leader.readable_range(first_index, -1, 1000), IndexOutOfRange)
    names = sorted(path.name for path in (Path(leader.directory.path) / "data").iterdir())
    assert int(names[0]) == start.point.position
    fill(cell, 10)
    member = leader.replica.member_id
    cell.kill(member)
    assert cell.start(member).store.begin == start.point
    fill(cell, 10)
    cell.close()


def load_start_of(node: LedgerNode) -> LogStart:
    start = load_start(OsDisk(), node.directory.path)
    assert start is not None
    return start


def test_a_read_that_is_on_its_way_gets_entries_or_the_first_index_that_exists(tmp_path: Path) -> None:
    cell = Cell(tmp_path, storage=SEGMENTS)
    leader = fill(cell)
    member = leader.replica.member_id
    cell.close(clean=True)
    cell.nodes.clear()
    cell.start(member)
    for other in ("n0", "n1", "n2"):
        if other != member:
            cell.start(other)
    node = cell.nodes[member]
    cell.until(lambda: node.durable_committed_index > 50, "what is committed")
    seen: list[Any] = []
    found = node.readable_range(3, 9, 10_000)
    assert isinstance(found, ColdRange)
    host = cell.hosts[member]
    assert node.drops.begin(boundary(node))
    saving = host.reads
    host.reads = []
    run(saving)  # the start is on disk; the log is let go of
    deleting = host.reads
    host.reads = []
    host.read_later(lambda: node.store.read_from(*found)[1], seen.append)
    run(host.reads)
    run(deleting)
    assert isinstance(seen[0], IndexOutOfRange | EntryBatch)
    if isinstance(seen[0], IndexOutOfRange):
        assert seen[0].ledger_begin_index == node.store.begin.index + 1
    cell.close()


def test_a_follower_below_is_sent_nothing_from_below(tmp_path: Path) -> None:
    cell = Cell(tmp_path, storage=SEGMENTS)
    fill(cell, 10)
    lagging = cell.followers()[0].replica.member_id
    cell.cut_off = {lagging}
    leader = fill(cell)
    pushed: list[PushEntryRequest] = []

    def note(envelope: Envelope) -> None:
        message = envelope.message
        if isinstance(message, PushEntryRequest) and envelope.to.member_id == lagging:
            pushed.append(message)

    assert leader.drops.begin(boundary(leader))
    begin = leader.raft.begin
    assert begin.index > leader.store.begin.index
    cell.hosts[leader.replica.member_id].on_sent = note
    cell.cut_off = set()
    for _ in range(400):
        cell.step()
    assert all(message.previous.index >= begin.index for message in pushed)
    cell.close()


def test_without_space_for_the_start_the_log_begins_where_it_did(tmp_path: Path) -> None:
    full = [True]

    def refuse(what: str, path: str) -> OSError | None:
        if full[0] and what == "create" and START_NAME in path:
            return OSError(errno.ENOSPC, "No space left on device", path)
        return None

    disks = {f"n{i}": StoppingDisk(refuse=refuse) for i in range(3)}
    cell = Cell(tmp_path, storage=SEGMENTS, disks=dict(disks))
    leader = fill(cell)
    assert leader.drops.begin(boundary(leader))
    cell.until(lambda: not leader.drops.is_under_way, "the refusal")
    assert leader.store.begin.index == -1
    assert any("no space to drop the first entries" in problem for problem in leader.problems())
    full[0] = False
    assert leader.drops.begin(boundary(leader))
    cell.until(lambda: not leader.drops.is_under_way, "the drop")
    assert leader.store.begin.index > 0
    assert not any("no space" in problem for problem in leader.problems())
    fill(cell, 10)
    cell.close()


def test_without_space_for_the_file_member_no_segment_goes(tmp_path: Path) -> None:
    full = [False]

    def refuse(what: str, path: str) -> OSError | None:
        if full[0] and what == "create" and "/member" in path:
            return OSError(errno.ENOSPC, "No space left on device", path)
        return None

    disks = {f"n{i}": StoppingDisk(refuse=refuse) for i in range(3)}
    cell = Cell(tmp_path, storage=SEGMENTS, disks=dict(disks))
    leader = fill(cell)
    full[0] = True
    assert leader.drops.begin(boundary(leader))
    cell.until(lambda: any("no space" in problem for problem in leader.problems()), "a full disk")
    assert not leader.drops.is_under_way and leader.store.begin.index == -1
    full[0] = False
    cell.until(lambda: leader.store.begin.index > 0, "the drop")
    cell.close()


def test_while_the_start_comes_to_disk_nothing_is_cut_directly_behind_it(tmp_path: Path) -> None:
    """Async mode alone orders such a cut: the next entry would lie elsewhere than the start says."""
    cell = Cell(tmp_path, storage=replace(SEGMENTS, flush="async"))
    fill(cell)
    follower = cell.followers()[0]
    leader = cell.leader()
    for node in cell.nodes.values():
        node._flusher._next_flush_ms = 0.0
    cell.until(lambda: follower.store.durable == follower.store.end, "the flush")
    start = boundary(follower)
    member = follower.replica.member_id
    cell.hosts[member].reads.clear()
    assert follower.drops.begin(start)
    index, term = start.point.index, start.point.term
    cut = PushEntryRequest(
        sender=leader.replica,
        term=leader.raft.term + 1,
        push=PushType.TRUNCATE,
        committed_index=index,
        number=1,
        previous=start.point.entry_id,
        first_index=index + 1,
        term_runs=((index + 1, term + 1),),
    )
    follower.receive(msgspec.structs.replace(cut, push=PushType.COMPARE))  # its term
    follower.turn()
    end = follower.store.end
    follower.receive(cut)
    follower.turn()
    assert follower.store.end == end
    run(cell.hosts[member].reads)
    follower.turn()
    assert follower.store.begin == start.point
    follower.receive(cut)
    follower.turn()
    run(cell.hosts[member].reads)
    follower.turn()
    follower.receive(cut)
    follower.turn()
    assert follower.store.end == follower.store.begin == start.point
    cell.close()


def test_what_a_full_disk_keeps_from_being_deleted_goes_once_it_lets_go(tmp_path: Path) -> None:
    full = [True]

    def refuse(what: str, path: str) -> OSError | None:
        if full[0] and what == "unlink" and "/data/" in path:
            return OSError(errno.ENOSPC, "No space left on device", path)
        return None

    cell = Cell(
        tmp_path, storage=SEGMENTS, disks={f"n{i}": StoppingDisk(refuse=refuse) for i in range(3)}
    )
    leader = fill(cell)
    folder = Path(leader.directory.path) / "data"
    assert leader.drops.begin(boundary(leader))
    cell.until(lambda: not leader.drops.is_under_way, "the end of the drop")
    assert leader.store.begin.index > 0 and (folder / f"{0:020d}").exists()
    full[0] = False
    first = f"{leader.store.begin.position:020d}"
    cell.until(lambda: min(path.name for path in folder.iterdir()) == first, "all are deleted")
    cell.close()
