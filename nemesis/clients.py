"""Client processes: they append numbered values in every way there is, read, and keep a history.

A process uses the blocking client or the one for asyncio. Half of its workers share one connection to
the group, the others are producers with a client each; all are clients of their own in the history.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
import sys
import time
from multiprocessing.context import SpawnProcess
from multiprocessing.synchronize import Event, Semaphore
from pathlib import Path
from typing import NamedTuple, Self

from harness.encryption import encrypted_clients
from nemesis.history import HistoryWriter
from nemesis.workers import work_in_tasks, work_in_threads
from nemesis.workload import Workload

WORKERS = 4
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0


class ClientFailed(RuntimeError):
    """A client process ended with an error, or did not end when told to."""


class ClientOptions(NamedTuple):
    servers: str
    member_ids: tuple[str, ...]
    rate: float
    """Calls of one process per second; 0: as many as it can."""
    seed: int


class ClientProcesses:
    """`with ClientProcesses(...)`: they are connected and at work inside, and have ended behind it."""

    def __init__(
        self, folder: Path, count: int, options: ClientOptions, earlier: Path | None = None
    ) -> None:
        """Histories become `folder`/c0.jsonl and so on; the folder exists and is empty. `earlier`: the
        first client runs what is there, in `src` and beside it."""
        context = multiprocessing.get_context("spawn")
        self._stop = context.Event()
        self._ready = context.Semaphore(0)
        self.histories = [folder / f"c{number}.jsonl" for number in range(count)]
        self._earlier = [] if earlier is None else [str(earlier), str(earlier / "src")]
        self._processes: list[SpawnProcess] = []
        for number, path in enumerate(self.histories):
            run_options = options._replace(seed=options.seed + number)
            arguments = (number, path, run_options, self._ready, self._stop)
            self._processes.append(context.Process(target=run_client, args=arguments, daemon=True))

    def __enter__(self) -> Self:
        first, *others = self._processes
        # A spawned process begins with the path that its parent has at that moment.
        sys.path[:0] = self._earlier
        try:
            first.start()
        finally:
            del sys.path[: len(self._earlier)]
        for process in others:
            process.start()
        deadline_s = time.monotonic() + START_TIMEOUT_S
        for _ in self._processes:
            while not self._ready.acquire(timeout=0.2):
                if not self.are_running or time.monotonic() > deadline_s:
                    self._end()
                    raise ClientFailed(f"not every client was at work within {START_TIMEOUT_S:g} s")
        return self

    def __exit__(self, *reason: object) -> None:
        try:
            self.stop()
        finally:
            self._end()

    def _end(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()

    @property
    def are_running(self) -> bool:
        return all(process.is_alive() for process in self._processes)

    def stop(self) -> None:
        """Let every worker finish its call. Raises ClientFailed if one did not end well."""
        self._stop.set()
        for process in self._processes:
            process.join(STOP_TIMEOUT_S)
            if process.exitcode != 0:
                raise ClientFailed(f"client {process.name} ended with {process.exitcode}")


def run_client(number: int, path: Path, options: ClientOptions, ready: Semaphore, stop: Event) -> None:
    """The body of one process. Every other one uses asyncio."""
    # Ctrl-C goes to the whole group of processes, and so does the SIGTERM of timeout(1); only the parent
    # decides when this one ends. Otherwise a run that was interrupted looks like a client that failed.
    for number_of_signal in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number_of_signal, signal.SIG_IGN)
    parent = multiprocessing.parent_process()

    def is_over() -> bool:
        return stop.is_set() or (parent is not None and not parent.is_alive())

    pause_s = WORKERS / options.rate if options.rate else 0.0
    with HistoryWriter(path) as history:
        workloads = [
            Workload(
                f"{path.stem}.{worker}",
                history,
                options.member_ids,
                pause_s,
                options.seed,
                in_session=worker % 2 == 1,
            )
            for worker in range(WORKERS)
        ]
        work = options.servers, options.member_ids, workloads, ready, is_over
        with encrypted_clients():
            if number % 2:
                asyncio.run(work_in_tasks(*work))
            else:
                work_in_threads(*work)
