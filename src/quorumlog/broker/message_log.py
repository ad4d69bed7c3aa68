"""MessageLog: what a message store needs of the log below it. `CommitLog` is one; another may be
replicated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import NamedTuple, Protocol

from quorumlog.broker.messages.message import PutResult
from quorumlog.broker.messages.record_batch import RecordBatch
from quorumlog.errors import LedgerError


class Role(Enum):
    """Of a broker, by RocketMQ's names."""

    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"


RoleListener = Callable[[Role], None]
PutOutcome = PutResult | LedgerError


class PutRequest(NamedTuple):
    """Records of one queue, put together or not at all."""

    records: RecordBatch
    """Without gaps, and writable: the log fills in what only it knows."""
    waits: bool
    """For what the log promises: its flush, its slaves."""
    done: Callable[[PutOutcome], None]
    """Called once, from any thread."""


class LogRecords(NamedTuple):
    """Records as they lie in the log."""

    position: int
    """Of the first byte of `records.buffer`."""
    records: RecordBatch
    next_position: int
    """Where to go on: behind the last record, or behind the blank that follows it."""


class MessageLog(Protocol):
    @property
    def min_offset(self) -> int:
        """The first byte that there is."""

    @property
    def max_offset(self) -> int:
        """Behind the last record that was written."""

    @property
    def confirm_offset(self) -> int:
        """Consumers see nothing from here on: what lies below stays, whoever leads next."""

    @property
    def role(self) -> Role: ...

    def put(self, requests: Sequence[PutRequest]) -> None:
        """Write them as one batch; each is answered by its own `done`. Raises StoreFailure."""

    def read(self, position: int, stop_position: int) -> LogRecords | None:
        """Whole records from a position at which one begins; None: there are none below `stop_position`.
        Any thread. Raises MessageDamaged."""

    def read_bytes(self, position: int, size_bytes: int) -> bytes:
        """Any thread; shorter where the log ends. Raises OSError."""

    def on_role_change(self, listener: RoleListener) -> None: ...
