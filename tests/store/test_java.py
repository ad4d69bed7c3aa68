"""Directories that Java DLedger 0.3.1.2 wrote, as golden data.

`tests/fixtures/dledger-java/NAME/` holds the directories as Java left them after an orderly stop, the
bodies as read through the Java API, and in `expected.json` what Java itself said of a copy that it had
opened again.
"""

from __future__ import annotations

import base64
import hashlib
import json
import lzma
import os
import shutil
from pathlib import Path
from random import Random
from typing import Any

import pytest

from quorumlog.errors import ConfigError
from quorumlog.store.directory_reader import Damage, DirectoryReader
from quorumlog.store.disk import OsDisk
from quorumlog.store.verification import compare_directories, inspect_directory, verify_directory
from tests.store.made_logs import flip, open_small
from tests.unpacking import unpack

FIXTURES = Path(__file__).parent.parent / "fixtures" / "dledger-java"
MEMBERS = [("single", "n0"), ("three", "n0"), ("three", "n1"), ("three", "n2")]
disk = OsDisk()


def printed(view: Any) -> Any:
    """As a command prints it."""
    return json.loads(json.dumps(view.to_json()))


def expected_of(scenario: str) -> dict[str, Any]:
    expected: dict[str, Any] = json.loads((FIXTURES / scenario / "expected.json").read_text())
    return expected


def bodies_of(scenario: str) -> list[tuple[int, bytes]]:
    with lzma.open(FIXTURES / scenario / "bodies.jsonl.xz", "rt") as lines:
        return [(index, base64.b64decode(text)) for index, text in map(json.loads, lines)]


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("java")
    for scenario in ("single", "three"):
        unpack(FIXTURES / scenario / f"{scenario}.tar.xz", root / scenario)
    return root


@pytest.mark.parametrize(("scenario", "member"), MEMBERS)
def test_a_java_directory_is_read_as_java_reads_it_and_never_written(
    unpacked: Path, scenario: str, member: str
) -> None:
    expected = expected_of(scenario)
    told = expected["members"][member]
    rows = expected["members"][told.get("entries_same_as", member)]["entries"]
    path = unpacked / scenario / told["directory"]

    with DirectoryReader(disk, str(path)) as reader:
        reopened = told["reopened"]
        assert (reader.is_java, reader.checked, reader.in_use) == (True, False, False)
        assert reader.segment_bytes == reopened["data_file_size"]
        assert reader.index_segment_bytes == reopened["index_file_size"]
        assert reader.ledger_begin_index == reopened["begin_index"]
        assert reader.ledger_end_index == reopened["end_index"]
        assert reader.ledger_end_term == reopened["end_term"]
        assert reader.committed_index == reopened["committed_index"]
        assert reader.end.position == reopened["write_pos"]
        assert reader.hard_state is not None
        assert reader.hard_state.term == reopened["curr_term"]
        vote = reader.hard_state.voted_for
        assert (vote.member_id if vote else None) == reopened["vote_for"]
        assert reader.damage == []

        found = []
        bodies = []
        for batch in reader.batches(0, reader.ledger_end_index + 1, batch_bytes=10_000):
            headers = batch.headers()
            columns = [headers[name].tolist() for name in expected["columns"][:6]]
            bodies += [bytes(body) for body in batch.bodies()]
            found += [list(row) for row in zip(*columns, strict=True)]
        assert found == [row[:6] for row in rows]
        assert [hashlib.sha256(body).hexdigest() for body in bodies] == [row[6] for row in rows]
        assert list(enumerate(bodies)) == bodies_of(scenario)

    verification = verify_directory(disk, str(path))
    assert verification.to_json() == {
        "directory": str(path),
        "entries": len(rows),
        "checked": 0,
        "unchecked": len(rows),
        "chain_crc": 0,
        "ok": True,
        "problem": "",
        "damaged": [],
        "ledger_begin_index": 0,
        "ledger_end_index": len(rows) - 1,
    }
    for name, file in told["files"].items():
        data = (path / name).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (file["size"], file["sha256"])
    assert {str(p.relative_to(path)) for p in path.rglob("*") if p.is_file()} == set(told["files"])


