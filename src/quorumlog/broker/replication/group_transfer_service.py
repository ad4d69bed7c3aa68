"""GroupTransferService: who put something waits here until enough slaves have it, or too long."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable

from quorumlog.broker.message import PutStatus
from quorumlog.broker.store.flush import FlushDone, GroupCommitRequest


class GroupTransferService:
    """Any thread. A request that waits delays no other: each is answered by its own offset."""

    def __init__(self, slave_timeout_ms: float, clock: Callable[[], float]) -> None:
        self._timeout_ms = slave_timeout_ms
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: list[tuple[int, int, GroupCommitRequest]] = []
        self._number = 0
        self._replicated_offset = 0
        self._is_open = True

    def submit(self, next_offset: int, done: FlushDone) -> None:
        request = GroupCommitRequest(next_offset, self._clock() + self._timeout_ms, done)
        with self._lock:
            is_open, is_there = self._is_open, next_offset <= self._replicated_offset
            if is_open and not is_there:
                self._number += 1
                heapq.heappush(self._waiting, (next_offset, self._number, request))
        if not is_open:
            request.complete(PutStatus.FLUSH_SLAVE_TIMEOUT)
        elif is_there:
            request.complete(PutStatus.PUT_OK)

    def notify_transfer_some(self, replicated_offset: int) -> None:
        """Enough slaves have everything below."""
        done = []
        with self._lock:
            if not self._is_open:
                return
            self._replicated_offset = max(self._replicated_offset, replicated_offset)
            while self._waiting and self._waiting[0][0] <= self._replicated_offset:
                done.append(heapq.heappop(self._waiting)[2])
        for request in done:
            request.complete(PutStatus.PUT_OK)

    def expire(self, now_ms: float) -> None:
        with self._lock:
            late = [each for each in self._waiting if each[2].deadline_ms <= now_ms]
            if late:
                self._waiting = [each for each in self._waiting if each[2].deadline_ms > now_ms]
                heapq.heapify(self._waiting)
        for _, _, request in late:
            request.complete(PutStatus.FLUSH_SLAVE_TIMEOUT)

    def open(self, replicated_offset: int) -> None:
        """A master leads from here on."""
        with self._lock:
            self._is_open = True
            self._replicated_offset = replicated_offset

    def close(self) -> None:
        """Nothing is acknowledged from here on: what waits is an unknown outcome."""
        with self._lock:
            self._is_open = False
            waiting, self._waiting = self._waiting, []
        for _, _, request in waiting:
            request.complete(PutStatus.FLUSH_SLAVE_TIMEOUT)
