"""Snapshots that this member lacks, piece by piece from others."""

from __future__ import annotations

import errno
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from quorumlog.config import ConsensusConfig
from quorumlog.consensus.messages import SnapshotResponse
from quorumlog.entry import Replica, SnapshotId
from quorumlog.node.housekeeping import Housekeeping
from quorumlog.node.installing import SnapshotFetcher
from quorumlog.store.snapshots import SnapshotFiles, SnapshotHead
from tests.store.losing_disk import LosingDisk

OWN, SOURCE = Replica("n0", "0" * 32), Replica("n1", "1" * 32)
WANTED = SnapshotId("m", 9, 1000, b"x" * 32)
_NO_SPACE = OSError(errno.ENOSPC, "No space left on device")
Works = list[tuple[Callable[[], object], Callable[[object], None]]]


def host_of(works: Works, sent: list[Any], too_old: tuple[str, ...] = ()) -> Any:
    return SimpleNamespace(
        send=lambda envelope: sent.append(envelope) is None,
        apply_later=lambda *work: works.append(work),
        members_below=lambda level: list(too_old),
    )


def fetcher_of(raft: Any, files: SnapshotFiles, host: Any) -> SnapshotFetcher:
    member: Any = SimpleNamespace(
        replica=OWN,
        raft=raft,
        host=host,
        directory=SimpleNamespace(snapshots=files),
        housekeeping=Housekeeping(),
        config=SimpleNamespace(consensus=ConsensusConfig(push_resend_ms=100)),
    )
    return SnapshotFetcher(member)


def test_an_answer_that_comes_twice_ends_nothing_that_is_being_written() -> None:
    """The source had it when the question came, and no longer when its repetition came."""
    disk = LosingDisk()
    disk.make_directory("d")
    works: Works = []
    sent: list[Any] = []
    host = host_of(works, sent)
    raft: Any = SimpleNamespace(leader=SOURCE, term=1)
    fetcher = fetcher_of(raft, SnapshotFiles(disk, "d"), host)

    def answer(found: SnapshotId | None, data: bytes = b"") -> None:
        response = SnapshotResponse(sender=SOURCE, term=1, name="m", found=found, offset=0, data=data)
        fetcher.on_response(response)

    def work() -> None:
        step, done = works.pop()
        done(step())

    fetcher.connected(SOURCE)
    fetcher.want("m", 5, lambda: None)
    fetcher.tick(0)
    answer(WANTED)
    fetcher.tick(1)
    work()
    fetcher.tick(2)
    answer(WANTED, b"a" * 500)
    answer(None)
    work()
    fetcher.tick(3)
    assert sent[-1].message.offset == 500
    answer(None)
    fetcher.tick(5_000)
    assert sent[-1].message.wanted is None, "another one will do"


def test_a_snapshot_that_cannot_be_opened_just_now_is_not_deleted() -> None:
    disk = LosingDisk()
    disk.make_directory("d")
    files = SnapshotFiles(disk, "d")
    writer = files.create(SnapshotHead("m", 1, (9, 1, 5)))
    writer.write(bytes(2_000))
    writer.finish()
    reader = files.open("m", 9)
    reader.finish()
    reader.close()
    works: Works = []
    host = host_of(works, [])
    fetcher = fetcher_of(SimpleNamespace(leader=SOURCE, term=1), files, host)
    arrived: list[bool] = []

    def work(now_ms: float) -> None:
        fetcher.tick(now_ms)
        step, done = works.pop()
        done(step())

    fetcher.want_all(SOURCE, (reader.id,), lambda: arrived.append(True))
    work(0)
    with patch.object(disk, "open", side_effect=OSError(errno.EMFILE, "too many open files")):
        work(1)
    assert "too many open files" in fetcher.problems()[0]
    for now_ms in (2_000, 2_001, 2_002):
        if not arrived:
            work(now_ms)
    assert arrived


def test_a_disk_without_space_costs_nothing_of_what_has_come() -> None:
    disk = LosingDisk()
    disk.make_directory("d")
    works: Works = []
    sent: list[Any] = []
    raft: Any = SimpleNamespace(leader=SOURCE, term=1)
    fetcher = fetcher_of(raft, SnapshotFiles(disk, "d"), host_of(works, sent))

    def answer(offset: int, data: bytes) -> None:
        fetcher.on_response(
            SnapshotResponse(sender=SOURCE, term=1, name="m", found=WANTED, offset=offset, data=data)
        )

    def work() -> None:
        step, done = works.pop()
        done(step())

    fetcher.connected(SOURCE)
    fetcher.want_all(SOURCE, (WANTED,), lambda: None)
    fetcher.tick(0)
    work()
    fetcher.tick(1)
    answer(0, b"a" * 500)
    work()
    with patch.object(type(disk.open("d/x", create=True)), "pwritev", side_effect=_NO_SPACE):
        fetcher.tick(2)
        answer(500, b"b" * 300)
        work()
    assert "No space" in fetcher.problems()[0]
    fetcher.tick(5_000)
    work()
    fetcher.tick(5_001)
    assert sent[-1].message.offset == 500


def test_a_member_of_a_release_without_machines_is_asked_for_no_snapshot() -> None:
    """It would take the question for nonsense, and close the connection."""
    works: Works = []
    sent: list[Any] = []
    raft: Any = SimpleNamespace(leader=None, term=1)
    disk = LosingDisk()
    disk.make_directory("d")
    host = host_of(works, sent, ("n1",))
    fetcher = fetcher_of(raft, SnapshotFiles(disk, "d"), host)
    fetcher.connected(SOURCE)
    fetcher.want("m", 5, lambda: None)
    fetcher.tick(0)
    assert not sent
    fetcher.connected(Replica("n2", "2" * 32))
    fetcher.tick(5_000)
    assert [envelope.to.member_id for envelope in sent] == ["n2"]
