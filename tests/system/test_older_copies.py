"""Real members whose directories an older copy has replaced."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.member_processes import MemberProcess, MemberProcesses
from quorumlog import LedgerClient, connect
from quorumlog.client import MemberStatusRow
from quorumlog.errors import IndexOutOfRange
from tests.system.test_processes import leader_of, stop_and_compare
from tests.waiting import eventually, wait_until_identical


def row_of(client: LedgerClient, member_id: str) -> MemberStatusRow:
    return next(row for row in client.status() if row.id == member_id)


def copied(member: MemberProcess, copy: Path) -> None:
    """In order: the member is stopped meanwhile."""
    member.stop()
    shutil.copytree(member.data_dir, copy)
    member.start()


def put_back(member: MemberProcess, copy: Path) -> None:
    if member.running:
        member.kill()
    shutil.rmtree(member.data_dir)
    shutil.copytree(copy, member.data_dir)
    member.start()


def check(servers: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "quorumlog", "status", "--check", "--servers", servers],
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_member_that_is_put_back_is_an_observer_until_it_takes_its_own_place(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    with (
        MemberProcesses(
            tmp_path / "members", segment_bytes=1 << 20, auto_replace_after_ms=3_000
        ) as members,
        connect(members.servers) as client,
    ):
        for number in range(20):
            client.append(b"a%d" % number)
        leader = leader_of(client)
        member, _ = [each for each in members.members if each.member_id != leader]
        wait_until_identical(client)
        copied(member, copy)
        held = max(row.committed_index for row in client.status())
        eventually(lambda: row_of(client, member.member_id).role == "follower")
        for number in range(300):
            last = client.append(b"b%d" % number).first_index
        wait_until_identical(client)
        assert leader_of(client) == leader
        old = row_of(client, member.member_id).directory_id
        put_back(member, copy)
        eventually(lambda: row_of(client, member.member_id).role == "observer")
        assert row_of(client, member.member_id).directory_id != old
        figures = f"(now ends at {held}, had acknowledged entry {last})"
        eventually(lambda: any(figures in each for each in row_of(client, leader).problems))
        eventually(lambda: any(figures in each for each in row_of(client, member.member_id).problems))
        checked = check(members.servers)
        assert checked.returncode == 1, checked
        assert f"directory {old} of {member.member_id} was rolled back" in checked.stderr
        client.append(b"without it")
        member.kill()
        member.start()
        eventually(lambda: row_of(client, member.member_id).role == "observer")
        eventually(lambda: row_of(client, member.member_id).role == "follower")
        eventually(lambda: check(members.servers).returncode == 0)
        wait_until_identical(client)
        stop_and_compare(members, client)


@pytest.mark.long
def test_clients_that_saw_more_than_a_majority_that_was_put_back_say_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        MemberProcesses(tmp_path / "members", segment_bytes=1 << 20) as members,
        connect(members.servers) as client,
    ):
        client.append(b"a")
        wait_until_identical(client)
        for member in members.members:
            member.stop()
            shutil.copytree(member.data_dir, tmp_path / f"copy of {member.member_id}")
        for member in members.members:
            member.start()
        tail = client.tail(0)
        for number in range(20):
            last = client.append(b"b%d" % number).first_index
        while next(tail).index < last:
            pass
        for member in members.members:
            member.kill()
        for member in members.members[:2]:
            put_back(member, tmp_path / f"copy of {member.member_id}")
        with pytest.raises(IndexOutOfRange, match=f"entry {last} was read, but the log now ends at"):
            next(tail)
        assert client.append(b"c").first_index < last
        eventually(
            lambda: any("has lost entries that were committed" in each for each in caplog.messages)
        )
