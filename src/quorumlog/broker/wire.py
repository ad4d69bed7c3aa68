"""Messages between a broker and its clients."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any

import msgspec

from quorumlog.batch import EntryBatch
from quorumlog.broker.epochs import CopyList, Peer, Run
from quorumlog.broker.record_batch import RecordBatch
from quorumlog.config import FRAME_LIMIT_BYTES, MIB
from quorumlog.entry_header import Buffer
from quorumlog.net.errors import ErrorResponse
from quorumlog.net.frame import Frame, FrameDecoder, encode_frame
from quorumlog.net.hello import PROTOCOL_VERSION, ChallengeResponse, Greeting, Hello
from quorumlog.net.limits import GREETING_BYTES
from quorumlog.wire.client_message import ClientMessage, Int, Text
from quorumlog.wire.client_messages import (
    ChangeUsersRequest,
    ChangeUsersResponse,
    UsersRequest,
    UsersResponse,
)

# ----------------------------------------------------------------
# Requests of topics and consumer groups, which every broker answers, and of sessions, which one on a
# replicated log does.

QueueOffsetRow = tuple[str, int, int]
"""(topic, queue, offset)."""


class TopicRouteRequest(ClientMessage, frozen=True, kw_only=True, tag=85):
    """Of the master: how many queues a topic has. In `dev` the topic is made if it is not there."""

    topic: Text


class TopicRouteResponse(ClientMessage, frozen=True, kw_only=True, tag=86):
    queues: Int
    perm: Int


class GroupCommandRequest(ClientMessage, frozen=True, kw_only=True, tag=87):
    """`body`: one of `group_commands.FROM_CLIENTS`."""

    body: bytes


class GroupQuestionRequest(ClientMessage, frozen=True, kw_only=True, tag=88):
    """`body`: a question of `group_commands`; the answer is linearizable."""

    body: bytes


class GroupAnswer(ClientMessage, frozen=True, kw_only=True, tag=89):
    """As the state machine gave it."""

    body: bytes


class GroupHeartbeatRequest(ClientMessage, frozen=True, kw_only=True, tag=90):
    """A member of a group is there, and wants these topics; the first one joins."""

    passes_limits = True
    group: Text
    member: Text
    topics: list[tuple[Text, Text]]
    """(topic, tags)."""
    generation: Int = -1
    """That it has; the answer comes once there is another one, or `wait_ms` are over."""
    wait_ms: Int = 0
    is_orderly: bool = False
    """No queue of it goes to another member while it works on it: it is asked for the queue first."""
    asked_for: tuple[tuple[Text, Int], ...] = ()
    """Of which it knows that they are to go to others."""
    gives_up: tuple[tuple[Text, Int], ...] = ()
    """Of its queues in this generation: it works on nothing of them any more."""


class AssignmentResponse(ClientMessage, frozen=True, kw_only=True, tag=91):
    generation: Int
    queues: list[QueueOffsetRow]
    """The member's queues, and the committed offset; -1: none yet."""
    resets: tuple[tuple[Text, Int], ...] = ()
    """Those of them that were reset since the generation that the member has."""
    asked_for: tuple[tuple[Text, Int], ...] = ()
    """Of an orderly member: those that are to go to others, once it gives them up."""
    session_ms: Int = 0
    """An orderly member that was not heard of for so long has its queues taken away all the same."""


class LeaveRequest(ClientMessage, frozen=True, kw_only=True, tag=92):
    passes_limits = True
    group: Text
    member: Text


class CommitRequest(ClientMessage, frozen=True, kw_only=True, tag=93):
    """Answered with a DoneResponse once it has taken effect."""

    group: Text
    member: Text = ""
    """Empty: of no member; the group must have none then."""
    generation: Int = -1
    """-1: the current one, of no member."""
    offsets: list[QueueOffsetRow]


class DoneResponse(ClientMessage, frozen=True, kw_only=True, tag=94):
    pass


class OpenSessionRequest(ClientMessage, frozen=True, kw_only=True, tag=95):
    """A producer's epoch is to begin; see `ConnectProducer` of the log."""

    producer: Text
    token: bytes
    ends: tuple[Int, Int] | None = None
    """(index, term) of the current epoch; None: there is none."""


class OpenSessionResponse(ClientMessage, frozen=True, kw_only=True, tag=96):
    opened: bool
    epoch: tuple[Int, Int]
    last_sequence: Int


