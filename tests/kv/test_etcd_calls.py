"""Calls of etcd's clients: which the member's own store answers, and which go on to another one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from quorumlog.errors import LedgerError, OutcomeUnknown
from quorumlog.kv.errors import FutureRevision
from quorumlog.kv.etcd import calls as calls_module
from quorumlog.kv.etcd import messages_pb2 as pb
from quorumlog.kv.etcd.calls import ForwardedCalls, LocalCalls
from quorumlog.kv.etcd.conversions import number_of
from quorumlog.kv.etcd.errors import Code, TokenEnded, error_of
from quorumlog.kv.etcd.handlers import Handlers
from quorumlog.kv.etcd.identity import EtcdIdentity
from quorumlog.kv.requests import (
    AnswerResponse,
    CancelRequest,
    CommandRequest,
    Event,
    EventsResponse,
    KeepAliveRequest,
    KeyValue,
    Put,
    PutAnswer,
    QuestionRequest,
    Range,
    RangeAnswer,
    Request,
    TxnAnswer,
    WatchRequest,
    decode_question,
    done,
    encode,
)

OWN_REVISION, OTHER_REVISION = 10, 11


class Leader:
    """A store that leads, and answers with its own revision; and the stores of all members."""

    leads: bool = True

    def __init__(self) -> None:
        self.asked: list[Request] = []
        self.forwarded: list[Request] = []
        self.seen_revision = OTHER_REVISION
        self.answers = True
        self.service = SimpleNamespace(
            compacted_revision=0, watches=SimpleNamespace(delivered_revision=OWN_REVISION)
        )
        quotas = SimpleNamespace(refusal_of_connection=lambda calls: None, enter=lambda calls: None)
        self.access = SimpleNamespace(quotas=quotas)
        self.asking = self
        self.held_bytes = 0
        carrier: Any = SimpleNamespace(
            meter=None, next_number=lambda: len(self.asked) + 1, hold=self._hold
        )
        client: Any = SimpleNamespace(asking=self)
        self.calls = LocalCalls(self, ForwardedCalls(client), carrier, "")  # type: ignore[arg-type]

    def _hold(self, size_bytes: int) -> None:
        self.held_bytes += size_bytes

    def session_of(self, connection: Any) -> Any:
        return SimpleNamespace(frame=self._frame)

    def _frame(self, frame: Any) -> None:
        request = frame.message
        self.asked.append(request)
        if not self.answers or isinstance(request, WatchRequest | CancelRequest):
            return
        answer = PutAnswer() if isinstance(request, CommandRequest) else RangeAnswer()
        response = AnswerResponse(request_id=request.request_id, answer=done(OWN_REVISION, answer))
        self.calls.send("", response)

    async def call(self, request: Request, answer: Any, *, target: Any) -> tuple[int, Any]:
        self.forwarded.append(request)
        return OTHER_REVISION, answer()


@pytest.mark.parametrize("is_command", [True, False])
def test_a_command_that_was_carried_out_is_not_sent_to_another_member_too(is_command: bool) -> None:
    """Its answer may be late: another member has led meanwhile, and answered at a later revision."""
    store = Leader()
    command = CommandRequest(command=encode(Put(b"a", b"1")))
    question = QuestionRequest(question=encode(Range(b"a")))
    request: Request = command if is_command else question
    answer: Any = PutAnswer if is_command else RangeAnswer
    revision, _ = asyncio.run(store.calls.call(request, answer))
    assert len(store.asked) == 1
    assert store.forwarded == ([] if is_command else [request]), "what is read never goes back"
    assert revision == (OWN_REVISION if is_command else OTHER_REVISION)
    assert store.seen_revision == OTHER_REVISION


async def refusal(asked: Awaitable[Any]) -> LedgerError | None:
    try:
        await asked
    except LedgerError as error:
        return error
    return None


def a_put_without_an_answer_is_not_sent_again() -> None:
    """Nobody knows whether it was carried out, and a client of etcd is told so."""

    async def scene() -> None:
        store = Leader()
        store.answers = False
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(calls_module, "TIMEOUT_S", 0.0)
            handlers = Handlers(store.calls, EtcdIdentity("n1", lambda: "c"), cast(Any, None))
            outcome = await refusal(handlers.put(pb.PutRequest(key=b"a", value=b"1")))
            assert isinstance(outcome, OutcomeUnknown), outcome
            assert error_of(outcome).code is Code.UNAVAILABLE
            assert len(store.asked) == 1 and not store.forwarded
            question = QuestionRequest(question=encode(Range(b"a")))
            assert await store.calls.call(question, RangeAnswer)
            assert store.forwarded == [question], "what changes nothing is asked of another member"

    asyncio.run(scene())


def test_a_put_without_an_answer_is_not_sent_again() -> None:
    a_put_without_an_answer_is_not_sent_again()


def a_watch_from_now_on_begins_behind_what_its_client_was_told() -> None:
    """Here or at another member, which may have come further."""

    async def scene() -> None:
        store = Leader()
        store.calls.watch(WatchRequest(key=b"a"))
        store.calls.watch(WatchRequest(key=b"a", first_revision=3))
        first = [each.first_revision for each in store.asked if isinstance(each, WatchRequest)]
        assert first == [OTHER_REVISION + 1, 3]

    asyncio.run(scene())


def test_a_watch_from_now_on_tells_nothing_from_before_it() -> None:
    """What was answered last may be long ago, and compacted by now."""

    async def scene() -> None:
        store = Leader()
        store.service.watches.delivered_revision = OTHER_REVISION + 1000
        store.calls.watch(WatchRequest(key=b"a"))
        assert [each.first_revision for each in store.asked if isinstance(each, WatchRequest)] == [0]

    asyncio.run(scene())


def test_a_watch_from_now_on_begins_behind_what_its_client_was_told() -> None:
    a_watch_from_now_on_begins_behind_what_its_client_was_told()


def a_compaction_is_answered_once_this_member_has_carried_it_out() -> None:
    async def scene() -> None:
        store = Leader()
        store.leads = False
        identity = EtcdIdentity("n1", lambda: "c")
        handlers = Handlers(store.calls, identity, cast(Any, None))
        answer = asyncio.create_task(handlers.compact(pb.CompactionRequest(revision=7)))
        for _ in range(100):
            await asyncio.sleep(0)
        assert store.forwarded and not answer.done(), "another member has carried it out"
        store.leads = True  # by now, and it has not come as far
        for _ in range(100):
            await asyncio.sleep(0)
        assert not answer.done()
        store.service.compacted_revision = 7
        await answer

    asyncio.run(scene())


def test_a_compaction_is_answered_once_this_member_has_carried_it_out() -> None:
    a_compaction_is_answered_once_this_member_has_carried_it_out()


class Leases:
    """Calls to a store that answers keep-alives with what is left."""

    def __init__(self, left_ms: int) -> None:
        self._left_ms = left_ms

    async def call(self, request: Request, answer: Any, *, here: bool = False) -> tuple[int, Any]:
        assert isinstance(request, KeepAliveRequest), request
        return OWN_REVISION, [self._left_ms]


def a_lease_that_has_ended_is_told_as_such() -> None:
    """By a TTL of 0, which clients end their lease by; rounded down, so that none counts on more."""
    for left_ms, told in ((0, 0), (2_999, 2), (3_000, 3)):
        handlers = Handlers(cast(Any, Leases(left_ms)), EtcdIdentity("n1", lambda: "c"), cast(Any, None))
        answer = asyncio.run(handlers.keep_alive(pb.LeaseKeepAliveRequest(ID=7)))
        ttl_s = answer.TTL
        assert ttl_s == told


def test_a_lease_that_has_ended_is_told_as_such() -> None:
    a_lease_that_has_ended_is_told_as_such()


def nothing_goes_on_by_a_token_that_has_ended() -> None:
    """Neither a watch, though changes wait for it, nor a stream that asks again."""

    async def scene() -> None:
        store = Leader()
        watch = store.calls.watch(WatchRequest(key=b"a"))
        (asked,) = store.asked
        change = Event(KeyValue(b"a", 1, 12, 1, b""))
        begun = EventsResponse(request_id=asked.request_id, next_revision=12, events=[])
        told = EventsResponse(request_id=asked.request_id, next_revision=13, events=[change])
        store.calls.send("", begun)
        store.calls.send("", told)
        await watch.began()
        store.calls.revoke()
        store.calls.send("", told)
        async with asyncio.timeout(60):
            assert isinstance(await refusal(watch.batch()), TokenEnded)
        question = QuestionRequest(question=encode(Range(b"a")))
        assert isinstance(await refusal(store.calls.call(question, RangeAnswer)), TokenEnded)
        with pytest.raises(TokenEnded):
            store.calls.watch(WatchRequest(key=b"a"))
        assert store.held_bytes == 0

    asyncio.run(scene())


def test_nothing_goes_on_by_a_token_that_has_ended() -> None:
    nothing_goes_on_by_a_token_that_has_ended()


class EmptyStore:
    """Of revision 0; in etcd it is at revision 1."""

    async def call(self, request: Request, answer: Any, *, here: bool = False) -> tuple[int, Any]:
        if isinstance(request, QuestionRequest):
            asked = decode_question(request.question)
            if isinstance(asked, Range) and asked.revision:
                raise FutureRevision("the newest is 0")
        return 0, TxnAnswer(succeeded=False, answers=[RangeAnswer()])


def test_an_empty_store_is_at_the_revision_that_its_headers_say() -> None:
    """Mirrors read it first, and then everything at that revision."""

    async def scene() -> None:
        handlers = Handlers(cast(Any, EmptyStore()), EtcdIdentity("n1", lambda: "c"), cast(Any, None))
        look = pb.RequestOp(request_range=pb.RangeRequest(key=b"a"))
        told = await handlers.txn(pb.TxnRequest(failure=[look]))
        assert told.header.revision == told.responses[0].response_range.header.revision == 1
        found = await handlers.range(pb.RangeRequest(key=b"a", revision=1))
        assert (found.header.revision, found.count) == (1, 0)
        with pytest.raises(FutureRevision):
            await handlers.range(pb.RangeRequest(key=b"a", revision=2))

    asyncio.run(scene())


def test_a_cluster_id_that_is_not_known_yet_is_left_out() -> None:
    """Patroni takes another one for another cluster, and forgets which member was stale."""
    known = [""]
    identity = EtcdIdentity("n1", lambda: known[0])
    assert identity.header(1).cluster_id == 0
    known[0] = "c"
    assert identity.header(1).cluster_id == number_of("c")
