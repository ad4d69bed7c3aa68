"""A client's calls and connections."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum, StrEnum
from typing import Any, NamedTuple, Protocol, TypeVar

from quorumlog.batch import EntryBatch
from quorumlog.entry_header import Buffer
from quorumlog.errors import LedgerError
from quorumlog.net.credentials import Proof
from quorumlog.net.frame import FrameDecoder
from quorumlog.net.hello import HelloResponse
from quorumlog.wire.client_message import ClientMessage

R = TypeVar("R", bound=ClientMessage)


class Lane(StrEnum):
    """Kinds of connections to one server: an acknowledgement must not wait for megabytes of a read."""

    CONTROL = "control"
    READ = "read"


class TargetKind(Enum):
    LEADER = "leader"
    ANY = "any"
    MEMBER = "member"
    ADDRESS = "address"


class RequestTarget(NamedTuple):
    """The servers that may answer a request. `name`: the member id or the address, for the last two
    kinds. For ANY, a name that is not empty prefers the leader, if connected."""

    kind: TargetKind
    name: str = ""


LEADER = RequestTarget(TargetKind.LEADER)
ANY_MEMBER = RequestTarget(TargetKind.ANY)
LEADER_OR_ANY = RequestTarget(TargetKind.ANY, "leader")


class CallState(Enum):
    WAITING = "waiting"
    """Not sent: it may be sent, rerouted, or dropped."""
    SENT = "sent"
    """Passed to a connection: only an answer reveals its outcome."""
    DONE = "done"
    """`response` or `error` is set and final."""


@dataclass(slots=True, eq=False)
class Call:
    """One request; the tracker decides its outcome."""

    message: ClientMessage
    """For a watch: the message to reopen it, kept up to date by the caller."""
    target: RequestTarget
    _: KW_ONLY
    submitted_ms: float
    deadline_ms: float
    """For a watch: deadline until it has begun."""
    batch: EntryBatch | None = None
    """Bytes after the message, in its frame."""
    changes: bool = True
    """False: it is read-only or idempotent, and is sent again if its connection ends."""
    is_numbered: bool = False
    """The server executes it once however often it is sent, so it is sent again, too. Once a copy of
    it was left without an answer, no refusal is certain."""
    is_once: bool = False
    """Any refusal ends it, except of a server that is not ready yet: it is not sent to another
    server, nor again to this one."""
    lane: Lane = Lane.CONTROL
    wait_ms: float = 0.0
    """Milliseconds that a healthy server may take to answer."""
    counts_progress: bool = False
    """Its time-out restarts with each arrival of entries on its connection: of several answers over a
    slow connection, the last is not late because of earlier ones. Other answers only show that the
    server is alive, not that an answer delayed by a hung disk will arrive."""
    is_kept: bool = False
    """It continues if the waiting caller is cancelled."""
    context: Any = None
    """The waiter for the outcome; not used here."""
    on_done: Callable[[Any], None] | None = None
    """Called with the call when it is done, instead of adding it to `Work.completed`."""
    on_message: Callable[[Any], None] | None = None
    """For a watch: called with each of its messages except the last. Raises ProtocolViolation for an
    invalid message."""
    order: Order | None = None
    """The order that the call belongs to, which receives its outcome."""
    state: CallState = CallState.WAITING
    sent_on: Link | None = None
    """The connection, while SENT."""
    request_id: int = 0
    """Its id on that connection."""
    attempts: int = 0
    """Number of refusals and lost connections so far."""
    not_before_ms: float = 0.0
    """While WAITING: end of the back-off."""
    due_ms: float = 0.0
    """While SENT: time by which a healthy server has answered (when sent, or `wait_ms` later)."""
    may_be_done: bool = False
    """A copy was sent, and its outcome is unknown."""
    refusal: LedgerError | None = None
    """The last refusal, reported if the deadline passes."""
    response: ClientMessage | None = None
    response_batch: EntryBatch | None = None
    error: LedgerError | None = None
    answered_on: Link | None = None
    """Address of the last answer or refusal."""

    def is_late(self, link: Link, now_ms: float) -> bool:
        """SENT on `link`."""
        deadline_ms = self.deadline_ms
        if self.counts_progress:
            deadline_ms = max(deadline_ms, link.last_entries_ms + self.deadline_ms - self.submitted_ms)
        return deadline_ms <= now_ms

    @property
    def is_done(self) -> bool:
        return self.state is CallState.DONE


def response_of(call: Call, kind: type[R]) -> R:
    """The response of a finished call; raises its error."""
    if call.error is not None:
        raise call.error
    assert isinstance(call.response, kind), call.response
    return call.response


class Order(Protocol):
    """Calls to the leader that are sent in an order of their own. Its owner sends them with
    `tracker.send`, and gets the outcome of each."""

    @property
    def is_waiting(self) -> bool:
        """Calls wait for the leader."""

    def submit(self, call: Any) -> None: ...
    def pump(self) -> None:
        """Send the calls that may be sent. Called when a leader is known, a link is open, a
        connection has ended, or time has passed."""

    def answered(self, call: Any) -> None:
        """The call is done."""

    def refused(self, call: Any, error: LedgerError) -> None: ...
    def interrupted(self, call: Any) -> bool:
        """The call's connection has ended. Returns True if the call is WAITING again; False: its
        outcome is unknown, and `unanswered` follows."""

    def unanswered(self, call: Any) -> None:
        """The call was in flight and is done without an answer: its connection or its time ended, or
        its caller stopped waiting."""

    def cancelled(self, call: Any) -> None:
        """The call waited, and is done."""

    def expire(self, too_late: Callable[[Any], LedgerError]) -> None:
        """Apply the deadlines of waiting calls."""

    def fail_all(self, error: LedgerError) -> None:
        """Fail all waiting calls."""

    def resume_times_ms(self) -> list[float]:
        """The ends of the current back-offs."""


CLOSED = "closed by the server"


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
    """Time when it entered `state`."""
    last_received_ms: float
    last_entries_ms: float = float("-inf")
    """Time of the last entries or part of a frame."""
    state: LinkState = LinkState.DIALING
    decoder: FrameDecoder = field(default_factory=FrameDecoder)
    outbox: list[Buffer] = field(default_factory=list)
    """Bytes to write; the writer takes the list and leaves an empty one."""
    pending: dict[int, Call] = field(default_factory=dict)
    """SENT calls by request id."""
    watches: dict[int, Call] = field(default_factory=dict)
    """Watches that have begun, by request id: no answer to them is due."""
    probe: Call | None = None
    """The protocol's own request for the leader on this link, at most one at a time."""
    hello: HelloResponse | None = None
    proof: Proof | None = None
    """The server has sent a challenge."""
    is_greeted_again: bool = False
    """It ended at the greeting, and another greeting is tried: the loss is not reported yet."""
    context: Any = None
    """The client's socket."""

    def silent_ms(self, now_ms: float) -> float:
        """Milliseconds for which an answer has been due without a received byte."""
        if not self.pending:
            return 0.0
        due = min(call.due_ms for call in self.pending.values())
        return now_ms - max(due, self.last_received_ms)
