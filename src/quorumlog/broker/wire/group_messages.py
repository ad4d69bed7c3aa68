"""Requests of topics, consumer groups and sessions, which a broker on a replicated log answers."""

from __future__ import annotations

from quorumlog.wire.client_message import ClientMessage, Int, Text

QueueOffsetRow = tuple[str, int, int]
"""(topic, queue, offset)."""


class TopicRouteRequest(ClientMessage, frozen=True, kw_only=True, tag=85):
    """Of the master: how many queues a topic has. In `dev` the topic is made if it is not there."""

    topic: Text


class TopicRouteResponse(ClientMessage, frozen=True, kw_only=True, tag=86):
    queues: Int
    perm: Int


class GroupCommandRequest(ClientMessage, frozen=True, kw_only=True, tag=87):
    """`body`: one of `groups.commands.FROM_CLIENTS`."""

    body: bytes


class GroupQuestionRequest(ClientMessage, frozen=True, kw_only=True, tag=88):
    """`body`: a question of `groups.commands`; the answer is linearizable."""

    body: bytes


class GroupAnswer(ClientMessage, frozen=True, kw_only=True, tag=89):
    """As the state machine gave it."""

    body: bytes


class HeartbeatRequest(ClientMessage, frozen=True, kw_only=True, tag=90):
    """A member of a group is there, and wants these topics; the first one joins."""

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
    """What the member reads, and the committed offset; -1: none yet."""
    resets: tuple[tuple[Text, Int], ...] = ()
    """Those of them that were reset since the generation that the member has."""
    asked_for: tuple[tuple[Text, Int], ...] = ()
    """Of an orderly member: those that are to go to others, once it gives them up."""
    session_ms: Int = 0
    """An orderly member that was not heard of for so long has its queues taken away all the same."""


class LeaveRequest(ClientMessage, frozen=True, kw_only=True, tag=92):
    group: Text
    member: Text


class CommitRequest(ClientMessage, frozen=True, kw_only=True, tag=93):
    """Answered with a DoneResponse once it has taken effect."""

    group: Text
    member: Text = ""
    """Empty: of no member; the group must have none then."""
    generation: Int = -1
    """-1: the one that stands, of no member."""
    offsets: list[QueueOffsetRow]


class DoneResponse(ClientMessage, frozen=True, kw_only=True, tag=94):
    pass


class OpenSessionRequest(ClientMessage, frozen=True, kw_only=True, tag=95):
    """A producer's epoch is to begin; see `ConnectProducer` of the log."""

    producer: Text
    token: bytes
    ends: tuple[Int, Int] | None = None
    """(index, term) of the epoch that stands; None: there is none."""


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
    """Where each message stands: 8 bytes big-endian; empty: stored earlier, and not told where."""

    queue_offsets: bytes
    positions: bytes
    store_time_ms: Int
    store_host: bytes = b""


AnyGroupRequest = (
    TopicRouteRequest
    | GroupCommandRequest
    | GroupQuestionRequest
    | HeartbeatRequest
    | LeaveRequest
    | CommitRequest
    | OpenSessionRequest
    | SessionSendRequest
)

AnyGroupMessage = (
    TopicRouteRequest
    | TopicRouteResponse
    | GroupCommandRequest
    | GroupQuestionRequest
    | GroupAnswer
    | HeartbeatRequest
    | AssignmentResponse
    | LeaveRequest
    | CommitRequest
    | DoneResponse
    | OpenSessionRequest
    | OpenSessionResponse
    | SessionSendRequest
    | SessionSendResponse
)
