"""Read plans against a log in memory, whatever sizes, limits and ends of answers."""

from __future__ import annotations

import random
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorumlog.batch import EntryBatch
from quorumlog.client.protocol.client_requests import Request
from quorumlog.client.protocol.read_plan import ReadPlan
from quorumlog.entry_header import CHAIN_OFFSET, HEADER_BYTES
from quorumlog.errors import IndexOutOfRange, ProtocolViolation, RangeDamaged
from quorumlog.header_array import chain_of
from quorumlog.net.rpc.calls import LEADER, RequestTarget, TargetKind
from quorumlog.wire.client_messages import ReadRequest, ReadResponse


def make_log(sizes: list[int]) -> list[bytes]:
    batch = EntryBatch.from_bodies([bytes([i % 251]) * size for i, size in enumerate(sizes)])
    batch.stamp(0, 1, batch.starts, 0)
    stops = (batch.starts + batch.sizes).tolist()
    return [bytes(batch.buffer[a:b]) for a, b in zip(batch.starts.tolist(), stops, strict=True)]


def make_request(message: ReadRequest) -> Request:
    return Request(message, LEADER, submitted_ms=0.0, deadline_ms=1.0)


def answer(request: Request, log: list[bytes], most: int = 10**9) -> None:
    message = request.message
    assert isinstance(message, ReadRequest)
    stop = len(log) if message.stop_index < 0 else min(message.stop_index, len(log))
    picked: list[bytes] = []
    for entry in log[message.first_index : stop]:
        if picked and (sum(map(len, picked)) + len(entry) > message.limit_bytes or len(picked) >= most):
            break
        picked.append(entry)
    request.response = ReadResponse(
        first_index=message.first_index,
        count=len(picked),
        ledger_begin_index=0,
        committed_index=len(log) - 1,
    )
    if picked:
        request.response_batch = EntryBatch(bytearray(b"".join(picked)), list(map(len, picked)))


@pytest.mark.parametrize("entries_hint", [None, 3])
def test_only_the_answer_that_decides_where_a_read_ends_is_asked_for_as_such(
    entries_hint: int | None,
) -> None:
    """It costs the leader a round of heartbeats; what is known to be committed costs nothing."""
    log = make_log([10] * 8)

    def asked_to_end(plan: ReadPlan) -> list[bool]:
        found = []
        while True:
            wanted = plan.wanted()
            if plan.head is None:
                return found
            for request in wanted:
                assert isinstance(request.message, ReadRequest)
                found.append(request.message.to_end)
                answer(request, log, most=2)
            plan.take()

    options = {"make_request": make_request, "entries_hint": entries_hint}
    first, *others = asked_to_end(ReadPlan(0, None, **options))
    assert first and len(others) >= 2 and not any(others)
    assert not any(asked_to_end(ReadPlan(0, 8, **options)))
    damaged = ReadPlan(0, None, **options)
    (refused,) = damaged.wanted()
    refused.error = RangeDamaged("a later entry of the range")
    assert damaged.take() is None
    (shorter,) = damaged.wanted()
    assert isinstance(shorter.message, ReadRequest) and shorter.message.to_end
    follows = ReadPlan(0, None, make_request=make_request, follow=True)
    (request,) = follows.wanted()
    assert isinstance(request.message, ReadRequest) and not request.message.to_end


@settings(max_examples=150, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 3000), min_size=1, max_size=120),
    batch_bytes=st.integers(1, 5000),
    prefetch=st.integers(1, 6),
    seed=st.integers(0, 2**32),
    data=st.data(),
)
def test_every_range_comes_once_and_in_order(
    sizes: list[int], batch_bytes: int, prefetch: int, seed: int, data: st.DataObject
) -> None:
    log = make_log(sizes)
    first = data.draw(st.integers(0, len(log)))
    stop = data.draw(st.none() | st.integers(first, len(log)))
    chance = random.Random(seed)
    plan = ReadPlan(first, stop, make_request=make_request, batch_bytes=batch_bytes, prefetch=prefetch)
    open_requests: list[Request] = []
    got: list[bytes] = []
    while True:
        open_requests += plan.wanted()
        assert len(open_requests) <= prefetch
        head = plan.head
        if head is None:
            break
        # Answers come in any order; the plan waits for the head.
        while head.response is None:
            answer(chance.choice(open_requests), log, chance.choice([1, 3, 10**9]))
        open_requests.remove(head)
        batch = plan.take()
        if batch is not None:
            assert batch.first_index == first + len(got)
            got += [bytes(body) for body in batch.bodies()]
    assert got == [entry[HEADER_BYTES:] for entry in log[first:stop]]
    assert open_requests == []


def test_a_follower_of_the_log_never_ends() -> None:
    log = make_log([10] * 5)
    plan = ReadPlan(2, None, make_request=make_request, follow=True, wait_ms=7)
    got = 0
    for _ in range(3):
        for request in plan.wanted():
            answer(request, log[:5])
        batch = plan.take()
        got += batch.count if batch is not None else 0
    assert got == 3
    (waiting,) = plan.wanted()
    assert isinstance(waiting.message, ReadRequest)
    assert (waiting.message.first_index, waiting.message.wait_ms) == (5, 7)


