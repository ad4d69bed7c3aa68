"""What is drawn of a round: each step behind the one that it waits for."""

from __future__ import annotations

from benchmarks.trace import STEPS, Member, picture, round_of


def _spans(**begins: list[int]) -> Member:
    return Member({label: [[at, at + 10] for at in found] for label, found in begins.items()})


def test_a_round_is_that_of_the_follower_that_answers_first() -> None:
    leader = _spans(
        receive=[100, 400, 900],
        check=[120],
        write=[140],
        push=[160],
        send=[180, 450, 950],
        sync=[200],
        commit=[420],
    )
    fast = _spans(receive=[220], write=[240], sync=[260], send=[350])
    slow = _spans(receive=[220], write=[240], sync=[260], send=[850])
    spans = round_of(leader, [slow, fast], 90, 0)
    assert spans is not None
    assert [begin for begin, _ in spans] == [
        100, 120, 140, 160, 180, 200, 220, 240, 260, 350, 400, 420, 450,
    ]  # fmt: skip


def test_a_round_that_is_not_seen_to_its_end_is_left_out() -> None:
    leader = _spans(receive=[100], check=[120], write=[140], push=[160], send=[180], sync=[200])
    assert round_of(leader, [_spans(receive=[220])], 90, 0) is None


def test_the_picture_has_a_line_a_step_and_begins_with_the_first() -> None:
    spans = [(1000 * number, 1000 * number + 500) for number in range(len(STEPS))]
    lines = picture([spans], 2)
    assert len(lines) == 1 + len(STEPS) - 2
    assert lines[1].split()[:2] == ["leader", "0"]
    assert lines[-1].endswith(STEPS[-1].words)
