"""A request as the bytes that go to one server, within that server's limits."""

from __future__ import annotations

import msgspec

from quorumlog.client.protocol.client_requests import Request
from quorumlog.entry import EntryKind
from quorumlog.entry_header import HEADER_BYTES, Buffer
from quorumlog.errors import BadRequest, BodyTooLarge, LevelNotTold
from quorumlog.log_state.control_entries import LEVELS
from quorumlog.net.frame import FROM_CLIENT_BYTES, encode_frame, frame_bytes_of
from quorumlog.net.hello import HelloResponse
from quorumlog.net.rpc.calls import TargetKind
from quorumlog.wire.client_message import MOST_CHARACTERS, ClientMessage
from quorumlog.wire.client_messages import (
    AppendRequest,
    FinishUpgradeRequest,
    MachineReadRequest,
    ReadRequest,
    ResetClockRequest,
    StepOverRequest,
)
from quorumlog.wire.producer_messages import ConnectProducer, ForgetProducer, LastSequence, ListProducers
from quorumlog.wire.read_promise import ReadPromise

_ORDERS = (ResetClockRequest, FinishUpgradeRequest, StepOverRequest)
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
    and BadRequest for a condition that it would not look at, and a text that it would not take.

    `previous_connection` is told with the first request of a stream on a connection.
    """
    _check_texts(request.message)
    batch = request.batch
    needed_level = LEVELS[EntryKind.OPEN]
    if hello.level < needed_level and (request.numbered or isinstance(request.message, _OF_SESSIONS)):
        raise BadRequest(
            f"{hello.member_id}, the leader, is of a release that knows no producers (level"
            f" {hello.level} of the log's format, {needed_level} is needed); update it first"
        )
    needed_level = LEVELS[EntryKind.LEVEL]
    if hello.level < needed_level and isinstance(request.message, _ORDERS):
        raise LevelNotTold(
            f"{hello.member_id}, the leader, is of an earlier release (level {hello.level} of the log's"
            f" format, {needed_level} is needed): update it first"
        )
    if batch is None:
        message = msgspec.structs.replace(request.message, request_id=request_id)
        if isinstance(message, MachineReadRequest):
            _check_knows_machines(hello, message.machine)
            left_ms = max(1, int(request.deadline_ms - now_ms))
            message = msgspec.structs.replace(message, timeout_ms=left_ms)
        if isinstance(message, ReadRequest | MachineReadRequest) and message.promise is not None:
            _check_keeps_promises(hello, message.promise)
        elif isinstance(message, ReadRequest) and request.target.kind is TargetKind.LEADER:
            message = msgspec.structs.replace(message, from_leader=True)
        elif isinstance(message, ConnectProducer):
            left_ms = max(1, int(request.deadline_ms - now_ms))
            message = msgspec.structs.replace(message, timeout_ms=left_ms)
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
            f"{hello.member_id}, the leader, is of a release that would append whatever expected_last"
            f" ({expected_last}) says; update it first"
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
        timeout_ms=max(1, int(request.deadline_ms - now_ms)),
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


def _check_keeps_promises(hello: HelloResponse, promise: ReadPromise) -> None:
    if not hello.knows_promises:
        raise BadRequest(
            f"{hello.member_id or 'the server'} is of a release that answers as it is, whatever"
            f" read_consistency ({promise.consistency}) says; update it first"
        )


def _check_knows_machines(hello: HelloResponse, machine: str) -> None:
    if hello.level < LEVELS[EntryKind.MACHINE]:
        raise BadRequest(
            f"{hello.member_id}, the leader, is of a release without state machines, such as {machine};"
            " update it first"
        )
