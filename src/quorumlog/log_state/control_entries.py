"""Contents of control entries: one struct a kind, as the body on disk (docs/formats.md).

A body is the msgpack array of its struct's fields. Every member must interpret it identically, so
nothing is skipped: an unknown field makes it unreadable, and so does a value out of the bounds given
here. An unreadable body is a value, too (`Unreadable`); nothing is raised.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from quorumlog.entry import EntryKind, Replica
from quorumlog.errors import BadRequest
from quorumlog.log_state.users import UsersChange

LEVEL = 7
"""Of the format that this release writes and reads. Level 0 has NORMAL and NOOP only."""
AUTOMATIC_LEVEL = 5
"""Up to this level a leader writes the kinds that every member has reported to know. Higher ones need a
LEVEL entry before them, ordered by an operator, unless the group was formed by members that all knew
them: until then a member may return to the previous release."""
REPLACED_LEVEL = 4
"""From which on a MEMBERSHIP entry may name directories that were replaced."""
CHAIN_LEVEL = 5
"""From which on a READER entry may say with which chain an archive ends."""
SKIPPED_LEVEL = 6
"""From which on a READER entry may hold skipped entries."""
USERS_LEVEL = 7
"""From which on there may be users."""
VERSION_LEVEL = 6
"""From which on a leader writes MACHINE entries with a version above 1: members of a release below have
version 1 of the machines of ours, and would stop there."""
MOST_BODY_BYTES = 64 * 1024
"""A larger body is no control entry."""
MOST_IN_A_BODY = 256
"""Members, or readers, that one entry may name."""
MOST_REPLACED = 64
"""Directories that were replaced or removed, which one entry may name."""
MOST_PRODUCERS = 100_000
"""Sessions that a log remembers: opening one more has to name others to forget."""
MOST_BATCH_ENTRIES = 2**31 - 1
TOKEN_BYTES = 16
ANONYMOUS = "~"
"""The name of a producer that nobody will name again begins with it: it may be forgotten for another."""
MOST_MS = 2**53
"""A time beyond it is nonsense, and so is an index."""

MOST_MACHINES = 64
"""State machines that one log may bind, one a channel; the channels are 1 up to this."""
MOST_RUNS = 16
"""Resets of the clock that a log's state remembers; the oldest ones are merged."""
MOST_STEPPED_OVER = 64
"""Entries that the machines of one log may leave out, as long as the log still holds them."""

MOST_NAME_CHARACTERS = 255
Name = Annotated[str, Meta(min_length=1, max_length=MOST_NAME_CHARACTERS)]
READER_NAME = r"^[A-Za-z0-9._-]{1,64}\Z"
READER_NAMES = (
    "the name of a reader has 1 to 64 letters, digits, dots, dashes and underscores, unlike {!r}"
)
ReaderName = Annotated[str, Meta(pattern=READER_NAME)]
"""Short, and of characters of one byte: the readers of a log travel with its start."""
MachineName = Annotated[str, Meta(pattern=r"\A[a-z0-9][a-z0-9_.-]{0,63}\Z")]
"""It is part of the names of files."""
MOST_INDEX = 2**62
Index = Annotated[int, Meta(ge=-1, le=MOST_INDEX)]
TimeMs = Annotated[int, Meta(ge=0, le=MOST_MS)]
Sequence = Annotated[int, Meta(ge=0, le=2**62)]
"""Number of an entry within its producer's, from 0 on."""
Chain = Annotated[int, Meta(ge=0, le=2**32 - 1)]
"""The digest `chain_crc` of an entry."""
Token = Annotated[bytes, Meta(min_length=TOKEN_BYTES, max_length=TOKEN_BYTES)]
Replicas = Annotated[tuple[Replica, ...], Meta(max_length=MOST_IN_A_BODY)]


class Hold(IntEnum):
    """Whether entries from a reader's position on may be deleted."""

    NONE = 0
    READER = 1
    """Not unless somebody forces it."""
    ARCHIVE = 2
    """Never: entries must be in the archive before deletion."""


