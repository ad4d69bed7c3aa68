"""Single appends of many threads, joined: whoever comes to send takes along what the others have left.

A thread leaves its body with the joiner and queues for the sending. Once it is its turn, either its body
has left with an earlier thread's frame, or it sends all that has gathered. So a thread that is
interrupted takes no one's body with it: the next in the queue finds it.
"""

from __future__ import annotations

import threading

from quorumlog.client.io.io_thread import IoThread
from quorumlog.client.protocol.append_joiner import AppendJoiner, JoinedAppends, Outcome
from quorumlog.errors import OutcomeUnknown
from quorumlog.net.system import now_ms


class AppendWaiter:
    """Where a thread waits for the outcome of its append."""

    __slots__ = ("_has_outcome", "_lock", "_outcome")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self._has_outcome = False
        self._outcome: Outcome = None

    def give(self, outcome: Outcome) -> None:
        """The first outcome counts."""
        if not self._has_outcome:
            self._outcome = outcome
            self._has_outcome = True
            self._lock.release()

    def take(self) -> Outcome:
        """Wait for it. Once."""
        self._lock.acquire()
        return self._outcome


class ThreadJoiner:
    def __init__(self, io: IoThread, *, in_session: bool) -> None:
        self._io = io
        self._joiner = AppendJoiner(in_session=in_session)
        self._gathering = threading.Lock()
        """Guards the joiner; held for a few instructions."""
        self._sending = threading.Lock()
        """Held from taking the frames until their bytes are written or left in an outbox."""

    def append(self, body: bytes, timeout_ms: float, machine: str = "") -> tuple[Outcome, JoinedAppends]:
        """Returns when it has an outcome."""
        waiter = AppendWaiter()
        with self._gathering:
            joined = self._joiner.add(body, timeout_ms, waiter, now_ms(), machine)
        try:
            with self._sending:
                if not joined.is_taken:
                    self._send()
            return waiter.take(), joined
        except BaseException:
            # Interrupted: what has not left must not leave some day with another thread's frame.
            with self._gathering:
                joined.leave(waiter)
            raise

    def _send(self) -> None:
        ready: list[JoinedAppends] = []
        try:
            with self._gathering:
                ready = self._joiner.take()
            requests = [joined.try_to_make_request(AppendWaiter.give) for joined in ready]
            self._io.submit([request for request in requests if request is not None])
        except BaseException as failure:
            # This thread was interrupted, or there is a bug. The others must not wait for ever for it.
            for joined in ready:
                for waiter in joined.waiters:
                    waiter.give(OutcomeUnknown(f"the thread that sent it failed: {failure!r}"))
            raise
