"""Client processes: they append numbered values in every way there is, read, and keep a history.

A process has one connection to the group and several workers that share it. Each worker is a client of
its own in the history: it calls one verb after the other, and a stream has several batches under way.
"""

from __future__ import annotations

import multiprocessing
import random
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.context import SpawnProcess
from multiprocessing.synchronize import Event, Semaphore
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from nemesis.history import HistoryWriter, Operation, decode_body, encode_body, value_name
from quorumlog import LedgerClient, LedgerError, OutcomeUnknown, Refused, connect

TIMEOUT_MS = 3000
"""Of one append: short, so that a fault that lasts seconds also shows refusals."""
WORKERS = 4
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0
_VERBS = {"append": 10, "append_batch": 5, "append_stream": 1, "read": 6}
"""How often each is drawn, relative to the others."""
_MAX_BATCH = 20
_STREAM_BATCHES = 10
_READ_BACK = 2000
"""A read begins at most so far behind the newest entry that its worker knows of."""


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

    def __init__(self, folder: Path, count: int, options: ClientOptions) -> None:
        """Histories become `folder`/c0.jsonl and so on; the folder exists and is empty."""
        context = multiprocessing.get_context("spawn")
        self._stop = context.Event()
        self._ready = context.Semaphore(0)
        self.histories = [folder / f"c{number}.jsonl" for number in range(count)]
        self._processes: list[SpawnProcess] = []
        for path in self.histories:
            run_options = options._replace(seed=options.seed + len(self._processes))
            arguments = (path.stem, path, run_options, self._ready, self._stop)
            self._processes.append(context.Process(target=run_client, args=arguments, daemon=True))

    def __enter__(self) -> Self:
        for process in self._processes:
            process.start()
        deadline_s = time.monotonic() + START_TIMEOUT_S
        for _ in self._processes:
            while not self._ready.acquire(timeout=0.2):
                if not self.are_running or time.monotonic() > deadline_s:
                    self._end()
                    raise ClientFailed(f"not every client was at work within {START_TIMEOUT_S:g} s")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
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


def run_client(name: str, path: Path, options: ClientOptions, ready: Semaphore, stop: Event) -> None:
    """The body of one process."""
    # Ctrl-C goes to the whole group of processes; only the parent decides when this one ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    stopping = threading.Event()
    with HistoryWriter(path) as history, connect(options.servers, timeout_ms=TIMEOUT_MS) as log:
        greet_all(log, options.member_ids)
        ready.release()
        with ThreadPoolExecutor(WORKERS) as pool:
            workers = [
                Worker(f"{name}.{number}", log, history, options, stopping) for number in range(WORKERS)
            ]
            running = [pool.submit(worker.run) for worker in workers]
            while not stop.wait(0.2):
                orphaned = parent is not None and not parent.is_alive()
                if orphaned or any(worker.done() for worker in running):
                    break
            stopping.set()
        for worker_run in running:
            worker_run.result()


def greet_all(log: LedgerClient, member_ids: tuple[str, ...]) -> None:
    """Members know each other by the proxy's addresses and tell those to clients. A client stays with
    the address at which a member greeted it first: so it greets them all before it asks for anything."""
    greeted: set[str] = set()
    while greeted < set(member_ids):
        greeted |= {row["id"] for row in log.status() if row["reachable"]}


class Worker:
    """One sequential client."""

    def __init__(
        self,
        name: str,
        log: LedgerClient,
        history: HistoryWriter,
        options: ClientOptions,
        stopping: threading.Event,
    ) -> None:
        self._name = name
        self._log = log
        self._history = history
        self._member_ids = options.member_ids
        self._pause_s = WORKERS / options.rate if options.rate else 0.0
        self._stopping = stopping
        self._random = random.Random(f"{options.seed}/{name}")
        self._next_value = 0
        self._newest_index = -1
        """Highest index acknowledged to this worker."""

    def run(self) -> None:
        """Until told to stop."""
        verbs = list(_VERBS)
        weights = list(_VERBS.values())
        while not self._stopping.is_set():
            (verb,) = self._random.choices(verbs, weights)
            if verb == "read":
                self._read()
            elif verb == "append_stream":
                self._append_stream()
            else:
                self._append(verb)
            if self._pause_s:
                self._stopping.wait(self._random.expovariate(1 / self._pause_s))

    def _append(self, verb: str) -> None:
        count = 1 if verb == "append" else self._random.randint(2, _MAX_BATCH)
        value, bodies = self._take(count)
        call_ns = time.monotonic_ns()
        index = -1
        ok: bool | None = True
        try:
            if verb == "append":
                index = self._log.append(bodies[0]).first_index
            else:
                index = self._log.append_batch(bodies).first_index
        except OutcomeUnknown:
            ok = None
        except Refused:
            ok = False
        self._appended(verb, value, count, call_ns, ok, index)

    def _append_stream(self) -> None:
        sent: deque[tuple[int, int, int]] = deque()
        """(first value, count, call) of each batch that has no outcome yet."""

        def batches() -> Iterator[list[bytes]]:
            for _ in range(_STREAM_BATCHES):
                count = self._random.randint(1, _MAX_BATCH)
                value, bodies = self._take(count)
                sent.append((value, count, time.monotonic_ns()))
                yield bodies

        stream = self._log.append_stream(batches())
        try:
            for receipt in stream:
                self._appended("append_stream", *sent.popleft(), True, receipt.first_index)
        except LedgerError:
            # Which batch became what is known only if no record is committed or unknown.
            all_refused = stream.progress.unwritten_records == sum(count for _, count, _ in sent)
            for batch in sent:
                self._appended("append_stream", *batch, False if all_refused else None, -1)

    def _read(self) -> None:
        """Of a range that is known to be committed: every entry of it must come."""
        if self._newest_index < 0:
            return
        first = max(0, self._newest_index - self._random.randrange(_READ_BACK))
        stop = min(first + self._random.randint(1, 2 * _MAX_BATCH), self._newest_index + 1)
        # Rarely from one by name: if that one is down, its reader waits out the whole time-out.
        named = self._random.choice(self._member_ids)
        (from_member,) = self._random.choices([None, "any", named], [5, 4, 1])
        call_ns = time.monotonic_ns()
        entries: list[tuple[int, str]] = []
        ok = True
        try:
            found = self._log.read(first, stop, from_member=from_member)
            entries = [(entry.index, decode_body(entry.body)) for entry in found]
        except LedgerError:
            ok = False
        self._history.record(
            Operation(
                self._name,
                "read",
                call_ns,
                time.monotonic_ns(),
                ok,
                count=stop - first,
                index=first,
                entries=entries,
            )
        )

    def _take(self, count: int) -> tuple[int, list[bytes]]:
        """(number of the first, bodies): mostly short, some of kilobytes."""
        value = self._next_value
        self._next_value += count
        padding = int(self._random.paretovariate(1.0) * 20)
        padding_bytes = min(padding, 50_000 // count)
        return value, [
            encode_body(value_name(self._name, number), padding_bytes)
            for number in range(value, value + count)
        ]

    def _appended(
        self, verb: str, value: int, count: int, call_ns: int, ok: bool | None, index: int
    ) -> None:
        return_ns = time.monotonic_ns()
        self._history.record(Operation(self._name, verb, call_ns, return_ns, ok, value, count, index))
        if ok:
            self._newest_index = max(self._newest_index, index + count - 1)
