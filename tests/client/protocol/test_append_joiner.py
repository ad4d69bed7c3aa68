"""Which appends share a frame, and what each of them is told."""

from __future__ import annotations

import random

import pytest

from quorumlog.batch import EntryBatch
from quorumlog.client.protocol.appending import (
    MAX_JOINED_BODY_BYTES,
    MAX_JOINED_BYTES,
    MAX_JOINED_RECORDS,
    AppendBatcher,
    JoinedAppends,
    body_of,
)
from quorumlog.client.protocol.client_protocol import ClientProtocol
from quorumlog.client.protocol.client_requests import Request
from quorumlog.entry import AppendReceipt, Durability
from quorumlog.entry_header import HEADER_BYTES
from quorumlog.errors import BadRequest, BodyTooLarge, LedgerError, NotLeader, OutcomeUnknown, Refused
from quorumlog.net.rpc.calls import CallState
from quorumlog.wire.client_messages import AppendResponse


def joined(*bodies: bytes, timeout_ms: float = 1000) -> AppendBatcher:
    """A joiner with these bodies; each is its own waiter's name."""
    joiner = AppendBatcher()
    for body in bodies:
        joiner.add(body, timeout_ms, body, 0.0)
    return joiner


def frames_of(joiner: AppendBatcher) -> list[list[bytes]]:
    return [bodies_of(frame.make_request()) for frame in joiner.take()]


def bodies_of(request: Request) -> list[bytes]:
    assert request.batch is not None
    return [bytes(body) for body in request.batch.bodies()]


def taken(*bodies: bytes) -> JoinedAppends:
    (frame,) = joined(*bodies).take()
    frame.make_request()
    return frame


def refused(frame: JoinedAppends, error: LedgerError) -> JoinedAppends:
    assert frame.request is not None
    frame.request.error = error
    frame.request.state = CallState.DONE
    return frame


# -------------------------------------------------------------------- who shares a frame


def test_what_gathers_leaves_in_one_frame_and_only_once() -> None:
    joiner = joined(b"a", b"", b"c")
    assert frames_of(joiner) == [[b"a", b"", b"c"]]
    assert frames_of(joiner) == []
    joiner.add(b"d", 1000, "d", 0.0)
    assert frames_of(joiner) == [[b"d"]]


def test_a_frame_ends_at_its_records() -> None:
    bodies = [b"%d" % number for number in range(2 * MAX_JOINED_RECORDS + 1)]
    frames = frames_of(joined(*bodies))
    assert [len(frame) for frame in frames] == [MAX_JOINED_RECORDS, MAX_JOINED_RECORDS, 1]
    assert [body for frame in frames for body in frame] == bodies


def test_a_frame_ends_at_its_bytes() -> None:
    body = bytes(MAX_JOINED_BODY_BYTES - HEADER_BYTES)
    fitting = MAX_JOINED_BYTES // MAX_JOINED_BODY_BYTES
    assert [len(f) for f in frames_of(joined(*[body] * (fitting + 1)))] == [fitting, 1]


def test_a_large_body_travels_alone_and_in_its_place() -> None:
    large = bytes(MAX_JOINED_BODY_BYTES + 1)
    assert frames_of(joined(b"a", b"b", large, b"c", b"d")) == [[b"a", b"b"], [large], [b"c", b"d"]]
    assert len(frames_of(joined(large, large))) == 2
    assert len(frames_of(joined(b"a", large[1:]))) == 1


def test_different_timeouts_never_share_a_frame_nor_change_the_order() -> None:
    joiner = AppendBatcher()
    for number, timeout_ms in enumerate([100, 100, 200, 100]):
        joiner.add(b"%d" % number, timeout_ms, number, 5.0 + number)
    requests = [frame.make_request() for frame in joiner.take()]
    assert [bodies_of(request) for request in requests] == [[b"0", b"1"], [b"2"], [b"3"]]
    assert [request.deadline_ms for request in requests] == [105.0, 207.0, 108.0]


def test_any_mixture_keeps_its_order_and_the_bounds() -> None:
    chance = random.Random(7)
    sizes = [0, 10, 1000, MAX_JOINED_BODY_BYTES, MAX_JOINED_BODY_BYTES + 1, 2 * MAX_JOINED_BYTES]
    joiner = AppendBatcher()
    bodies = []
    for number in range(3000):
        size = chance.choices(sizes, [50, 1000, 100, 20, 5, 1])[0]
        bodies.append((b"%d/" % number).ljust(size, b"x"))
        joiner.add(bodies[-1], 1000, number, 0.0)
    frames = frames_of(joiner)
    assert [body for frame in frames for body in frame] == bodies
    for frame in frames:
        assert len(frame) <= MAX_JOINED_RECORDS
        if len(frame) > 1:
            assert max(map(len, frame)) <= MAX_JOINED_BODY_BYTES
            assert sum(map(len, frame)) + HEADER_BYTES * len(frame) <= MAX_JOINED_BYTES


