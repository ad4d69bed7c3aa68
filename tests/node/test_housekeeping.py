"""What waits for the pauses between the turns of appends, and for how long at most."""

from __future__ import annotations

from quorumlog.node.housekeeping import PAUSE_MS, Housekeeping

FAR_MS = 1_000_000.0


def kept(by_clock_ms: float = FAR_MS) -> tuple[Housekeeping, list[float]]:
    housekeeping, asked = Housekeeping(), list[float]()
    housekeeping.take_over([asked.append], [lambda: by_clock_ms])
    return housekeeping, asked


def test_the_first_turn_behind_a_pause_asks_every_part() -> None:
    housekeeping, asked = kept()
    assert housekeeping.tick(5.0)
    assert housekeeping.tick(5.0 + PAUSE_MS)
    assert asked == [5.0, 5.0 + PAUSE_MS]
    assert housekeeping.next_wakeup_ms() == FAR_MS, "nothing has come since: by their own clocks"


def test_turns_close_together_ask_them_once_and_a_wake_up_follows() -> None:
    housekeeping, asked = kept()
    for milliseconds in range(int(PAUSE_MS)):
        housekeeping.tick(5.0 + milliseconds)
    assert asked == [5.0]
    assert housekeeping.next_wakeup_ms() == 5.0 + PAUSE_MS, "what these turns brought is not left lying"


def test_what_stirs_them_does_not_wait() -> None:
    housekeeping, asked = kept()
    housekeeping.tick(5.0)
    housekeeping.stir()
    assert housekeeping.tick(6.0)
    assert asked == [5.0, 6.0]


def test_what_is_due_by_its_own_clock_does_not_wait_either() -> None:
    housekeeping, asked = kept(by_clock_ms=7.0)
    for milliseconds in range(5):
        housekeeping.tick(5.0 + milliseconds)
    assert asked == [5.0, 7.0, 8.0, 9.0]
