"""What is broken, and what has to be true in the end."""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq

from harness.member_processes import MemberProcesses
from harness.object_store import Fault, ObjectStore, Rule, no_fault
from nemesis.pipelines.jobs import Job
from nemesis.pipelines.writers import COPY, GROUP, KEYS, TIMEOUT_MS, Writer, place_of
from quorumlog.arrow import record_batch_of
from quorumlog.client import LedgerClient, connect, leader_of
from quorumlog.errors import LedgerError
from quorumlog.pipelines.archive import ATTEMPTS, PARTS, Archive
from quorumlog.pipelines.archive_folders import folder_at

HOLD = "kept"
SEGMENT_BYTES = 256 << 10
RETENTION_BYTES = 1 << 20
FAULTS = ("kill leader", "kill follower", "stop leader", "stop follower", "kill driver", "kill driver")
SETTLE_TIMEOUT_S = 120.0
_POLL_S = 0.1


class Failed(AssertionError):
    """A promise was broken; the message says which."""


class Options(NamedTuple):
    folder: Path
    minutes: float
    seed: int
    writers: int = 2
    spark: str = ""
    """Master; empty: threads of each driver."""
    objects: bool = False
    """The archive lies in an object store, on the way to which requests are cut off and repeated."""


def run(options: Options, say: Callable[[str], None]) -> None:
    """Raises Failed."""
    rng = random.Random(options.seed)
    stop_jobs, stop_writers = threading.Event(), threading.Event()
    with ExitStack() as stack:
        target = str(options.folder / "archive")
        if options.objects:
            logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line a request
            store = stack.enter_context(ObjectStore("lake"))
            os.environ.update(store.environment)
            target, store.rule = "s3://lake/orders", _sometimes(rng)
        members = stack.enter_context(
            MemberProcesses(
                options.folder / "members",
                groups=(GROUP, COPY),
                staging=True,
                segment_bytes=SEGMENT_BYTES,
                index_segment_bytes=64 << 10,
                retention="archived",
                retention_bytes=RETENTION_BYTES,
            )
        )
        writers = [Writer(members.servers, number, stop_writers) for number in range(options.writers)]
        file = options.folder / "latest.parquet"
        jobs = _jobs(options, members.servers, target, file, stop_jobs)
        threads: tuple[Writer | Job, ...] = (*writers, *jobs)
        for thread in threads:
            thread.start()
        try:
            done = _break(options, rng, members, jobs, say)
        except BaseException:
            stop_jobs.set()
            for job in jobs:
                job.kill()
            raise
        stop_jobs.set()
        stop_writers.set()
        for thread in threads:
            thread.join()
        if options.objects:
            store.rule = no_fault
        say(f"faults: {_told(done)}")
        for job in jobs:
            say(f"{job.name}: {_told(job.outcomes)}")
        if problems := [problem for thread in threads for problem in thread.problems]:
            raise Failed("\n".join(problems))
        _settle(members.servers)
        for job in jobs:
            status, told, said = job.once()
            if status:
                raise Failed(f"{job.name} at the end: {told}{said.decode()}")
        say(_checked(options, members.servers, target, file, [each.acknowledged for each in writers]))


def _jobs(
    options: Options,
    servers: str,
    target: str,
    file: Path,
    stop: threading.Event,
) -> list[Job]:
    """Two archive into one place. In the end they are run once more in this order."""
    source = ("--servers", servers, "--group", GROUP)
    spark = ("--spark", options.spark) if options.spark else ()
    archive = ("archive", target, *source, "--hold", HOLD, "--part-mib", "1", *spark)
    kept = ("--archive", target)
    into = ("--to-servers", servers, "--to-group", COPY, "--id", "again")
    commands = {
        "archive": archive,
        "archive too": archive,
        "audit": ("audit", *source, *kept, "--json", *spark),
        "compact": ("compact", str(file), *kept, "--key", "json:id", *spark),
        "replay": ("replay", *kept, *into, "--again", *spark),
    }
    return [
        Job(name, command, options.folder, stop, target if name == "audit" else "")
        for name, command in commands.items()
    ]


