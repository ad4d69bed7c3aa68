"""Master and slave as values, in the dialect `quorumlog`: no sockets, files or clocks."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, cast

import msgspec
from isal.isal_zlib import crc32
from msgspec import Meta
from msgspec.structs import replace

from quorumlog.batch import EntryBatch
from quorumlog.broker.epochs import (
    CopyList,
    Epoch,
    EpochHistory,
    FollowVerdict,
    Peer,
    Run,
    RunKey,
    judge,
)
from quorumlog.broker.message import BLANK_BYTES
from quorumlog.broker.record_batch import QueueKey, RecordBatch, ScanStop, scan_records
from quorumlog.broker.replication.acknowledgements import SlaveProgress
from quorumlog.broker.store.log_files import LogRecords, verified
from quorumlog.entry_header import HEADER_BYTES, Buffer
from quorumlog.errors import ProtocolViolation
from quorumlog.net.frame import MAGIC, FrameDecoder, encode_frame
from quorumlog.net.hello import NOT_SERVED, WELCOME, Hello, HelloResponse
from quorumlog.version import VERSION
from quorumlog.wire.client_message import ClientMessage, Int, Text

if TYPE_CHECKING:
    from quorumlog.broker.replication.replica import BrokerReplica

_SIZE = struct.Struct(">I")


class RecordAssembler:
    """Whole records out of pieces of a commit log that may be cut anywhere."""

    def __init__(self, position: int, file_bytes: int) -> None:
        """`position`: where a record begins, which is the first one that will come."""
        self.position = position
        """Of the next byte that is expected."""
        self.whole_position = position
        """After the last complete record, and after the blank that follows it."""
        self._file_bytes = file_bytes
        self._pending = bytearray()
        self._filler_bytes = 0

    def feed(self, data: Buffer) -> list[LogRecords]:
        """The complete records. A blank has none, and ends its file. Raises ProtocolViolation."""
        view = memoryview(data).cast("B")
        self.position += len(view)
        found: list[LogRecords] = []
        while len(view):
            if self._filler_bytes:
                skipped = min(self._filler_bytes, len(view))
                self._filler_bytes -= skipped
                view = view[skipped:]
                continue
            if self._pending:
                wanted = self._wanted()
                self._pending += view[:wanted]
                view = view[wanted:]
                if self._wanted() == 0:
                    whole, self._pending = self._pending, bytearray()
                    rest = self._take(memoryview(whole), found)
                    assert not rest, len(rest)
                continue
            view = self._take(view, found)
            if len(view) and not self._filler_bytes:
                self._pending = bytearray(view)
                break
        return found

    def _wanted(self) -> int:
        """How many bytes the record that has begun still lacks, as far as that is known."""
        held = len(self._pending)
        if held < BLANK_BYTES:
            return BLANK_BYTES - held
        scan = scan_records(self._pending)
        return 0 if scan.stop is not ScanStop.BYTES or len(scan.starts) else scan.wanted_bytes - held

    def _take(self, view: memoryview, found: list[LogRecords]) -> memoryview:
        """The whole records that `view` begins with, and a blank; returns what follows."""
        position = self.whole_position
        scan = scan_records(view)
        if len(scan.starts):
            records = RecordBatch(view[: scan.stop_at], scan.starts, scan.sizes)
            run = LogRecords(position, records, position + scan.stop_at)
            _, problem = verified(run, check_bodies=False)
            if problem:
                raise ProtocolViolation(f"the data sent from offset {position} on {problem}")
            if run.next_position > self._file_stop(position):
                raise ProtocolViolation(f"the records from {position} on run over the end of a file")
            found.append(run)
            self.whole_position = run.next_position
            view = view[scan.stop_at :]
        if scan.stop is ScanStop.BLANK:
            position = self.whole_position
            size = _SIZE.unpack_from(view)[0]
            stop = self._file_stop(position)
            if position + size != stop:
                raise ProtocolViolation(f"the blank at {position} does not end with its file")
            head = RecordBatch.contiguous(view[:BLANK_BYTES], [])
            found.append(LogRecords(position, head, stop))
            self.whole_position = stop
            self._filler_bytes = size - BLANK_BYTES
            return view[BLANK_BYTES:]
        if scan.stop is not ScanStop.BYTES or scan.wanted_bytes > self._file_bytes:
            raise ProtocolViolation(
                f"the data sent from offset {self.whole_position} on is not a record"
            )
        return view

    def _file_stop(self, position: int) -> int:
        return (position // self._file_bytes + 1) * self._file_bytes


# ----------------------------------------------------------------
# What a master and a slave say in the dialect `quorumlog`: frames of the one wire, a Hello first.
#
# The slave connects and says Hello (role `replica`) and what its log is, SlaveLog; WELCOME and START
# agree on where it goes on, in one run of the master; from then on DATA and HEARTBEAT go one way,
# REPORT the other. Bytes of the commit log are the batch of a DATA frame, never over the end of a file.

GREETING_BYTES = len(MAGIC)
NO_FRAMES = "these are no frames of the HA dialect quorumlog; a Java broker needs --ha-dialect rocketmq"
USERS_HEARTBEAT_MS = 1000.0
"""Where there are users both sides say something so often: a slave knows them for as long as it hears
of a master that hears of its slaves."""
GROUP = "replica"
ROLE = "replica"


class SlaveLog(ClientMessage, frozen=True, kw_only=True, tag=110):
    """After the Hello."""

    slave: Peer
    promised: Epoch
    runs: list[Run]
    max_offset: Int
    file_bytes: Int
    release: Text = ""
    """An earlier one does not say it. So in `Welcome`."""


class Welcome(ClientMessage, frozen=True, kw_only=True, tag=111):
    master: Peer
    runs: Annotated[list[Run], Meta(min_length=1)]
    """The last is the one that this connection is of."""
    min_offset: Int
    max_offset: Int
    release: Text = ""
    queues: dict[Text, dict[Int, Int]] | None = None
    """To one that begins at `min_offset`: of each queue of a topic the number of its first message from
    there on, or of its next one. None: it continues, or the master is of an older release."""
    alive_from: dict[Text, dict[Int, Int]] = msgspec.field(default_factory=dict)
    """As `ConsumeQueues.alive_from`, by topic."""

    @property
    def epoch(self) -> Epoch:
        return self.runs[-1].epoch

    @property
    def run(self) -> RunKey:
        return self.runs[-1].key


class Start(ClientMessage, frozen=True, kw_only=True, tag=112):
    offset: Int


class State(ClientMessage, frozen=True, kw_only=True, tag=113):
    """A slave's state apart from the log."""

    topics: dict[Text, Int]
    is_run_confirmed: bool
    copy_list: CopyList | None = None
    """Of a master of the release before, whose history has none."""
    has_users: bool = False
    """Later records may hold users."""
    has_had_users: bool = False
    """If the log names none, they are lost."""


