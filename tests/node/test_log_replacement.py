"""A member whose log ends before the leader's begins takes over the start, and entries from there."""

from __future__ import annotations

import errno
import tempfile
from pathlib import Path

import msgspec
import pytest

from quorumlog.config import ConsensusConfig
from quorumlog.consensus.messages import InstallRequest, InstallResponse, InstallResult, PushEntryRequest
from quorumlog.consensus.ready import Envelope
from quorumlog.entry import SnapshotId
from quorumlog.errors import StoreFailure
from quorumlog.node import LedgerNode, MachineFactory
from quorumlog.node.ports import LogReplaced
from quorumlog.store.disk import Disk, OsDisk
from quorumlog.store.log_points import LogStart
from quorumlog.store.state_files import START_NAME, encode_start, load_start
from tests.node.cell import Cell
from tests.node.machines import Chain
from tests.node.test_log_drops import SEGMENTS, boundary, fill
from tests.store.stopping_disk import StoppingDisk


def test_a_follower_below_the_begin_gets_the_start_and_what_follows(tmp_path: Path) -> None:
    cell = Cell(tmp_path, storage=SEGMENTS)
    fill(cell, 10)
    lagging = cell.followers()[0].replica.member_id
    cell.cut_off = {lagging}
    leader = fill(cell)
    assert leader.drops.begin(boundary(leader))
    cell.until(lambda: not leader.drops.is_under_way, "the drop")
    old = cell.nodes[lagging]
    cell.cut_off = set()
    cell.until(lambda: cell.nodes[lagging] is not old, "another node")
    node = cell.nodes[lagging]
    assert node.store.begin == leader.store.begin
    cell.until(lambda: node.durable_committed_index == leader.store.end.index, "the rest")
    assert node.store.end == leader.store.end
    fill(cell, 10)
    cell.close()


def test_what_is_owed_since_the_log_was_installed_outlives_a_drop(tmp_path: Path) -> None:
    cell = Cell(tmp_path, storage=SEGMENTS, consensus=ConsensusConfig(push_limit_bytes=1000))
    fill(cell, 10)
    lagging = cell.followers()[0].replica.member_id
    cell.cut_off = {lagging}
    fill(cell)
    leader = cell.leader()
    start = boundary(leader)
    fill(cell, 120)
    assert leader.drops.begin(start)
    cell.until(lambda: not leader.drops.is_under_way, "the drop")
    owed_index = leader.raft.committed_index

    def lacks_the_rest(sender: str, to: str, message: object) -> bool:
        if to != lagging or not isinstance(message, PushEntryRequest):
            return False
        return message.last_index > owed_index - 20

    cell.drops = lacks_the_rest
    cell.cut_off = set()
    cell.until(lambda: cell.nodes[lagging].store.begin.index == start.point.index, "the start")
    cell.until(lambda: cell.nodes[lagging].durable_committed_index > start.point.index + 40, "a part")
    node = cell.nodes[lagging]
    assert node.durable_committed_index < owed_index
    assert node.drops.begin(boundary(node))
    cell.until(lambda: not node.drops.is_under_way, "the drop of the member that was installed")
    found = load_start(OsDisk(), node.directory.path)
    assert found is not None and found.point.index > start.point.index
    assert found.owed_index == owed_index
    cell.drops = lambda sender, to, message: False
    cell.until(lambda: node.durable_committed_index == owed_index, "the rest")
    cell.close()


def pieces_of(cell: Cell, leader: LedgerNode, start: LogStart, size_bytes: int) -> list[InstallRequest]:
    content = encode_start(start)
    return [
        InstallRequest(
            sender=leader.replica,
            term=leader.raft.term,
            begin=start.point.entry_id,
            committed_index=leader.raft.committed_index,
            file="start",
            offset=offset,
            total_bytes=len(content),
            data=content[offset : offset + size_bytes],
            last=offset + size_bytes >= len(content),
        )
        for offset in range(0, len(content), size_bytes)
    ]


def answers(cell: Cell, node: LedgerNode, *requests: InstallRequest) -> list[tuple[InstallResult, int]]:
    host = cell.hosts[node.replica.member_id]
    seen: list[tuple[InstallResult, int]] = []

    def note(envelope: Envelope) -> None:
        if isinstance(envelope.message, InstallResponse):
            seen.append((envelope.message.result, envelope.message.offset))

    host.on_sent = note
    for request in requests:
        try:
            node.receive(request)
        except LogReplaced as replaced:
            raise AssertionError(f"the log has made way for one behind {replaced.start}") from replaced
    return seen


def lagging_cell(
    path: Path, disks: dict[str, Disk] | None = None, machines: dict[str, MachineFactory] | None = None
) -> tuple[Cell, LedgerNode, LedgerNode, LogStart]:
    """(cell, leader, a follower that is cut off below the start, that start); nothing was dropped."""
    cell = Cell(path, storage=SEGMENTS, disks=disks, machines=machines)
    fill(cell, 10)
    lagging = cell.followers()[0]
    cell.cut_off = {lagging.replica.member_id}
    leader = fill(cell)
    return cell, leader, lagging, boundary(leader)


