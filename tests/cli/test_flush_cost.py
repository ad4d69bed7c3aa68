"""quorumlog bench flush: every way to flush is measured on every size, without a group."""

from __future__ import annotations

from pathlib import Path

from quorumlog.bench.flush_cost import OURS, SIZES, WAYS
from tests.cli.conftest import Cli, objects, plain


def test_json_has_a_line_for_each_way_and_size(cli: Cli, tmp_path: Path) -> None:
    result = cli("bench", "flush", "--dir", tmp_path, "--rounds", 3, "--json")
    assert result.exit_code == 0, result.output
    rows = objects(result.stdout)
    wanted = [(way.name, size_bytes) for way in WAYS for size_bytes in SIZES]
    assert [(row["way"], row["write_bytes"]) for row in rows] == wanted
    for row in rows:
        assert row["syncs"] == 3
        assert 0 < row["p50_ms"] <= row["p99_ms"], row
    assert not list(tmp_path.iterdir()), "files are left behind"


def test_the_table_marks_what_a_member_does(cli: Cli, tmp_path: Path) -> None:
    result = cli("bench", "flush", "--dir", tmp_path, "--rounds", 2)
    assert result.exit_code == 0, result.output
    text = plain(result.stdout)
    assert f"{OURS} * " in text
    assert "fdatasync of data and index" in text
    assert "256 KiB" in text


def test_it_explains_itself_with_an_example(cli: Cli) -> None:
    text = plain(cli("bench", "flush", "--help").stdout)
    assert "Example: quorumlog bench flush --dir " in text
    for option in ("--dir", "--rounds", "--json"):
        assert option in text
    assert "bench flush" in plain(cli("bench", "--help").stdout)


def test_a_directory_that_is_none_is_named(cli: Cli, tmp_path: Path) -> None:
    result = cli("bench", "flush", "--dir", tmp_path / "absent")
    assert result.exit_code == 2
    assert "absent is not a directory" in plain(result.stderr)


def test_a_bench_without_servers_says_so(cli: Cli) -> None:
    result = cli("bench", "--seconds", 0.1)
    assert result.exit_code == 2
    assert "--servers is empty" in plain(result.stderr)
