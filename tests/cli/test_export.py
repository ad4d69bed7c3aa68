"""Files of exports: every byte comes back, what is torn is completed, what is damaged is refused."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumlog import Entry, LocalCluster, StoreConfig, connect
from quorumlog.cli.carry.export_format import (
    MAGIC,
    Ending,
    ExportReader,
    FileBroken,
    FileDamaged,
    encoded,
    head,
    scan_export,
    tail,
)
from quorumlog.config import KIB
from tests.cli.conftest import LINES, NOT_TEXT, Cli, objects, plain

BODIES = [b"", b"one", b"line\nbreak \x00 \xc3\xa9", NOT_TEXT, b'{"index":1}', b"QLEX"]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The directory of a stopped member whose log holds a no-op and BODIES."""
    directory = tmp_path_factory.mktemp("small")
    storage = StoreConfig(segment_bytes=64 * KIB, index_segment_bytes=64 * KIB)
    with LocalCluster(members=1, directory=directory, storage=storage) as running:
        with connect(running.servers) as log:
            log.append_batch(BODIES)
        running.stop("n0")
        yield running.data_dir("n0")


def records_of(file: Path) -> list[tuple[int, int, bytes]]:
    with file.open("rb") as opened:
        return [(each.index, each.term, each.body) for each in ExportReader(opened).records()]


