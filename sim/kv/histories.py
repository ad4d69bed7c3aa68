"""What simulated clients saw of keys, watches, leases and locks."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

from quorumlog.errors import LedgerError, OutcomeUnknown, Refused
from quorumlog.kv.errors import KeyValueError
from sim.kv.linearizability import UNKNOWN, TimedOperation

MISSING = (b"", 0)


class Wrote(NamedTuple):
    value: bytes
    expected: int | None
    """Compare-and-set on this modify revision; None: a plain put."""


class Deleted(NamedTuple):
    pass


class Looked(NamedTuple):
    pass


class Register(NamedTuple):
    """A key as clients know it."""

    value: bytes | None = None
    """None: it is not there."""
    revision: int = 0
    """Of its last change."""
    is_told: bool = True
    """False: the change was one of unknown outcome, at a later revision than this."""


ABSENT = Register()


def step(state: Register, operation: object, outcome: object) -> Register | None:
    """A key as a register. Outcomes: of a write its revision, or None if its condition did not hold; of
    a deletion its revision, or 0 if there was nothing; of a look what it found."""
    if isinstance(operation, Looked):
        return _looked(state, outcome)
    rises = isinstance(outcome, int) and outcome > state.revision
    if isinstance(operation, Deleted):
        if outcome == 0:
            return state if state.value is None else None
        if outcome is UNKNOWN:
            return state if state.value is None else Register(None, state.revision)
        assert isinstance(outcome, int), outcome
        return Register(None, outcome) if state.value is not None and rises else None
    assert isinstance(operation, Wrote), operation
    may_hold = operation.expected is None or _may_be_at(state, operation.expected)
    if outcome is UNKNOWN:
        return Register(operation.value, state.revision, is_told=False) if may_hold else state
    if outcome is None:
        return state if not may_hold or not state.is_told else None
    assert isinstance(outcome, int), outcome
    return Register(operation.value, outcome) if may_hold and rises else None


def _looked(state: Register, outcome: object) -> Register | None:
    """Who sees what a write of unknown outcome has written sees its revision, too."""
    assert isinstance(outcome, tuple), outcome
    value, revision = outcome
    if outcome == MISSING or state.value is None:
        return state if outcome == MISSING and state.value is None else None
    if state.is_told:
        return state if (state.value, state.revision) == (value, revision) else None
    return Register(value, revision) if state.value == value and revision > state.revision else None


def _may_be_at(state: Register, expected: int) -> bool:
    if state.value is None:
        return expected == 0
    return expected == state.revision if state.is_told else expected > state.revision


def revision_of(each: TimedOperation) -> int | None:
    """The revision at which it happened, or which it saw; None: it tells none."""
    revision = each.outcome[1] if isinstance(each.outcome, tuple) else each.outcome
    return revision if isinstance(revision, int) and revision > 0 else None


def is_open(error: LedgerError) -> bool:
    """What was asked for may have happened."""
    return isinstance(error, OutcomeUnknown) or not isinstance(error, Refused | KeyValueError)


SeenChange = tuple[int, bytes, int]
"""(revision, key, version); version 0: it was deleted."""


@dataclass
class SeenWatch:
    prefix: bytes
    first_revision: int
    """The first that it was to tell."""
    next_revision: int = 0
    """0: it has not begun."""
    changes: list[SeenChange] = field(default_factory=list)


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
    of_key: dict[bytes, list[TimedOperation]] = field(default_factory=lambda: defaultdict(list))
    watches: list[SeenWatch] = field(default_factory=list)
    leases: list[SeenLease] = field(default_factory=list)
    locks: list[SeenLock] = field(default_factory=list)
    ended_ms: dict[int, float] = field(default_factory=dict)
    """Lease -> when the first member had applied its end."""
