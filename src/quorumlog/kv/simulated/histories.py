"""What simulated clients saw of keys, watches, leases and locks."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

from quorumlog.kv.simulated.linearizability import UNKNOWN, Happened

MISSING = (b"", 0)


class Wrote(NamedTuple):
    value: bytes
    expected: int | None
    """Compare-and-set on this modify revision; None: a plain put."""


class Deleted(NamedTuple):
    pass


class Looked(NamedTuple):
    pass


Register = tuple[bytes, int]
"""(value, modify revision); `MISSING`: the key is not there."""


def step(state: Register, asked: object, outcome: object) -> Register | None:
    """A key as a register. Outcomes: of a write its revision, or None if its condition did not hold; of
    a deletion its revision, or 0 if there was nothing; of a look what it found."""
    if isinstance(asked, Looked):
        return state if outcome == state else None
    if isinstance(asked, Deleted):
        if outcome is UNKNOWN:
            return MISSING
        if outcome == 0:
            return state if state == MISSING else None
        return MISSING if state != MISSING and isinstance(outcome, int) and outcome > state[1] else None
    assert isinstance(asked, Wrote), asked
    if outcome is UNKNOWN:
        # At which revision nobody was told: whoever reads it is.
        return (asked.value, -1) if asked.expected in (None, state[1], -1) else state
    holds = asked.expected is None or asked.expected == state[1] or state[1] == -1
    if outcome is None:
        return state if not holds or state[1] == -1 else None
    assert isinstance(outcome, int)
    return (asked.value, outcome) if holds and outcome > state[1] else None


def values_only(state: Register, asked: object, outcome: object) -> Register | None:
    """As `step`, where a write of unknown outcome has a revision that only its readers know."""
    if isinstance(asked, Looked) and state[1] == -1:
        return (state[0], outcome[1]) if isinstance(outcome, tuple) and outcome[0] == state[0] else None
    return step(state, asked, outcome)


@dataclass
class SeenWatch:
    prefix: bytes
    first_revision: int
    """The first that it was to tell."""
    next_revision: int = 0
    changes: list[tuple[int, bytes, int]] = field(default_factory=list)
    """(revision, key, version)."""


@dataclass
class SeenLease:
    lease: int
    ttl_ms: int
    sent_ms: list[float]
    """When its grant and each keep-alive that was answered were sent."""
    revoked_by_client: bool = False


@dataclass
class SeenLock:
    name: bytes
    token: int
    from_ms: float
    until_ms: float
    """Its holder believed to hold it from then to then."""


@dataclass
class Histories:
    of_key: dict[bytes, list[Happened]] = field(default_factory=lambda: defaultdict(list))
    watches: list[SeenWatch] = field(default_factory=list)
    leases: list[SeenLease] = field(default_factory=list)
    locks: list[SeenLock] = field(default_factory=list)
    ended_ms: dict[int, float] = field(default_factory=dict)
    """Lease -> when the first member had applied its end."""
