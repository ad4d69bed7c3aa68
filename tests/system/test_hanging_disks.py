"""Real processes on disks of which no sync returns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from harness.member_processes import MemberProcess, MemberProcesses
from quorumlog import LedgerClient, OutcomeUnknown, connect
from quorumlog.client import MemberStatusRow
from quorumlog.errors import LedgerError
from tests.system.test_processes import leader_of, stop_and_compare
from tests.waiting import eventually

SYNCS = Path(__file__).parent / "hanging_syncs"


@contextmanager
def members_with_disks_that_may_hang(folder: Path, **options: Any) -> Iterator[MemberProcesses]:
    with MemberProcesses(folder / "members", package=SYNCS, **options) as members:
        try:
            yield members
        finally:
            for member in members.members:
                sign_of(member).unlink(missing_ok=True)


def sign_of(member: MemberProcess) -> Path:
    return member.data_dir.with_suffix(".hangs")


def says_that_it_hangs(row: MemberStatusRow, member_id: str) -> bool:
    return any(f"{member_id} receives entries and has synced none" in each for each in row.problems)


def row_of(client: LedgerClient, member_id: str) -> MemberStatusRow:
    return next(row for row in client.status() if row.id == member_id)


def bodies_at(client: LedgerClient, member_id: str) -> list[bytes]:
    return [entry.body for entry in client.read(0, from_member=member_id)]


def test_who_has_a_vote_that_waits_for_a_disk_tells_its_status_reads_and_refuses_appends(
    tmp_path: Path,
) -> None:
    with (
        members_with_disks_that_may_hang(tmp_path, heartbeat_interval_ms=60) as members,
        connect(members.servers) as client,
    ):
        client.append(b"formed")
        leader = leader_of(client)
        hanging, candidate = [m for m in members.members if m.member_id != leader]
        hanging.stop()
        hanging.start()  # with nothing in its memory
        eventually(lambda: row_of(client, hanging.member_id).role == "follower", what="a follower again")
        eventually(
            lambda: bodies_at(client, hanging.member_id) == [b"formed"], what="what is committed there"
        )
        sign_of(hanging).touch()
        members[leader].kill()
        eventually(
            lambda: says_that_it_hangs(row_of(client, hanging.member_id), hanging.member_id),
            what="a status that says so",
        )
        assert row_of(client, candidate.member_id).role != "leader", "elected by a vote on no disk"
        with connect(hanging.address, timeout_ms=5_000) as only:
            assert bodies_at(only, hanging.member_id) == [b"formed"]
            with pytest.raises(LedgerError):
                only.append(b"to nobody")
        sign_of(hanging).unlink()
        index = client.append(b"after all").first_index
        members[leader].start()
        bodies = [entry.body for entry in client.read(0)]
        assert bodies == [b"formed", b"after all"] and client.get(index).body == b"after all"


@pytest.mark.long
def test_a_leader_whose_disk_hangs_hands_over_and_appends_go_on(tmp_path: Path) -> None:
    with (
        members_with_disks_that_may_hang(tmp_path) as members,
        connect(members.servers, timeout_ms=30_000) as client,
    ):
        written = [client.append(b"formed").first_index]
        old = leader_of(client)
        sign_of(members[old]).touch()
        has_said = False
        while leader_of(client) == old:  # an append that waits for its disk runs into the time-out
            written.append(client.append(b"meanwhile").first_index)
            has_said |= says_that_it_hangs(row_of(client, old), old)
        assert has_said, "the leader does not say that its disk hangs"
        written.append(client.append(b"handed over").first_index)
        assert says_that_it_hangs(row_of(client, old), old), "who has such a disk does not answer"
        sign_of(members[old]).unlink()
        assert [entry.index for entry in client.read(0)] == written
        stop_and_compare(members, client)


@pytest.mark.long
def test_without_a_quorum_of_disks_nothing_is_acknowledged_and_nothing_lost(tmp_path: Path) -> None:
    with (
        members_with_disks_that_may_hang(tmp_path) as members,
        connect(members.servers, timeout_ms=8_000) as client,
    ):
        written = [client.append(b"formed").first_index]
        leader = leader_of(client)
        dead = next(m for m in members.members if m.member_id != leader)
        dead.kill()
        written.append(client.append(b"by two").first_index)
        sign_of(members[leader]).touch()
        with pytest.raises(OutcomeUnknown):
            client.append(b"by one")
        assert row_of(client, leader).role == "leader"
        assert says_that_it_hangs(row_of(client, leader), leader)
        sign_of(members[leader]).unlink()
        eventually(lambda: client.append(b"by two again"), what="appends that go on")
        dead.start()
        bodies = [entry.body for entry in client.read(0)]
        assert bodies[:2] == [b"formed", b"by two"] and bodies[-1] == b"by two again"
        stop_and_compare(members, client)
