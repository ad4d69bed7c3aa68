"""The append time of an entry: one function for all callers.

A time mark applies to the entries after it, up to the next. Marks rise within a run, which a reset of
the log's clock ends; the next run may begin at an earlier time. An entry counts as appended at the
lesser of its mark and of each later reset: too young where clocks were ahead, and never too old. So
times never fall from one entry to the next.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Annotated, TypeVar

import msgspec
from isal import isal_zlib
from msgspec import Meta

from quorumlog.entry import EntryKind
from quorumlog.log_state.control_entries import (
    LEVEL,
    LEVELS,
    MOST_MACHINES,
    MOST_RUNS,
    MOST_STEPPED_OVER,
    Chain,
    ClockReset,
    ControlEntry,
    Hold,
    Index,
    Keep,
    LevelReached,
    MachineBinding,
    MachineName,
    MembershipEntry,
    OpenProducer,
    ProducerBatch,
    ProducerEpoch,
    ReaderName,
    ReaderPosition,
    ReaderPositions,
    StepOver,
    TimeMark,
    TimeMs,
    Unreadable,
    decode_body,
    fields_to_write,
    level_of,
    of_a_later_release,
)
from quorumlog.log_state.producers import NO_PRODUCERS, Producers, decode_producers, encode_hook
from quorumlog.log_state.users import NO_USERS, Users, UsersChange


class Reset(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Of the log's clock: a run of time marks ends before this entry, another begins with it."""

    index: Index
    """Of the CLOCK entry."""
    time_ms: TimeMs
    """At which the run that begins here begins."""


Resets = tuple[Reset, ...]
"""By index; the newest `MOST_RUNS`."""


def with_reset(resets: Resets, reset: Reset) -> Resets:
    return (*resets, reset)[-MOST_RUNS:]


def counted_ms(index: int, mark_ms: int, resets: Sequence[Reset]) -> int:
    """When the entry at `index` counts as appended, in milliseconds since 1970. `mark_ms`: time of the
    last mark or reset at or before it, or for a boundary the first after it; -1: none, so no time.
    `resets`: of the whole log, as far as it is known.

    Before the oldest of `MOST_RUNS` resets marks do not rise, for others may have been among them
    that are forgotten: all of it counts as young as that reset."""
    later = [reset.time_ms for reset in resets if reset.index > index]
    if mark_ms < 0 or not later:
        return mark_ms
    return min(later) if len(later) >= MOST_RUNS else min(mark_ms, *later)


def said_ms(kind: int, body: bytes | memoryview) -> int | None:
    """The time that a control entry says; None: it says none, or one that cannot be read."""
    if kind not in (EntryKind.TIME, EntryKind.CLOCK):
        return None
    decoded = decode_body(EntryKind(kind), body)
    return decoded.time_ms if isinstance(decoded, TimeMark | ClockReset) else None


# ---------------------------------------------------------------- LogState
# The value that follows from all control entries of a log up to an index.
#
# It is a plain fold, without clock, configuration or anything that a member knows of itself. Members
# that hold the same entries have the same state, to the byte.
#
#     record     bytes  field
#          0         4  "QLST"; "QLSZ" where what follows the CRC is compressed (zlib): long records
#          4         4  CRC-32 of what follows, big-endian
#          8            msgpack: [level, membership, membership_index, time_ms, time_index,
#                       keep_from_index, readers, lost_ranges, producers, machines,
#                       clock_resets, stepped_over, users]
#
# `users` is of level 7 and the two before it of level 6: they are left out where there is nothing
# to say from there on, as earlier releases know it. What a reader has said of neither chain nor skipped
# entries is left out of its fields in the same way.

RECORD_MAGIC = b"QLST"
PACKED_MAGIC = b"QLSZ"
PACKED_FROM_BYTES = 64 << 10
"""A longer payload is compressed: 100,000 sessions make 14 MB, and 9 MB then."""
_PACKED_LEVEL = 1
_MOST_PAYLOAD_BYTES = 256 << 20
"""What is longer unpacked is none of ours."""
MOST_READERS = 100
"""One more is not taken. With their lost and skipped ranges they fill two fifths of a start's least size
at most."""
MOST_LOST_RANGES = 4
"""A reader's newest ones are remembered; so many also of those that it has skipped."""
Ranges = Annotated[tuple[tuple[Index, Index], ...], Meta(max_length=MOST_LOST_RANGES)]


