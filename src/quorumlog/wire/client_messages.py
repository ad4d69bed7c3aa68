"""Messages between clients and servers: one request, one response, matched by `request_id`. Entry bytes
travel as the batch of the frame, after the message.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

import msgspec

from quorumlog.log_state.control_entries import ProducerEpoch
from quorumlog.log_state.log_state import Reset
from quorumlog.log_state.users import UserOrder, UserRole, Users
from quorumlog.wire.client_message import ClientMessage, Int, Text
from quorumlog.wire.read_promise import ReadGuarantee


class ProducerInfo(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """A producer session, as the log knows it."""

    producer: Text
    epoch: ProducerEpoch
    last_sequence: Int
    """-1: the log has none of its entries."""
    last_index: Int
    """Index of that entry; -1 if not remembered."""


class ConnectProducer(ClientMessage, frozen=True, kw_only=True, tag=42):
    """A producer's epoch is to begin."""

    producer: Text
    token: bytes
    """Random, 16 bytes; the same in each repetition."""
    ends: ProducerEpoch | None = None
    """The current epoch, from an earlier answer; None: there is none."""
    timeout_ms: Int = 0
    """As in AppendRequest."""
    seen_index: Int | None = None
    """Of the first connect of a producer: the log end, from an earlier answer, that it was meant for. If
    a producer was forgotten since, nothing is opened, so that no late copy of it lists that one again.
    -1: no answer yet. None: an older client, or one whose id is never forgotten."""


class ConnectProducerResponse(ClientMessage, frozen=True, kw_only=True, tag=43):
    opened: bool
    """False: `epoch` is current, which the request did not name; (-1, -1): there is none, and
    `seen_index` is for the next request. Nothing was written."""
    epoch: ProducerEpoch
    last_sequence: Int
    """Number of the last entry that is in the log; -1: none is."""
    seen_index: Int = -1
    """Without an epoch: the end of the log that shows it."""


class LastSequence(ClientMessage, frozen=True, kw_only=True, tag=44):
    """The newest entries of a producer in the log. Refused with ProducerExpired if there is no such
    session."""

    producer: Text


class LastSequenceResponse(ClientMessage, frozen=True, kw_only=True, tag=45):
    producer: ProducerInfo


class ListProducers(ClientMessage, frozen=True, kw_only=True, tag=46):
    after: Text = ""
    """Names after this one, in their order."""
    limit: Int = 1000


class ListProducersResponse(ClientMessage, frozen=True, kw_only=True, tag=47):
    producers: tuple[ProducerInfo, ...]
    is_last: bool
    """There are none after these."""


class ForgetProducer(ClientMessage, frozen=True, kw_only=True, tag=48):
    """A session is to end for good, with all that is known of its producer's numbers."""

    producer: Text
    epoch: ProducerEpoch
    """The current one; another: ProducerFenced."""


class ForgetProducerResponse(ClientMessage, frozen=True, kw_only=True, tag=49):
    pass


# ----------------------------------------------------------------
# What clients and servers say of the readers that the cluster keeps by name.


