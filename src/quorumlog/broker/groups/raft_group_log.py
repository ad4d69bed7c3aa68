"""RaftGroupLog: topics and groups as a state machine of the replicated log, and releases of delayed
messages in producers' sessions of it.

A level has a session in which a message's number is its offset in the level's queue. So the log itself
knows how far each level is released, and a master that takes over, or does not know what came of its
last append, releases nothing twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from quorumlog.batch import EntryBatch
from quorumlog.broker.dledger.message_entries import MACHINE_NAME as MESSAGES
from quorumlog.broker.dledger.message_entries import entries_of
from quorumlog.broker.groups.group_log import Told, ToldDone, ToldOffset
from quorumlog.broker.groups.group_machine import MACHINE_NAME
from quorumlog.broker.messages.record_batch import QueueKey, RecordBatch
from quorumlog.broker.serving.broker_service import QueueTable, Reads
from quorumlog.broker.store_reader import StoreReader
from quorumlog.broker.wire.group_commands import Command, SkipDelayed, Stand, encode, refusal_in
from quorumlog.broker.wire.group_names import SYSTEM_PREFIX
from quorumlog.entry import AppendReceipt
from quorumlog.errors import LeaderNotReady, LedgerError, ProducerExpired, ResultUnknown
from quorumlog.log_state.control_entries import Epoch
from quorumlog.node import AppendOutcome
from quorumlog.node.applying.machine_driver import Answer
from quorumlog.node.pending_appends import SessionPlace
from quorumlog.node.producer_sessions import Connected, KnownProducer

if TYPE_CHECKING:
    from quorumlog.broker.dledger.dledger_broker import DLedgerBroker
    from quorumlog.broker.serving.broker_session import BrokerSession

TIMEOUT_MS = 5_000
RETRY_MS = 20


def session_of(level: int, begin: int) -> str:
    """`begin`: offset from which its numbers count."""
    return f"{SYSTEM_PREFIX}SCHEDULE%{level}@{begin}"


class RaftGroupLog:
    """On the loop."""

    def __init__(
        self,
        broker: DLedgerBroker,
        wall_ms: Callable[[], float],
        token: Callable[[], bytes],
        begin_of: Callable[[int], int],
    ) -> None:
        """`begin_of`: where a delay level begins by the replicated state."""
        self._broker = broker
        self._wall_ms = wall_ms
        self.releases = SessionReleases(self, broker, token, begin_of)

    @property
    def queues(self) -> QueueTable:
        return self._broker.queues

    @property
    def reader(self) -> StoreReader:
        return self._broker.reader

    @property
    def reads(self) -> Reads:
        return self._broker.reads

    @property
    def is_up(self) -> bool:
        return self._broker.member.is_up

    def propose(self, command: Callable[[], Command], told: Told) -> None:
        def appended(outcome: AppendOutcome) -> None:
            if isinstance(outcome, AppendReceipt):
                (result,) = outcome.results
                unknown = ResultUnknown("it is committed, and what came of it is not known")
                told(unknown if result is None else result)
            else:
                told(self.refusal_of(outcome))

        def append() -> None:
            batch = EntryBatch.from_bodies([encode(command())])
            self._broker.member.append(batch, MACHINE_NAME, TIMEOUT_MS, appended, self)

        self._broker.member.enter(append)

    def ask(self, question: bytes, told: Told, session: BrokerSession) -> None:
        def answered(answer: Answer) -> None:
            told(self.refusal_of(answer) if isinstance(answer, LedgerError) else answer[0])

        member = self._broker.member
        member.enter(lambda: member.ask(MACHINE_NAME, question, TIMEOUT_MS, answered, session), session)

    def confirm(self, told: ToldDone, session: BrokerSession) -> None:
        self.ask(encode(Stand()), lambda answer: told(refusal_in(answer)), session)

    def end_of(self, key: QueueKey) -> int:
        return self._broker.filler.next_offsets.get(key, 0)

    def stored_offset(self, key: QueueKey) -> int:
        return self._broker.log.stored_offset(key)

    def standing_queues(self, topic: str) -> int:
        return 0

    def due_clock_ms(self) -> float:
        """A time that the clocks of a quorum have reached, and this one: one alone may jump. All of them
        may, too, which the log finds out. -1: too few have told theirs."""
        log_ms = self.age_clock_ms()
        if log_ms >= 0 or not self.is_up:
            return log_ms
        return min(self._wall_ms(), self._broker.member.node().raft.quorum_clock_ms)

    def age_clock_ms(self) -> float:
        """The same for ages, for which it is not known either while the log does not believe it."""
        member = self._broker.member
        return min(self._wall_ms(), member.node().log_clock_ms) if member.is_up else -1.0

    def refusal_of(self, error: LedgerError) -> LedgerError:
        return self._broker.refusal_of(error)

    def not_master(self) -> LedgerError:
        member = self._broker.member
        if member.is_up and (refusal := member.refusal_unless_leading()) is not None:
            return self.refusal_of(refusal)
        return LeaderNotReady(
            "the broker becomes master once all that came before is dispatched", retry_after_ms=RETRY_MS
        )


class SessionReleases:
    def __init__(
        self,
        log: RaftGroupLog,
        broker: DLedgerBroker,
        token: Callable[[], bytes],
        begin_of: Callable[[int], int],
    ) -> None:
        self._begin_of = begin_of
        self._log = log
        self._broker = broker
        self._token = token
        self._epochs: dict[int, Epoch] = {}

    def lead(self) -> None:
        self._epochs.clear()

    def begin_of(self, level: int) -> int:
        return self._begin_of(level)

    def ask(self, level: int, begin: int, told: ToldOffset) -> None:
        def shown(answer: KnownProducer | LedgerError) -> None:
            if isinstance(answer, KnownProducer):
                told(begin + answer.session.last_sequence + 1)
            elif isinstance(answer, ProducerExpired):
                told(begin)  # nothing was ever released
            else:
                told(answer)

        member = self._broker.member
        member.enter(lambda: member.node().sessions.show(session_of(level, begin), shown, self))

    def open(self, level: int, begin: int, told: ToldOffset) -> None:
        self._broker.member.enter(lambda: self._connect(level, begin, None, told))

    def _connect(self, level: int, begin: int, ends: Epoch | None, told: ToldOffset) -> None:
        """The session's numbers are certain then: it ends whatever an earlier one had on its way."""

        def connected(answer: Connected | LedgerError) -> None:
            if isinstance(answer, LedgerError):
                told(answer)
            elif not answer.opened:
                self._connect(level, begin, answer.epoch, told)
            else:
                self._epochs[level] = answer.epoch
                told(begin + answer.last_sequence + 1)

        node = self._broker.member.node()
        deadline_ms = node.deadline_ms(TIMEOUT_MS)
        session = session_of(level, begin)
        node.sessions.connect(session, self._token(), ends, deadline_ms, connected, self)

    def release(self, level: int, begin: int, offset: int, records: RecordBatch, done: ToldDone) -> None:
        place = SessionPlace(session_of(level, begin), self._epochs[level], offset - begin)

        def appended(outcome: AppendOutcome) -> None:
            done(None if isinstance(outcome, AppendReceipt) else outcome)

        def append() -> None:
            self._broker.member.append(
                *(entries_of(records), MESSAGES, TIMEOUT_MS, appended, self),
                place=place,
                awaits_results=False,
            )

        self._broker.member.enter(append)

    def skip(self, level: int, begin: int, to_offset: int) -> None:
        self._log.propose(lambda: SkipDelayed(level, begin, to_offset), lambda outcome: None)
