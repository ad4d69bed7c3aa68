"""How far a follower is that is fed, and how fast that goes."""

from __future__ import annotations

from quorumlog.entry import Replica
from quorumlog.node.sending import FORGOTTEN_MS, LOOK_MS, Feeding, Feedings

N1 = Replica("n1", "1" * 32)


def test_the_rate_is_that_of_the_last_seconds() -> None:
    feedings = Feedings()
    assert feedings.of(N1, 1_000_000, 0) is None
    feedings.on_sent(N1, 100_000, 0)
    assert feedings.of(N1, 1_000_000, 0) == Feeding(900_000, -1)
    for step in range(1, 21):
        feedings.on_sent(N1, 100_000 + 10_000 * step, LOOK_MS * step / 20)
    assert feedings.of(N1, 1_000_000, LOOK_MS) == Feeding(700_000, 100_000)
    feedings.on_sent(N1, 310_000, 2 * LOOK_MS)
    assert feedings.of(N1, 1_000_000, 2 * LOOK_MS) == Feeding(690_000, 5_000)


def test_who_gets_nothing_any_more_has_no_rate_and_then_is_not_fed() -> None:
    feedings = Feedings()
    feedings.on_sent(N1, 100, 0)
    feedings.on_sent(N1, 300, LOOK_MS)
    assert feedings.of(N1, 500, LOOK_MS) == Feeding(200, 100)
    assert feedings.of(N1, 500, 4 * LOOK_MS) == Feeding(200, 0)
    assert feedings.of(N1, 500, LOOK_MS + FORGOTTEN_MS + 1) is None


def test_who_has_caught_up_or_begins_anew_is_counted_anew() -> None:
    feedings = Feedings()
    feedings.on_sent(N1, 100, 0)
    feedings.on_caught_up(N1)
    assert feedings.of(N1, 500, 0) is None
    feedings.on_sent(N1, 300, 0)
    feedings.on_sent(N1, 400, LOOK_MS)
    feedings.on_sent(N1, 200, LOOK_MS)
    assert feedings.of(N1, 500, LOOK_MS) == Feeding(300, -1)
