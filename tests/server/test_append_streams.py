"""What a connection knows of the streams on it: bounded, and none is lost that somebody waits for."""

from __future__ import annotations

from quorumlog import LocalCluster, connect
from quorumlog.errors import ConnectionFull, OutOfSequence
from quorumlog.server.clients.client_reads import STREAMS_LIMIT, AppendStreams

LONG = ("default", 1)


def key(number: int) -> tuple[str, int]:
    return "default", 1_000 + number


def accept_and_answer(streams: AppendStreams, stream: tuple[str, int], number: int = 1) -> None:
    assert streams.accept(stream, number) is None
    streams.answered(stream)


def test_each_number_follows_the_one_before_it() -> None:
    streams = AppendStreams()
    accept_and_answer(streams, LONG, 1)
    refusal = streams.accept(LONG, 3)
    assert isinstance(refusal, OutOfSequence)
    assert "request 3 of a stream came where 2 was expected" in str(refusal)
    accept_and_answer(streams, LONG, 2)


def test_what_was_refused_after_it_was_accepted_comes_again() -> None:
    streams = AppendStreams()
    for number in (1, 2, 3):
        assert streams.accept(LONG, number) is None
    for number in (2, 3):
        streams.refused(LONG, number)
    assert isinstance(streams.accept(LONG, 3), OutOfSequence)
    assert streams.accept(LONG, 2) is None


def test_a_stream_in_use_is_not_forgotten_for_newer_ones() -> None:
    streams = AppendStreams()
    accept_and_answer(streams, LONG)
    for number in range(3 * STREAMS_LIMIT):
        accept_and_answer(streams, key(number))
        if number % 500 == 0:
            accept_and_answer(streams, LONG, 2 + number // 500)


def test_a_stream_with_unanswered_appends_is_never_forgotten() -> None:
    streams = AppendStreams()
    assert streams.accept(LONG, 1) is None
    for number in range(2 * STREAMS_LIMIT):
        accept_and_answer(streams, key(number))
    streams.answered(LONG)
    assert streams.accept(LONG, 2) is None


def test_one_that_was_forgotten_is_told_of_the_limit_and_begins_again() -> None:
    streams = AppendStreams()
    accept_and_answer(streams, LONG)
    for number in range(STREAMS_LIMIT):
        accept_and_answer(streams, key(number))
    refusal = streams.accept(LONG, 2)
    assert isinstance(refusal, OutOfSequence)
    assert f"more than {STREAMS_LIMIT} other streams" in str(refusal)
    assert streams.accept(LONG, 1) is None


def test_more_streams_than_the_limit_that_all_wait_are_refused_by_its_name() -> None:
    streams = AppendStreams()
    for number in range(STREAMS_LIMIT):
        assert streams.accept(key(number), 1) is None
    refusal = streams.accept(LONG, 1)
    assert isinstance(refusal, ConnectionFull)
    assert f"{STREAMS_LIMIT} streams have unanswered appends" in str(refusal)
    streams.answered(key(500))
    assert streams.accept(LONG, 1) is None


def test_a_stream_goes_on_after_a_thousand_newer_ones_were_used_on_its_connection() -> None:
    bodies = [b"long %d" % number for number in range(10)]
    with LocalCluster(1, store="memory") as cluster, connect(cluster.servers) as client:
        long = iter(client.append_stream(bodies, batch_records=1, window=1))
        receipts = [next(long), next(long)]
        for _ in range(STREAMS_LIMIT + 1):
            for _ in client.append_stream([b"short"]):
                pass
        receipts += long
        assert [client.get(receipt.first_index).body for receipt in receipts] == bodies
