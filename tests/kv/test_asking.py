"""What becomes of a watch, and of what may be asked of any member, in virtual time."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec

from quorumlog.errors import (
    LeaderNotReady,
    LedgerError,
    OutcomeUnknown,
    ProtocolViolation,
    RequestTimeout,
    Unreachable,
)
from quorumlog.kv.client.asking import StoreProduct
from quorumlog.kv.errors import Compacted
from quorumlog.kv.requests import (
    AnswerResponse,
    CancelRequest,
    CommandRequest,
    EventsResponse,
    QuestionRequest,
    StatusAnswer,
    StoreStatusRequest,
    WatchRequest,
    done,
    request_decoder,
)
from quorumlog.net.errors import error_response
from quorumlog.net.frame import Frame
from quorumlog.net.hello import STORE, Hello, HelloResponse
from quorumlog.net.rpc.calls import ANY_MEMBER, LEADER, LEADER_OR_ANY, Call, Link, RequestTarget
from quorumlog.net.rpc.protocol import RpcProtocol
from quorumlog.wire.client_message import ClientMessage

MEMBERS = {"a:1": "a", "b:1": "b"}


class Members:
    """Two, of which a leads."""

    def __init__(self) -> None:
        self.product = StoreProduct()
        self.protocol = RpcProtocol([*MEMBERS], self.product, random=Random(1))
        self.now_ms = 0.0
        self.silent: set[str] = set()
        self.nonsense = False
        self.holds_watches = False
        """They do not begin."""
        self.refuses: dict[str, LedgerError] = {}
        self.watches: dict[str, tuple[Link, WatchRequest]] = {}
        """By the address at which it was opened last."""
        self.cancelled: list[int] = []
        self.opened: list[tuple[str, int]] = []
        """Where, and from which revision."""
        self._decoders: dict[Link, Any] = {}

    def call(self, message: ClientMessage, target: RequestTarget, told: list[int] | None = None) -> Call:
        until_ms = self.now_ms + 5_000
        call = Call(message, target, submitted_ms=self.now_ms, deadline_ms=until_ms, changes=False)

        def on_message(message: ClientMessage) -> None:
            assert told is not None
            if not isinstance(message, EventsResponse):
                raise ProtocolViolation("no event")
            told.append(message.next_revision)
            call.message = WatchRequest(key=b"k", first_revision=message.next_revision)

        call.on_message = None if told is None else on_message
        self.protocol.submit(call, self.now_ms)
        self.carry_out()
        return call

    def watch(self, told: list[int]) -> Call:
        return self.call(WatchRequest(key=b"k"), LEADER_OR_ANY, told)

    def tell(self, address: str, next_revision: int) -> None:
        link, asked = self.watches[address]
        self._say(
            link, EventsResponse(request_id=asked.request_id, next_revision=next_revision, events=[])
        )

    def lose(self, address: str) -> None:
        self.protocol.link_lost(self.watches[address][0], "reset", self.now_ms)
        self.carry_out()

    def run(self, for_ms: float) -> None:
        until_ms = self.now_ms + for_ms
        while self.now_ms < until_ms:
            self.now_ms = min(until_ms, max(self.now_ms + 0.1, self.protocol.next_wakeup_ms()))
            self.protocol.advance(self.now_ms)
            self.carry_out()

    def carry_out(self) -> None:
        work = self.protocol.take_work()
        for link in work.dial:
            self._decoders[link] = request_decoder()
            self.protocol.link_connected(link, self.now_ms)
        for link in work.write:
            frames = self._decoders[link].receive_data(b"".join(link.outbox))
            link.outbox.clear()
            for frame in frames:
                if link.address not in self.silent:
                    self._asked(link, frame.message)
        if work.dial or work.write:
            self.carry_out()

    def _asked(self, link: Link, request: Any) -> None:
        name, number = MEMBERS[link.address], request.request_id
        if isinstance(request, Hello):
            self._say(link, HelloResponse(product=STORE, member_id=name, cluster_id="c"))
        elif isinstance(request, StoreStatusRequest):
            role = "leader" if name == "a" else "follower"
            self._say(
                link,
                AnswerResponse(request_id=number, answer=done(1, StatusAnswer(name, "c", role, 1, "a"))),
            )
        elif isinstance(request, CancelRequest):
            self.cancelled.append(request.watch)
        elif link.address in self.refuses:
            self._say(link, error_response(number, self.refuses[link.address]))
        elif self.nonsense:
            is_watch = isinstance(request, WatchRequest)
            wrong = (
                AnswerResponse(answer=b"") if is_watch else EventsResponse(next_revision=1, events=[])
            )
            self._say(link, msgspec.structs.replace(wrong, request_id=number))
        elif isinstance(request, WatchRequest):
            self.opened.append((link.address, request.first_revision))
            self.watches[link.address] = (link, request)
            if not self.holds_watches:
                self.tell(link.address, request.first_revision or 5)
        else:
            self._say(link, AnswerResponse(request_id=number, answer=name.encode()))

    def _say(self, link: Link, message: ClientMessage) -> None:
        self.protocol.frames_received(link, [Frame(self.product.group, message, None)], self.now_ms)
        self.carry_out()


def test_a_watch_is_opened_anew_from_where_it_is_and_has_no_deadline() -> None:
    members, told = Members(), list[int]()
    watch = members.watch(told)
    (began,) = members.opened
    members.run(60_000)
    members.tell(began[0], 9)
    members.lose(began[0])
    members.run(1_000)
    assert told == [5, 9, 9] and not watch.is_done
    assert members.opened[1][1] == 9


def test_a_silent_member_is_left_by_its_watches() -> None:
    members, told = Members(), list[int]()
    members.watch(told)
    ((address, _),) = members.opened
    members.run(3_000)
    assert len(members.opened) == 1, "one that answers is not"
    members.silent.add(address)
    members.run(3_000)
    assert [each for each, _ in members.opened] == [address, *({*MEMBERS} - {address})]


def test_a_watch_ends_by_being_cancelled_and_by_a_refusal_for_good() -> None:
    members, told = Members(), list[int]()
    members.call(QuestionRequest(question=b""), LEADER)
    members.run(100)
    first, second = members.watch(told), members.watch(told)
    (address,) = members.watches
    members.protocol.cancel(first, members.now_ms)
    members.carry_out()
    assert members.cancelled == [members.watches[address][1].request_id - 1] and first.is_done
    link, asked = members.watches[address]
    members._say(link, error_response(asked.request_id, Compacted("gone", compacted_revision=7)))
    assert isinstance(second.error, Compacted) and second.error.compacted_revision == 7
    third = members.watch(told)
    members.protocol.close(members.now_ms)
    assert isinstance(third.error, Unreachable)


def test_what_any_member_may_answer_is_asked_of_another_one_where_one_cannot() -> None:
    members = Members()
    for address in MEMBERS:
        members.refuses = {address: LeaderNotReady("no leader is known")}
        call = members.call(QuestionRequest(question=b""), ANY_MEMBER)
        members.run(500)
        assert isinstance(call.response, AnswerResponse)
        assert call.response.answer.decode() != MEMBERS[address]


def test_a_watch_that_nobody_tells_of_is_refused_when_its_time_is_over() -> None:
    members, told = Members(), list[int]()
    members.silent = {*MEMBERS}
    watch = members.watch(told)
    members.run(6_000)
    assert isinstance(watch.error, Unreachable)
    assert msgspec.structs.asdict(watch.message)["first_revision"] == 0


def test_a_member_that_begins_a_watch_too_late_is_told_that_nobody_waits_for_it() -> None:
    members, told = Members(), list[int]()
    members.call(QuestionRequest(question=b""), LEADER)
    members.run(100)
    members.holds_watches = True
    watch = members.watch(told)
    members.run(6_000)
    assert isinstance(watch.error, RequestTimeout)
    assert members.cancelled == [members.watches["a:1"][1].request_id]


def test_nonsense_in_the_place_of_an_answer_is_no_outcome_and_begins_no_watch() -> None:
    members, told = Members(), list[int]()
    members.call(QuestionRequest(question=b""), LEADER)
    members.run(100)
    members.nonsense = True
    asked = members.call(QuestionRequest(question=b""), LEADER)
    put = members.call(CommandRequest(command=b""), LEADER)
    put.changes = True
    watch = members.watch(told)
    members.run(6_000)
    assert isinstance(asked.error, Unreachable) and isinstance(put.error, OutcomeUnknown)
    assert isinstance(watch.error, Unreachable) and not told
