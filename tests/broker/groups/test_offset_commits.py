"""What members commit is gathered."""

from __future__ import annotations

from quorumlog.broker.groups.offset_commits import Done, OffsetCommits
from quorumlog.broker.wire.group_commands import CommitOffsets
from quorumlog.errors import LedgerError, NotLeader


class Log:
    def __init__(self) -> None:
        self.entries: list[tuple[CommitOffsets, Done]] = []
        self.told: list[LedgerError | None] = []
        self.commits = OffsetCommits(lambda command, done: self.entries.append((command, done)), 1_000)

    def commit(self, group: str, offset: int, now_ms: float, generation: int = 1) -> None:
        rows = (("orders", 0, offset),)
        self.commits.add(group, generation, "m", rows, self.told.append, now_ms)


def test_at_most_one_entry_a_group_and_interval_holds_the_highest_of_all() -> None:
    log = Log()
    for now_ms in range(0, 3_000, 10):
        log.commit("billing", now_ms, float(now_ms))
        log.commit("audit", 1, float(now_ms))
        log.commits.tick(float(now_ms))
    found = [command for command, _ in log.entries if command.group == "billing"]
    assert [each.members for each in found] == [
        (("m", (("orders", 0, offset),)),) for offset in (0, 1_000, 2_000)
    ]
    assert len(log.entries) == 6
    assert log.told == [], "nothing is told before its entry has taken effect"
    for _, done in log.entries:
        done(None)
    assert len(log.told) == 2 * 201


def test_a_generation_is_committed_before_the_next_one_and_none_is_left_without_an_answer() -> None:
    log = Log()
    log.commit("billing", 1, 0.0)
    log.commit("billing", 2, 1.0)
    log.commit("billing", 1, 2.0, generation=2)
    assert [command.generation for command, _ in log.entries] == [1, 1]
    gone = NotLeader("it leads no more")
    log.commits.end(gone)
    assert log.told == [gone]
