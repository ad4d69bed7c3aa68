"""append, read, status and transfer against a running cluster."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest

from quorumlog import LocalCluster, connect
from quorumlog.version import VERSION
from tests.cli.conftest import NOT_TEXT, STORAGE, Cli, objects, plain, unread_bytes
from tests.waiting import eventually

MEMBER_KEYS = [
    "id",
    "address",
    "reachable",
    "release",
    "role",
    "term",
    "leader_id",
    "ledger_begin_index",
    "ledger_end_index",
    "committed_index",
    "damaged_entries",
    "scrub_next_index",
    "scrub_stop_index",
    "scrub_passes",
    "scrub_ended_ms_ago",
    "set_aside_files",
    "set_aside_bytes",
    "log_disk_bytes",
    "log_apparent_bytes",
    "producers",
    "machines",
    "feeding",
    "answers",
    "log_time_ms",
    "log_time_index",
    "waits_for",
    "problem",
    "problems",
    "unready",
    "over_limits",
]


def end_of(cluster: LocalCluster) -> int:
    with connect(cluster.servers) as log:
        return max(row.ledger_end_index for row in log.status())


def test_append_prints_first_and_last_index_and_read_gives_the_lines_back(
    cli: Cli, cluster: LocalCluster, tmp_path: Path
) -> None:
    first = end_of(cluster) + 1
    file = tmp_path / "lines"
    file.write_bytes(b"one\n\nthree\xff\nwithout an end")
    appended = cli("append", "--servers", cluster.servers, file)
    assert appended.exit_code == 0, appended.output
    assert f"appended 4 entries: first index {first}, last index {first + 3}" in appended.stdout

    text = cli("read", "--servers", cluster.servers, "--from", first)
    assert text.stdout_bytes == b"one\n\nthree\xff\nwithout an end\n"
    middle = cli("read", "--servers", cluster.servers, "--from", first + 1, "--to", first + 3, "--json")
    term = objects(middle.stdout)[0]["term"]
    assert objects(middle.stdout) == [
        {"index": first + 1, "term": term, "body": ""},
        {"index": first + 2, "term": term, "body_base64": "dGhyZWX/"},
    ]
    as_hex = cli(
        "read", "--servers", cluster.servers, "--from", first, "--to", first + 1, "--format", "hex"
    )
    assert as_hex.stdout == f"{first} {term} {b'one'.hex()}\n"


def test_append_takes_standard_input_and_json_names_every_entry(cli: Cli, cluster: LocalCluster) -> None:
    lines = b"".join(b"%d\n" % number for number in range(10_000))
    first = end_of(cluster) + 1
    result = cli("append", "--servers", cluster.servers, "--json", input=lines)
    assert result.exit_code == 0, result.output
    rows = objects(result.stdout)
    assert [row["index"] for row in rows] == list(range(first, first + 10_000))
    assert all(row.keys() == {"index", "term"} for row in rows)
    assert cli("read", "--servers", cluster.servers, "--from", first).stdout_bytes == lines


def test_append_of_nothing_appends_nothing(cli: Cli, cluster: LocalCluster) -> None:
    before = end_of(cluster)
    result = cli("append", "--servers", cluster.servers, input=b"")
    assert (result.exit_code, result.stdout) == (0, "nothing to append\n")
    assert end_of(cluster) == before


def test_a_line_above_the_limit_is_refused_and_what_stood_before_it_is_counted(
    cli: Cli, cluster: LocalCluster, tmp_path: Path
) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"a\n" * 3 + b"x" * (2 * STORAGE.segment_bytes) + b"\nb\n")
    result = cli("append", "--servers", cluster.servers, file)
    assert result.exit_code == 1
    assert "max_entry_bytes" in result.stderr
    assert "unknown: 0" in result.stdout
    committed = int(result.stdout.split("lines committed: ")[1].split()[0].rstrip(";"))
    not_sent = int(result.stdout.split("not sent: ")[1].split()[0])
    assert committed + not_sent == 5


def test_append_without_a_server_says_that_no_line_was_sent(
    cli: Cli, free_address: str, tmp_path: Path
) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"a\nb\nc")
    result = cli("append", "--servers", free_address, "--timeout", 0.3, file)
    assert result.exit_code == 1
    assert "lines committed: 0; unknown: 0; not sent: 3" in result.stdout
    assert free_address in result.stderr


def test_append_counts_as_unknown_what_a_leader_without_quorum_took(cli: Cli, tmp_path: Path) -> None:
    with LocalCluster(members=3, storage=STORAGE) as cluster:
        leader = cluster.leader()
        for member in cluster.members:
            if member.member_id != leader:
                cluster.kill(member.member_id)
        file = tmp_path / "lines"
        file.write_bytes(b"a\nb\n")
        address = next(str(m) for m in cluster.members if m.member_id == leader)
        result = cli("append", "--servers", address, "--timeout", 5, file)
    assert result.exit_code == 1
    assert "lines committed: 0; unknown: 2; not sent: 0" in result.stdout
    # The leader gives up as soon as the client does: either may be the first to say so.
    assert re.search("may or may not have been carried out|may still commit", plain(result.stderr))


@pytest.mark.processes
def test_an_interrupted_append_accounts_for_every_line_that_it_read(
    start: Callable[..., Popen[bytes]], cluster: LocalCluster
) -> None:
    first = end_of(cluster) + 1
    process = start("append", "--servers", cluster.servers)
    assert process.stdin is not None
    process.stdin.write(b"a\nb\nc\nhalf a li")
    process.stdin.flush()
    with connect(cluster.servers) as log:
        tail = log.tail(first)
        assert [next(tail).body for _ in range(3)] == [b"a", b"b", b"c"]
    process.send_signal(signal.SIGINT)
    assert process.wait() == 130
    assert process.stdout is not None
    said = process.stdout.read().decode()
    assert (
        f"lines committed: 3 (first index {first}, last index {first + 2}); unknown: 0; not sent: 0"
        in said
    )


@pytest.mark.processes
@pytest.mark.parametrize(
    "goes_on", [False, True], ids=["while it asks who is there", "while a line waits"]
)
def test_an_interrupt_ends_the_wait_for_a_server_that_says_nothing(
    start: Callable[..., Popen[bytes]], goes_on: bool
) -> None:
    """The port is open and nobody greets, so nothing can have been sent."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        process = start("append", "--servers", address, "--timeout", 300)
        assert process.stdin is not None
        process.stdin.write(b"a\nb\n")
        process.stdin.flush()
        connection, _ = silent.accept()
        if goes_on:
            eventually(lambda: not unread_bytes(process.stdin), what="its lines are taken")
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        connection.close()
    assert process.stdout is not None
    said = process.stdout.read().decode()
    assert "lines committed: 0; unknown: 0; not sent: " in said