class Reader(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    name: ReaderName
    position: Index
    hold: Hold
    last_index: Index
    """Of the entry that named it last."""
    last_chain: Chain | None = None
    """Of the entry before `position`, as an archive has it. None: not given."""
    skipped_entries: Annotated[int, Meta(ge=0)] = 0
    """Entries deleted before it reached them."""
    skipped_ranges: Ranges = ()
    """(first_index, stop_index) of the newest of them, in order and disjoint: repeated, they are not
    counted again."""

    def fields(self) -> tuple[object, ...]:
        return fields_to_write(self, 3)

    def with_skipped(self, first_index: int, stop_index: int) -> Reader:
        if len(self.skipped_ranges) == MOST_LOST_RANGES:
            # Further in front it may have been counted, in a range that is forgotten: not once more.
            first_index = max(first_index, self.skipped_ranges[0][0])
            if stop_index <= first_index:
                return self
        entries = self.skipped_entries + stop_index - first_index
        first, stop, apart = first_index, stop_index, []
        for low, high in self.skipped_ranges:
            entries -= max(0, min(high, stop_index) - max(low, first_index))
            if low <= stop_index and first_index <= high:
                first, stop = min(first, low), max(stop, high)
            else:
                apart.append((low, high))
        ranges = sorted([*apart, (first, stop)])[-MOST_LOST_RANGES:]
        return msgspec.structs.replace(self, skipped_entries=entries, skipped_ranges=tuple(ranges))


class LostRange(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Entries that a reader held, and that were deleted by force."""

    name: ReaderName
    first_index: Index
    stop_index: Index


class Machine(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A state machine that takes the entries of its channel."""

    name: MachineName
    channel: Annotated[int, Meta(ge=1, le=MOST_MACHINES)]
    version: Annotated[int, Meta(ge=1)]
    index: Index
    """Of the entry that named it first: it applies later entries."""


class SteppedOver(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """An entry that a state machine leaves out."""

    name: MachineName
    index: Index
    chain: Chain
    ordered_at_index: Index
    """Of the STEP_OVER entry."""


class LogState(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The fields are those of the record, in this order."""

    level: Annotated[int, Meta(ge=0)] = 0
    """The highest of the entries' kinds: needed to read this log."""
    membership: MembershipEntry | None = None
    """None: the founding list."""
    membership_index: Index = -1
    time_ms: TimeMs | None = None
    """The last time mark; None: there is none."""
    time_index: Index = -1
    keep_from_index: Annotated[int, Meta(ge=0)] = 0
    """Entries below it may be deleted once this is committed. Never falls."""
    readers: tuple[Reader, ...] = ()
    """By name."""
    lost_ranges: tuple[LostRange, ...] = ()
    """By name, then in the order in which they were lost."""
    producers: Producers = NO_PRODUCERS

    machines: tuple[Machine, ...] = ()
    """By name."""
    clock_resets: Annotated[tuple[Reset, ...], Meta(max_length=MOST_RUNS)] = ()
    """By index."""
    stepped_over: Annotated[tuple[SteppedOver, ...], Meta(max_length=MOST_STEPPED_OVER)] = ()
    """By name, then by index of the entry that is left out."""
    users: Users = NO_USERS

    def machine(self, name: str) -> Machine | None:
        return next((machine for machine in self.machines if machine.name == name), None)

    def free_channel(self) -> int | None:
        """For a machine that is not bound yet; None: as many are as there may be."""
        taken = {machine.channel for machine in self.machines}
        return next((each for each in range(1, MOST_MACHINES + 1) if each not in taken), None)

    def reader(self, name: str) -> Reader | None:
        return next((reader for reader in self.readers if reader.name == name), None)

    def encode(self) -> bytes:
        magic, payload = RECORD_MAGIC, _encoder.encode(self._fields())
        if len(payload) >= PACKED_FROM_BYTES:
            magic, payload = PACKED_MAGIC, isal_zlib.compress(payload, _PACKED_LEVEL)
        return magic + zlib.crc32(payload).to_bytes(4, "big") + payload

    def _fields(self) -> tuple[object, ...]:
        fields = list(msgspec.structs.astuple(self))
        if self.membership is not None:
            fields[1] = self.membership.fields()
        fields[_READERS] = tuple(reader.fields() for reader in self.readers)
        if not self.users.is_on:
            del fields[_USERS:]
            if not self.clock_resets and not self.stepped_over:
                del fields[_CLOCK_RESETS:]
        return tuple(fields)


EMPTY = LogState()
_READERS = LogState.__struct_fields__.index("readers")
_CLOCK_RESETS = LogState.__struct_fields__.index("clock_resets")
_PRODUCERS = LogState.__struct_fields__.index("producers")
_USERS = LogState.__struct_fields__.index("users")


class StateTime(msgspec.Struct, frozen=True, array_like=True):
    """The first fields of a record: its last time mark, without the sessions, which may be many."""

    level: int
    membership: msgspec.Raw
    membership_index: Index
    time_ms: TimeMs | None
    time_index: Index


class UnknownState(msgspec.Struct, frozen=True):
    """The state is unknown from this index on."""

    index: int
    reason: str


_encoder = msgspec.msgpack.Encoder(enc_hook=encode_hook)
_decoder = msgspec.msgpack.Decoder(LogState, dec_hook=lambda kind, value: NO_PRODUCERS)
_time_decoder = msgspec.msgpack.Decoder(StateTime)
T = TypeVar("T")


def decode_state(record: bytes) -> LogState | Unreadable:
    return _decoded(record, _state_of)


def decode_time(record: bytes) -> StateTime | Unreadable:
    """The time alone, of a record whose sessions are not needed: reading all of them takes 0.4 s."""
    return _decoded(record, lambda fields: _time_decoder.decode(_encoder.encode(fields[:5])))


def _state_of(fields: list[msgspec.Raw]) -> LogState:
    """The sessions, which may be many, are read from their bytes by themselves: within the whole they
    would be there twice."""
    producers = fields[_PRODUCERS : _PRODUCERS + 1]
    rest = [None if at == _PRODUCERS else field for at, field in enumerate(fields)]
    state = _decoder.decode(_encoder.encode(rest))
    if not producers:
        return state
    return msgspec.structs.replace(state, producers=decode_producers(producers[0]))


def _decoded(record: bytes, read: Callable[[list[msgspec.Raw]], T]) -> T | Unreadable:
    magic, payload = record[:4], memoryview(record)[8:]
    is_ours = magic in (RECORD_MAGIC, PACKED_MAGIC)
    if not is_ours or zlib.crc32(payload).to_bytes(4, "big") != record[4:8]:
        return Unreadable("no record of a log's state, or a damaged one")
    try:
        if magic == PACKED_MAGIC:
            payload = memoryview(_unpacked(payload))
        fields = msgspec.msgpack.decode(payload, type=list[msgspec.Raw])
        level = msgspec.msgpack.decode(fields[0], type=int) if fields else 0
        if level > LEVEL:
            return Unreadable(of_a_later_release(level))
        return read(fields)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return Unreadable(f"a record of a log's state that this release cannot read: {error}")


def _unpacked(payload: memoryview) -> bytes:
    """Raises DecodeError."""
    unpacking = isal_zlib.decompressobj()
    try:
        unpacked = unpacking.decompress(payload, _MOST_PAYLOAD_BYTES)
    except isal_zlib.error as error:  # type: ignore[misc]  # its stub calls the class a value
        raise msgspec.DecodeError(f"the compressed record is damaged: {error}") from error
    if not unpacking.eof or unpacking.unused_data:
        raise msgspec.DecodeError("the compressed record is incomplete or too long")
    return bytes(unpacked)


def advanced(state: LogState, entry: ControlEntry) -> LogState | UnknownState:
    """The state after `entry`, the next control entry."""
    if isinstance(entry.body, ProducerBatch):
        producers = state.producers.with_batch(entry.index, entry.term, entry.body)
        level = max(state.level, LEVELS[entry.kind])
        return msgspec.structs.replace(state, level=level, producers=producers)
    if entry.kind is EntryKind.NOOP:
        producers = state.producers.cut_at(entry.index)
        if producers is state.producers:
            return state
        return msgspec.structs.replace(state, producers=producers)
    body = entry.body
    if isinstance(body, Unreadable):
        return UnknownState(entry.index, f"entry {entry.index}: {body.reason}")
    assert body is not None, entry
    if state.level < level_of(body):
        state = msgspec.structs.replace(state, level=level_of(body))
    if isinstance(body, TimeMark):
        if state.time_ms is not None and body.time_ms < state.time_ms:
            return state
        return msgspec.structs.replace(state, time_ms=body.time_ms, time_index=entry.index)
    if isinstance(body, MembershipEntry):
        return msgspec.structs.replace(state, membership=body, membership_index=entry.index)
    if isinstance(body, ReaderPositions):
        for position in body.readers:
            state = _with_reader(state, entry.index, position)
        return state
    if isinstance(body, OpenProducer):
        producers = state.producers.opened(ProducerEpoch(entry.index, entry.term), body)
        return msgspec.structs.replace(state, producers=producers)
    if isinstance(body, MachineBinding):
        return _with_machine(state, entry.index, body)
    if isinstance(body, ClockReset):
        resets = with_reset(state.clock_resets, Reset(entry.index, body.time_ms))
        return msgspec.structs.replace(
            state, time_ms=body.time_ms, time_index=entry.index, clock_resets=resets
        )
    if isinstance(body, StepOver):
        return _with_step_over(state, entry.index, body)
    if isinstance(body, LevelReached):
        return state
    if isinstance(body, UsersChange):
        return msgspec.structs.replace(state, users=state.users.changed(body))
    assert isinstance(body, Keep), entry
    return _with_keep(state, body)


def _with_machine(state: LogState, index: int, body: MachineBinding) -> LogState:
    """A leader writes only what follows from the state; anything else changes nothing."""
    old = state.machine(body.name)
    others = [machine for machine in state.machines if machine.name != body.name]
    if any(machine.channel == body.channel for machine in others):
        return state
    if old is None:
        new = Machine(body.name, body.channel, body.version, index)
    elif old.channel == body.channel and old.version < body.version:
        new = msgspec.structs.replace(old, version=body.version)
    else:
        return state
    machines = sorted([*others, new], key=lambda machine: machine.name)
    return msgspec.structs.replace(state, machines=tuple(machines))


def _with_step_over(state: LogState, index: int, body: StepOver) -> LogState:
    """A leader writes only what follows from the state; anything else changes nothing."""
    orders = list(state.stepped_over)
    if len(orders) >= MOST_STEPPED_OVER:
        orders = [each for each in orders if each.index >= state.keep_from_index]
    is_known = any((each.name, each.index) == (body.name, body.index) for each in state.stepped_over)
    if is_known or len(orders) >= MOST_STEPPED_OVER:
        return state
    orders.append(SteppedOver(body.name, body.index, body.chain, index))
    orders.sort(key=lambda each: (each.name, each.index))
    return msgspec.structs.replace(state, stepped_over=tuple(orders))


def _with_reader(state: LogState, index: int, body: ReaderPosition) -> LogState:
    old = state.reader(body.name)
    others = [reader for reader in state.readers if reader.name != body.name]
    if body.ends:
        lost = tuple(each for each in state.lost_ranges if each.name != body.name)
        return msgspec.structs.replace(state, readers=tuple(others), lost_ranges=lost)
    if old is None and len(others) >= MOST_READERS:
        return state
    position, last_chain = body.position, body.last_chain
    if body.seeks_from is None:
        if old is not None and _says_no_more(body, old):
            position, last_chain = old.position, old.last_chain
    elif old is None or old.position != body.seeks_from:
        return state  # it has moved since: a late copy of the seek would take it back
    moved = {"position": position, "hold": body.hold, "last_index": index, "last_chain": last_chain}
    reader = msgspec.structs.replace(old or Reader(body.name, position, body.hold, index), **moved)
    if body.skipped is not None and body.skipped[0] < body.skipped[1]:
        reader = reader.with_skipped(*body.skipped)
    others.append(reader)
    others.sort(key=lambda reader: reader.name)
    return msgspec.structs.replace(state, readers=tuple(others))


def _says_no_more(position: ReaderPosition, old: Reader) -> bool:
    """Of a reader that only goes forward."""
    return (position.position, position.last_chain is not None) <= (old.position, False)


def outdates(old: Reader | None, position: ReaderPosition) -> bool:
    """Whether a late copy of an earlier commit, open or end of the reader would undo `position`. Nothing
    undoes a position that only moves forward."""
    return (
        position.ends
        or position.seeks_from is not None
        or (old is not None and old.hold != position.hold)
    )


def _with_keep(state: LogState, keep: Keep) -> LogState:
    stops = Hold.ARCHIVE if keep.forced else Hold.READER
    held = [reader.position for reader in state.readers if reader.hold >= stops]
    keep_from = max(state.keep_from_index, min([keep.keep_from_index, *held]))
    if not keep.forced:
        return msgspec.structs.replace(state, keep_from_index=keep_from)
    readers, lost = [], list(state.lost_ranges)
    for reader in state.readers:
        if reader.hold is Hold.READER and reader.position < keep_from:
            lost.append(LostRange(reader.name, reader.position, keep_from))
            reader = msgspec.structs.replace(reader, position=keep_from, last_chain=None)
        readers.append(reader)
    return msgspec.structs.replace(
        state, keep_from_index=keep_from, readers=tuple(readers), lost_ranges=_newest(lost)
    )


def _newest(lost: list[LostRange]) -> tuple[LostRange, ...]:
    """At most `MOST_LOST_RANGES` of each reader, in the order of `LogState.lost_ranges`."""
    by_name: dict[str, list[LostRange]] = {}
    for each in lost:
        by_name.setdefault(each.name, []).append(each)
    return tuple(each for name in sorted(by_name) for each in by_name[name][-MOST_LOST_RANGES:])


# ---------------------------------------------------------------- LogStates
# A log's state at its end and at the committed index, and the control entries in between.
#
# The state advances when entries are appended, on every member alike. A truncation leads back to the
# committed state and folds once more what is left; there is no undo list.

AnyState = LogState | UnknownState


def folded(state: AnyState, entries: Sequence[ControlEntry]) -> AnyState:
    for entry in entries:
        if isinstance(state, UnknownState):
            return state
        state = advanced(state, entry)
    return state


class LogStates:
    def __init__(self, committed: AnyState, committed_index: int) -> None:
        """`committed`: of the log up to `committed_index`; nothing above is appended yet."""
        self.committed = committed
        self.appended = committed
        """Of the whole log."""
        self.readers_changed_index = committed_index
        """No entry above it has ended a reader, moved it back or changed its hold. Unknown below the
        begin of this object; never after the end of the log, also after a cut."""
        self.producers_forgotten_index = committed_index
        """The same of entries that forget a producer."""
        self._committed_index = committed_index
        self._entries: list[ControlEntry] = []
        """Above the committed index."""

    @property
    def committed_index(self) -> int:
        return self._committed_index

    def memberships(self) -> list[tuple[int, MembershipEntry | None]]:
        """(index of its entry, membership) of the committed one and of each after it, where the state
        is known; None: the founding list."""
        committed = self.committed
        assert isinstance(committed, LogState), committed
        behind = [(e.index, e.body) for e in self._entries if isinstance(e.body, MembershipEntry)]
        return [(committed.membership_index, committed.membership), *behind]

    def append(self, first_index: int, controls: Sequence[ControlEntry]) -> None:
        """Entries from `first_index` on, `controls` among them, are appended."""
        assert first_index > self._committed_index, (first_index, self._committed_index)
        assert not self._entries or self._entries[-1].index < first_index, (
            self._entries[-1],
            first_index,
        )
        assert not controls or controls[0].index >= first_index, (controls[0], first_index)
        if controls:
            self._entries.extend(controls)
            self._note_readers(controls)
            self._note_forgotten(controls)
            self.appended = folded(self.appended, controls)

    def _note_readers(self, controls: Sequence[ControlEntry]) -> None:
        reader_entries = [entry for entry in controls if isinstance(entry.body, ReaderPositions)]
        if not reader_entries or not isinstance(self.appended, LogState):
            return
        readers = {reader.name: reader for reader in self.appended.readers}
        for entry in reader_entries:
            assert isinstance(entry.body, ReaderPositions), entry
            for position in entry.body.readers:
                old = readers.pop(position.name, None)
                if outdates(old, position):
                    self.readers_changed_index = entry.index
                if not position.ends:
                    readers[position.name] = Reader(
                        position.name, position.position, position.hold, entry.index
                    )

    def _note_forgotten(self, controls: Sequence[ControlEntry]) -> None:
        for entry in controls:
            if isinstance(entry.body, OpenProducer) and entry.body.forgets:
                self.producers_forgotten_index = entry.index

    def truncate_from(self, index: int) -> None:
        """Entries from `index` on, all above the committed one, are gone."""
        assert index > self._committed_index, (index, self._committed_index)
        self.readers_changed_index = min(self.readers_changed_index, index - 1)
        self.producers_forgotten_index = min(self.producers_forgotten_index, index - 1)
        if self._entries and self._entries[-1].index >= index:
            self._entries = list(takewhile(lambda entry: entry.index < index, self._entries))
            self.appended = folded(self.committed, self._entries)

    def commit(self, index: int) -> None:
        """Entries up to `index` are committed."""
        assert index >= self._committed_index, (index, self._committed_index)
        self._committed_index = index
        if self._entries and self._entries[0].index <= index:
            done = list(takewhile(lambda entry: entry.index <= index, self._entries))
            del self._entries[: len(done)]
            self.committed = folded(self.committed, done) if self._entries else self.appended