class Refuse(ClientMessage, frozen=True, kw_only=True, tag=114):
    message: Text
    promised: Epoch = Epoch()
    is_for_now: bool = False
    """It is of use to try again soon: the broker that is asked may be about to lead."""


class Data(ClientMessage, frozen=True, kw_only=True, tag=115):
    offset: Int
    confirm_offset: Int
    body: bytes = b""
    """Here if it fits into a frame's control part."""
    sent_ms: Int = 0
    """By the sender's clock. So in `Heartbeat` and `Report`."""
    echo_ms: Int = 0
    """The newest received from the other side before this was sent; 0: none yet."""
    users_age_ms: Int = 0
    """So long ago the users were not old for sure that the master knows."""


class Heartbeat(ClientMessage, frozen=True, kw_only=True, tag=116):
    max_offset: Int
    confirm_offset: Int
    sent_ms: Int = 0
    echo_ms: Int = 0
    users_age_ms: Int = 0


class Report(ClientMessage, frozen=True, kw_only=True, tag=117):
    written_offset: Int
    flushed_offset: Int
    sent_ms: Int = 0
    echo_ms: Int = 0


HaMessage = SlaveLog | Welcome | Start | State | Refuse | Data | Heartbeat | Report
AnyHaMessage = HaMessage | Hello | HelloResponse
_DECODER: msgspec.msgpack.Decoder[tuple[str, AnyHaMessage]] = msgspec.msgpack.Decoder(
    tuple[str, AnyHaMessage]
)


def fed(codec: HaCodec | OldSlaveCodec | OldMasterCodec, data: Buffer) -> Iterable[AnyHaMessage]:
    """Bytes that lie elsewhere."""
    rest = memoryview(data).cast("B")
    while rest:
        into = codec.get_buffer()
        count = min(len(into), len(rest))
        into[:count] = rest[:count]
        yield from codec.buffer_updated(count)
        rest = rest[count:]


class HaCodec:
    """Bytes go where `get_buffer` says, which is never empty; then `buffer_updated` gives what they say.
    It raises ProtocolViolation, after which nothing more may come."""

    def __init__(self) -> None:
        self._decoder = FrameDecoder(control=_DECODER)
        self._first = b""
        self._given = memoryview(b"")

    def get_buffer(self) -> memoryview:
        self._given = self._decoder.get_buffer()
        return self._given

    def buffer_updated(self, count: int) -> Iterable[AnyHaMessage]:
        if len(self._first) < GREETING_BYTES:
            self._first += bytes(self._given[: min(count, GREETING_BYTES)])
            if not (self._first.startswith(MAGIC) or MAGIC.startswith(self._first)):
                raise ProtocolViolation(NO_FRAMES)
        for frame in self._decoder.buffer_updated(count):
            message: Any = frame.message
            if frame.batch is not None and isinstance(message, Data):
                message = replace(message, body=cast(bytes, frame.batch.buffer))
            yield message

    def encode(self, message: AnyHaMessage) -> list[Buffer]:
        if isinstance(message, Data) and len(message.body) >= HEADER_BYTES:
            batch = EntryBatch(message.body, None)
            return encode_frame(GROUP, replace(message, body=b""), batch)
        return encode_frame(GROUP, message)


