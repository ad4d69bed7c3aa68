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
import shutil
from pathlib import Path
from typing import Any

import pytest

from quorumlog.errors import ConfigError
from quorumlog.store.directory_reader import DirectoryReader
from quorumlog.store.disk import OsDisk
from quorumlog.store.inspection import inspect_directory
from quorumlog.store.verification import compare_directories, verify_directory
from tests.store.made_logs import flip, open_small
from tests.unpacking import unpack

FIXTURES = Path(__file__).parent.parent / "fixtures" / "dledger-java"
MEMBERS = [("single", "n0"), ("three", "n0"), ("three", "n1"), ("three", "n2")]
disk = OsDisk()


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
        "quarantine": [],
    }
    for name, file in told["files"].items():
        data = (path / name).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (file["size"], file["sha256"])
    assert {str(p.relative_to(path)) for p in path.rglob("*") if p.is_file()} == set(told["files"])


@pytest.mark.parametrize(("scenario", "member"), MEMBERS)
def test_inspecting_one(unpacked: Path, scenario: str, member: str) -> None:
    told = expected_of(scenario)["members"][member]
    view = inspect_directory(disk, str(unpacked / scenario / told["directory"])).to_json()
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
    assert (verification.ok, verification.entries) == (True, 450)


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