# -------------------------------------------------------------------- who leaves it


def test_who_leaves_before_it_is_taken_takes_the_body_along() -> None:
    joiner = AppendBatcher()
    frame = joiner.add(b"a", 1000, "a", 0.0)
    joiner.add(b"b", 1000, "b", 0.0)
    assert not frame.leave("a")
    assert frame.waiters == ["b"]
    assert frames_of(joiner) == [[b"b"]]
    frame = joiner.add(b"c", 1000, "c", 0.0)
    frame.leave("c")
    assert frames_of(joiner) == []


def test_who_is_gone_when_the_frame_is_taken_may_leave_afterwards() -> None:
    joiner = joined(b"a", b"b", b"c")
    (frame,) = joiner.take(lambda waiter: waiter == b"b")
    assert bodies_of(frame.make_request()) == [b"a", b"c"]
    assert not frame.leave(b"b")
    assert not frame.leave(b"a")
    assert frame.leave(b"c")


def test_a_taken_frame_keeps_its_bodies_until_nobody_waits_for_any() -> None:
    frame = taken(b"a", b"b")
    assert not frame.leave(b"a")
    assert frame.request is not None
    assert bodies_of(frame.request) == [b"a", b"b"]
    assert frame.leave(b"b")


# -------------------------------------------------------------------- outcomes


def test_each_append_gets_a_receipt_of_its_own() -> None:
    frame = taken(b"a", b"b", b"c")
    assert frame.request is not None
    frame.request.response = AppendResponse(term=3, first_index=7, count=3, durability="sync")
    frame.request.state = CallState.DONE
    assert frame.outcomes() == [AppendReceipt(3, index, 1, Durability.SYNC) for index in (7, 8, 9)]


@pytest.mark.parametrize(
    "error",
    [NotLeader("not me", leader_id="n2", leader_address="h:1"), OutcomeUnknown("lost")],
    ids=lambda error: type(error).__name__,
)
def test_each_append_gets_an_error_of_its_own(error: LedgerError) -> None:
    outcomes = refused(taken(b"a", b"b"), error).outcomes()
    assert len({id(each) for each in [*outcomes, error]}) == 3
    for each in outcomes:
        assert type(each) is type(error)
        assert str(each) == str(error)
        assert each.leader_id == error.leader_id
        assert each.leader_address == error.leader_address


def test_a_frame_that_is_too_large_is_to_be_sent_one_by_one() -> None:
    assert refused(taken(b"a", b"b"), BodyTooLarge("too large")).outcomes() == [None, None]


def test_a_body_that_is_too_large_alone_is_too_large() -> None:
    (outcome,) = refused(taken(b"a"), BodyTooLarge("too large")).outcomes()
    assert isinstance(outcome, BodyTooLarge)


def test_a_closed_client_refuses_every_append_of_a_frame() -> None:
    protocol = ClientProtocol(["h:1"], group="g", random=random.Random(0))
    protocol.close(0.0)
    (frame,) = joined(b"a", b"b").take()
    protocol.submit(frame.make_request(), 0.0)
    (request,) = protocol.take_work().completed
    assert request.context is frame
    assert [type(outcome) for outcome in frame.outcomes()] == [BadRequest, BadRequest]


# -------------------------------------------------------------------- bodies


def test_a_body_is_copied_if_it_could_change() -> None:
    body = b"fixed"
    assert body_of(body) is body
    changing = bytearray(b"before")
    copies = [body_of(changing), body_of(memoryview(changing)[1:])]
    changing[:] = b"after!"
    assert copies == [b"before", b"efore"]


@pytest.mark.parametrize("body", ["text", 5, None, [1, 2]])
def test_what_is_no_body_is_refused(body: object) -> None:
    with pytest.raises(BadRequest, match="body must be"):
        body_of(body)  # type: ignore[arg-type]


def test_what_cannot_be_encoded_is_refused_for_each_who_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(bodies: object) -> EntryBatch:
        raise MemoryError

    joiner = AppendBatcher()
    joiner.add(b"a", 1000, "first", 0.0)
    joiner.add(b"b", 1000, "second", 0.0)
    (frame,) = joiner.take()
    monkeypatch.setattr(EntryBatch, "from_bodies", no_memory)
    told: dict[str, Refused] = {}
    assert frame.try_to_make_request(told.__setitem__) is None
    assert sorted(told) == ["first", "second"]
    assert all("nothing was written" in str(error) for error in told.values())