@pytest.mark.parametrize(("scenario", "member"), MEMBERS)
def test_inspecting_one(unpacked: Path, scenario: str, member: str) -> None:
    told = expected_of(scenario)["members"][member]
    view = printed(inspect_directory(disk, str(unpacked / scenario / told["directory"])))
    reopened = told["reopened"]
    assert view["format"] == "dledger"
    assert view["current_term"] == reopened["curr_term"]
    assert view["voted_for"] == reopened["vote_for"]
    assert view["committed_index"] == reopened["committed_index"]
    assert view["damage"] == []
    first_indices = [segment["first_index"] for segment in view["segments"]]
    last_indices = [segment["last_index"] for segment in view["segments"]]
    assert first_indices == [0, *(index + 1 for index in last_indices[:-1])]
    assert last_indices[-1] == reopened["end_index"]
    last = view["segments"][-1]
    assert int(Path(last["file"]).name) + last["bytes_used"] == reopened["write_pos"]


def test_three_replicas_hold_the_same_log(unpacked: Path) -> None:
    readers = [DirectoryReader(disk, str(unpacked / "three" / f"dledger-n{i}")) for i in range(3)]
    comparison = compare_directories(readers)
    assert comparison.ok
    assert (comparison.first_index, comparison.stop_index) == (0, 400)
    for reader in readers:
        reader.close()


def test_serving_from_one_is_refused_and_changes_nothing(unpacked: Path) -> None:
    path = unpacked / "single" / "dledger-n0"
    before = sorted(str(p) for p in path.rglob("*"))
    with pytest.raises(ConfigError, match=r"inspect, verify and read"):
        open_small(path)
    assert sorted(str(p) for p in path.rglob("*")) == before


# ---------------------------------------------------------------- DLedger's rules for the end


@pytest.fixture
def copy(unpacked: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(unpacked / "single" / "dledger-n0", tmp_path / "n0"))


def at(path: Path, position: int) -> tuple[Path, int]:
    return path / "data" / f"{position // 65536 * 65536:020d}", position % 65536


def test_a_bad_header_in_the_last_three_files_ends_the_log_there(copy: Path) -> None:
    with DirectoryReader(disk, str(copy)) as reader:
        header = reader.header_at(450)
    flip(*at(copy, header.pos + 12))  # its index
    with DirectoryReader(disk, str(copy)) as reader:
        assert reader.ledger_end_index == 449
        assert reader.end.position == header.pos
        assert reader.committed_index == 449, "DLedger caps the checkpoint at the end"
        assert "index does not follow" in reader.tail
        assert len(list(reader.batches(440, 450, batch_bytes=1))) == 10
    verification = verify_directory(disk, str(copy))
    assert (verification.ok, verification.entries) == (False, 450)
    assert "entries 450 .. 499 are missing: checkpoint names entry 499" in verification.problem


def test_a_bad_header_before_them_is_trusted_by_java_and_found_by_verify(copy: Path) -> None:
    with DirectoryReader(disk, str(copy)) as reader:
        header = reader.header_at(100)
    flip(*at(copy, header.pos + 20))  # its term
    with DirectoryReader(disk, str(copy)) as reader:
        assert (reader.ledger_end_index, reader.damage) == (499, [])
    verification = verify_directory(disk, str(copy))
    assert not verification.ok
    assert "index 100" in verification.problem or "index 101" in verification.problem


def test_old_bytes_behind_the_cut_are_not_part_of_the_log(copy: Path) -> None:
    """Java cuts by moving its write position only: here entry 480 was cut and 470's size follows it."""
    with DirectoryReader(disk, str(copy)) as reader:
        cut, kept = reader.header_at(480), reader.header_at(481)
    path, offset = at(copy, cut.pos)
    data = bytearray(path.read_bytes())
    data[offset : offset + 8] = bytes(8)
    path.write_bytes(data)
    assert kept.pos > cut.pos
    with DirectoryReader(disk, str(copy)) as reader:
        assert (reader.ledger_end_index, reader.tail) == (479, "")


def test_a_wrong_index_costs_java_directories_nothing(copy: Path) -> None:
    shutil.rmtree(copy / "index")
    with DirectoryReader(disk, str(copy)) as reader:
        assert (reader.ledger_begin_index, reader.ledger_end_index) == (0, 499)
        bodies = [bytes(body) for batch in reader.batches(0, 500) for body in batch.bodies()]
    assert list(enumerate(bodies)) == bodies_of("single")
    assert verify_directory(disk, str(copy)).ok


