"""An archive holds the very entries of its log, and every step of making it may be the last one."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow.parquet as pq
import pytest

from quorumlog import LocalCluster, connect
from quorumlog.batch import EntryBatch
from quorumlog.errors import ConfigError, DirectoryDamaged
from quorumlog.pipelines import archive as archive_module
from quorumlog.pipelines.archive import ATTEMPTS, MANIFEST_NAME, PARTS, Archive
from quorumlog.pipelines.archiving import archive
from quorumlog.pipelines.engine import LocalEngine
from quorumlog.pipelines.places import Place, open_log


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(members=3, directory=tmp_path_factory.mktemp("members")) as running:
        with connect(running.servers) as log:
            for first in range(0, 3000, 500):
                log.append_batch([b"%d:" % n + bytes(n % 90) for n in range(first, first + 500)])
        yield running


def entries_of(place: Place, stop_index: int | None = None) -> bytes:
    log = open_log(place)
    try:
        return b"".join(bytes(b.buffer) for b in log.batches(0, stop_index or log.stop_index))
    finally:
        log.close()


def test_an_archive_holds_the_very_bytes_of_the_log_and_a_repetition_adds_nothing(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    place, path = Place(servers=cluster.servers, batch_bytes=8_000), str(tmp_path / "a")
    first = archive(place, path, part_bytes=20_000, stop_index=1_000, hold="tape")
    assert (first.first_index, first.last_index) == (0, 999)
    whole = archive(place, path, part_bytes=20_000, hold="tape")
    assert whole.new_entries == whole.last_index - 999
    assert set(whole.members_compared) == {"n0", "n1", "n2"}
    again = archive(place, path, hold="tape")
    assert (again.new_entries, again.parts) == (0, whole.parts)
    assert entries_of(Place(archive=path)) == entries_of(place, Archive.open(path).stop_index)
    with connect(cluster.servers) as log:
        (reader,) = log.readers()
        assert (reader.name, reader.position, reader.hold) == ("tape", whole.last_index + 1, "archive")
        log.reader("billing", hold=True)
    with pytest.raises(ConfigError, match="billing is already a reader of the log, at position"):
        archive(place, path, hold="billing")
    rows = pq.read_table(path + "/parts")
    assert rows.num_rows == 3000 and rows.column("body")[2999].as_py().startswith(b"2999:")


@pytest.mark.parametrize("command", ["archive", "compact"])
def test_a_disk_that_takes_no_more_is_named_and_nothing_is_left(
    cluster: LocalCluster, tmp_path: Path, command: str
) -> None:
    named = [command, str(tmp_path / "a"), "--servers", cluster.servers]
    if command == "compact":
        named += ["--key", "prefix:2"]

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, 1_000))

    ended = subprocess.run(
        [sys.executable, "-m", "quorumlog", "pipeline", *named],
        preexec_fn=limited,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 3, ended.stderr
    assert f"{tmp_path}/a" in ended.stderr and "File too large; change that" in ended.stderr
    left = [file.name for file in tmp_path.rglob("*") if file.is_file()]
    assert left == (["lock"] if command == "archive" else [])


@pytest.mark.parametrize("step", range(1, 12))
def test_a_crash_at_any_step_leaves_what_the_next_run_completes(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """Also a version 1 archive on its way to version 2 is whole for our reader, and other tools see no
    row twice and none that the manifest does not name."""
    place, path = Place(servers=cluster.servers, batch_bytes=8_000), str(tmp_path / "a")
    archive(place, path, part_bytes=20_000, stop_index=500)
    as_version_1(Path(path))
    real, calls = os.replace, 0

    class Crash(BaseException):
        """The process is gone."""

    def stepped(source: str, target: str) -> None:
        nonlocal calls
        calls += target.startswith(path)  # and not what members of the cluster replace meanwhile
        if target.startswith(path) and calls == step:
            raise Crash
        real(source, target)

    with monkeypatch.context() as patched, pytest.raises(Crash):
        patched.setattr(archive_module.os, "replace", stepped)
        patched.setattr(Archive, "end_run", lambda *_: None)
        archive(place, path, part_bytes=20_000)
    seen = Archive.open(path)
    assert entries_of(Place(archive=path)) == entries_of(place, seen.stop_index)
    files = sorted((Path(path) / PARTS).iterdir())
    indices = [n for file in files for n in pq.read_table(file, columns=["index"])["index"].to_pylist()]
    assert len(set(indices)) == len(indices) and all(index < seen.stop_index for index in indices)
    archive(place, path, part_bytes=20_000)
    assert entries_of(Place(archive=path)) == entries_of(place, Archive.open(path).stop_index)
    names = {p.name for p in (Path(path) / PARTS).iterdir()}
    assert names == {part.file for part in Archive.open(path).manifest.parts}
    assert not list((Path(path) / ATTEMPTS).iterdir())


def as_version_1(path: Path) -> None:
    """As an earlier release has left it: the parts lie beside the manifest, without their size."""
    manifest = json.loads((path / MANIFEST_NAME).read_text())
    manifest["version"] = 1
    del manifest["moving"]
    for part in manifest["parts"]:
        del part["file_bytes"]
        (path / PARTS / part["file"]).rename(path / part["file"])
    (path / MANIFEST_NAME).write_text(json.dumps(manifest))
    for folder in (PARTS, ATTEMPTS):
        (path / folder).rmdir()


def test_an_archive_of_an_earlier_release_is_read_as_it_is(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    place, path = Place(servers=cluster.servers), tmp_path / "a"
    archive(place, str(path), part_bytes=20_000)
    as_version_1(path)
    assert entries_of(Place(archive=str(path))) == entries_of(place, Archive.open(str(path)).stop_index)
    assert not (path / PARTS).exists(), "who only reads changes nothing"


@pytest.mark.parametrize("what", ["cut", "gone"])
def test_a_part_of_an_earlier_release_that_is_cut_or_gone_ends_the_run_that_moves_it(
    cluster: LocalCluster, tmp_path: Path, what: str
) -> None:
    """Its manifest knows no sizes."""
    place, path, hold = Place(servers=cluster.servers), tmp_path / "a", f"earlier-{what}"
    archive(place, str(path), part_bytes=20_000, stop_index=1_000, hold=hold)
    as_version_1(path)
    file = path / Archive.open(str(path)).manifest.parts[0].file
    whole = file.read_bytes()
    if what == "cut":
        file.write_bytes(whole[:-100])
    else:
        file.unlink()
    for _ in range(2):
        with pytest.raises(DirectoryDamaged, match=file.name):
            archive(place, str(path), hold=hold)
    with connect(cluster.servers) as log:
        [held] = [reader for reader in log.readers() if reader.name == hold]
    assert held.position == 1_000
    file.write_bytes(whole)
    assert archive(place, str(path), hold=hold).new_entries > 0


@pytest.mark.parametrize("what", ["cut", "gone"])
def test_a_file_that_is_not_there_as_it_was_written_is_never_named_in_the_manifest(
    cluster: LocalCluster, tmp_path: Path, what: str
) -> None:
    """As where executors have a directory of their own under the archive's name."""
    place, path = Place(servers=cluster.servers), tmp_path / "a"
    archive(place, str(path), part_bytes=20_000, stop_index=1_000)

    class Elsewhere:
        def map(self, run: Callable[[Any], Any], works: Sequence[Any]) -> Iterator[Any]:
            for work, attempt in zip(works, LocalEngine().map(run, works), strict=True):
                file = Path(work.directory, attempt.file)
                if what == "cut":
                    file.write_bytes(file.read_bytes()[:-100])
                else:
                    file.unlink()
                yield attempt

    told = "has to see" if what == "gone" else "cannot be read"
    with pytest.raises((ConfigError, DirectoryDamaged), match=told):
        archive(place, str(path), part_bytes=20_000, engine=Elsewhere())
    assert Archive.open(str(path)).stop_index == 1_000
    archive(place, str(path), part_bytes=20_000)
    assert entries_of(Place(archive=str(path))) == entries_of(place, Archive.open(str(path)).stop_index)


