"""The main job from its first process to its last comparison, in the order in which it happens."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path

import uvloop
from rich.progress import Progress, TaskID

from demo import flights, spark_job
from demo.chart import draw
from demo.producing import Order, ProducerKill, ProducerProcess
from demo.report import Report
from demo.story import tell
from harness.directories import compare_directories, stop_followers_first
from harness.faults import Failover, Watch, kill_leader, stop_leader
from harness.member_processes import MemberProcesses
from quorumlog import connect_async, leader_of

SEGMENT_BYTES = 64 << 20
"""The whole log is about 120 MB: it crosses a segment's end, and the directories stay small."""
STOP_SECONDS = 5.0
CHART_NAME = "throughput.png"
MEMBERS_NAME = "members"
RECORDS_NAME = "records.jsonl"


@dataclass(frozen=True, slots=True)
class Options:
    folder: Path
    rows: int | None = None
    """None: all."""
    batch_records: int = 128
    in_flight: int = 4
    with_spark: bool = True


def run(options: Options, progress: Progress) -> Report:
    """The whole job. Whatever ends it, no process is left."""
    step = progress.add_task("reading the flights", total=None)
    frame = flights.load_flights(options.rows)
    records = flights.encode_records(frame)
    _done(progress, step, f"{len(records):,} flights as JSON, {sum(map(len, records)):,} bytes")

    report = Report(len(records), options.batch_records)
    # `staging`: what a Spark query writes exactly once goes through it.
    members_at = options.folder / MEMBERS_NAME
    groups = (spark_job.FLIGHTS, spark_job.CARRIERS)
    with MemberProcesses(
        members_at, groups=groups, staging=True, segment_bytes=SEGMENT_BYTES
    ) as members:
        uvloop.run(_produce(options, members, records, report, progress))
        if options.with_spark:
            step = progress.add_task("Spark", total=None)
            report.contents = spark_job.run(
                members,
                frame,
                options.folder,
                lambda stage: progress.update(step, description=f"Spark: {stage}"),
            )
            _done(progress, step, f"Spark has read {report.contents.records:,} records and compared")
        step = progress.add_task("stopping the members", total=None)
        stop_followers_first(members, uvloop.run(_leader_once_equal(members)))
        _done(progress, step, "every member has stopped with status 0")
        step = progress.add_task("verifying the data directories", total=None)
        directories = [path / spark_job.FLIGHTS for path in members.data_dirs]
        report.directories = compare_directories(directories)
        _done(progress, step, f"verified: {report.directories.detail}")
    return report


async def _leader_once_equal(members: MemberProcesses) -> str:
    async with connect_async(members.servers) as watching:
        leader = leader_of(await Watch(watching, members).all_equal())
    assert leader is not None
    return leader.id


async def _produce(
    options: Options,
    members: MemberProcesses,
    records: list[bytes],
    report: Report,
    progress: Progress,
) -> None:
    """Write everything, with all three faults on the way."""
    step = progress.add_task("starting three members", total=None)
    # The watch has connections of its own: a look at the members must not wait behind batches.
    async with connect_async(members.servers) as watching:
        watch = Watch(watching, members)
        leader = await watch.leader()
        _done(progress, step, f"three members run, {leader.id} leads in term {leader.term}")

        order = Order(
            members.servers,
            str(options.folder / RECORDS_NAME),
            options.batch_records,
            options.in_flight,
            may_send_rows=2 * report.rows // 3,
        )
        producer = ProducerProcess(options.folder, records, order)
        bar = progress.add_task("rows acknowledged", total=report.rows)
        began_s = time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            faults = tasks.create_task(_break_things(report.rows, members, watch, producer, progress))
            showing = tasks.create_task(_show(producer, progress, bar))
            await producer.run()
            report.seconds_producing = time.perf_counter() - began_s
            showing.cancel()
        progress.update(bar, completed=producer.acknowledged_rows)
        report.failovers, report.producer_kill = faults.result()
        report.members = await watch.all_equal()
        report.starts = {m.member_id: m.starts for m in members.members}
        killed = report.producer_kill
        draw(options.folder / CHART_NAME, producer.acks, began_s, report.failovers, killed)
        report.story = tell(producer.acks, began_s, report.failovers, killed, STOP_SECONDS)


async def _break_things(
    rows: int,
    members: MemberProcesses,
    watch: Watch,
    producer: ProducerProcess,
    progress: Progress,
) -> tuple[list[Failover], ProducerKill]:
    """At a sixth of the rows kill the producer; at a third the leader; at two thirds, all being well
    again, stop the leader."""
    await producer.wait_for_rows(rows // 6)
    producer_killed = await producer.kill()
    _tell_of_producer(progress, producer_killed)
    await producer.wait_for_rows(rows // 3)
    killed = await kill_leader(members, watch, producer)
    _tell(progress, killed)
    await producer.wait_for_rows(2 * rows // 3)
    producer.may_send(rows)
    stopped = await stop_leader(members, watch, producer, seconds=STOP_SECONDS)
    _tell(progress, stopped)
    return [killed, stopped], producer_killed


async def _show(producer: ProducerProcess, progress: Progress, bar: TaskID) -> None:
    while True:
        progress.update(bar, completed=producer.acknowledged_rows)
        await asyncio.sleep(0.1)


def _tell(progress: Progress, failover: Failover) -> None:
    progress.console.print(
        f"  {failover.signal_name} of the leader {failover.leader_id}: next acknowledged append after"
        f" {failover.seconds_without_leader:.3f} s in term {failover.next_term};"
        f" {failover.leader_id} is back and has caught up",
        highlight=False,
    )


def _tell_of_producer(progress: Progress, killed: ProducerKill) -> None:
    progress.console.print(
        f"  SIGKILL of the producer, after acknowledgements for {killed.acknowledged_rows:,} rows: the"
        f" next one asked the log and continued at row {killed.resumed_at_row:,} after"
        f" {killed.seconds_to_resume:.3f} s",
        highlight=False,
    )


def _done(progress: Progress, step: TaskID, text: str) -> None:
    progress.update(step, description=text, total=1, completed=1)
