"""PushWindow: the pushes to one member that are on their way, and how long it may be silent."""

from __future__ import annotations

from collections import deque

MAX_BACK_OFF = 16
"""A silence is borne for so many times `push_resend_ms` at most."""


class PushWindow:
    __slots__ = ("_least_timeout_ms", "_timed", "allowed_ms", "pushes", "size_bytes")

    def __init__(self, push_resend_ms: float) -> None:
        self.pushes: deque[tuple[int, int]] = deque()
        """(last index, bytes) of each push on its way, in order."""
        self.size_bytes = 0
        self._least_timeout_ms = push_resend_ms
        self.allowed_ms = push_resend_ms
        """How long pushes may stay unanswered: twice as long after each time that it was in vain, until
        a push was timed."""
        self._timed: tuple[int, float] | None = None
        """(last index, when it left) of one push on its way: twice what its answer takes is allowed."""

    def clear(self) -> None:
        self.drop_from(0)
        self.forget_silence()

    def add(self, last_index: int, size_bytes: int, now_ms: float) -> None:
        """A push has left, behind those on their way."""
        if self._timed is None:
            self._timed = (last_index, now_ms)
        self.pushes.append((last_index, size_bytes))
        self.size_bytes += size_bytes

    def acknowledge(self, index: int, now_ms: float) -> None:
        """Everything up to `index` is on the follower's disk."""
        if self._timed is not None and self._timed[0] <= index:
            took_ms = now_ms - self._timed[1]
            self._timed = None
            self._be_patient_for(2 * took_ms)
        while self.pushes and self.pushes[0][0] <= index:
            self.size_bytes -= self.pushes.popleft()[1]
        assert self.size_bytes >= 0, self.size_bytes

    def drop_from(self, index: int) -> None:
        """What brought this entry or later ones is lost, and is timed anew when it goes again."""
        while self.pushes and self.pushes[-1][0] >= index:
            self.size_bytes -= self.pushes.pop()[1]
        if self._timed is not None and self._timed[0] >= index:
            self._timed = None

    def back_off(self) -> None:
        """It was silent for `allowed_ms`."""
        self._be_patient_for(2 * self.allowed_ms)

    def forget_silence(self) -> None:
        self.allowed_ms = self._least_timeout_ms

    def _be_patient_for(self, duration_ms: float) -> None:
        least_ms = self._least_timeout_ms
        self.allowed_ms = min(max(least_ms, duration_ms), MAX_BACK_OFF * least_ms)
