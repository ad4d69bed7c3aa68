"""A leader that has committed offsets expire, in virtual time."""

from __future__ import annotations

import pytest

from quorumlog.config import KafkaOptions
from quorumlog.errors import ConfigError, LedgerError, NotLeader
from quorumlog.kafka.expiry import NAMES, Done, OffsetExpiry
from quorumlog.kafka.groups import GroupCoordinator, JoinRequest
from quorumlog.kafka.machine import KeepKafkaOffsets

MINUTE_MS = 60_000
WEEK_MS = 7 * 24 * 60 * MINUTE_MS


class Leader:
    def __init__(self, retention_ms: int = WEEK_MS) -> None:
        self.written: list[KeepKafkaOffsets] = []
        self.refusal: LedgerError | None = None
        self.coordinator = GroupCoordinator(lambda: "it")
        self.expiry = OffsetExpiry(retention_ms, self.coordinator, self._append)
        self.groups: set[str] = set()
        self.now_ms = 0

    def _append(self, command: KeepKafkaOffsets, done: Done) -> None:
        self.written.append(command)
        done((b"",) if self.refusal is None else self.refusal)

    def pass_ms(self, ms: int) -> None:
        for _ in range(0, ms, 1_000):
            self.now_ms += 1_000
            self.coordinator.tick(self.now_ms)
            self.expiry.tick(self.now_ms, self.groups)

    def join(self, group: str) -> None:
        self.groups.add(group)
        request = JoinRequest(
            group, "", None, "c", "h", 1_800_000, 1_800_000, "consumer", (("range", b""),)
        )
        self.coordinator.join(request, lambda answer: None)


def test_it_says_every_ten_minutes_which_groups_have_members() -> None:
    leader = Leader()
    leader.pass_ms(20 * MINUTE_MS)
    assert leader.written == [], "where no offset is committed there is nothing to say"
    leader.groups.add("gone")
    leader.join("here")
    leader.pass_ms(20 * MINUTE_MS)
    assert [each.with_members for each in leader.written] == [["here"]] * 2
    assert [each.retention_ms for each in leader.written] == [WEEK_MS] * 2


def test_a_new_leader_waits_for_members_to_join_again() -> None:
    leader = Leader()
    leader.groups.add("gone")
    leader.pass_ms(10 * MINUTE_MS - 1_000)
    assert leader.written == []


def test_many_groups_are_several_entries_of_which_the_last_has_offsets_expire() -> None:
    leader = Leader(MINUTE_MS)
    for number in range(2 * NAMES + 1):
        leader.join(f"g{number}")
    leader.pass_ms(7_000)
    assert [len(each.with_members) for each in leader.written] == [NAMES, NAMES, 1]
    assert [each.retention_ms for each in leader.written] == [None, None, MINUTE_MS]


def test_the_first_entry_of_a_leader_says_so() -> None:
    leader = Leader(MINUTE_MS)
    leader.groups.add("gone")
    leader.refusal = NotLeader("another one leads")
    leader.pass_ms(7_000)
    leader.refusal = None
    leader.pass_ms(12_000)
    assert [each.is_first for each in leader.written] == [True, True, False]


def test_a_leader_whose_process_was_stopped_begins_anew() -> None:
    leader = Leader()
    leader.join("here")
    leader.pass_ms(21 * MINUTE_MS)
    leader.now_ms += 2 * WEEK_MS  # no session outlives it
    leader.pass_ms(9 * MINUTE_MS)
    assert len(leader.written) == 2, "members have to join again"
    leader.join("here")
    leader.pass_ms(2 * MINUTE_MS)
    assert [each.is_first for each in leader.written] == [True, False, True]
    assert leader.written[-1].with_members == ["here"]


def test_where_one_of_them_is_not_written_nothing_expires() -> None:
    leader = Leader(MINUTE_MS)
    for number in range(NAMES + 1):
        leader.join(f"g{number}")
    leader.refusal = NotLeader("another one leads")
    leader.pass_ms(7_000)
    assert [each.retention_ms for each in leader.written] == [None]


def test_offsets_are_kept_for_a_minute_at_least() -> None:
    with pytest.raises(ConfigError, match="offsets_retention_minutes must be 1 or more"):
        KafkaOptions("127.0.0.1:9092", offsets_retention_minutes=0)
