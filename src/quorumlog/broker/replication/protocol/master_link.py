"""MasterLink: one slave's connection, as its master sees it. Dialect `quorumlog`."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from quorumlog.broker.replication.protocol.acknowledgements import Mark
from quorumlog.broker.replication.protocol.epoch_history import EpochHistory, judge
from quorumlog.broker.replication.protocol.ha_frames import (
    HA_PROTOCOL,
    MAGIC,
    HaDecoder,
    HaFrame,
    Heartbeat,
    Hello,
    Peer,
    Refuse,
    Report,
    Start,
    State,
    Welcome,
    encode_control,
    encode_data,
    encode_heartbeat,
)
from quorumlog.entry_header import Buffer
from quorumlog.errors import ProtocolViolation
from quorumlog.version import VERSION


class Reign(NamedTuple):
    """What a master says of itself."""

    master: Peer
    epoch: int
    run: int
    history: EpochHistory
    file_bytes: int
    asks_flush: bool


class MasterSide(Protocol):
    """What a link needs of its master. It changes while the link lives."""

    @property
    def reign(self) -> Reign: ...
    @property
    def min_offset(self) -> int: ...
    @property
    def max_offset(self) -> int: ...
    @property
    def confirm_offset(self) -> int: ...

    def queue_begins(self) -> tuple[int, dict[str, dict[int, int]]]:
        """Where a log may begin, and each queue by topic with it; as `Welcome.queues`."""

    def is_ahead(self, host: str, offset: int) -> bool:
        """A slave without epochs whose log ends there has, or had, more than the own log."""

    def slave_came(self, slave: Peer, link: LinkToSlave, release: str = "") -> Mark:
        """A slave that may follow; an older link of it is closed. `release`: empty where it does not say
        it."""

    def slave_reported(self, mark: Mark, written: int, flushed: int, state_version: int) -> None: ...

    def newer_epoch(self, epoch: int) -> None:
        """Somebody has promised it: this reign is over."""


class LinkToSlave(Protocol):
    """Either dialect's."""

    closed: str
    """Why the connection ends; empty: it lives."""
    next_offset: int
    """Of the bytes that are sent next; -1: none are yet."""
    out: list[Buffer]
    """To be sent, and emptied."""
    most_chunk_bytes: int

    def feed(self, data: Buffer, now_ms: float) -> None: ...

    def data(self, body: bytes) -> list[Buffer]:
        """As they go out, from `next_offset` on."""

    def tick(self, now_ms: float) -> None: ...
    def close(self, reason: str) -> None: ...
    def spoke(self, now_ms: float) -> None: ...

    def confirmed(self) -> None:
        """More is confirmed than the slave was told."""

    @property
    def mark(self) -> Mark | None: ...

    def state(self, state: State) -> None: ...


