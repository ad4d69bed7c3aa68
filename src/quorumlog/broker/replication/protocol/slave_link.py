"""SlaveLink: the connection to a master, as a slave sees it. Dialect `quorumlog`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from quorumlog.broker.epochs.epoch_history import Epoch, EpochHistory, Peer, judge
from quorumlog.broker.record_batch import QueueKey
from quorumlog.broker.replication.protocol.ha_frames import (
    ROLE,
    AnyHaMessage,
    Codec,
    Data,
    HaCodec,
    Heartbeat,
    Refuse,
    Report,
    SlaveLog,
    Start,
    State,
    Welcome,
    fed,
    history_of,
)
from quorumlog.broker.replication.protocol.record_assembler import RecordAssembler
from quorumlog.broker.store.log_files import LogRecords
from quorumlog.entry_header import Buffer
from quorumlog.errors import ProtocolViolation
from quorumlog.net.hello import WELCOME, Hello, HelloResponse
from quorumlog.version import VERSION


class Follow(NamedTuple):
    """To be done before anything else: store the epoch and the history, cut the own log. Then
    `SlaveLink.follows`."""

    welcome: Welcome
    epoch: Epoch
    history: EpochHistory
    start_offset: int
    cuts: bool
    """The log ends above `start_offset`: what lies there is set aside."""
    begins_anew: bool
    """All of the log lies below the master's first byte, and goes."""

    @property
    def queue_begins(self) -> dict[QueueKey, int] | None:
        """Of the master's queues, with `begins_anew`; None: it has not said."""
        queues = self.welcome.queues
        return None if queues is None else by_queue(queues)


def by_queue(told: dict[str, dict[int, int]]) -> dict[QueueKey, int]:
    return {
        QueueKey(topic, queue_id): value
        for topic, of_topic in told.items()
        for queue_id, value in of_topic.items()
    }


@dataclass(slots=True)
class Work:
    """What has come, in the order in which it is to be done; then `SlaveLink.done`."""

    follow: Follow | None = None
    begin_at: int = -1
    """With --ha-dialect rocketmq, of an empty log: it begins there."""
    records: list[LogRecords] = field(default_factory=list)
    state: State | None = None
    confirm_offset: int = -1
    """-1: nothing was said about it."""
    master_offset: int = -1

    def __bool__(self) -> bool:
        return bool(
            self.follow is not None
            or self.begin_at >= 0
            or self.records
            or self.state is not None
            or self.confirm_offset >= 0
            or self.master_offset >= 0
        )


class LinkToMaster(Protocol):
    """Either dialect's."""

    closed: str
    """Why the connection ends; empty: it lives."""
    refused: bool
    """And it is of no use to try again soon."""
    comes_back: bool
    """It followed, and is to come back at once."""
    is_heard: bool
    """Its master has said something that it understands."""
    master: Peer | None
    out: list[Buffer]

    @property
    def epoch(self) -> Epoch: ...
    @property
    def asks_flush(self) -> bool: ...
    def get_buffer(self) -> memoryview: ...
    def buffer_updated(self, count: int, now_ms: float) -> None: ...
    def take_work(self) -> Work: ...
    def follows(self, start_offset: int) -> None: ...
    def done(self, written: int, flushed: int, now_ms: float) -> None: ...
    def tick(self, now_ms: float) -> None: ...
    def close(self, reason: str) -> None: ...


class OwnLog(NamedTuple):
    """A slave's, when it connects."""

    slave: Peer
    promised: Epoch
    history: EpochHistory
    min_offset: int
    max_offset: int
    file_bytes: int
    is_sync_flush: bool
    master: Peer | None = None
    """Whom it has followed last, as far as it is known."""


