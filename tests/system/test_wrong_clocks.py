"""The clocks of all members are ten years ahead for a while, and right again: what a user sees of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from typer.testing import CliRunner

from quorumlog import LocalCluster, StoreConfig, connect
from quorumlog.cli.main import app
from quorumlog.client import LedgerClient, MemberStatusRow, leader_of
from quorumlog.log_state.control_entries import LEVEL
from quorumlog.server.node_driver import NodeDriver
from tests.waiting import eventually

HOUR_MS = 3_600_000
YEARS_MS = 10 * 365 * 24 * HOUR_MS
STORAGE = StoreConfig(
    segment_bytes=16 * 1024,
    index_segment_bytes=3200,
    reserve_step_bytes=16 * 1024,
    max_entry_bytes=8192,
    file_reserved_hours=1,
)


@dataclass
class Clocks:
    """Of the members, against the true time."""

    ahead_ms: int = 0

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000 + self.ahead_ms

    def set(self, cluster: LocalCluster, ahead_ms: int) -> None:
        """Returns once whoever leads has heard of it from a quorum."""
        self.ahead_ms = ahead_ms
        least, most = self.now_ms() - 60_000, self.now_ms() + 600_000
        eventually(lambda: least < leading(cluster).node.raft.answers.quorum_clock_ms() < most)


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    clocks = Clocks()
    monkeypatch.setattr(NodeDriver, "wall_clock_ms", lambda driver: clocks.now_ms())
    return clocks


@pytest.fixture
def cluster(clocks: Clocks) -> Iterator[LocalCluster]:
    with LocalCluster(3, storage=STORAGE, time_marks=True) as cluster:
        eventually(lambda: not leading(cluster).members_below(LEVEL))
        yield cluster


def leading(cluster: LocalCluster) -> NodeDriver:
    return cluster.server(cluster.leader()).drivers[0]


def fill(log: LedgerClient, count: int) -> int:
    """The index of the last."""
    return [log.append(bytes(1000)).last_index for _ in range(count)][-1]


def reasons(log: LedgerClient) -> set[str]:
    """Why the segments but the newest stay."""
    return {reason for each in log.why_kept().segments[:-1] for reason in each.reasons}


def begin_of(log: LedgerClient) -> int:
    return leader_row(log).ledger_begin_index


def leader_row(log: LedgerClient) -> MemberStatusRow:
    row = leader_of(log.status())
    assert row is not None
    return row


def since(log: LedgerClient, hours: float) -> int:
    return log.index_at(datetime.now(UTC) + timedelta(hours=hours))


def test_clocks_that_jump_for_a_while_delete_nothing_and_leave_nothing_behind(
    cluster: LocalCluster, clocks: Clocks
) -> None:
    with connect(cluster.servers) as log:
        fill(log, 40)
        clocks.set(cluster, YEARS_MS)
        fill(log, 40)
        # A follower that has not acknowledged all of it keeps segments for a moment.
        eventually(
            lambda: (
                {reason.partition(" (")[0] for reason in reasons(log)}
                == {"younger than file_reserved_hours"}
            )
        )
        assert begin_of(log) <= 0
        (problem,) = leader_row(log).problems
        assert "quorumlog clock reset" in problem
        clocks.set(cluster, HOUR_MS // 6)
        last = fill(log, 40)
        assert leader_row(log).problems == ()
        clocks.set(cluster, 3 * HOUR_MS)
        first_late = fill(log, 40) - 39
        assert last < since(log, 4)
        eventually(lambda: 60 < begin_of(log) <= first_late)


def test_a_log_that_began_ten_years_ahead_lives_again_after_a_reset(clocks: Clocks) -> None:
    clocks.ahead_ms = YEARS_MS
    with (
        LocalCluster(3, storage=STORAGE, time_marks=True) as cluster,
        connect(cluster.servers) as log,
    ):
        eventually(lambda: not leading(cluster).members_below(LEVEL))
        fill(log, 40)
        clocks.set(cluster, 0)
        last = fill(log, 40)
        (problem,) = leader_row(log).problems
        assert "ahead of the clocks of a quorum" in problem
        assert "quorumlog clock reset" in problem
        result = CliRunner().invoke(app, ["clock", "reset", "--servers", cluster.servers])
        assert result.exit_code == 0, result.output
        assert leader_row(log).problems == ()
        assert log.time_at(last) == log.time_at(log.end_index())
        fill(log, 5)
        clocks.set(cluster, 3 * HOUR_MS)
        first_late = fill(log, 40) - 39
        assert last < since(log, 4)
        eventually(lambda: last - 40 < begin_of(log) <= first_late)
