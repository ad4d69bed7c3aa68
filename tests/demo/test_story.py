"""The demo says in words what its chart shows: what was usual, the gap, what the spike is."""

from __future__ import annotations

import numpy as np

from demo.producing import ProducerKill
from demo.story import tell
from harness.faults import Failover
from harness.producer import Ack


def steady(first_s: float, stop_s: float, rate: int, term: int) -> list[Ack]:
    return [Ack(at_s, rate // 100, term) for at_s in np.arange(first_s, stop_s, 0.01)]


KILL = Failover("SIGKILL", "n0", 1, 2, 12.0, 0.3, 1.5)
STOP = Failover("SIGSTOP", "n1", 2, 3, 16.0, 1.0, 0.5)


def test_a_spike_is_explained_by_the_member_that_is_away() -> None:
    acks = [*steady(10.0, 12.0, 20_000, 1), *steady(12.35, 13.5, 60_000, 2)]
    (text,) = tell(acks, 10.0, [KILL], None, 5.0)
    assert text.startswith("At 2.0 s the leader n0 is killed: for 0.30 s nothing is acknowledged")
    assert "60,000 records/s, 20,000 were usual" in text
    assert "while n0 is away each record is written twice and not three times" in text


def test_no_spike_is_claimed_where_there_is_none_nor_once_the_member_is_back() -> None:
    acks = [
        *steady(10.0, 12.0, 20_000, 1),
        *steady(12.35, 13.5, 20_000, 2),
        *steady(13.5, 14.0, 60_000, 2),
    ]
    (text,) = tell(acks, 10.0, [KILL], None, 5.0)
    assert "spike" not in text
    assert "up to 20,000 records/s (20,000 before)" in text


def test_the_pause_before_the_second_failure_is_the_demos_own() -> None:
    acks = [
        *steady(10.0, 12.0, 20_000, 1),
        *steady(12.35, 15.0, 20_000, 2),
        *steady(17.0, 20.0, 20_000, 3),
    ]
    _, text = tell(acks, 10.0, [KILL, STOP], None, 5.0)
    assert text.startswith("From 5.0 to 6.0 s nothing is sent: the demo waits")
    assert "the leader n1 is stopped: for 1.00 s" in text


def test_a_second_failure_before_the_first_is_caught_up_with_knows_what_was_usual() -> None:
    slow = KILL._replace(seconds_to_catch_up=10.0)
    acks = [
        *steady(10.0, 12.0, 20_000, 1),
        *steady(12.35, 16.0, 20_000, 2),
        *steady(17.0, 20.0, 60_000, 3),
    ]
    _, text = tell(acks, 10.0, [slow, STOP], None, 5.0)
    assert "60,000 records/s, 20,000 were usual" in text


def test_what_is_usual_does_not_count_while_the_producer_is_away() -> None:
    acks = [
        *steady(10.0, 10.5, 20_000, 1),
        *steady(11.5, 12.0, 20_000, 1),
        *steady(12.35, 13.5, 60_000, 2),
    ]
    (text,) = tell(acks, 10.0, [KILL], None, 5.0)
    assert "60,000 records/s, 20,000 were usual" in text


def test_a_killed_producer_is_told_of_in_its_place() -> None:
    acks = [*steady(10.0, 12.0, 20_000, 1), *steady(12.35, 13.5, 20_000, 2)]
    producer, leader = tell(acks, 10.0, [KILL], ProducerKill(11.0, 20_000, 20_512, 0.4), 5.0)
    assert producer.startswith(
        "At 1.0 s the producer is killed, after acknowledgements for 20,000 rows; 512 more"
    )
    assert "continues at row 20,512, 0.40 s later" in producer
    assert leader.startswith("At 2.0 s the leader n0 is killed")
