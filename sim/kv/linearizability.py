"""Linearizability: could the operations on one key have happened one after the other, each between its
call and its return? Wing and Gong's search, with Lowe's memory of what was tried, as Porcupine has it.

An operation without an outcome may have happened at any time after its call, or never. What would make
the search long:

- Those without an outcome are tried last. Those that are alike count as one kind, of which so many are
  used, and what was reached with fewer of them is not looked at again with more.
- What can happen now and leaves the state as it is may as well happen now.
- Where outcomes tell an order, such as revisions, no other is tried.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import NamedTuple, TypeVar

State = TypeVar("State", bound=Hashable)

UNKNOWN = object()
"""As an outcome."""
LAST = 1 << 62


class TimedOperation(NamedTuple):
    called: float
    returned: float
    """Infinity: never."""
    operation: Hashable
    outcome: object


def is_linearizable(
    history: Sequence[TimedOperation],
    initial: State,
    step: Callable[[State, object, object], State | None],
    most_steps: int = 1 << 62,
    rank: Callable[[TimedOperation], int | None] = lambda each: None,
) -> bool | None:
    """None: it was not decided in `most_steps`. `rank`: what has a lower one happened before; None: it
    tells nothing.

    `step(state, operation, outcome)`: the state after it; None: that outcome is impossible there.
    With the outcome UNKNOWN it may come to whatever it does, and its return is of no account."""
    certain = sorted((e for e in history if e.outcome is not UNKNOWN), key=lambda e: e.called)
    ranks = [rank(each) for each in certain]
    lowest_from = [LAST] * (len(certain) + 1)
    for place in reversed(range(len(certain))):
        own = ranks[place]
        lowest_from[place] = lowest_from[place + 1] if own is None else min(own, lowest_from[place + 1])
    calls: dict[Hashable, list[float]] = {}
    for each in sorted((e for e in history if e.outcome is UNKNOWN), key=lambda e: e.called):
        calls.setdefault(each.operation, []).append(each.called)
    kinds = list(calls.items())

    def following(node: _Node[State]) -> Iterator[_Node[State]]:
        first, done, used, state = node
        horizon = float("inf")  # the first return of what is left: nothing later can be next
        fits = []
        place = first
        while place < len(certain) and certain[place].called <= horizon:
            if not done >> (place - first) & 1:
                horizon = min(horizon, certain[place].returned)
                fits.append(place)
            place += 1
        lowest = lowest_from[place]
        for place in fits:
            own = ranks[place]
            if own is not None:
                lowest = min(lowest, own)
        ways = []
        for place in fits:
            own = ranks[place]
            if own is not None and own > lowest:
                continue
            after = step(state, certain[place].operation, certain[place].outcome)
            if after is not None:
                left, begins = done | 1 << (place - first), first
                while left & 1:
                    left, begins = left >> 1, begins + 1
                ways.append((begins, left, used, after))
                if after == state:
                    yield ways[-1]
                    return
        yield from ways
        for number, (operation, at) in enumerate(kinds):
            count = used[number]
            if count < len(at) and at[count] <= horizon:
                after = step(state, operation, UNKNOWN)
                if after is not None and after != state:
                    yield first, done, (*used[:number], count + 1, *used[number + 1 :]), after

    tried: dict[tuple[int, int, State], list[tuple[int, ...]]] = {}
    stack = [following((0, 0, (0,) * len(kinds), initial))]
    while stack and certain:
        node = next(stack[-1], None)
        if node is None:
            stack.pop()
            continue
        first, done, used, state = node
        if first == len(certain):
            return True
        before = tried.setdefault((first, done, state), [])
        if any(all(map(int.__le__, fewer, used)) for fewer in before):
            continue
        before.append(used)
        most_steps -= 1
        if most_steps < 0:
            return None
        stack.append(following(node))
    return not certain


_Node = tuple[int, int, tuple[int, ...], State]
"""(all before this one have happened, which after it as bits, how many of each kind without an outcome,
state)."""