class SessionSendRequest(ClientMessage, frozen=True, kw_only=True, tag=97):
    """The frame's batch: records of any queues, stored once however often they are sent."""

    producer: Text
    epoch: tuple[Int, Int]
    sequence: Int
    """Of the first one."""


class SessionSendResponse(ClientMessage, frozen=True, kw_only=True, tag=98):
    """Queue offset of each message: 8 bytes big-endian; empty: stored earlier, and not reported."""

    queue_offsets: bytes
    positions: bytes
    store_time_ms: Int
    store_host: bytes = b""


# ----------------------------------------------------------------
# Requests of a client of a broker and their answers, matched by `request_id`. Message records travel as
# the batch of the frame. Tags are of a space of their own: a broker's port speaks nothing else.


class EarlierHello(ClientMessage, frozen=True, kw_only=True, tag=1):
    """The greeting of the previous release's clients: answered only that they are too old."""

    protocol: Int = 1


class EarlierHelloResponse(ClientMessage, frozen=True, kw_only=True, tag=2):
    """For which such a client reports another protocol."""

    protocol: Int = PROTOCOL_VERSION + 1
    version: Text = ""


class SendRequest(ClientMessage, frozen=True, kw_only=True, tag=3):
    """The frame's batch: records of one queue."""

    waits: bool = True


class SendResponse(ClientMessage, frozen=True, kw_only=True, tag=4):
    queue_offset: Int
    physical_offset: Int
    message_count: Int
    store_time_ms: Int
    store_host: bytes = b""
    positions: bytes = b""
    """Physical offset of each message, 8 bytes big-endian; empty: they lie one right after the
    other."""


class PullRequest(ClientMessage, frozen=True, kw_only=True, tag=5):
    topic: Text
    queue_id: Int
    offset: Int
    most_messages: Int = 1024
    most_bytes: Int = 1 << 20
    wait_ms: Int = 0
    """At the end of a queue: so long for something new."""


class PullResponse(ClientMessage, frozen=True, kw_only=True, tag=6):
    """The frame's batch: records."""

    next_offset: Int
    min_offset: Int
    max_offset: Int


class QueryRequest(ClientMessage, frozen=True, kw_only=True, tag=7):
    topic: Text
    key: Text
    begin_ms: Int
    end_ms: Int
    most_messages: Int = 64


class ViewRequest(ClientMessage, frozen=True, kw_only=True, tag=8):
    """The message that begins at this position of the commit log."""

    physical_offset: Int


class RecordsResponse(ClientMessage, frozen=True, kw_only=True, tag=9):
    """The frame's batch: records, or none."""


class QueuesRequest(ClientMessage, frozen=True, kw_only=True, tag=10):
    topic: Text = ""
    """Empty: of all topics."""

    @property
    def only_looks(self) -> bool:
        return True


class QueueRow(ClientMessage, frozen=True, kw_only=True, tag=11):
    topic: Text
    queue_id: Int
    min_offset: Int
    max_offset: Int


class QueuesResponse(ClientMessage, frozen=True, kw_only=True, tag=12):
    queues: list[QueueRow]


class OffsetAtRequest(ClientMessage, frozen=True, kw_only=True, tag=13):
    topic: Text
    queue_id: Int
    time_ms: Int


class OffsetResponse(ClientMessage, frozen=True, kw_only=True, tag=14):
    offset: Int


class BrokerStatusRequest(ClientMessage, frozen=True, kw_only=True, tag=15):
    passes_limits = True


class BrokerStatusResponse(ClientMessage, frozen=True, kw_only=True, tag=16):
    version: Text
    role: Text
    flush: Text
    directory: Text
    min_offset: Int
    max_offset: Int
    flushed_offset: Int
    confirm_offset: Int
    dispatch_behind_bytes: Int
    put_messages: Int
    put_bytes: Int
    topics: Int
    queues: Int
    disk_used_ratio: float
    set_aside_files: Int
    set_aside_bytes: Int
    problems: list[Text]
    broker_id: Int = 0
    term: Int = 0
    master: Text = ""
    """Of a broker on a replicated log: the master, and its term."""
    users: Text = ""
    """Of a classic broker: on, off, or unknown."""
    has_users: bool = False
    """Of a classic broker: there may be some. False with `users` unknown: it is being filled."""


