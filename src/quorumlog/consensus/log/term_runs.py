"""TermRuns: which term wrote which indices. All that the core knows of a log.

Terms never fall along a log, so a log of ten million entries and forty elections is forty pairs here.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from quorumlog.entry import EntryId


class TermRuns:
    """The ids of the entries behind `before_begin` up to `end_index`.

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
        """The log begins behind this entry from now on."""
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
