"""The log as the core knows it: terms, durable and damaged ranges; no bytes."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence

import msgspec

from quorumlog.consensus.membership import Membership
from quorumlog.consensus.ready import AppendOrder
from quorumlog.entry import EntryId, Replica

# ---------------------------------------------------------------- TermRuns
# Which term wrote which indices. All that the core knows of a log.
#
# Terms never fall along a log, so a log of ten million entries and forty elections is forty pairs here.


class TermRuns:
    """The ids of the entries after `before_begin` up to `end_index`.

    The entry `before_begin`, (-1, -1) in a log that begins at 0, is compared like any other.
    """

    def __init__(self, before_begin: EntryId, runs: Sequence[tuple[int, int]], end_index: int) -> None:
        """`runs`: ((first_index, term), ...) in order, covering everything up to `end_index`."""
        self.before_begin = before_begin
        self.end_index = before_begin.index
        self._firsts: list[int] = []
        self._terms: list[int] = []
        stops = [first for first, _ in runs[1:]] + [end_index + 1]
        for (first, term), stop in zip(runs, stops, strict=bool(runs)):
            self.append(first, stop - first, term)
        assert self.end_index == end_index, (runs, end_index)

    @property
    def end(self) -> EntryId:
        """Id of the last entry; `before_begin` if none is held."""
        if self._terms:
            return EntryId(self.end_index, self._terms[-1])
        return self.before_begin

    @property
    def end_term(self) -> int:
        return self._terms[-1] if self._terms else self.before_begin.term

    def term_at(self, index: int) -> int:
        assert self.before_begin.index <= index <= self.end_index, (index, self.end_index)
        firsts = self._firsts
        if firsts and index >= firsts[-1]:
            return self._terms[-1]
        if index == self.before_begin.index:
            return self.before_begin.term
        return self._terms[bisect_right(firsts, index) - 1]

    def id_at(self, index: int) -> EntryId:
        return EntryId(index, self.term_at(index))

    def holds(self, entry: EntryId) -> bool:
        return (
            self.before_begin.index <= entry.index <= self.end_index
            and self.term_at(entry.index) == entry.term
        )

    def first_index_of_run_at(self, index: int) -> int:
        """First index held here of the term that wrote `index`."""
        assert self.before_begin.index <= index <= self.end_index, (index, self.end_index)
        if index == self.before_begin.index:
            return index
        return self._firsts[bisect_right(self._firsts, index) - 1]

    def last_index_of(self, term: int) -> int | None:
        """Last index of `term`, or None if no entry of it is held."""
        run = bisect_left(self._terms, term)
        if run < len(self._terms) and self._terms[run] == term:
            return self._firsts[run + 1] - 1 if run + 1 < len(self._firsts) else self.end_index
        return self.before_begin.index if term == self.before_begin.term else None

    def runs(self, first_index: int, stop_index: int) -> tuple[tuple[int, int], ...]:
        """((first_index, term), ...) of the entries from `first_index` to below `stop_index`."""
        assert self.before_begin.index < first_index <= stop_index <= self.end_index + 1
        if first_index == stop_index:
            return ()
        low = bisect_right(self._firsts, first_index) - 1
        high = bisect_left(self._firsts, stop_index)
        firsts = [first_index, *self._firsts[low + 1 : high]]
        return tuple(zip(firsts, self._terms[low:high], strict=True))

    def first_difference(
        self, first_index: int, stop_index: int, runs: Sequence[tuple[int, int]]
    ) -> int | None:
        """The first index in the range that `runs` gives another term than this log does; None if there
        is none among the entries held here."""
        stop_index = min(stop_index, self.end_index + 1)
        if first_index >= stop_index or (len(runs) == 1 and first_index >= self._firsts[-1]):
            # The usual case, one run against the newest run, without building anything.
            if first_index < stop_index and runs[0][1] != self._terms[-1]:
                return first_index
            return None
        theirs = [first for first, _ in runs]
        edges = [first_index]
        edges += [first for first in theirs if first_index < first < stop_index]
        edges += [first for first, _ in self.runs(first_index, stop_index)[1:]]
        for edge in sorted(edges):
            # Both sides are constant from edge to edge, so a difference begins at one.
            if runs[bisect_right(theirs, edge) - 1][1] != self.term_at(edge):
                return edge
        return None

    def append(self, first_index: int, count: int, term: int) -> None:
        assert count > 0, count
        assert first_index == self.end_index + 1, (first_index, self.end_index)
        assert term >= self.end_term, (term, self.end_term)
        if not self._terms or self._terms[-1] != term:
            self._firsts.append(first_index)
            self._terms.append(term)
        self.end_index += count

    def drop_before(self, begin: EntryId) -> None:
        """The log begins after this entry from now on."""
        assert self.holds(begin), (begin, self.before_begin, self.end_index)
        first_index = begin.index + 1
        if begin.index == self.end_index:
            self._firsts.clear()
            self._terms.clear()
        else:
            dropped = bisect_right(self._firsts, first_index) - 1
            del self._firsts[:dropped]
            del self._terms[:dropped]
            self._firsts[0] = first_index
        self.before_begin = begin

    def truncate_from(self, index: int) -> None:
        assert self.before_begin.index < index <= self.end_index, (index, self.end_index)
        keep = bisect_left(self._firsts, index)
        del self._firsts[keep:]
        del self._terms[keep:]
        self.end_index = index - 1


# ---------------------------------------------------------------- MembershipHistory
# Which membership holds from which entry on. It stands beside the term runs.
#
# A membership holds from the moment its entry is appended, committed or not, and no more once that is
# cut.


class MembershipHistory:
    def __init__(self) -> None:
        self._held: list[tuple[int, Membership]] = [(-1, Membership())]
        """(index of the entry, membership), ascending; the first is what the log begins with."""
        self.founding: tuple[Replica, ...] = ()
        self.newest = Membership()
        """The one at the log's end: it holds."""
        self.newest_index = -1
        """Of its entry; -1: the founding list."""
        self.changes = 0
        """So many times it has become another one."""

    @property
    def held(self) -> tuple[tuple[int, Membership], ...]:
        """(index of its entry, membership) of all that are known, ascending."""
        return tuple(self._held)

    def found(self, founding: tuple[Replica, ...]) -> None:
        """The group has formed."""
        self.founding = founding
        self.take([(-1, Membership.of(founding))])

    def take(self, held: Sequence[tuple[int, Membership]]) -> None:
        """Replaces the memberships by those just read from the log."""
        assert held and [index for index, _ in held] == sorted({index for index, _ in held}), held
        self._held = list(held)
        self._note()

    def append(self, index: int, membership: Membership) -> None:
        assert index > self.newest_index, (index, self._held[-1])
        self._held.append((index, membership))
        self._note()

    def truncate_from(self, index: int) -> None:
        """Drop memberships from `index` on. If that drops the oldest known one, a committed entry was
        cut, and a member that knows the log's state reports the memberships anew."""
        before = len(self._held)
        while len(self._held) > 1 and self._held[-1][0] >= index:
            self._held.pop()
        if len(self._held) != before:
            self._note()

    def holding_at(self, index: int) -> tuple[int, Membership]:
        """The one that an entry at `index` is under, and the index of its own entry."""
        held = [each for each in self._held if each[0] <= index]
        return held[-1] if held else self._held[0]

    def behind(self, index: int) -> tuple[Membership, ...]:
        """The memberships whose entries lie after `index`."""
        return tuple(membership for at, membership in self._held if at > index)

    def _note(self) -> None:
        self.newest_index, self.newest = self._held[-1]
        self.changes += 1


