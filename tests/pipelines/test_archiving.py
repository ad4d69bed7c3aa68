"""An archive holds the very entries of its log, and every step of making it may be the last one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from quorumlog import LocalCluster, connect
from quorumlog.batch import EntryBatch
from quorumlog.errors import ConfigError, DirectoryDamaged
from quorumlog.pipelines import archive_parts
from quorumlog.pipelines.archive import MANIFEST_NAME, Archive
from quorumlog.pipelines.archiving import archive
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
    with pytest.raises(ConfigError, match="billing is a reader of the log, which stands at"):
        archive(place, path, hold="billing")
    rows = pq.read_table([path + f"/{p.file}" for p in Archive.open(path).manifest.parts])
    assert rows.num_rows == 3000 and rows.column("body")[2999].as_py().startswith(b"2999:")


@pytest.mark.parametrize("step", range(6))
def test_a_crash_at_any_step_leaves_what_the_next_run_completes(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    place, path = Place(servers=cluster.servers, batch_bytes=8_000), str(tmp_path / "a")
    calls = 0

    class Crash(BaseException):
        """The process is gone."""

    def crash_at(name: str) -> None:
        real = getattr(archive_parts.os, name)

        def stepped(*given: object) -> object:
            nonlocal calls
            if ".unfinished" in str(given[0]):
                calls += 1
                if calls == step + 1:
                    raise Crash
            return real(*given)

        monkeypatch.setattr(archive_parts.os, name, stepped)

    with monkeypatch.context():
        crash_at("replace")  # of the first part, of the manifest, of the second part, ...
        monkeypatch.setattr(archive_parts.PartWriter, "abandon", lambda self: None)
        with pytest.raises(Crash):
            archive(place, path, part_bytes=20_000)
    monkeypatch.undo()
    archive(place, path, part_bytes=20_000)
    assert entries_of(Place(archive=path)) == entries_of(place, Archive.open(path).stop_index)
    names = {p.name for p in Path(path).iterdir()} - {"lock", MANIFEST_NAME}
    assert names == {part.file for part in Archive.open(path).manifest.parts}


def test_a_directory_that_is_no_archive_of_this_log_is_refused_and_stays(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    place = Place(servers=cluster.servers, batch_bytes=8_000)
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "letters.txt").write_text("dear")
    with pytest.raises(ConfigError, match=r"letters\.txt and no archive"):
        archive(place, str(tmp_path / "x"))
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
    content = bytearray((path / part.file).read_bytes())
    content[len(content) // 2] ^= 1
    (path / part.file).write_bytes(content)
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