def test_the_receiver_names_where_to_go_on(tmp_path: Path) -> None:
    cell, leader, lagging, start = lagging_cell(tmp_path)
    first, second, *rest = pieces_of(cell, leader, start, 10)
    more = InstallResult.MORE
    assert answers(cell, lagging, second, first, first) == [(more, 0), (more, 10), (more, 10)]
    other = boundary(leader, -2)
    assert answers(cell, lagging, *pieces_of(cell, leader, other, 10)[:2]) == [(more, 10), (more, 20)]
    assert answers(cell, lagging, second, first, second) == [(more, 0), (more, 10), (more, 20)]
    longer = msgspec.structs.replace(rest[0], total_bytes=rest[0].total_bytes + 1)
    assert answers(cell, lagging, longer) == [(more, 0)], "of another leader's record of the same begin"
    assert answers(cell, lagging, first, second)[-1] == (more, 20)
    *rest, last = rest
    assert answers(cell, lagging, *rest)[-1][0] is more
    stale = msgspec.structs.replace(last, term=leader.raft.term - 1)
    assert answers(cell, lagging, stale) == [], "of an older term"
    old_end = lagging.store.end
    with pytest.raises(LogReplaced):
        lagging.receive(last)
    assert lagging.store.end == old_end, "this node changes nothing any more"
    found = load_start(OsDisk(), lagging.directory.path)
    assert found is not None
    assert (found.point, found.replaces, found.owed_index) == (
        start.point,
        True,
        leader.raft.committed_index,
    )
    cell.close()


def test_a_log_that_reaches_the_start_meanwhile_is_kept() -> None:
    with tempfile.TemporaryDirectory() as path:
        cell, leader, lagging, start = lagging_cell(Path(path))
        *pieces, last = pieces_of(cell, leader, start, 20)
        answers(cell, lagging, *pieces)
        cell.cut_off = set()
        cell.until(lambda: lagging.store.end == leader.store.end, "what was pushed")
        assert answers(cell, lagging, last) == [(InstallResult.HELD, 0)]
        cell.close()


def test_a_log_that_reaches_the_start_while_a_snapshot_comes_is_kept() -> None:
    """All of the start was here before; the snapshot that was named with it comes last."""
    with tempfile.TemporaryDirectory() as path:
        cell, leader, lagging, start = lagging_cell(Path(path), machines={"chain": Chain})
        named = SnapshotId("chain", leader.committed_index, 1_000, bytes(32))
        pieces = pieces_of(cell, leader, start, 20)
        pieces = [msgspec.structs.replace(piece, snapshots=(named,)) for piece in pieces]
        assert answers(cell, lagging, *pieces)[-1][0] is InstallResult.MORE
        cell.cut_off = set()
        cell.until(lambda: lagging.store.end == leader.store.end, "what was pushed")
        fetcher = lagging._fetcher
        want = fetcher._wants["chain"]
        fetcher._here.add(named)
        seen: list[InstallResult] = []
        host = cell.hosts[lagging.replica.member_id]
        host.on_sent = lambda sent: seen.append(sent.message.result)  # type: ignore[union-attr]
        try:
            want.arrived()
        except LogReplaced as replaced:
            raise AssertionError("the log has made way") from replaced
        assert seen == [InstallResult.HELD]
        cell.close()


def test_a_log_that_has_committed_above_the_start_is_kept() -> None:
    """Another entry is said to lie there, which no leader has."""
    with tempfile.TemporaryDirectory() as path:
        cell, leader, lagging, start = lagging_cell(Path(path))
        cell.cut_off = set()
        cell.until(lambda: lagging.committed_index == leader.store.end.index, "all of it")
        other = msgspec.structs.replace(start.point, term=start.point.term - 1)
        requests = pieces_of(cell, leader, LogStart(other, start.record), 1000)
        assert answers(cell, lagging, *requests) == [(InstallResult.DIVERGED_BELOW_COMMIT, 0)]
        assert any("DIVERGED_BELOW_COMMIT" in problem for problem in lagging.problems())
        cell.close()


@pytest.mark.parametrize("spoilt", ["bytes", "boundary", "record", "file"])
def test_what_is_no_start_is_refused_by_name(tmp_path: Path, spoilt: str) -> None:
    cell, leader, lagging, start = lagging_cell(tmp_path)
    if spoilt == "boundary":
        start = LogStart(msgspec.structs.replace(start.point, position=77), start.record)
    elif spoilt == "record":
        start = LogStart(start.point, b"nonsense")
    (request,) = pieces_of(cell, leader, start, 10_000)
    if spoilt == "bytes":
        request = msgspec.structs.replace(request, data=bytes(len(request.data)))
    elif spoilt == "file":
        request = msgspec.structs.replace(request, file="nonsense")
    assert answers(cell, lagging, request) == [(InstallResult.REFUSED, 0)]
    assert any("cannot be taken" in problem for problem in lagging.problems())
    cell.close()


@pytest.mark.parametrize("refused", ["create", "sync_directory"])
def test_without_space_the_log_is_kept_or_the_node_ends(tmp_path: Path, refused: str) -> None:
    """Once the start may be on disk nothing more may be promised of the old log."""
    full = [False]
    renamed = [False]

    def refuse(what: str, path: str) -> OSError | None:
        renamed[0] |= full[0] and what == "rename" and START_NAME in path
        is_it = START_NAME in path if refused == "create" else renamed[0]
        if full[0] and what == refused and is_it:
            return OSError(errno.ENOSPC, "No space left on device", path)
        return None

    disks: dict[str, Disk] = {f"n{i}": StoppingDisk(refuse=refuse) for i in range(3)}
    cell, leader, lagging, start = lagging_cell(tmp_path, disks)
    (request,) = pieces_of(cell, leader, start, 10_000)
    full[0] = True
    if refused == "create":
        assert answers(cell, lagging, request) == [(InstallResult.REFUSED, 0)]
        assert any("no space" in problem for problem in lagging.problems())
        full[0] = False
    with pytest.raises(LogReplaced if refused == "create" else StoreFailure):
        lagging.receive(request)
    cell.close()
