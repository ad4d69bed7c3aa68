"""readers, read --reader and why kept: what the cluster keeps for whom, and what that keeps on disk."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from quorumlog import LocalCluster, connect
from tests.cli.conftest import STORAGE, Cli, objects, plain
from tests.waiting import eventually

SMALL = replace(STORAGE, segment_bytes=16 * 1024, index_segment_bytes=2048, reserve_step_bytes=16 * 1024)
KEEPING = replace(SMALL, retention_bytes=32 * 1024)


@pytest.fixture(scope="module")
def keeping() -> Iterator[LocalCluster]:
    """Retention is on."""
    with LocalCluster(members=3, storage=KEEPING) as cluster:
        with connect(cluster.servers) as log:
            log.append_batch([b"%d" % number for number in range(10)])
        yield cluster


def test_read_goes_on_where_its_reader_stands(cli: Cli, keeping: LocalCluster) -> None:
    def read(*options: object) -> list[str]:
        result = cli("read", "--servers", keeping.servers, "--reader", "billing", *options)
        assert result.exit_code == 0, result.output
        return result.stdout.split()

    assert read("--limit", 3) == ["0", "1", "2"]
    assert read("--limit", 2, "--hold") == ["3", "4"]
    (row,) = objects(cli("readers", "list", "--servers", keeping.servers, "--json").stdout)
    assert (row["name"], row["hold"]) == ("billing", True)
    assert row["lag_entries"] >= 5
    assert row["lag_ms"] == -1, "this log knows no time"
    by_status = cli("status", "--readers", "--servers", keeping.servers, "--json")
    assert objects(by_status.stdout) == [row]
    assert read() == ["5", "6", "7", "8", "9"]
    assert read() == []
    result = cli("readers", "seek", "billing", "--to", row["position"], "--servers", keeping.servers)
    assert result.stdout.startswith(f"billing continues at {row['position']}; it was at")
    assert read() == ["5", "6", "7", "8", "9"]
    shown = cli("readers", "show", "billing", "--servers", keeping.servers)
    assert "held" in plain(shown.stdout)
    assert cli("readers", "forget", "billing", "--servers", keeping.servers).exit_code == 0
    result = cli("readers", "show", "billing", "--servers", keeping.servers)
    assert result.exit_code == 1
    assert "there is no reader billing" in plain(result.stderr)
    assert cli("readers", "list", "--servers", keeping.servers, "--json").stdout == ""


def test_what_a_reader_has_skipped_is_shown(cli: Cli, keeping: LocalCluster) -> None:
    with connect(keeping.servers) as log:
        log.reader("gaps", first_index=8).note_skipped(2, 5)
    (row,) = objects(cli("readers", "show", "gaps", "--servers", keeping.servers, "--json").stdout)
    assert (row["skipped_entries"], row["skipped_ranges"]) == (3, [[2, 5]])
    listed = cli("readers", "list", "--servers", keeping.servers).stdout
    heading, *lines = listed.splitlines()
    (line,) = [line for line in lines if line.startswith("gaps ")]
    assert heading.split()[-1] == "skipped" and line.split()[-1] == "3"
    shown = plain(cli("readers", "show", "gaps", "--servers", keeping.servers).stdout)
    assert "skipped: entries 2 to 4" in shown
    assert cli("readers", "forget", "gaps", "--servers", keeping.servers).exit_code == 0


@pytest.mark.parametrize("option", [("--since", "1h"), ("--time",)])
def test_what_a_reader_cannot_do_is_refused_and_does_not_move_it(
    cli: Cli, keeping: LocalCluster, option: tuple[str, ...]
) -> None:
    result = cli("read", "--servers", keeping.servers, "--reader", "refused", *option)
    assert result.exit_code == 2
    assert option[0] in plain(result.stderr)
    assert result.stdout == ""
    assert cli("readers", "show", "refused", "--servers", keeping.servers).exit_code == 1


def test_how_far_a_reader_is_behind_in_time(cli: Cli) -> None:
    with LocalCluster(members=1, storage=SMALL, time_marks=True) as cluster:
        with connect(cluster.servers) as log:
            first = log.append(b"first").last_index
            log.reader("slow", first_index=first)
            assert log.reader("new").position == 0, "in front of the no-op, and of the first time mark"
            begun = log.time_at(first)
            eventually(lambda: log.time_at(log.append(b"later").last_index) != begun)
            log.reader("late", first_index="latest")
        rows = objects(cli("readers", "list", "--servers", cluster.servers, "--json").stdout)
        lags = {row["name"]: row["lag_ms"] for row in rows}
        assert lags["slow"] >= 1000
        assert lags["new"] == lags["slow"]
        assert lags["late"] == 0


def test_a_reader_that_follows_moves_behind_what_it_has_printed(
    start: Callable[..., subprocess.Popen[bytes]], keeping: LocalCluster
) -> None:
    with connect(keeping.servers) as log:
        log.reader("following", first_index="latest")
        process = start("read", "--servers", keeping.servers, "--reader", "following", "--follow")
        assert process.stdout is not None
        for text in (b"one", b"two"):
            index = log.append(text).last_index
            assert process.stdout.readline() == text + b"\n"
            eventually(lambda index=index: position_of(log, "following") > index)  # type: ignore[misc]


def position_of(log: object, name: str) -> int:
    return next(row.position for row in log.readers() if row.name == name)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "options", [("--hold",), ("--reader", "a", "--from", 3), ("--reader", "a", "--until-end")]
)
def test_what_does_not_go_together_is_refused(cli: Cli, options: tuple[object, ...]) -> None:
    result = cli("read", "--servers", "127.0.0.1:1", *options)
    assert result.exit_code == 2
    assert "--reader" in result.stderr


def test_why_a_segment_is_kept(cli: Cli, tmp_path: Path) -> None:
    with LocalCluster(members=3, storage=KEEPING, directory=tmp_path) as cluster:
        with connect(cluster.servers) as log:
            reader = log.reader("slow", hold=True)
            for _ in range(12):
                log.append_batch([b"x" * 1000] * 10)
            rows = why(cli, "--servers", cluster.servers)
            assert len(rows) >= 6
            assert all("reader slow" in str(row["reasons"]) for row in rows[:-1])
            assert rows[-1]["reasons"] == ["the newest"]
            assert [row["stop_index"] for row in rows[:-1]] == [row["first_index"] for row in rows[1:]]
            table = plain(cli("why", "kept", "--servers", cluster.servers).stdout)
            assert "reader slow" in table
            assert "keep_from_index 0, disk" in table
            reader.commit(log.end_index() + 1)
            eventually(lambda: len(why(cli, "--servers", cluster.servers)) <= 4)
            rows = why(cli, "--servers", cluster.servers)
            assert any("retention_bytes" in str(row["reasons"]) for row in rows)
            eventually(
                lambda: {row.ledger_begin_index for row in log.status()} == {rows[0]["first_index"]}
            )
            begin = rows[0]["first_index"]
            path = cluster.data_dir("n0")
        cluster.stop("n0")
        rows = why(cli, "--path", path)
        assert rows[0]["first_index"] == begin
        assert "keep_from_index is" in str(rows[0]["reasons"])
        assert rows[-1]["reasons"] == ["the newest"]


def why(cli: Cli, *options: object) -> list[dict[str, object]]:
    result = cli("why", "kept", *options, "--json")
    assert result.exit_code == 0, result.output
    return objects(result.stdout)
