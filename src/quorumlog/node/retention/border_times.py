"""When all that lies in front of a border had been appended: what the first time mark behind it says.

The last one in front of it would do while marks are written all the time. Where they were switched off
for a month and on again, what was written meanwhile would count as a month older than it is. A mark that
comes late makes a segment younger than it is, so nothing is deleted too young.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from quorumlog.entry import EntryKind
from quorumlog.errors import DirectoryDamaged, LedgerError
from quorumlog.log_state.log_state import said_ms
from quorumlog.node.retention.segments_kept import Border
from quorumlog.store.ledger_store import LedgerStore, LogPoint
from quorumlog.store.log_begin import Mark

LOOK_ENTRIES = 65536
"""Of the index, together."""


class KnownBorder(NamedTuple):
    """One whose state is saved."""

    point: LogPoint
    border: Border
    mark: Mark | None
    """The last one in front of it."""


def with_times(
    store: LedgerStore, known: list[KnownBorder], newest: Mark | None
) -> tuple[KnownBorder, ...]:
    """The borders of a log, in order, each with its time once a mark stands behind it. `newest`: the
    last committed one. Reads the index of segments whose time is not known yet. Beside the loop; raises
    StoreFailure."""
    timed, next_mark, time_ms = list(known), newest, None
    for at, each in reversed(list(enumerate(known))):
        first_index = each.border.first_index
        if each.border.time_ms is not None:
            break  # and all in front of it
        if next_mark is not None and next_mark.index >= first_index:
            time_ms = _first_time(store, first_index, next_mark)
        timed[at] = each._replace(border=each.border._replace(time_ms=time_ms))
        next_mark = each.mark
    return tuple(timed)


def _first_time(store: LedgerStore, first_index: int, last: Mark) -> int:
    """What the first mark from `first_index` on says; `last` is one of them."""
    try:
        for first in range(first_index, last.index, LOOK_ENTRIES):
            kinds = store.kinds(first, min(first + LOOK_ENTRIES, last.index))
            for at in np.flatnonzero(np.isin(kinds, (EntryKind.TIME, EntryKind.CLOCK))).tolist():
                for batch in store.control_batches(first + at, first + at + 1):
                    time_ms = said_ms(batch.first_header.magic, batch.body(0))
                    if time_ms is not None:
                        return time_ms
    except (LedgerError, DirectoryDamaged):
        pass  # damage: a later mark says no less
    return last.time_ms
