"""Feedings: how far followers are that are fed from the files of this leader, and how fast that goes."""

from __future__ import annotations

from typing import NamedTuple

from quorumlog.entry import Replica

LOOK_MS = 2_000.0
"""The rate is that of the last span of this length that is over."""
FORGOTTEN_MS = 30_000.0
"""Who got nothing for so long is not being fed any more."""


class Feeding(NamedTuple):
    behind_bytes: int
    """Of the log, that it has still to be sent."""
    bytes_per_second: int
    """-1: it has only just begun."""


class _Span(NamedTuple):
    position: int
    """Where the log goes on for it."""
    sent_ms: float
    begun_ms: float
    begun_position: int
    bytes_per_second: int


class Feedings:
    def __init__(self) -> None:
        self._spans: dict[Replica, _Span] = {}

    def on_sent(self, replica: Replica, stop_position: int, now_ms: float) -> None:
        """Entries up to there, out of files."""
        span = self._spans.get(replica)
        if span is None or stop_position < span.position or now_ms - span.sent_ms > FORGOTTEN_MS:
            self._spans[replica] = _Span(stop_position, now_ms, now_ms, stop_position, -1)
            return
        begun_ms, begun_position, rate = span.begun_ms, span.begun_position, span.bytes_per_second
        elapsed_ms = now_ms - begun_ms
        if elapsed_ms >= LOOK_MS:
            rate = round((stop_position - begun_position) * 1000 / elapsed_ms)
            begun_ms, begun_position = now_ms, stop_position
        self._spans[replica] = _Span(stop_position, now_ms, begun_ms, begun_position, rate)

    def on_caught_up(self, replica: Replica) -> None:
        """It gets what was just appended, out of memory."""
        if self._spans:
            self._spans.pop(replica, None)

    def of(self, replica: Replica, end_position: int, now_ms: float) -> Feeding | None:
        """None: it is not being fed."""
        span = self._spans.get(replica)
        if span is None or span.position >= end_position or now_ms - span.sent_ms > FORGOTTEN_MS:
            return None
        rate = span.bytes_per_second
        if now_ms - span.sent_ms > 2 * LOOK_MS:
            rate = 0
        return Feeding(end_position - span.position, rate)
