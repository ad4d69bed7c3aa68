"""LogChanges: what the log becomes with the next Ready, and how much of it is on disk.

Three ends are kept apart:

    durable_index  <=  what every Ready up to `on_durable(n)` has written, and no later cut took back
    written        ==  the end that the Readys given out so far produce
    runs.end       ==  `written` with the changes that the next Ready will carry

Appends that a cut overtakes before they were given out are never given out.
"""

from __future__ import annotations

from collections import deque

import msgspec

from quorumlog.consensus.log.damaged_indices import DamagedIndices
from quorumlog.consensus.log.membership_history import MembershipHistory
from quorumlog.consensus.log.term_runs import TermRuns
from quorumlog.consensus.ready import AppendOrder
from quorumlog.entry import EntryId


class LogChanges:
    """The only writer of the member's `TermRuns`."""

    def __init__(self, runs: TermRuns, damaged: DamagedIndices | None = None) -> None:
        self.runs = runs
        self.memberships = MembershipHistory()
        self.damaged = DamagedIndices() if damaged is None else damaged
        """Entries at or below `durable_index` whose bytes this member's disk no longer holds."""
        self.durable_index = runs.end_index
        """Everything up to here survives a power loss of this member."""
        self._written = runs.end_index
        self._ends: deque[tuple[int, int]] = deque()
        """(number, end index) of each Ready that changed the log and is not durable yet, the end
        lowered by every later cut: a sync that ends after a cut was issued vouches only up to it."""
        self._appends: list[AppendOrder] = []
        self._truncate_from: int | None = None
        self._loses_committed = False

    @property
    def changed(self) -> bool:
        return bool(self._appends) or self._truncate_from is not None

    def append(self, order: AppendOrder, runs: tuple[tuple[int, int], ...]) -> None:
        """`runs`: the terms of the order's entries, ((first_index, term), ...)."""
        stop = order.first_index + order.count
        for number, (first, term) in enumerate(runs, 1):
            run_stop = runs[number][0] if number < len(runs) else stop
            self.runs.append(first, run_stop - first, term)
        assert self.runs.end_index == stop - 1, (self.runs.end_index, order)
        self._appends.append(order)

    def truncate_from(self, index: int, *, loses_committed: bool = False) -> None:
        self.runs.truncate_from(index)
        self.memberships.truncate_from(index)
        self.damaged.truncate_from(index)
        while self._appends and self._appends[-1].first_index >= index:
            self._appends.pop()
        if self._appends:
            last = self._appends[-1]
            if last.first_index + last.count > index:
                kept = msgspec.structs.replace(last, count=index - last.first_index)
                self._appends[-1] = kept
        if index <= self._written:
            self._written = index - 1
            self._truncate_from = index
            self._loses_committed |= loses_committed
        self.durable_index = min(self.durable_index, index - 1)
        self._ends = deque((number, min(end, index - 1)) for number, end in self._ends)

    def drop_before(self, begin: EntryId) -> None:
        """Of entries that are on disk here."""
        assert begin.index <= self.durable_index, (begin, self.durable_index)
        self.runs.drop_before(begin)
        self.damaged.drop_before(begin.index + 1)

    def take(self, ready_number: int) -> tuple[int | None, bool, tuple[AppendOrder, ...]]:
        """(truncate_from, loses_committed, appends) for the Ready of this number."""
        if not self.changed:
            return None, False, ()
        taken = (self._truncate_from, self._loses_committed, tuple(self._appends))
        self._truncate_from = None
        self._loses_committed = False
        self._appends.clear()
        self._written = self.runs.end_index
        self._ends.append((ready_number, self._written))
        return taken

    def on_durable(self, ready_number: int) -> bool:
        """True if `durable_index` moved."""
        before = self.durable_index
        while self._ends and self._ends[0][0] <= ready_number:
            durable_index = self._ends.popleft()[1]
            assert durable_index >= self.durable_index, (durable_index, self.durable_index)
            self.durable_index = durable_index
        assert self.durable_index <= self.runs.end_index, (self.durable_index, self.runs.end_index)
        return self.durable_index != before
