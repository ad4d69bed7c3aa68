"""Real processes, killed and stopped, under clients that remember what they were promised."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import quorumlog
from harness.member_processes import MemberProcesses
from quorumlog import LedgerClient, OutcomeUnknown, Refused, connect
from quorumlog.errors import DiskFull
from tests.waiting import assert_same_log, eventually, wait_until_identical

SEGMENT_BYTES = 1 << 20


@pytest.fixture
def members(tmp_path: Path) -> Iterator[MemberProcesses]:
    with MemberProcesses(tmp_path / "members", segment_bytes=SEGMENT_BYTES) as members:
        with connect(members.servers) as client:
            client.append(b"formed")
        yield members


def leader_of(client: LedgerClient) -> str:
    def find() -> str | None:
        leader = quorumlog.leader_of(client.status())
        return leader.id if leader is not None else None

    return eventually(find, what="a leader")


class Producers:
    """Threads that append numbered bodies, each over a client of its own, and keep a history."""

    def __init__(self, servers: str, count: int = 4, timeout_ms: int = 30_000) -> None:
        self.acknowledged: dict[bytes, int] = {}
        self.unknown: set[bytes] = set()
        self.refused: set[bytes] = set()
        self._servers = servers
        self._timeout_ms = timeout_ms
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(n,)) for n in range(count)]

    def __enter__(self) -> Producers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self, number: int) -> None:
        count = 0
        with connect(self._servers, timeout_ms=self._timeout_ms) as client:
            while not self._stop.is_set():
                body = b"%d/%d" % (number, count)
                count += 1
                try:
                    self.acknowledged[body] = client.append(body).first_index
                except OutcomeUnknown:
                    self.unknown.add(body)
                except Refused:
                    self.refused.add(body)

    def wait_for_more(self, count: int = 200) -> None:
        target = len(self.acknowledged) + count
        eventually(lambda: len(self.acknowledged) >= target, what=f"{count} more acknowledged appends")


def check_history(producers: Producers, client: LedgerClient) -> None:
    """Acknowledged: exactly once, at its index. Refused: absent. Unknown: at most once."""
    log = {entry.index: entry.body for entry in client.read(0)}
    bodies = [body for body in log.values() if body != b"formed"]
    assert len(bodies) == len(set(bodies)), "an append is in the log twice"
    for body, index in producers.acknowledged.items():
        assert log.get(index) == body
    assert not producers.refused & set(bodies)
    assert set(bodies) <= set(producers.acknowledged) | producers.unknown


def stop_and_compare(members: MemberProcesses, client: LedgerClient) -> None:
    """Every member ends with status 0 on SIGTERM, the leader last, and all hold the same log."""
    end = wait_until_identical(client)
    leader = leader_of(client)
    for member in sorted(members.members, key=lambda member: member.member_id == leader):
        member.stop()
    assert_same_log(members.data_dirs, end=end)


def test_leaders_that_are_killed_stopped_and_ended_under_load_lose_nothing(
    members: MemberProcesses,
) -> None:
    with connect(members.servers) as client:
        with Producers(members.servers) as producers:
            producers.wait_for_more()
            killed = members[leader_of(client)]
            killed.kill()
            producers.wait_for_more()
            killed.start()

            stopped = members[leader_of(client)]
            stopped.pause()
            try:
                producers.wait_for_more()
            finally:
                stopped.resume()
            producers.wait_for_more()

            ended = members[leader_of(client)]
            ended.stop()
            producers.wait_for_more()
            assert leader_of(client) != ended.member_id
            ended.start()

            for member in members.members:
                member.kill()
            for member in members.members:
                member.start()
            producers.wait_for_more()
        check_history(producers, client)
        stop_and_compare(members, client)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_full_file_system_refuses_appends_and_recovers_by_itself(tmp_path: Path) -> None:
    """A tmpfs under every member, filled from outside; space returns, appends go on, nothing is lost."""
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128m", "tmpfs", folder], check=True)
    try:
        with (
            MemberProcesses(folder / "members", segment_bytes=4 << 20) as members,
            connect(members.servers, timeout_ms=2000) as client,
        ):
            with connect(members.servers) as patient:
                first = patient.append(b"formed")
            ballast = folder / "ballast"
            eventually(lambda: _fill(ballast), what="a full file system")
            written: list[int] = []

            def refused() -> DiskFull | None:
                try:
                    written.append(client.append(b"x" * 100_000).first_index)
                except DiskFull as error:
                    return error
                except (Refused, OutcomeUnknown):
                    pass  # a leader that was starved for a while is deposed
                return None

            eventually(refused, what="DiskFull")
            assert leader_of(client)
            assert client.get(first.first_index).body == b"formed"
            ballast.unlink()
            again = eventually(lambda: _try_append(client, b"space again"))
            assert client.get(again).body == b"space again"
            for index in written:
                assert client.get(index).body == b"x" * 100_000
            stop_and_compare(members, client)
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def _fill(ballast: Path) -> bool:
    """With all the space that is left; members may take some at the same moment."""
    with ballast.open("ab") as file:
        usage = os.statvfs(ballast)
        if usage.f_bavail == 0:
            return True
        try:
            os.posix_fallocate(file.fileno(), file.tell(), usage.f_bavail * usage.f_frsize)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            return False
    return True


def _try_append(client: LedgerClient, body: bytes) -> int | None:
    try:
        return client.append(body).first_index
    except (Refused, OutcomeUnknown):
        return None


@pytest.mark.parametrize("is_wiped", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_member_comes_back_to_a_group_that_has_dropped_all_that_it_held(
    tmp_path: Path, is_wiped: bool
) -> None:
    """It gets the start of the leader's log and what follows, while producers go on."""
    small = {"segment_bytes": 64 << 10, "index_segment_bytes": 16 << 10, "retention_bytes": 128 << 10}
    with (
        MemberProcesses(
            tmp_path / "members", retention_follower_budget_bytes=0, time_marks=False, **small
        ) as members,
        connect(members.servers) as client,
    ):
        end = client.append(b"formed").last_index
        wait_until_identical(client)
        away = next(m for m in members.members if m.member_id != leader_of(client))
        away.kill()
        rows = [row for row in client.status() if row.reachable]
        end = max(row.ledger_end_index for row in rows)

        def has_dropped() -> bool:
            client.append_batch([b"x" * 1000] * 50)
            begins = [row.ledger_begin_index for row in client.status() if row.reachable]
            return min(begins) > end + 1

        eventually(has_dropped, what="a begin above the end of the one that is away")
        if is_wiped:
            shutil.rmtree(away.data_dir)
        with Producers(members.servers) as producers:
            away.start()
            producers.wait_for_more()
        wait_until_identical(client)
        (row,) = [row for row in client.status() if row.id == away.member_id]
        assert row.ledger_begin_index > end + 1
        assert row.role in ("follower", *(("observer",) if is_wiped else ()))
        stop_and_compare(members, client)
