"""A streaming query as Spark runs it: a plan of batches, a checkpoint, drivers that come and go."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from random import Random

from quorumlog.batch import EntryBatch
from quorumlog.errors import LedgerError
from quorumlog.staging import (
    Batch,
    BatchOutOfOrder,
    BatchRules,
    RowDigest,
    RowRange,
    RowsGone,
    SinkCommits,
)
from quorumlog.staging.commits import SinkLogs
from quorumlog.staging.manifests import check_query
from tests.staging.model_logs import ModelLog, World

MOST_STEPS = 20_000
STEPS_OF_FAULTS = 1500


class Checkpoint:
    """What outlives a driver: batches that were planned, and which of them Spark knows to be done."""

    def __init__(self, random: Random, batches: int, query_id: str = "q") -> None:
        self.query_id = query_id
        self.done = -1
        self.plan: list[list[bytes]] = []
        number = 0
        for _ in range(batches):
            rows = random.choice((0, 1, 3, 9))
            self.plan.append([b"%d" % each for each in range(number, number + rows)])
            number += rows

    @property
    def rows(self) -> list[bytes]:
        return [row for batch in self.plan for row in batch]

    def commit(self, batch_id: int) -> None:
        self.done = max(self.done, batch_id)


def staged(
    log: ModelLog, rows: list[bytes], random: Random, *, shuffles: bool = False
) -> tuple[RowRange, ...]:
    """Tasks in any number, each with attempts that fail and others that come twice. `shuffles`: another
    run of the batch has its rows in another order, as behind a join."""
    if shuffles:
        rows = random.sample(rows, len(rows))
    cuts = sorted(random.choices(range(len(rows) + 1), k=random.randrange(3)))
    parts = [rows[a:b] for a, b in zip([0, *cuts], [*cuts, len(rows)], strict=True)]
    ranges = []
    for part in parts:
        if part and random.random() < 0.2:
            log.stage(part[: random.randrange(len(part) + 1)] or [b"never read"])
        if part:
            ranges.append(log.stage(part))
    return tuple(ranges)


def batch_of(query_id: str, batch_id: int, rows: list[bytes], ranges: tuple[RowRange, ...]) -> Batch:
    digest = RowDigest.of_entries(EntryBatch.from_bodies(rows)) if rows else RowDigest()
    return Batch(query_id, batch_id, len(rows), digest, ranges)


def run_batch(
    commits: SinkCommits,
    staging: ModelLog,
    batch: tuple[str, int, list[bytes]],
    random: Random,
    rules: BatchRules | None = None,
    *,
    shuffles: bool = False,
) -> bool:
    """What Spark does of one micro-batch; True if it was new."""
    query_id, batch_id, rows = batch
    rules = rules or BatchRules()
    check_query(commits.begin(), query_id, rules, commits.producer)
    ranges = staged(staging, rows, random, shuffles=shuffles)
    return commits.commit(batch_of(query_id, batch_id, rows, ranges), rules).was_new


class Query:
    def __init__(
        self, world: World, checkpoint: Checkpoint, kind: type[SinkCommits], *, shuffles: bool = False
    ) -> None:
        self._world, self.checkpoint, self._kind, self._shuffles = world, checkpoint, kind, shuffles

    def live(self) -> None:
        """Of one driver, until it has written all, fails or dies."""
        commits, staging = commits_in(self._world, self._kind)
        checkpoint, random = self.checkpoint, self._world.random
        with fails():
            batch_id = self._world.call(lambda: checkpoint.done) + 1
            while batch_id < len(checkpoint.plan):
                batch = (checkpoint.query_id, batch_id, checkpoint.plan[batch_id])
                run_batch(commits, staging, batch, random, shuffles=self._shuffles)
                self._world.call(partial(checkpoint.commit, batch_id))
                batch_id += 1

    def resume(self) -> None:
        with fails():
            commits_in(self._world, self._kind)[0].resume()


@contextmanager
def fails() -> Iterator[None]:
    """What a query ends with, and is started again; but no restart helps where rows are gone."""
    try:
        yield
    except LedgerError as error:
        if isinstance(error, RowsGone):
            raise


def commits_in(world: World, kind: type[SinkCommits]) -> tuple[SinkCommits, ModelLog]:
    log, staging = ModelLog(world, world.log), ModelLog(world, world.staging)
    commits = kind(SinkLogs(log, staging), "p", pause=lambda _: world.call(lambda: None))
    return commits, staging


def run(seed: int, kind: type[SinkCommits] = SinkCommits) -> None:
    """Several batches of a query, with deaths, unknown outcomes, late requests, two drivers at once and
    people who resume; then one driver that nothing befalls. Raises AssertionError for what must not
    be."""
    world = World(seed, death=0.01, unknown=0.01)
    shuffles = world.random.random() < 0.5
    query = Query(world, Checkpoint(world.random, 4), kind, shuffles=shuffles)
    for step in range(MOST_STEPS):
        is_calm = step >= STEPS_OF_FAULTS
        if step == STEPS_OF_FAULTS:
            world.end_faults()
        at_most = 1 if is_calm else 2
        is_done = query.checkpoint.done == len(query.checkpoint.plan) - 1
        if is_done and not world.running:
            break
        wants_another = world.running < at_most and world.random.random() < 0.03
        if not is_done and (not world.running or wants_another):
            world.start(query.live)
        elif wants_another and not is_calm:
            world.start(query.resume)
        if world.running:
            world.step()
        assert not world.failures, world.failures[0]
    else:
        raise AssertionError(f"not done after {MOST_STEPS} steps")
    found = iter([body for body in world.log.bodies if body])
    for batch in query.checkpoint.plan:
        rows = list(islice(found, len(batch)))
        assert (sorted(rows) if shuffles else rows) == (sorted(batch) if shuffles else batch)
    assert not list(found), "each row once"


def run_writers(seed: int, kind: type[SinkCommits] = SinkCommits) -> None:
    """Jobs that each `df.write` one batch under a number of its own, some at the same time; each is run
    again until it is done, or comes too late."""
    world = World(seed, death=0.01, unknown=0.01)
    random = world.random
    plan = {
        number: [b"%d-%d" % (number, row) for row in range(random.choice((1, 4)))] for number in range(5)
    }
    outcomes: dict[int, bool] = {}

    def write(number: int) -> None:
        commits, staging = commits_in(world, kind)
        with fails():
            try:
                run_batch(commits, staging, ("", number, plan[number]), random)
                outcomes[number] = True
            except BatchOutOfOrder:
                outcomes[number] = False

    for step in range(MOST_STEPS):
        if step == STEPS_OF_FAULTS:
            world.end_faults()
        left = [number for number in plan if number not in outcomes and not world.is_running(number)]
        if len(outcomes) == len(plan) and not world.running:
            break
        at_most = 1 if step >= STEPS_OF_FAULTS else 3
        if left and world.running < at_most:
            number = left[0] if random.random() < 0.7 else random.choice(left[:3])
            world.start(partial(write, number), number)
        if world.running:
            world.step()
        assert not world.failures, world.failures[0]
    else:
        raise AssertionError(f"not done after {MOST_STEPS} steps")
    log = [body for body in world.log.bodies if body]
    there = [number for number in plan if plan[number][0] in log]
    assert log == [row for number in there for row in plan[number]], (
        "whole batches, once, in their order"
    )
    assert all(number in there for number, was_written in outcomes.items() if was_written)
