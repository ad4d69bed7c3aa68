"""Tests wait for conditions, never for durations."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

from quorumlog import LedgerClient, MemberStatusRow
from quorumlog.errors import LeaderNotReady
from quorumlog.log_state.control_entries import ControlBody
from quorumlog.server.node_driver import NodeDriver
from quorumlog.store.directory_reader import DirectoryReader
from quorumlog.store.disk import OsDisk
from quorumlog.store.verification import compare_directories, verify_directory

T = TypeVar("T")


def eventually(condition: Callable[[], T], *, timeout_s: float = 60.0, what: str = "") -> T:
    """The first true value of `condition`; asked again and again until the time-out."""
    deadline = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what or condition}"
        time.sleep(0.01)


def propose(driver: NodeDriver, body: ControlBody) -> None:
    """Have this leader write the entry, once it may hold such."""

    def is_proposed() -> bool:
        answer = Future[bool]()

        def act() -> None:
            try:
                driver.node.propose_control(body)
            except LeaderNotReady:
                answer.set_result(False)
            else:
                answer.set_result(True)

        driver._loop.call_soon_threadsafe(driver.enter, None, act)
        return answer.result(timeout=60)

    eventually(is_proposed, what=f"{body} is proposed")


def row_of(log: LedgerClient, member_id: str) -> MemberStatusRow:
    """What the member says of itself, once it answers."""

    def row() -> MemberStatusRow | None:
        (found,) = (row for row in log.status() if row.id == member_id)
        return found if found.reachable else None

    return eventually(row, what=f"an answer of {member_id}")


def wait_until_identical(log: LedgerClient) -> int:
    """All members answer and have the same end, and everything up to it is known as committed and has
    their promise: it is on disk, unless `flush = async`. Returns that end."""

    def same_end() -> list[int]:
        rows = log.status()
        points = ("ledger_end_index", "durable_index", "committed_index")
        ends = {getattr(row, point) for row in rows for point in points}
        return list(ends) if len(ends) == 1 and all(row.reachable for row in rows) else []

    return eventually(same_end, what="all members at the same committed end")[0]


def assert_same_log(paths: Iterable[str | Path], *, end: int) -> None:
    """Directories of members that are stopped are sound, differ nowhere and hold what was committed up
    to `end`. Some may hold more: a term that began, or a voter that was let in, while others stopped.
    """
    paths = [str(path) for path in paths]
    for path in paths:
        verification = verify_directory(OsDisk(), path)
        assert verification.ok, verification
    comparison = compare_directories([DirectoryReader(OsDisk(), path) for path in paths])
    assert comparison.first_difference is None, comparison
    assert min(comparison.end_indices) >= end, comparison
