"""read --last, --limit and --until-end; and what a list of servers is that nobody waits for."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator

import pytest

from quorumlog import Entry, LocalCluster, client, connect
from quorumlog.batch import EntryBatch
from quorumlog.cli import options
from quorumlog.cli.log.read_sources import first_of_last
from quorumlog.client import Freshness
from tests.cli.conftest import STORAGE, Cli, plain


@pytest.fixture(scope="module")
def served() -> Iterator[str]:
    """A log of ten numbered entries and, between and behind them, no-ops of later terms."""
    with LocalCluster(members=3, storage=STORAGE) as cluster:
        with connect(cluster.servers) as log:
            for round_number in range(2):
                log.append_batch([b"%d" % (5 * round_number + number) for number in range(5)])
                others = [m.member_id for m in cluster.members if m.member_id != cluster.leader()]
                log.transfer(others[0])
                log.end_index()
        yield cluster.servers


@pytest.mark.parametrize(
    ("options", "numbers"),
    [
        (("--last", 1), "9"),
        (("--last", 3), "789"),
        (("--last", 6), "456789"),
        (("--last", 10), "0123456789"),
        (("--last", 1000), "0123456789"),
        (("--limit", 3), "012"),
        (("--limit", 0), ""),
        (("--last", 7, "--limit", 4), "3456"),
        (("--last", 2, "--limit", 2, "--follow"), "89"),
        (("--limit", 1000), "0123456789"),
        (("--limit", (1 << 63) - 1), "0123456789"),
        (("--last", (1 << 63) - 1), "0123456789"),
        (("--until-end",), "0123456789"),
    ],
)
def test_as_many_entries_as_are_asked_for(
    cli: Cli, served: str, options: tuple[object, ...], numbers: str
) -> None:
    result = cli("read", "--servers", served, *options)
    assert (result.exit_code, result.stdout.split()) == (0, list(numbers)), result.output


def test_the_last_of_a_log_on_disk(cli: Cli, stopped: list[object]) -> None:
    result = cli("read", "--path", stopped[0], "--last", 3, "--format", "hex")
    assert [line.split()[2] for line in result.stdout.splitlines()] == [
        b"line 498".hex(),
        b"line 499".hex(),
        "ff00fe",
    ]


def test_until_end_takes_what_is_appended_meanwhile(
    cli: Cli, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connect(cluster.servers) as log:
        first = log.append(b"there").first_index

        class Meanwhile(type(log)):  # type: ignore[misc]
            """Somebody appends whenever a read has come to the end, three times."""

            left = 3

            def freshness(self, **options: object) -> Freshness:
                if Meanwhile.left:
                    Meanwhile.left -= 1
                    log.append(b"later")
                return super().freshness(**options)  # type: ignore[no-any-return]

        monkeypatch.setattr(client, "connect", lambda servers, **options: Meanwhile(servers, **options))
        result = cli("read", "--servers", cluster.servers, "--from", first, "--until-end")
    assert result.stdout.split() == ["there", "later", "later", "later"], result.output


def test_where_the_last_entries_begin_agrees_with_counting() -> None:
    is_entry = [number % 3 != 0 and number % 7 != 2 for number in range(60)]

    def read(first: int, stop: int) -> Iterator[list[Entry]]:
        for index in range(first, stop):
            yield list(EntryBatch.from_bodies([b"x"]).entries()) if is_entry[index] else []

    for begin in (0, 5):
        for last in range(1, 62):
            held = [index for index in range(begin, 60) if is_entry[index]]
            first = first_of_last(last, begin, 60, read)
            assert [index for index in held if index >= first] == held[-last:]


# ---------------------------------------------------------------- nobody to ask


@pytest.mark.parametrize("command", ["read", "append", "transfer --to n1"])
def test_a_dead_list_is_given_up_long_before_the_time_out_with_the_reason_of_each(
    cli: Cli, free_address: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "DEAD_AFTER_S", 0.3)
    servers = f"{free_address},127.0.0.2:1"
    result = cli(*command.split(), "--servers", servers, "--timeout", 1000, input=b"a\n")
    assert result.exit_code == 1
    said = plain(result.stderr)
    assert "gave up after 0.3 s" in said
    assert f"{free_address} (Connection refused)" in said
    assert "127.0.0.2:1 (Connection refused)" in said


def test_a_server_that_is_silent_may_come_back_and_is_tried_up_to_the_time_out(
    cli: Cli, free_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(options, "DEAD_AFTER_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        result = cli("read", "--servers", f"{free_address},{address}", "--timeout", 1.5)
    assert result.exit_code == 1
    assert re.search(r"gave up after 1\.[5-9] s", plain(result.stderr)), "not before"
