"""why and reload: what members remember, and what they read again."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest

from quorumlog import LocalCluster, WrongLastIndex, connect
from quorumlog.kv import connect as connect_store
from quorumlog.kv.errors import NoSpace
from quorumlog.server.free_ports import free_ports
from tests.cli.conftest import STORAGE, Cli, objects, plain
from tests.cli.test_serve import first_line
from tests.waiting import eventually


def why(cli: Cli, kind: str, servers: str) -> list[dict[str, Any]]:
    result = cli("why", kind, "--servers", servers, "--json")
    assert result.exit_code == 0, result.output
    return objects(result.stdout)


def test_members_remember_who_led_why_they_are_behind_and_what_they_refused(cli: Cli) -> None:
    with LocalCluster(members=3, storage=STORAGE) as cluster, connect(cluster.servers) as log:
        old = cluster.leader()
        log.append(b"a")
        for _ in range(3):
            with pytest.raises(WrongLastIndex):
                log.append(b"b", expected_last=12_345)
        new = next(each.member_id for each in cluster.members if each.member_id != old)
        eventually(lambda: log.transfer(new) == new, what="another leader")
        told = why(cli, "leader", cluster.servers)
        assert {row["member"] for row in told} == {"n0", "n1", "n2"}
        assert any(row["member"] == new and f"{old} hands over to it" in row["text"] for row in told)
        led = [row["text"] for row in told if row["member"] == new and "leads in term" in row["text"]]
        assert len(led) == 1
        (refused,) = why(cli, "refused", cluster.servers)
        assert (refused["member"], refused["times"]) == (old, 3)
        assert refused["text"].startswith("WrongLastIndex: expected_last is 12345")
        third = ({"n0", "n1", "n2"} - {old, new}).pop()
        cluster.kill(third)
        log.append(b"c")
        lost = f"has lost {third}"
        eventually(
            lambda: any(row["text"] == lost for row in why(cli, "behind", cluster.servers)), what=lost
        )
        said = cli("why", "behind", "--servers", cluster.servers)
        assert f"{third}: not connected" in plain(said.stderr)
        assert lost in said.stdout


@pytest.mark.processes
def test_reload_answers_what_has_changed_and_what_needs_a_restart(
    cli: Cli, start: Callable[..., Popen[bytes]], tmp_path: Path, free_address: str
) -> None:
    config = tmp_path / "member.toml"
    member = f'member_id = "n0"\nmembers = "n0={free_address}"\ndata_dir = "{tmp_path}/log"\n'
    config.write_text(member)
    process = start("serve", "--config", config, "--log-format", "json")
    first_line(process)
    with connect(free_address) as log:
        log.append(b"of a leader")
    limits = "[limits]\nuser_requests = 7\n"
    config.write_text(f'log_level = "debug"\nbind = "127.0.0.1:1"\nlinger_ms = 7\n{member}{limits}')
    result = cli("reload", "--servers", free_address, "--json")
    assert result.exit_code == 0, result.output
    told = {(row["outcome"], row["text"]) for row in objects(result.stdout)}
    assert ("changed", "log_level info -> debug") in told
    assert ("changed", "[limits] user_requests 0 -> 7") in told
    assert ("needs a restart", "bind") in told
    assert any(outcome == "changed" and "linger_ms 0 -> 7" in text for outcome, text in told)
    config.write_text("nonsense")
    result = cli("reload", "--servers", free_address, "--json")
    (row,) = objects(result.stdout)
    assert (row["outcome"], result.exit_code) == ("refused", 1)
    assert row["text"].startswith("nothing is reloaded: ")
    process.terminate()
    _, said = process.communicate(timeout=30)
    lines = [json.loads(line) for line in said.decode().splitlines()]
    assert {"role", "reload", "connection_begins"} <= {line["event"] for line in lines}
    assert all(set(line) <= {"time", "level", "event", "message", "error"} for line in lines)


@pytest.mark.processes
def test_reload_raises_the_quota_of_a_store(
    cli: Cli, start: Callable[..., Popen[bytes]], tmp_path: Path, free_address: str
) -> None:
    config = tmp_path / "member.toml"
    member = f'member_id = "n0"\nmembers = "n0={free_address}"\ndata_dir = "{tmp_path}/log"\n[kv]\n'
    config.write_text(f"{member}quota_mib = 1\n")
    said = cli("serve", "--config", config)
    assert (said.exit_code, "[kv] is for `quorumlog kv serve` only" in said.stderr) == (2, True)
    store = f"127.0.0.1:{free_ports(1)[0]}"
    first_line(start("kv", "serve", "--config", config, "--listen", store))
    with connect_store(store) as keys:
        for key in ("a", "b"):
            keys.put(key, bytes(700_000))
        with pytest.raises(NoSpace):
            keys.put("c", bytes(700_000))
        config.write_text(f"{member}quota_mib = 8\n")
        rows = objects(cli("reload", "--servers", free_address, "--json").stdout)
        assert [row["text"] for row in rows] == ["quota_bytes 1048576 -> 8388608"]
        keys.put("c", bytes(700_000))


def test_a_server_that_does_not_answer_fails_the_reload(cli: Cli, free_address: str) -> None:
    with LocalCluster(1, storage=STORAGE) as cluster:
        servers = f"{cluster.servers},{free_address}"
        result = cli("reload", "--servers", servers, "--timeout", "2", "--json")
    assert result.exit_code == 1
    told = {(row["member"], row["outcome"]) for row in objects(result.stdout)}
    assert told == {("n0", "changed"), (free_address, "failed")}


def test_reload_asks_the_listed_servers_and_no_others(cli: Cli) -> None:
    with LocalCluster(3, storage=STORAGE) as cluster:
        with connect(cluster.servers) as log:
            log.append(b"so that every member is known to every client")
        first = cluster.servers.split(",")[0]
        rows = objects(cli("reload", "--servers", first, "--json").stdout)
    assert len(rows) == 1
