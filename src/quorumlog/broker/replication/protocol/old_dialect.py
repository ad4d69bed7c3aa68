"""What the release before said between a master and a slave. It goes with the next release.

    bytes  field (big-endian)
        4  size of what follows
        1  kind
           HELLO 1, WELCOME 2, START 3, STATE 4, REFUSE 5: MessagePack of the classes below
           DATA 6       epoch 8, run 4, offset 8, confirm offset 8, CRC-32 of the body 4, body
           HEARTBEAT 7  epoch 8, run 4, end of the master's log 8, confirm offset 8
           REPORT 8     epoch 8, written 8, flushed 8, version of the newest state that is stored 8

Its histories name no leaders and have no lists: the list is told beside them, under a version, and a
slave counts once it has reported that. So one of them is a copy under the very list that its own record
names, which a switch by its rule and one by ours ask alike, as long as that list does not change and
nobody else leads.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence

import msgspec
from isal.isal_zlib import crc32
from msgspec.structs import replace

from quorumlog.broker.epochs.epoch_history import CopyList, Epoch, EpochHistory, Peer, Run
from quorumlog.broker.replication.protocol.ha_frames import (
    AnyHaMessage,
    Data,
    HaMessage,
    Heartbeat,
    Refuse,
    Report,
    SlaveLog,
    Start,
    State,
    Welcome,
    history_of,
)
from quorumlog.broker.replication.protocol.slave_link import OwnLog, SlaveLink, Work
from quorumlog.entry_header import Buffer
from quorumlog.errors import ProtocolViolation
from quorumlog.net.hello import Hello, HelloResponse
from quorumlog.version import VERSION
from quorumlog.wire.client_message import Int, Text

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

    def buffer_updated(self, count: int) -> Iterator[tuple[int, bytes]]:
        """Raises ProtocolViolation, after which nothing more may be fed."""
        return self.feed(self._room[:count])

    def feed(self, data: Buffer) -> Iterator[tuple[int, bytes]]:
        self._buffer += data
        at, buffer = 0, self._buffer
        try:
            while len(buffer) - at >= _HEAD.size:
                size, kind = _HEAD.unpack_from(buffer, at)
                most = _MOST_FRAME_BYTES if self._is_greeted else _MOST_HELLO_BYTES
                if not 1 <= size <= most or not 1 <= kind <= _REPORT_KIND:
                    raise ProtocolViolation(
                        "these are no frames of the HA dialect quorumlog; a Java broker needs"
                        " --ha-dialect rocketmq"
                    )
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
        raise ProtocolViolation(f"a frame of kind {kind} is of the other side")
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


# -------------------------------------------------------------------- histories


def triples_of(runs: Iterable[Run]) -> list[Triple]:
    """A run that has no bytes is in such a history only if it is the last one."""
    by_start = {run.start_offset: run for run in runs}
    return [(run.number, run.run, run.start_offset) for run in by_start.values()]


def named(triples: Sequence[Triple], known: EpochHistory) -> list[Run]:
    """With the names that the own history has of them. Raises ProtocolViolation."""
    own = {(run.number, run.run, run.start_offset): run for run in known.runs}
    return list(
        history_of(
            [
                replace(own.get((number, run, start), Run(number, "", run, start)), copy_list=None)
                for number, run, start in triples
            ]
        ).runs
    )


# -------------------------------------------------------------------- a slave of the release before


class OldSlaveCodec:
    """At its master."""

    is_old = True

    def __init__(self, history: EpochHistory) -> None:
        self._history = history
        self._frames = OldFrames()
        self._welcome: Welcome | None = None
        self._version = -1
        """Of the state that it was told last; it reports the highest that it was ever told."""
        self._state: State | None = None
        self._is_stored_newer = False

    def told_again(self) -> State | None:
        """The state once more, where it holds one of a higher version: its reports name that."""
        is_newer, self._is_stored_newer = self._is_stored_newer, False
        return self._state if is_newer else None

    def get_buffer(self) -> memoryview:
        return self._frames.get_buffer()

    def buffer_updated(self, count: int) -> Iterable[AnyHaMessage]:
        for kind, payload in self._frames.buffer_updated(count):
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
                yield Refuse(message=message.message, promised=Epoch(message.promised_epoch))
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
            return [
                encode_control(
                    Refuse1(
                        message=message.message,
                        promised_epoch=message.promised.number,
                        is_for_now=message.is_for_now,
                    )
                )
            ]
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


# -------------------------------------------------------------------- a master of the release before


class OldState(State, frozen=True, kw_only=True, tag=-113):
    version: Int


class OldMasterCodec:
    """At its slave."""

    is_old = True

    def __init__(self, own: OwnLog) -> None:
        self._own = own
        self._frames = OldFrames()
        self._welcome: Welcome1 | None = None
        self.stored_version = 0

    def get_buffer(self) -> memoryview:
        return self._frames.get_buffer()

    def buffer_updated(self, count: int) -> Iterable[AnyHaMessage]:
        for kind, payload in self._frames.buffer_updated(count):
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
            promised = Epoch(message.promised_epoch)
            return Refuse(message=message.message, promised=promised, is_for_now=message.is_for_now)
        if isinstance(message, Welcome1) and message.history:
            self._welcome = message
            return self._welcomed(message)
        if isinstance(message, State1) and self._welcome is not None:
            members = [self._welcome.master, *message.counted]
            return OldState(
                version=message.version,
                topics=message.topics,
                is_run_confirmed=False,
                copy_list=CopyList(tuple(members), max(message.in_sync_replicas, 1)),
            )
        raise ProtocolViolation(f"a master does not send {type(message).__name__}, or not now")

    def _welcomed(self, welcome: Welcome1) -> Welcome:
        history = self._own.history
        runs = named(welcome.history, history)
        runs[0] = replace(runs[0], copy_list=history.copy_list)
        runs[-1] = replace(runs[-1], is_flushed=welcome.asks_flush)
        return Welcome(
            master=welcome.master,
            runs=runs,
            min_offset=welcome.min_offset,
            max_offset=welcome.max_offset,
        )

    def encode(self, message: AnyHaMessage) -> list[Buffer]:
        if isinstance(message, SlaveLog):
            return [
                encode_control(
                    Hello1(
                        slave=message.slave,
                        promised_epoch=message.promised.number,
                        history=triples_of(message.runs),
                        max_offset=message.max_offset,
                        file_bytes=message.file_bytes,
                        is_sync_flush=self._own.is_sync_flush,
                        release=VERSION,
                    )
                )
            ]
        if isinstance(message, Start):
            return [encode_control(Start1(offset=message.offset))]
        if isinstance(message, Refuse):
            number = message.promised.number
            return [encode_control(Refuse1(message=message.message, promised_epoch=number))]
        if isinstance(message, Report) and self._welcome is not None:
            return [encode_report(self._welcome.epoch, message, self.stored_version)]
        assert isinstance(message, Hello | HelloResponse), message
        return []


class OldMasterLink(SlaveLink):
    """As a slave."""

    def __init__(self, own: OwnLog, now_ms: float, *, heartbeat_ms: float, silence_ms: float) -> None:
        self._old = OldMasterCodec(own)
        self._taken_version = 0
        super().__init__(own, now_ms, heartbeat_ms=heartbeat_ms, silence_ms=silence_ms, codec=self._old)

    def _welcomed(self, welcome: Welcome) -> None:
        if self._is_of_another(welcome):
            self.refused = True
            self.close(
                f"master {welcome.master.id} has another directory than the one that this slave knows of"
                f" epoch {welcome.epoch}: it has lost its log. Make this slave the master: quorumlog"
                f" broker switch --to {self._own.slave.id} --unsafe"
            )
            return
        super()._welcomed(welcome)

    def _is_of_another(self, welcome: Welcome) -> bool:
        """Directory than the one that led this epoch."""
        known = self._own.master
        is_other = known is not None and known.directory_id not in ("", welcome.master.directory_id)
        return is_other and welcome.epoch == self._own.promised

    def take_work(self) -> Work:
        work = super().take_work()
        if isinstance(work.state, OldState):
            self._taken_version = work.state.version
        return work

    def done(self, written: int, flushed: int, now_ms: float) -> None:
        if self._old.stored_version != self._taken_version:
            self._old.stored_version, self._report = self._taken_version, None
        super().done(self._of_its_run(written), self._of_its_run(flushed), now_ms)

    def _of_its_run(self, offset: int) -> int:
        """It would count what is below, of which a switch may find that another one has more."""
        assert self._welcome is not None
        return offset if offset >= self._welcome.runs[-1].start_offset else 0
