"""Appends that start together share frames, and each keeps the outcome that it would have had alone."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
import uvloop

from quorumlog import LocalCluster
from quorumlog.client import AsyncLedgerClient, LedgerClient
from quorumlog.entry import AppendReceipt
from quorumlog.entry_header import HEADER_BYTES
from quorumlog.errors import (
    BadRequest,
    BodyTooLarge,
    NotLeader,
    OutcomeUnknown,
    PendingFull,
    Refused,
    RequestTimeout,
)
from quorumlog.wire.client_messages import AppendRequest, StatusRequest
from tests.client.fake_server import CarryOutAndDrop, Drop, FakeGroup, Hang
from tests.client.test_append import on_append
from tests.waiting import eventually

Run = Callable[[Coroutine[Any, Any, Any]], Any]
Outcome = AppendReceipt | BaseException


@pytest.fixture(params=[asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    run: Run = request.param
    return run


def numbered(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


async def append_all(client: AsyncLedgerClient, bodies: list[Any], **options: Any) -> list[Outcome]:
    """Started in this order, in one turn of the loop."""
    return await asyncio.gather(*(client.append(b, **options) for b in bodies), return_exceptions=True)


async def connected(group: FakeGroup, **options: Any) -> AsyncLedgerClient:
    """A client that has the leader already."""
    client = AsyncLedgerClient(group.addresses, **{"timeout_ms": 10_000, **options})
    await client.append(b"first")
    return client


def appends_at(group: FakeGroup, number: int = 0) -> int:
    """How many requests, `first` not counted."""
    return len(group[number].calls_of(AppendRequest)) - (number == 0)


def indices(outcomes: list[Outcome]) -> list[int]:
    receipts = [outcome for outcome in outcomes if isinstance(outcome, AppendReceipt)]
    assert len(receipts) == len(outcomes), outcomes
    assert {receipt.count for receipt in receipts} == {1}
    return [receipt.first_index for receipt in receipts]


# -------------------------------------------------------------------- tasks, one frame


def test_appends_of_one_turn_leave_in_one_frame_in_their_order(run: Run, group: FakeGroup) -> None:
    async def main() -> None:
        async with await connected(group) as client:
            assert indices(await append_all(client, numbered(300))) == list(range(2, 302))

    run(main())
    assert group.bodies() == [b"first", *numbered(300)]
    assert appends_at(group) == 1


def test_what_is_begun_first_is_written_first_whatever_verb_it_is(run: Run, group: FakeGroup) -> None:
    async def main() -> None:
        async with await connected(group) as client:
            await asyncio.gather(
                client.append(b"a"),
                client.append_batch([b"b", b"c"]),
                client.append(b"d"),
                client.append(b"e", timeout_ms=5000),
                client.append(b"f"),
                client.append(b"g" * 100_000),
                client.append(b"h"),
            )

    run(main())
    assert b"".join(group.bodies()) == b"firstabcdef" + b"g" * 100_000 + b"h"


def test_a_body_that_is_too_large_harms_only_itself(run: Run, group: FakeGroup) -> None:
    group.max_entry_bytes = 1048
    bodies = [b"a", b"b", b"x" * 1001, b"c"]

    async def main() -> list[Outcome]:
        async with await connected(group) as client:
            return await append_all(client, bodies)

    outcomes = run(main())
    large = outcomes.pop(2)
    assert isinstance(large, BodyTooLarge)
    assert "1001 bytes is above the limit of 1000" in str(large)
    assert indices(outcomes) == [2, 3, 4]
    assert group.bodies() == [b"first", b"a", b"b", b"c"]


def test_a_server_that_finds_a_frame_too_large_gets_its_bodies_one_by_one(
    run: Run, group: FakeGroup
) -> None:
    group[0].script = on_append(None, BodyTooLarge("too large"))

    async def main() -> list[Outcome]:
        async with await connected(group) as client:
            return await append_all(client, numbered(5))

    assert indices(run(main())) == [2, 3, 4, 5, 6]
    assert group.bodies() == [b"first", *numbered(5)]
    assert appends_at(group) == 6


def test_a_body_of_a_wrong_type_harms_only_its_caller(run: Run, group: FakeGroup) -> None:
    async def main() -> list[Outcome]:
        async with await connected(group) as client:
            return await append_all(client, [b"a", "text", b"b"])

    first, wrong, last = run(main())
    assert isinstance(wrong, BadRequest)
    assert indices([first, last]) == [2, 3]


def test_a_buffer_may_be_used_again_as_soon_as_the_append_has_begun(run: Run, group: FakeGroup) -> None:
    buffers = [bytearray(b"before"), memoryview(bytearray(b"before"))]

    async def overwrite() -> None:
        for buffer in buffers:
            buffer[:] = b"after!"

    async def main() -> None:
        async with await connected(group) as client:
            await asyncio.gather(*map(client.append, buffers), overwrite())  # type: ignore[arg-type]

    run(main())
    assert group.bodies() == [b"first", b"before", b"before"]


# -------------------------------------------------------------------- tasks, what goes wrong


def test_a_refused_frame_is_sent_again_as_a_whole(run: Run, group: FakeGroup) -> None:
    group[0].script = on_append(None, PendingFull("full", retry_after_ms=2), NotLeader("not me"))

    async def main() -> None:
        async with await connected(group) as client:
            assert indices(await append_all(client, numbered(20))) == list(range(2, 22))

    run(main())
    assert group.bodies() == [b"first", *numbered(20)]
    assert appends_at(group) == 3


@pytest.mark.parametrize("is_written", [False, True])
def test_a_lost_frame_leaves_each_append_unknown(run: Run, group: FakeGroup, is_written: bool) -> None:
    group[0].script = on_append(None, CarryOutAndDrop() if is_written else Drop())

    async def main() -> list[Outcome]:
        async with await connected(group) as client:
            return await append_all(client, numbered(10))

    outcomes = run(main())
    assert [type(outcome) for outcome in outcomes] == [OutcomeUnknown] * 10
    assert len(set(map(id, outcomes))) == 10, "one error raised by ten callers collects ten tracebacks"
    assert group.bodies() == [b"first", *(numbered(10) if is_written else [])]


def test_a_deadline_in_flight_is_unknown_to_each_of_the_frame_and_to_no_other(
    run: Run, group: FakeGroup
) -> None:
    group[0].script = on_append(None, Hang())

    async def main() -> list[Outcome]:
        async with await connected(group) as client:
            hurried = [client.append(body, timeout_ms=200) for body in numbered(3)]
            return await asyncio.gather(*hurried, client.append(b"patient"), return_exceptions=True)

    *hurried, patient = run(main())
    assert [type(outcome) for outcome in hurried] == [OutcomeUnknown] * 3
    assert indices([patient]) == [2]
    assert group.bodies() == [b"first", b"patient"]


def test_without_a_leader_each_is_refused_at_the_deadline(run: Run, group: FakeGroup) -> None:
    group.depose()

    async def main() -> list[Outcome]:
        async with AsyncLedgerClient(group.addresses, timeout_ms=200) as client:
            return await append_all(client, numbered(3))

    assert [type(outcome) for outcome in run(main())] == [RequestTimeout] * 3
    assert group.bodies() == []


def test_close_refuses_what_has_not_left_and_leaves_unknown_what_has(run: Run, group: FakeGroup) -> None:
    group[0].script = on_append(None, Hang())

    async def main() -> tuple[list[Outcome], list[Outcome]]:
        client = await connected(group)
        in_flight = asyncio.create_task(append_all(client, numbered(3)))
        await asyncio.to_thread(group[0].wait_for_calls, AppendRequest, 2)
        begun = [asyncio.create_task(client.append(b"begun")) for _ in range(3)]
        gathered = asyncio.gather(*begun, return_exceptions=True)
        await asyncio.sleep(0)
        await client.close()
        return await in_flight, await gathered

    in_flight, begun = run(main())
    assert [type(outcome) for outcome in in_flight] == [OutcomeUnknown] * 3
    assert [type(outcome) for outcome in begun] == [BadRequest] * 3
    assert group.bodies() == [b"first"]


# -------------------------------------------------------------------- tasks that are cancelled


def test_a_task_cancelled_at_once_leaves_nothing_behind(run: Run, group: FakeGroup) -> None:
    async def main() -> None:
        async with await connected(group) as client:
            tasks = [asyncio.create_task(client.append(body)) for body in numbered(5)]

            async def cancel() -> None:
                tasks[1].cancel()
                tasks[3].cancel()

            await asyncio.gather(*tasks, cancel(), return_exceptions=True)
            assert [task.cancelled() for task in tasks] == [False, True, False, True, False]
            assert indices([tasks[i].result() for i in (0, 2, 4)]) == [2, 3, 4]

    run(main())
    assert group.bodies() == [b"first", b"0", b"2", b"4"]


def test_a_task_cancelled_in_flight_leaves_its_body_and_the_others_alone(
    run: Run, group: FakeGroup
) -> None:
    async def main() -> None:
        async with await connected(group) as client:
            group[0].pause()
            tasks = [asyncio.create_task(client.append(body)) for body in numbered(3)]
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            tasks[1].cancel()
            await asyncio.wait([tasks[1]])
            group[0].resume()
            assert indices([await tasks[0], await tasks[2]]) == [2, 4]

    run(main())
    assert group.bodies() == [b"first", *numbered(3)]


def test_a_frame_that_waits_for_a_leader_is_dropped_once_nobody_waits_for_it(
    run: Run, group: FakeGroup
) -> None:
    group.depose()

    async def main() -> None:
        async with AsyncLedgerClient(group.addresses, timeout_ms=10_000) as client:
            tasks = [asyncio.create_task(client.append(body)) for body in numbered(3)]
            await asyncio.to_thread(group[0].wait_for_calls, StatusRequest, 2)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            group.elect(group[1])
            await client.append(b"after")

    run(main())
    assert group.bodies() == [b"after"]


# -------------------------------------------------------------------- threads


@contextmanager
def held_up(client: LedgerClient) -> Iterator[None]:
    """As if its loop were at something else all the while."""
    holds, goes_on = threading.Event(), threading.Event()

    async def hold() -> None:
        holds.set()
        goes_on.wait(20)

    client._thread.start(hold())
    assert holds.wait(20)
    try:
        yield
    finally:
        goes_on.set()


@contextmanager
def blocking(group: FakeGroup) -> Iterator[LedgerClient]:
    with LedgerClient(group.addresses, timeout_ms=10_000) as client:
        client.append(b"first")
        yield client


def outcome_of(client: LedgerClient, body: bytes) -> Outcome:
    try:
        return client.append(body)
    except Exception as error:
        return error


def append_from_threads(client: LedgerClient, bodies: list[bytes]) -> list[Outcome]:
    """One thread a body."""
    with ThreadPoolExecutor(len(bodies)) as threads:
        with held_up(client):
            calls = [threads.submit(outcome_of, client, body) for body in bodies]
            eventually(lambda: waiting(client) == len(bodies), what="every thread to leave its body")
        return [call.result(20) for call in calls]


def waiting(client: LedgerClient) -> int:
    return len(client._thread._waiting)


def test_threads_whose_bodies_wait_for_the_loop_share_a_frame(group: FakeGroup) -> None:
    with blocking(group) as client:
        places = dict(zip(numbered(12), indices(append_from_threads(client, numbered(12))), strict=True))
    assert sorted(places.values()) == list(range(2, 14))
    for body, index in places.items():
        assert group.entries[index][HEADER_BYTES:] == body
    assert appends_at(group) == 1


def test_a_thread_with_too_large_a_body_harms_only_itself(group: FakeGroup) -> None:
    group.max_entry_bytes = 1048
    with blocking(group) as client:
        outcomes = append_from_threads(client, [b"a", b"x" * 1001, b"b"])
    assert isinstance(outcomes.pop(1), BodyTooLarge)
    assert sorted(indices(outcomes)) == [2, 3]
    assert sorted(group.bodies()) == [b"a", b"b", b"first"]


def test_a_lost_frame_is_unknown_to_every_thread(group: FakeGroup) -> None:
    group[0].script = on_append(None, Drop())
    with blocking(group) as client:
        outcomes = append_from_threads(client, numbered(4))
        assert [type(outcome) for outcome in outcomes] == [OutcomeUnknown] * 4
        assert client.append(b"next").count == 1
    assert group.bodies() == [b"first", b"next"]


def test_close_refuses_threads_whose_bodies_have_not_left(group: FakeGroup) -> None:
    with blocking(group) as client, ThreadPoolExecutor(4) as threads:
        with held_up(client):
            calls = [threads.submit(outcome_of, client, body) for body in numbered(3)]
            eventually(lambda: waiting(client) == 3)
            closing = threads.submit(client.close)
            eventually(lambda: client._thread.is_closed)
        assert [type(call.result(20)) for call in calls] == [BadRequest] * 3
        closing.result(20)
    assert group.bodies() == [b"first"]


# -------------------------------------------------------------------- real members


def assert_each_has_one_outcome(outcomes: dict[bytes, Outcome], servers: str) -> None:
    """A receipt: there once, at its index. Refused: absent. Unknown: at most once."""
    with LedgerClient(servers, timeout_ms=20_000) as client:
        client.append(b"end")
        log = {entry.index: entry.body for entry in client.read(0)}
    times = Counter(log.values())
    for body, outcome in outcomes.items():
        if isinstance(outcome, AppendReceipt):
            assert outcome.count == 1
            assert log[outcome.first_index] == body
            assert times[body] == 1, (body, times[body])
        elif isinstance(outcome, OutcomeUnknown):
            assert times[body] <= 1, body
        else:
            assert isinstance(outcome, Refused), outcome
            assert times[body] == 0, body


def test_many_tasks_get_distinct_places_that_hold_their_bodies() -> None:
    outcomes: dict[bytes, Outcome] = {}

    async def writer(client: AsyncLedgerClient, number: int) -> None:
        for step in range(20):
            body = b"%d/%d" % (number, step)
            outcomes[body] = await client.append(body)

    async def main(servers: str) -> None:
        async with AsyncLedgerClient(servers) as client:
            await asyncio.gather(*(writer(client, number) for number in range(128)))

    with LocalCluster(3) as cluster:
        uvloop.run(main(cluster.servers))
        assert len(set(indices(list(outcomes.values())))) == 128 * 20
        for number in range(128):
            own = indices([outcomes[b"%d/%d" % (number, step)] for step in range(20)])
            assert own == sorted(own)
        assert_each_has_one_outcome(outcomes, cluster.servers)


def test_many_threads_get_distinct_places_that_hold_their_bodies() -> None:
    outcomes: dict[bytes, Outcome] = {}

    def writer(client: LedgerClient, number: int) -> None:
        for step in range(30):
            body = b"%d/%d" % (number, step)
            outcomes[body] = client.append(body)

    with LocalCluster(3) as cluster:
        with LedgerClient(cluster.servers) as client, ThreadPoolExecutor(24) as threads:
            for call in [threads.submit(writer, client, number) for number in range(24)]:
                call.result(60)
        assert len(set(indices(list(outcomes.values())))) == 24 * 30
        assert_each_has_one_outcome(outcomes, cluster.servers)


@pytest.mark.parametrize("client_kind", ["tasks", "threads"])
def test_a_killed_leader_gives_every_append_in_flight_exactly_one_outcome(client_kind: str) -> None:
    outcomes: dict[bytes, Outcome] = {}
    stop = threading.Event()

    async def task(client: AsyncLedgerClient, number: int) -> None:
        for step in itertools.count():
            if stop.is_set():
                return
            body = b"%d/%d" % (number, step)
            (outcomes[body],) = await append_all(client, [body])

    async def tasks(servers: str) -> None:
        async with AsyncLedgerClient(servers, timeout_ms=20_000) as client:
            await asyncio.gather(*(task(client, number) for number in range(64)))

    def thread(client: LedgerClient, number: int) -> None:
        for step in itertools.count():
            if stop.is_set():
                return
            body = b"%d/%d" % (number, step)
            outcomes[body] = outcome_of(client, body)

    def threads(servers: str) -> None:
        with LedgerClient(servers, timeout_ms=20_000) as client, ThreadPoolExecutor(16) as pool:
            for call in [pool.submit(thread, client, number) for number in range(16)]:
                call.result(60)

    def committed_in(term: int) -> int:
        return sum(isinstance(o, AppendReceipt) and o.term >= term for o in list(outcomes.values()))

    with LocalCluster(3) as cluster:
        target = threads if client_kind == "threads" else lambda servers: uvloop.run(tasks(servers))
        load = threading.Thread(target=target, args=(cluster.servers,))
        load.start()
        try:
            eventually(lambda: committed_in(0) > 500, what="appends before the kill")
            term = max(o.term for o in list(outcomes.values()) if isinstance(o, AppendReceipt))
            cluster.kill(cluster.leader())
            eventually(lambda: committed_in(term + 1) > 200, what="appends at the next leader")
        finally:
            stop.set()
            load.join(60)
        assert not load.is_alive()
        assert_each_has_one_outcome(outcomes, cluster.servers)
