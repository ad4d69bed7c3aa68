"""The checker itself: histories that are known to be good or bad."""

from __future__ import annotations

import pytest

from sim.kv.histories import ABSENT, Deleted, Looked, Wrote, revision_of, step
from sim.kv.linearizability import UNKNOWN, TimedOperation, is_linearizable

NEVER = float("inf")


def wrote(called: float, returned: float, value: bytes, revision: object) -> TimedOperation:
    return TimedOperation(called, returned, Wrote(value, None), revision)


def looked(called: float, returned: float, value: bytes, revision: int) -> TimedOperation:
    return TimedOperation(called, returned, Looked(), (value, revision))


GOOD = {
    "nothing": [],
    "one after the other": [wrote(0, 1, b"a", 1), looked(2, 3, b"a", 1)],
    "a read beside a write sees either": [
        wrote(0, 10, b"a", 1),
        looked(1, 2, b"", 0),
        looked(3, 4, b"a", 1),
    ],
    "two writes beside each other": [
        wrote(0, 9, b"b", 2),
        wrote(1, 8, b"a", 1),
        looked(10, 11, b"b", 2),
    ],
    "an unknown write appears late": [
        wrote(0, NEVER, b"a", UNKNOWN),
        looked(5, 6, b"", 0),
        looked(7, 8, b"a", 3),
    ],
    "an unknown write never appears": [wrote(0, NEVER, b"a", UNKNOWN), looked(5, 6, b"", 0)],
    "a deletion": [
        wrote(0, 1, b"a", 1),
        TimedOperation(2, 3, Deleted(), 2),
        looked(4, 5, b"", 0),
        TimedOperation(6, 7, Deleted(), 0),
    ],
    "a condition that holds once": [
        TimedOperation(0, 5, Wrote(b"a", 0), 1),
        TimedOperation(0, 5, Wrote(b"b", 0), None),
        looked(6, 7, b"a", 1),
    ],
}
BAD = {
    "a stale read": [wrote(0, 1, b"a", 1), wrote(2, 3, b"b", 2), looked(4, 5, b"a", 1)],
    "a lost write": [wrote(0, 1, b"a", 1), looked(2, 3, b"", 0)],
    "a read of what nobody wrote": [wrote(0, 1, b"a", 1), looked(2, 3, b"c", 1)],
    "two readers see two orders": [
        wrote(0, 20, b"a", 1),
        looked(1, 2, b"a", 1),
        looked(3, 4, b"", 0),
    ],
    "a revision that falls": [wrote(0, 1, b"a", 5), wrote(2, 3, b"b", 4)],
    "a condition that holds twice": [
        TimedOperation(0, 5, Wrote(b"a", 0), 1),
        TimedOperation(0, 5, Wrote(b"b", 0), 2),
    ],
    "an unknown write appears and goes": [
        wrote(0, NEVER, b"a", UNKNOWN),
        looked(1, 2, b"a", 3),
        looked(3, 4, b"", 0),
    ],
    "revisions that fall behind a deletion": [
        wrote(0, 1, b"a", 5),
        TimedOperation(2, 3, Deleted(), 6),
        wrote(4, 5, b"b", 4),
    ],
    "one unknown deletion for two": [
        TimedOperation(0, NEVER, Deleted(), UNKNOWN),
        wrote(1, 2, b"a", 1),
        looked(3, 4, b"", 0),
        wrote(5, 6, b"b", 3),
        looked(7, 8, b"", 0),
    ],
    "a read before its write was called": [looked(0, 1, b"a", 1), wrote(2, 3, b"a", 1)],
}


@pytest.mark.parametrize("name", GOOD)
def test_what_may_have_happened_is_accepted(name: str) -> None:
    assert is_linearizable(GOOD[name], ABSENT, step)
    assert is_linearizable(GOOD[name], ABSENT, step, rank=revision_of)


@pytest.mark.parametrize("name", BAD)
def test_what_cannot_have_happened_is_refused(name: str) -> None:
    assert not is_linearizable(BAD[name], ABSENT, step)
    assert not is_linearizable(BAD[name], ABSENT, step, rank=revision_of)


def test_many_operations_beside_each_other_are_searched_in_time() -> None:
    history = [wrote(0, 1000, b"%d" % number, number) for number in range(1, 13)]
    assert is_linearizable([*history, looked(1001, 1002, b"12", 12)], ABSENT, step)
    assert not is_linearizable([*history, looked(1001, 1002, b"3", 3)], ABSENT, step)


def test_what_has_no_outcome_does_not_make_the_search_long() -> None:
    """Sixty writes and sixty deletions that may have happened at any time, or never."""
    lost = [
        TimedOperation(number, NEVER, asked, UNKNOWN)
        for number in range(60)
        for asked in (Wrote(b"nobody saw it", None), Deleted())
    ]
    history = [
        wrote(100 + 2 * number, 101 + 2 * number, b"%d" % number, number + 1) for number in range(99)
    ]
    gone = [*history, looked(400, 401, b"", 0), TimedOperation(402, 403, Deleted(), 200)]
    assert is_linearizable([*lost, *gone], ABSENT, step, 1_000)
    assert is_linearizable(gone, ABSENT, step, 1_000) is False
    stale = [*history, looked(400, 401, b"3", 4)]
    assert is_linearizable([*lost, *stale], ABSENT, step, 100_000) is False