class RoleRequest(ClientMessage, frozen=True, kw_only=True, tag=82):
    """Ask any broker for the master."""

    passes_limits = True
    watches: bool = False
    """A `RoleNotice` is to come whenever the answer changes."""


class RoleResponse(ClientMessage, frozen=True, kw_only=True, tag=83):
    member_id: Text
    role: Text
    broker_id: Int
    term: Int
    master: Text
    """Its address; empty: none is known."""
    brokers: list[tuple[Text, Int, Text]]
    """(member, broker id, address): 0 is the master, as far as the broker that was asked knows."""


class RoleNotice(ClientMessage, frozen=True, kw_only=True, tag=84):
    """Of a broker, unasked, with the number of the RoleRequest that watches."""

    of_watch = True
    role: Text
    broker_id: Int
    term: Int
    master: Text


class OldLogRequest(ClientMessage, frozen=True, kw_only=True, tag=99):
    """Of any member of a group that has taken a classic store over: the data needed by a later
    member."""

    position: Int = 0
    size_bytes: Int = 0
    """Of a piece of one file; 0: only the record is asked for."""


class OldLogResponse(ClientMessage, frozen=True, kw_only=True, tag=100):
    record: bytes = b""
    """The file `taken-over`; empty: the group has taken none over."""
    data: bytes = b""


class ReplicaRequest(ClientMessage, frozen=True, kw_only=True, tag=77):
    """The state of a master or slave; `verb` changes it first.

    drain: the master refuses messages for a while. resume: it takes them again. promise, lead, slave: as
    in `Replica`, with `epoch`. add, remove: broker `broker_id` joins or leaves the list. copies: number
    of copies of acknowledged messages.
    """

    verb: Text = ""
    epoch: Int = 0
    broker_id: Text = ""
    address: Text = ""
    ha_address: Text = ""
    directory_id: Text = ""
    """Of the one that is to lead, or leads."""
    asked_directory_id: Text = ""
    """Directory that must answer; empty: any."""
    confirmed: tuple[Int, Text, Int] = (0, "", -1)
    """Of a master: the newest run known to be confirmed."""
    forced_list: CopyList | None = None
    """Of a master: it ignores earlier lists."""
    copies: Int = 0
    may_lose_users: bool = False
    """Of a master with `forced_list`: another broker knows of users, which may be lost."""

    @property
    def only_looks(self) -> bool:
        return not self.verb


class PeerRow(ClientMessage, frozen=True, kw_only=True, tag=71):
    """A broker as another one knows it. Offsets: of a slave, as its master knows them."""

    id: Text
    directory_id: Text = ""
    address: Text = ""
    ha_address: Text = ""
    counts: bool = False
    is_connected: bool = False
    written_offset: Int = -1
    flushed_offset: Int = -1
    lag_bytes: Int = -1
    lag_ms: Int = -1
    is_caught_up: bool = False
    release: Text = ""
    """Empty: it did not say it."""


class TailRow(ClientMessage, frozen=True, kw_only=True, tag=72):
    """A part of the log that was cut off after the last point in common with a new master's."""

    epoch: Int
    first_offset: Int
    stop_offset: Int
    path: Text


class ReplicaResponse(ClientMessage, frozen=True, kw_only=True, tag=78):
    id: Text
    directory_id: Text
    address: Text
    ha_address: Text
    role: Text
    epoch: Int
    """The highest that it has promised."""
    leader: Text
    """The directory that it was promised to lead it; empty: it was not named."""
    log_epoch: Int
    """Of the last master that has written into its log."""
    fenced_by: Int
    is_leading: bool
    min_offset: Int
    max_offset: Int
    flushed_offset: Int
    confirm_offset: Int
    in_sync_replicas: Int
    """Copies of each acknowledged message."""
    in_sync_set: list[Text] | None
    """By a coordinator."""
    dialect: Text
    history: list[Run]
    confirmed: tuple[Int, Text, Int]
    """The newest run of its log that it knows to be confirmed."""
    copy_list: CopyList | None
    """The newest that it has heard of."""
    is_list_confirmed: bool
    """Of a master."""
    master: Peer | None
    master_offset: Int
    """Of a slave: where its master's log was, when it was last heard."""
    master_release: Text
    """Empty: it follows nobody, or its master does not say it."""
    slaves: list[PeerRow]
    """Of a master."""
    tails: list[TailRow]
    problem: Text
    has_users: bool = False
    """There may be some, as far as it has heard."""


