"""What clients and the key-value store say to each other behind the Hello: one request, one answer with
its `request_id`. What a watch is told has the id of its request, until the watch is cancelled or an
ErrorResponse ends it.
"""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import msgspec

from quorumlog.kv.errors import InvalidRequest, KeyValueError
from quorumlog.kv.requests.answers import Event
from quorumlog.kv.requests.operations import LeaseId, Revision, encoded
from quorumlog.net.errors import ErrorResponse
from quorumlog.net.frame import FrameDecoder
from quorumlog.net.hello import Challenge, ChallengeResponse, Hello, HelloResponse
from quorumlog.net.limits import GREETING_BYTES
from quorumlog.net.strangers import OtherSoftware
from quorumlog.wire.client_message import ClientMessage, Int
from quorumlog.wire.field_names import named_reason

UPGRADE = "this member speaks a newer protocol: upgrade the client"
_LENGTH, _HELLO, _ANSWER = 4, 0, 17
OLD_GREETING_BYTES = 1024
"""At most, behind its length."""
_decode = msgspec.msgpack.Decoder(tuple[int, int, bytes]).decode


def words_to_old_client(problem: Exception) -> bytes | None:
    """See `LastWords`."""
    return answer_to_old_greeting(problem.received) if isinstance(problem, OtherSoftware) else None


def answer_to_old_greeting(received: bytes) -> bytes | None:
    """`received`: the first bytes of a connection. None: they are no such greeting, or a part of it."""
    size_bytes = int.from_bytes(received[:_LENGTH], "big")
    if not 0 < size_bytes <= OLD_GREETING_BYTES or len(received) < _LENGTH + size_bytes:
        return None
    try:
        number, kind, _ = _decode(received[_LENGTH : _LENGTH + size_bytes])
    except msgspec.DecodeError:
        return None
    if kind != _HELLO:
        return None
    refusal = msgspec.msgpack.encode((KeyValueError.code, UPGRADE, 0))
    answer = msgspec.msgpack.encode((number, _ANSWER, refusal))
    return len(answer).to_bytes(_LENGTH, "big") + answer


# ----------------------------------------------------------------
# What clients and the key-value store say to each other behind the Hello: one request, one answer with
# its `request_id`. What a watch is told has the id of its request, until the watch is cancelled or an
# ErrorResponse ends it.


GROUP = "kv"
"""Of every frame on this port."""
MAX_FRAME_BYTES = 64 << 20
FROM_CLIENT_BYTES = 2 << 20
"""What a member takes: a request and its frame."""


class CommandRequest(ClientMessage, frozen=True, kw_only=True, tag=110):
    command: bytes
    """As `operations` has it: it becomes the body of an entry."""


class QuestionRequest(ClientMessage, frozen=True, kw_only=True, tag=111):
    question: bytes
    """As `operations` has it."""
    here: bool = False
    """Of this member, as far as it has applied; else the answer is linearizable."""


MOST_LEASES = 1_000
"""That one request keeps alive."""
MOST_WATCHED_BYTES = 16 << 10
"""Of a key that is watched, which the member remembers as long as the watch is open."""
WatchedKey = Annotated[bytes, msgspec.Meta(max_length=MOST_WATCHED_BYTES)]


class KeepAliveRequest(ClientMessage, frozen=True, kw_only=True, tag=112):
    """Answered with what each has left from when this was sent, in milliseconds; 0: it has ended."""

    leases: Annotated[tuple[LeaseId, ...], msgspec.Meta(max_length=MOST_LEASES)]


class TimeToLiveRequest(ClientMessage, frozen=True, kw_only=True, tag=113):
    """Answered with (TTL, what is left of it by the leader's clock, both in milliseconds, keys)."""

    lease: LeaseId


class StoreStatusRequest(ClientMessage, frozen=True, kw_only=True, tag=114):
    """Answered with StatusAnswer."""


class WatchRequest(ClientMessage, frozen=True, kw_only=True, tag=115):
    key: WatchedKey
    end: WatchedKey = b""
    first_revision: Revision = 0
    """0: what changes from now on."""
    prev_kv: bool = False
    puts: bool = True
    deletions: bool = True


class CancelRequest(ClientMessage, frozen=True, kw_only=True, tag=116):
    """Not answered."""

    watch: Int
    """Id of its request."""


class AnswerResponse(ClientMessage, frozen=True, kw_only=True, tag=117):
    answer: bytes
    """As `answers` has it."""


class EventsResponse(ClientMessage, frozen=True, kw_only=True, tag=118):
    """Of a watch. The first has no events and says that it has begun."""

    next_revision: Int
    """Every change below was told."""
    events: list[Event]


class StatusAnswer(msgspec.Struct, frozen=True, array_like=True):
    member_id: str = ""
    cluster_id: str = ""
    role: str = ""
    term: int = 0
    leader_id: str = ""
    revision: int = 0
    compacted_revision: int = 0
    keys: int = 0
    leases: int = 0
    size_bytes: int = 0
    quota_bytes: int = 0
    watches: int = 0
    applied_index: int = 0
    release: str = ""
    """Of the member; empty: an earlier one, which does not say."""
    refuses: str = ""
    """Why this member has refused a change for want of space and would again; empty: it would not."""
    etcd_gateway: str = ""
    """URL of this member's gateway for clients of etcd, if it has one."""


Request = (
    CommandRequest
    | QuestionRequest
    | KeepAliveRequest
    | TimeToLiveRequest
    | StoreStatusRequest
    | WatchRequest
    | CancelRequest
)
R = TypeVar("R", bound=Request)
Response = AnswerResponse | EventsResponse | ErrorResponse

_of_client: Any = msgspec.msgpack.Decoder(tuple[str, Hello | ChallengeResponse | Request])
_of_member: Any = msgspec.msgpack.Decoder(tuple[str, HelloResponse | Challenge | Response])


def checked(request: R) -> R:
    """What a caller has given, as a member takes it. Raises InvalidRequest."""
    data = encoded(request)
    try:
        return msgspec.msgpack.decode(data, type=type(request))
    except msgspec.ValidationError as error:
        raise InvalidRequest(named_reason(error, data, type(request))) from None


def size_bytes_of(request: Request) -> int:
    """Of its command or question."""
    if isinstance(request, CommandRequest):
        return len(request.command)
    if isinstance(request, KeepAliveRequest):
        return 8 * len(request.leases)
    return len(request.question) if isinstance(request, QuestionRequest) else 0


def request_decoder() -> FrameDecoder:
    return FrameDecoder(
        FROM_CLIENT_BYTES, _of_client, GREETING_BYTES, other_greeting_bytes=OLD_GREETING_BYTES
    )


def response_decoder() -> FrameDecoder:
    return FrameDecoder(MAX_FRAME_BYTES, _of_member)