def history_of(runs: list[Run]) -> EpochHistory:
    """As received. Raises ProtocolViolation."""
    for before, behind in pairwise(runs):
        if not (before.key < behind.key and before.start_offset <= behind.start_offset):
            raise ProtocolViolation("a history that is not in order")
    return EpochHistory(runs)


class Follow(NamedTuple):
    """To be done first: store the epoch and the history, cut the slave's log. Then
    `SlaveLink.follows`."""

    welcome: Welcome
    history: EpochHistory
    start_offset: int
    cuts: bool
    """The log ends above `start_offset`: the rest is set aside."""
    begins_anew: bool
    """All of the log lies below the master's first byte, and goes."""


def by_queue(told: dict[str, dict[int, int]]) -> dict[QueueKey, int]:
    return {
        QueueKey(topic, queue_id): value
        for topic, of_topic in told.items()
        for queue_id, value in of_topic.items()
    }


@dataclass(slots=True)
class LinkWork:
    """Received work, in order; then `SlaveLink.done`."""

    follow: Follow | None = None
    begin_at: int = -1
    """With --ha-dialect rocketmq, of an empty log: it begins there."""
    records: list[LogRecords] = field(default_factory=list)
    state: State | None = None
    confirm_offset: int = -1
    """-1: not sent."""
    master_offset: int = -1
    heard_ms: float = -math.inf
    """When the master's users were sure to be not old, as of `confirm_offset`."""

    def __bool__(self) -> bool:
        return self != _NO_WORK


_NO_WORK = LinkWork()


class Link:
    """One end of a connection, in either dialect: bytes that were received go in, `out` is to be sent,
    and emptied."""

    peer = "the other side"

    def __init__(self, now_ms: float, *, heartbeat_ms: float, silence_ms: float) -> None:
        self.closed = ""
        """Why the connection ends; empty: it lives."""
        self.out: list[Buffer] = []
        self._heartbeat_ms, self._silence_ms = heartbeat_ms, silence_ms
        self._heard_ms = self._spoke_ms = now_ms

    def tick(self, now_ms: float) -> None:
        if now_ms >= self._heard_ms + self._silence_ms:
            self.close(f"{self.peer} was silent for {self._silence_ms:.0f} ms")
        elif now_ms >= self._spoke_ms + self._heartbeat_ms:
            self._say_something(now_ms)

    def _say_something(self, now_ms: float) -> None:
        raise NotImplementedError

    def close(self, reason: str) -> None:
        self.closed = self.closed or reason


class LinkToMaster(Link):
    """A slave's end."""

    peer = "the master"

    def __init__(self, now_ms: float, **intervals: float) -> None:
        super().__init__(now_ms, **intervals)
        self.refused = False
        """It is closed, and it is of no use to try again soon."""
        self.comes_back = False
        """It followed, and is to come back at once."""
        self.is_heard = False
        """A valid message of its master was received."""
        self.master: Peer | None = None
        self._work = LinkWork()

    def take_work(self) -> LinkWork:
        work, self._work = self._work, LinkWork()
        return work

    def refuse(self, reason: str) -> None:
        self.refused = True
        self.close(reason)


class LinkToSlave(Link):
    """A master's end."""

    def __init__(self, side: BrokerReplica, now_ms: float, **intervals: float) -> None:
        super().__init__(now_ms, **intervals)
        self._side = side
        self.next_offset = -1
        """Of the bytes that are sent next; -1: none are yet."""
        self.most_chunk_bytes = 4 << 20
        self.mark: SlaveProgress | None = None
        """From when the slave follows."""

    @property
    def is_of_newest_run(self) -> bool:
        """Asked after the log's end was: bytes of the next run are for a link that has begun in that."""
        return True

    @property
    def is_greeted(self) -> bool:
        """The dialling side has completed a slave's greeting, and may follow."""
        return self.mark is not None

    def spoke(self, now_ms: float) -> None:
        self._spoke_ms = now_ms

    def confirmed(self) -> None:
        """More is confirmed than the slave was sent."""

    def state(self, state: State) -> None: ...

    def end(self, reason: str) -> None:
        """Close it, so that the slave reconnects at once."""
        self.close(reason)


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
    """The master it followed last, as far as known."""


