"""verify: every entry of a directory, and the first index at which directories differ."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from quorumlog.batch import EntryBatch
from quorumlog.entry import HardState
from quorumlog.entry_header import HEADER_BYTES
from quorumlog.errors import ConfigError, DirectoryDamaged
from quorumlog.store.directory_reader import DirectoryReader
from quorumlog.store.disk import OsDisk
from quorumlog.store.durable_file import DurableFile, read_durable_owner, read_durable_point
from quorumlog.store.verification import (
    Comparison,
    compare_directories,
    describe_damage,
    verify_directory,
)
from tests.store.made_logs import (
    append,
    body_of,
    fill,
    flip,
    make_directory,
    open_small,
    opened,
    sync,
)

disk = OsDisk()
COUNT = 60


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_directory(tmp_path_factory.mktemp("made") / "n0", COUNT)


@pytest.fixture
def path(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "n0"))


def position_of(path: Path, index: int) -> int:
    with DirectoryReader(disk, str(path)) as reader:
        return reader.header_at(index).pos


def flip_log(path: Path, position: int) -> None:
    flip(path / "data" / f"{position // 1024 * 1024:020d}", position % 1024)


def compared(*paths: Path) -> Comparison:
    readers = [DirectoryReader(disk, str(path)) for path in paths]
    try:
        return compare_directories(readers)
    finally:
        for reader in readers:
            reader.close()


# ---------------------------------------------------------------- one directory


def test_a_whole_directory(made: Path) -> None:
    seen = []
    found = verify_directory(disk, str(made), lambda done, total: seen.append((done, total)))
    with DirectoryReader(disk, str(made)) as reader:
        chain = reader.end.chain
    assert found.to_json() == {
        "directory": str(made),
        "entries": COUNT,
        "checked": COUNT,
        "unchecked": 0,
        "chain_crc": chain,
        "ok": True,
        "problem": "",
        "damaged": [],
        "ledger_begin_index": 0,
        "ledger_end_index": COUNT - 1,
    }
    assert seen[-1] == (COUNT, COUNT)
    assert seen == sorted(seen)


@pytest.mark.parametrize("offset", [2, 6, 12, 20, 28, 33, 38, 42, 45, 60])
@pytest.mark.parametrize("index", [0, 9, 30, COUNT - 1])
def test_a_flipped_byte_is_named_and_the_rest_still_checked(path: Path, index: int, offset: int) -> None:
    with DirectoryReader(disk, str(path)) as reader:
        header = reader.header_at(index)
    flip_log(path, header.pos + min(offset, header.size - 1))
    found = verify_directory(disk, str(path))
    assert not found.ok
    assert found.damage[0].index == index
    assert found.damage[0].position == header.pos
    assert f"index {index}" in found.problem
    assert f"data/{header.pos // 1024 * 1024:020d}" in found.problem
    assert found.checked == COUNT - 1
    assert found.entries == COUNT


def test_digests_of_zero_are_damage_in_our_own_directories(path: Path) -> None:
    position = position_of(path, 20)
    file = path / "data" / f"{position // 1024 * 1024:020d}"
    data = bytearray(file.read_bytes())
    data[position % 1024 + 36 : position % 1024 + 44] = bytes(8)
    file.write_bytes(data)
    found = verify_directory(disk, str(path))
    assert [damage.index for damage in found.damage] == [20]


def test_several_bad_entries_are_all_listed(path: Path) -> None:
    for index in (3, 4, 25, 50):
        flip_log(path, position_of(path, index) + 25)
    found = verify_directory(disk, str(path))
    places = [(damage.index, damage.stop_index) for damage in found.damage]
    assert places == [(3, 5), (25, 26), (50, 51)]
    assert found.problem.endswith("; and 2 more")
    assert found.checked == COUNT - 4


def test_a_bad_blank_between_good_neighbours_is_damage(path: Path) -> None:
    with DirectoryReader(disk, str(path)) as reader:
        last = reader.header_at(reader.last_index_of(0))
    flip_log(path, last.pos + last.size + 5)
    found = verify_directory(disk, str(path))
    assert "no blank record" in found.problem
    assert found.damage[0].position == last.pos + last.size


@pytest.mark.parametrize("offset", range(0, 32, 3))
@pytest.mark.parametrize("index", [0, 25, COUNT - 1])
def test_a_wrong_index_unit_is_damage_where_the_index_is_synced(
    path: Path, index: int, offset: int
) -> None:
    number, at = divmod(index * 32 + offset, 320)
    flip(path / "index" / f"{number * 320:020d}", at)
    found = verify_directory(disk, str(path))
    assert [damage.index for damage in found.damage] == [index]
    assert found.damage[0].path == f"index/{number * 320:020d}"
    assert found.checked == COUNT


def test_an_index_that_was_never_synced_is_no_damage(tmp_path: Path) -> None:
    directory = open_small(tmp_path / "n0")
    fill(directory, 5)
    directory.close(clean=False)
    (tmp_path / "n0" / "index" / f"{0:020d}").write_bytes(bytes(320))
    found = verify_directory(disk, str(tmp_path / "n0"))
    assert (found.ok, found.checked) == (True, 5)


def test_a_torn_tail_is_no_damage(tmp_path: Path) -> None:
    directory = open_small(tmp_path / "n0")
    fill(directory, 10)
    end = directory.store.end
    append(directory.store, [b"torn"], 1)
    directory.close(clean=False)
    flip_log(tmp_path / "n0", end.position + HEADER_BYTES)
    found = verify_directory(disk, str(tmp_path / "n0"))
    assert (found.ok, found.entries, found.checked) == (True, 10, 10)


def test_lost_files_are_problems(path: Path) -> None:
    (path / "durable").unlink()
    assert "durable: is missing or unreadable" in verify_directory(disk, str(path)).problem
    flip(path / "member", 5)
    assert "member cannot be used" in verify_directory(disk, str(path)).problem


def test_a_missing_segment_is_one_problem_of_many_entries(path: Path) -> None:
    (path / "data" / f"{2048:020d}").unlink()
    found = verify_directory(disk, str(path))
    assert found.damage[0].path == f"data/{2048:020d}"
    assert found.checked < COUNT
    assert not found.ok


def test_what_is_no_directory_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        verify_directory(disk, str(tmp_path / "none"))


def test_nothing_wrong_is_described_as_nothing() -> None:
    assert describe_damage([]) == ""


# ---------------------------------------------------------------- several directories


def replica(tmp_path: Path, name: str, bodies: list[bytes]) -> Path:
    with opened(tmp_path / name, member_id=name) as directory:
        fill(directory, 1)
        for low in range(0, len(bodies), 5):
            append(directory.store, bodies[low : low + 5], 1)
        sync(directory.store)
        directory.write_checkpoint(directory.store.end)
    return tmp_path / name


def test_replicas_that_agree(tmp_path: Path) -> None:
    bodies = [body_of(i) for i in range(40)]
    paths = [replica(tmp_path, f"n{i}", bodies) for i in range(3)]
    found = compared(*paths)
    assert found.ok
    assert found.end_indices == (40, 40, 40)
    assert (found.first_index, found.stop_index, found.committed_index) == (0, 41, 40)
    assert len({verify_directory(disk, str(path)).chain_crc for path in paths}) == 1


def test_a_shorter_replica_is_no_difference(tmp_path: Path) -> None:
    bodies = [body_of(i) for i in range(40)]
    found = compared(
        replica(tmp_path, "n0", bodies),
        replica(tmp_path, "n1", bodies[:11]),
        replica(tmp_path, "n2", []),
    )
    assert (found.ok, found.end_indices, found.stop_index) == (True, (40, 11, 0), 1)


@pytest.mark.parametrize("different", [0, 1, 17, 38, 39])
def test_the_first_differing_index_is_found(tmp_path: Path, different: int) -> None:
    bodies = [body_of(i) for i in range(40)]
    other = list(bodies)
    other[different] = b"?" + other[different][1:]
    paths = [replica(tmp_path, "n0", bodies), replica(tmp_path, "n1", bodies)]
    found = compared(*paths, replica(tmp_path, "n2", other))
    assert found.first_difference == different + 1  # behind the no-op
    assert not found.ok
    assert compared(paths[0]).ok


def test_a_different_term_is_a_difference(tmp_path: Path) -> None:
    left = make_directory(tmp_path / "left", 40)
    with opened(tmp_path / "right") as directory:
        fill(directory, 20, term=1)
        fill(directory, 40, term=3)
    assert compared(left, tmp_path / "right").first_difference == 20


def test_an_empty_directory_beside_others(tmp_path: Path, made: Path) -> None:
    with opened(tmp_path / "empty"):
        pass
    found = compared(made, tmp_path / "empty")
    assert (found.ok, found.stop_index) == (True, found.first_index)


def java_like(tmp_path: Path, name: str, bodies: list[bytes], term: int = 1) -> Path:
    """One data file without digests, as DLedger writes it."""
    batch = EntryBatch.from_bodies(bodies)
    batch.stamp(0, term, batch.starts, 0)
    data = bytearray(batch.buffer)
    for start in batch.starts.tolist():
        data[start + 36 : start + 44] = bytes(8)
    folder = tmp_path / name / "data"
    folder.mkdir(parents=True)
    (folder / f"{0:020d}").write_bytes(data.ljust(8192, b"\0"))
    return tmp_path / name


@pytest.mark.parametrize("different", [0, 7, 39])
def test_directories_without_digests_are_compared_by_their_bytes(tmp_path: Path, different: int) -> None:
    bodies = [body_of(i) for i in range(40)]
    left = java_like(tmp_path, "left", bodies)
    assert compared(left, java_like(tmp_path, "same", bodies)).ok
    same_size = [*bodies[:different], bodies[different][:-1] + b"?", *bodies[different + 1 :]]
    found = compared(left, java_like(tmp_path, "size", same_size))
    assert found.first_difference == different
    longer = [*bodies[:different], bodies[different] + b"?", *bodies[different + 1 :]]
    found = compared(left, java_like(tmp_path, "longer", longer))
    assert found.first_difference == different
    assert compared(left, java_like(tmp_path, "term", bodies, term=2)).first_difference == 0


def test_a_directory_without_digests_beside_one_that_has_them(tmp_path: Path) -> None:
    bodies = [body_of(i) for i in range(30)]
    with opened(tmp_path / "ours") as directory:
        directory.save_hard_state(HardState(1, None))
        append(directory.store, bodies, 1)
        sync(directory.store)
    assert compared(tmp_path / "ours", java_like(tmp_path, "java", bodies)).ok


def test_a_digest_that_a_java_directory_carries_is_checked(tmp_path: Path) -> None:
    batch = EntryBatch.from_bodies([body_of(i) for i in range(5)])
    batch.stamp(0, 1, batch.starts, 0)
    data = bytearray(batch.buffer)
    (tmp_path / "j" / "data").mkdir(parents=True)
    file = tmp_path / "j" / "data" / f"{0:020d}"
    file.write_bytes(data.ljust(4096, b"\0"))
    found = verify_directory(disk, str(tmp_path / "j"))
    assert (found.ok, found.checked, found.unchecked) == (True, 5, 0)
    flip(file, int(batch.starts[3]) + HEADER_BYTES)
    found = verify_directory(disk, str(tmp_path / "j"))
    assert [damage.index for damage in found.damage] == [3]


# ---------------------------------------------------------------- files of another member


def test_a_segment_of_a_member_that_went_on_in_a_later_term_is_found_as_a_start_finds_it(
    path: Path, tmp_path: Path
) -> None:
    with opened(tmp_path / "n1", member_id="n1") as directory:
        fill(directory, COUNT // 2, term=1)
        fill(directory, COUNT, term=2)
        fill(directory, COUNT + 9, term=3)
    with DirectoryReader(disk, str(path)) as reader:
        name = reader.segments[-1].name
    shutil.copy(tmp_path / "n1" / name, path / name)
    result = verify_directory(disk, str(path))
    assert result.problem == (
        "hardstate: is of term 2, and the log has entries of term 3: this file is an older copy, or the"
        " last segment is of another member (position 0)"
    )
    with pytest.raises(DirectoryDamaged, match="hardstate is of term 2"), opened(path):
        pass


@pytest.mark.parametrize("name", ["member", "durable"])
def test_a_file_of_another_member_is_found(path: Path, tmp_path: Path, name: str) -> None:
    """Both logs are the same, byte for byte."""
    make_directory(tmp_path / "n1", COUNT, member_id="n1")
    assert verify_directory(disk, str(path)).ok
    shutil.copy(tmp_path / "n1" / name, path / name)
    result = verify_directory(disk, str(path))
    assert "one of them is another member's, or an older copy" in result.problem
    assert result.problem.startswith("member: is of directory")


def test_a_directory_of_an_earlier_release_does_not_say_whose_its_durable_point_is(path: Path) -> None:
    point = read_durable_point(disk, str(path))
    assert point is not None
    DurableFile.open(disk, str(path)).record_both_synced(point)
    assert read_durable_owner(disk, str(path)) == ""
    assert verify_directory(disk, str(path)).ok
    with opened(path) as directory:
        assert read_durable_owner(disk, str(path)) == directory.directory_id