@pytest.mark.processes
def test_read_follows_until_interrupted(
    start: Callable[..., Popen[bytes]], cluster: LocalCluster
) -> None:
    first = end_of(cluster) + 1
    process = start("read", "--servers", cluster.servers, "--from", first, "--follow")
    assert process.stdout is not None
    with connect(cluster.servers) as log:
        log.append(b"early")
        assert process.stdout.readline() == b"early\n"
        log.append(b"late")
        assert process.stdout.readline() == b"late\n"
    process.send_signal(signal.SIGINT)
    assert process.wait() == 130


def test_follow_ends_where_it_is_told_to(cli: Cli, cluster: LocalCluster) -> None:
    first = end_of(cluster) + 1
    cli("append", "--servers", cluster.servers, input=b"a\nb\nc\n")
    result = cli("read", "--servers", cluster.servers, "--from", first, "--to", first + 2, "--follow")
    assert (result.exit_code, result.stdout) == (0, "a\nb\n")


def test_reading_above_the_committed_index_names_it(cli: Cli, cluster: LocalCluster) -> None:
    end = end_of(cluster)
    result = cli("read", "--servers", cluster.servers, "--from", end + 100, "--to", end + 101)
    assert result.exit_code == 1
    assert str(end) in result.stderr


@pytest.mark.processes
@pytest.mark.parametrize(("more", "is_shown"), [((), True), (("--json",), False)])
def test_append_shows_how_much_of_a_file_is_committed_on_a_terminal(
    start: Callable[..., subprocess.Popen[bytes]],
    cluster: LocalCluster,
    tmp_path: Path,
    more: tuple[str, ...],
    is_shown: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    file = tmp_path / "lines"
    file.write_text("a line\n" * 1000)
    ours, theirs = os.openpty()
    try:
        process = start("append", file, "--servers", cluster.servers, *more, stderr=theirs)
        os.close(theirs)
        out, _ = process.communicate(timeout=60)
        told = b""
        with suppress(OSError):  # the other end is closed
            while more_told := os.read(ours, 65536):
                told += more_told
    finally:
        os.close(ours)
    assert process.returncode == 0, told
    assert out.count(b"\n") == (1000 if more else 1)
    assert (b"appending" in told) is is_shown, told
    if is_shown:
        assert b"6.8/6.8 KiB" in told, told


def test_status_has_a_row_a_member(cli: Cli, cluster: LocalCluster) -> None:
    rows = objects(cli("status", "--servers", cluster.servers, "--json").stdout)
    assert [list(row) for row in rows] == [MEMBER_KEYS] * 3
    assert [row["id"] for row in rows] == ["n0", "n1", "n2"]
    assert sorted(row["role"] for row in rows) == ["follower", "follower", "leader"]
    assert all(row["reachable"] is True for row in rows)
    (leader,) = (row for row in rows if row["role"] == "leader")
    assert {row["leader_id"] for row in rows} == {leader["id"]}
    assert {row["release"] for row in rows} == {VERSION}

    one_address = leader["address"]
    table = cli("status", "--servers", one_address)
    assert table.exit_code == 0
    assert table.stdout.count(f" {VERSION} ") == 3
    for row in rows:
        assert row["address"] in table.stdout


def test_status_says_that_a_scrub_has_ended(cli: Cli) -> None:
    with LocalCluster(members=1, storage=replace(STORAGE, scrub_start_delay_ms=0)) as cluster:

        def row() -> dict[str, Any]:
            (row,) = objects(cli("status", "--servers", cluster.servers, "--json").stdout)
            return row

        ended = eventually(lambda: (found := row())["scrub_passes"] and found, what="a pass has ended")
        assert (ended["scrub_passes"], ended["damaged_entries"]) == (1, 0)
        assert (ended["scrub_next_index"], ended["scrub_stop_index"]) == (-1, -1)
        assert ended["scrub_ended_ms_ago"] >= 0
        table = cli("status", "--servers", cluster.servers).stdout.splitlines()
        assert table[0].split()[-1] == "scrubs"
        assert re.search(r" 1, \d+ s ago *$", table[1])


def test_status_shows_members_that_are_down_and_fails_when_all_are(cli: Cli) -> None:
    with LocalCluster(members=3, storage=STORAGE) as cluster:
        servers = cluster.servers
        leader = cluster.leader()
        first, second = (m for m in cluster.members if m.member_id != leader)
        cluster.kill(first.member_id)
        rows = objects(cli("status", "--servers", servers, "--json").stdout)
        (down,) = (row for row in rows if not row["reachable"])
        assert (down["id"], down["address"]) == (first.member_id, str(first))
        assert (down["role"], down["term"]) == (None, None)
        assert "refused" in down["problem"]
        table = cli("status", "--servers", servers)
        assert table.exit_code == 0
        assert "2 of 3 voters answer, 2 are needed: no other may be lost" in plain(table.stderr)
        lines = table.stdout.splitlines()
        assert "no" in next(line for line in lines if line.startswith(first.member_id)).split()
        cluster.kill(second.member_id)
        table = cli("status", "--servers", servers)
        assert "1 of 3 voters answer, 2 are needed" in plain(table.stderr)
    result = cli("status", "--servers", servers)
    assert result.exit_code == 1
    assert all(address in result.stdout for address in servers.split(","))


def test_status_of_a_group_that_nobody_serves_says_so(cli: Cli, cluster: LocalCluster) -> None:
    for options in ([], ["--json"]):
        result = cli("status", "--servers", cluster.servers, "--group", "nope", *options)
        assert result.exit_code == 1
        assert "group 'nope' is not served here" in plain(result.output)


@pytest.mark.parametrize("timeout", ["inf", "1e300", "nan", "-1"])
@pytest.mark.parametrize("command", ["append", "status", "transfer --to n1"])
def test_a_timeout_that_is_none_is_refused(
    cli: Cli, cluster: LocalCluster, command: str, timeout: str
) -> None:
    result = cli(*command.split(), "--servers", cluster.servers, "--timeout", timeout, input=b"a\n")
    assert result.exit_code == 2
    assert "--timeout" in plain(result.stderr)


def test_reading_to_behind_the_end_names_the_option(cli: Cli, cluster: LocalCluster) -> None:
    end = end_of(cluster)
    result = cli("read", "--servers", cluster.servers, "--from", end, "--to", end + 1000)
    assert result.exit_code == 1
    assert f"--to {end + 1000} is above" in plain(result.stderr)


@pytest.mark.parametrize(
    ("command", "option"),
    [
        (("read",), "--from"),
        (("read",), "--to"),
        (("append",), "--expected-last"),
        (("export", "FILE"), "--from"),
        (("export", "FILE"), "--to"),
        (("import", "FILE"), "--from"),
        (("import", "FILE"), "--to"),
        (("import", "FILE"), "--expected-last"),
    ],
)
def test_an_index_above_64_bits_is_named(
    cli: Cli, free_address: str, command: tuple[str, ...], option: str
) -> None:
    result = cli(*command, "--servers", free_address, option, 1 << 63, input=b"")
    assert result.exit_code == 2
    assert f"{option} {1 << 63}: must be less than or equal to {(1 << 63) - 1}" in plain(result.stderr)


@pytest.mark.parametrize(
    "arguments",
    [
        ("dev", "--dir", ""),
        ("serve", "--data-dir", ""),
        ("serve", "--config", ""),
        ("inspect", ""),
        ("verify", ""),
        ("read", "--path", ""),
        ("append", "--servers", "127.0.0.1:1", ""),
    ],
)
def test_an_empty_path_is_not_the_current_directory(cli: Cli, arguments: tuple[str, ...]) -> None:
    result = cli(*arguments)
    assert result.exit_code == 2
    assert "a path is missing" in plain(result.stderr)


def test_a_directory_in_use_ends_dev_at_once(cli: Cli, tmp_path: Path) -> None:
    with LocalCluster(members=3, directory=tmp_path, storage=STORAGE) as cluster:
        result = cli("dev", "--dir", str(tmp_path))
        assert result.exit_code == 2
        assert "is in use by another process" in plain(result.stderr)
        with connect(cluster.servers) as log:
            log.append(b"still there")


def test_transfer_hands_leadership_over(cli: Cli, cluster: LocalCluster) -> None:
    target = next(m.member_id for m in cluster.members if m.member_id != cluster.leader())
    result = cli("transfer", "--servers", cluster.servers, "--to", target)
    assert (result.exit_code, result.stdout) == (0, f"{target} leads\n"), result.output
    assert cluster.leader() == target

    twice = cluster.servers + "," + cluster.servers.replace("127.0.0.1", "localhost")
    result = cli("transfer", "--servers", twice, "--to", "n9")
    assert result.exit_code == 1
    assert result.stderr == "quorumlog: --to n9 is not a member of this group; name one of n0, n1, n2\n"


def test_a_group_that_nobody_serves_is_named(cli: Cli, cluster: LocalCluster) -> None:
    result = cli(
        "append", "--servers", cluster.servers, "--group", "orders", "--timeout", 1, input=b"a\n"
    )
    assert result.exit_code == 1
    assert "orders" in result.stderr


@pytest.mark.parametrize("command", ["append", "read", "status", "transfer --to n1"])
def test_a_bad_list_of_servers_names_the_option(cli: Cli, command: str) -> None:
    result = cli(*command.split(), "--servers", "localhost", input=b"")
    assert result.exit_code == 2
    assert "--servers: 'localhost' is not an address; write host:port" in plain(result.stderr)


def test_not_text_survives_json(cli: Cli, cluster: LocalCluster) -> None:
    with connect(cluster.servers) as log:
        index = log.append(NOT_TEXT).first_index
    (row,) = objects(cli("read", "--servers", cluster.servers, "--from", index, "--json").stdout)
    assert row["body_base64"] == "/wD+"


@pytest.mark.processes
def test_a_terminated_append_gives_the_same_account(
    start: Callable[..., Popen[bytes]], cluster: LocalCluster
) -> None:
    first = end_of(cluster) + 1
    process = start("append", "--servers", cluster.servers)
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(b"a\n")
    process.stdin.flush()
    with connect(cluster.servers) as log:
        assert next(log.tail(first)).body == b"a"
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 143
    assert f"lines committed: 1 (first index {first}, last index {first})" in (
        process.stdout.read().decode()
    )


@pytest.mark.processes
@pytest.mark.parametrize("json", [(), ("--json",)])
def test_a_full_standard_output_is_one_line_and_append_still_gives_its_account(
    cluster: LocalCluster, tmp_path: Path, json: tuple[str, ...]
) -> None:
    file = tmp_path / "lines"
    file.write_bytes(b"a\nb\n")
    with open("/dev/full", "wb") as full:
        process = subprocess.run(
            [sys.executable, "-m", "quorumlog", "append", "--servers", cluster.servers, *json, file],
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )
    account, failure = process.stderr.decode().splitlines()
    assert process.returncode == 1
    assert account.startswith("lines committed: 2 (first index ")
    sentence = "standard output: No space left on device"
    assert failure == (f'{{"error":"{sentence}","status":1}}' if json else f"quorumlog: {sentence}")


@pytest.mark.processes
@pytest.mark.parametrize("arguments", [("status",), ("status", "--json"), ("read",)])
def test_no_command_answers_a_full_standard_output_with_a_traceback(
    cluster: LocalCluster, arguments: tuple[str, ...]
) -> None:
    with connect(cluster.servers) as log:
        log.append(b"x" * 300_000)
    with open("/dev/full", "wb") as full:
        process = subprocess.run(
            [sys.executable, "-m", "quorumlog", *arguments, "--servers", cluster.servers],
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert process.returncode == 1
    sentence = "standard output: No space left on device"
    as_json = f'{{"error":"{sentence}","status":1}}\n'
    expected = as_json if "--json" in arguments else f"quorumlog: {sentence}\n"
    assert process.stderr.decode() == expected


@pytest.mark.processes
def test_follow_sits_out_a_cluster_that_is_away(
    start: Callable[..., Popen[bytes]], tmp_path: Path
) -> None:
    with LocalCluster(members=1, directory=tmp_path, storage=STORAGE) as cluster:
        with connect(cluster.servers) as log:
            log.append(b"before")
        process = start("read", "--servers", cluster.servers, "--follow")
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == b"before\n"
        cluster.kill("n0")
        assert b"waiting for the cluster, reading continues at index" in process.stderr.readline()
        cluster.restart("n0")
        with connect(cluster.servers) as log:
            log.append(b"after")
        assert process.stdout.readline() == b"after\n"
        process.send_signal(signal.SIGINT)
        assert process.wait() == 130
        assert process.stderr.read() == b"the cluster answers again\n"


def test_a_member_that_says_nothing_is_told_by_its_address_alone(cli: Cli) -> None:
    """The port is open, as that of a stopped process is, and nobody greets."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        result = cli("status", "--servers", address, "--timeout", 0.3)
    assert result.exit_code == 1
    assert result.stderr == f"no answer from {address} within 0.3 s\n"


def test_a_member_that_refuses_is_told_by_its_address_once(cli: Cli, free_address: str) -> None:
    result = cli("status", "--servers", free_address)
    assert result.exit_code == 1
    assert result.stderr.count(free_address) == 1


def test_a_line_that_is_too_long_is_named_by_its_number(cli: Cli, cluster: LocalCluster) -> None:
    lines = b"a\n" * 5000 + b"x" * (2 * STORAGE.segment_bytes) + b"\nb\n"
    result = cli("append", "--servers", cluster.servers, input=lines)
    assert result.exit_code == 1
    assert f"line 5001 of {2 * STORAGE.segment_bytes} bytes: " in plain(result.stderr)


def test_transfer_to_the_leader_says_that_it_leads_already(cli: Cli, cluster: LocalCluster) -> None:
    leader = cluster.leader()
    result = cli("transfer", "--servers", cluster.servers, "--to", leader)
    assert (result.exit_code, result.stdout) == (0, f"{leader} leads already\n"), result.output


def test_reading_backwards_is_refused(cli: Cli, free_address: str) -> None:
    result = cli("read", "--servers", free_address, "--from", 5, "--to", 4)
    assert result.exit_code == 2
    assert "--to 4 is below --from 5" in plain(result.stderr)


def test_read_says_how_fresh_it_was_where_that_was_asked_for(cli: Cli, cluster: LocalCluster) -> None:
    end = end_of(cluster)
    for options in (["--consistency", "read_index"], ["--max-staleness", 30, "--from-member", "n1"]):
        result = cli("read", "--servers", cluster.servers, "--last", 1, *options)
        assert result.exit_code == 0, result.output
        told = re.search(r"(n\d) answered as of index (\d+), at most \d+ ms old", plain(result.stderr))
        assert told is not None, result.stderr
        assert int(told[2]) >= end
    refused = cli("read", "--servers", cluster.servers, "--consistency", "read_index", "--reader", "r")
    assert refused.exit_code == 2
    assert "--consistency, --max-staleness and --from-member go with" in plain(refused.stderr)
    both = ("--consistency", "read_index", "--max-staleness", 1)
    assert cli("read", "--servers", cluster.servers, *both).exit_code == 2


def test_a_line_that_never_ends_is_refused_once_it_is_longer_than_any_entry(
    cluster: LocalCluster, cli: Cli
) -> None:
    result = cli("append", "/dev/zero", "--servers", cluster.servers)
    assert result.exit_code == 1
    assert "committed: 0; unknown: 0; not sent: 1 of the lines read, and all others" in result.output
    assert re.search(r"line 1 of \d+ bytes: a body of \d+ bytes is above the limit", result.stderr)
