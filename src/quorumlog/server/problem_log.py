"""ProblemLog: logs the problems of `status` and refused peers, without repetition.

Sentences that differ only in figures are the same (`figures`).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable

import msgspec

from quorumlog.errors import LedgerError
from quorumlog.figures import without_figures
from quorumlog.wire.client_messages import EventInfo

MOST_EVENTS = 256
"""Of leaders, peers and problems together: the oldest go."""
MOST_TEXT = 400
LOOK_INTERVAL_S = 1.0
REPEAT_S = 60.0
MOST_NOTED = 20
"""Different ones in that time: strangers choose the names under which they are refused."""


class EventRing:
    """Recent events of a member, for `quorumlog why`."""

    def __init__(self, wall_ms: Callable[[], int]) -> None:
        self._wall_ms = wall_ms
        self._events: deque[EventInfo] = deque(maxlen=MOST_EVENTS)
        self._refusals: dict[str, EventInfo] = {}
        """By the name of the error."""

    def add(self, kind: str, text: str) -> None:
        last = self._events[-1] if self._events else None
        if last is not None and (last.kind, last.text) == (kind, text):
            self._events[-1] = msgspec.structs.replace(last, times=last.times + 1)
        else:
            self._events.append(EventInfo(kind=kind, time_ms=self._wall_ms(), text=text))

    def refused(self, error: LedgerError) -> None:
        name = type(error).__name__
        text, before = f"{name}: {str(error)[:MOST_TEXT]}", self._refusals.get(name)
        if before is None:
            self._refusals[name] = EventInfo(kind="refused", time_ms=self._wall_ms(), text=text)
        else:
            again = msgspec.structs.replace(before, text=text, times=before.times + 1)
            self._refusals[name] = again

    def all(self) -> tuple[EventInfo, ...]:
        return (*self._events, *self._refusals.values())


class ProblemLog:
    """Each sentence is logged when it appears, once a minute while it lasts, and when it has gone."""

    def __init__(
        self,
        log: logging.Logger,
        name: str,
        now_s: float,
        report: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        """`report` gets each sentence once, and once more when it no longer holds."""
        self._report = report
        self._log = log
        self._name = name
        self._said_s: dict[str, float] = {}
        self._noted_s: dict[str, float] = {}
        self._left_out = 0
        self._next_look_s = now_s + LOOK_INTERVAL_S

    def is_due(self, now_s: float) -> bool:
        """Looking costs a status; once a second is enough, and a start is given one second."""
        return now_s >= self._next_look_s

    def look(self, sentences: Iterable[str], now_s: float) -> None:
        self._next_look_s = now_s + LOOK_INTERVAL_S
        current = {without_figures(sentence): sentence for sentence in sentences if sentence}
        for words, sentence in current.items():
            self._say(words, sentence, self._said_s, now_s)
        for words in [reported for reported in self._said_s if reported not in current]:
            del self._said_s[words]
            self._log.info("%s: no longer: %s", self._name, words, extra={"event": "problem_over"})
            self._report(f"no longer: {words}")

    def note(self, sentence: str, now_s: float) -> None:
        """Log a recurring sentence once a minute: a stranger that dials and is refused, a
        step for which a full disk has no space."""
        words = without_figures(sentence)
        self._noted_s = {
            each: noted_s for each, noted_s in self._noted_s.items() if now_s - noted_s < REPEAT_S
        }
        if words not in self._noted_s and len(self._noted_s) >= MOST_NOTED:
            self._left_out += 1
            return
        if self._left_out:
            left_out = f"{self._name}: {self._left_out} more of the kind were left out"
            self._log.warning(left_out, extra={"event": "problem"})
            self._left_out = 0
        self._say(words, sentence, self._noted_s, now_s)

    def _say(self, words: str, sentence: str, said_s: dict[str, float], now_s: float) -> None:
        if now_s - said_s.get(words, -REPEAT_S) >= REPEAT_S:
            if words not in said_s:
                self._report(sentence)
            said_s[words] = now_s
            self._log.warning("%s: %s", self._name, sentence, extra={"event": "problem"})


def is_ours(error: BaseException) -> bool:
    """It was raised in this package, not in other code on its loop."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is None or trace.tb_frame.f_globals.get("__name__", "").startswith("quorumlog.")