def test_a_range_above_what_is_committed_is_an_error_with_both_bounds() -> None:
    plan = ReadPlan(3, 9, make_request=make_request)
    log = make_log([10] * 5)
    for request in plan.wanted():
        answer(request, log)
    assert plan.take() is not None
    for request in plan.wanted():
        answer(request, log)
    with pytest.raises(IndexOutOfRange, match="index 5 is above the committed index 4"):
        plan.take()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"first_index": 1}, "came instead of"),
        ({"count": 4}, "were announced"),
    ],
)
def test_answers_that_contradict_themselves(change: dict[str, int], words: str) -> None:
    plan = ReadPlan(0, 5, make_request=make_request)
    (request,) = plan.wanted()
    answer(request, make_log([10] * 5))
    fields = {"first_index": 0, "count": 5, "ledger_begin_index": 0, "committed_index": 4}
    request.response = ReadResponse(**(fields | change))
    with pytest.raises(ProtocolViolation, match=words):
        plan.take()


def test_more_than_was_asked_for_is_a_violation() -> None:
    plan = ReadPlan(0, 3, make_request=make_request)
    (request,) = plan.wanted()
    answer(
        Request(ReadRequest(first_index=0), LEADER, submitted_ms=0, deadline_ms=1), make_log([10] * 5)
    )
    other = make_request(ReadRequest(first_index=0))
    answer(other, make_log([10] * 5))
    request.response, request.response_batch = other.response, other.response_batch
    with pytest.raises(ProtocolViolation, match="and those below 3 were requested"):
        plan.take()


def test_ranges_that_are_asked_for_lie_end_to_end() -> None:
    log = make_log([100] * 500)
    plan = ReadPlan(0, 500, make_request=make_request, batch_bytes=2000, prefetch=5)
    (request,) = plan.wanted()
    answer(request, log)
    plan.take()
    asked = [r.message for r in plan.wanted()]
    assert len(asked) == 5
    for one, following in pairwise(asked):
        assert isinstance(one, ReadRequest)
        assert isinstance(following, ReadRequest)
        assert one.stop_index == following.first_index


def damaged(log: list[bytes], where: dict[int, int]) -> list[bytes]:
    """The log with one bit flipped at a byte of each of some entries."""
    copy = list(log)
    for index, position in where.items():
        entry = bytearray(copy[index])
        entry[position % len(entry)] ^= 1 << (position % 8)
        copy[index] = bytes(entry)
    return copy


BODY_FLIPS = st.dictionaries(st.integers(0, 39), st.integers(48, 60), max_size=6)


@settings(max_examples=150, deadline=None)
@given(
    flips=st.lists(BODY_FLIPS, min_size=1, max_size=3),
    refuses=st.lists(st.booleans(), min_size=3, max_size=3),
    batch_bytes=st.integers(1, 2000),
    prefetch=st.integers(1, 4),
    has_stop=st.booleans(),
)
def test_what_one_member_holds_whole_is_read_and_nothing_else(
    flips: list[dict[int, int]],
    refuses: list[bool],
    batch_bytes: int,
    prefetch: int,
    has_stop: bool,
) -> None:
    """Members with damaged bodies, some sending them and some refusing the whole range for one."""
    log = make_log([13] * 40)
    members = {f"m{number}": damaged(log, where) for number, where in enumerate(flips)}

    def make_substitute(message: ReadRequest, tried: set[str]) -> Request | None:
        for name in members:
            if name not in tried:
                return Request(
                    message, RequestTarget(TargetKind.MEMBER, name), submitted_ms=0.0, deadline_ms=1.0
                )
        return None

    def chosen(message: ReadRequest) -> Request:
        return Request(
            message, RequestTarget(TargetKind.MEMBER, "m0"), submitted_ms=0.0, deadline_ms=1.0
        )

    plan = ReadPlan(
        0,
        40 if has_stop else None,
        make_request=chosen,
        batch_bytes=batch_bytes,
        prefetch=prefetch,
        make_substitute=make_substitute,
    )
    bad_everywhere = set.intersection(*(set(where) for where in flips))
    got: list[bytes] = []
    asked = 0
    failure = None
    while failure is None:
        for request in plan.wanted():
            asked += 1
            number = int(request.target.name[1:])
            answer(request, members[request.target.name])
            message, batch = request.message, request.response_batch
            assert isinstance(message, ReadRequest)
            count = batch.count if batch is not None else 0
            if refuses[number] and flips[number].keys() & set(
                range(message.first_index, message.first_index + count)
            ):
                request.response = request.response_batch = None
                request.error = RangeDamaged("damaged")
        if plan.head is None:
            break
        try:
            batch = plan.take()
        except RangeDamaged as error:
            failure = error
            break
        if batch is not None:
            got += [bytes(batch.slice(i, i + 1).buffer) for i in range(batch.count)]
    assert asked < 40 * 3 * 14
    assert got == (log[: min(bad_everywhere)] if bad_everywhere else log)
    assert (failure is not None) == bool(bad_everywhere)
    if failure is not None:
        assert str(min(bad_everywhere)) in str(failure)