def _break(
    options: Options,
    rng: random.Random,
    members: MemberProcesses,
    jobs: list[Job],
    say: Callable[[str], None],
) -> Counter[str]:
    """All members run when it returns."""
    done: Counter[str] = Counter()
    end = time.monotonic() + 60 * options.minutes
    while time.monotonic() < end:
        time.sleep(rng.uniform(0.5, 5.0))
        fault = rng.choice(FAULTS)
        if fault == "kill driver":
            done[fault] += rng.choice(jobs).kill()
            continue
        victim = _member(members, rng, leads=fault.endswith("leader"))
        if victim is None:
            continue
        if fault.startswith("kill"):
            members[victim].kill()
            time.sleep(rng.uniform(0.0, 2.0))
            members[victim].start()
        else:
            members[victim].pause()
            time.sleep(rng.uniform(0.5, 5.0))
            members[victim].resume()
        done[fault] += 1
        say(f"{fault}: {victim}")
    return done


def _member(members: MemberProcesses, rng: random.Random, *, leads: bool) -> str | None:
    with suppress(LedgerError), _client(members.servers) as log:
        leader = leader_of(log.status(timeout_ms=2_000))
        if leader is not None and leads:
            return leader.id
        others = [each.member_id for each in members.members if leader and each.member_id != leader.id]
        return rng.choice(others) if others else None
    return None


def _settle(servers: str) -> None:
    """Until all members have the same, so that an audit finds them so."""
    deadline = time.monotonic() + SETTLE_TIMEOUT_S
    while True:
        with _client(servers) as log:
            rows = log.status(timeout_ms=2_000)
        ends = {(row.reachable, row.ledger_end_index, row.committed_index) for row in rows}
        if len(ends) == 1 and all(row.reachable for row in rows):
            return
        if time.monotonic() > deadline:
            raise Failed(f"the members are not equal: {ends}")
        time.sleep(_POLL_S)


def _checked(options: Options, servers: str, target: str, file: Path, acknowledged: list[int]) -> str:
    """What was found. Raises Failed."""
    kept = Archive.open(target)
    stop = kept.stop_index
    archived = [place_of(body) for body in _bodies_of(kept)]
    with _client(servers) as log:
        leader = leader_of(log.status())
        begin = leader.ledger_begin_index if leader is not None else -1
        behind = [place_of(bytes(entry.body)) for entry in log.read(stop)]
    for writer, rows in enumerate(acknowledged):
        numbers = [number for each, number in (*archived, *behind) if each == writer]
        if numbers != [*range(rows)]:
            raise Failed(
                f"of writer {writer} {rows} rows were acknowledged, and {len(numbers)} stand,"
                f" {len(set(numbers))} of them different"
            )
    folder = folder_at(target)
    left = set(folder.sizes(ATTEMPTS)) | (
        set(folder.sizes(PARTS)) - {p.file for p in kept.manifest.parts}
    )
    if left or kept.manifest.moving or Path(f"{file}.attempts").exists():
        raise Failed(f"left behind: {left or kept.manifest.moving or 'attempts of compact'}")
    with _client(servers, COPY) as log:
        copied = [place_of(bytes(entry.body)) for entry in log.read(0)]
    if copied != archived:
        raise Failed(f"{len(archived)} rows are archived, and the copy has {len(copied)}, or others")
    newest = {(writer, number % KEYS): number for writer, number in archived}
    latest = [place_of(body) for body in pq.read_table(file).column("body").to_pylist()]
    if {(writer, number % KEYS): number for writer, number in latest} != newest or len(latest) != len(
        newest
    ):
        raise Failed("the compaction has not the newest row of each key")
    if begin <= 0 and options.minutes >= 1:
        raise Failed("no segment was deleted, so retention was not tried; take more --minutes")
    return (
        f"{sum(acknowledged)} rows were acknowledged: {len(archived)} are in the archive,"
        f" {len(behind)} behind it in the log, which begins at {begin} of {stop}; each once, in order."
        f" The copy has the archive's, the compaction {len(latest)} keys; one log by audit"
    )


def _bodies_of(kept: Archive) -> Iterator[bytes]:
    for batch in kept.batches(kept.begin_index, kept.stop_index):
        yield from record_batch_of(batch).column("body").to_pylist()


def _sometimes(rng: random.Random) -> Rule:
    faults: tuple[Fault, ...] = ("cut", "repeat", "refuse")

    def rule(method: str, path: str) -> Fault:
        return rng.choice(faults) if method not in ("GET", "HEAD") and rng.random() < 0.1 else "pass"

    return rule


def _client(servers: str, group: str = GROUP) -> LedgerClient:
    return connect(servers, group=group, timeout_ms=TIMEOUT_MS)


def _told(counted: Counter[str]) -> str:
    return ", ".join(f"{count} x {name}" for name, count in counted.most_common()) or "none"
