"""What time it was in a log: `index_at`, `time_at`, and the times of what is read. Both clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest

from quorumlog import BadRequest, IndexOutOfRange, LocalCluster, StoreConfig
from quorumlog.log_state.control_entries import LEVEL, ControlBody, Keep, TimeMark
from quorumlog.server.node_driver import NodeDriver
from tests.client.both_clients import Client
from tests.waiting import eventually, propose

SMALL = StoreConfig(
    segment_bytes=16 * 1024, index_segment_bytes=3200, reserve_step_bytes=16 * 1024, max_entry_bytes=8192
)
T0 = datetime(2026, 11, 23, 10, tzinfo=UTC)
MARKS = 40
SECOND = timedelta(seconds=1)


def leader_of(cluster: LocalCluster) -> NodeDriver:
    return cluster.server(cluster.leader()).drivers[0]


def write(driver: NodeDriver, body: ControlBody) -> None:
    end_index = driver.node.committed_index
    propose(driver, body)
    eventually(lambda: driver.node.committed_index > end_index)


def mark(seconds: float) -> TimeMark:
    return TimeMark(int((T0 + seconds * SECOND).timestamp() * 1000))


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """An entry without a time; then marks, ten seconds apart, each with five entries behind it that name
    it. The log has several segments."""
    from quorumlog import connect

    with LocalCluster(3, storage=SMALL) as cluster, connect(cluster.servers) as log:
        driver = leader_of(cluster)
        eventually(lambda: not driver.members_below(LEVEL))
        log.append(b"-1")
        for number in range(MARKS):
            write(driver, mark(10 * number))
            log.append_batch([b"%d" % number + bytes(200) for _ in range(4)])
            write(driver, Keep(0))
            log.append(b"%d" % number)
        yield cluster


@pytest.fixture
def log(cluster: LocalCluster, new_client: Callable[..., Client]) -> Client:
    return new_client(cluster.servers)


def number_of(body: bytes) -> int:
    return int(body.rstrip(b"\0"))


def time_of(number: int) -> datetime | None:
    return None if number < 0 else T0 + 10 * number * SECOND


def test_reading_begins_at_the_last_mark_at_or_before_a_time(log: Client) -> None:
    for number in range(MARKS):
        for later in (0, 0.001, 9.999):
            first_index = log.index_at(T0 + (10 * number + later) * SECOND)
            assert number_of(next(iter(log.read(first_index))).body) == number
    assert log.index_at(T0 - SECOND / 1000) == 0
    assert log.index_at(datetime(1970, 1, 1, tzinfo=UTC)) == 0
    newest = log.index_at(datetime.max.replace(tzinfo=UTC))
    assert number_of(next(iter(log.read(newest))).body) == MARKS - 1


def test_an_entry_has_the_time_of_the_last_mark_in_front_of_it(log: Client) -> None:
    for entry in log.read(0):
        assert log.time_at(entry.index) == time_of(number_of(entry.body))
    assert log.time_at(0) is None


@pytest.mark.parametrize("first_number", [-1, 0, 7, MARKS - 1])
@pytest.mark.parametrize("behind", [0, 3])
def test_what_is_read_comes_with_its_times(log: Client, first_number: int, behind: int) -> None:
    """Wherever reading begins: what holds there is asked for."""
    numbered = [(e.index, number_of(e.body)) for e in log.read(0)]
    first_index = next(index for index, number in numbered if number == first_number) + behind
    expected = [(index, time_of(number)) for index, number in numbered if index >= first_index]
    for from_member in (None, "any", "n0", "n1", "n2"):
        timed: Any = log.read(first_index, from_member=from_member, with_time=True)
        assert [(e.index, e.append_time) for e in timed] == expected
    tail: Any = log.tail(first_index, timeout_ms=100, with_time=True)
    assert [(e.index, e.append_time) for e in tail] == expected
    limited: Any = log.read(first_index, limit=2, with_time=True)
    assert [(e.index, e.append_time) for e in limited] == expected[:2]
    columns = ["append_time", "index"]
    batches = [*log.read_arrow(first_index, columns=columns, batch_bytes=2000)]
    assert {batch.schema.field("append_time").type for batch in batches} == {
        pa.timestamp("ms", tz="UTC")
    }
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert [(row["index"], row["append_time"]) for row in rows] == expected


def test_nobody_is_given_a_time_that_did_not_ask(log: Client) -> None:
    assert log.read_arrow(0, 5).__next__().schema.names == ["index", "term", "body"]


def test_a_time_without_a_zone_is_refused(log: Client) -> None:
    wrong: Any
    for wrong in (datetime(2026, 11, 23), 1_700_000_000, "2h", None):
        with pytest.raises(BadRequest, match="time must be a datetime with a time zone"):
            log.index_at(wrong)


def test_an_entry_that_is_not_there_has_no_time(log: Client) -> None:
    for index in (-1, 100_000):
        with pytest.raises(IndexOutOfRange):
            log.time_at(index)


def test_a_follower_answers_as_the_leader_does(log: Client) -> None:
    time = T0 + 123 * SECOND
    assert {log.index_at(time, from_member=m) for m in ("n0", "n1", "n2", "any")} == {log.index_at(time)}


def test_times_are_found_again_after_a_start(cluster: LocalCluster, log: Client) -> None:
    expected = [log.index_at(T0 + 10 * number * SECOND) for number in range(MARKS)]
    for member in list(cluster.running):
        cluster.stop(member)
    for member in ("n0", "n1", "n2"):
        cluster.restart(member)
    assert [log.index_at(T0 + 10 * number * SECOND) for number in range(MARKS)] == expected


def test_status_shows_the_time_of_the_log(log: Client) -> None:
    newest = log.index_at(datetime.max.replace(tzinfo=UTC))

    def told() -> bool:
        rows = log.status()
        return {(r.log_time_ms, r.log_time_index) for r in rows} == {
            (mark(10 * (MARKS - 1)).time_ms, newest)
        }

    eventually(told)
