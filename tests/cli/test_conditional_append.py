"""`quorumlog append --expected-last`: all lines as one batch, or none."""

from __future__ import annotations

from quorumlog import LocalCluster, connect
from tests.cli.conftest import Cli, plain


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
