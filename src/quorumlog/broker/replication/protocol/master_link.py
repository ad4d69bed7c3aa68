"""MasterLink: one slave's connection, as its master sees it. Dialect `quorumlog`."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from quorumlog.broker.epochs.epoch_history import Epoch, EpochHistory, Peer, RunKey, Verdict, judge
from quorumlog.broker.replication.protocol.acknowledgements import Mark
from quorumlog.broker.replication.protocol.ha_frames import (
    HA_PROTOCOL,
    MAGIC,
    HaDecoder,
    HaFrame,
    Heartbeat,
    Hello,
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


class Leadership(NamedTuple):
    """What a master says of itself."""

    master: Peer
    epoch: Epoch
    run: int
    history: EpochHistory
    file_bytes: int


class MasterSide(Protocol):
    """What a link needs of its master. It changes while the link lives."""

    @property
    def leadership(self) -> Leadership: ...
    @property
    def run(self) -> RunKey:
        """The newest. It is another one before the first byte of that is written."""

    @property
    def min_offset(self) -> int: ...
    @property
    def max_offset(self) -> int: ...
    @property
    def confirm_offset(self) -> int: ...

    def queue_begins(self) -> tuple[int, dict[str, dict[int, int]]]:
        """Where a log may begin, and each queue by topic with it; as `Welcome.queues`."""

    @property
    def alive_from(self) -> dict[str, dict[int, int]]:
        """As `Welcome.alive_from`."""

    def is_ahead(self, host: str, offset: int) -> bool:
        """A slave without epochs whose log ends there has, or had, more than the own log."""

    def slave_came(
        self, slave: Peer, link: LinkToSlave, run: RunKey | None, release: str = ""
    ) -> Mark | None:
        """A slave that may follow; an older link of it is closed. `run`: whose history it has stored.
        `release`: empty where it does not say it. None: another run has begun since."""

    def slave_reported(self, mark: Mark, written: int, flushed: int) -> None: ...

    def newer_epoch(self, epoch: Epoch) -> None:
        """A slave has promised it: this master leads no more."""


class LinkToSlave(Protocol):
    """Either dialect's."""

    closed: str
    """Why the connection ends; empty: it lives."""
    next_offset: int
    """Of the bytes that are sent next; -1: none are yet."""
    out: list[Buffer]
    """To be sent, and emptied."""
    most_chunk_bytes: int

    @property
    def is_of_newest_run(self) -> bool:
        """Asked after the log's end was: bytes of the next run are for a link that has begun in that."""

    def feed(self, data: Buffer, now_ms: float) -> None: ...

    def data(self, body: bytes) -> list[Buffer]:
        """As they go out, from `next_offset` on."""

    def tick(self, now_ms: float) -> None: ...
    def close(self, reason: str) -> None: ...

    def end(self, reason: str) -> None:
        """Close it, so that the slave comes back at once."""

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
        self._leads = side.leadership
        self._decoder = HaDecoder()
        self._hello: Hello | None = None
        self.mark: Mark | None = None
        self._heartbeat_ms, self._silence_ms = heartbeat_ms, silence_ms
        self._heard_ms = self._spoke_ms = now_ms

    def feed(self, data: Buffer, now_ms: float) -> None:
        self._heard_ms = now_ms
        if self.closed:
            return
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
            promised = Epoch(frame.promised_epoch, frame.promised_leader)
            if promised > self._leads.epoch:
                self._side.newer_epoch(promised)
            self.close(frame.message)
        elif self.mark is None:
            self._start(frame)
        elif isinstance(frame, Report):
            # Whoever has promised another epoch reports to nobody else.
            if frame.epoch != self._leads.epoch.number:
                raise ProtocolViolation(f"a report of epoch {frame.epoch} in {self._leads.epoch}")
            high = self._side.max_offset  # a blank counts to the end of its file from its head on
            if not frame.flushed_offset <= frame.written_offset <= high:
                raise ProtocolViolation(f"{frame} of a slave, and the log ends at {high}")
            self._side.slave_reported(self.mark, frame.written_offset, frame.flushed_offset)
        else:
            raise ProtocolViolation(f"a slave does not send {type(frame).__name__}")

    def _greet(self, frame: HaFrame) -> None:
        if not isinstance(frame, Hello) or frame.magic != MAGIC:
            raise ProtocolViolation("a connection begins with a hello")
        leads = self._leads
        if frame.protocol != HA_PROTOCOL:
            self.refuse(
                f"this master speaks protocol {HA_PROTOCOL} of replication, the slave {frame.protocol}:"
                " give all brokers of a group the same release"
            )
        elif frame.promised > leads.epoch:
            self._side.newer_epoch(frame.promised)
            self.refuse(f"the slave has promised epoch {frame.promised}, this one is {leads.epoch}")
        elif frame.slave.id == leads.master.id:
            self.refuse(f"master and slave are both called {leads.master.id}: give each its own --id")
        elif frame.file_bytes != leads.file_bytes:
            self.refuse(
                f"the slave's files have {frame.file_bytes} bytes, the master's {leads.file_bytes}:"
                " set mapped_file_size_commit_log alike"
            )
        else:
            self._hello = frame
            self.out.append(encode_control(self._welcome(frame)))

    def _welcome(self, hello: Hello) -> Welcome:
        side, leads = self._side, self._leads
        low, high, queues = side.min_offset, side.max_offset, None
        if low and self._judged(hello, high).common_offset < low:
            low, queues = side.queue_begins()
        return Welcome(
            master=leads.master,
            epoch=leads.epoch.number,
            leader=leads.epoch.leader,
            run=leads.run,
            runs=list(leads.history.runs),
            min_offset=low,
            max_offset=high,
            queues=queues,
            alive_from=side.alive_from,
            release=VERSION,
        )

    def _judged(self, hello: Hello, end: int) -> Verdict:
        return judge(
            EpochHistory(hello.runs),
            hello.max_offset,
            self._leads.history,
            end,
            directory_id=hello.slave.directory_id,
        )

    def _start(self, frame: HaFrame) -> None:
        hello = self._hello
        assert hello is not None
        if not isinstance(frame, Start):
            raise ProtocolViolation(
                f"a slave answers a welcome with a start, not {type(frame).__name__}"
            )
        low, high = self._side.min_offset, self._side.max_offset
        verdict = self._judged(hello, high)
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
        self.mark = self._side.slave_came(hello.slave, self, self._run, hello.release)
        if self.mark is None:
            self.next_offset = -1
            self.end("another run has begun")

    @property
    def _run(self) -> RunKey:
        return RunKey(*self._leads.epoch, self._leads.run)

    @property
    def is_of_newest_run(self) -> bool:
        return self._side.run == self._run

    def data(self, body: bytes) -> list[Buffer]:
        offset = self.next_offset
        assert offset >= 0, "not started"
        self.next_offset += len(body)
        leads = self._leads
        return encode_data(leads.epoch.number, leads.run, offset, self._side.confirm_offset, body)

    def state(self, state: State) -> None:
        self.out.append(encode_control(state))

    def spoke(self, now_ms: float) -> None:
        self._spoke_ms = now_ms

    def confirmed(self) -> None:
        """Told at once: readers of the slave wait for it."""
        leads, side = self._leads, self._side
        if self.next_offset >= 0 and not self.closed:
            beat = Heartbeat(leads.epoch.number, leads.run, side.max_offset, side.confirm_offset)
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

    def end(self, reason: str) -> None:
        self.refuse(reason, is_for_now=True)

    def close(self, reason: str) -> None:
        self.closed = self.closed or reason