class FailoverRequest(ClientMessage, frozen=True, kw_only=True, tag=74):
    """State of the failover by a coordinator, after `verb` is done."""

    verb: Text = ""
    """Empty: report only. `resign`: let another member of the in-sync set lead."""

    @property
    def only_looks(self) -> bool:
        return not self.verb


class FailoverResponse(ClientMessage, frozen=True, kw_only=True, tag=75):
    phase: Text
    """Its current phase: waiting, granting, promising, taking, leading."""
    epoch: Int
    """The newest that it knows to be led."""
    master: Text
    """Its id; empty: none is known."""
    lease_left_ms: Int
    """0: this broker does not lead."""
    in_sync_set: list[Text]
    problem: Text


RESPONSE_OF: dict[type[ClientMessage], type[ClientMessage]] = {
    SendRequest: SendResponse,
    PullRequest: PullResponse,
    QueryRequest: RecordsResponse,
    ViewRequest: RecordsResponse,
    QueuesRequest: QueuesResponse,
    OffsetAtRequest: OffsetResponse,
    BrokerStatusRequest: BrokerStatusResponse,
    ReplicaRequest: ReplicaResponse,
    FailoverRequest: FailoverResponse,
    RoleRequest: RoleResponse,
    OldLogRequest: OldLogResponse,
    ChangeUsersRequest: ChangeUsersResponse,
    UsersRequest: UsersResponse,
    TopicRouteRequest: TopicRouteResponse,
    GroupCommandRequest: GroupAnswer,
    GroupQuestionRequest: GroupAnswer,
    GroupHeartbeatRequest: AssignmentResponse,
    LeaveRequest: DoneResponse,
    CommitRequest: DoneResponse,
    OpenSessionRequest: OpenSessionResponse,
    SessionSendRequest: SessionSendResponse,
}
_REQUESTS = (Hello, ChallengeResponse, EarlierHello, *RESPONSE_OF)
_ANSWERS = (Greeting, EarlierHelloResponse, ErrorResponse, RoleNotice, *RESPONSE_OF.values())

if TYPE_CHECKING:
    AnyBrokerRequest = ClientMessage
    AnyBrokerMessage = ClientMessage
else:
    AnyBrokerRequest = reduce(or_, _REQUESTS)
    """A client's request."""
    AnyBrokerMessage = reduce(or_, (*_REQUESTS, *_ANSWERS))


# ---------------------------------------------------------------- Frames with a broker's messages

GROUP = "broker"
_DECODER: Any = msgspec.msgpack.Decoder(tuple[str, AnyBrokerMessage])
_OF_CLIENT: Any = msgspec.msgpack.Decoder(tuple[str, AnyBrokerRequest])
FROM_CLIENT_BYTES = MIB + GREETING_BYTES
"""Of the control part of a client's request, without the records: a command of topics and groups has the
most."""
MOST_FRAME_RECORDS_BYTES = FRAME_LIMIT_BYTES // 2
"""Of the records of one answer."""


def broker_decoder() -> FrameDecoder:
    return FrameDecoder(control=_DECODER, greeting_bytes=GREETING_BYTES)


def broker_request_decoder() -> FrameDecoder:
    """Of the broker: messages that only it sends are not decoded."""
    return FrameDecoder(
        control=_OF_CLIENT, greeting_bytes=GREETING_BYTES, control_limit_bytes=FROM_CLIENT_BYTES
    )


def records_of(frame: Frame) -> RecordBatch:
    """The records of a frame; sizes fill the buffer, and nothing else is known of it."""
    if frame.batch is None:
        return RecordBatch.contiguous(b"", [])
    return RecordBatch(frame.batch.buffer, frame.batch.starts, frame.batch.sizes)


def batch_of(records: RecordBatch) -> EntryBatch | None:
    """As the batch of a frame, which asks for nothing but sizes."""
    return EntryBatch(records.buffer, records.sizes) if len(records) else None


def encode(message: AnyBrokerMessage, records: RecordBatch | None = None) -> list[Buffer]:
    return encode_frame(GROUP, message, None if records is None else batch_of(records))
