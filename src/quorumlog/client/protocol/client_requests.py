"""Requests and streams in flight, and their frames."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import msgspec

from quorumlog.entry import AppendReceipt, Durability, EntryKind, EntryRange
from quorumlog.entry_header import HEADER_BYTES, Buffer
from quorumlog.errors import BadRequest, BodyTooLarge, LedgerError, LevelNotReported
from quorumlog.log_state.control_entries import LEVELS
from quorumlog.net.frame import FROM_CLIENT_BYTES, encode_frame, frame_bytes_of
from quorumlog.net.hello import HelloResponse
from quorumlog.net.rpc.calls import (
    ANY_MEMBER,
    LEADER,
    Call,
    CallState,
    Lane,
    Link,
    RequestTarget,
    TargetKind,
    response_of,
)
from quorumlog.wire.client_message import MOST_CHARACTERS, ClientMessage
from quorumlog.wire.client_messages import (
    AnyClientMessage,
    AppendRequest,
    AppendResponse,
    ChangeUsersRequest,
    ConnectProducer,
    FindMarkRequest,
    FinishUpgradeRequest,
    ForgetProducer,
    LastSequence,
    LayoutRequest,
    ListProducers,
    MachineReadRequest,
    Numbered,
    ReadersRequest,
    ReadRequest,
    ReloadRequest,
    ResetClockRequest,
    StatusRequest,
    StepOverRequest,
    UsersRequest,
    WhyKeptRequest,
)
from quorumlog.wire.read_promise import ReadGuarantee

_UNCHANGING = (
    ReadRequest,
    StatusRequest,
    LayoutRequest,
    ReadersRequest,
    FindMarkRequest,
    ConnectProducer,
    LastSequence,
    ListProducers,
    MachineReadRequest,
    WhyKeptRequest,
    ReloadRequest,
)


def read_target(from_member: str | None) -> RequestTarget:
    """None: the leader; "any": any member; otherwise a member id."""
    if from_member is None:
        return LEADER
    if not isinstance(from_member, str) or not from_member:
        raise BadRequest(f'from_member must be "any" or the id of a member, not {from_member!r}')
    return ANY_MEMBER if from_member == "any" else RequestTarget(TargetKind.MEMBER, from_member)


@dataclass(slots=True, eq=False)
class Request(Call):
    message: AnyClientMessage
    stream: Stream | None = None
    number: int = 0
    """Place in its stream on the connection that it was last sent on."""
    in_session: bool = False
    """Of a producer: numbered, and sent again while its outcome is unknown (`append_order`)."""
    sequence: int = -1
    """Number of its first entry; -1: not yet."""
    is_numbered_by_caller: bool = False
    may_be_old: bool = False
    """The caller's number is none of a next entry: it may lie in the log for long."""
    numbered: Numbered | None = None
    """As it was sent last."""
    seen_index: int = -1
    """Of the client, when it was submitted."""

    def __post_init__(self) -> None:
        message = self.message
        assert (self.batch is not None) == isinstance(message, AppendRequest), message
        self.is_kept = self.stream is not None
        self.changes = not isinstance(message, _UNCHANGING)
        if isinstance(message, ReadRequest):
            self.lane, self.wait_ms = Lane.READ, message.wait_ms

    @property
    def record_count(self) -> int:
        return self.batch.count if self.batch is not None else 0


def receipt_of(request: Request) -> AppendReceipt:
    response = response_of(request, AppendResponse)
    ranges = tuple(EntryRange(*each) for each in response.ranges) if response.ranges else ()
    return AppendReceipt(
        response.term,
        response.first_index,
        response.count,
        Durability(response.durability),
        ranges,
        response.results,
        response.failures,
    )


@dataclass(slots=True, eq=False)
class Stream:
    """Requests that enter the log in the order of their submission; the rules are in
    `append_order`."""

    number: int
    queue: deque[Request] = field(default_factory=deque)
    """Everything without an outcome, in order; SENT ones before WAITING ones, unless draining."""
    link: Link | None = None
    """The connection of requests in flight, or the last one."""
    numbers: dict[Link, int] = field(default_factory=dict)
    """The next number on each connection; one that becomes the leader's again continues counting."""
    in_flight: int = 0
    draining: bool = False
    failure: LedgerError | None = None
    """Set once a request of the stream has failed for good: nothing after it is sent any more."""
    attempts: int = 0
    """Refusals in a row."""
    resume_at_ms: float = 0.0

    def waiting(self) -> list[Request]:
        return [request for request in self.queue if request.state is CallState.WAITING]

    def forget_done(self) -> None:
        while self.queue and self.queue[0].state is CallState.DONE:
            self.queue.popleft()


# ----------------------------------------------------------------
# A request as the bytes that go to one server, within that server's limits.

