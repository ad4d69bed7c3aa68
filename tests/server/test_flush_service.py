"""Flushes by the kernel and by the thread: either way all is on disk before it is reported, in order."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvloop

from quorumlog import LocalCluster, connect
from quorumlog.batch import EntryBatch
from quorumlog.config import StoreConfig
from quorumlog.errors import StoreFailure
from quorumlog.server.disk_thread import DiskThread
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

    def submit(self, descriptor: int, ended: Callable[[int], None]) -> bool:
        self.ends.append(ended)
        return True

    def end(self, number: int = 0) -> None:
        self.ends.pop(0)(number)


@pytest.fixture(params=["kernel", "thread"])
def by_kernel(request: pytest.FixtureRequest) -> bool:
    return bool(request.param == "kernel")


@asynccontextmanager
async def service(by_kernel: bool) -> AsyncIterator[tuple[FlushService, Callable[[], None]]]:
    """And what closes it, as the server does."""
    loop = asyncio.get_running_loop()
    kernel = KernelSync.open(loop) if by_kernel else None
    if by_kernel and kernel is None:
        pytest.skip("this system lets no process use the kernel's AIO")
    thread = DiskThread("flush", loop)

    def close() -> None:
        if kernel is not None:
            kernel.close()
        thread.close()

    try:
        yield FlushService(thread, kernel), close
    finally:
        if thread._worker.is_alive():
            close()


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
        async with service(by_kernel) as (flush, _):
            store = open_log(tmp_path / "n0")
            descriptors: list[int] = []
            for number in range(5):
                append(store, b"%d" % number)
                ended = asyncio.get_running_loop().create_future()
                task = store.begin_sync()
                assert task is not None
                descriptors.append(task.descriptor())
                flush.sync(task, ended.set_result)
                assert await asyncio.wait_for(ended, 10) is None
                store.finish_sync(task)
                assert store.durable == store.end
            assert min(descriptors) >= 0, "none of these would have gone to the kernel"
            store.close()

    uvloop.run(main())


@asynccontextmanager
async def held(*, groups: int = 1) -> AsyncIterator[tuple[HeldKernel, list[FlushService]]]:
    kernel, thread = HeldKernel(), DiskThread("flush", asyncio.get_running_loop())
    try:
        yield kernel, [FlushService(thread, kernel) for _ in range(groups)]  # type: ignore[arg-type]
    finally:
        thread.close()


def test_a_sync_goes_to_the_kernel_and_the_rest_to_the_thread_in_the_order_given() -> None:
    async def main() -> None:
        notes: list[str] = []
        all_done = asyncio.Event()
        async with held() as (kernel, (flush,)):
            flush.sync(Task("first", 5, notes), lambda _: notes.append("first is done"))
            flush.submit(
                lambda: notes.append("the durable point"), lambda _: notes.append("second is done")
            )
            flush.sync(Task("third", 5, notes), lambda _: all_done.set())
            assert notes == []
            assert len(kernel.ends) == 1
            kernel.end()
            await asyncio.wait_for(all_done.wait(), 10)
            flush.sync(Task("fourth", 5, notes), lambda _: notes.append("fourth is done"))
            assert len(kernel.ends) == 1, "the thread is idle again"
            flush.sync(Task("fifth", -1, notes), lambda _: None)
            kernel.end()
        assert [note for note in notes if not note.endswith("done")] == [
            "first by the kernel",
            "the durable point",
            "third in the thread",
            "fourth by the kernel",
            "fifth in the thread",
        ]
        assert notes.index("first is done") < notes.index("second is done")

    uvloop.run(main())


def test_a_disk_that_hangs_for_one_group_does_not_keep_another_from_its_own() -> None:
    async def main() -> None:
        notes: list[str] = []
        done = asyncio.Event()
        async with held(groups=2) as (kernel, (hung, other)):
            hung.sync(Task("hung", 5, notes), lambda _: None)
            other.submit(lambda: notes.append("in the thread"), lambda _: done.set())
            await asyncio.wait_for(done.wait(), 10)
            other.sync(Task("other", 6, notes), lambda _: notes.append("done"))
            kernel.ends.pop()(0)
            assert notes == ["in the thread", "other by the kernel", "done"]
            kernel.end()

    uvloop.run(main())


@pytest.mark.parametrize("number", [errno.EIO, 0])
def test_whatever_goes_wrong_at_the_end_of_a_sync_is_a_failure_of_the_store(number: int) -> None:
    """The member has to hear of it, and stop: it would wait for this sync for ever."""

    class Closing(Task):
        def synced(self, error_number: int) -> None:
            super().synced(error_number)
            raise OSError(errno.EIO, "the file could not be closed")

    async def main() -> None:
        outcomes: list[StoreFailure | None] = []
        async with held() as (kernel, (flush,)):
            flush.sync(Closing("only", 5, []), outcomes.append)
            kernel.end(number)
            assert isinstance(outcomes[0], StoreFailure)

    uvloop.run(main())


def test_a_signal_does_not_keep_a_server_from_waiting_for_its_syncs(tmp_path: Path) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        kernel = KernelSync.open(loop)
        if kernel is None:
            pytest.skip("this system lets no process use the kernel's AIO")
        signals: list[int] = []
        before = signal.signal(signal.SIGALRM, lambda number, _: signals.append(number))
        ended: list[int] = []
        over = threading.Event()

        def sync_behind_signals() -> None:
            while len(signals) < 3 and not over.wait(0.001):
                pass
            kernel.submit(descriptor, ended.append)

        descriptor = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
        kernel._in_flight = 1  # one that takes until several signals have come
        thread = threading.Thread(target=sync_behind_signals)
        signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
        try:
            thread.start()
            kernel._collect(least=1)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            over.set()
            signal.signal(signal.SIGALRM, before)
            thread.join()
            kernel._in_flight = 0
            kernel.close()
            os.close(descriptor)
        assert ended == [0]
        assert len(signals) >= 3

    asyncio.run(main())


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
        async with service(by_kernel=True) as (flush, _):
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
        async with service(by_kernel) as (flush, close):
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
            close()
            assert task.done
            store.finish_sync(task)
            assert store.durable == store.end
            store.close()

    uvloop.run(main())


def test_a_cluster_works_where_the_kernel_allows_no_aio(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("quorumlog.server.kernel_sync.Context", None)
    with caplog.at_level("INFO"), LocalCluster(members=3) as cluster, connect(cluster.servers) as log:
        receipts = [log.append(b"%d" % number) for number in range(20)]
        cluster.kill(cluster.leader())
        log.append(b"last")
        bodies = [entry.body for entry in log.read(receipts[0].first_index)]
    assert bodies == [b"%d" % number for number in range(20)] + [b"last"]
    assert "a thread syncs" in caplog.text
