"""`quorumlog append --expected-last`: all lines as one batch, or none."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest

from quorumlog import LocalCluster, connect
from quorumlog.client import LedgerClient
from tests.cli.conftest import Cli, plain, unread_bytes
from tests.waiting import eventually


def test_lines_are_appended_behind_the_expected_entry_or_not_at_all(
    cli: Cli, cluster: LocalCluster
) -> None:
    with connect(cluster.servers) as log:
        last = log.append(b"before").last_index
    given = ("append", "--servers", cluster.servers, "--expected-last", last)
    first = cli(*given, input=b"a\nb\n")
    assert (first.exit_code, first.stdout.split(", term")[0]) == (
        0,
        f"appended 2 entries: first index {last + 1}, last index {last + 2}",
    )
    again = cli(*given, "--json", input=b"a\nb\n")
    assert again.exit_code == 1
    assert f"expected_last is {last}, but the last data entry is {last + 2}" in again.stderr
    assert cli(*given, input=b"").stdout == "nothing to append\n"
    with connect(cluster.servers) as log:
        assert [entry.body for entry in log.read(last)] == [b"before", b"a", b"b"]


def test_a_list_of_dead_servers_is_told_as_without_a_condition(cli: Cli, free_address: str) -> None:
    """Long before the time-out, with what became of the lines."""
    given = ("append", "--servers", free_address, "--timeout", 3000, "--expected-last", 4)
    result = cli(*given, input=b"a\nb\n")
    assert result.exit_code == 1
    assert f"{free_address} (Connection refused); check --servers" in plain(result.stderr)
    assert result.stdout == "lines committed: 0; unknown: 0; not sent: 2\n"


def test_what_is_no_index_is_refused_by_name(cli: Cli, cluster: LocalCluster) -> None:
    result = cli("append", "--servers", cluster.servers, "--expected-last", -2, input=b"a\n")
    assert result.exit_code == 2
    assert "--expected-last" in result.stderr


# ---------------------------------------------------------------- interrupts


@pytest.fixture
def interrupt_appends(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """So many times, once an append is under way."""

    def begin(times: int) -> None:
        class Interrupted(LedgerClient):
            def append_batch(self, *arguments: Any, **options: Any) -> Any:
                for _ in range(times):
                    signal.raise_signal(signal.SIGINT)
                return super().append_batch(*arguments, **options)

        monkeypatch.setattr(
            "quorumlog.client.connect", lambda servers, **options: Interrupted(servers, **options)
        )

    return begin


def test_an_interrupt_waits_for_what_is_sent_and_accounts_for_it(
    cli: Cli, cluster: LocalCluster, interrupt_appends: Callable[[int], None]
) -> None:
    with connect(cluster.servers) as log:
        last = log.append(b"before").last_index
    interrupt_appends(1)
    result = cli("append", "--servers", cluster.servers, "--expected-last", last, input=b"a\nb\n")
    assert (result.exit_code, result.stdout) == (
        130,
        f"lines committed: 2 (first index {last + 1}, last index {last + 2}); unknown: 0; not sent: 0\n",
    )


def test_the_second_interrupt_leaves_the_lines_unknown(
    cli: Cli, cluster: LocalCluster, interrupt_appends: Callable[[int], None]
) -> None:
    interrupt_appends(2)
    result = cli("append", "--servers", cluster.servers, "--expected-last", 0, input=b"a\nb\n")
    assert (result.exit_code, result.stdout) == (130, "lines committed: 0; unknown: 2; not sent: 0\n")


@pytest.mark.processes
def test_an_interrupt_while_it_asks_who_is_there_accounts_for_the_lines(
    start: Callable[..., Popen[bytes]],
) -> None:
    """The port is open and nobody greets, so nothing can have been sent."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        process = start("append", "--servers", address, "--timeout", 300, "--expected-last", 4)
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(b"a\nb\nc")
        process.stdin.close()
        connection, _ = silent.accept()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        connection.close()
        assert process.stdout.read() == b"lines committed: 0; unknown: 0; not sent: 3\n"
        process.stdin = None


@pytest.mark.processes
def test_an_interrupt_while_it_reads_accounts_for_the_lines(
    start: Callable[..., Popen[bytes]], free_address: str
) -> None:
    process = start("append", "--servers", free_address, "--expected-last", 4)
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(b"a\nb\n")
    process.stdin.flush()
    eventually(lambda: not unread_bytes(process.stdin), what="its lines are taken")
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    said = b"lines committed: 0; unknown: 0; not sent: 2 of the lines read, and all others\n"
    assert process.stdout.read() == said


@pytest.mark.processes
def test_an_interrupt_does_not_wait_for_the_end_of_a_pipe_with_a_name(
    start: Callable[..., Popen[bytes]], free_address: str, tmp_path: Path
) -> None:
    pipe = tmp_path / "lines"
    os.mkfifo(pipe)
    process = start("append", str(pipe), "--servers", free_address, "--expected-last", 4)
    assert process.stdout is not None
    with pipe.open("wb") as writer:
        writer.write(b"a\nb\n")
        writer.flush()
        eventually(lambda: not unread_bytes(writer), what="its lines are taken")
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 143
    said = b"lines committed: 0; unknown: 0; not sent: 2 of the lines read, and all others\n"
    assert process.stdout.read() == said


def test_a_dash_is_told_how_standard_input_is_named(cli: Cli, free_address: str) -> None:
    result = cli("append", "-", "--servers", free_address, input=b"a\n")
    assert result.exit_code == 2
    assert "FILE -: No such file or directory" in plain(result.stderr)
    assert "or leave FILE out for standard input" in plain(result.stderr)
