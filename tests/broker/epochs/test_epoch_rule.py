"""The values of the rule of epochs; `sim.replicas` is brokers that keep it."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given
from msgspec.structs import replace

from quorumlog.broker.epochs import (
    CopyList,
    Epoch,
    EpochHistory,
    FollowVerdict,
    Peer,
    Run,
    RunKey,
    Shown,
    count_of,
    forced_list,
    held_offset,
    judge,
    lists_in_force,
)
from quorumlog.broker.errors import StaleEpoch
from sim.replicas.world import World


def peer(name: str) -> Peer:
    return Peer(id=name, directory_id=f"{name}1")


def listed(names: str, copies: int) -> CopyList:
    return CopyList(tuple(peer(name) for name in names), copies)


def test_a_number_is_promised_once_and_epochs_are_compared_as_pairs() -> None:
    world = World(1, brokers=1)
    a = world.brokers["a"].living
    a.promise(5, "a1")
    a.promise(5, "b1")
    assert a.record.promised == Epoch(5, "a1")
    for leader in ("a1", "b1"):
        with pytest.raises(StaleEpoch, match="epoch 5 was promised"):
            a.promise(5, leader, anew=True)
    assert Epoch(5, "a1") < Epoch(5, "b1") < Epoch(6, "a1")
    one = EpochHistory([Run(5, "a1", 0, 0)])
    other = EpochHistory([Run(5, "b1", 0, 0)])
    assert shown("a", one, 900, RunKey()).rank < shown("a", other, 10, RunKey()).rank, (
        "whichever is longer"
    )


def test_a_run_without_bytes_is_in_the_log_that_has_come_to_its_begin() -> None:
    history = EpochHistory().begun(Epoch(1, "a1"), 0).begun(Epoch(2, "b1"), 100)
    assert shown("a", history, 99, RunKey()).rank == (RunKey(1, "a1", 0), 99)
    assert shown("a", history, 100, RunKey()).rank == (RunKey(2, "b1", 0), 100)
    assert shown("a", EpochHistory(), 0, RunKey()).rank < shown("a", history, 0, RunKey()).rank


def test_lists_are_in_force_from_the_newest_confirmed_run_on() -> None:
    ab, abc, c = listed("ab", 2), listed("abc", 2), listed("c", 1)
    history = (
        EpochHistory()
        .begun(Epoch(1, "a1"), 0, ab)
        .begun(Epoch(1, "a1"), 50, abc)
        .begun(Epoch(2, "b1"), 50)
    )
    assert lists_in_force(history, RunKey()) == (ab, abc)
    assert lists_in_force(history, RunKey(1, "a1", 0)) == (ab, abc)
    assert lists_in_force(history, RunKey(1, "a1", 1)) == (abc,)
    assert lists_in_force(history, RunKey(2, "b1", 0)) == (abc,)
    forced = history.begun(Epoch(9, "c1"), 60, c, is_forced=True)
    unmet, *others = lists_in_force(forced, RunKey(1, "a1", 1))
    assert not others
    assert (unmet.members, unmet.needed, unmet.promises) == (c.members, 1, 1)
    assert lists_in_force(forced, RunKey(9, "c1", 0)) == (c,)
    # A run that has neither bytes nor a list leaves no trace; the number of its epoch's runs goes on.
    again = history.begun(Epoch(2, "b1"), 50)
    assert [run.key for run in again.runs] == [(1, "a1", 0), (1, "a1", 1), (2, "b1", 1)]
    # What a leader has not come to is not in its log, and a list in it neither.
    assert history.begun(Epoch(3, "c1"), 40).copy_list == ab


def test_enough_of_each_list_have_it_and_the_leader_does() -> None:
    lists = (listed("abc", 2), listed("abcde", 3))
    assert held_offset(lists, {"a1": 90, "b1": 80}, 90) == -1
    assert held_offset(lists, {"a1": 90, "b1": 80, "d1": 70}, 90) == 70
    assert held_offset(lists, {"a1": 90, "d1": 90, "e1": 90}, 90) == -1, "two of five are not of three"
    assert held_offset(lists[:1], {"a1": 10, "b1": 90, "c1": 90}, 10) == 10
    assert held_offset(lists[:1], {"a1": 90, "x1": 90}, 90) == -1, "x1 is on no list"


def shown(name: str, history: EpochHistory, end: int, confirmed: RunKey) -> Shown:
    return Shown(peer(name), history, end, confirmed)


def test_promises_of_n_less_k_and_one_are_needed_of_each_list() -> None:
    first = EpochHistory().begun(Epoch(1, "a1"), 0, listed("abc", 2))
    second = first.begun(Epoch(1, "a1"), 100, listed("abcd", 2))
    key = RunKey(1, "a1", 0)
    b, c = shown("b", first, 80, key), shown("c", second, 100, RunKey())
    count = count_of(c, [b, c])
    assert [each.promises for each in count.lists] == [2, 3]
    assert not count.may_lead
    answers = [b, c, shown("d", first, 0, RunKey())]
    assert count_of(c, answers).may_lead
    # Who has less may not, and who is on no list neither; what that one has is nothing to anybody.
    assert [each.me for each in count_of(b, answers).ahead] == [peer("c")]
    x = shown("x", second, 500, RunKey(1, "a1", 1))
    assert not count_of(x, [*answers, x]).may_lead
    assert count_of(c, [*answers, x]).may_lead
    # Who has not come to the list does not show it.
    alone = count_of(b, [b, x])
    assert [each.copies for each in alone.lists] == [2]
    assert forced_list(c, [b, c]) == CopyList((peer("c"), peer("b")), 2)
    assert forced_list(c, [c, x]) == CopyList((peer("c"),), 1)


def test_all_of_an_unsafe_list_must_have_heard_of_it_once() -> None:
    abc, bc = listed("abc", 2), listed("bc", 1)
    history = EpochHistory().begun(Epoch(1, "a1"), 0, abc).begun(Epoch(4, "b1"), 50, bc, is_forced=True)
    assert held_offset(lists_in_force(history, RunKey()), {"b1": 60}, 60) == -1
    assert held_offset(lists_in_force(history, RunKey()), {"b1": 60, "c1": 50}, 60) == 50
    forced = RunKey(4, "b1", 0)
    assert held_offset(lists_in_force(history, forced), {"b1": 60, "c1": 50}, 60) == 60
    b, c = shown("b", history, 60, RunKey()), shown("c", history.held(40), 40, RunKey())
    assert not count_of(b, [b]).may_lead, "c may be led by the old list meanwhile"
    assert count_of(b, [b, c]).may_lead
    # Who was given up, and shows itself beside those that have gone on.
    a = shown("a", EpochHistory().begun(Epoch(1, "a1"), 0, listed("a", 1)), 900, RunKey())
    assert not count_of(a, [a, b._replace(confirmed=forced)]).may_lead


def judged(
    slave: EpochHistory, slave_end: int, master: EpochHistory, master_end: int, is_flushed: bool
) -> FollowVerdict:
    """`is_flushed`: what the slave has was acknowledged by what was on disk."""
    runs = [replace(run, is_flushed=is_flushed) for run in slave.runs]
    return judge(EpochHistory(runs), slave_end, master, master_end, directory_id="b1")


Byte = tuple[int, int, int]
"""Epoch, run, and which of the writes of that run."""


def history_of(log: list[Byte]) -> EpochHistory:
    starts: dict[tuple[int, int], int] = {}
    for offset, (epoch, run, _) in enumerate(log):
        starts.setdefault((epoch, run), offset)
    return EpochHistory(Run(epoch, "a1", run, start) for (epoch, run), start in starts.items())


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


@given(two_logs(), st.booleans())
def test_a_slave_follows_from_where_both_logs_are_the_same(
    logs: tuple[list[Byte], list[Byte]], is_flushed: bool
) -> None:
    master, slave = logs
    mine = history_of(master)
    if mine.last is None:
        mine = EpochHistory([Run(9, "a1", 0, 0)])
    verdict = judged(history_of(slave), len(slave), mine, len(master), is_flushed)
    same = 0
    while same < min(len(master), len(slave)) and master[same] == slave[same]:
        same += 1
    if verdict.problem:
        assert same < len(slave), "refused although the master has all that the slave has"
        return
    assert verdict.common_offset == same
    assert verdict.cuts == (same < len(slave))
    if verdict.cuts:
        last = history_of(slave).last
        assert mine.last is not None and last is not None
        assert mine.last.key > last.key if is_flushed else mine.epoch > last.epoch


def test_what_a_slave_is_told() -> None:
    epoch = Epoch(1, "a1")
    old = EpochHistory([Run(1, "a1", 0, 0)])
    restarted = old.begun(epoch, 80)
    ahead = judged(old, 100, restarted, 150, False)
    assert not ahead.cuts
    assert "ends at 100, and the master's has the same only up to 80" in ahead.problem
    # What was acknowledged was on the master's disk: then nobody has acknowledged the rest.
    assert judged(old, 100, restarted, 150, True) == (80, True, "")
    # How it has been acknowledging since says nothing of that.
    flushed = old.begun(epoch, 80, is_flushed=True)
    assert "has lost messages that it had sent" in judged(old, 100, flushed, 150, False).problem
    longer = EpochHistory([Run(1, "a1", 0, 0), Run(1, "a1", 1, 90, is_flushed=True)])
    for runs, end, cuts in ((longer, 100, False), (longer, 90, False), (flushed, 100, True)):
        master = old.begun(epoch, 80).begun(epoch, 80) if runs is longer else flushed.begun(epoch, 85)
        assert judge(runs, end, master, 150, directory_id="b1").cuts == cuts
    newer = restarted.begun(Epoch(2, "b1"), 150)
    assert judged(old, 100, newer, 200, False) == (80, True, "")
    assert judged(EpochHistory(), 0, restarted, 150, True) == (0, False, "")
    other = EpochHistory([Run(7, "x1", 0, 0)])
    assert "shares no epoch" in judged(other, 100, restarted, 150, True).problem
    listing = restarted.begun(Epoch(8, "a1"), 150, listed("ab", 2))
    assert judged(other, 100, listing, 150, True) == (0, True, ""), "b led before anybody acknowledged"
