"""HardStateFile: term and vote survive, and `currterm` says the same to Java."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from quorumlog.entry import HardState, Replica
from quorumlog.errors import StoreFailure
from quorumlog.store.disk import OsDisk
from quorumlog.store.slot_file import SECTOR_BYTES, SLOT_BYTES, encode_sector
from quorumlog.store.state_files import (
    HARD_STATE_MAGIC,
    HardStateFile,
    decode_hard_state,
    encode_hard_state,
    read_hard_state,
)
from tests.store.stopping_disk import Stopped, StoppingDisk

disk = OsDisk()
N1 = Replica("n1", "0123abcd")


def loaded(directory: Path) -> HardState | None:
    file = HardStateFile.open(disk, str(directory))
    state = file.load()
    file.close()
    assert read_hard_state(disk, str(directory)) == state
    return state


def test_golden_payload() -> None:
    assert encode_hard_state(HardState(5, N1)).hex() == (
        "0000000000000005010208" + b"n1".hex() + b"0123abcd".hex()
    )
    assert encode_hard_state(HardState(6, None)).hex() == "0000000000000006000000"


@pytest.mark.parametrize(
    "state",
    [
        HardState(0, None),
        HardState(1 << 40, Replica("\u00fcn\u00efcode-member", "f" * 32)),
        HardState(3, Replica("n" * 200, "d" * 255)),
    ],
)
def test_payload_there_and_back(state: HardState) -> None:
    assert decode_hard_state(encode_hard_state(state).ljust(492, b"\0")) == state


def test_ids_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        encode_hard_state(HardState(1, Replica("n" * 300, "d")))
    with pytest.raises(ValueError, match="does not fit"):
        encode_hard_state(HardState(1, Replica("n" * 255, "d" * 255)))


def test_what_was_saved_is_loaded_and_written_for_java(tmp_path: Path) -> None:
    file = HardStateFile.create(disk, str(tmp_path), HardState(0, None))
    assert (tmp_path / "currterm").read_text() == "voteLeader=\ncurrTerm=0\n"
    file.save(HardState(4, N1))
    file.close()
    assert (tmp_path / "currterm").read_text() == "voteLeader=n1\ncurrTerm=4\n"
    assert loaded(tmp_path) == HardState(4, N1)


def test_a_save_is_in_both_slots(tmp_path: Path) -> None:
    file = HardStateFile.create(disk, str(tmp_path), HardState(0, None))
    file.save(HardState(7, N1))
    file.close()
    data = (tmp_path / "hardstate").read_bytes()
    for slot in (0, 1):
        torn = bytearray(data)
        torn[slot * SLOT_BYTES : slot * SLOT_BYTES + SECTOR_BYTES] = bytes(SECTOR_BYTES)
        (tmp_path / "hardstate").write_bytes(torn)
        assert loaded(tmp_path) == HardState(7, N1)


def test_killed_at_any_step_of_a_save_it_is_the_old_state_or_the_new(tmp_path: Path) -> None:
    old, new = HardState(3, N1), HardState(4, Replica("n2", "d2"))
    seen = set()
    for stop_at in range(20):
        directory = tmp_path / str(stop_at)
        directory.mkdir()
        HardStateFile.create(disk, str(directory), old).close()
        file = HardStateFile.open(StoppingDisk(stop_at), str(directory))
        try:
            file.save(new)
        except Stopped:
            assert loaded(directory) in (old, new)
            seen.add(loaded(directory))
            continue
        assert loaded(directory) == new
        break
    else:
        pytest.fail("a save has more steps than this test knows")
    assert seen == {old, new}
    assert stop_at > 4  # both slots and their syncs, at least


def test_a_save_synced_both_slots_before_currterm(tmp_path: Path) -> None:
    counting = StoppingDisk()
    file = HardStateFile.create(counting, str(tmp_path), HardState(0, None))
    counting.steps.clear()
    file.save(HardState(1, N1))
    assert [(what, Path(path).name) for what, path in counting.steps] == [
        ("write", "hardstate"),
        ("sync", "hardstate"),
        ("write", "hardstate"),
        ("sync", "hardstate"),
        ("create", "currterm.tmp"),
        ("write", "currterm.tmp"),
        ("rename", "currterm"),
    ]
    file.close()


def test_terms_never_fall_and_a_vote_never_changes_within_a_term(tmp_path: Path) -> None:
    file = HardStateFile.create(disk, str(tmp_path), HardState(5, N1))
    with pytest.raises(AssertionError):
        file.save(HardState(4, None))
    with pytest.raises(AssertionError):
        file.save(HardState(5, Replica("n2", "other")))
    assert file.load() == HardState(5, N1)
    file.close()


def test_both_slots_bad_is_unreadable_even_if_currterm_is_there(tmp_path: Path) -> None:
    HardStateFile.create(disk, str(tmp_path), HardState(5, N1)).close()
    (tmp_path / "hardstate").write_bytes(bytes(2 * SLOT_BYTES))
    assert loaded(tmp_path) is None  # `currterm` may be older than a vote that was given


def write_pair(directory: Path, own: HardState, currterm: str) -> None:
    sector = encode_sector(HARD_STATE_MAGIC, 1, encode_hard_state(own))
    (directory / "hardstate").write_bytes(sector.ljust(2 * SLOT_BYTES, b"\0"))
    (directory / "currterm").write_text(currterm)


@pytest.mark.parametrize(
    ("own", "currterm", "expected"),
    [
        (HardState(5, N1), "voteLeader=n2\ncurrTerm=4\n", HardState(5, N1)),
        (HardState(5, N1), "voteLeader=n2\ncurrTerm=6\n", HardState(6, Replica("n2", "?"))),
        (HardState(5, N1), "currTerm=6\nvoteLeader=\n", HardState(6, None)),
        (HardState(5, N1), "voteLeader=n2\ncurrTerm=5\n", HardState(5, N1)),
        (HardState(5, None), "voteLeader=n2\ncurrTerm=5\n", HardState(5, Replica("n2", "?"))),
        (HardState(5, None), "voteLeader=\ncurrTerm=5\n", HardState(5, None)),
        (HardState(5, N1), "voteLeader=n2\ncurrTerm=60", HardState(5, N1)),  # torn
        (HardState(5, N1), "\0\0\0\0\0\0", HardState(5, N1)),
        (HardState(5, N1), "voteLeader=n2\ncurrTerm=-7\n", HardState(5, N1)),
        (HardState(5, N1), "=\n#x\nvoteLeader=n2\ncurrTerm=junk\n", HardState(5, N1)),
    ],
)
def test_the_higher_term_wins(
    tmp_path: Path, own: HardState, currterm: str, expected: HardState
) -> None:
    write_pair(tmp_path, own, currterm)
    assert loaded(tmp_path) == expected


def test_no_space_for_currterm_is_a_problem_that_stops_nothing(tmp_path: Path) -> None:
    full = [True]

    def refuse(what: str, path: str) -> OSError | None:
        no_space = full[0] and what == "write" and path.endswith("currterm.tmp")
        return OSError(errno.ENOSPC, "No space left on device") if no_space else None

    directory = str(tmp_path)
    HardStateFile.create(disk, directory, HardState(0, None)).close()
    file = HardStateFile.open(StoppingDisk(refuse=refuse), directory)
    file.save(HardState(2, N1))
    assert "currterm cannot be written" in file.problem
    assert loaded(tmp_path) == HardState(2, N1)
    assert "currTerm=0" in (tmp_path / "currterm").read_text()
    full[0] = False
    file.retry_currterm()
    assert file.problem == ""
    assert "currTerm=2" in (tmp_path / "currterm").read_text()
    file.close()


def test_any_other_failure_stops_the_member(tmp_path: Path) -> None:
    def refuse(what: str, path: str) -> OSError | None:
        broken = what == "write" and path.endswith("currterm.tmp")
        return OSError(errno.EIO, "Input/output error") if broken else None

    HardStateFile.create(disk, str(tmp_path), HardState(0, None)).close()
    file = HardStateFile.open(StoppingDisk(refuse=refuse), str(tmp_path))
    with pytest.raises(StoreFailure, match="currterm"):
        file.save(HardState(2, N1))
    file.close()


def test_a_java_directory_has_only_currterm(tmp_path: Path) -> None:
    assert read_hard_state(disk, str(tmp_path)) is None
    (tmp_path / "currterm").write_text("voteLeader=n0\ncurrTerm=12\n")
    assert read_hard_state(disk, str(tmp_path)) == HardState(12, Replica("n0", "?"))
