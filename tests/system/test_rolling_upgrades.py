"""Members of an earlier release beside members of this one, as while a group is upgraded one by one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import quorumlog
from harness.member_processes import MemberProcess, MemberProcesses
from quorumlog import LedgerClient, MemberStatusRow, connect
from quorumlog.errors import LevelNotReported, UpgradeNotFinished
from quorumlog.version import VERSION
from tests.system.test_processes import stop_and_compare
from tests.waiting import eventually, wait_until_identical

OLD, *NEW = "n0", "n1", "n2"
RETENTION = {
    "segment_bytes": 64 << 10,
    "index_segment_bytes": 16 << 10,
    "retention_bytes": 128 << 10,
    "retention_follower_budget_bytes": 0,
    "time_marks": False,
}


@pytest.fixture
def members(earlier: Path, tmp_path: Path) -> Iterator[MemberProcesses]:
    group = MemberProcesses(tmp_path / "members", **RETENTION)
    group[OLD].run_package(earlier)
    with group:
        yield group


def leader_of(client: LedgerClient) -> str:
    def find() -> str | None:
        leader = quorumlog.leader_of(client.status())
        return leader.id if leader is not None else None

    return eventually(find, what="a leader")


def let_lead(client: LedgerClient, member_id: str) -> None:
    def leads() -> bool:
        if leader_of(client) != member_id:
            client.transfer(member_id)
        return leader_of(client) == member_id

    eventually(leads, what=f"{member_id} as the leader")


def row_of(client: LedgerClient, member_id: str) -> MemberStatusRow:
    (row,) = [row for row in client.status() if row.id == member_id]
    return row


def drop_what_is_held_by(client: LedgerClient, away: MemberProcess) -> None:
    """It is killed, and comes back to a group whose log begins above the end of its own."""
    end = row_of(client, away.member_id).ledger_end_index
    away.kill()

    def has_dropped() -> bool:
        client.append_batch([b"x" * 1000] * 50)
        return min(row.ledger_begin_index for row in client.status() if row.reachable) > end + 1

    eventually(has_dropped, what="a begin above the end of the one that is away")


def test_old_and_new_members_form_replicate_elect_and_install(members: MemberProcesses) -> None:
    with connect(members.servers) as client:
        client.append(b"formed")
        for leader, away in ((OLD, NEW[0]), (NEW[1], OLD)):
            let_lead(client, leader)
            client.append_batch([b"y" * 100] * 100)
            wait_until_identical(client)
            drop_what_is_held_by(client, members[away])
            members[away].start()
            wait_until_identical(client)
            members[leader].kill()
            client.append(b"elected")
            assert leader_of(client) != leader
            members[leader].start()
        wait_until_identical(client)
        with pytest.raises(LevelNotReported, match=OLD):
            client.finish_upgrade()
        for new in NEW:
            told = {member.id: member.release for member in row_of(client, new).members}
            assert told == {OLD: "", **dict.fromkeys(NEW, VERSION)}
        stop_and_compare(members, client)


def test_a_group_is_upgraded_one_member_at_a_time_and_a_member_may_go_back(
    members: MemberProcesses, earlier: Path
) -> None:
    with connect(members.servers) as client:
        written = {client.append(b"formed").first_index: b"formed"}
        for member_id, package in (
            (NEW[0], earlier),
            (NEW[1], earlier),
            (OLD, None),
            *((n, None) for n in NEW),
        ):
            wait_until_identical(client)
            member = members[member_id]
            member.stop()
            member.run_package(package)
            member.start()
            body = f"behind {member_id}".encode()
            written[client.append(body).first_index] = body
        wait_until_identical(client)
        assert {index: client.get(index).body for index in written} == written
        with pytest.raises(UpgradeNotFinished, match="quorumlog upgrade finish"):
            client.reset_clock()
        client.finish_upgrade()
        client.reset_clock()
        end = client.append(b"no way back").last_index
        wait_until_identical(client)
        members[OLD].stop()
        members[OLD].run_package(earlier)
        members[OLD].start()
        eventually(lambda: not members[OLD].running, what="an end: it cannot read this directory")
        assert "version" in members[OLD].last_words()
        members[OLD].run_package(None)
        members[OLD].start()
        wait_until_identical(client)
        assert client.get(end).body == b"no way back"
        stop_and_compare(members, client)
