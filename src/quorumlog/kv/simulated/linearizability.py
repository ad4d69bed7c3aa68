"""Linearizability: could the operations on one key have happened one after the other, each between its
call and its return? Porcupine's algorithm: Wing and Gong's search, with Lowe's memory of what was tried.

An operation without an outcome may have happened at any time behind its call, or never.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple, TypeVar

State = TypeVar("State", bound=Hashable)
Input = TypeVar("Input")

UNKNOWN = object()
"""As an outcome."""


class Happened(NamedTuple):
    called: float
    returned: float
    """Infinity: never."""
    asked: object
    outcome: object


def is_linearizable(
    history: Sequence[Happened],
    initial: State,
    step: Callable[[State, object, object], State | None],
    most_steps: int = 1 << 62,
) -> bool | None:
    """None: it could not be told in `most_steps`, since much without an outcome may be anywhere.

    `step(state, asked, outcome)`: the state behind it; None: it cannot come to this outcome there.
    With the outcome UNKNOWN it may come to whatever it does."""
    # Calls and returns in the order of time; at one moment calls come first.
    events = sorted(
        [(each.called, 0, number) for number, each in enumerate(history)]
        + [(each.returned, 1, number) for number, each in enumerate(history)]
    )
    following = [*range(1, len(events)), -1]
    preceding = [-1, *range(len(events) - 1)]
    first = 0 if events else -1
    return_of = {number: place for place, (_, kind, number) in enumerate(events) if kind}
    state = initial
    done = 0
    tried: set[tuple[int, Hashable]] = set()
    stack: list[tuple[int, State]] = []
    place = first
    certain = sum(1 for each in history if each.outcome is not UNKNOWN)

    def unlink(at: int) -> None:
        nonlocal first
        before, behind = preceding[at], following[at]
        if before < 0:
            first = behind
        else:
            following[before] = behind
        if behind >= 0:
            preceding[behind] = before

    def relink(at: int) -> None:
        nonlocal first
        before, behind = preceding[at], following[at]
        if before < 0:
            first = at
        else:
            following[before] = at
        if behind >= 0:
            preceding[behind] = at

    left = certain
    while left:
        most_steps -= 1
        if most_steps < 0:
            return None
        if place >= 0 and events[place][1] == 0:
            number = events[place][2]
            each = history[number]
            after = step(state, each.asked, each.outcome)
            mark = done | 1 << number
            if after is not None and (mark, after) not in tried:
                tried.add((mark, after))
                stack.append((place, state))
                state, done = after, mark
                left -= each.outcome is not UNKNOWN
                unlink(place)
                unlink(return_of[number])
                place = first
            else:
                place = following[place]
            continue
        # A return that nothing can happen before any more: take the last step back.
        if not stack:
            return False
        at, state = stack.pop()
        number = events[at][2]
        done &= ~(1 << number)
        left += history[number].outcome is not UNKNOWN
        relink(return_of[number])
        relink(at)
        place = following[at]
    return True
