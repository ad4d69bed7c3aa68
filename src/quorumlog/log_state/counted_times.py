"""At which time an entry counts as appended: one function, for all who ask.

A time mark holds for the entries behind it, up to the next. Marks rise within a run, which a reset of
the log's clock ends; the next run may begin at an earlier time. An entry counts as appended at the
lesser of its mark and of each later reset: too young where clocks were ahead, and never too old. So
times never fall from one entry to the next.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from quorumlog.entry import EntryKind
from quorumlog.log_state.control_entries import (
    MOST_RUNS,
    ClockReset,
    Index,
    TimeMark,
    TimeMs,
    decode_body,
)


class Reset(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Of the log's clock: a run of time marks ends in front of this entry, another begins with it."""

    index: Index
    """Of the CLOCK entry."""
    time_ms: TimeMs
    """At which the run that begins here begins."""


Resets = tuple[Reset, ...]
"""By index; the newest `MOST_RUNS`."""


def with_reset(resets: Resets, reset: Reset) -> Resets:
    return (*resets, reset)[-MOST_RUNS:]


def counted_ms(index: int, mark_ms: int, resets: Sequence[Reset]) -> int:
    """When the entry at `index` counts as appended, in milliseconds since 1970. `mark_ms`: what the last
    mark or reset at or in front of it says, or of a border the first one behind it; -1: there is none,
    and no time. `resets`: of the whole log, as far as it is known.

    In front of the oldest of `MOST_RUNS` resets marks do not rise, for others may have been among them
    that are forgotten: all of it counts as young as that reset."""
    later = [reset.time_ms for reset in resets if reset.index > index]
    if mark_ms < 0 or not later:
        return mark_ms
    return min(later) if len(later) >= MOST_RUNS else min(mark_ms, *later)


def said_ms(kind: int, body: bytes | memoryview) -> int | None:
    """The time that a control entry says; None: it says none, or one that cannot be read."""
    if kind not in (EntryKind.TIME, EntryKind.CLOCK):
        return None
    said = decode_body(EntryKind(kind), body)
    return said.time_ms if isinstance(said, TimeMark | ClockReset) else None
