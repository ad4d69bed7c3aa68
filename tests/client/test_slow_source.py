"""A source that waits between its items keeps back neither what it gave before nor a receipt."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
import uvloop

from quorumlog.client.async_client import AsyncLedgerClient
from quorumlog.client.protocol.appending import SLOW_ITEM_MS, BatchGatherer
from tests.client.fake_server import FakeGroup

LOOPS = pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
NewLoop = Callable[[], asyncio.AbstractEventLoop]


@LOOPS
def test_what_a_slow_source_gave_is_committed_while_it_waits(
    group: FakeGroup, new_loop: NewLoop
) -> None:
    """Each item here comes only after the receipt of the one before."""

    async def main() -> None:
        items: asyncio.Queue[bytes | None] = asyncio.Queue()

        async def source() -> AsyncIterator[bytes]:
            while (item := await items.get()) is not None:
                yield item

        items.put_nowait(b"0")
        counts = []
        async with AsyncLedgerClient(group.addresses) as log, log.append_stream(source()) as stream:
            async for receipt in stream:
                counts.append(receipt.count)
                items.put_nowait(b"%d" % len(counts) if len(counts) < 5 else None)
        assert counts == [1] * 5
        assert group.bodies() == [b"0", b"1", b"2", b"3", b"4"]
        assert asyncio.all_tasks() == {asyncio.current_task()}

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())


@LOOPS
def test_what_a_source_gives_without_a_pause_travels_together(
    group: FakeGroup, new_loop: NewLoop
) -> None:
    async def source() -> AsyncIterator[bytes]:
        for number in range(1000):
            yield b"%d" % number

    async def main() -> None:
        async with AsyncLedgerClient(group.addresses) as log:
            receipts = [receipt async for receipt in log.append_stream(source())]
        assert [receipt.count for receipt in receipts] == [256, 256, 256, 232]
        assert group.bodies() == [b"%d" % number for number in range(1000)]

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())


@LOOPS
def test_a_stream_that_is_left_leaves_its_source(group: FakeGroup, new_loop: NewLoop) -> None:
    async def main() -> None:
        is_left = asyncio.Event()

        async def source() -> AsyncIterator[bytes]:
            yield b"a"
            try:
                await asyncio.Event().wait()
            finally:
                is_left.set()

        async with AsyncLedgerClient(group.addresses) as log:
            async with log.append_stream(source()) as stream:
                assert (await anext(stream)).count == 1
            assert is_left.is_set()
            is_left.clear()
            async for _receipt in log.append_stream(source()):
                break
            await is_left.wait()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(asyncio.wait_for(main(), 20))


@LOOPS
def test_what_an_asynchronous_source_raises_loses_no_record(group: FakeGroup, new_loop: NewLoop) -> None:
    async def source() -> AsyncIterator[bytes]:
        for number in range(25):
            yield b"%d" % number
        raise OSError("the source is gone")

    async def main() -> None:
        async with AsyncLedgerClient(group.addresses) as log:
            stream = log.append_stream(source(), batch_records=10)
            assert [(await anext(stream)).count for _ in range(2)] == [10, 10]
            with pytest.raises(OSError, match="the source is gone"):
                await anext(stream)
            assert stream.progress == (20, 0, 5)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())


def test_a_batch_leaves_with_the_item_that_was_long_in_coming() -> None:
    clock = [0.0]

    def source() -> Iterator[bytes]:
        for wait_ms in (0, 1, 2, SLOW_ITEM_MS + 1, 0, SLOW_ITEM_MS, SLOW_ITEM_MS + 1, 0):
            clock[0] += wait_ms
            yield b"x"

    counts = []
    for batch in BatchGatherer(256, 1 << 20, lambda: clock[0]).all_of(source()):
        counts.append(batch.count)
        clock[0] += 1000  # whoever takes the batches is slow: the source is not
    assert counts == [4, 3, 1]
