"""What a log's client has under way: one request, one ordered stream of them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from quorumlog.entry import AppendReceipt, Durability, EntryRange
from quorumlog.errors import BadRequest, LedgerError
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
from quorumlog.wire.client_messages import (
    AnyClientMessage,
    AppendRequest,
    AppendResponse,
    FindMarkRequest,
    LayoutRequest,
    MachineReadRequest,
    Numbered,
    ReadRequest,
    StatusRequest,
    WhyKeptRequest,
)
from quorumlog.wire.producer_messages import ConnectProducer, LastSequence, ListProducers
from quorumlog.wire.reader_messages import ReadersRequest

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
    """Of a producer: numbered, and sent again while its outcome is unknown (`producer_session`)."""
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
    `ordered_streams`."""

    number: int
    queue: deque[Request] = field(default_factory=deque)
    """Everything without an outcome, in order; SENT ones before WAITING ones, unless draining."""
    link: Link | None = None
    """The connection of what is in flight, or was last."""
    numbers: dict[Link, int] = field(default_factory=dict)
    """The next number on each connection; one that leadership comes back to goes on counting."""
    in_flight: int = 0
    draining: bool = False
    failure: LedgerError | None = None
    """Set once a request of the stream has failed for good: nothing behind it is sent any more."""
    attempts: int = 0
    """Refusals in a row."""
    resume_at_ms: float = 0.0

    def waiting(self) -> list[Request]:
        return [request for request in self.queue if request.state is CallState.WAITING]

    def forget_done(self) -> None:
        while self.queue and self.queue[0].state is CallState.DONE:
            self.queue.popleft()