class Body(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    pass


def fields_to_write(value: msgspec.Struct, newer: int) -> tuple[object, ...]:
    """All, but for the last of the `newer` ones that say nothing: earlier releases do not know those."""
    fields = msgspec.structs.astuple(value)
    for default in reversed(value.__struct_defaults__[-newer:]):
        if fields[-1] != default:
            break
        fields = fields[:-1]
    return fields


class MembershipEntry(Body, frozen=True):
    """MEMBERSHIP: the voters from this entry on. Both halves are equal where no change is under way."""

    old: Replicas
    new: Replicas
    learners: Replicas = ()
    addresses: Annotated[tuple[tuple[Name, Name], ...], Meta(max_length=MOST_IN_A_BODY)] = ()
    """(member id, address), by id."""
    replaced: Annotated[tuple[Replica, ...], Meta(max_length=MOST_REPLACED)] = ()
    """Directories that were members before, the newest last: none of them becomes one again by itself.
    An entry that names none is written without this field, as earlier releases know it."""

    def fields(self) -> tuple[object, ...]:
        return fields_to_write(self, 1)


class TimeMark(Body, frozen=True):
    """TIME: when this entry was appended, as a quorum of clocks has it. It never falls within a log."""

    time_ms: TimeMs
    """Since 1970."""


class ReaderPosition(Body, frozen=True):
    """Position of one named reader, and whether entries after it are held."""

    name: ReaderName
    position: Index
    """Index of the next entry that it wants."""
    hold: Hold = Hold.NONE
    seeks_from: Index | None = None
    """Where it moves from: `position` may be lower then; ignored unless the reader is there. None: only
    forward."""
    ends: bool = False
    """The reader is forgotten."""
    last_chain: Chain | None = None
    """Of an archive: the `chain_crc` of its last entry, the one before `position`."""
    skipped: tuple[Index, Index] | None = None
    """(first_index, stop_index) of skipped entries, deleted before it reached them. It and `last_chain`
    are omitted if not given, as earlier releases expect."""

    def fields(self) -> tuple[object, ...]:
        return fields_to_write(self, 2)


class ReaderPositions(Body, frozen=True):
    """READER: the moves of several readers, in this order."""

    readers: Annotated[tuple[ReaderPosition, ...], Meta(max_length=MOST_IN_A_BODY)]

    def fields(self) -> tuple[object, ...]:
        return (tuple(reader.fields() for reader in self.readers),)


class Keep(Body, frozen=True):
    """KEEP: no entry from this index on may be deleted; earlier ones may, once this is committed."""

    keep_from_index: Annotated[int, Meta(ge=0, le=2**62)]
    forced: bool = False
    """Readers that hold do not stop it; archives do."""


class ProducerEpoch(Body, frozen=True, order=True):
    """Of a producer: the OPEN entry that began it."""

    index: Index
    term: Index


class OpenProducer(Body, frozen=True):
    """OPEN: an epoch of a producer begins with this entry and ends the one before. Entry numbers
    continue."""

    producer: Name
    token: Token
    """Drawn by the opener: distinguishes a repetition of its own request from another's."""
    ends: ProducerEpoch | None = None
    """The current epoch; None: there is none. If another one is current, this entry changes nothing."""
    evicts: Annotated[tuple[Name, ...], Meta(max_length=MOST_IN_A_BODY)] = ()
    """Producers that are forgotten to make room."""
    forgets: bool = False
    """No epoch begins: the producer is forgotten, its numbers too."""


class ProducerBatch(Body, frozen=True):
    """PRODUCER: the next `count` entries are of a producer's epoch, without a gap. A crash may cut them:
    they end with the first entry of another term."""

    producer: Name
    epoch: ProducerEpoch
    first_sequence: Sequence
    count: Annotated[int, Meta(ge=1, le=MOST_BATCH_ENTRIES)]
    continues: bool = False
    """The rest of the producer's last batch, which was cut."""


class MachineBinding(Body, frozen=True):
    """MACHINE: the state machine `name` takes the entries of `channel` that follow, by `version`.
    A name that is bound keeps its channel, and its version only rises."""

    name: MachineName
    channel: Annotated[int, Meta(ge=1, le=MOST_MACHINES)]
    version: Annotated[int, Meta(ge=1, le=2**31)]


class ClockReset(Body, frozen=True):
    """CLOCK: an operator has reset the log's time. Time marks rise within a run, from one reset to the
    next; this entry ends a run and begins the next one at `time_ms`, which may be lower."""

    time_ms: TimeMs
    """Since 1970, as a quorum of clocks has it."""


class StepOver(Body, frozen=True):
    """STEP_OVER: the state machine `name` leaves the entry at `index` out, on every member."""

    name: MachineName
    index: Annotated[int, Meta(ge=0, le=2**62)]
    chain: Chain
    """The digest `chain_crc` of that entry, so that the order is about these very bytes."""


class LevelReached(Body, frozen=True):
    """LEVEL: from here on the log may have entries of levels up to this one; no member goes back to a
    release that does not know it."""

    level: Annotated[int, Meta(gt=AUTOMATIC_LEVEL, le=2**31)]


ControlBody = (
    MembershipEntry
    | TimeMark
    | ReaderPositions
    | Keep
    | OpenProducer
    | ProducerBatch
    | MachineBinding
    | ClockReset
    | StepOver
    | LevelReached
    | UsersChange
)

BODIES: dict[EntryKind, type[ControlBody]] = {
    EntryKind.MEMBERSHIP: MembershipEntry,
    EntryKind.TIME: TimeMark,
    EntryKind.READER: ReaderPositions,
    EntryKind.KEEP: Keep,
    EntryKind.OPEN: OpenProducer,
    EntryKind.PRODUCER: ProducerBatch,
    EntryKind.MACHINE: MachineBinding,
    EntryKind.CLOCK: ClockReset,
    EntryKind.STEP_OVER: StepOver,
    EntryKind.LEVEL: LevelReached,
    EntryKind.USERS: UsersChange,
}
"""The kinds that have a body; the others change no state."""
LEVELS: dict[EntryKind, int] = {
    **dict.fromkeys(BODIES, 1),
    EntryKind.OPEN: 2,
    EntryKind.PRODUCER: 2,
    EntryKind.MACHINE: 3,
    EntryKind.CLOCK: 6,
    EntryKind.STEP_OVER: 6,
    EntryKind.LEVEL: 6,
    EntryKind.USERS: USERS_LEVEL,
}
"""The level of the format from which on a kind is known."""


def level_of(body: ControlBody) -> int:
    """The level that a member needs to read this entry."""
    if isinstance(body, LevelReached):
        return body.level
    if isinstance(body, MembershipEntry) and body.replaced:
        return REPLACED_LEVEL
    if isinstance(body, ReaderPositions):
        if any(each.skipped is not None for each in body.readers):
            return SKIPPED_LEVEL
        if any(each.last_chain is not None for each in body.readers):
            return CHAIN_LEVEL
    return LEVELS[kind_of(body)]


class Unreadable(NamedTuple):
    """A control entry, or a state, of which this member can make nothing."""

    reason: str


class ControlEntry(msgspec.Struct, frozen=True):
    """One of a kind that `BODIES` names, or a NOOP, at its place in the log."""

    index: int
    kind: EntryKind
    body: ControlBody | Unreadable | None
    """None: a NOOP, which says that its term begins."""
    term: int = 0


_encoder = msgspec.msgpack.Encoder()
_decoders = {kind: msgspec.msgpack.Decoder(body) for kind, body in BODIES.items()}
_KINDS = {body: kind for kind, body in BODIES.items()}


def kind_of(body: ControlBody) -> EntryKind:
    return _KINDS[type(body)]


def encode_body(body: ControlBody) -> bytes:
    """Raises BadRequest for a body that no member could read again: too large, or with a value beyond
    its bounds."""
    data = _encoder.encode(
        body.fields() if isinstance(body, MembershipEntry | ReaderPositions) else body
    )
    found = decode_body(kind_of(body), data)
    if isinstance(found, Unreadable):
        raise BadRequest(f"the log cannot record this: {found.reason}")
    return data


def encode_batch(body: ProducerBatch) -> bytes:
    """The same of the one kind that comes with every append of a session: within bounds as it is."""
    return _encoder.encode(body)


def decode_body(kind: EntryKind, data: bytes | memoryview) -> ControlBody | Unreadable:
    if len(data) > MOST_BODY_BYTES:
        return Unreadable(f"a {kind.name} entry with a body of {len(data)} bytes")
    try:
        body: ControlBody = _decoders[kind].decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return Unreadable(f"a {kind.name} entry that this release cannot read: {error}")
    if isinstance(body, LevelReached) and body.level > LEVEL:
        return Unreadable(of_a_later_release(body.level))
    return body


def of_a_later_release(level: int) -> str:
    return (
        f"the log has entries of level {level}; this release knows up to level {LEVEL}: start the"
        " release that wrote them, or a later one"
    )
