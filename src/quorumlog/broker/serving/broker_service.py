"""BrokerService: what a connection needs of the broker behind it, classic or on a replicated log."""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from quorumlog.broker.message_log import PutOutcome
from quorumlog.broker.messages.record_batch import QueueKey, RecordBatch
from quorumlog.broker.queues.consume_queue import ConsumeQueue
from quorumlog.broker.store_reader import StoreReader
from quorumlog.broker.wire.broker_messages import AnyBrokerMessage, StatusResponse
from quorumlog.errors import StoreFailure
from quorumlog.net.frame import Frame

if TYPE_CHECKING:
    from quorumlog.broker.serving.broker_session import BrokerSession

TICK_MS = 50.0


class Puts(Protocol):
    def add(self, records: RecordBatch, waits: bool, answer: Callable[[PutOutcome], None]) -> None: ...


class Reads(Protocol):
    def submit(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """`work` may wait for the disk; `done` gets what it gave, a LedgerError or a StoreFailure."""


class Waits(Protocol):
    def add(self, key: QueueKey, wait_ms: int, again: Callable[[], None]) -> bool:
        """See `WaitingPulls`."""


class QueueTable(Protocol):
    def get(self, key: QueueKey) -> ConsumeQueue | None: ...

    def items(self) -> list[tuple[QueueKey, ConsumeQueue]]: ...


class ServedStore(Protocol):
    @property
    def reader(self) -> StoreReader: ...

    @property
    def queues(self) -> QueueTable: ...

    @property
    def shown_topics(self) -> Mapping[str, int] | None:
        """Numbers of queues by name, beside the queues that there are."""

    def begin_of(self, key: QueueKey) -> int | None:
        """Of a queue that there is: nothing below is shown; None: nothing of it."""

    @property
    def on_failure(self) -> Callable[[StoreFailure], None]: ...


class BrokerService(Protocol):
    @property
    def store(self) -> ServedStore: ...

    @property
    def puts(self) -> Puts: ...

    @property
    def reads(self) -> Reads: ...

    @property
    def waiting(self) -> Waits: ...

    @property
    def store_host(self) -> bytes:
        """As records name it."""

    def status(self, request_id: int) -> StatusResponse: ...

    def request(self, session: BrokerSession, message: AnyBrokerMessage, frame: Frame) -> bool:
        """Of a kind that not every broker knows; False: neither does this one."""

    def lost(self, session: BrokerSession) -> None:
        """Its connection has ended."""


class ServedGroups(Protocol):
    """Topics and consumer groups of a classic broker. On its loop, but for `grown`."""

    def open(self, puts: Puts, reads: Reads, loop: AbstractEventLoop) -> Puts:
        """The store's services are about to run. Returns what takes the sends of clients."""

    def grown(self, keys: list[QueueKey]) -> None:
        """More is shown of these queues. Any thread."""

    def look(self) -> None:
        """The role may have changed."""

    def tick(self, now_ms: float) -> None:
        """Every `TICK_MS`."""

    def request(self, session: BrokerSession, message: AnyBrokerMessage, frame: Frame) -> bool: ...

    def lost(self, session: BrokerSession) -> None: ...