def test_a_log_whose_first_files_expired_begins_later(copy: Path) -> None:
    (copy / "data" / f"{0:020d}").unlink()
    with DirectoryReader(disk, str(copy)) as reader:
        begin = reader.ledger_begin_index
        assert 0 < begin < 499
        assert reader.damage == []
        assert reader.entry_count == 500 - begin
        bodies = [bytes(body) for batch in reader.batches(begin, 500) for body in batch.bodies()]
    assert list(enumerate(bodies, begin)) == bodies_of("single")[begin:]


def test_a_member_that_never_had_an_entry(tmp_path: Path) -> None:
    (tmp_path / "currterm").write_text("voteLeader=n1\ncurrTerm=3\n")
    with DirectoryReader(disk, str(tmp_path)) as reader:
        assert reader.is_java
        assert (reader.ledger_begin_index, reader.ledger_end_index) == (-1, -1)
        assert reader.hard_state is not None and reader.hard_state.term == 3
    assert verify_directory(disk, str(tmp_path)).ok


def test_files_of_zeros_hold_no_entry(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / f"{0:020d}").write_bytes(bytes(1024))
    with DirectoryReader(disk, str(tmp_path)) as reader:
        assert (reader.ledger_end_index, reader.committed_index) == (-1, -1)
        assert (reader.damage, reader.tail) == ([], "")


def test_a_hole_far_before_the_last_file_is_damage(copy: Path) -> None:
    for number in range(8):
        path = copy / "data" / f"{number * 65536:020d}"
        path.write_bytes(bytes(65536))
    with DirectoryReader(disk, str(copy)) as reader:
        assert reader.ledger_end_index == -1
        assert any("lies further on" in damage.problem for damage in reader.damage)


# ---------------------------------------------------------------- committed entries that are gone


def test_a_record_of_zeros_in_the_last_files_loses_what_the_checkpoint_names(copy: Path) -> None:
    with DirectoryReader(disk, str(copy)) as reader:
        path, offset = at(copy, reader.header_at(480).pos)
    data = bytearray(path.read_bytes())
    data[offset : offset + 48] = bytes(48)
    path.write_bytes(data)
    (copy / "checkpoint").write_text("committedIndex=490\nendIndex=499\n")
    with DirectoryReader(disk, str(copy)) as reader:
        (missing,) = reader.damage
        assert (reader.ledger_end_index, missing) == (479, reader.missing)
        assert (missing.index, missing.stop_index) == (480, 500), "the index names more"
        pieces = list(reader.pieces(470, reader.named_stop_index))
    gaps = [piece for piece in pieces if isinstance(piece, Damage)]
    assert [(gap.index, gap.stop_index) for gap in gaps] == [(480, 481)]
    bodies = [
        bytes(body) for piece in pieces if not isinstance(piece, Damage) for body in piece.bodies()
    ]
    held = [body for index, body in bodies_of("single") if index >= 470 and index != 480]
    assert bodies == held, "the index leads past it"


@pytest.mark.parametrize("lost", ["checkpoint", "index"])
def test_either_of_checkpoint_and_index_is_enough_to_miss_them(copy: Path, lost: str) -> None:
    with DirectoryReader(disk, str(copy)) as reader:
        flip(*at(copy, reader.header_at(450).pos + 12))
    if lost == "index":
        shutil.rmtree(copy / "index")
    else:
        (copy / "checkpoint").unlink()
    verification = verify_directory(disk, str(copy))
    named = "checkpoint" if lost == "index" else "the index"
    assert f"entries 450 .. 499 are missing: {named} names entry 499" in verification.problem