# ---------------------------------------------------------------- DamagedIndices
# Which entries of its log a member cannot show, and what it may not say meanwhile.
#
# The terms of these entries are known, so the member compares and votes as if whole. It must not
# *acknowledge* them, because they are not on its disk. Where the group has committed them without it,
# its word is not needed and nothing is withheld.


class DamagedIndices:
    """Disjoint ranges (first_index, stop_index), in order; few."""

    def __init__(self, ranges: Sequence[tuple[int, int]] = ()) -> None:
        self.ranges = sorted(ranges)

    def __bool__(self) -> bool:
        return bool(self.ranges)

    def add(self, first_index: int, stop_index: int) -> None:
        """Merges with overlapping ranges."""
        assert first_index < stop_index, (first_index, stop_index)
        apart = []
        for first, stop in self.ranges:
            if first < stop_index and first_index < stop:
                first_index, stop_index = min(first, first_index), max(stop, stop_index)
            else:
                apart.append((first, stop))
        self.ranges = sorted([*apart, (first_index, stop_index)])

    def replace(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Set all damaged ranges: those left in the store after a repair, cuts included."""
        self.ranges = sorted(ranges)

    def truncate_from(self, index: int) -> None:
        self.ranges = [(first, min(stop, index)) for first, stop in self.ranges if first < index]

    def drop_before(self, index: int) -> None:
        """`index`: of the first entry that stays."""
        self.ranges = [(max(first, index), stop) for first, stop in self.ranges if stop > index]

    def first_unproven(self, committed_index: int) -> int | None:
        """The lowest index that is damaged and not known to be committed."""
        for first, stop in self.ranges:
            if stop - 1 > committed_index:
                return max(first, committed_index + 1)
        return None

    def holds(self, index: int) -> bool:
        return any(first <= index < stop for first, stop in self.ranges)


# ---------------------------------------------------------------- LogChanges
# What the log becomes with the next Ready, and how much of it is on disk.
#
# Three ends are kept apart:
#
#     durable_index  <=  what every Ready up to `on_durable(n)` has written, and no later cut took back
#     written        ==  the end that the Readys given out so far produce
#     runs.end       ==  `written` with the changes that the next Ready will carry
#
# Appends that a cut overtakes before they were given out are never given out.


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
        self.changed = False
        """`take` has something to give out."""

    def append(self, order: AppendOrder, runs: tuple[tuple[int, int], ...]) -> None:
        """`runs`: the terms of the order's entries, ((first_index, term), ...)."""
        stop = order.first_index + order.count
        for number, (first, term) in enumerate(runs, 1):
            run_stop = runs[number][0] if number < len(runs) else stop
            self.runs.append(first, run_stop - first, term)
        assert self.runs.end_index == stop - 1, (self.runs.end_index, order)
        self._appends.append(order)
        self.changed = True

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
        self.changed = bool(self._appends) or self._truncate_from is not None
        self.durable_index = min(self.durable_index, index - 1)
        self._ends = deque((number, min(end, index - 1)) for number, end in self._ends)

    def drop_before(self, begin: EntryId) -> None:
        """Only entries on this member's disk are dropped."""
        assert begin.index <= self.durable_index, (begin, self.durable_index)
        self.runs.drop_before(begin)
        self.damaged.drop_before(begin.index + 1)

    def take(self, ready_number: int) -> tuple[int | None, bool, tuple[AppendOrder, ...]]:
        """(truncate_from, loses_committed, appends) for the Ready of this number."""
        if not self.changed:
            return None, False, ()
        taken = (self._truncate_from, self._loses_committed, tuple(self._appends))
        self._truncate_from = None
        self._loses_committed = self.changed = False
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
