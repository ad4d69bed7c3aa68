"""ClientProtocol: the engine of all clients (`net/rpc`), as a log's client has it."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from quorumlog.batch import EntryBatch
from quorumlog.client.protocol.append_order import OrderedStreams, ProducerSession, anonymous_id
from quorumlog.client.protocol.client_requests import Request, Stream, encode_request
from quorumlog.entry import Durability
from quorumlog.entry_header import Buffer
from quorumlog.errors import IndexOutOfRange, LedgerError, ProtocolViolation
from quorumlog.net.hello import LOG
from quorumlog.net.rpc.calls import Link, TargetKind
from quorumlog.net.rpc.product import Product
from quorumlog.net.rpc.protocol import RpcProtocol
from quorumlog.net.rpc.timings import Timings
from quorumlog.net.rpc.view import EventKind, GroupEvent, ServerView
from quorumlog.wire.client_message import ClientMessage
from quorumlog.wire.client_messages import (
    RESPONSE_OF,
    AppendRequest,
    AppendResponse,
    ReadRequest,
    ReadResponse,
    StatusRequest,
    StatusResponse,
)


class LogProduct(Product):
    name = LOG
    probe = StatusRequest()

    def __init__(self, group: str) -> None:
        super().__init__()
        self.group = group
        self.events: list[GroupEvent]
        self.streams: OrderedStreams
        self.session: ProducerSession | None = None
        """Of a client that has a producer's id."""
        self.written_index = -1
        """Highest index of this client's appends acknowledged as committed."""
        self.seen_index = -1
        """Highest entry that this client received or knows to be committed."""
        self._previous_connection = ""
        """Id of the last connection that broke with appends in flight."""

    def ungreeted(self, link: Link) -> str:
        return super().ungreeted(link).replace("?", ", and not of a key-value store or a broker?")

    def view_of(self, message: ClientMessage) -> ServerView | None:
        return view_of(message) if isinstance(message, StatusResponse) else None

    def submitted(self, call: Request) -> None:
        call.seen_index = self.seen_index
        if call.in_session:
            call.order = self.session
        elif call.stream is not None:
            call.order = self.streams

    def encode(self, link: Link, call: Request, request_id: int, now_ms: float) -> list[Buffer]:
        if type(call.message) is StatusRequest:
            return super().encode(link, call, request_id, now_ms)
        assert link.hello is not None
        return encode_request(
            self.group,
            call,
            request_id,
            link.hello,
            now_ms=now_ms,
            previous_connection=self._previous_connection,
        )

    # ---------------------------------------------------------------- what comes back

    def answered(
        self, link: Link, call: Request, message: ClientMessage, batch: EntryBatch | None
    ) -> ServerView | None:
        if type(message) is not RESPONSE_OF[type(call.message)]:
            request_type = type(call.message).__name__
            raise ProtocolViolation(f"{type(message).__name__} as the answer to {request_type}")
        if isinstance(message, AppendResponse):
            if message.first_index < 0 or not _fits(message, call.record_count):
                raise ProtocolViolation(
                    f"an append of {call.record_count} entries was answered with {message}"
                )
            if message.durability not in Durability.__members__.values():
                raise ProtocolViolation(f"unknown durability {message.durability!r}")
            self.view.has_led(link.address, message.term)
            if not call.may_be_old:
                self._look_back(link, call, message.first_index - 1)
            self._written(message)
        elif isinstance(message, ReadResponse):
            self._look_at_end(link, call, message)
        elif isinstance(message, StatusResponse):
            return view_of(message)
        return None

    def refused(self, link: Link, call: Request, error: LedgerError) -> None:
        if isinstance(error, IndexOutOfRange):
            self._look_at_end(link, call, error)

    def unanswered(self, link: Link, call: Request) -> None:
        if isinstance(call.message, AppendRequest):
            assert link.hello is not None
            self._previous_connection = link.hello.connection_id

    def _written(self, response: AppendResponse) -> None:
        """What this client has appended is committed."""
        first_index, count = response.first_index, response.count
        if response.ranges:
            first_index, count, _ = response.ranges[-1]
        self.written_index = max(self.written_index, first_index + count - 1)
        self.seen_index = max(self.seen_index, self.written_index)

    def _look_at_end(
        self, link: Link, request: Request, read_end: ReadResponse | IndexOutOfRange
    ) -> None:
        message = request.message
        is_confirmed = (
            isinstance(message, ReadRequest)
            and message.to_end
            and not (message.wait_ms or message.promise)
            and request.target.kind is TargetKind.LEADER
        )
        if is_confirmed:
            self._look_back(link, request, read_end.committed_index)
        self.seen_index = max(self.seen_index, read_end.committed_index)

    def _look_back(self, link: Link, request: Request, index: int) -> None:
        """When this request was submitted, nothing was committed after this entry."""
        if index < request.seen_index and index < self.seen_index:
            reason = f"entry {request.seen_index} was committed, and now only entry {index} is"
            self.events.append(GroupEvent(EventKind.SET_BACK, link.address, reason))
            self.seen_index = index
            self.written_index = min(self.written_index, index)


def _fits(response: AppendResponse, count: int) -> bool:
    """Does it tell of so many entries, wherever it does?"""
    lie_in_parts = sum(part for _, part, _ in response.ranges) if response.ranges else count
    results = len(response.results)
    return (
        response.count == lie_in_parts == count
        and results in (0, count)
        and all(0 <= place < results for place, _ in response.failures)
    )


def view_of(status: StatusResponse) -> ServerView:
    return ServerView(
        status.id,
        status.role,
        status.term,
        status.role == "leader",
        status.leader_id,
        status.leader_address,
        {member.id: member.address for member in status.members if member.address},
        status.membership_index,
        status.waits_for,
    )


class ClientProtocol(RpcProtocol):
    def __init__(
        self,
        servers: Sequence[str],
        *,
        group: str,
        random: Random,
        timings: Timings | None = None,
        producer: str | None = None,
    ) -> None:
        """`producer`: the id under which appends are written once; empty: a generated one."""
        product = self._log = LogProduct(group)
        super().__init__(servers, product, random=random, timings=timings)
        product.events = self._events
        product.streams = OrderedStreams(self._calls)
        self._calls.orders.append(product.streams)
        if producer is not None:
            producer = producer or anonymous_id(random)
            product.session = ProducerSession(self._calls, producer, random)
            self._calls.orders.append(product.session)

    @property
    def group(self) -> str:
        return self._log.group

    @property
    def producer(self) -> str | None:
        """None: appends are in no session. Any thread."""
        session = self._log.session
        return None if session is None else session.producer

    @property
    def written_index(self) -> int:
        """Highest index of this client's appends acknowledged as committed."""
        return self._log.written_index

    def new_stream(self) -> Stream:
        """Any thread."""
        return self._log.streams.new_stream()
