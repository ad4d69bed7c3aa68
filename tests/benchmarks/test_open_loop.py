"""Open loops: latency from when a request was due, at rates that nothing slows down."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest
from hdrh.histogram import HdrHistogram

from benchmarks import open_loop
from benchmarks.open_loop import (
    OPEN_LOADS,
    RawSender,
    Tally,
    arrivals_s,
    open_table_of,
    run_open_loads,
)
from quorumlog import LocalCluster
from quorumlog.batch import EntryBatch
from quorumlog.bench.running_group import RunningGroup
from quorumlog.errors import (
    LedgerError,
    NotLeader,
    OutcomeUnknown,
    PendingFull,
    Unreachable,
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(3) as running:
        yield running


def test_arrivals_are_a_poisson_process_and_the_same_for_the_same_seed() -> None:
    due_s = arrivals_s(2000, 50, seed=7)
    assert np.array_equal(due_s, arrivals_s(2000, 50, seed=7))
    assert not np.array_equal(due_s[:100], arrivals_s(2000, 50, seed=8)[:100])
    assert due_s[0] > 0 and due_s[-1] < 50
    gaps = np.diff(due_s)
    assert gaps.min() >= 0
    # 100,000 of them: both lie within one per cent of what is expected, for this seed and most others.
    assert len(due_s) == pytest.approx(100_000, rel=0.01)
    assert gaps.std() == pytest.approx(1 / 2000, rel=0.01), "of exponential gaps, as large as the mean"


def test_a_latency_counts_from_when_the_request_was_due() -> None:
    tally = Tally(np.array([0.1, 0.2, 0.3]), 0.0, 1.0)
    for number in (1, 2, 3):  # the sender stood still until 0.5
        tally.sent(number, 0.5)
    for number in (1, 2, 3):
        tally.answered(number, 0.6, None)
    assert list(tally.latencies_s) == pytest.approx([0.5, 0.4, 0.3])
    assert list(tally.lateness_s) == pytest.approx([0.4, 0.3, 0.2])
    assert tally.open == 0


def test_every_request_of_the_window_is_counted_once() -> None:
    tally = Tally(np.array([0.1, 1.0, 1.1, 1.2, 1.3, 1.4, 1.5]), 1.0, 2.0)
    tally.answered(1, 1.6, None)  # due while it warmed up, acknowledged inside the window
    tally.answered(2, 1.7, None)
    tally.answered(3, 2.5, None)  # too late to be goodput
    tally.answered(4, 1.8, PendingFull("full"))
    tally.answered(5, 1.8, NotLeader("moved"))
    tally.answered(6, 1.8, OutcomeUnknown("lost"))
    assert tally.requests == 6
    assert tally.accepted_in_window == 2
    assert tally.accepted == 3
    assert list(tally.latencies_s) == pytest.approx([0.7, 1.4])
    assert dict(tally.errors) == {"PendingFull": 1, "NotLeader": 1, "OutcomeUnknown": 1}
    assert (tally.overloaded, tally.unknown, tally.unanswered) == (1, 1, 1)


@pytest.mark.parametrize("load", OPEN_LOADS, ids=lambda load: load.name)
def test_a_load_is_measured_at_its_rates(cluster: LocalCluster, load: open_loop.OpenLoad) -> None:
    said: list[str] = []
    results = list(
        run_open_loads([load], RunningGroup(cluster.servers), 0.4, 1, said.append, shares=(0.5, 2.0))
    )
    assert [result.share_of_peak for result in results] == [0.5, 2.0]
    assert len(said) == 3
    low, high = results
    assert low.requests > 0
    assert low.offered_per_second < high.offered_per_second
    histogram = HdrHistogram.decode(low.histogram)
    answered = low.requests - low.overloaded - low.refused - low.unknown - low.unanswered
    assert histogram.get_total_count() == answered > 0
    assert 0 < low.p50_ms <= low.p90_ms <= low.p99_ms <= low.p999_ms
    assert [target["figure"] for target in high.row()["targets"]] == ["goodput_share", "p99_ms"]
    assert low.row()["targets"] == []
    assert open_table_of(results).row_count == 2


def test_a_sender_gives_every_request_an_outcome_also_when_its_connection_is_lost() -> None:
    async def send() -> None:
        answers: asyncio.Queue[tuple[int, LedgerError | None]] = asyncio.Queue()
        with LocalCluster(1) as single:
            batch = EntryBatch.from_bodies([b"body"])
            sender = RawSender("default", batch, lambda *answer: answers.put_nowait(answer))
            await sender.connect(single.servers)
            for number in (1, 2, 3):
                sender.send(number)
            assert {(await answers.get())[0] for _ in range(3)} == {1, 2, 3}
        while not sender.is_lost:
            await asyncio.sleep(0)
        sender.send(4)
        number, error = await answers.get()
        assert number == 4
        assert isinstance(error, Unreachable)

    asyncio.run(send())
