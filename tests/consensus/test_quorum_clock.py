"""The time that the clocks of a quorum have reached, by the answers to a leader's heartbeats."""

from __future__ import annotations

import pytest

from quorumlog.consensus.messages import HeartbeatRequest, HeartbeatResponse

from .harness import LoneMember

YEAR = 31_536_000_000


def leader(size: int, own: int) -> LoneMember:
    n0 = LoneMember(size)
    n0.lead()
    n0.node.advance(n0.now_ms, own)
    return n0


def answer(n0: LoneMember, i: int, clock_ms: int, round_number: int | None = None) -> None:
    if round_number is None:
        round_number = n0.node._elector.round
    n0.hear(
        i,
        HeartbeatResponse(term=n0.node.term, round=round_number, accepted=True, clock_ms=clock_ms),
    )


@pytest.mark.parametrize(
    ("own", "told", "quorum_clock"),
    [
        (500, (), 500),
        (500, (400,), 400),
        (500, (400, 600), 500),
        (400, (500, 600), 500),
        (500, (500 + YEAR, 600), 600),
        (500 + YEAR, (500, 600), 600),
        (500, (0, 600), 500),
        (0, (500, 600), 500),
        (500, (300, 400, 600), 400),
        (500, (300, 400, 600, 700), 500),
        (500 + YEAR, (300, 400, 600, 600 + YEAR), 600),
    ],
)
def test_it_is_the_median_where_all_have_told_theirs(
    own: int, told: tuple[int, ...], quorum_clock: int
) -> None:
    n0 = leader(len(told) + 1, own)
    for i, clock_ms in enumerate(told, 1):
        answer(n0, i, clock_ms)
    assert n0.node.answers.quorum_clock_ms() == quorum_clock


def test_too_few_clocks_tell_no_time() -> None:
    n0 = leader(5, 500)
    answer(n0, 1, 400)
    assert n0.node.answers.quorum_clock_ms() == -1
    answer(n0, 2, -1)  # an earlier release
    assert n0.node.answers.quorum_clock_ms() == -1
    answer(n0, 3, 300)
    assert n0.node.answers.quorum_clock_ms() == 300


def test_a_late_answer_takes_nothing_back() -> None:
    n0 = leader(3, 500)
    (beat, _) = (m for m in n0.pass_ms(150) if isinstance(m, HeartbeatRequest))
    answer(n0, 1, 400, beat.round)
    answer(n0, 1, 300, beat.round - 1)
    n0.node.advance(n0.now_ms, 500)
    assert n0.node.answers.quorum_clock_ms() == 400


def test_a_new_term_asks_anew() -> None:
    n0 = leader(3, 500)
    answer(n0, 1, 400)
    n0.hear(2, HeartbeatResponse(term=n0.node.term + 1, round=1, accepted=False, clock_ms=600))
    n0.lead()
    n0.node.advance(n0.now_ms, 500)
    assert n0.node.answers.quorum_clock_ms() == -1


def test_a_follower_tells_its_clock() -> None:
    n0 = LoneMember()
    n0.node.advance(n0.now_ms, 1234)
    (said,) = n0.hear(1, HeartbeatRequest(term=1, round=1, committed_index=-1))
    assert said.clock_ms == 1234
