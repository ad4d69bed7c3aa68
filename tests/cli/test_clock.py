"""`quorumlog clock reset` against a running cluster."""

from __future__ import annotations

import json
import re
import time

import pytest

from quorumlog import LocalCluster, connect
from quorumlog.consensus.elector import HeartbeatAnswers
from quorumlog.log_state.control_entries import LEVEL
from quorumlog.server.node_driver import NodeDriver
from quorumlog.version import IS_COMPILED
from tests.cli.conftest import Cli
from tests.waiting import eventually


def test_it_begins_the_time_of_the_log_anew(cli: Cli, cluster: LocalCluster) -> None:
    with connect(cluster.servers) as log:
        driver = cluster.server(cluster.leader()).drivers[0]
        eventually(lambda: not driver.members_below(LEVEL))
        before = log.clock_resets()
        result = cli("clock", "reset", "--servers", cluster.servers, "--json")
        assert result.exit_code == 0, result.output
        (reset,) = log.clock_resets()[len(before) :]
        assert json.loads(result.stdout) == {"index": reset.index, "time_ms": reset.time_ms}
        assert abs(reset.time_ms - time.time() * 1000) < 60_000
        result = cli("clock", "reset", "--servers", cluster.servers)
        assert re.fullmatch(
            r"the log's time begins anew at \d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ, with entry \d+\n",
            result.stdout,
        ), result.output


def test_a_member_that_does_not_know_the_entry_is_named(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NodeDriver, "members_below", lambda driver, level: ["n0"])
    with LocalCluster(1) as alone:
        result = cli("clock", "reset", "--servers", alone.servers)
        assert result.exit_code == 1
        assert "CLOCK entries need level 6" in result.stderr
        assert "n0 has not reported" in result.stderr


@pytest.mark.skipif(IS_COMPILED, reason="a compiled core takes no other method")
def test_clocks_that_differ_are_named(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    with LocalCluster(3) as apart:
        replicas = [apart.server(each.member_id).drivers[0].node.replica for each in apart.members]
        now_ms = time.time_ns() // 1_000_000
        clocks = {replica: now_ms + 90_000 * number for number, replica in enumerate(replicas)}
        monkeypatch.setattr(HeartbeatAnswers, "clocks_ms", lambda answers: clocks)
        result = cli("clock", "reset", "--servers", apart.servers)
        assert result.exit_code == 1
        assert "the clocks of a quorum differ by more than 60 s" in result.stderr
        leader = apart.leader()
        assert f"{leader} +0.0 s" in result.stderr
        assert f"against {leader}" in result.stderr
        assert "set them right first" in result.stderr
