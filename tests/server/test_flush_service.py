"""Flushes by the kernel and by the thread: either way all is on disk before it is reported, in order."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvloop

from quorumlog.batch import EntryBatch
from quorumlog.config import StoreConfig
from quorumlog.errors import StoreFailure
from quorumlog.server.flush_service import FlushService
from quorumlog.server.kernel_sync import KernelSync
from quorumlog.store.disk import OsDisk
from quorumlog.store.ledger_store import LedgerStore
from quorumlog.store.member_directory import open_member_directory

SMALL = StoreConfig(segment_bytes=1 << 20, index_segment_bytes=1 << 14, reserve_step_bytes=1 << 20)


class Task:
    """A flush that notes what becomes of it; `descriptor` -1: only the thread can do it."""

    def __init__(self, name: str, descriptor: int, notes: list[str]) -> None:
        self.name = name
        self.end = None
        self.done = False
        self._descriptor = descriptor
        self._notes = notes

    def run(self) -> None:
        self._notes.append(f"{self.name} in the thread")
        self.done = True

    def descriptor(self) -> int:
        return self._descriptor

    def synced(self, error_number: int) -> None:
        if error_number:
            raise StoreFailure(f"errno {error_number}")
        self._notes.append(f"{self.name} by the kernel")
        self.done = True


class HeldKernel:
    """A kernel whose syncs end when the test says so, and as it says."""

    def __init__(self) -> None:
        self.ends: list[Callable[[int], None]] = []

    @property
    def in_flight(self) -> int:
        return len(self.ends)

    def submit(self, descriptor: int, ended: Callable[[int], None]) -> bool:
        self.ends.append(ended)
        return True

    def end(self, number: int = 0) -> None:
        self.ends.pop(0)(number)

    def drain(self) -> None:
        while self.ends:
            self.end()


@pytest.fixture(params=["kernel", "thread"])
def by_kernel(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "kernel")


@asynccontextmanager
async def service(by_kernel: bool) -> AsyncIterator[FlushService]:
    loop = asyncio.get_running_loop()
    kernel = KernelSync.open(loop) if by_kernel else None
    if by_kernel and kernel is None:
        pytest.skip("this system lets no process use the kernel's AIO")
    service = FlushService(loop, kernel)
    try:
        yield service
    finally:
        service.close()


def open_log(path: Path) -> LedgerStore:
    return open_member_directory(
        OsDisk(), str(path), group="default", member_id="n0", config=SMALL, group_size=1
    ).store


def append(store: LedgerStore, body: bytes) -> None:
    batch = EntryBatch.from_bodies([body])
    batch.stamp(store.end.index + 1, 0, store.plan(batch.sizes), store.end.chain)
    store.append(batch)


def test_flush_after_flush_the_durable_point_follows_the_log(tmp_path: Path, by_kernel: bool) -> None:
    async def main() -> None:
        async with service(by_kernel) as flush:
            store = open_log(tmp_path / "n0")
            for number in range(5):
                append(store, b"%d" % number)
                ended = asyncio.get_running_loop().create_future()
                task = store.begin_sync()
                assert task is not None
                flush.sync(task, ended.set_result)
                assert await asyncio.wait_for(ended, 10) is None
                store.finish_sync(task)
                assert store.durable == store.end
            store.close()

    uvloop.run(main())


def test_a_sync_goes_to_the_kernel_and_the_rest_to_the_thread_in_the_order_given() -> None:
    async def main() -> None:
        kernel, notes = HeldKernel(), list[str]()
        all_done = asyncio.Event()
        flush = FlushService(asyncio.get_running_loop(), kernel)  # type: ignore[arg-type]
        flush.sync(Task("first", 5, notes), lambda outcome: notes.append("first is done"))
        flush.submit(lambda: notes.append("the durable point"), lambda _: notes.append("second is done"))
        flush.sync(Task("third", 5, notes), lambda outcome: all_done.set())
        assert notes == []
        assert kernel.in_flight == 1
        kernel.end()
        await asyncio.wait_for(all_done.wait(), 10)
        flush.sync(Task("fourth", 5, notes), lambda outcome: notes.append("fourth is done"))
        assert kernel.in_flight == 1, "the thread is idle again"
        flush.sync(Task("fifth", -1, notes), lambda outcome: None)
        flush.close()
        assert [note for note in notes if not note.endswith("done")] == [
            "first by the kernel",
            "the durable point",
            "third in the thread",
            "fourth by the kernel",
            "fifth in the thread",
        ]
        assert notes.index("first is done") < notes.index("second is done")

    uvloop.run(main())


def test_an_error_that_the_kernel_reports_is_a_failure_of_the_store() -> None:
    async def main() -> None:
        kernel, outcomes = HeldKernel(), list[StoreFailure | None]()
        flush = FlushService(asyncio.get_running_loop(), kernel)  # type: ignore[arg-type]
        task = Task("only", 5, [])
        flush.sync(task, outcomes.append)
        kernel.end(errno.EIO)
        assert isinstance(outcomes[0], StoreFailure)
        assert not task.done
        flush.close()

    uvloop.run(main())


def test_a_failed_sync_by_the_kernel_is_never_taken_for_a_good_one_later(tmp_path: Path) -> None:
    """The kernel reports a failed write-back once per open file: who asks again is told all is well."""
    store = open_log(tmp_path / "n0")
    append(store, b"first, which the thread flushes")
    task = store.begin_sync()
    assert task is not None
    task.run()
    store.finish_sync(task)
    append(store, b"second")
    task = store.begin_sync()
    assert task is not None
    assert task.descriptor() >= 0
    before = store.durable
    with pytest.raises(StoreFailure, match="cannot be synced"):
        task.synced(errno.EIO)
    assert not task.done
    assert store.durable == before
    os.fdatasync(task.descriptor())
    with pytest.raises(StoreFailure, match="cannot be synced"):
        task._files[0].sync()  # type: ignore[attr-defined]
    store.close()


def test_what_the_kernel_refuses_goes_to_the_thread(tmp_path: Path) -> None:
    async def main() -> None:
        async with service(by_kernel=True) as flush:
            notes: list[str] = []
            reading, writing = os.pipe()
            ended = asyncio.get_running_loop().create_future()
            flush.sync(Task("a pipe", writing, notes), ended.set_result)
            assert await asyncio.wait_for(ended, 10) is None
            assert notes == ["a pipe in the thread"]
            os.close(reading)
            os.close(writing)

    uvloop.run(main())


def test_closing_waits_for_what_is_on_its_way(tmp_path: Path, by_kernel: bool) -> None:
    async def main() -> None:
        async with service(by_kernel) as flush:
            store = open_log(tmp_path / "n0")
            for number in range(2):
                append(store, b"%d" % number)
                task = store.begin_sync()
                assert task is not None
                if number == 0:
                    task.run()
                    store.finish_sync(task)
            assert task is not None
            flush.sync(task, lambda outcome: None)
            flush.close()
            assert task.done
            store.finish_sync(task)
            assert store.durable == store.end
            store.close()

    uvloop.run(main())