class MasterLink:
    def __init__(
        self, side: MasterSide, now_ms: float, *, heartbeat_ms: float, silence_ms: float
    ) -> None:
        self.closed = ""
        self.next_offset = -1
        self.out: list[Buffer] = []
        self.most_chunk_bytes = 4 << 20
        self._side = side
        self._reign = side.reign
        self._decoder = HaDecoder()
        self._hello: Hello | None = None
        self.mark: Mark | None = None
        self._heartbeat_ms, self._silence_ms = heartbeat_ms, silence_ms
        self._heard_ms = self._spoke_ms = now_ms

    def feed(self, data: Buffer, now_ms: float) -> None:
        self._heard_ms = now_ms
        try:
            for frame in self._decoder.feed(data):
                self._take(frame)
                if self.closed:
                    return
        except ProtocolViolation as violation:
            self.close(str(violation))

    def _take(self, frame: HaFrame) -> None:
        if self._hello is None:
            self._greet(frame)
        elif isinstance(frame, Refuse):
            if frame.promised_epoch > self._reign.epoch:
                self._side.newer_epoch(frame.promised_epoch)
            self.close(frame.message)
        elif self.mark is None:
            self._start(frame)
        elif isinstance(frame, Report):
            # Whoever has promised another epoch reports to nobody else.
            if frame.epoch != self._reign.epoch:
                raise ProtocolViolation(f"a report of epoch {frame.epoch} in {self._reign.epoch}")
            high = self._side.max_offset  # a blank counts to the end of its file from its head on
            if not frame.flushed_offset <= frame.written_offset <= high:
                raise ProtocolViolation(f"{frame} of a slave, and the log ends at {high}")
            self._side.slave_reported(
                self.mark, frame.written_offset, frame.flushed_offset, frame.state_version
            )
        else:
            raise ProtocolViolation(f"a slave does not send {type(frame).__name__}")

    def _greet(self, frame: HaFrame) -> None:
        if not isinstance(frame, Hello) or frame.magic != MAGIC:
            raise ProtocolViolation("a connection begins with a hello")
        reign = self._reign
        if frame.protocol != HA_PROTOCOL:
            self.refuse(f"this master speaks protocol {HA_PROTOCOL}, the slave {frame.protocol}")
        elif frame.promised_epoch > reign.epoch:
            self._side.newer_epoch(frame.promised_epoch)
            self.refuse(
                f"the slave has promised epoch {frame.promised_epoch}, this one is {reign.epoch}"
            )
        elif frame.slave.id == reign.master.id:
            self.refuse(f"master and slave are both called {reign.master.id}: give each its own --id")
        elif frame.file_bytes != reign.file_bytes:
            self.refuse(
                f"the slave's files have {frame.file_bytes} bytes, the master's {reign.file_bytes}:"
                " set mapped_file_size_commit_log alike"
            )
        else:
            self._hello = frame
            self.out.append(encode_control(self._welcome(frame)))

    def _welcome(self, hello: Hello) -> Welcome:
        side, reign = self._side, self._reign
        low, high, queues = side.min_offset, side.max_offset, None
        history = EpochHistory(hello.history)
        if low and judge(history, hello.max_offset, reign.history, high).common_offset < low:
            low, queues = side.queue_begins()
        return Welcome(
            master=reign.master,
            epoch=reign.epoch,
            run=reign.run,
            history=reign.history.triples(),
            min_offset=low,
            max_offset=high,
            asks_flush=reign.asks_flush,
            queues=queues,
            release=VERSION,
        )

    def _start(self, frame: HaFrame) -> None:
        hello = self._hello
        assert hello is not None
        if not isinstance(frame, Start):
            raise ProtocolViolation(
                f"a slave answers a welcome with a start, not {type(frame).__name__}"
            )
        low, high = self._side.min_offset, self._side.max_offset
        verdict = judge(EpochHistory(hello.history), hello.max_offset, self._reign.history, high)
        if verdict.problem:
            self.refuse(verdict.problem)
            return
        # Retention may have moved on since the welcome: then the slave asks again.
        if frame.offset < low or frame.offset > high:
            self.refuse(f"offset {frame.offset} is not in {low} .. {high}")
            return
        if frame.offset != verdict.common_offset and frame.offset % hello.file_bytes:
            raise ProtocolViolation(f"a start at {frame.offset}, not at {verdict.common_offset}")
        self.next_offset = frame.offset
        self.mark = self._side.slave_came(hello.slave, self, hello.release)

    def data(self, body: bytes) -> list[Buffer]:
        offset = self.next_offset
        assert offset >= 0, "not started"
        self.next_offset += len(body)
        reign = self._reign
        return encode_data(reign.epoch, reign.run, offset, self._side.confirm_offset, body)

    def state(self, state: State) -> None:
        self.out.append(encode_control(state))

    def spoke(self, now_ms: float) -> None:
        self._spoke_ms = now_ms

    def confirmed(self) -> None:
        """Told at once: readers of the slave wait for it."""
        reign, side = self._reign, self._side
        if self.next_offset >= 0 and not self.closed:
            beat = Heartbeat(reign.epoch, reign.run, side.max_offset, side.confirm_offset)
            self.out.append(encode_heartbeat(beat))

    def tick(self, now_ms: float) -> None:
        if now_ms >= self._heard_ms + self._silence_ms:
            self.close(f"nothing was heard for {self._silence_ms:.0f} ms")
        elif now_ms >= self._spoke_ms + self._heartbeat_ms and self.next_offset >= 0:
            self._spoke_ms = now_ms
            self.confirmed()

    def refuse(self, message: str, *, is_for_now: bool = False) -> None:
        self.out.append(encode_control(Refuse(message=message, is_for_now=is_for_now)))
        self.close(message)

    def close(self, reason: str) -> None:
        self.closed = self.closed or reason
