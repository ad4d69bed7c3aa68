"""read --since and --time: a running cluster and a stopped member's directory give the same answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from quorumlog import LocalCluster, connect
from quorumlog.cli import options
from quorumlog.log_state.control_entries import LEVEL, TimeMark
from tests.cli.conftest import STORAGE, Cli, plain
from tests.waiting import eventually, propose, wait_until_identical

MIDNIGHT = datetime(2026, 11, 23, tzinfo=UTC)
HOUR = timedelta(hours=1)


class Marked:
    """A log of a day: an entry `-` without a time, then at each full hour one that names it."""

    def __init__(self, directory: Path) -> None:
        self.directory = str(directory / "n0")
        local = LocalCluster(1, directory=directory, storage=STORAGE)
        with local as cluster, connect(cluster.servers) as log:
            driver = cluster.server("n0").drivers[0]
            eventually(lambda: not driver.members_below(LEVEL))
            log.append(b"-")
            for hour in range(24):
                mark = TimeMark(int((MIDNIGHT + hour * HOUR).timestamp() * 1000))
                propose(driver, mark)
                eventually(lambda mark=mark: driver.node.log_time_ms() == mark.time_ms)  # type: ignore[misc]
                log.append(b"%d" % hour)
            wait_until_identical(log)


@pytest.fixture(scope="module")
def marked(tmp_path_factory: pytest.TempPathFactory) -> Marked:
    return Marked(tmp_path_factory.mktemp("marked"))


@pytest.fixture(scope="module")
def served(marked: Marked) -> Iterator[str]:
    """The same log, in a cluster that runs on a copy."""
    import shutil
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        shutil.copytree(marked.directory, f"{directory}/n0")
        with LocalCluster(1, directory=directory, storage=STORAGE) as cluster:
            yield cluster.servers


@pytest.fixture(params=["--servers", "--path"])
def source(request: pytest.FixtureRequest, marked: Marked) -> tuple[str, str]:
    where = marked.directory
    if request.param == "--servers":
        where = request.getfixturevalue("served")
    return request.param, where


@pytest.mark.parametrize(
    ("since", "first"),
    [
        ("2026-11-23T10:00Z", 10),
        ("2026-11-23T10:59:59.999+00:00", 10),
        ("2026-11-23T12:30+02:00", 10),
        ("2026-11-23T00:00Z", 0),
        ("2026-11-23T23:00Z", 23),
    ],
)
def test_reading_begins_at_a_time(cli: Cli, source: tuple[str, str], since: str, first: int) -> None:
    result = cli("read", *source, "--since", since)
    assert (result.exit_code, result.stdout.split()) == (0, [str(h) for h in range(first, 24)])
    result = cli("read", *source, "--since", since, "--limit", 1)
    assert result.stdout.split() == [str(first)], result.output


@pytest.mark.parametrize("since", ["2226-11-24T00:00Z", "9999-01-01T00:00Z"])
def test_a_time_that_is_still_to_come_is_refused(cli: Cli, source: tuple[str, str], since: str) -> None:
    result = cli("read", *source, "--since", since)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert plain(f"--since {since[:10]}T00:00:00Z is in the future") in plain(result.stderr)


@pytest.mark.parametrize("stop", [0, 5])
def test_whoever_gets_nothing_since_then_hears_why(cli: Cli, source: tuple[str, str], stop: int) -> None:
    result = cli("read", *source, "--since", "2026-11-23T10:00Z", "--to", stop)
    assert (result.exit_code, result.stdout) == (0, ""), result.output
    said = plain(result.stderr)
    assert "nothing to print: --since begins at index" in said, result.stderr
    assert f"--to {stop} ends below" in said


@pytest.mark.parametrize("since", ["2026-11-22T23:59:59.999Z", "1970-01-01T00:00Z", "0001-01-01T00:00Z"])
def test_before_the_first_mark_it_begins_where_the_log_does(
    cli: Cli, source: tuple[str, str], since: str
) -> None:
    result = cli("read", *source, "--since", since)
    assert (result.exit_code, result.stdout.split()[:3]) == (0, ["-", "0", "1"]), result.output


def test_a_duration_counts_back_from_now() -> None:
    now_ms = datetime.now(UTC).timestamp() * 1000
    for text, seconds in (("90s", 90), ("15m", 900), ("2h", 7200), ("1.5h", 5400), ("7d", 604_800)):
        assert abs(now_ms - 1000 * seconds - options.time_ms_of(text)) < 60_000


def test_a_time_without_a_zone_is_that_of_this_machine() -> None:
    local = datetime(2026, 11, 23, 10).astimezone()
    assert options.time_ms_of("2026-11-23T10:00") == local.timestamp() * 1000


def test_each_entry_says_when_it_was_appended(cli: Cli, source: tuple[str, str]) -> None:
    rows = [json.loads(line) for line in cli("read", *source, "--time", "--json").stdout.splitlines()]
    times = [(row["body"], row["append_time"]) for row in rows]
    assert times == [("-", None)] + [(str(h), f"2026-11-23T{h:02}:00:00.000Z") for h in range(24)]
    lines = cli("read", *source, "--since", "2026-11-23T22:00Z", "--time").stdout.splitlines()
    assert lines == ["2026-11-23T22:00:00.000Z 22", "2026-11-23T23:00:00.000Z 23"]
    (line,) = cli("read", *source, "--limit", 1, "--time", "--format", "hex").stdout.splitlines()
    assert line.split() == ["-", "1", "1", b"-".hex()]
    row = json.loads(cli("read", *source, "--limit", 1, "--json").stdout)
    assert set(row) == {"index", "term", "body"}


def test_what_follows_has_its_time_too(cli: Cli, served: str) -> None:
    since = ("--since", "2026-11-23T22:00Z")
    lines = cli("read", "--servers", served, *since, "--follow", "--limit", 2, "--time").stdout
    assert lines.splitlines() == ["2026-11-23T22:00:00.000Z 22", "2026-11-23T23:00:00.000Z 23"]


def test_an_index_that_knows_nothing_of_the_entries_costs_time_alone(
    cli: Cli, marked: Marked, tmp_path: Path
) -> None:
    import shutil

    copy = tmp_path / "n0"
    shutil.copytree(marked.directory, copy)
    for file in (copy / "index").iterdir():
        with file.open("r+b") as index:
            index.write(bytes(file.stat().st_size))
    result = cli("read", "--path", copy, "--since", "2026-11-23T10:00Z", "--time", "--limit", 1)
    assert result.stdout == "2026-11-23T10:00:00.000Z 10\n", result.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--since", "yesterday"), "--since 'yesterday' is neither a duration (90s, 15m, 2h, 7d) nor"),
        (("--since", ""), "--since '' is neither a duration"),
        (("--since", "1e9999d"), "is neither a duration"),
        (("--since", "99999999999d"), "is neither a duration"),
        (("--since", "2h", "--from", 3), "--since 2h excludes --from and --last"),
        (("--since", "2h", "--last", 3), "--since 2h excludes --from and --last"),
    ],
)
def test_a_slip_is_named(cli: Cli, marked: Marked, arguments: tuple[object, ...], said: str) -> None:
    result = cli("read", "--path", marked.directory, *arguments)
    assert result.exit_code == 2, result.output
    assert plain(said) in plain(result.stderr)
