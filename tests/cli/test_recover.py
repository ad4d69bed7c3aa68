"""quorumlog recover: what it says, what it asks, and what it makes."""

from __future__ import annotations

import shutil
from pathlib import Path

from quorumlog import LocalCluster, connect
from tests.cli.conftest import STORAGE, Cli, objects, plain


def copies(stopped: list[Path], to: Path, count: int) -> list[Path]:
    return [Path(shutil.copytree(stopped[n], to / f"n{n}")) for n in range(count)]


def test_it_shows_what_it_would_do_and_changes_nothing_before_it_was_told_the_name(
    cli: Cli, stopped: list[Path], tmp_path: Path
) -> None:
    (directory,) = copies(stopped, tmp_path, 1)
    before = (directory / "member").read_bytes()
    shown = cli("recover", directory, "--dry-run")
    assert shown.exit_code == 0, shown.output
    said = plain(shown.stdout)
    assert "voters of group default: n0, n1, n2; not here: n1, n2" in said
    assert f"the best log: that of n0, in {directory}" in said
    assert "acknowledged entries may be missing from index" in said
    (row,) = objects(cli("recover", directory, "--dry-run", "--json").stdout)
    assert row["is_needed"] is True and row["recovered"] is None
    assert row["may_miss_from_index"] == row["committed_index"] + 1
    for options, reason in (
        ((), "nothing was changed: add --unsafe to recover"),
        (("--unsafe", "--yes-i-know", "other"), "is not the name of this group, which is default"),
        (("--unsafe",), "is not the name of this group; nothing was changed"),
    ):
        refused = cli("recover", directory, *options, input=b"other\n")
        assert refused.exit_code == 2
        assert reason in plain(refused.stderr)
    assert (directory / "member").read_bytes() == before


def test_a_majority_has_nothing_to_recover(cli: Cli, stopped: list[Path], tmp_path: Path) -> None:
    result = cli("recover", "--unsafe", *copies(stopped, tmp_path, 2), input=b"")
    assert result.exit_code == 0
    assert "nothing to do: n0, n1 can elect a leader among n0, n1, n2" in plain(result.stdout)


def test_a_group_of_one_that_forgot_its_promises_goes_on(cli: Cli, tmp_path: Path) -> None:
    with LocalCluster(members=1, directory=tmp_path, storage=STORAGE) as cluster:
        with connect(cluster.servers) as log:
            log.append_batch([b"kept", b"too"])
        directory = cluster.data_dir("n0")
    (directory / "hardstate").write_bytes(b"\xff" * 8192)
    result = cli("recover", "--unsafe", directory, input=b"default\n")
    assert result.exit_code == 0, result.output
    assert "n0 (this directory does not vote)" in plain(result.stdout)
    with (
        LocalCluster(members=1, directory=tmp_path, storage=STORAGE) as again,
        connect(again.servers) as log,
    ):
        assert [entry.body for entry in log.read(0)] == [b"kept", b"too"]


def test_a_staging_group_is_recovered_beside_its_group(
    cli: Cli, stopped: list[Path], tmp_path: Path
) -> None:
    (directory,) = copies(stopped, tmp_path, 1)
    recovered = cli("recover", "--unsafe", directory, input=b"default\n")
    assert recovered.exit_code == 0, recovered.output
    staging = directory / "staging"
    assert f"quorumlog recover --unsafe {staging}" in plain(recovered.stdout)
    beside = cli("recover", "--unsafe", staging, input=b"default.staging\n")
    assert beside.exit_code == 0, beside.output
    assert "n0 is the only voter of cluster" in plain(beside.stdout)
    assert "quorumlog serve" not in beside.stdout
    with (
        LocalCluster(members=1, directory=tmp_path, storage=STORAGE) as again,
        connect(again.servers, group="default.staging") as log,
    ):
        assert log.append(b"rows").count == 1
