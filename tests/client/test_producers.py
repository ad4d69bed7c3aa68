"""A client with a producer's id: what it appends is in the log once and in order, whatever is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from quorumlog import LocalCluster, connect
from quorumlog.client import LedgerClient
from quorumlog.errors import (
    AlreadyCommitted,
    BadRequest,
    BodyTooLarge,
    ConfigError,
    OutcomeUnknown,
    OutOfSequence,
    ProducerExpired,
    ProducerFenced,
    Refused,
    SequenceGap,
)
from tests.client.both_clients import Client

NewClient = Callable[..., Client]


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(members=3) as cluster:
        yield cluster


def bodies(cluster: LocalCluster) -> list[bytes]:
    with connect(cluster.servers) as log:
        return [entry.body for entry in log.read(0)]


def test_what_is_appended_again_by_its_number_has_the_receipt_that_it_had(
    cluster: LocalCluster, new_client: NewClient
) -> None:
    log = new_client(cluster.servers, producer_id="orders")
    first = log.append(b"a")
    batch = log.append_batch([b"b", b"c"])
    assert log.last_sequence() == 2
    assert log.append(b"a", sequence=0) == first
    assert log.append_batch([b"b", b"c"], sequence=1) == batch
    with pytest.raises(SequenceGap) as gap:
        log.append(b"e", sequence=4)
    assert gap.value.expected_sequence == 3
    log.append(b"d")
    assert log.append(b"e", sequence=4).count == 1
    assert bodies(cluster) == [b"a", b"b", b"c", b"d", b"e"]


def test_the_next_process_goes_on_where_the_log_is_and_fences_the_one_before(
    cluster: LocalCluster, new_client: NewClient
) -> None:
    before = new_client(cluster.servers, producer_id="orders")
    before.append_batch([b"0", b"1"])
    log = new_client(cluster.servers, producer_id="orders")
    assert log.last_sequence() == 1
    with pytest.raises(ProducerFenced):
        before.append(b"late")
    with pytest.raises(ProducerFenced):
        before.append(b"later")
    log.append(b"2")
    assert log.last_sequence() == 2
    assert bodies(cluster) == [b"0", b"1", b"2"]


def test_a_stream_over_two_elections_is_in_the_log_once_and_in_order(
    cluster: LocalCluster, new_client: NewClient
) -> None:
    log = new_client(cluster.servers, producer_id="orders", timeout_ms=20_000)
    sent = [b"%d" % number for number in range(3000)]
    killed: list[str] = []
    for count, _receipt in enumerate(log.append_stream(sent, batch_records=10)):
        if count in (60, 180):
            killed.append(cluster.leader())
            cluster.kill(killed[-1])
            if len(killed) == 1:
                threading.Timer(0, cluster.restart, killed[:1]).start()
    assert len(killed) == 2
    assert log.last_sequence() == len(sent) - 1
    assert bodies(cluster) == sent


def test_appends_of_many_threads_are_in_the_log_once_over_an_election(cluster: LocalCluster) -> None:
    with connect(cluster.servers, idempotent=True, timeout_ms=20_000) as log:
        log.append(b"first")

        def append(name: int) -> None:
            for number in range(40):
                receipt = log.append(b"%d:%d" % (name, number))
                assert log.get(receipt.first_index).body == b"%d:%d" % (name, number)

        threads = [threading.Thread(target=append, args=(name,)) for name in range(8)]
        for thread in threads:
            thread.start()
        cluster.kill(cluster.leader())
        for thread in threads:
            thread.join()
    found = bodies(cluster)
    assert len(found) == len(set(found)) == 321
    for name in range(8):
        mine = [body for body in found if body.startswith(b"%d:" % name)]
        assert mine == [b"%d:%d" % (name, number) for number in range(40)]


def test_what_was_given_up_is_there_once_or_not_at_all_and_numbers_go_on(
    cluster: LocalCluster, new_client: NewClient
) -> None:
    """A new epoch begins, so that no late copy comes in under a number that means something else."""
    log = new_client(cluster.servers, producer_id="orders", timeout_ms=20_000)
    log.append(b"first")
    down = [member for member in cluster.running if member != cluster.leader()]
    for member in down:
        cluster.kill(member)
    for body in (b"given up", b"given up, too"):
        with pytest.raises((OutcomeUnknown, Refused)):
            log.append(body, timeout_ms=300)
    for member in down:
        cluster.restart(member)
    log.append_batch([b"next", b"and next"])
    found = bodies(cluster)
    assert found in (
        [b"first", b"next", b"and next"],
        [b"first", b"given up", b"next", b"and next"],
        [b"first", b"given up", b"given up, too", b"next", b"and next"],
    )
    assert log.last_sequence() == len(found) - 1
    last = len(found) - 2
    again = log.append_batch([b"next", b"and next"], sequence=last)
    assert [log.get(at).body for part in again.parts for at in part.indices] == found[last:]
    assert bodies(cluster) == found


def test_what_is_too_large_is_refused_alone_and_leaves_no_gap(
    cluster: LocalCluster, new_client: NewClient
) -> None:
    log = new_client(cluster.servers, producer_id="orders")
    log.append(b"a")
    with pytest.raises(BodyTooLarge):
        log.append(bytes(32 << 20))
    log.append(b"b")
    assert log.last_sequence() == 1
    with pytest.raises((BodyTooLarge, OutOfSequence)):
        list(log.append_stream([[b"c"], [bytes(32 << 20)], [b"d"]]))
    log.append(b"e")
    assert bodies(cluster) == [b"a", b"b", b"c", b"e"]


def test_a_program_resumes_from_its_own_position(cluster: LocalCluster, new_client: NewClient) -> None:
    """An outbox whose last rows may have been sent before the program was killed."""
    rows = [b"%d" % number for number in range(20)]
    with connect(cluster.servers, producer_id="outbox") as log:
        for number, row in enumerate(rows[:12]):
            log.append(row, sequence=number)
    log = new_client(cluster.servers, producer_id="outbox")
    done = log.last_sequence() + 1
    assert done == 12
    for number, row in enumerate(rows[done - 3 :], done - 3):
        log.append(row, sequence=number)
    with pytest.raises(AlreadyCommitted):
        log.append(rows[0], sequence=0)
    assert bodies(cluster) == rows


def test_producers_are_listed_shown_and_forgotten(cluster: LocalCluster, new_client: NewClient) -> None:
    log = new_client(cluster.servers)
    for name in ("b", "a"):
        with connect(cluster.servers, producer_id=name) as producer:
            receipt = producer.append_batch([b"1", b"2"])
    with connect(cluster.servers, idempotent=True) as anonymous:
        anonymous.append(b"x")
        named = [info.producer for info in log.producers()]
        assert named == ["a", "b", anonymous.producer_id]
        assert log.producer("a").last_index == receipt.last_index
        assert log.forget_producer("b").last_sequence == 1
        log.forget_producer(str(anonymous.producer_id))
        with pytest.raises(ProducerExpired):
            log.producer("b")
        anonymous.append(b"y")  # it begins another session: nothing of the one before was unknown
    with connect(cluster.servers, producer_id="b") as again:
        assert again.last_sequence() == -1
    (row,) = [row for row in log.status() if row.role == "leader"]
    assert row.producers == 3


def test_who_has_no_producer_has_no_numbers(cluster: LocalCluster, new_client: NewClient) -> None:
    log = new_client(cluster.servers)
    for call in (lambda: log.last_sequence(), lambda: log.append(b"a", sequence=0)):
        with pytest.raises(BadRequest, match="producer_id"):
            call()
    log = new_client(cluster.servers, producer_id="p")
    with pytest.raises(BadRequest, match="exclude each other"):
        log.append(b"a", sequence=0, expected_last=0)
    with pytest.raises(BadRequest, match="start at 0"):
        log.append(b"a", sequence=-1)
    log.append(b"beside", expected_last=-1)
    assert log.last_sequence() == -1, "a conditional append is in no session"


@pytest.mark.parametrize("name", ["", "~mine", "x" * 256, 5])
def test_a_producer_has_a_name_that_a_server_takes(name: object) -> None:
    with pytest.raises(ConfigError, match="producer"):
        LedgerClient("127.0.0.1:1", producer_id=name)  # type: ignore[arg-type]