_SINCE_0_2 = (
    *(ResetClockRequest, FinishUpgradeRequest, StepOverRequest),
    *(ChangeUsersRequest, UsersRequest, ReloadRequest),
)
"""A server of an earlier release knows none of these, and would close the connection."""
_OF_SESSIONS = (ConnectProducer, LastSequence, ListProducers, ForgetProducer)


def encode_request(
    group: str,
    request: Request,
    request_id: int,
    hello: HelloResponse,
    *,
    now_ms: float,
    previous_connection: str,
) -> list[Buffer]:
    """Buffers to write. Raises BodyTooLarge, naming the limit of the server that greeted with `hello`,
    and BadRequest for a condition that it would ignore, and a text that it would not take.

    `previous_connection` is sent with the first request of a stream on a connection.
    """
    _check_texts(request.message)
    batch, left_ms = request.batch, max(1, int(request.deadline_ms - now_ms))
    needed_level = LEVELS[EntryKind.OPEN]
    if hello.level < needed_level and (request.numbered or isinstance(request.message, _OF_SESSIONS)):
        raise BadRequest(
            f"the leader, {hello.member_id}, runs a release without producers (level {hello.level} of"
            f" the log's format, {needed_level} is needed); upgrade it first"
        )
    needed_level = LEVELS[EntryKind.LEVEL]
    if hello.level < needed_level and isinstance(request.message, _SINCE_0_2):
        raise LevelNotReported(
            f"{hello.member_id} runs an earlier release (level {hello.level} of the log's format,"
            f" {needed_level} is needed): upgrade it first"
        )
    if batch is None:
        message = msgspec.structs.replace(request.message, request_id=request_id)
        if isinstance(message, MachineReadRequest):
            _check_knows_machines(hello, message.machine)
        if isinstance(message, MachineReadRequest | ConnectProducer):
            message = msgspec.structs.replace(message, timeout_ms=left_ms)
        if isinstance(message, ReadRequest | MachineReadRequest) and message.promise is not None:
            _check_keeps_promises(hello, message.promise)
        elif isinstance(message, ReadRequest) and request.target.kind is TargetKind.LEADER:
            message = msgspec.structs.replace(message, from_leader=True)
        buffers = encode_frame(group, message)
        if frame_bytes_of(buffers) > FROM_CLIENT_BYTES:
            raise BodyTooLarge(
                f"a {type(message).__name__} of {frame_bytes_of(buffers)} bytes is above"
                f" {FROM_CLIENT_BYTES} bytes: ask for less at once"
            )
        return buffers
    largest_entry_bytes = batch.total_bytes if batch.count == 1 else int(batch.sizes.max())
    if 0 < hello.max_entry_bytes < largest_entry_bytes:
        raise BodyTooLarge(
            f"a body of {largest_entry_bytes - HEADER_BYTES} bytes is above the limit of"
            f" {hello.max_entry_bytes - HEADER_BYTES} bytes (server option max_entry_bytes ="
            f" {hello.max_entry_bytes})"
        )
    assert isinstance(request.message, AppendRequest), request.message
    expected_last = request.message.expected_last
    if expected_last is not None and not hello.knows_conditions:
        raise BadRequest(
            f"the leader, {hello.member_id}, runs a release that ignores expected_last"
            f" ({expected_last}); upgrade it first"
        )
    if request.message.machine:
        _check_knows_machines(hello, request.message.machine)
    stream = request.stream
    append = msgspec.structs.replace(
        request.message,
        request_id=request_id,
        stream=stream.number if stream is not None and not request.in_session else 0,
        number=request.number,
        session=request.numbered,
        previous_connection=previous_connection if request.number == 1 else "",
        timeout_ms=left_ms,
    )
    buffers = encode_frame(group, append, batch)
    frame_bytes = frame_bytes_of(buffers)
    if hello.max_frame_bytes and frame_bytes > hello.max_frame_bytes:
        raise BodyTooLarge(
            f"a batch of {frame_bytes} bytes is above the frame limit of {hello.max_frame_bytes} bytes;"
            " append it in smaller batches"
        )
    return buffers


def _check_texts(message: ClientMessage) -> None:
    """A server closes the connection for one beyond the bounds, with all that is asked on it."""
    for name in message.__struct_fields__:
        value = getattr(message, name)
        if isinstance(value, str) and len(value) > MOST_CHARACTERS:
            raise BadRequest(f"{name} has at most {MOST_CHARACTERS} characters, not {len(value)}")


def _check_keeps_promises(hello: HelloResponse, promise: ReadGuarantee) -> None:
    if not hello.knows_promises:
        raise BadRequest(
            f"{hello.member_id or 'the server'} runs a release that ignores read_consistency"
            f" ({promise.consistency}); upgrade it first"
        )


def _check_knows_machines(hello: HelloResponse, machine: str) -> None:
    if hello.level < LEVELS[EntryKind.MACHINE]:
        raise BadRequest(
            f"the leader, {hello.member_id}, runs a release without state machines, such as {machine};"
            " upgrade it first"
        )
