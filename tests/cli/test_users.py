"""Users, roles and grants by the command line, and what a person reads where one is missing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quorumlog import LocalCluster
from tests.cli.conftest import Cli
from tests.waiting import eventually


@pytest.fixture
def group(tmp_path: Path) -> LocalCluster:
    return LocalCluster(1, directory=tmp_path / "members")


def test_from_the_first_user_to_a_right_that_is_taken(
    cli: Cli, group: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alice, bob = tmp_path / "alice", tmp_path / "bob"
    alice.write_text("sesame\n")
    bob.write_text("tahini\n")
    lines = tmp_path / "lines"
    lines.write_text("an entry\n")
    with group:
        monkeypatch.setenv("QUORUMLOG_SERVERS", group.servers)

        def said(*words: str, fails: int = 0) -> str:
            result = cli(*words)
            assert result.exit_code == fails, result.output
            return str(result.output)

        assert "there are no users" in said("user", "list")
        first = ("user", "add", "alice", "--role", "admin", "--new-password-file", str(alice))
        said(*first)
        assert "the connection named none" in said("append", str(lines), fails=1)
        assert "problems are shown to users only" in said("status", "--check", fails=1)
        monkeypatch.setenv("QUORUMLOG_USER", "alice")
        assert "user alice has no password" in said("append", str(lines), fails=2)
        monkeypatch.setenv("QUORUMLOG_PASSWORD", "wrong")
        assert "the user or the password is wrong" in said("append", str(lines), fails=1)
        monkeypatch.setenv("QUORUMLOG_PASSWORD", "sesame")
        said("append", str(lines))
        said("role", "add", "reads")
        said("grant", "reads", "read", "log", "def*")
        said("user", "add", "bob", "--role", "reads", "--new-password-file", str(bob))
        users = said("user", "list").split()
        assert users[3:] == ["alice", "admin", "password", "bob", "reads", "password"]
        assert "read log def*" in said("role", "list")
        rows = said("who-can", "read", "log", "default", "--json").splitlines()
        assert [json.loads(row)["user"] for row in rows] == ["alice", "bob"]
        assert said("who-can", "write", "log", "default").split()[3:4] == ["alice"]
        as_bob = ("--user", "bob", "--password-file", str(bob))
        assert "an entry" in said("read", *as_bob)
        assert "user bob may not write log 'default'" in said("append", str(lines), *as_bob, fails=1)
        assert "not granted to reads" in said("revoke", "reads", "read", "log", "default", fails=2)
        said("revoke", "reads", "read", "log", "def*")
        assert "user bob may not read log 'default'" in said("read", *as_bob, fails=1)
        assert "there would be no administrator" in said("user", "remove", "alice", fails=2)
        assert "is not a right" in said("grant", "reads", "eat", "log", "x", fails=2)
        assert "the name of the topic is missing" in said("grant", "reads", "read", "topic", fails=2)
        assert "takes no name" in said("grant", "reads", "read", "cluster", "x", fails=2)


def test_an_administrator_from_outside(
    cli: Cli, group: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with group:
        directory = group.data_dir("n0")
        monkeypatch.setenv("QUORUMLOG_NEW_PASSWORD", "sesame")
        running = cli("init-admin", str(directory), "alice")
        assert running.exit_code == 2 and "is in use by another process" in running.output
        group.stop("n0")
        assert "becomes an administrator" in cli("init-admin", str(directory), "bob").output
        result = cli("init-admin", str(directory), "alice")
        assert "bob, who was to become an administrator at the next start, no longer is" in result.output
        assert "alice becomes an administrator of group default" in result.output
        file = directory / "admin-bootstrap"
        assert file.stat().st_mode & 0o777 == 0o600 and b"sesame" not in file.read_bytes()
        group.restart("n0")
        eventually(lambda: not file.exists())
        monkeypatch.setenv("QUORUMLOG_PASSWORD", "sesame")
        listed = cli("user", "list", "--servers", group.servers, "--user", "alice")
        assert listed.exit_code == 0 and "alice" in listed.output and "bob" not in listed.output
    assert cli("init-admin", str(tmp_path), "alice").exit_code == 2
    assert "has a name of 1 to 64" in cli("init-admin", str(directory), "a b").output
