"""MasterLink: one slave's connection, as its master sees it. Dialect `quorumlog`."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from quorumlog.broker.epochs.epoch_history import Epoch, EpochHistory, Peer, RunKey, Verdict, judge
from quorumlog.broker.replication.protocol.acknowledgements import Mark
from quorumlog.broker.replication.protocol.ha_frames import (
    GREETING_BYTES,
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
    is_old_greeting,
)
from quorumlog.broker.replication.protocol.old_dialect import OldSlaveCodec
from quorumlog.entry_header import Buffer
from quorumlog.errors import ProtocolViolation
from quorumlog.net.hello import NOT_SERVED, Hello, HelloResponse
from quorumlog.version import VERSION


class Leadership(NamedTuple):
    """What a master says of itself."""

    master: Peer
    epoch: Epoch
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

    @property
    def old_slave_problem(self) -> str:
        """Why a slave of the release before cannot be served; empty: it can."""

    def is_ahead(self, host: str, offset: int) -> bool:
        """A slave without epochs whose log ends there has, or had, more than the own log."""

    def slave_came(
        self, slave: Peer, link: LinkToSlave, run: RunKey | None, release: str = ""
    ) -> Mark | None:
        """A slave that may follow; an older link of it is closed. `run`: whose history it has stored.
        `release`: empty where it does not say it. None: another run has begun since."""

    def slave_reported(self, mark: Mark, written: int, flushed: int) -> None: ...

    def newer_epoch(self, epoch: Epoch, directory_id: str) -> None:
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
    def is_greeted(self) -> bool:
        """Who dialled has said all that a slave says first, and may follow."""

    @property
    def mark(self) -> Mark | None: ...

    def state(self, state: State) -> None: ...


class MasterLink:
    def __init__(
        self,
        side: MasterSide,
        now_ms: float,
        *,
        heartbeat_ms: float,
        silence_ms: float,
        refusal: str = "",
        foreign: Callable[[str], str] = lambda slave_id: "",
    ) -> None:
        """`refusal`: why nobody is let in just now; empty: slaves are. `foreign`: why who has dialled is
        not the slave of this id; empty: it may be."""
        self._foreign = foreign
        self.closed = ""
        self.next_offset = -1
        self.out: list[Buffer] = []
        self.most_chunk_bytes = 4 << 20
        self._side = side
        self._leads = side.leadership
        self._refusal = refusal
        self._first = b""
        self._codec: Codec | None = None
        """None: it has not said yet what it speaks."""
        self._asked: SlaveLog | None = None
        self.mark: Mark | None = None
        self._heartbeat_ms, self._silence_ms = heartbeat_ms, silence_ms
        self._heard_ms = self._spoke_ms = now_ms
        self._told_offset = -1
        """Up to where the slave was told that the log is confirmed."""

    def feed(self, data: Buffer, now_ms: float) -> None:
        self._heard_ms = now_ms
        if self.closed:
            return
        if self._codec is None:
            data = self._first = self._first + bytes(data)
            if len(data) < GREETING_BYTES:
                return
            is_old = is_old_greeting(data)
            self._codec = OldSlaveCodec(self._leads.history) if is_old else HaCodec()
        try:
            for message in fed(self._codec, data):
                self._take(message)
                if self.closed:
                    return
            if isinstance(self._codec, OldSlaveCodec) and (state := self._codec.told_again()):
                self._say(state)
        except ProtocolViolation as violation:
            self.close(str(violation))

    @property
    def is_greeted(self) -> bool:
        return self._asked is not None

    def _say(self, message: AnyHaMessage) -> None:
        if self._codec is not None:
            self.out += self._codec.encode(message)

    def _take(self, message: AnyHaMessage) -> None:
        if self._asked is None:
            if isinstance(message, Hello):
                self._hello(message)
            else:
                self._greet(message)
        elif isinstance(message, Refuse):
            if message.promised > self._leads.epoch:
                self._side.newer_epoch(message.promised, self._asked.slave.directory_id)
            self.close(message.message)
        elif self.mark is None:
            self._start(message)
        elif isinstance(message, Report):
            high = self._side.max_offset  # a blank counts to the end of its file from its head on
            if not message.flushed_offset <= message.written_offset <= high:
                raise ProtocolViolation(f"{message} of a slave, and the log ends at {high}")
            self._side.slave_reported(self.mark, message.written_offset, message.flushed_offset)
        else:
            raise ProtocolViolation(f"a slave does not send {type(message).__name__}")

    def _hello(self, hello: Hello) -> None:
        if hello.role == ROLE:
            self._say(HelloResponse(member_id=self._leads.master.id, product=ROLE))
            return
        words = (
            f"this is the port for the slaves of broker {self._leads.master.id}; it listens at"
            f" {self._leads.master.address}"
        )
        self._say(HelloResponse(code=NOT_SERVED, message=words, product=ROLE))
        self.close(words)

    def _greet(self, asked: AnyHaMessage) -> None:
        if not isinstance(asked, SlaveLog):
            raise ProtocolViolation("a connection begins with a hello")
        assert self._codec is not None
        leads = self._leads
        if self._refusal:
            self.end(self._refusal)
        elif foreign := self._foreign(asked.slave.id):
            self.refuse(f"this is not broker {asked.slave.id}: {foreign}")
        elif self._codec.is_old and asked.release:
            self.end("this master speaks what the slave does, too")
        elif asked.promised > leads.epoch:
            self._side.newer_epoch(asked.promised, asked.slave.directory_id)
            self.refuse(f"the slave has promised epoch {asked.promised}, this one is {leads.epoch}")
        elif asked.slave.id == leads.master.id:
            self.refuse(f"master and slave are both called {leads.master.id}: give each its own --id")
        elif asked.file_bytes != leads.file_bytes:
            self.refuse(
                f"the slave's files have {asked.file_bytes} bytes, the master's {leads.file_bytes}:"
                " set mapped_file_size_commit_log alike"
            )
        elif self._codec.is_old and (problem := self._side.old_slave_problem):
            self.refuse(f"broker {asked.slave.id} is of the release before: upgrade it. {problem}")
        else:
            welcome = self._welcome(asked)
            if self._codec.is_old and (welcome.queues is not None or welcome.alive_from):
                self.refuse(
                    f"broker {asked.slave.id} is of the release before: upgrade it. Where queues begin"
                    " would not be told to it"
                )
                return
            self._asked = asked
            self._say(welcome)

    def _welcome(self, asked: SlaveLog) -> Welcome:
        side, leads = self._side, self._leads
        low, high, queues = side.min_offset, side.max_offset, None
        if low and self._judged(asked, high).common_offset < low:
            low, queues = side.queue_begins()
        return Welcome(
            master=leads.master,
            runs=list(leads.history.runs),
            min_offset=low,
            max_offset=high,
            queues=queues,
            alive_from=side.alive_from,
            release=VERSION,
        )

    def _judged(self, asked: SlaveLog, end: int) -> Verdict:
        return judge(
            history_of(asked.runs),
            asked.max_offset,
            self._leads.history,
            end,
            directory_id=asked.slave.directory_id,
        )

    def _start(self, start: AnyHaMessage) -> None:
        asked = self._asked
        assert asked is not None
        if not isinstance(start, Start):
            raise ProtocolViolation(
                f"a slave answers a welcome with a start, not {type(start).__name__}"
            )
        low, high = self._side.min_offset, self._side.max_offset
        verdict = self._judged(asked, high)
        if verdict.problem:
            self.refuse(verdict.problem)
            return
        # Retention may have moved on since the welcome: then the slave asks again.
        if start.offset < low or start.offset > high:
            self.refuse(f"offset {start.offset} is not in {low} .. {high}")
            return
        if start.offset != verdict.common_offset and start.offset % asked.file_bytes:
            raise ProtocolViolation(f"a start at {start.offset}, not at {verdict.common_offset}")
        self.next_offset = start.offset
        self.mark = self._side.slave_came(asked.slave, self, self._run, asked.release)
        if self.mark is None:
            self.next_offset = -1
            self.end("another run has begun")

    @property
    def _run(self) -> RunKey:
        last = self._leads.history.last
        assert last is not None
        return last.key

    @property
    def is_of_newest_run(self) -> bool:
        return self._side.run == self._run

    def data(self, body: bytes) -> list[Buffer]:
        offset = self.next_offset
        assert offset >= 0 and self._codec is not None, "not started"
        self.next_offset += len(body)
        self._told_offset = self._side.confirm_offset
        return self._codec.encode(Data(offset=offset, confirm_offset=self._told_offset, body=body))

    def state(self, state: State) -> None:
        self._say(state)

    def spoke(self, now_ms: float) -> None:
        self._spoke_ms = now_ms

    def confirmed(self) -> None:
        """Told at once: readers of the slave wait for it."""
        if self._side.confirm_offset > self._told_offset:
            self._beat()

    def _beat(self) -> None:
        side = self._side
        if self.next_offset >= 0 and not self.closed:
            self._told_offset = side.confirm_offset
            self._say(Heartbeat(max_offset=side.max_offset, confirm_offset=self._told_offset))

    def tick(self, now_ms: float) -> None:
        if now_ms >= self._heard_ms + self._silence_ms:
            self.close(f"nothing was heard for {self._silence_ms:.0f} ms")
        elif now_ms >= self._spoke_ms + self._heartbeat_ms and self.next_offset >= 0:
            self._spoke_ms = now_ms
            self._beat()

    def refuse(self, message: str, *, is_for_now: bool = False) -> None:
        self._say(Refuse(message=message, is_for_now=is_for_now))
        self.close(message)

    def end(self, reason: str) -> None:
        self.refuse(reason, is_for_now=True)

    def close(self, reason: str) -> None:
        self.closed = self.closed or reason
