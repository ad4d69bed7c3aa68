"""What clients and servers say to each other; one request, one response, matched by `request_id`. Entry
bytes travel as the batch of the frame, beside the message."""

from __future__ import annotations

import msgspec

from quorumlog.log_state.control_entries import Epoch

PROTOCOL_VERSION = 1

WELCOME, NOT_SERVED, REFUSED, UNSETTLED, DUPLICATE = 200, 400, 401, 402, 403
"""Codes of a HelloResponse. DUPLICATE: another process is the member that this one says it is, and has
just answered at its address. UNSETTLED: it is connected, and has not."""


class ClientMessage(msgspec.Struct, frozen=True, array_like=True, tag_field="type", kw_only=True):
    request_id: int = 0


class Hello(ClientMessage, frozen=True, kw_only=True, tag=32):
    """The first frame on every connection, from who dialled."""

    protocol: int = PROTOCOL_VERSION
    role: str
    """`client`, `control` (heartbeats, votes, COMMIT) or `data` (COMPARE, TRUNCATE, APPEND)."""
    member_id: str = ""
    directory_id: str = ""
    """Both empty for a client."""
    to_member_id: str = ""
    """Whom the dialler expects to reach; a peer listening under another id refuses."""
    cluster_id: str = ""
    """Empty while unformed."""
    members: str = ""
    """The dialler's member list, `n0=host:port,...` sorted by id: lists that differ are reported."""
    segment_bytes: int = 0
    durability: str = ""
    run_id: str = ""
    """Drawn at each start of a process: tells two processes on copies of one directory apart. A client
    gives that of its `rival`."""
    listens_on: str = ""
    """`host:port`, of a peer; may be another than the one in `members`."""
    rival: str = ""
    """Of a client: another process speaks as the member that this connection leads to, in a sentence."""
    level: int = 0
    """Of the log's format, up to which a peer knows it (`log_state/control_entries.py`)."""


class HelloResponse(ClientMessage, frozen=True, kw_only=True, tag=33):
    """The first frame back. `code` 200, or the connection closes after it and `message` says why."""

    protocol: int = PROTOCOL_VERSION
    code: int = 200
    message: str = ""
    member_id: str = ""
    directory_id: str = ""
    cluster_id: str = ""
    members: str = ""
    segment_bytes: int = 0
    durability: str = ""
    connection_id: str = ""
    """Names this connection on this server; a stream that moves to a new one gives it back."""
    max_entry_bytes: int = 0
    max_frame_bytes: int = 0
    run_id: str = ""
    knows_conditions: bool = False
    """`AppendRequest.expected_last` is looked at; an older server would append whatever it says."""
    level: int = 0
    """As in Hello."""


class Numbered(msgspec.Struct, frozen=True, array_like=True):
    """Where an append stands in its producer's session."""

    producer: str
    epoch: Epoch
    """What ConnectProducer was answered with."""
    sequence: int
    """Number of the first entry among all of the producer's."""


class AppendRequest(ClientMessage, frozen=True, kw_only=True, tag=34):
    """Batch: the encoded entries, headers unstamped."""

    stream: int = 0
    """Nonzero: requests of this stream on this connection are accepted in the order of `number`."""
    number: int = 0
    """1, 2, 3, ... within the stream and connection."""
    previous_connection: str = ""
    """On the first request of a stream on a new connection: the `connection_id` before. The leader
    closes it and discards what it has not appended of it, before it accepts."""
    timeout_ms: int = 0
    """How long the leader waits for the commit before it answers OutcomeUnknown; 0: its default."""
    expected_last: int | None = None
    """Append only if no data entry lies behind this index in the leader's whole log; else
    WrongLastIndex. -1: only if there is none at all. Not in a stream."""
    session: Numbered | None = None
    """The entries are appended once, however often the request comes. Not in a stream, nor with
    `expected_last`."""


class AppendResponse(ClientMessage, frozen=True, kw_only=True, tag=35):
    term: int
    first_index: int
    count: int
    durability: str
    ranges: tuple[tuple[int, int, int], ...] = ()
    """(first_index, count, term) of what was appended at several times, because a crash had cut it; then
    `first_index` is that of the first, and `term` that of the last. Empty: all of it lies together."""


class ReadRequest(ClientMessage, frozen=True, kw_only=True, tag=36):
    """Entries from `first_index` on, at most up to the member's committed index."""

    first_index: int
    stop_index: int = -1
    """Exclusive; -1: the committed index + 1 at the time of the request."""
    limit_bytes: int = 1 << 20
    """At least one entry is returned however large it is."""
    wait_ms: int = 0
    """Wait so long for entry `first_index` to be committed, if it is not yet; then answer empty."""
    from_leader: bool = False
    """Refuse with NotLeader unless you lead: a leader that was stopped and replaced would otherwise
    answer without the newest entries, as any follower may."""
    to_end: bool = False
    """The `committed_index` of the answer decides where the read ends. With `from_leader` and without
    `wait_ms` a majority confirms the leadership first, so it covers all that was acknowledged before the
    request; also where a `first_index` above it is refused, which is how a client asks for the end
    alone."""


