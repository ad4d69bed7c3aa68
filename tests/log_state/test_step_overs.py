"""Which entries state machines leave out, as the log's state has it."""

from __future__ import annotations

from quorumlog.log_state.control_entries import MOST_STEPPED_OVER, ControlBody, Keep, StepOver
from quorumlog.log_state.log_state import EMPTY, LogState, decode_state, folded
from tests.log_state import made


def state_of(*bodies: ControlBody) -> LogState:
    state = folded(EMPTY, made.entries_at(100, list(bodies)))
    assert isinstance(state, LogState), state
    return state


def left_out(state: LogState) -> list[tuple[str, int, int]]:
    return [(each.name, each.index, each.ordered_at_index) for each in state.stepped_over]


def test_an_entry_is_left_out_once_by_each_machine() -> None:
    state = state_of(StepOver("b", 7, 1), StepOver("a", 9, 2), StepOver("b", 7, 1), StepOver("b", 3, 4))
    assert left_out(state) == [("a", 9, 101), ("b", 3, 103), ("b", 7, 100)]
    assert decode_state(state.encode()) == state
    assert state.level == 6


FULL = [StepOver("a", index, 1) for index in range(MOST_STEPPED_OVER)]


def test_no_more_are_left_out_than_a_log_remembers() -> None:
    full = state_of(*FULL)
    more = state_of(*FULL, StepOver("a", 80, 1))
    assert more.stepped_over == full.stepped_over


def test_those_behind_which_the_log_begins_make_room() -> None:
    """Not before: who has not come there yet still has to know them."""
    kept = state_of(*FULL, Keep(10))
    assert len(kept.stepped_over) == MOST_STEPPED_OVER
    more = state_of(*FULL, Keep(10), StepOver("a", 80, 1))
    assert [each.index for each in more.stepped_over] == [*range(10, MOST_STEPPED_OVER), 80]