class SlaveLink(LinkToMaster):
    """The connection to a master, as a slave sees it. Dialect `quorumlog`."""

    def __init__(
        self, own: OwnLog, now_ms: float, codec: OldMasterCodec | None = None, /, **intervals: float
    ) -> None:
        super().__init__(now_ms, **intervals)
        self._own = own
        self._codec: HaCodec | OldMasterCodec = codec or HaCodec()
        self._welcome: Welcome | None = None
        self._assembler: RecordAssembler | None = None
        self._report: Report | None = None
        self._echo_ms = 0
        slave = own.slave
        self._say(Hello(role=ROLE, member_id=slave.id, directory_id=slave.directory_id, product=ROLE))
        self._say(
            SlaveLog(
                slave=slave,
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
        """Where the next bytes go; never empty."""
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

    def _take(self, message: AnyHaMessage) -> None:
        if isinstance(message, Refuse):
            self.refused = not message.is_for_now
            self.comes_back = message.is_for_now and self._welcome is not None
            self.close(message.message)
        elif isinstance(message, HelloResponse):
            if message.code != WELCOME:
                self.refuse(message.message)
        elif self._welcome is None:
            if not isinstance(message, Welcome):
                raise ProtocolViolation("a master begins with a welcome")
            self._welcomed(message)
        elif isinstance(message, State):
            self._work.state = message
            if message.has_users:
                self._heartbeat_ms = min(self._heartbeat_ms, USERS_HEARTBEAT_MS)
        elif isinstance(message, Data | Heartbeat):
            if isinstance(message, Data):
                self._data(message)
            else:
                self._work.master_offset = message.max_offset
            self._work.confirm_offset = max(self._work.confirm_offset, message.confirm_offset)
            if message.echo_ms:
                self._work.heard_ms = float(message.echo_ms - message.users_age_ms)
            elif not message.sent_ms:  # of the release before, which has no users
                self._work.heard_ms = self._heard_ms
            if message.sent_ms:
                self._report = self._report if self._echo_ms else None  # the first is told at once
                self._echo_ms = message.sent_ms
        else:
            raise ProtocolViolation(f"a master does not send {type(message).__name__}")

    def _welcomed(self, welcome: Welcome) -> None:
        own, epoch = self._own, welcome.epoch
        if epoch < own.promised:
            why = (
                f"master {welcome.master.id} is of epoch {epoch}, and {own.promised} was promised: it is"
                " not the master any more"
            )
            self._say(Refuse(message=why, promised=own.promised))
            self.close(why)
            return
        self._welcome = welcome
        self.master = welcome.master
        history, high, me = history_of(welcome.runs), welcome.max_offset, own.slave.directory_id
        verdict = judge(own.history, own.max_offset, history, high, directory_id=me)
        problem, start = verdict.problem, verdict.common_offset
        low = max(welcome.min_offset, own.min_offset)
        if not problem and verdict.cuts and start < low:
            problem = (
                f"the logs of broker {own.slave.id} and its master are the same only up to {start}, and"
                f" one of them begins at {low}: the records between were deleted by age. Stop"
                f" {own.slave.id}, empty its directory, and start it as a slave; if it is on the list,"
                f" then: quorumlog broker add --broker {own.slave.id}"
            )
        if problem:
            self._say(Refuse(message=problem))
            self.refuse(problem)
            return
        begins_anew = start < welcome.min_offset
        start = max(start, welcome.min_offset)
        self._work.follow = Follow(welcome, history, start, verdict.cuts, begins_anew)

    def follows(self, start_offset: int) -> None:
        """`LinkWork.follow` was done."""
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
        """The received work is written, and flushed so far."""
        assert self._welcome is not None
        report = Report(written_offset=written, flushed_offset=flushed)
        if report != self._report and not self.closed:
            self._report = report
            self._say_something(now_ms)

    def _say_something(self, now_ms: float) -> None:
        if self._report is not None:
            self._spoke_ms = now_ms
            self._say(replace(self._report, sent_ms=int(now_ms), echo_ms=self._echo_ms))


class MasterLink(LinkToSlave):
    """One slave's connection, as its master sees it. Dialect `quorumlog`."""

    def __init__(
        self,
        side: BrokerReplica,
        now_ms: float,
        *,
        refusal: str = "",
        foreign: Callable[[str], str] = lambda slave_id: "",
        **intervals: float,
    ) -> None:
        """`refusal`: why no slave is accepted now; empty: slaves are. `foreign`: why the peer is not the
        slave of this id; empty: it may be."""
        super().__init__(side, now_ms, **intervals)
        self._foreign = foreign
        self._refusal = refusal
        self._history = side.history
        """That its master leads with while the link lives."""
        self._first = b""
        self._codec: HaCodec | OldSlaveCodec | None = None
        """None: it has not said yet what it speaks."""
        self._asked: SlaveLog | None = None
        self._told_offset = -1
        """Up to where the slave was told that the log is confirmed."""
        self._echo_ms = 0

    def feed(self, data: Buffer, now_ms: float) -> None:
        self._heard_ms = now_ms
        if self.closed:
            return
        if self._codec is None:
            data = self._first = self._first + bytes(data)
            if len(data) < GREETING_BYTES:
                return
            self._codec = HaCodec() if data.startswith(MAGIC) else OldSlaveCodec(self._history)
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
            if message.promised > self._history.epoch:
                self._side.newer_epoch(message.promised, self._asked.slave.directory_id)
            self.close(message.message)
        elif self.mark is None:
            self._start(message, self._asked)
        elif isinstance(message, Report):
            high = self._side.max_offset  # a blank counts to the end of its file from its head on
            if not message.flushed_offset <= message.written_offset <= high:
                raise ProtocolViolation(f"{message} of a slave, and the log ends at {high}")
            if message.echo_ms:
                self.mark.heard_ms = float(message.echo_ms)
            is_first, self._echo_ms = not self._echo_ms, message.sent_ms
            if is_first and message.sent_ms:
                self._beat()
            self._side.slave_reported(self.mark, message.written_offset, message.flushed_offset)
        else:
            raise ProtocolViolation(f"a slave does not send {type(message).__name__}")

    def _hello(self, hello: Hello) -> None:
        me = self._side.me
        if hello.role == ROLE:
            self._say(HelloResponse(member_id=me.id, product=ROLE))
            return
        words = f"this is the port for the slaves of broker {me.id}; it listens at {me.address}"
        self._say(HelloResponse(code=NOT_SERVED, message=words, product=ROLE))
        self.close(words)

    def _greet(self, asked: AnyHaMessage) -> None:
        if not isinstance(asked, SlaveLog):
            raise ProtocolViolation("a connection begins with a hello")
        side, epoch, slave = self._side, self._history.epoch, asked.slave
        is_old = isinstance(self._codec, OldSlaveCodec)
        file_bytes = side.store.config.mapped_file_size_commit_log
        if self._refusal:
            self.end(self._refusal)
        elif foreign := self._foreign(slave.id):
            self.refuse(f"this is not broker {slave.id}: {foreign}")
        elif is_old and asked.release:
            self.end("this master speaks the slave's newer protocol too")
        elif asked.promised > epoch:
            side.newer_epoch(asked.promised, slave.directory_id)
            self.refuse(f"the slave has promised epoch {asked.promised}, this one is {epoch}")
        elif slave.id == side.id:
            self.refuse(f"master and slave are both called {side.id}: give each its own --id")
        elif asked.file_bytes != file_bytes:
            self.refuse(
                f"the slave's files have {asked.file_bytes} bytes, the master's {file_bytes}:"
                " set mapped_file_size_commit_log alike"
            )
        elif is_old and (problem := side.old_slave_problem):
            self.refuse(f"broker {slave.id} is of the release before: upgrade it. {problem}")
        else:
            welcome = self._welcome(asked)
            if is_old and (welcome.queues is not None or welcome.alive_from):
                self.refuse(
                    f"broker {slave.id} is of the release before: upgrade it. It could not receive"
                    " the begins of queues"
                )
                return
            self._asked = asked
            self._say(welcome)

    def _welcome(self, asked: SlaveLog) -> Welcome:
        side = self._side
        low, high, queues = side.min_offset, side.max_offset, None
        if low and self._judged(asked, high).common_offset < low:
            low, queues = side.queue_begins()
        return Welcome(
            master=side.me,
            runs=list(self._history.runs),
            min_offset=low,
            max_offset=high,
            queues=queues,
            alive_from=side.alive_from,
            release=VERSION,
        )

    def _judged(self, asked: SlaveLog, end: int) -> FollowVerdict:
        own, directory_id = history_of(asked.runs), asked.slave.directory_id
        return judge(own, asked.max_offset, self._history, end, directory_id=directory_id)

    def _start(self, start: AnyHaMessage, asked: SlaveLog) -> None:
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
        return self._history.runs[-1].key

    @property
    def is_of_newest_run(self) -> bool:
        return self._side.run == self._run

    def data(self, body: bytes) -> list[Buffer]:
        """As they go out, from `next_offset` on."""
        offset = self.next_offset
        assert offset >= 0 and self._codec is not None, "not started"
        self.next_offset += len(body)
        self._told_offset = self._side.confirm_offset
        sent_ms, age_ms = self._side.stamp()
        return self._codec.encode(
            Data(
                offset=offset,
                confirm_offset=self._told_offset,
                body=body,
                sent_ms=sent_ms,
                echo_ms=self._echo_ms,
                users_age_ms=age_ms,
            )
        )

    def state(self, state: State) -> None:
        if state.has_users:
            self._heartbeat_ms = min(self._heartbeat_ms, USERS_HEARTBEAT_MS)
        self._say(state)

    def confirmed(self) -> None:
        """Sent at once: readers of the slave wait for it."""
        if self._side.confirm_offset > self._told_offset:
            self._beat()

    def _beat(self) -> None:
        side = self._side
        if self.next_offset >= 0 and not self.closed:
            self._told_offset = side.confirm_offset
            sent_ms, age_ms = side.stamp()
            self._say(
                Heartbeat(
                    max_offset=side.max_offset,
                    confirm_offset=self._told_offset,
                    sent_ms=sent_ms,
                    echo_ms=self._echo_ms,
                    users_age_ms=age_ms,
                )
            )

    def _say_something(self, now_ms: float) -> None:
        if self.next_offset >= 0:
            self._spoke_ms = now_ms
            self._beat()

    def refuse(self, message: str, *, is_for_now: bool = False) -> None:
        self._say(Refuse(message=message, is_for_now=is_for_now))
        self.close(message)

    def end(self, reason: str) -> None:
        self.refuse(reason, is_for_now=True)


# ----------------------------------------------------------------
# What the release before said between a master and a slave. It goes with the next release.
#
#     bytes  field (big-endian)
#         4  size of what follows
#         1  kind
#            HELLO 1, WELCOME 2, START 3, STATE 4, REFUSE 5: MessagePack of the classes below
#            DATA 6       epoch 8, run 4, offset 8, confirm offset 8, CRC-32 of the body 4, body
#            HEARTBEAT 7  epoch 8, run 4, end of the master's log 8, confirm offset 8
#            REPORT 8     epoch 8, written 8, flushed 8, version of the newest state that is stored 8
#
# Its histories name no leaders and have no lists: the list is told beside them, under a version, and a
# slave counts once it has reported that. So one of them is a copy under the very list that its own
# record names, which a switch by its rule and one by ours ask alike, as long as that list does not
# change and nobody else leads.

PROTOCOL_1, MAGIC_1 = 1, "quorumlog-ha"
_VERSIONS_OF_EPOCH = 1 << 20
_MOST_FRAME_BYTES = (8 << 20) + 64
_MOST_HELLO_BYTES = 4 << 20
_ROOM_BYTES = 64 << 10

_HEAD = struct.Struct(">IB")
_DATA = struct.Struct(">qiqqI")
_HEARTBEAT = struct.Struct(">qiqq")
_REPORT = struct.Struct(">qqqq")
_DATA_KIND, _HEARTBEAT_KIND, _REPORT_KIND = 6, 7, 8

Triple = tuple[Int, Int, Int]


class Hello1(msgspec.Struct, frozen=True, kw_only=True):
    magic: Text = MAGIC_1
    protocol: Int = PROTOCOL_1
    slave: Peer
    promised_epoch: Int
    history: list[Triple]
    max_offset: Int
    file_bytes: Int
    is_sync_flush: bool
    release: Text = ""
    """Of one of ours, which was not understood and has tried this."""


class Welcome1(msgspec.Struct, frozen=True, kw_only=True):
    master: Peer
    epoch: Int
    run: Int
    history: list[Triple]
    min_offset: Int
    max_offset: Int
    asks_flush: bool


class Start1(msgspec.Struct, frozen=True, kw_only=True):
    offset: Int


class State1(msgspec.Struct, frozen=True, kw_only=True):
    version: Int
    counted: list[Peer]
    """Slaves that count, or will."""
    in_sync_replicas: Int
    is_sync: bool
    topics: dict[Text, Int]
    joining: list[Text] = []
    joining_known_to: list[Text] = []
    waited_from: Int = 0


class Refuse1(msgspec.Struct, frozen=True, kw_only=True):
    message: Text
    promised_epoch: Int = 0
    is_for_now: bool = False


Control1 = Hello1 | Welcome1 | Start1 | State1 | Refuse1
_KIND_OF: dict[type[Control1], int] = {Hello1: 1, Welcome1: 2, Start1: 3, State1: 4, Refuse1: 5}
_DECODERS = {kind: msgspec.msgpack.Decoder(cls) for cls, kind in _KIND_OF.items()}


def encode_control(message: Control1) -> bytes:
    payload = msgspec.msgpack.encode(message)
    return _HEAD.pack(1 + len(payload), _KIND_OF[type(message)]) + payload


def encode_data(epoch: int, run: int, data: Data) -> list[Buffer]:
    head = _HEAD.pack(1 + _DATA.size + len(data.body), _DATA_KIND)
    crc = crc32(data.body)
    return [head + _DATA.pack(epoch, run, data.offset, data.confirm_offset, crc), data.body]


def encode_heartbeat(epoch: int, run: int, beat: Heartbeat) -> bytes:
    head = _HEAD.pack(1 + _HEARTBEAT.size, _HEARTBEAT_KIND)
    return head + _HEARTBEAT.pack(epoch, run, beat.max_offset, beat.confirm_offset)


def encode_report(epoch: int, report: Report, version: int) -> bytes:
    head = _HEAD.pack(1 + _REPORT.size, _REPORT_KIND)
    return head + _REPORT.pack(epoch, report.written_offset, report.flushed_offset, version)


class OldFrames:
    """Bytes as they come; frames as they are whole, each with its kind."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._room = memoryview(bytearray(_ROOM_BYTES))
        self._is_greeted = False

    def get_buffer(self) -> memoryview:
        return self._room

    def feed(self, data: Buffer) -> Iterator[tuple[int, bytes]]:
        """Raises ProtocolViolation, after which nothing more may be fed."""
        self._buffer += data
        at, buffer = 0, self._buffer
        try:
            while len(buffer) - at >= _HEAD.size:
                size, kind = _HEAD.unpack_from(buffer, at)
                most = _MOST_FRAME_BYTES if self._is_greeted else _MOST_HELLO_BYTES
                if not 1 <= size <= most or not 1 <= kind <= _REPORT_KIND:
                    raise ProtocolViolation(NO_FRAMES)
                stop = at + 4 + size
                if len(buffer) < stop:
                    return
                payload = bytes(buffer[at + _HEAD.size : stop])
                at = stop
                self._is_greeted = True
                yield kind, payload
        finally:
            del buffer[:at]


def decoded_control(kind: int, payload: bytes) -> Control1:
    """Raises ProtocolViolation."""
    decoder = _DECODERS.get(kind)
    if decoder is None:
        raise ProtocolViolation(f"a frame of kind {kind} comes only from the other side")
    try:
        found: Control1 = decoder.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ProtocolViolation(f"a frame of kind {kind} cannot be read: {error}") from None
    return found


def _unpacked(layout: struct.Struct, payload: bytes) -> tuple[int, ...]:
    try:
        return layout.unpack_from(payload)
    except struct.error as error:
        raise ProtocolViolation(f"a frame cannot be read: {error}") from None


def _refusal(said: Refuse1) -> Refuse:
    promised = Epoch(said.promised_epoch)
    return Refuse(message=said.message, promised=promised, is_for_now=said.is_for_now)


def _refuse1(said: Refuse) -> Refuse1:
    number = said.promised.number
    return Refuse1(message=said.message, promised_epoch=number, is_for_now=said.is_for_now)


def triples_of(runs: Iterable[Run]) -> list[Triple]:
    """A run that has no bytes is in such a history only if it is the last one."""
    by_start = {run.start_offset: run for run in runs}
    return [(run.number, run.run, run.start_offset) for run in by_start.values()]


def named(triples: Sequence[Triple], known: EpochHistory) -> list[Run]:
    """With their names in this broker's history. Raises ProtocolViolation."""
    own = {(run.number, run.run, run.start_offset): run for run in known.runs}
    runs = [
        replace(own.get((number, run, start), Run(number, "", run, start)), copy_list=None)
        for number, run, start in triples
    ]
    return list(history_of(runs).runs)


class OldSlaveCodec(OldFrames):
    """What a slave of the release before says, at its master."""

    def __init__(self, history: EpochHistory) -> None:
        super().__init__()
        self._history = history
        self._welcome: Welcome | None = None
        self._version = -1
        """Of the state that it was told last; it reports the highest that it was ever told."""
        self._state: State | None = None
        self._is_stored_newer = False

    def told_again(self) -> State | None:
        """The state once more, where it holds one of a higher version: its reports name that."""
        is_newer, self._is_stored_newer = self._is_stored_newer, False
        return self._state if is_newer else None

    def buffer_updated(self, count: int) -> Iterable[AnyHaMessage]:
        for kind, payload in self.feed(self._room[:count]):
            if kind == _REPORT_KIND:
                _, written, flushed, version = _unpacked(_REPORT, payload)
                if version > self._version >= 0:
                    self._version, self._is_stored_newer = version, True
                elif version == self._version:  # it names the list under which it counts
                    yield Report(written_offset=written, flushed_offset=flushed)
                continue
            message = decoded_control(kind, payload)
            if isinstance(message, Hello1):
                yield self._asks(message)
            elif isinstance(message, Start1):
                yield Start(offset=message.offset)
            elif isinstance(message, Refuse1):
                yield _refusal(message)
            else:
                raise ProtocolViolation(f"a slave does not send {type(message).__name__}")

    def _asks(self, hello: Hello1) -> SlaveLog:
        if hello.magic != MAGIC_1 or hello.protocol != PROTOCOL_1:
            raise ProtocolViolation(f"protocol {hello.protocol} of replication is not known")
        return SlaveLog(
            slave=hello.slave,
            promised=Epoch(hello.promised_epoch),
            runs=named(hello.history, self._history),
            max_offset=hello.max_offset,
            file_bytes=hello.file_bytes,
            release=hello.release,
        )

    def encode(self, message: AnyHaMessage) -> list[Buffer]:
        if isinstance(message, Refuse):
            return [encode_control(_refuse1(message))]
        if isinstance(message, Welcome):
            self._welcome = message
            return [encode_control(self._welcomes(message))]
        if self._welcome is None:
            return []
        number, _, run = self._welcome.run
        if isinstance(message, Data):
            return encode_data(number, run, message)
        if isinstance(message, Heartbeat):
            return [encode_heartbeat(number, run, message)]
        if isinstance(message, State):
            return [encode_control(self._states(message, self._welcome))]
        return []

    @staticmethod
    def _welcomes(welcome: Welcome) -> Welcome1:
        return Welcome1(
            master=welcome.master,
            epoch=welcome.run.number,
            run=welcome.run.run,
            history=triples_of(welcome.runs),
            min_offset=welcome.min_offset,
            max_offset=welcome.max_offset,
            asks_flush=welcome.runs[-1].is_flushed,
        )

    def _states(self, state: State, welcome: Welcome) -> State1:
        listed = EpochHistory(welcome.runs).copy_list or CopyList((), 1)
        first = welcome.epoch.number * _VERSIONS_OF_EPOCH + _VERSIONS_OF_EPOCH // 2
        self._version, self._state = max(self._version, first) + 1, state
        return State1(
            version=self._version,
            counted=[peer for peer in listed.members if peer.id != welcome.master.id],
            in_sync_replicas=max(listed.copies, 1),
            is_sync=listed.copies > 1,
            topics=state.topics,
        )


class OldMasterCodec(OldFrames):
    """What a master of the release before says, at its slave."""

    def __init__(self, own: OwnLog) -> None:
        super().__init__()
        self._own = own
        self._welcome: Welcome1 | None = None
        self.told_version = self.stored_version = 0
        """Of the newest state."""

    def buffer_updated(self, count: int) -> Iterable[AnyHaMessage]:
        for kind, payload in self.feed(self._room[:count]):
            if kind == _DATA_KIND:
                body = payload[_DATA.size :]
                *run, offset, confirm, crc = _unpacked(_DATA, payload)
                if crc32(body) != crc:
                    raise ProtocolViolation(f"the bytes of {offset} on were changed on the way")
                self._check(run)
                yield Data(offset=offset, confirm_offset=confirm, body=body)
            elif kind == _HEARTBEAT_KIND:
                *run, end, confirm = _unpacked(_HEARTBEAT, payload)
                self._check(run)
                yield Heartbeat(max_offset=end, confirm_offset=confirm)
            else:
                yield self._control(decoded_control(kind, payload))

    def _check(self, run: list[int]) -> None:
        welcome = self._welcome
        if welcome is None or run != [welcome.epoch, welcome.run]:
            raise ProtocolViolation(f"a frame of run {run}, in another one")

    def _control(self, message: Control1) -> HaMessage:
        if isinstance(message, Refuse1):
            return _refusal(message)
        if isinstance(message, Welcome1) and message.history:
            self._welcome = message
            runs = named(message.history, self._own.history)
            runs[0] = replace(runs[0], copy_list=self._own.history.copy_list)
            runs[-1] = replace(runs[-1], is_flushed=message.asks_flush)
            return Welcome(
                master=message.master,
                runs=runs,
                min_offset=message.min_offset,
                max_offset=message.max_offset,
            )
        if isinstance(message, State1) and self._welcome is not None:
            self.told_version = message.version
            members = (self._welcome.master, *message.counted)
            listed = CopyList(members, max(message.in_sync_replicas, 1))
            return State(topics=message.topics, is_run_confirmed=False, copy_list=listed)
        raise ProtocolViolation(f"a master does not send {type(message).__name__}, or not now")

    def encode(self, message: AnyHaMessage) -> list[Buffer]:
        if isinstance(message, SlaveLog):
            hello = Hello1(
                slave=message.slave,
                promised_epoch=message.promised.number,
                history=triples_of(message.runs),
                max_offset=message.max_offset,
                file_bytes=message.file_bytes,
                is_sync_flush=self._own.is_sync_flush,
                release=VERSION,
            )
            return [encode_control(hello)]
        if isinstance(message, Start):
            return [encode_control(Start1(offset=message.offset))]
        if isinstance(message, Refuse):
            return [encode_control(_refuse1(message))]
        if isinstance(message, Report) and self._welcome is not None:
            return [encode_report(self._welcome.epoch, message, self.stored_version)]
        assert isinstance(message, Hello | HelloResponse), message
        return []


class OldMasterLink(SlaveLink):
    """The connection to a master of the release before."""

    def __init__(self, own: OwnLog, now_ms: float, **intervals: float) -> None:
        self._old = OldMasterCodec(own)
        self._taken_version = 0
        super().__init__(own, now_ms, self._old, **intervals)

    def _welcomed(self, welcome: Welcome) -> None:
        if not self._is_of_another(welcome):
            super()._welcomed(welcome)
            return
        self.refuse(
            f"master {welcome.master.id} has another directory than the one that this slave knows of"
            f" epoch {welcome.epoch}: it has lost its log. Make this slave the master: quorumlog"
            f" broker switch --to {self._own.slave.id} --unsafe"
        )

    def _is_of_another(self, welcome: Welcome) -> bool:
        """Directory than the one that led this epoch."""
        known = self._own.master
        is_other = known is not None and known.directory_id not in ("", welcome.master.directory_id)
        return is_other and welcome.epoch == self._own.promised

    def take_work(self) -> LinkWork:
        work = super().take_work()
        if work.state is not None:
            self._taken_version = self._old.told_version
        return work

    def done(self, written: int, flushed: int, now_ms: float) -> None:
        if self._old.stored_version != self._taken_version:
            self._old.stored_version, self._report = self._taken_version, None
        super().done(self._of_its_run(written), self._of_its_run(flushed), now_ms)

    def _of_its_run(self, offset: int) -> int:
        """It would count what is below, of which a switch may find that another one has more."""
        assert self._welcome is not None
        return offset if offset >= self._welcome.runs[-1].start_offset else 0
