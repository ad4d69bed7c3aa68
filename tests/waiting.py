"""Tests wait for conditions, never for durations."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from quorumlog import LedgerClient, MemberStatusRow

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


def row_of(log: LedgerClient, member_id: str) -> MemberStatusRow:
    """What the member says of itself, once it answers."""

    def row() -> MemberStatusRow | None:
        (found,) = (row for row in log.status() if row.id == member_id)
        return found if found.reachable else None

    return eventually(row, what=f"an answer of {member_id}")


def wait_until_identical(log: LedgerClient) -> None:
    """All members answer and have the same end, and everything up to it is known as committed and has
    their promise: it is on disk, unless `flush = async`."""

    def have_same_end() -> bool:
        rows = log.status()
        points = ("ledger_end_index", "durable_index", "committed_index")
        ends = {getattr(row, point) for row in rows for point in points}
        return len(ends) == 1 and all(row.reachable for row in rows)

    eventually(have_same_end, what="all members at the same committed end")