@pytest.mark.parametrize("what", ["cut", "gone"])
def test_a_part_that_is_cut_or_gone_ends_the_run_before_the_hold_moves(
    cluster: LocalCluster, tmp_path: Path, what: str
) -> None:
    place, path = Place(servers=cluster.servers), tmp_path / "a"
    archive(place, str(path), part_bytes=20_000, stop_index=1_000, hold=f"hold-{what}")
    first = Archive.open(str(path)).manifest.parts[0]
    file = path / PARTS / first.file
    whole = file.read_bytes()
    if what == "cut":
        file.write_bytes(whole[:-100])
    else:
        file.unlink()
    with pytest.raises(DirectoryDamaged, match="no hold is moved until then"):
        archive(place, str(path), hold=f"hold-{what}")
    with connect(cluster.servers) as log:
        [held] = [reader for reader in log.readers() if reader.name == f"hold-{what}"]
    assert held.position == 1_000
    file.write_bytes(whole)
    assert archive(place, str(path), hold=f"hold-{what}").new_entries > 0


def test_verify_reads_back_what_was_archived_before(cluster: LocalCluster, tmp_path: Path) -> None:
    place, path = Place(servers=cluster.servers), tmp_path / "a"
    archive(place, str(path), part_bytes=20_000, stop_index=1_000)
    part = Archive.open(str(path)).manifest.parts[1]
    file = path / PARTS / part.file
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    archive(place, str(path), stop_index=1_500)
    with pytest.raises(DirectoryDamaged, match=part.file):
        archive(place, str(path), verify=True)