@pytest.mark.parametrize("seed", range(5))
def test_no_flipped_bit_is_ever_handed_out(seed: int) -> None:
    """Any bit of any entry behind the first, whose chain_crc is all that anchors a read."""
    rng = random.Random(seed)
    log = make_log([rng.randrange(30) for _ in range(30)])
    for _ in range(40):
        index = rng.randrange(2, 30)
        position = rng.randrange(len(log[index]))
        if 24 <= position < 32:
            continue  # `pos` is each member's own: no digest covers it.
        plan = ReadPlan(0, 30, make_request=make_request, batch_bytes=400)
        got: list[bytes] = []
        bad = damaged(log, {index: position})
        with pytest.raises(RangeDamaged, match=rf"sent entry {index} "):
            while True:
                for request in plan.wanted():
                    answer(request, bad)
                batch = plan.take()
                if batch is not None:
                    got += [bytes(batch.slice(i, i + 1).buffer) for i in range(batch.count)]
        assert got == log[:index]


# ---------------------------------------------------------------- headers alone


def answer_with_heads(request: Request, log: list[bytes], most: int = 10**9) -> None:
    answer(request, log, most)
    batch, told = request.response_batch, request.response
    assert batch is not None and isinstance(told, ReadResponse)
    request.response_batch = batch.heads()
    request.response = msgspec.structs.replace(told, heads=True)


@given(
    st.lists(st.integers(0, 300), min_size=1, max_size=60),
    st.integers(1, 4),
    st.integers(1, 900),
    st.lists(st.booleans(), min_size=1),
)
def test_a_read_of_headers_gives_all_of_them_whoever_knows_how_to_send_them(
    sizes: list[int], prefetch: int, batch_bytes: int, knows: list[bool]
) -> None:
    """Members of an older release send whole entries. Ranges are cut by what the log has, not by what
    comes."""
    log = make_log(sizes)
    plan = ReadPlan(
        0,
        len(log),
        make_request=make_request,
        prefetch=prefetch,
        batch_bytes=batch_bytes,
        heads=True,
    )
    found: list[int] = []
    asked = 0
    while True:
        for request in plan.wanted():
            message = request.message
            assert isinstance(message, ReadRequest) and message.heads
            (answer_with_heads if knows[asked % len(knows)] else answer)(request, log)
            asked += 1
        if plan.head is None:
            break
        batch = plan.take()
        if batch is not None:
            found += batch.headers()["size"].tolist()
            log_bytes = int(batch.headers()["size"].sum())
            assert batch.count == 1 or log_bytes <= 2 * batch_bytes
    assert found == list(map(len, log))


def test_a_header_that_was_changed_is_told_from_those_in_front_of_it() -> None:
    log = make_log([10] * 9)
    plan = ReadPlan(0, 9, make_request=make_request, heads=True)
    (request,) = plan.wanted()
    answer_with_heads(request, log)
    assert request.response_batch is not None
    damaged = bytearray(request.response_batch.buffer)
    damaged[5 * HEADER_BYTES + CHAIN_OFFSET + 4] ^= 1
    request.response_batch = EntryBatch(damaged, [HEADER_BYTES] * 9)
    good = plan.take()
    assert good is not None and good.count == 5


def test_headers_that_nobody_asked_for_are_a_violation() -> None:
    """Their bodies would be taken for empty ones."""
    plan = ReadPlan(0, 9, make_request=make_request)
    (request,) = plan.wanted()
    answer_with_heads(request, make_log([0] * 9))
    with pytest.raises(ProtocolViolation, match="headers arrived instead of entries"):
        plan.take()


@pytest.mark.parametrize("count", [1, 9])
def test_entries_that_are_called_headers_are_a_violation(count: int) -> None:
    plan = ReadPlan(0, count, make_request=make_request, heads=True)
    (request,) = plan.wanted()
    answer(request, make_log([10] * count))
    assert isinstance(request.response, ReadResponse)
    request.response = msgspec.structs.replace(request.response, heads=True)
    with pytest.raises(ProtocolViolation, match="bodies came where headers were announced"):
        plan.take()


@pytest.mark.parametrize("size", [0, 16, 47, -1, -(2**31)])
def test_a_header_of_an_entry_that_cannot_be_is_told_from_those_in_front_of_it(size: int) -> None:
    """Its two lengths agree in 32 bits."""
    plan = ReadPlan(0, 9, make_request=make_request, heads=True)
    (request,) = plan.wanted()
    answer_with_heads(request, make_log([10] * 9))
    assert request.response_batch is not None
    forged = EntryBatch(bytearray(request.response_batch.buffer), [HEADER_BYTES] * 9)
    headers = forged.headers()
    body_len = (size - HEADER_BYTES + 2**31) % 2**32 - 2**31
    headers["size"][5], headers["body_len"][5] = size, body_len
    headers["chain_crc"] = chain_of(headers, 0)
    request.response_batch = EntryBatch(forged.buffer, [HEADER_BYTES] * 9)
    good = plan.take()
    assert good is not None and good.count == 5
