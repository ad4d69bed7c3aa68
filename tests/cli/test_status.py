"""What `status` concludes and prints: for people at any width, and for scripts."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from subprocess import Popen
from typing import Any

import pytest
from rich.console import Console

from quorumlog import LocalCluster, MemberStatusRow
from quorumlog.cli.log import status_table
from quorumlog.cli.log.status_table import HEADINGS, Health, health_of
from quorumlog.cli.output import spoken_duration, spoken_size
from quorumlog.client.status_rows import UNKNOWN
from quorumlog.store.recovery import SET_ASIDE_NAME
from tests.cli.conftest import STORAGE, Cli, plain

LONG_HOST = "replica-0.orders-log.eu-central-1.internal.example.com:20911"


def member(number: int, **told: Any) -> MemberStatusRow:
    """Of a group of three that is whole, unless it tells something else."""
    known = {
        "id": f"n{number}",
        "address": f"10.0.0.{number}:20911",
        "role": "follower" if number else "leader",
        "term": 7,
        "ledger_begin_index": 0,
        "ledger_end_index": 123_456_789,
        "committed_index": 123_456_789,
        "log_disk_bytes": 12_884_901_888,
        "scrub_passes": 3,
        "scrub_ended_ms_ago": 7_300_000,
        "reachable": True,
    }
    return MemberStatusRow(**{**UNKNOWN, "damaged_entries": 0, **known, **told})


def silent(number: int) -> MemberStatusRow:
    known = {"id": f"n{number}", "address": f"10.0.0.{number}:20911"}
    return MemberStatusRow(**{**UNKNOWN, **known}, reachable=False, problem="no answer")


@pytest.mark.parametrize(
    ("rows", "health"),
    [
        ([member(0), member(1), member(2)], Health.WHOLE),
        ([member(0), member(1), silent(2)], Health.DEGRADED),
        ([member(0), member(1), member(2, role="observer")], Health.DEGRADED),
        ([member(0), member(1), member(2, damaged_entries=1)], Health.DEGRADED),
        ([member(0, problems=("the disk is full",)), member(1), member(2)], Health.DEGRADED),
        ([member(0), member(1, unready=("its disk hangs",)), member(2)], Health.DEGRADED),
        ([member(0, role="candidate"), member(1), member(2)], Health.NO_QUORUM),
        ([silent(0), member(1), member(2)], Health.NO_QUORUM),
        ([silent(0), silent(1), silent(2)], Health.NO_QUORUM),
        ([member(number, role="unformed") for number in range(3)], Health.NO_QUORUM),
    ],
)
def test_the_health_of_a_group(rows: list[MemberStatusRow], health: Health) -> None:
    assert health_of(rows) is health


@pytest.mark.parametrize("width", [200, 100, 80, 60, 40, 20])
@pytest.mark.parametrize("address", ["10.0.0.1:20911", LONG_HOST])
def test_an_address_is_never_cut_and_what_matters_least_goes_first(
    monkeypatch: pytest.MonkeyPatch, width: int, address: str
) -> None:
    written = io.StringIO()
    monkeypatch.setattr(
        status_table, "out", lambda: Console(file=written, width=width, force_terminal=False)
    )
    status_table.print_status([member(0), member(1, address=address), silent(2)])
    lines = written.getvalue().splitlines()
    assert len(lines) == 4, "a row is a line"
    assert address in lines[2]
    shown = lines[0].split()
    lag = lines[0].index("lag") + len("lag")
    assert lines[1][:lag].endswith(" 0"), "numbers stand at the right of their column"
    assert {"id", "address", "role", "lag", "reachable"} <= set(shown)
    left_out = [heading for heading in status_table.DROPPED_FIRST if heading not in shown]
    assert left_out == list(status_table.DROPPED_FIRST[: len(left_out)])
    assert shown == [heading for heading in HEADINGS if heading in shown]
    if address != LONG_HOST and width >= 60:
        assert max(map(len, lines)) <= width


def test_roles_and_problems_have_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    console = Console(file=written, width=200, force_terminal=True, color_system="standard")
    monkeypatch.setattr(status_table, "out", lambda: console)
    status_table.print_status([member(0), member(1, role="observer"), silent(2)])
    assert "\x1b[32mleader" in written.getvalue()
    assert "\x1b[33mobserver" in written.getvalue()
    assert "\x1b[31mno" in written.getvalue()


FOUNDED = {"voters": 3, "quorum_size": 2}


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([member(n, **FOUNDED) for n in range(3)], ""),
        (
            [member(0, **FOUNDED), member(1, **FOUNDED), silent(2)],
            "2 of 3 voters answer, 2 are needed: no other may be lost",
        ),
        (
            [member(0, **FOUNDED), member(1), member(2, role="observer", **FOUNDED)],
            "2 of 3 voters answer, 2 are needed: no other may be lost",
        ),
        (
            [silent(0), silent(1), member(2, **FOUNDED)],
            "1 of 3 voters answer, 2 are needed: nothing is committed until more of them are back",
        ),
        ([member(0), member(1), silent(2)], ""),
        ([member(n, role="unformed", voters=0, quorum_size=0) for n in range(3)], ""),
        (
            [member(0, term=6, **FOUNDED), member(1, voters=4, quorum_size=3), silent(2), silent(3)],
            "2 of 4 voters answer, 3 are needed; but one leads, and may reach those that do not answer"
            " here",
        ),
        (
            [silent(0), member(1, **FOUNDED, leader_id="n0"), member(2, **FOUNDED, leader_id="n0")],
            "2 of 3 voters answer, 2 are needed; n0 leads, as n1 says, and does not answer here",
        ),
        (
            [silent(0), member(1, **FOUNDED, leader_id=""), member(2, **FOUNDED, leader_id="")],
            "2 of 3 voters answer, 2 are needed: no leader is elected yet, and appends wait",
        ),
    ],
)
def test_how_many_are_needed_is_what_the_members_say(
    capsys: pytest.CaptureFixture[str], rows: list[MemberStatusRow], said: str
) -> None:
    """A voter whose directory is gone still counts among all; an older release says nothing."""
    status_table.print_status(rows)
    told = plain(capsys.readouterr().err)
    assert said in told
    assert ("needed" in told) == bool(said)


def test_what_is_set_aside_is_told_with_the_folder_that_may_be_emptied(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status_table.print_status([member(0, set_aside_files=2, set_aside_bytes=2048), member(1)])
    assert f"n0: 2 files (2.0 KiB) set aside in {SET_ASIDE_NAME}/ of its data directory, " in plain(
        capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("duration_ms", "said"),
    [
        (0, "0 s"),
        (90_000, "90 s"),
        (119_999, "119 s"),
        (120_000, "2 min"),
        (7_300_000, "2 h"),
        (2e9, "23 days"),
    ],
)
def test_durations_are_told_as_people_say_them(duration_ms: float, said: str) -> None:
    assert spoken_duration(duration_ms) == said


@pytest.mark.parametrize(
    ("size_bytes", "said"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (4_299_161, "4.1 MiB"),
        (10_480_000, "10 MiB"),
        (705_691_648, "673 MiB"),
        (3 << 40, "3.0 TiB"),
    ],
)
def test_sizes_are_told_as_people_say_them(size_bytes: int, said: str) -> None:
    assert spoken_size(size_bytes) == said


def test_the_table_tells_what_the_log_takes_of_the_disk(cli: Cli, cluster: LocalCluster) -> None:
    heading, *rows = cli("status", "--servers", cluster.servers).stdout.splitlines()
    assert " disk " in heading
    assert all(re.search(r" [\d.]+ [KM]iB  yes ", row) for row in rows), rows


def test_an_earlier_release_tells_nothing_of_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    monkeypatch.setattr(status_table, "out", lambda: Console(file=written, width=200))
    status_table.print_status([member(0), member(1, log_disk_bytes=-1)])
    first, second = written.getvalue().splitlines()[1:3]
    assert " 12 GiB  yes " in first
    assert "     -  yes " in second


def test_check_tells_scripts_how_a_group_is(cli: Cli) -> None:
    with LocalCluster(members=3, storage=STORAGE) as cluster:
        servers, leader = cluster.servers, cluster.leader()
        assert cli("status", "--servers", servers, "--check").exit_code == Health.WHOLE
        others = [m.member_id for m in cluster.members if m.member_id != leader]
        cluster.kill(others[0])
        assert cli("status", "--servers", servers, "--check").exit_code == Health.DEGRADED
        assert cli("status", "--servers", servers, "--check", "--json").exit_code == Health.DEGRADED
    assert cli("status", "--servers", servers, "--check").exit_code == Health.NO_QUORUM


@pytest.mark.processes
def test_watch_goes_on_looking(start: Callable[..., Popen[bytes]], cluster: LocalCluster) -> None:
    process = start("status", "--servers", cluster.servers, "--watch", "--json")
    assert process.stdout is not None
    seen = [process.stdout.readline() for _ in range(2 * len(cluster.members))]
    assert all(b'"reachable":true' in line for line in seen)


def test_watch_without_a_terminal_says_what_to_do(cli: Cli, free_address: str) -> None:
    result = cli("status", "--servers", free_address, "--watch")
    assert result.exit_code == 2
    assert "--watch needs a terminal; --watch --json" in plain(result.stderr)
