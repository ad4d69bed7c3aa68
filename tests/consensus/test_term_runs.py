"""TermRuns against a twin: the plain list of the term of every entry."""

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from quorumlog.consensus.log import TermRuns
from quorumlog.entry import NO_ENTRY, EntryId


def runs_of(terms: list[int], first_index: int = 0) -> tuple[tuple[int, int], ...]:
    return tuple(
        (first_index + k, term) for k, term in enumerate(terms) if k == 0 or terms[k - 1] != term
    )


term_lists = st.lists(st.integers(0, 5), max_size=30).map(sorted)


class TermRunsMachine(RuleBasedStateMachine):
    @initialize(terms=term_lists, before=st.sampled_from([NO_ENTRY, EntryId(41, 0)]))
    def begin(self, terms: list[int], before: EntryId) -> None:
        self.first = before.index + 1
        self.before = before
        self.terms = terms
        end_index = before.index + len(terms)
        self.runs = TermRuns(before, runs_of(terms, self.first), end_index)

    @rule(count=st.integers(1, 5), rise=st.integers(0, 2))
    def append(self, count: int, rise: int) -> None:
        term = max((self.terms or [self.before.term])[-1], 0) + rise
        self.runs.append(self.runs.end_index + 1, count, term)
        self.terms += [term] * count

    @precondition(lambda self: self.terms)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        keep = data.draw(st.integers(0, len(self.terms) - 1))
        self.runs.truncate_from(self.first + keep)
        del self.terms[keep:]

    @rule(data=st.data())
    def drop_before(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(0, len(self.terms)))
        self.before = self.runs.id_at(self.first + count - 1)
        self.runs.drop_before(self.before)
        self.first += count
        del self.terms[:count]

    @rule(term=st.integers(-1, 9))
    def last_index_of(self, term: int) -> None:
        held = [self.first + k for k, t in enumerate(self.terms) if t == term]
        if not held and term == self.before.term:
            held = [self.before.index]
        assert self.runs.last_index_of(term) == (held[-1] if held else None)

    @rule(data=st.data())
    def slice(self, data: st.DataObject) -> None:
        low = data.draw(st.integers(0, len(self.terms)))
        high = data.draw(st.integers(low, len(self.terms)))
        expected = runs_of(self.terms[low:high], self.first + low)
        assert self.runs.runs(self.first + low, self.first + high) == expected

    @invariant()
    def same(self) -> None:
        if not hasattr(self, "runs"):
            return
        assert self.runs.end_index == self.before.index + len(self.terms)
        last = EntryId(self.runs.end_index, self.terms[-1]) if self.terms else self.before
        assert self.runs.end == last
        for k, term in enumerate(self.terms):
            index = self.first + k
            assert self.runs.term_at(index) == term
            assert self.runs.holds(EntryId(index, term))
            assert not self.runs.holds(EntryId(index, term + 1))
            assert self.runs.first_index_of_run_at(index) == self.first + self.terms.index(term)
        assert not self.runs.holds(EntryId(self.runs.end_index + 1, 0))


TestTermRuns = TermRunsMachine.TestCase


@given(mine=term_lists, theirs=term_lists, data=st.data())
def test_first_difference_is_the_first_index_of_another_term(
    mine: list[int], theirs: list[int], data: st.DataObject
) -> None:
    log = TermRuns(NO_ENTRY, runs_of(mine), len(mine) - 1)
    if not theirs:
        return
    first = data.draw(st.integers(0, len(mine)))
    stop = first + len(theirs)
    expected = next(
        (first + k for k, t in enumerate(theirs) if first + k < len(mine) and mine[first + k] != t),
        None,
    )
    assert log.first_difference(first, stop, runs_of(theirs, first)) == expected
