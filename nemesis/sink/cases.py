"""What befalls a query and its checkpoint, by name, with one Spark session for all."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from harness.member_processes import MemberProcesses
from nemesis.sink.copies import COPY, SOURCE, Copies
from nemesis.sink.copying import copying
from nemesis.sink.killing import ROWS_A_BATCH, Driver, KillsFailed
from nemesis.sink.speculating import run_speculating

ROWS = 400
"""A micro-batch."""
RACED_BATCHES = 20
TIMEOUT_S = 600.0


class Case:
    """A cluster, a checkpoint, and a query that has copied four micro-batches."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.spark = spark
        self.folder = folder
        self.checkpoint = folder / "checkpoint"
        self.members = MemberProcesses(folder / "members", groups=(SOURCE, COPY), staging=True)

    def __enter__(self) -> Case:
        self.members.__enter__()
        self.copies = Copies(self.members.servers)
        self.copies.append(4 * ROWS - 1)  # and a no-op in front of them
        return self

    def __exit__(self, *reason: object) -> None:
        self.members.destroy()

    def run(self, **options: str | int) -> None:
        query = copying(
            self.spark,
            self.members.servers,
            str(self.checkpoint),
            rows=ROWS,
            available_now=True,
            **options,  # type: ignore[arg-type]
        )
        if not query.awaitTermination(int(TIMEOUT_S)):
            query.stop()
            raise KillsFailed(f"the query did not end within {TIMEOUT_S:g} s")

    def refused(self, words: str, **options: str) -> None:
        """The query ends with this sentence, and the copy stays as it is."""
        before = self.copies.copied()
        try:
            self.run(**options)
        except StreamingQueryException as error:
            if words not in str(error):
                raise
        else:
            raise KillsFailed(f"a query was let in that should have been told: {words}")
        if self.copies.copied() != before:
            raise KillsFailed(f"rows were appended by a query that was told: {words}")

    def delete_commits(self, count: int) -> None:
        commits = sorted(
            (path for path in (self.checkpoint / "commits").iterdir() if path.name.isdigit()),
            key=lambda path: int(path.name),
        )
        for path in commits[-count:]:
            path.unlink()
            path.with_name(f".{path.name}.crc").unlink(missing_ok=True)

    def check(self) -> None:
        problem = self.copies.differences()
        if problem:
            raise KillsFailed(problem)


def newest_commit_deleted(case: Case) -> None:
    case.run()
    case.delete_commits(1)
    case.copies.append(ROWS)
    case.run()


def two_commits_deleted(case: Case) -> None:
    case.run()
    case.delete_commits(2)
    case.copies.append(ROWS)
    case.run()


def other_partitioning(case: Case) -> None:
    case.run(partitions=2)
    case.delete_commits(1)
    case.copies.append(ROWS)
    case.run(partitions=5)


def older_checkpoint(case: Case) -> None:
    case.run()
    shutil.copytree(case.checkpoint, case.folder / "older")
    case.copies.append(2 * ROWS)
    case.run()
    newest = case.checkpoint.rename(case.folder / "newest")
    (case.folder / "older").rename(case.checkpoint)
    case.refused("An older checkpoint was restored")
    shutil.rmtree(case.checkpoint)
    newest.rename(case.checkpoint)
    case.copies.append(ROWS)
    case.run()


def one_batch_behind(case: Case) -> None:
    """With more to read than there was, so that the batch has other rows."""
    case.run()
    shutil.copytree(case.checkpoint, case.folder / "older")
    case.copies.append(ROWS // 2)
    case.run()
    case.copies.append(ROWS)
    newest = case.checkpoint.rename(case.folder / "newest")
    (case.folder / "older").rename(case.checkpoint)
    case.refused("batchDiffers=keep")
    shutil.rmtree(case.checkpoint)
    newest.rename(case.checkpoint)
    case.run()


def deleted_checkpoint(case: Case) -> None:
    case.run()
    newest = case.checkpoint.rename(case.folder / "newest")
    case.refused("resetProducer=")
    shutil.rmtree(case.checkpoint)
    newest.rename(case.checkpoint)
    case.run()


def between_manifest_and_replay(case: Case) -> None:
    """The driver is killed there; the next run of the query finishes what stands."""
    case.run()
    case.copies.append(ROWS)
    driver = Driver(
        case.members.servers, case.checkpoint, case.folder / "killed.log", dies_before_replay=True
    )
    driver.ensure_running()
    if driver.wait(TIMEOUT_S) != -signal.SIGKILL:
        raise KillsFailed(f"the driver did not die in front of its replay: see {case.folder}")
    if case.copies.copied() == case.copies.rows:
        raise KillsFailed("there was nothing left to replay")
    case.run()


def two_drivers(case: Case) -> None:
    """One that stands still is given up; once another goes on in its place it wakes, and both race."""
    servers, behind = case.members.servers, case.folder / "checkpoint-2"
    case.copies.append(RACED_BATCHES * ROWS_A_BATCH)
    first = Driver(servers, case.checkpoint, case.folder / "first.log")
    second = Driver(servers, behind, case.folder / "second.log")
    try:
        first.ensure_running()
        _until(lambda: case.copies.copied() >= 2 * ROWS_A_BATCH)
        first.pause()
        shutil.copytree(case.checkpoint, behind)
        copied, done = case.copies.copied(), _commits(case.checkpoint)
        second.ensure_running()
        _until(lambda: case.copies.copied() >= copied + ROWS_A_BATCH)
        first.go_on()

        def is_over() -> bool:
            second.ensure_running()
            has_woken = first.has_ended or _commits(case.checkpoint) > done
            return has_woken and case.copies.copied() == case.copies.rows

        _until(is_over)
    finally:
        first.kill()
        second.kill()


def _commits(checkpoint: Path) -> int:
    return sum(path.name.isdigit() for path in (checkpoint / "commits").iterdir())


def speculation(case: Case) -> None:
    run_speculating(case.members.servers, case.folder, case.copies)


def _until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not is_so():
        if time.monotonic() > deadline:
            raise KillsFailed(f"not within {TIMEOUT_S:g} s")
        time.sleep(0.05)


CASES: dict[str, Callable[[Case], None]] = {
    each.__name__.replace("_", "-"): each
    for each in (
        newest_commit_deleted,
        two_commits_deleted,
        other_partitioning,
        older_checkpoint,
        one_batch_behind,
        deleted_checkpoint,
        between_manifest_and_replay,
        two_drivers,
        speculation,
    )
}