class SlaveLink:
    """`closed`: why the connection ends. `refused`: and it is of no use to try again soon."""

    def __init__(
        self,
        own: OwnLog,
        now_ms: float,
        *,
        heartbeat_ms: float,
        silence_ms: float,
        codec: Codec | None = None,
    ) -> None:
        self.closed = ""
        self.is_heard = False
        self.refused = self.comes_back = False
        self.master: Peer | None = None
        self._own = own
        self._codec: Codec = codec or HaCodec()
        self._welcome: Welcome | None = None
        self._assembler: RecordAssembler | None = None
        self._work = Work()
        self._heartbeat_ms, self._silence_ms = heartbeat_ms, silence_ms
        self._heard_ms = self._spoke_ms = now_ms
        self._report: Report | None = None
        self.out: list[Buffer] = []
        self._say(
            Hello(role=ROLE, member_id=own.slave.id, directory_id=own.slave.directory_id, product=ROLE)
        )
        self._say(
            SlaveLog(
                slave=own.slave,
                promised=own.promised,
                runs=list(own.history.runs),
                max_offset=own.max_offset,
                file_bytes=own.file_bytes,
                release=VERSION,
            )
        )

    def _say(self, message: AnyHaMessage) -> None:
        self.out += self._codec.encode(message)

    @property
    def epoch(self) -> Epoch:
        assert self._welcome is not None
        return self._welcome.epoch

    @property
    def asks_flush(self) -> bool:
        return self._welcome is not None and self._welcome.runs[-1].is_flushed

    def get_buffer(self) -> memoryview:
        return self._codec.get_buffer()

    def buffer_updated(self, count: int, now_ms: float) -> None:
        self._took(self._codec.buffer_updated(count), now_ms)

    def feed(self, data: Buffer, now_ms: float) -> None:
        """Bytes that lie elsewhere."""
        self._took(fed(self._codec, data), now_ms)

    def _took(self, messages: Iterable[AnyHaMessage], now_ms: float) -> None:
        self._heard_ms = now_ms
        if self.closed:
            return
        try:
            for message in messages:
                self.is_heard = True
                self._take(message)
                if self.closed:
                    return
        except ProtocolViolation as violation:
            self.close(str(violation))

    def take_work(self) -> Work:
        work, self._work = self._work, Work()
        return work

    def _take(self, message: AnyHaMessage) -> None:
        if isinstance(message, Refuse):
            self.refused = not message.is_for_now
            self.comes_back = message.is_for_now and self._welcome is not None
            self.close(message.message)
        elif isinstance(message, HelloResponse):
            if message.code != WELCOME:
                self.refused = True
                self.close(message.message)
        elif self._welcome is None:
            if not isinstance(message, Welcome):
                raise ProtocolViolation("a master begins with a welcome")
            self._welcomed(message)
        elif isinstance(message, State):
            self._work.state = message
        elif isinstance(message, Data | Heartbeat):
            if isinstance(message, Data):
                self._data(message)
            else:
                self._work.master_offset = message.max_offset
            self._work.confirm_offset = max(self._work.confirm_offset, message.confirm_offset)
        else:
            raise ProtocolViolation(f"a master does not send {type(message).__name__}")

    def _welcomed(self, welcome: Welcome) -> None:
        own = self._own
        epoch = welcome.epoch
        if epoch < own.promised:
            message = (
                f"master {welcome.master.id} is of epoch {epoch}, and {own.promised} was promised: it is"
                " not the master any more"
            )
            self._say(Refuse(message=message, promised=own.promised))
            self.close(message)
            return
        self._welcome = welcome
        self.master = welcome.master
        history = history_of(welcome.runs)
        verdict = judge(
            own.history,
            own.max_offset,
            history,
            welcome.max_offset,
            directory_id=own.slave.directory_id,
        )
        if verdict.problem:
            self._say(Refuse(message=verdict.problem))
            self.refused = True
            self.close(verdict.problem)
            return
        start, anew = verdict.common_offset, False
        low = max(welcome.min_offset, own.min_offset)
        if verdict.cuts and start < low:
            message = (
                f"of the {own.max_offset} bytes of broker {own.slave.id} only {start} are its master's,"
                f" and one of both begins at {low}: what lies between was deleted by age. Stop"
                f" {own.slave.id}, empty its directory, and start it as a slave; if it is on the list,"
                f" then: quorumlog broker add --broker {own.slave.id}"
            )
            self._say(Refuse(message=message))
            self.refused = True
            self.close(message)
            return
        if start < welcome.min_offset:
            start, anew = welcome.min_offset, True
        self._work.follow = Follow(welcome, epoch, history, start, verdict.cuts, anew)

    def follows(self, start_offset: int) -> None:
        """It was done."""
        self._assembler = RecordAssembler(start_offset, self._own.file_bytes)
        self._say(Start(offset=start_offset))

    def _data(self, data: Data) -> None:
        assembler = self._assembler
        if assembler is None or data.offset != assembler.position:
            expected = "none" if assembler is None else assembler.position
            raise ProtocolViolation(f"bytes of {data.offset} on, where {expected} come next")
        self._work.records += assembler.feed(data.body)
        self._work.master_offset = max(self._work.master_offset, data.offset + len(data.body))

    def done(self, written: int, flushed: int, now_ms: float) -> None:
        """What was taken is written, and flushed so far."""
        assert self._welcome is not None
        report = Report(written_offset=written, flushed_offset=flushed)
        if report != self._report and not self.closed:
            self._report = report
            self._spoke_ms = now_ms
            self._say(report)

    def tick(self, now_ms: float) -> None:
        if now_ms >= self._heard_ms + self._silence_ms:
            self.close(f"nothing was heard of the master for {self._silence_ms:.0f} ms")
        elif now_ms >= self._spoke_ms + self._heartbeat_ms and self._report is not None:
            self._spoke_ms = now_ms
            self._say(self._report)

    def close(self, reason: str) -> None:
        self.closed = self.closed or reason
