"""Whatever is appended, cut and committed: both states are those of a log that never held more."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from quorumlog.log_state.control_entries import (
    ControlBody,
    OpenProducer,
    ReaderPositions,
    Unreadable,
)
from quorumlog.log_state.log_state import EMPTY, LogState, LogStates, advanced, folded
from tests.log_state import made

NUMBERS = st.integers(0, 2**16)


class LogStatesAgainstFolds(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.states = LogStates(EMPTY, -1)
        self.log: list[ControlBody | Unreadable | None] = []
        self.committed = 0
        """So many entries are."""

    @rule(bodies=st.lists(st.none() | made.BODIES | made.UNREADABLE, min_size=1, max_size=5))
    def append(self, bodies: list[ControlBody | Unreadable | None]) -> None:
        self.states.append(len(self.log), made.entries_at(len(self.log), bodies))
        self.log += bodies

    @precondition(lambda self: self.committed < len(self.log))
    @rule(number=NUMBERS)
    def truncate(self, number: int) -> None:
        index = self.committed + number % (len(self.log) - self.committed)
        before = self.states.readers_changed_index
        self.states.truncate_from(index)
        assert self.states.readers_changed_index == min(before, index - 1), (
            "it never lies behind the end"
        )
        del self.log[index:]

    @precondition(lambda self: self.committed < len(self.log))
    @rule(number=NUMBERS)
    def commit(self, number: int) -> None:
        self.committed += 1 + number % (len(self.log) - self.committed)
        self.states.commit(self.committed - 1)

    @invariant()
    def both_are_folds(self) -> None:
        entries = made.entries_at(0, self.log)
        assert self.states.appended == folded(EMPTY, entries)
        below = [entry for entry in entries if entry.index < self.committed]
        assert self.states.committed == folded(EMPTY, below)

    @invariant()
    def who_was_forgotten_is_known(self) -> None:
        forgets = [
            entry.index
            for entry in made.entries_at(0, self.log)
            if isinstance(entry.body, OpenProducer) and entry.body.forgets
        ]
        if isinstance(self.states.appended, LogState):
            assert max(forgets, default=-1) <= self.states.producers_forgotten_index < len(self.log)

    @invariant()
    def what_changed_readers_is_known(self) -> None:
        state, changed_index = EMPTY, -1
        for entry in made.entries_at(0, self.log):
            said = entry.body.readers if isinstance(entry.body, ReaderPositions) else ()
            after = advanced(state, entry)
            if not isinstance(after, LogState):
                break
            holds = {reader.name: reader.hold for reader in after.readers}
            if any(position.ends or position.seeks_from is not None for position in said) or any(
                holds.get(reader.name, reader.hold) != reader.hold for reader in state.readers
            ):
                changed_index = entry.index
            state = after
        assert self.states.readers_changed_index >= changed_index


TestLogStates = LogStatesAgainstFolds.TestCase
