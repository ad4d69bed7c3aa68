"""ReputMessageService: follows the commit log up to its confirm offset, and dispatches."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from quorumlog.broker.commit_log.log_files import records_below
from quorumlog.broker.message_log import LogRecords, MessageLog
from quorumlog.broker.messages.record_batch import QueueKey
from quorumlog.broker.queues.dispatcher import Dispatcher
from quorumlog.errors import DiskFull, StoreFailure

log = logging.getLogger("quorumlog.broker")


class RecentLog(MessageLog, Protocol):
    def take_recent(self, position: int) -> LogRecords | None: ...


class ReputMessageService:
    """`run_once` from one thread."""

    interval_ms = 50
    """Where nothing wakes it."""

    def __init__(self, message_log: RecentLog, dispatcher: Dispatcher, position: int) -> None:
        self.reput_from_offset = position
        self.dispatched: Callable[[list[QueueKey]], None] = lambda grown: None
        self._log = message_log
        self._dispatcher = dispatcher
        self._is_short = False

    @property
    def behind_bytes(self) -> int:
        return max(self._log.confirm_offset - self.reput_from_offset, 0)

    def run_once(self) -> None:
        """Raises StoreFailure."""
        while self.reput_from_offset < self._log.confirm_offset:
            found = self._next()
            try:
                grown = self._dispatcher.dispatch(found)
            except DiskFull as error:
                # Nothing is lost: it lies in the commit log, and is dispatched when there is space.
                if not self._is_short:
                    log.warning("%s: queues wait for space", error)
                self._is_short = True
                return
            self._is_short = False
            self.reput_from_offset = found.next_position
            if grown:
                self.dispatched(grown)

    def _next(self) -> LogRecords:
        position, stop = self.reput_from_offset, self._log.confirm_offset
        found = self._log.take_recent(position)
        if found is None:
            found = self._log.read(position, stop)
        if found is None:
            raise StoreFailure(f"there is no record at {position} of the commit log, below {stop}")
        part = records_below(found, stop)
        assert part is not None, (position, stop)
        return part
