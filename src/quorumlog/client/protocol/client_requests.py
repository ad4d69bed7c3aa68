"""What a client has under way: one request, one ordered stream of them, one connection."""

from __future__ import annotations

from collections import deque
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum
from typing import Any, NamedTuple, TypeVar

from quorumlog.batch import EntryBatch
from quorumlog.entry import AppendReceipt, Durability, EntryRange
from quorumlog.entry_header import Buffer
from quorumlog.errors import BadRequest, LedgerError
from quorumlog.net.frame import FrameDecoder
from quorumlog.net.hello import HelloResponse
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

R = TypeVar("R", bound=AnyClientMessage)

_REPEATABLE = (
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


class Lane(Enum):
    """Connections to one server: an acknowledgement must not queue behind megabytes of a read."""

    CONTROL = "control"
    """Appends, status, transfer, layout."""
    READ = "read"


class TargetKind(Enum):
    LEADER = "leader"
    ANY = "any"
    MEMBER = "member"
    ADDRESS = "address"


class RequestTarget(NamedTuple):
    """Who may answer a request. `name`: the member id or the address, of the last two kinds."""

    kind: TargetKind
    name: str = ""


LEADER = RequestTarget(TargetKind.LEADER)
ANY_MEMBER = RequestTarget(TargetKind.ANY)


def read_target(from_member: str | None) -> RequestTarget:
    """None: the leader; "any": any member; otherwise a member id."""
    if from_member is None:
        return LEADER
    if not isinstance(from_member, str) or not from_member:
        raise BadRequest(f'from_member must be "any" or the id of a member, not {from_member!r}')
    return ANY_MEMBER if from_member == "any" else RequestTarget(TargetKind.MEMBER, from_member)


class RequestState(Enum):
    WAITING = "waiting"
    """No byte of it has left; it may be sent, sent elsewhere, or dropped."""
    SENT = "sent"
    """Handed to a connection: only an answer tells what became of it."""
    DONE = "done"
    """`response` or `error` is set, for good."""


@dataclass(slots=True, eq=False)
class Request:
    """What happens to one is decided in `request_tracker`."""

    message: AnyClientMessage
    target: RequestTarget
    _: KW_ONLY
    submitted_ms: float
    deadline_ms: float
    batch: EntryBatch | None = None
    """Of an append, and of nothing else."""
    stream: Stream | None = None
    context: Any = None
    """Whoever waits for the outcome; never looked at here."""
    state: RequestState = RequestState.WAITING
    attempts: int = 0
    """Refusals and lost connections so far."""
    not_before_ms: float = 0.0
    """While WAITING: back-off, not to be sent before this."""
    due_ms: float = 0.0
    """While SENT: when a healthy server has answered at the latest (now, or after a long poll)."""
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
    may_be_in_log: bool = False
    """It was sent, and nobody knows what became of it."""
    refusal: LedgerError | None = None
    """The last refusal, told if the deadline passes."""
    response: AnyClientMessage | None = None
    response_batch: EntryBatch | None = None
    error: LedgerError | None = None
    seen_index: int = -1
    """Of the view, when it was submitted."""
    counts_progress: bool = False
    """Its time-out begins again with whatever its connection brings of entries: of several answers on
    their way over a slow one, the last is not late because of those in front of it. Other answers say
    that the server lives, and nothing of one that a hung disk keeps back."""
    answered_on: Link | None = None
    """Where the last answer or refusal came from."""

    def __post_init__(self) -> None:
        assert (self.batch is not None) == isinstance(self.message, AppendRequest), self.message

    @property
    def lane(self) -> Lane:
        return Lane.READ if isinstance(self.message, ReadRequest) else Lane.CONTROL

    @property
    def is_repeatable(self) -> bool:
        """It changes nothing, or the same once more: a lost connection does not decide its outcome."""
        return isinstance(self.message, _REPEATABLE)

    def is_late(self, link: Link, now_ms: float) -> bool:
        """SENT on `link`."""
        deadline_ms = self.deadline_ms
        if self.counts_progress:
            deadline_ms = max(deadline_ms, link.last_entries_ms + self.deadline_ms - self.submitted_ms)
        return deadline_ms <= now_ms

    @property
    def is_done(self) -> bool:
        return self.state is RequestState.DONE

    @property
    def record_count(self) -> int:
        return self.batch.count if self.batch is not None else 0


def response_of(request: Request, kind: type[R]) -> R:
    """The answer to a finished request, or its error raised."""
    if request.error is not None:
        raise request.error
    assert isinstance(request.response, kind), request.response
    return request.response


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
        return [request for request in self.queue if request.state is RequestState.WAITING]

    def forget_done(self) -> None:
        while self.queue and self.queue[0].state is RequestState.DONE:
            self.queue.popleft()


CLOSED = "closed by the server"
NO_GREETING = " without a greeting: is this the port of a log, and not of a key-value store or a broker?"


class LinkState(Enum):
    DIALING = "dialing"
    GREETING = "greeting"
    """Connected; Hello is out and not yet answered."""
    OPEN = "open"
    CLOSED = "closed"


@dataclass(slots=True, eq=False)
class Link:
    """One connection to one server."""

    address: str
    lane: Lane
    since_ms: float
    """When it entered `state`."""
    last_received_ms: float
    last_entries_ms: float = float("-inf")
    """When it brought entries, or part of a frame, last."""
    state: LinkState = LinkState.DIALING
    decoder: FrameDecoder = field(default_factory=FrameDecoder)
    outbox: list[Buffer] = field(default_factory=list)
    """Bytes to write; who writes takes the list and leaves an empty one."""
    pending: dict[int, Request] = field(default_factory=dict)
    """SENT requests by request id."""
    probe: Request | None = None
    """The protocol's own StatusRequest on this link, at most one at a time."""
    hello: HelloResponse | None = None
    context: Any = None
    """The client's socket."""

    def silent_ms(self, now_ms: float) -> float:
        """For how long an answer has been due without a byte coming in."""
        if not self.pending:
            return 0.0
        due = min(request.due_ms for request in self.pending.values())
        return now_ms - max(due, self.last_received_ms)
