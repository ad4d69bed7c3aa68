"""What members commit is gathered."""

from __future__ import annotations

from quorumlog.broker.group_commands import CommitOffsets
from quorumlog.broker.groups.rebalancer import DoneCallback, OffsetCommits
from quorumlog.errors import LedgerError, NotLeader


class Log:
    def __init__(self) -> None:
        self.entries: list[tuple[CommitOffsets, DoneCallback]] = []
        self.told: list[LedgerError | None] = []
        self.commits = OffsetCommits(lambda command, done: self.entries.append((command, done)))

    def commit(self, group: str, offset: int, generation: int = 1) -> None:
        self.commits.add(group, generation, "m", (("orders", 0, offset),), self.told.append)

    def offsets(self, group: str) -> list[int]:
        found = [command.members for command, _ in self.entries if command.group == group]
        return [rows[0][2] for ((_, rows),) in found]


def test_a_commit_leaves_at_once_and_what_comes_meanwhile_as_the_next_entry() -> None:
    log = Log()
    for offset in (1, 2, 4, 3):
        log.commit("billing", offset)
    log.commit("audit", 1)
    assert (log.offsets("billing"), log.offsets("audit")) == ([1], [1])
    assert log.told == [], "nothing is told before its entry has taken effect"
    log.entries[0][1](None)
    assert (log.offsets("billing"), log.told) == ([1, 4], [None])
    log.entries[2][1](None)
    assert (log.offsets("billing"), log.told) == ([1, 4], [None] * 4)
    log.commit("billing", 5)
    assert log.offsets("billing") == [1, 4, 5]


def test_a_generation_is_committed_before_the_next_one_and_none_is_left_without_an_answer() -> None:
    log = Log()
    log.commit("billing", 1)
    log.commit("billing", 2)
    log.commit("billing", 1, generation=2)
    assert [command.generation for command, _ in log.entries] == [1, 1]
    gone = NotLeader("it leads no more")
    log.commits.end(gone)
    assert log.told == [gone]
    log.commit("billing", 3, generation=3)
    log.commit("billing", 4, generation=3)
    for _, done in log.entries[:2]:
        done(gone)  # of when it was master before: they say nothing of what is on its way now
    assert log.offsets("billing") == [1, 2, 3]