@given(bodies=st.lists(st.binary(max_size=40)), gaps=st.integers(1, 3))
def test_what_is_written_is_read(
    bodies: list[bytes], gaps: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("format") / "file"
    entries = [Entry(7 + gaps * number, 3, body) for number, body in enumerate(bodies)]
    ending = Ending(len(entries), 7 + gaps * len(entries))
    file.write_bytes(head("orders", 7) + encoded(entries) + tail(ending))
    with file.open("rb") as opened:
        reader = ExportReader(opened)
        records = list(reader.records())
        assert opened.read() == b""
    assert [Entry(each.index, each.term, each.body) for each in records] == entries
    assert (reader.group, reader.first_index, reader.ending) == ("orders", 7, ending)


def test_a_cluster_and_its_directory_are_exported_alike(
    cli: Cli, stopped: list[Path], tmp_path: Path
) -> None:
    file = tmp_path / "file"
    result = cli("export", file, "--path", stopped[0], "--json")
    assert result.exit_code == 0, result.output
    (said,) = objects(result.stdout)
    records = records_of(file)
    assert [body for _, _, body in records] == [line.encode() for line in LINES] + [NOT_TEXT]
    assert said == {
        "file": str(file),
        "records": len(records),
        "new_records": len(records),
        "last_index": records[-1][0],
        "size_bytes": file.stat().st_size,
    }
    read = cli("read", "--path", stopped[0], "--format", "hex").stdout.splitlines()
    assert [f"{index} {term} {body.hex()}" for index, term, body in records] == read


def test_a_running_cluster_is_exported_and_later_the_rest_of_it(
    cli: Cli, cluster: LocalCluster, tmp_path: Path
) -> None:
    file, again = tmp_path / "file", tmp_path / "again"
    with connect(cluster.servers) as log:
        first = log.append_batch(BODIES).first_index
        given = ("export", file, "--servers", cluster.servers)
        assert cli(*given, "--from", first).exit_code == 0
        log.append(b"later")
    result = cli(*given)
    assert f"exported {len(BODIES) + 1} entries, 1 of them new" in result.stdout
    assert "0 of them new" in cli(*given).stdout
    assert [body for _, _, body in records_of(file)] == [*BODIES, b"later"]
    assert cli("export", again, "--servers", cluster.servers, "--from", first).exit_code == 0
    assert again.read_bytes() == file.read_bytes()


def test_a_range_is_exported(cli: Cli, small: Path, tmp_path: Path) -> None:
    file = tmp_path / "file"
    assert cli("export", file, "--path", small, "--from", 2, "--to", 4).exit_code == 0
    assert [index for index, _, _ in records_of(file)] == [2, 3]
    assert cli("export", file, "--path", small, "--to", 6).exit_code == 0
    assert [index for index, _, _ in records_of(file)] == [2, 3, 4, 5]


# ---------------------------------------------------------------- files that are not whole


@pytest.fixture
def whole(cli: Cli, small: Path, tmp_path: Path) -> tuple[bytes, list[int]]:
    """What an export is, and where its head and its records end."""
    file = tmp_path / "whole"
    assert cli("export", file, "--path", small).exit_code == 0
    with file.open("rb") as opened:
        reader = ExportReader(opened)
        ends = [reader.head_bytes, *(each.stop_position for each in reader.records())]
    return file.read_bytes(), ends


def test_a_file_that_is_cut_off_is_completed(
    cli: Cli, small: Path, whole: tuple[bytes, list[int]], tmp_path: Path
) -> None:
    content, ends = whole
    file = tmp_path / "cut"
    opening = len(MAGIC)
    for size in (opening, opening + 9, ends[1], ends[1] + 1, ends[3] - 1, ends[-1], len(content) - 1):
        file.write_bytes(content[:size])
        result = cli("export", file, "--path", small)
        assert result.exit_code == 0, (size, result.output)
        assert file.read_bytes() == content, size
        cut = size - max(end for end in (0, *ends) if end <= size)
        assert ("cut" in result.stderr) == (cut > 0)
        assert not cut or f"cut {cut} bytes after the last complete record" in plain(result.stderr)


def test_wherever_a_file_is_cut_off_its_whole_records_are_found(
    whole: tuple[bytes, list[int]], tmp_path: Path
) -> None:
    content, ends = whole
    file = tmp_path / "cut"
    for size in range(ends[0], len(content)):
        file.write_bytes(content[:size])
        with file.open("rb") as opened:
            extent = scan_export(opened, lambda done, in_all: None)
        assert extent.records == sum(end <= size for end in ends[1:])
        assert extent.stop_position == max(end for end in ends if end <= size)
        assert extent.torn is not None


def test_any_byte_of_a_file_that_changes_is_noticed(cli: Cli, small: Path, tmp_path: Path) -> None:
    file = tmp_path / "file"
    assert cli("export", file, "--path", small).exit_code == 0
    content = bytearray(file.read_bytes())
    for place in range(len(content)):
        content[place] ^= 1
        file.write_bytes(content)
        with file.open("rb") as opened, pytest.raises(FileBroken) as broken:
            for _ in ExportReader(opened).records():
                pass
        assert broken.value.position <= place
        content[place] ^= 1
    file.write_bytes(content + b"\0")
    with file.open("rb") as opened, pytest.raises(FileDamaged, match="follow the end mark"):
        scan_export(opened, lambda done, in_all: None)


def test_an_export_is_not_continued_behind_damage(cli: Cli, small: Path, tmp_path: Path) -> None:
    file = tmp_path / "file"
    assert cli("export", file, "--path", small).exit_code == 0
    content = bytearray(file.read_bytes())
    content[-60] ^= 1
    file.write_bytes(content)
    result = cli("export", file, "--path", small)
    assert result.exit_code == 1
    assert "the CRC of a record is wrong, at position" in plain(result.stderr)
    assert "delete it and export again" in plain(result.stderr)
    assert file.read_bytes() == content


# ---------------------------------------------------------------- slips


def test_a_file_of_another_export_or_of_something_else_is_never_changed(
    cli: Cli, small: Path, stopped: list[Path], tmp_path: Path
) -> None:
    file = tmp_path / "file"
    for content in (b"notes", b'{"name":"x"}', b"Q"):
        file.write_bytes(content)
        result = cli("export", file, "--path", small)
        assert (result.exit_code, file.read_bytes()) == (2, content)
        assert "exists and is not an export" in plain(result.stderr)
    file.unlink()
    assert cli("export", file, "--path", small, "--from", 1, "--to", 5).exit_code == 0
    content = file.read_bytes()
    for said, status, *options in (
        ("--from 2", 2, "--path", small, "--from", 2),
        ("--to 3", 2, "--path", small, "--to", 3),
        ("--to 3 is below --from 5", 2, "--path", small, "--from", 5, "--to", 3),
        ("--to 99 is above the end of the committed log, index 6", 1, "--path", small, "--to", 99),
        ("--from 99", 1, "--path", small, "--from", 99),
        ("is of another log", 2, "--path", stopped[0]),
        ("--servers is missing", 2),
        ("exclude each other", 2, "--path", small, "--servers", "127.0.0.1:1"),
        ("change --group", 2, "--path", small, "--group", "orders"),
    ):
        result = cli("export", file, *options)
        assert result.exit_code == status, (options, result.output)
        assert said in plain(result.stderr)
        assert file.read_bytes() == content


def test_what_is_no_file_or_in_use_is_refused(cli: Cli, small: Path, tmp_path: Path) -> None:
    result = cli("export", tmp_path, "--path", small)
    assert result.exit_code == 2
    assert "Is a directory; name another file" in plain(result.stderr)
    result = cli("export", "/dev/null", "--path", small)
    assert "is not a regular file" in plain(result.stderr)
    with (tmp_path / "file").open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        result = cli("export", tmp_path / "file", "--path", small)
    assert result.exit_code == 2
    assert "another export writes it" in plain(result.stderr)


def test_a_directory_that_lacks_committed_entries_is_not_exported(
    cli: Cli, small: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(small, copy)
    (segment,) = (each for each in (copy / "data").iterdir() if b"line\nbreak" in each.read_bytes())
    content = bytearray(segment.read_bytes())
    content[content.index(b"line\nbreak")] ^= 1
    segment.write_bytes(content)
    result = cli("export", tmp_path / "file", "--path", copy)
    assert result.exit_code == 3, result.output
