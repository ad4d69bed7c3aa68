"""Runs of equal terms in a log of any length, by binary search: a start must not read the log."""

from __future__ import annotations

from collections.abc import Callable

TermOf = Callable[[int, bool], int]
"""(index, compare_with_data) -> term. True asks that the index unit is compared with the entry."""


def search_term_runs(first_index: int, last_index: int, term_of: TermOf) -> tuple[tuple[int, int], ...]:
    """((first_index, term), ...) of entries `first_index` .. `last_index`; terms never fall.

    Both sides of every edge, and both ends of the log, are compared with the data: a wrong unit would
    move an edge, and the core decides elections by edges.
    """
    if last_index < first_index:
        return ()
    runs: list[tuple[int, int]] = []
    last_term = term_of(last_index, True)
    start = first_index
    while True:
        term = term_of(start, True)
        assert not runs or term > runs[-1][1], (start, term, runs[-1])
        assert term <= last_term, (start, term, last_term)
        runs.append((start, term))
        if term == last_term:
            return tuple(runs)
        inside, step = start, 1
        while inside + step < last_index and term_of(inside + step, False) == term:
            inside += step
            step *= 2
        outside = min(inside + step, last_index)
        while outside - inside > 1:
            middle = (inside + outside) // 2
            if term_of(middle, False) == term:
                inside = middle
            else:
                outside = middle
        term_of(inside, True)
        start = outside