class ReadResponse(ClientMessage, frozen=True, kw_only=True, tag=37):
    """Batch: the stored bytes of `count` entries from `first_index` on (no-ops included)."""

    first_index: int
    count: int
    ledger_begin_index: int
    committed_index: int


class StatusRequest(ClientMessage, frozen=True, kw_only=True, tag=38):
    pass


class MemberInfo(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """One member as another sees it."""

    id: str
    address: str
    directory_id: str = ""
    reachable: bool = False
    is_voter: bool = False
    """By its directory; by its name where that is not known, as of a member that is down."""
    water_mark: int = -1
    """Leader only: what the member has acknowledged."""


class StatusResponse(ClientMessage, frozen=True, kw_only=True, tag=39):
    group: str
    id: str
    address: str
    directory_id: str
    cluster_id: str
    role: str
    term: int
    leader_id: str
    """Empty: unknown."""
    leader_address: str
    ledger_begin_index: int
    ledger_end_index: int
    durable_index: int
    committed_index: int
    flush: str
    members: tuple[MemberInfo, ...] = ()
    waits_for: str = ""
    problems: tuple[str, ...] = ()
    version: str = ""
    damaged_entries: int = 0
    """Damaged, and to be repaired from the others."""
    scrub_next_index: int = -1
    """Entry that the background scrub looks at next; -1: no pass is under way."""
    scrub_stop_index: int = -1
    """Where that pass ends (exclusive)."""
    scrub_passes: int = 0
    """Ended since the member's start."""
    scrub_ended_ms_ago: int = -1
    """Since the newest of them ended; -1: none has."""
    set_aside_files: int = 0
    """What is kept in `set-aside/` for people."""
    set_aside_bytes: int = 0
    log_disk_bytes: int = -1
    """What the segments of data and index take of the disk; -1: an earlier release does not say."""
    log_apparent_bytes: int = -1
    """How long they are: segments are sparse."""
    voters: int = -1
    """How many vote; 0 before the group has formed, -1: an earlier release does not say."""
    quorum_size: int = -1
    """How many of them are needed for anything to be committed."""
    log_time_ms: int = -1
    """What the last committed time mark says, since 1970; -1: there is none, or it is not known."""
    log_time_index: int = -1
    """Of that mark."""
    producers: int = -1
    """Sessions that the log remembers, as far as it is committed; -1: not known."""


class ProducerInfo(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """A session, as a log knows it."""

    producer: str
    epoch: Epoch
    last_sequence: int
    """-1: none of its entries is in the log."""
    last_index: int
    """Where that one lies; -1 if none is remembered."""


class TransferRequest(ClientMessage, frozen=True, kw_only=True, tag=40):
    to_member_id: str


class TransferResponse(ClientMessage, frozen=True, kw_only=True, tag=41):
    """Answered when the new leader is known."""

    leader_id: str
    term: int


class ConnectProducer(ClientMessage, frozen=True, kw_only=True, tag=42):
    """A producer's epoch is to begin."""

    producer: str
    token: bytes
    """Random, 16 bytes; the same in each repetition."""
    ends: Epoch | None = None
    """The epoch that stands, as an answer before has named it; None: there is none."""
    timeout_ms: int = 0
    """As in AppendRequest."""


class ConnectProducerResponse(ClientMessage, frozen=True, kw_only=True, tag=43):
    opened: bool
    """False: `epoch` stands, which the request did not name. Nothing was written."""
    epoch: Epoch
    last_sequence: int
    """Number of the last entry that is in the log; -1: none is."""


class LastSequence(ClientMessage, frozen=True, kw_only=True, tag=44):
    """What is in the log of a producer. Refused with ProducerExpired if there is no such session."""

    producer: str


class LastSequenceResponse(ClientMessage, frozen=True, kw_only=True, tag=45):
    producer: ProducerInfo


class ListProducers(ClientMessage, frozen=True, kw_only=True, tag=46):
    after: str = ""
    """Names behind this one, in their order."""
    limit: int = 1000


class ListProducersResponse(ClientMessage, frozen=True, kw_only=True, tag=47):
    producers: tuple[ProducerInfo, ...]
    is_last: bool
    """There are none behind these."""


class ForgetProducer(ClientMessage, frozen=True, kw_only=True, tag=48):
    """A session is to end for good, with all that is known of its producer's numbers."""

    producer: str
    epoch: Epoch
    """The one that stands; another: ProducerFenced."""


class ForgetProducerResponse(ClientMessage, frozen=True, kw_only=True, tag=49):
    pass


class LayoutRequest(ClientMessage, frozen=True, kw_only=True, tag=50):
    """How this member's log lies in segments and where it begins: for a copy of its bytes."""


class LayoutResponse(ClientMessage, frozen=True, kw_only=True, tag=51):
    member_id: str
    cluster_id: str
    segment_bytes: int
    index_segment_bytes: int
    begin_index: int = -1
    """The entry before the first that is left, which the next three are about; -1: none has gone."""
    begin_term: int = -1
    begin_chain: int = 0
    begin_position: int = 0
    """Of the segment that begins behind it."""
    begin_record: bytes = b""
    """The state of the log up to there, which no entry tells any more."""


class ReaderInfo(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """One reader that the cluster keeps by name, as of a committed entry."""

    name: str
    position: int
    """Index of the next entry that it wants."""
    hold: int
    """`log_state.control_entries.Hold`."""
    last_index: int = -1
    """Of the entry that named it last."""
    lag_ms: int = -1
    """From the time of the entry at `position` to that of the newest; -1: the log does not say."""
    lost_ranges: tuple[tuple[int, int], ...] = ()
    """(first_index, stop_index) of what it wanted to be held and that was given up by force."""


class MoveReaderRequest(ClientMessage, frozen=True, kw_only=True, tag=64):
    """Move a reader, make it or end it; answered once that is committed. It may be repeated."""

    reader: str
    position: int | None = None
    """Of the next entry that it wants; without `seeks_from` it only goes forward. None: where it stands,
    and a new one begins with the first entry that may not be deleted."""
    hold: int | None = None
    """None: as it is, and a new one holds nothing."""
    seeks_from: int | None = None
    """Where it stands, for one that is to go back."""
    ends: bool = False
    opens: bool = False
    """Make it if there is none; UnknownReader otherwise."""


class MoveReaderResponse(ClientMessage, frozen=True, kw_only=True, tag=65):
    position: int
    hold: int


class ReadersRequest(ClientMessage, frozen=True, kw_only=True, tag=66):
    """Answered by the leader, once a majority has confirmed it."""


class ReadersResponse(ClientMessage, frozen=True, kw_only=True, tag=67):
    committed_index: int
    keep_from_index: int
    """Nothing from here on may be deleted; committed."""
    readers: tuple[ReaderInfo, ...] = ()


class FindMarkRequest(ClientMessage, frozen=True, kw_only=True, tag=52):
    """Which time mark holds at an entry, or at a time; one of the two is given."""

    index: int = -1
    """The last mark at or in front of this entry."""
    time_ms: int = -1
    """The last mark that says this or an earlier time; milliseconds since 1970."""


class FindMarkResponse(ClientMessage, frozen=True, kw_only=True, tag=53):
    """Of what is committed, as the member knows it."""

    index: int = -1
    """Of the mark, which may be in front of the log's begin; -1: there is none."""
    time_ms: int = -1
    ledger_begin_index: int
    committed_index: int


class SegmentInfo(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """What keeps one segment."""

    first_index: int
    stop_index: int
    size_bytes: int
    """Of data and index."""
    time_ms: int = -1
    """The last time mark at its end, in milliseconds since 1970; -1: there is none."""
    reasons: tuple[str, ...] = ()


class WhyKeptRequest(ClientMessage, frozen=True, kw_only=True, tag=68):
    """Answered by the leader, who decides what goes."""


class WhyKeptResponse(ClientMessage, frozen=True, kw_only=True, tag=69):
    keep_from_index: int
    """Nothing from here on may be deleted; committed."""
    used_ratio: float
    """The share of the leader's disk that is in use."""
    segments: tuple[SegmentInfo, ...] = ()


class ErrorResponse(ClientMessage, frozen=True, kw_only=True, tag=63):
    """Any request that ended in a `LedgerError`."""

    code: int
    message: str
    leader_id: str = ""
    leader_address: str = ""
    retry_after_ms: int = 0
    ledger_begin_index: int = -1
    committed_index: int = -1
    expected_last: int = -1
    actual_last: int = -1
    """Both of a WrongLastIndex."""
    expected_sequence: int = -1
    """Of a SequenceGap."""
    last_sequence: int = -1
    """Of an AlreadyCommitted."""


AnyClientMessage = (
    Hello
    | HelloResponse
    | AppendRequest
    | AppendResponse
    | ReadRequest
    | ReadResponse
    | StatusRequest
    | StatusResponse
    | TransferRequest
    | TransferResponse
    | ErrorResponse
    | LayoutRequest
    | LayoutResponse
    | MoveReaderRequest
    | MoveReaderResponse
    | ReadersRequest
    | ReadersResponse
    | ConnectProducer
    | ConnectProducerResponse
    | LastSequence
    | LastSequenceResponse
    | ListProducers
    | ListProducersResponse
    | ForgetProducer
    | ForgetProducerResponse
    | FindMarkRequest
    | FindMarkResponse
    | WhyKeptRequest
    | WhyKeptResponse
)
