"""`quorumlog upgrade` against a running cluster."""

from __future__ import annotations

import json

import pytest

from quorumlog import LocalCluster
from quorumlog.log_state.control_entries import LEVEL
from quorumlog.server.node_driver import NodeDriver
from quorumlog.version import VERSION
from tests.cli.conftest import Cli

BEFORE = 5
"""The level of the release before, whose log may go on growing without an upgrade."""


def test_a_group_that_this_release_has_formed_has_nothing_to_finish(
    cli: Cli, cluster: LocalCluster
) -> None:
    result = cli("upgrade", "status", "--servers", cluster.servers)
    assert result.exit_code == 0, result.output
    assert f"The level of the log is {LEVEL}: there is nothing to finish" in result.stdout
    result = cli("upgrade", "status", "--servers", cluster.servers, "--json")
    members = [{"id": each.member_id, "release": VERSION, "level": LEVEL} for each in cluster.members]
    assert json.loads(result.stdout) == {"level": LEVEL, "members": members}


def test_a_group_of_the_release_before_says_what_to_do_and_does_it(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NodeDriver, "level", BEFORE)  # as its members told when the group formed
    with LocalCluster(1) as upgraded:
        servers = ("--servers", upgraded.servers)
        told = cli("upgrade", "status", *servers).stdout
        assert f"The level of the log is {BEFORE}, and all members know {LEVEL}: " in told
        assert "quorumlog upgrade finish" in told
        refused = cli("clock", "reset", *servers)
        assert refused.exit_code == 1
        assert "run quorumlog upgrade finish once every member runs this release" in refused.stderr
        result = cli("upgrade", "finish", *servers)
        assert result.exit_code == 0, result.output
        assert f"the level of the log is {LEVEL}; no member can go back" in result.stdout
        assert json.loads(cli("upgrade", "finish", *servers, "--json").stdout) == {"level": LEVEL}
        assert "there is nothing to finish" in cli("upgrade", "status", *servers).stdout
        assert cli("clock", "reset", *servers).exit_code == 0


def test_members_that_have_not_told_are_named(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NodeDriver, "level", LEVEL - 1)
    monkeypatch.setattr(NodeDriver, "members_below", lambda driver, level: ["n0"])
    with LocalCluster(1) as upgraded:
        result = cli("upgrade", "finish", "--servers", upgraded.servers)
        assert result.exit_code == 1
        assert "n0 has not reported" in result.stderr