def test_a_checkpoint_without_data_is_damage(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").write_text("committedIndex=7\nendIndex=9\n")
    for _ in range(2):
        verification = verify_directory(disk, str(tmp_path))
        assert "entries 0 .. 7 are missing: checkpoint names entry 7" in verification.problem
        (tmp_path / "data").mkdir(exist_ok=True)
        (tmp_path / "data" / f"{0:020d}").write_bytes(bytes(1024))


@pytest.fixture
def follower(unpacked: Path, tmp_path: Path) -> Path:
    """Entries 0 to 399, the last two of term 3."""
    return Path(shutil.copytree(unpacked / "three" / "dledger-n0", tmp_path / "follower"))


def write(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_units_of_what_a_newer_leader_cut_away_name_nothing(
    follower: Path, has_checkpoint: bool
) -> None:
    """398 and 399 are cut, a 398 of a newer term and the same size comes, and the member is killed."""
    with DirectoryReader(disk, str(follower)) as reader:
        header = reader.header_at(398)
    newer = (header.term + 1).to_bytes(8, "big")
    file, offset = at(follower, header.pos)
    write(file, offset + 16, newer)
    unit = 398 * 32
    write(follower / "index" / f"{unit // 4096 * 4096:020d}", unit % 4096 + 24, newer)
    if has_checkpoint:
        (follower / "checkpoint").write_text("committedIndex=397\nendIndex=399\n")
    else:
        (follower / "checkpoint").unlink()
    verification = verify_directory(disk, str(follower))
    assert (verification.problem, verification.ledger_end_index) == ("", 398)


@pytest.mark.parametrize("begin", [0, 256])
def test_the_index_names_what_is_gone_with_all_data_files(follower: Path, begin: int) -> None:
    shutil.rmtree(follower / "data")
    (follower / "data").mkdir()
    (follower / "checkpoint").unlink()
    for file in (follower / "index").iterdir():
        if int(file.name) < begin * 32:
            file.unlink()
    with DirectoryReader(disk, str(follower)) as reader:
        assert reader.missing is not None
        assert (reader.missing.index, reader.missing.stop_index) == (begin, 400)
        assert list(reader.pieces(0, reader.named_stop_index)) == [reader.missing]
    assert not verify_directory(disk, str(follower)).ok


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("size_bytes", [30000, 70000])
def test_of_two_files_the_damaged_one_does_not_say_how_long_they_are(
    follower: Path, number: int, size_bytes: int
) -> None:
    files = sorted((follower / "data").iterdir())
    for file in files[:-2]:
        file.unlink()
    os.truncate(files[-2 + number], size_bytes)
    with DirectoryReader(disk, str(follower)) as reader:
        assert reader.segment_bytes == 65536
        wrong = [damage.problem for damage in reader.damage]
    assert f"is {size_bytes} bytes long, not 65536" in wrong


@pytest.mark.parametrize("expired", [0, 3, 5])
@pytest.mark.parametrize("byte", [0, 9, 15])
@pytest.mark.parametrize("is_trimmed", [True, False])
def test_the_index_knows_with_which_entry_the_log_begins(
    copy: Path, expired: int, byte: int, is_trimmed: bool
) -> None:
    """A flipped bit in the first header: entries must not vanish, nor pass for others."""
    files = sorted((copy / "data").iterdir())
    for file in files[:expired]:
        file.unlink()
    with DirectoryReader(disk, str(copy)) as reader:
        begin = reader.ledger_begin_index
    for file in (copy / "index").iterdir():
        if is_trimmed and int(file.name) + 4096 <= begin * 32:
            file.unlink()
    flip(files[expired], byte)
    bodies: dict[int, bytes] = {}
    with DirectoryReader(disk, str(copy)) as reader:
        assert reader.ledger_begin_index == begin
        for piece in reader.pieces(begin, reader.named_stop_index):
            if not isinstance(piece, Damage):
                bodies |= enumerate(map(bytes, piece.bodies()), piece.first_index)
        for number in range(len(reader.segments)):
            reader.last_header_of(number)
    assert bodies == dict(bodies_of("single")[begin + 1 :])
    assert not verify_directory(disk, str(copy)).ok
    assert inspect_directory(disk, str(copy)).damage


def test_without_an_index_a_begin_behind_what_was_committed_is_damage(copy: Path) -> None:
    shutil.rmtree(copy / "index")
    files = sorted((copy / "data").iterdir())
    for file in files[:-1]:
        file.unlink()
    flip(files[-1], 9)
    assert "checkpoint names entry 499 as committed" in verify_directory(disk, str(copy)).problem


# ---------------------------------------------------------------- what files may and may not hold


def with_prefix_blank(copy: Path, index: int) -> None:
    """As DLedger 0.4 resets the begin of a log: whole files go, and a blank record covers the rest."""
    with DirectoryReader(disk, str(copy)) as reader:
        begin = reader.header_at(index).pos
    for name, position, size in (("data", begin, 65536), ("index", index * 32, 4096)):
        for file in sorted((copy / name).iterdir()):
            if int(file.name) + size <= position:
                file.unlink()
        first = next(iter(sorted((copy / name).iterdir())))
        blank = position - int(first.name)
        data = bytearray(first.read_bytes())
        data[:blank] = (b"\xff" * 4 + blank.to_bytes(4, "big")).ljust(blank, b"\0")
        first.write_bytes(data)


@pytest.mark.parametrize("index", [3, 100, 301, 490])
def test_a_prefix_blank_is_no_damage(copy: Path, index: int) -> None:
    with_prefix_blank(copy, index)
    with DirectoryReader(disk, str(copy)) as reader:
        assert (reader.ledger_begin_index, reader.ledger_end_index) == (index, 499)
        assert reader.damage == []
        bodies = [bytes(body) for batch in reader.batches(index, 500) for body in batch.bodies()]
    assert list(enumerate(bodies, index)) == bodies_of("single")[index:]
    verification = verify_directory(disk, str(copy))
    assert (verification.problem, verification.entries) == ("", 500 - index)


def test_a_first_file_that_is_blank_as_a_whole_holds_nothing(copy: Path) -> None:
    first, second = sorted((copy / "data").iterdir())[:2]
    data = bytearray(first.read_bytes())
    data[:] = (b"\xff" * 4 + len(data).to_bytes(4, "big")).ljust(len(data), b"\0")
    first.write_bytes(data)
    with DirectoryReader(disk, str(copy)) as reader:
        assert reader.damage == []
        assert reader.segments[0].name == f"data/{second.name}"


@pytest.mark.parametrize("first_index", [-1, -(1 << 62), 0, (1 << 63) - 1])
@pytest.mark.parametrize("number", [0, 2, 5, 7])
@pytest.mark.parametrize("has_index", [True, False])
def test_a_first_index_that_is_negative_or_falls_is_refused(
    copy: Path, number: int, first_index: int, has_index: bool
) -> None:
    if (number, first_index) == (0, 0):
        first_index = -2
    if not has_index:
        shutil.rmtree(copy / "index")
    file = sorted((copy / "data").iterdir())[number]
    data = bytearray(file.read_bytes())
    data[8:16] = first_index.to_bytes(8, "big", signed=True)
    file.write_bytes(data)
    verification = verify_directory(disk, str(copy))
    assert not verification.ok
    assert any(file.name in each.path + each.problem for each in verification.damage)


# ---------------------------------------------------------------- any damage


def damage_somewhere(directory: Path, random: Random) -> None:
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    path = random.choice(files)
    data = bytearray(path.read_bytes())
    kind = random.choice(["flip", "flip", "bytes", "zeros", "cut", "longer", "gone", "empty", "moved"])
    first = random.randrange(len(data)) if data else 0
    if kind == "flip" and data:
        data[first] ^= 1 << random.randrange(8)
    elif kind == "bytes":
        data[first : first + 40] = random.randbytes(len(data[first : first + 40]))
    elif kind == "zeros":
        data[first : first + 4096] = bytes(len(data[first : first + 4096]))
    elif kind == "cut":
        del data[first:]
    elif kind == "longer":
        data += random.randbytes(random.choice([1, 4096]))
    elif kind == "empty":
        data.clear()
    elif kind == "gone":
        path.unlink()
        return
    elif kind == "moved":
        path.rename(path.with_name(f"{random.choice([32, 65536, 1 << 40, 1 << 63]):020d}"))
        return
    path.write_bytes(data)


@pytest.mark.parametrize("seed", range(60))
def test_whatever_is_damaged_every_tool_has_an_answer(copy: Path, seed: int) -> None:
    """With up to three damaged places."""
    random = Random(seed)
    for _ in range(random.choice([1, 1, 2, 3])):
        damage_somewhere(copy, random)
    held: list[int] = []
    try:
        found = verify_directory(disk, str(copy))
        view = inspect_directory(disk, str(copy))
        assert json.dumps(view.to_json())
        with DirectoryReader(disk, str(copy)) as reader:
            begin = max(reader.ledger_begin_index, 0)
            for piece in reader.pieces(begin, reader.named_stop_index):
                if isinstance(piece, Damage):
                    assert not found.ok
                    continue
                held += range(piece.first_index, piece.last_index + 1)
            if found.ok:
                assert held == list(range(begin, reader.ledger_end_index + 1))
                assert len(held) + begin > reader.committed_index
    except ConfigError:
        assert not list((copy / "data").iterdir()) or not (copy / "data").exists()
    assert held == sorted(set(held))
