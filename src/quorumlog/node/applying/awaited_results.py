"""AwaitedResults: which append hears which result of a machine.

An append waits here from its commit on, when its indices belong to it for good: whoever leads by then,
the result at an index is that of the entry there, which is its own. Results that come before are kept
while an append that is not committed yet could want them: the first entries of a batch may be committed,
and applied, ahead of the last. Where they come to more than `MOST_HELD_BYTES` before anybody has all of
his, they are held no longer.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import msgspec
import numpy as np

from quorumlog.entry import AppendReceipt
from quorumlog.errors import CommandError, ResultUnknown
from quorumlog.node.applying.machine_runner import Results
from quorumlog.node.pending_appends import AppendOutcome
from quorumlog.state_machine import words_of

Done = Callable[[AppendOutcome], None]
MOST_HELD_BYTES = 64 << 20
"""And what one piece of work gives."""


class _Held(NamedTuple):
    results: Results
    size_bytes: int
    is_lost: bool
    """Its values are gone."""


class _Waiting:
    __slots__ = ("deadline_ms", "done", "receipt")

    def __init__(self, receipt: AppendReceipt, deadline_ms: float, done: Done) -> None:
        self.receipt = receipt
        self.deadline_ms = deadline_ms
        self.done = done


class AwaitedResults:
    def __init__(self, oldest_proposed: Callable[[], float]) -> None:
        """`oldest_proposed`: first index of the oldest append that is not committed, or infinity."""
        self._oldest_proposed = oldest_proposed
        self._applied_index = -1
        self._waiting: deque[_Waiting] = deque()
        """By index, ascending."""
        self._kept: deque[_Held] = deque()
        """By index, ascending; of entries that somebody waits for, or may."""
        self._held_bytes = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def committed(self, receipt: AppendReceipt, deadline_ms: float, done: Done) -> None:
        """An append of entries for the machine is committed; `done` gets its receipt, with results."""
        self._waiting.append(_Waiting(receipt, deadline_ms, done))
        self._answer()

    def applied(self, results: list[Results], applied_index: int) -> None:
        self._applied_index = applied_index
        if self._waiting or self._oldest_proposed() <= applied_index:
            held = [_Held(each, each.size_bytes, False) for each in results]
            size_bytes = sum(each.size_bytes for each in held)
            if self._held_bytes and self._held_bytes + size_bytes > MOST_HELD_BYTES:
                self._lose()
            self._held_bytes += size_bytes
            self._kept += held
            self._answer()

    def _lose(self) -> None:
        """Of appends that are not through: those that are have had theirs."""
        gone = [Results(each.results.indices, None) for each in self._kept]
        self._kept = deque(_Held(each, 0, True) for each in gone)
        self._held_bytes = 0

    def stopped(self, reason: str) -> None:
        """Nobody will apply what is left."""
        waiting, self._waiting = self._waiting, deque()
        self._kept.clear()
        self._held_bytes = 0
        self._applied_index = -1
        for each in waiting:
            each.done(unknown_results(each.receipt, reason))

    def expire(self, now_ms: float) -> None:
        if any(each.deadline_ms <= now_ms for each in self._waiting):
            late = [each for each in self._waiting if each.deadline_ms <= now_ms]
            self._waiting = deque(each for each in self._waiting if each.deadline_ms > now_ms)
            for each in late:
                each.done(unknown_results(each.receipt, "the machine has not come to it in time"))
        self._forget()

    def _answer(self) -> None:
        while self._waiting and self._waiting[0].receipt.last_index <= self._applied_index:
            first = self._waiting.popleft()
            first.done(self._with_results(first.receipt))
        self._forget()

    def _with_results(self, receipt: AppendReceipt) -> AppendOutcome:
        values: list[bytes | None] = []
        failures: list[tuple[int, str]] = []
        for results, _, is_lost in self._kept:
            start, stop = np.searchsorted(
                results.indices, [receipt.first_index, receipt.last_index + 1]
            ).tolist()
            if start == stop:
                continue
            if is_lost:
                return unknown_results(receipt, f"they are above {MOST_HELD_BYTES} bytes in all")
            if results.values is None:
                values += [None] * (stop - start)
                continue
            for value in results.values[start:stop]:
                if isinstance(value, CommandError):
                    failures.append((len(values), words_of(value)))
                    value = None
                elif value is not None and not isinstance(value, bytes):
                    failures.append((len(values), f"the result is {type(value).__name__}, not bytes"))
                    value = None
                values.append(value)
        if len(values) != receipt.count:
            return unknown_results(receipt, "the machine was built again meanwhile")
        return msgspec.structs.replace(receipt, results=tuple(values), failures=tuple(failures))

    def _forget(self) -> None:
        wanted = min(self._waiting[0].receipt.first_index if self._waiting else math.inf, math.inf)
        if self._kept:
            wanted = min(wanted, self._oldest_proposed())
            while self._kept and self._kept[0].results.indices[-1] < wanted:
                self._held_bytes -= self._kept.popleft().size_bytes


def unknown_results(receipt: AppendReceipt, reason: str) -> ResultUnknown:
    entries = f"entry {receipt.first_index}"
    if receipt.count > 1:
        entries = f"entries {receipt.first_index} .. {receipt.last_index}"
    return ResultUnknown(f"{entries} of term {receipt.term} committed, results unknown: {reason}")
