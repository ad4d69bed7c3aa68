"""`tail`: where it begins, how long it waits, and how it ends while a thread or a task waits in it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any

import pytest

from quorumlog import Entry, EntryBatch, LedgerClient, connect_async
from quorumlog.client import StreamOutcomeUnknown
from quorumlog.errors import BadRequest, IndexOutOfRange, Refused
from quorumlog.wire.client_messages import ReadRequest
from tests.client.both_clients import Client
from tests.client.fake_server import FakeGroup, FakeServer
from tests.waiting import eventually


def waits(server: FakeServer) -> bool:
    """Somebody waits there for the next entry."""
    reads = [call for call in server.calls if isinstance(call, ReadRequest)]
    return bool(reads) and reads[-1].wait_ms > 0


def in_thread(act: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """Its result, or its error, appears in the list."""
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(act())
        except BaseException as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, results


def test_latest_begins_behind_what_is_there(client: Client, group: FakeGroup) -> None:
    group.append([b"old"])
    thread, got = in_thread(lambda: next(client.tail("latest")).body)
    eventually(lambda: waits(group[0]))
    group.append([b"new"])
    thread.join(10)
    assert got == [b"new"]


def test_with_a_time_limit_it_gives_what_is_there_and_ends(client: Client, group: FakeGroup) -> None:
    group.append([b"a", b"b"])
    for timeout_ms in (0, 30):
        assert [entry.body for entry in client.tail(0, timeout_ms=timeout_ms)] == [b"a", b"b"]
    assert list(client.tail("latest", timeout_ms=1)) == []


def test_a_position_beyond_the_end_is_an_error(client: Client, group: FakeGroup) -> None:
    group.append([b"a"])
    with pytest.raises(IndexOutOfRange, match=r"3 is beyond the end of the log, whose last entry is 1"):
        next(client.tail(3))
    with pytest.raises(IndexOutOfRange, match="wait=True"):
        next(client.tail(3, from_member="n1"))
    assert list(client.tail(2, timeout_ms=1)) == []
    thread, got = in_thread(lambda: next(client.tail(3, wait=True)).body)
    eventually(lambda: waits(group[0]))
    group.append([b"b", b"c"])
    thread.join(10)
    assert got == [b"c"]


@pytest.mark.parametrize("wrong", ["newest", 1.5, None])
def test_another_beginning_is_refused_by_name(client: Client, wrong: Any) -> None:
    with pytest.raises(BadRequest, match="first_index"):
        next(client.tail(wrong))


def test_closing_the_client_ends_it_in_another_thread(group: FakeGroup) -> None:
    log = LedgerClient(group.addresses, timeout_ms=10_000)
    thread, got = in_thread(lambda: list(log.tail(0)))
    eventually(lambda: waits(group[0]))
    log.close()
    thread.join(10)
    assert got == [[]]
    with pytest.raises(BadRequest, match="closed"):
        log.tail(0)


def test_closing_it_ends_it_in_another_thread(group: FakeGroup) -> None:
    with LedgerClient(group.addresses, timeout_ms=10_000) as log:
        tail = log.tail(0)
        thread, got = in_thread(lambda: list(tail))
        eventually(lambda: waits(group[0]))
        tail.close()
        thread.join(10)
        assert got == [[]]
        assert next(tail, None) is None
        tail.close()
        assert log.append(b"goes on").first_index == 1


def test_closing_it_at_any_moment_ends_it(group: FakeGroup) -> None:
    """Also between two requests, and while they are sent."""
    group.append([b"%d" % number for number in range(200)])
    with LedgerClient(group.addresses, timeout_ms=10_000) as log:
        for wanted in range(40):
            tail = log.tail(0)
            thread, got = in_thread(lambda tail=tail: sum(1 for _ in tail))  # type: ignore[misc]
            for _ in range(wanted * 20):
                pass
            tail.close()
            thread.join(10)
            assert not thread.is_alive()
            assert isinstance(got[0], int), got


def test_tasks_close_it_in_both_ways(group: FakeGroup) -> None:
    async def everything_of(tail: Any) -> list[Entry]:
        return [entry async for entry in tail]

    async def main() -> None:
        log = connect_async(group.addresses, timeout_ms=10_000)
        tail = log.tail(0)
        reader = asyncio.create_task(everything_of(tail))
        await asyncio.to_thread(eventually, lambda: waits(group[0]))
        await tail.aclose()
        assert await asyncio.wait_for(reader, 10) == []
        reader = asyncio.create_task(everything_of(log.tail("latest")))
        count = len(group[0].calls)
        await asyncio.to_thread(eventually, lambda: len(group[0].calls) > count + 1 and waits(group[0]))
        await log.close()
        assert await asyncio.wait_for(reader, 10) == []

    asyncio.run(main())


def test_reads_are_closed_as_the_standard_library_closes(group: FakeGroup) -> None:
    group.append([b"a", b"b"])

    async def with_tasks() -> Entry:
        async with connect_async(group.addresses) as log, contextlib.aclosing(log.read(1)) as entries:
            async for entry in entries:
                return entry
        raise AssertionError

    with LedgerClient(group.addresses) as log:
        with contextlib.closing(log.read(1)) as entries:
            first: Entry = next(entries)
        with log.read_batches(1) as batches:
            batch: EntryBatch = next(batches)
        assert next(entries, None) is None
    assert first == next(iter(batch.entries())) == asyncio.run(with_tasks())


def test_chosen_columns_in_the_order_asked_for(client: Client, group: FakeGroup) -> None:
    pytest.importorskip("pyarrow")
    group.append([b"a", b"b"])
    (rows,) = client.read_arrow(0, columns=["body", "index"])
    assert rows.to_pydict() == {"body": [b"a", b"b"], "index": [1, 2]}
    for wrong in (["bodies"], [], "body"):
        with pytest.raises(BadRequest, match="columns"):
            client.read_arrow(0, columns=wrong)


def test_a_client_that_is_closed_while_nobody_waits_ends_its_tails(group: FakeGroup) -> None:
    with LedgerClient(group.addresses) as log:
        log.append(b"a")
        tail = iter(log.tail(1))
        assert next(tail).body == b"a"
        log.close()
        assert list(tail) == []


def test_a_stream_whose_client_is_closed_says_what_is_unknown(group: FakeGroup) -> None:
    with LedgerClient(group.addresses) as log:
        stream = log.append_stream([b"%d" % number for number in range(4)], batch_records=1, window=2)
        assert next(stream).count == 1
        log.close()
        with pytest.raises((StreamOutcomeUnknown, Refused)):
            list(stream)
        assert stream.progress.committed_records >= 1
