"""GroupLog: what topics and groups need of the log below them: their commands in it, one behind the
other, each carried out once it is acknowledged. `RaftGroupLog` is one, `ClassicGroupLog` the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from quorumlog.broker.messages.record_batch import QueueKey, RecordBatch
from quorumlog.broker.serving.broker_service import QueueTable, Reads
from quorumlog.broker.store_reader import StoreReader
from quorumlog.broker.wire.group_commands import Command
from quorumlog.errors import LedgerError

if TYPE_CHECKING:
    from quorumlog.broker.serving.broker_session import BrokerSession

Told = Callable[[bytes | LedgerError], None]
"""Gets what the machine answers, or the refusal of the log."""
ToldOffset = Callable[[int | LedgerError], None]
ToldDone = Callable[[LedgerError | None], None]


class Releases(Protocol):
    """How far delayed messages are copied to where they belong, level by level."""

    def begin_of(self, level: int) -> int:
        """Another number: what is known of the level is asked anew."""

    def ask(self, level: int, begin: int, told: ToldOffset) -> None:
        """The offset of the next message to release, as far as it is known."""

    def open(self, level: int, begin: int, told: ToldOffset) -> None:
        """The same, once nothing that an earlier master began can come in any more."""

    def release(self, level: int, begin: int, offset: int, records: RecordBatch, done: ToldDone) -> None:
        """These, which are the level's messages from `offset` on as they belong into their topics.
        With an error the level is opened anew before the next ones; AlreadyCommitted: at once."""

    def skip(self, level: int, begin: int, to_offset: int) -> None:
        """Retention has taken the messages below."""

    def lead(self) -> None:
        """This member is master: nothing of an earlier time is under way."""


class GroupLog(Protocol):
    """On the loop."""

    @property
    def releases(self) -> Releases: ...

    @property
    def queues(self) -> QueueTable: ...

    @property
    def reader(self) -> StoreReader: ...

    @property
    def reads(self) -> Reads: ...

    @property
    def is_up(self) -> bool: ...

    def propose(self, command: Callable[[], Command], told: Told) -> None:
        """In front of all that is proposed later. `command` is called in the moment in which it is
        written."""

    def ask(self, question: bytes, told: Told, session: BrokerSession) -> None:
        """The machine, when all that was acknowledged before is carried out."""

    def confirm(self, told: ToldDone, session: BrokerSession) -> None:
        """That this member is master still, at some moment after this."""

    def end_of(self, key: QueueKey) -> int:
        """Behind the last message of a queue in the whole log of a master."""

    def stored_offset(self, key: QueueKey) -> int:
        """Behind the last message of a queue that anybody may know of."""

    def standing_queues(self, topic: str) -> int:
        """Of a topic that the broker has beside those of the replicated state; 0: there is none."""

    def due_clock_ms(self) -> float:
        """Since 1970, for what is due; -1: not known."""

    def age_clock_ms(self) -> float:
        """The same for how old something is."""

    def refusal_of(self, error: LedgerError) -> LedgerError:
        """As a client of the broker is to have it."""

    def not_master(self) -> LedgerError:
        """Why this member is none."""