def test_the_same_log_gives_the_same_files_and_manifest_on_any_engine(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    for name, engine, batch_bytes in (("a", LocalEngine(1), 8_000), ("b", LocalEngine(3), 30_000)):
        place = Place(servers=cluster.servers, batch_bytes=batch_bytes)
        archive(place, str(tmp_path / name), part_bytes=20_000, stop_index=2_500, engine=engine)
    ours, theirs = (Archive.open(str(tmp_path / name)) for name in "ab")
    assert ours.manifest == theirs.manifest and len(ours.manifest.parts) > 3
    for part in ours.manifest.parts:
        one, other = (tmp_path / name / PARTS / part.file for name in "ab")
        assert one.read_bytes() == other.read_bytes()


def test_other_tools_open_the_parts(cluster: LocalCluster, tmp_path: Path) -> None:
    path = str(tmp_path / "a")
    archive(Place(servers=cluster.servers), path, part_bytes=20_000)
    assert polars.read_parquet(path + "/parts").height == 3000
    assert duckdb.sql(f"SELECT count(*) FROM '{path}/parts/*.parquet'").fetchall() == [(3000,)]


def test_a_folder_among_the_parts_is_left_alone(cluster: LocalCluster, tmp_path: Path) -> None:
    path = tmp_path / "a"
    archive(Place(servers=cluster.servers), str(path), part_bytes=20_000, stop_index=1_000)
    (path / PARTS / ".ipynb_checkpoints").mkdir()
    (path / PARTS / "stray.parquet").touch()
    archive(Place(servers=cluster.servers), str(path), part_bytes=20_000)
    assert (path / PARTS / ".ipynb_checkpoints").exists() and not (
        path / PARTS / "stray.parquet"
    ).exists()


def test_an_attempt_that_is_gone_when_it_is_looked_at_stops_nobody(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """As one that an executor gives up while the folder is listed."""
    path = tmp_path / "a"
    archive(Place(servers=cluster.servers), str(path), part_bytes=20_000, stop_index=1_000)
    (path / ATTEMPTS / "part").symlink_to(path / "gone")
    assert archive(Place(servers=cluster.servers), str(path), part_bytes=20_000).new_entries > 0


def test_a_directory_that_is_no_archive_of_this_log_is_refused_and_stays(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    place = Place(servers=cluster.servers, batch_bytes=8_000)
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "letters.txt").write_text("dear")
    with pytest.raises(ConfigError, match=r"letters\.txt and no archive"):
        archive(place, str(tmp_path / "x"))
    assert [path.name for path in (tmp_path / "x").iterdir()] == ["letters.txt"], "nothing is left there"
    archive(place, str(tmp_path / "a"), stop_index=500)
    with LocalCluster(members=1, directory=tmp_path / "other") as other:
        with connect(other.servers) as log:
            log.append_batch([b"z"] * 700)
        with pytest.raises(ConfigError, match="archive of another log"):
            archive(Place(servers=other.servers), str(tmp_path / "a"))
    assert Archive.open(str(tmp_path / "a")).stop_index == 500


def test_a_flipped_bit_in_a_part_is_named_and_never_read(cluster: LocalCluster, tmp_path: Path) -> None:
    path = tmp_path / "a"
    archive(Place(servers=cluster.servers, batch_bytes=8_000), str(path), part_bytes=20_000)
    part = Archive.open(str(path)).manifest.parts[1]
    file = path / PARTS / part.file
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(DirectoryDamaged, match=part.file):
        entries_of(Place(archive=str(path)))


def test_a_range_begins_and_ends_within_parts(cluster: LocalCluster, tmp_path: Path) -> None:
    place = Place(servers=cluster.servers, batch_bytes=8_000)
    archive(place, str(tmp_path / "a"), part_bytes=20_000)
    with_archive, log = Archive.open(str(tmp_path / "a")), open_log(place)
    for first, stop in ((0, 1), (3, 4), (100, 2222), (2990, 3001)):
        ours = EntryBatch.concatenate(list(with_archive.batches(first, stop)))
        theirs = EntryBatch.concatenate(list(log.batches(first, stop)))
        assert bytes(ours.buffer) == bytes(theirs.buffer)
    assert with_archive.time_ms_at(1700) == log.time_ms_at(1700)
    log.close()
