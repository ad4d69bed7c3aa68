"""Histories against their naive twin: logs as lists that say who wrote each byte."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from quorumlog.broker.replication.protocol.epoch_history import EpochHistory, judge
from quorumlog.broker.replication.replica_file import before_epochs

Byte = tuple[int, int, int]
"""Epoch, run, and which of the writes of that run."""


def history_of(log: list[Byte]) -> EpochHistory:
    starts: dict[tuple[int, int], int] = {}
    for offset, (epoch, run, _) in enumerate(log):
        starts.setdefault((epoch, run), offset)
    return EpochHistory((epoch, run, start) for (epoch, run), start in starts.items())


@st.composite
def two_logs(draw: st.DrawFn) -> tuple[list[Byte], list[Byte]]:
    """Of a master and a slave, as they come about: each run is written by one, and copied in part."""
    logs: list[list[Byte]] = [[], []]
    epoch, run = 0, 0
    for _ in range(draw(st.integers(1, 5))):
        if epoch == 0 or draw(st.booleans()):
            epoch, run = epoch + 1, 0
        else:
            run += 1
        writer = draw(st.integers(0, 1))
        cut = draw(st.integers(0, 3))  # what a loss of power takes
        if cut and logs[writer]:
            del logs[writer][-cut:]
        written = [(epoch, run, n) for n in range(draw(st.integers(0, 4)))]
        logs[writer] += written
        other, count = 1 - writer, draw(st.integers(0, 4))
        if logs[writer][: len(logs[other])] == logs[other]:  # it follows only such a master
            logs[other] += logs[writer][len(logs[other]) : len(logs[other]) + count]
    return logs[0], logs[1]


@given(two_logs())
def test_a_slave_follows_from_where_both_logs_are_the_same(logs: tuple[list[Byte], list[Byte]]) -> None:
    master, slave = logs
    mine = history_of(master)
    if mine.last is None:
        mine = EpochHistory([(9, 0, 0)])
    verdict = judge(history_of(slave), len(slave), mine, len(master))
    same = 0
    while same < min(len(master), len(slave)) and master[same] == slave[same]:
        same += 1
    if verdict.problem:
        assert same < len(slave), "refused although the master has all that the slave has"
        return
    assert verdict.common_offset == same
    assert verdict.cuts == (same < len(slave))
    if verdict.cuts:
        assert mine.log_epoch > history_of(slave).log_epoch, "cut without a newer epoch"


def test_what_a_slave_is_told() -> None:
    old = EpochHistory([(1, 0, 0)])
    restarted = old.begun(1, 80)
    assert restarted.triples() == [(1, 0, 0), (1, 1, 80)]
    ahead = judge(old, 100, restarted, 150)
    assert not ahead.cuts
    assert "ends at 100, and the master's has the same only up to 80" in ahead.problem
    # The same slave, once somebody was made the master on purpose.
    assert judge(old, 100, restarted.begun(2, 150), 200) == (80, True, "")
    # An empty run leaves no trace, and a slave that lacks everything begins where the master does.
    assert old.begun(1, 0).triples() == [(1, 1, 0)]
    assert judge(EpochHistory(), 0, restarted, 150) == (0, False, "")
    assert "shares no epoch" in judge(EpochHistory([(7, 0, 0)]), 100, restarted, 150).problem


def test_a_log_that_was_there_before_it_had_slaves_is_followed_in_parts() -> None:
    mine = EpochHistory(before_epochs()).begun(1, 1000)
    assert judge(mine, 500, mine, 1200) == (500, False, "")
    other = judge(EpochHistory(before_epochs()), 500, mine, 1200)
    assert "shares no epoch" in other.problem, "another store's messages, and nothing may replace them"
