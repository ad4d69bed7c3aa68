"""ProblemLog: what `status` would say and who was refused, on the log, without repeating itself.

Sentences are the same whatever their figures say (`figures`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from quorumlog.figures import without_figures

LOOK_INTERVAL_S = 1.0
REPEAT_S = 60.0
MOST_NOTED = 20
"""Different ones in that time: strangers choose the names under which they are refused."""


class ProblemLog:
    """Each sentence is logged when it appears, once a minute while it lasts, and when it has gone."""

    def __init__(self, log: logging.Logger, name: str, now_s: float) -> None:
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
        for words in [said for said in self._said_s if said not in current]:
            del self._said_s[words]
            self._log.info("%s: no longer: %s", self._name, words)

    def note(self, sentence: str, now_s: float) -> None:
        """What comes again and again is worth one line a minute: a stranger that dials and is refused, a
        step for which a full disk has no space."""
        words = without_figures(sentence)
        self._noted_s = {each: said for each, said in self._noted_s.items() if now_s - said < REPEAT_S}
        if words not in self._noted_s and len(self._noted_s) >= MOST_NOTED:
            self._left_out += 1
            return
        if self._left_out:
            self._log.warning("%s: %d more of the kind were left out", self._name, self._left_out)
            self._left_out = 0
        self._say(words, sentence, self._noted_s, now_s)

    def _say(self, words: str, sentence: str, said_s: dict[str, float], now_s: float) -> None:
        if now_s - said_s.get(words, -REPEAT_S) >= REPEAT_S:
            said_s[words] = now_s
            self._log.warning("%s: %s", self._name, sentence)


def is_ours(error: BaseException) -> bool:
    """It was raised in this package, not in what shares its loop."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is None or trace.tb_frame.f_globals.get("__name__", "").startswith("quorumlog.")