class ReaderInfo(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """One reader that the cluster keeps by name, as of a committed entry."""

    name: Text
    position: Int
    """Index of the next entry that it wants."""
    hold: Int
    """`log_state.control_entries.Hold`."""
    last_index: Int = -1
    """Of the entry that named it last."""
    lag_ms: Int = -1
    """From the time of the entry at `position` to that of the newest; -1: the log does not say."""
    lost_ranges: tuple[tuple[Int, Int], ...] = ()
    """(first_index, stop_index) of held entries deleted by force."""
    lag_entries: Int = -1
    """Data entries from `position` to the committed index; -1: an older server."""
    skipped_entries: Int = 0
    """Entries deleted before it reached them."""
    skipped_ranges: tuple[tuple[Int, Int], ...] = ()
    """(first_index, stop_index) of the newest of them."""


class MoveReaderRequest(ClientMessage, frozen=True, kw_only=True, tag=64):
    """Move a reader, make it or end it; answered once that is committed. It may be repeated."""

    reader: Text
    position: Int | None = None
    """Of the next entry to read; without `seeks_from` it only moves forward. None: unchanged; a new one
    begins with the first entry that may not be deleted."""
    hold: Int | None = None
    """None: as it is, and a new one holds nothing."""
    seeks_from: Int | None = None
    """Its position, for one that is to move back."""
    ends: bool = False
    opens: bool = False
    """Make it if there is none; UnknownReader otherwise."""
    last_index: Int | None = None
    """Of a seek: the entry that named the reader last, from its answer. A late copy of the seek may meet
    the same position, but not the same entry. None: unknown to the client."""
    seen_index: Int | None = None
    """The log end, from an earlier answer, that this was meant for: ReaderMoved if a reader was ended,
    moved back or held otherwise since, so that no late copy takes effect after that. -1: no answer yet.
    None: an older client, whose late copies count."""
    last_chain: Int | None = None
    """Of an archive: the `chain_crc` of its last entry, the one before `position`."""
    skipped: tuple[Int, Int] | None = None
    """(first_index, stop_index) of skipped entries, deleted before it reached them. Repeated, they are
    not counted again."""


class MoveReaderResponse(ClientMessage, frozen=True, kw_only=True, tag=65):
    position: Int
    hold: Int
    last_index: Int = -1
    """Of the entry that named it last; -1: an older server, which does not say."""
    seen_index: Int = -1
    """Up to where the log is that says so; for the next request."""


class ReadersRequest(ClientMessage, frozen=True, kw_only=True, tag=66):
    """Answered by the leader, once a majority has confirmed it."""


class ReadersResponse(ClientMessage, frozen=True, kw_only=True, tag=67):
    committed_index: Int
    keep_from_index: Int
    """Nothing from here on may be deleted; committed."""
    readers: tuple[ReaderInfo, ...] = ()


# ---------------------------------------------------------------- Appends, reads, status and the rest


class Numbered(msgspec.Struct, frozen=True, array_like=True):
    """The position of an append in its producer's session."""

    producer: Text
    epoch: ProducerEpoch
    """From the answer to ConnectProducer."""
    sequence: Int
    """Number of the first entry among all of the producer's."""


class AppendRequest(ClientMessage, frozen=True, kw_only=True, tag=34):
    """Batch: the encoded entries, headers unstamped."""

    stream: Int = 0
    """Nonzero: requests of this stream on this connection are accepted in the order of `number`."""
    number: Int = 0
    """1, 2, 3, ... within the stream and connection."""
    previous_connection: Text = ""
    """On the first request of a stream on a new connection: the `connection_id` before. The leader
    closes it and discards its unappended requests, before it accepts."""
    timeout_ms: Int = 0
    """How long the leader waits for the commit before it answers OutcomeUnknown; 0: its default."""
    expected_last: Int | None = None
    """Append only if no data entry lies after this index in the leader's whole log; else
    WrongLastIndex. -1: only if there is none at all. Not in a stream."""
    session: Numbered | None = None
    """The entries are appended once, however often the request comes. Not in a stream, nor with
    `expected_last`."""
    machine: Text = ""
    """Of the state machine that takes the entries; the answer has its results. Not in a stream. Only to
    a server of level 3 (HelloResponse): an older one would append them as anybody's."""


class AppendResponse(ClientMessage, frozen=True, kw_only=True, tag=35):
    term: Int
    first_index: Int
    count: Int
    durability: Text
    ranges: tuple[tuple[Int, Int, Int], ...] = ()
    """(first_index, count, term) of a batch appended in several parts, because a crash had cut it; then
    `first_index` is that of the first, and `term` that of the last. Empty: it is contiguous."""
    results: tuple[bytes | None, ...] = ()
    """Of a state machine, one an entry; `failures`: (place, why) of those that it refused."""
    failures: tuple[tuple[Int, Text], ...] = ()


class ReadRequest(ClientMessage, frozen=True, kw_only=True, tag=36):
    """Entries from `first_index` on, at most up to the member's committed index."""

    first_index: Int
    stop_index: Int = -1
    """Exclusive; -1: the committed index + 1 at the time of the request."""
    limit_bytes: Int = 1 << 20
    """At least one entry is returned however large it is."""
    wait_ms: Int = 0
    """Wait so long for entry `first_index` to be committed, if it is not yet; then answer empty."""
    from_leader: bool = False
    """Refuse with NotLeader unless you lead: a leader that was stopped and replaced would otherwise
    answer without the newest entries, as any follower may."""
    to_end: bool = False
    """The `committed_index` of the answer decides where the read ends. With `from_leader` and without
    `wait_ms` a majority confirms the leadership first, so it covers all that was acknowledged before the
    request; also where a `first_index` above it is refused, which is how a client asks for the end
    alone."""
    promise: ReadGuarantee | None = None
    """Required consistency of the answer, from any member; None: as it is. Not with `from_leader`."""
    heads: bool = False
    """The headers are enough; a server that does not know this field sends whole entries."""


class ReadResponse(ClientMessage, frozen=True, kw_only=True, tag=37):
    """Batch: the stored bytes of `count` entries from `first_index` on (no-ops included)."""

    first_index: Int
    count: Int
    ledger_begin_index: Int
    committed_index: Int
    age_ms: float = -1.0
    """All that anybody had acknowledged so long ago is at or below `committed_index`; -1: not known."""
    heads: bool = False
    """The batch is of headers alone, as was asked."""


class StatusRequest(ClientMessage, frozen=True, kw_only=True, tag=38):
    passes_limits = True
    events: bool = False
    """Also recent events."""


class EventInfo(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Something that a member remembers, as long as its process lives."""

    kind: Text
    """`leader`, `peer`, `problem` or `refused`."""
    time_ms: Int
    """On the member's clock; milliseconds since 1970."""
    text: Text
    times: Int = 1
    """Number since then; the text is that of the last time."""


class MemberInfo(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """One member as another sees it."""

    id: Text
    address: Text
    directory_id: Text = ""
    reachable: bool = False
    is_voter: bool = False
    """By its directory; by its name where that is not known, as of a member that is down."""
    water_mark: Int = -1
    """Leader only: the member's match index."""
    part: Text = ""
    """`voter`, `learner`; while a change runs, `joins`, `leaves` or `replaced`; empty: none by now."""
    behind_bytes: Int = -1
    """Leader only, of a member fed from files: bytes left to send; -1: it is not being fed."""
    bytes_per_second: Int = -1
    """And how fast that goes; -1: not known yet."""
    answered_ms_ago: float = -1.0
    """Leader only: since the member's last answer; -1: none since it leads, or an earlier release."""
    release: Text = ""
    """Of its software, as reported to this member; empty: it is not connected, or an earlier release."""


class MachineInfo(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """A state machine that a member runs; `node.state_machine_caller.MachineStatus`."""

    name: Text
    channel: Int
    version: Int
    applied_index: Int
    snapshot_index: Int
    problem: Text = ""


class StatusResponse(ClientMessage, frozen=True, kw_only=True, tag=39):
    group: Text
    id: Text
    address: Text
    directory_id: Text
    cluster_id: Text
    role: Text
    term: Int
    leader_id: Text
    """Empty: unknown."""
    leader_address: Text
    ledger_begin_index: Int
    ledger_end_index: Int
    durable_index: Int
    committed_index: Int
    flush: Text
    members: tuple[MemberInfo, ...] = ()
    waits_for: Text = ""
    problems: tuple[Text, ...] = ()
    version: Text = ""
    damaged_entries: Int = 0
    """Damaged, and to be repaired from the others."""
    scrub_next_index: Int = -1
    """Entry that the background scrub looks at next; -1: no pass is under way."""
    scrub_stop_index: Int = -1
    """Where that pass ends (exclusive)."""
    scrub_passes: Int = 0
    """Ended since the member's start."""
    scrub_ended_ms_ago: Int = -1
    """Since the newest of them ended; -1: none has."""
    set_aside_files: Int = 0
    """Files kept in `set-aside/` for inspection."""
    set_aside_bytes: Int = 0
    log_disk_bytes: Int = -1
    """Disk space of the segments of data and index; -1: an earlier release."""
    log_apparent_bytes: Int = -1
    """How long they are: segments are sparse."""
    voters: Int = -1
    """How many vote; 0 before the group has formed, -1: an earlier release does not say."""
    quorum_size: Int = -1
    """How many of them are needed for anything to be committed."""
    log_time_ms: Int = -1
    """Time of the last committed time mark, since 1970; -1: none, or unknown."""
    log_time_index: Int = -1
    """Of that mark."""
    producers: Int = -1
    """Sessions that the log remembers, as far as it is committed; -1: not known."""
    membership_index: Int = -1
    """Of the membership entry; -1: the group's founding list applies."""
    machines: tuple[MachineInfo, ...] = ()
    groups: tuple[Text, ...] = ()
    """All that this server has; empty: an earlier release does not say."""
    level: Int = -1
    """Of the log's format, up to which the member knows it; -1: an earlier release does not say."""
    log_level: Int = -1
    """Up to which the log may have entries by now, as this member knows; -1: not known."""
    unready: tuple[Text, ...] = ()
    """Why nothing should be sent to it just now, in sentences; empty: it is ready."""
    events: tuple[EventInfo, ...] = ()
    """If they were asked for."""
    users: Text = ""
    """`on`, `off`, or `unknown` while this member lets nobody in; empty: an earlier release does not
    say."""
    over_limits: Int = -1
    """Connections and requests of clients that were refused for `[limits]` since the process started;
    -1: an earlier release does not say."""


class ReloadRequest(ClientMessage, frozen=True, kw_only=True, tag=96):
    """As SIGHUP: reload the configuration and certificates."""


class ReloadResponse(ClientMessage, frozen=True, kw_only=True, tag=97):
    """In sentences."""

    member_id: Text
    changed: tuple[Text, ...] = ()
    needs_restart: tuple[Text, ...] = ()
    refused: tuple[Text, ...] = ()
    """Files with a mistake, of which nothing is used."""


class TransferRequest(ClientMessage, frozen=True, kw_only=True, tag=40):
    to_member_id: Text


class TransferResponse(ClientMessage, frozen=True, kw_only=True, tag=41):
    """Answered when the new leader is known."""

    leader_id: Text
    term: Int


class LayoutRequest(ClientMessage, frozen=True, kw_only=True, tag=50):
    """How this member's log lies in segments and where it begins: for a copy of its bytes."""


class LayoutResponse(ClientMessage, frozen=True, kw_only=True, tag=51):
    member_id: Text
    cluster_id: Text
    segment_bytes: Int
    index_segment_bytes: Int
    begin_index: Int = -1
    """The entry before the first that is left, which the next three are about; -1: none has gone."""
    begin_term: Int = -1
    begin_chain: Int = 0
    begin_position: Int = 0
    """Of the segment that begins after it."""
    begin_record: bytes = b""
    """The state of the log up to there, which no entry records any more."""


class ChangeMembersRequest(ClientMessage, frozen=True, kw_only=True, tag=80):
    """Change the members; answered by the leader once that is committed. docs/membership.md"""

    verb: Text
    """`add`, `promote`, `remove`, `replace` or `set-address`."""
    member_id: Text
    address: Text = ""
    """`host:port`, of `add` and `set-address`."""
    dry_run: bool = False
    """Only say whether it would be begun."""


class ChangeMembersResponse(ClientMessage, frozen=True, kw_only=True, tag=81):
    """The members then."""

    voters: tuple[Text, ...]
    learners: tuple[Text, ...]


class FindMarkRequest(ClientMessage, frozen=True, kw_only=True, tag=52):
    """Which time mark holds at an entry, or at a time; one of the two is given."""

    index: Int = -1
    """The last mark at or before this entry."""
    time_ms: Int = -1
    """The last mark that says this or an earlier time; milliseconds since 1970."""


class FindMarkResponse(ClientMessage, frozen=True, kw_only=True, tag=53):
    """Of committed entries, as known to the member."""

    index: Int = -1
    """Of the mark, which may be before the log's begin; -1: there is none."""
    time_ms: Int = -1
    """Append time of the entries after it."""
    ledger_begin_index: Int
    committed_index: Int
    clock_resets: tuple[Reset, ...] = ()
    """Of the whole log, by index: for readers of marks among entries."""


class ResetClockRequest(ClientMessage, frozen=True, kw_only=True, tag=54):
    """Let the log's time begin anew; answered by the leader once that is committed. docs/retention.md"""


class ResetClockResponse(ClientMessage, frozen=True, kw_only=True, tag=55):
    index: Int
    """Of the CLOCK entry."""
    time_ms: Int
    """Of a quorum's clocks; milliseconds since 1970."""


class FinishUpgradeRequest(ClientMessage, frozen=True, kw_only=True, tag=60):
    """Let the log have entries of the leader's level, which earlier releases do not know; answered by
    the leader once that is committed. docs/operations.md"""


class FinishUpgradeResponse(ClientMessage, frozen=True, kw_only=True, tag=61):
    index: Int
    """Of the LEVEL entry; -1: the log was at that level before."""
    level: Int


class MachineReadRequest(ClientMessage, frozen=True, kw_only=True, tag=56):
    """A question to a state machine, answered by the leader once a majority has confirmed it and the
    machine has applied all that was committed then. `timeout_ms`: as in AppendRequest."""

    machine: Text
    question: bytes
    timeout_ms: Int = 0
    promise: ReadGuarantee | None = None
    """As in ReadRequest, of the applied state; None: of the leader alone."""


class MachineReadResponse(ClientMessage, frozen=True, kw_only=True, tag=57):
    answer: bytes
    applied_index: Int
    age_ms: float = -1.0
    """As in ReadResponse, of `applied_index`."""


class StepOverRequest(ClientMessage, frozen=True, kw_only=True, tag=58):
    """A state machine is to leave an entry out; answered by the leader once that is committed."""

    machine: Text
    index: Int
    unsafe: bool = False
    """Also where a member has applied that entry, or does not answer."""


class StepOverResponse(ClientMessage, frozen=True, kw_only=True, tag=59):
    index: Int
    """Of the entry that says so."""


class SegmentInfo(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """The reason why one segment is kept."""

    first_index: Int
    stop_index: Int
    size_bytes: Int
    """Of data and index."""
    time_ms: Int = -1
    """The last time mark at its end, in milliseconds since 1970; -1: there is none."""
    reasons: tuple[Text, ...] = ()


class WhyKeptRequest(ClientMessage, frozen=True, kw_only=True, tag=68):
    """Answered by the leader, which decides on deletion."""


class WhyKeptResponse(ClientMessage, frozen=True, kw_only=True, tag=69):
    keep_from_index: Int
    """Nothing from here on may be deleted; committed."""
    used_ratio: float
    """The share of the leader's disk that is in use."""
    segments: tuple[SegmentInfo, ...] = ()


class ChangeUsersRequest(ClientMessage, frozen=True, kw_only=True, tag=102):
    """Change users, roles or grants; answered by the leader once that is committed. docs/security.md"""

    order: UserOrder


class ChangeUsersResponse(ClientMessage, frozen=True, kw_only=True, tag=103):
    index: Int
    """Of the USERS entry."""


class UserInfo(msgspec.Struct, frozen=True, array_like=True):
    name: Text
    roles: tuple[Text, ...]
    has_password: bool
    """False: known by a certificate alone."""


class UsersRequest(ClientMessage, frozen=True, kw_only=True, tag=104):
    """The users, and the grants of roles; as a quorum knows them."""


class UsersResponse(ClientMessage, frozen=True, kw_only=True, tag=105):
    is_on: bool
    """False: there has never been a user, and everybody may do everything."""
    users: tuple[UserInfo, ...] = ()
    roles: tuple[UserRole, ...] = ()


def users_response(request_id: int, users: Users) -> UsersResponse:
    rows = (UserInfo(user.name, user.roles, user.verifier is not None) for user in users.users)
    return UsersResponse(request_id=request_id, is_on=users.is_on, users=tuple(rows), roles=users.roles)


RESPONSE_OF: dict[type[ClientMessage], type[ClientMessage]] = {
    AppendRequest: AppendResponse,
    ReadRequest: ReadResponse,
    StatusRequest: StatusResponse,
    TransferRequest: TransferResponse,
    ConnectProducer: ConnectProducerResponse,
    LastSequence: LastSequenceResponse,
    ListProducers: ListProducersResponse,
    ForgetProducer: ForgetProducerResponse,
    LayoutRequest: LayoutResponse,
    MoveReaderRequest: MoveReaderResponse,
    ReadersRequest: ReadersResponse,
    ChangeMembersRequest: ChangeMembersResponse,
    FindMarkRequest: FindMarkResponse,
    ResetClockRequest: ResetClockResponse,
    FinishUpgradeRequest: FinishUpgradeResponse,
    MachineReadRequest: MachineReadResponse,
    StepOverRequest: StepOverResponse,
    WhyKeptRequest: WhyKeptResponse,
    ChangeUsersRequest: ChangeUsersResponse,
    UsersRequest: UsersResponse,
    ReloadRequest: ReloadResponse,
}
"""Of each request; any may be answered by an ErrorResponse instead."""

if TYPE_CHECKING:
    AnyClientRequest = ClientMessage
    AnyClientMessage = ClientMessage
else:
    AnyClientRequest = reduce(or_, RESPONSE_OF)
    """A client's message, after the greeting."""
    AnyClientMessage = reduce(or_, RESPONSE_OF.values(), AnyClientRequest)
