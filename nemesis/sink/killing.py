"""SIGKILL at random moments: the driver (Python and JVM), a Python worker, a leader, a follower."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from random import Random

from harness.member_processes import MemberProcesses
from nemesis.sink.copies import COPY, Copies
from quorumlog.client import leader_of
from quorumlog.errors import LedgerError

KINDS = ("driver", "worker", "worker", "leader", "leader of staging", "follower")
ROWS_A_BATCH = 500
BATCHES_A_KILL = 3
"""At most, between two."""
_POLL_S = 0.05


class KillsFailed(AssertionError):
    """The copy is not what it must be."""


class Driver:
    """`nemesis.sink.copying` in a process group of its own."""

    def __init__(
        self, servers: str, checkpoint: Path, log: Path, *, dies_before_replay: bool = False
    ) -> None:
        self._command = [
            *(sys.executable, "-m", "nemesis.sink.copying", "--servers", servers),
            *("--checkpoint", str(checkpoint), "--rows", str(ROWS_A_BATCH)),
            *(["--dies-before-replay"] if dies_before_replay else []),
        ]
        self._log = log
        self.starts = 0
        self._process: subprocess.Popen[bytes] | None = None

    def ensure_running(self) -> None:
        if self._process is None or self._process.poll() is not None:
            with self._log.open("ab") as log:
                self._process = subprocess.Popen(
                    self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0
                )
            self.starts += 1

    def wait(self, timeout_s: float) -> int:
        """Its exit status; what it has left behind is killed. Raises subprocess.TimeoutExpired."""
        assert self._process is not None
        try:
            return self._process.wait(timeout_s)
        finally:
            self.kill()

    @property
    def has_ended(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        os.killpg(self._process.pid, number)

    def kill(self) -> None:
        """All of it: the JVM lives as long as the query, whoever has started it."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def workers(self) -> list[int]:
        """Python processes below the JVM."""
        assert self._process is not None
        found = descendants(self._process.pid)
        return [pid for pid in found if "pyspark" in command_of(pid) and "java" not in command_of(pid)]


def descendants(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, task.read_text().split()):
                found += [child, *descendants(child)]
    return found


def command_of(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def run_kills(folder: Path, *, kills: int, seed: int, patience_s: float = 900.0) -> str:
    """Returns what was done. Raises KillsFailed."""
    random = Random(seed)
    with MemberProcesses(folder / "members", groups=("source", "copy"), staging=True) as members:
        copies = Copies(members.servers)
        copies.append((kills * BATCHES_A_KILL + 10) * ROWS_A_BATCH)
        driver = Driver(members.servers, folder / "checkpoint", folder / "driver.log")
        done: Counter[str] = Counter()
        try:
            while sum(done.values()) < kills:
                wanted = random.randrange(1, BATCHES_A_KILL) * ROWS_A_BATCH
                has_moved = _wait_for(driver, copies, _copied(copies) + wanted, patience_s)
                if not has_moved:
                    raise KillsFailed(f"nothing more is copied since {patience_s:g} s: see {folder}")
                time.sleep(random.uniform(0.0, 0.3))  # so that it hits any moment of a micro-batch
                kind = random.choice(KINDS)
                if _kill(kind, driver, members, copies, random):
                    done[kind] += 1
                    print(f"{sum(done.values())} of {kills}: {kind}, {_copied(copies)} rows", flush=True)
            if not _wait_for(driver, copies, copies.rows, patience_s + copies.rows / 500):
                raise KillsFailed(f"not all is copied: see {folder}")
        finally:
            driver.kill()
        problem = copies.differences()
        if problem:
            raise KillsFailed(problem)
    kinds = ", ".join(f"{count} x {kind}" for kind, count in sorted(done.items()))
    return (
        f"{sum(done.values())} kills ({kinds}), {driver.starts} drivers: {copies.rows} rows are in the"
        " copy, each once, in order"
    )


def _kill(kind: str, driver: Driver, members: MemberProcesses, copies: Copies, random: Random) -> bool:
    if kind == "driver":
        driver.kill()
        return True
    if kind == "worker":
        workers = driver.workers()
        if workers:
            with suppress(ProcessLookupError):
                os.kill(random.choice(workers), signal.SIGKILL)
                return True
        return False
    group = COPY if kind == "leader" else f"{COPY}.staging"
    with copies.client(group) as log:
        leader = leader_of(log.status())
    if leader is None:
        return False
    others = [each for each in members.members if each.member_id != leader.id]
    victim = random.choice(others) if kind == "follower" else members[leader.id]
    victim.kill()
    victim.start()
    return True


def _copied(copies: Copies) -> int:
    while True:
        with suppress(LedgerError):
            return copies.copied()


def _wait_for(driver: Driver, copies: Copies, rows: int, patience_s: float) -> bool:
    """A query that has failed is started again, as a cluster manager does it."""
    deadline = time.monotonic() + patience_s
    while _copied(copies) < min(rows, copies.rows):
        driver.ensure_running()
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True
