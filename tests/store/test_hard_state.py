"""HardStateFile: term and vote survive."""

from __future__ import annotations

from pathlib import Path

import pytest

from quorumlog.entry import HardState, Replica
from quorumlog.store.disk import OsDisk
from quorumlog.store.slot_file import SECTOR_BYTES, SLOT_BYTES
from quorumlog.store.state_files import (
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


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    file = HardStateFile.create(disk, str(tmp_path), HardState(0, None))
    file.save(HardState(4, N1))
    file.close()
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
    assert stop_at == 4  # both slots and their syncs


def test_a_save_synced_both_slots(tmp_path: Path) -> None:
    counting = StoppingDisk()
    file = HardStateFile.create(counting, str(tmp_path), HardState(0, None))
    counting.steps.clear()
    file.save(HardState(1, N1))
    assert [(what, Path(path).name) for what, path in counting.steps] == [
        ("write", "hardstate"),
        ("sync", "hardstate"),
        ("write", "hardstate"),
        ("sync", "hardstate"),
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


def test_both_slots_bad_is_unreadable_even_if_an_earlier_release_wrote_currterm(tmp_path: Path) -> None:
    HardStateFile.create(disk, str(tmp_path), HardState(5, N1)).close()
    (tmp_path / "hardstate").write_bytes(bytes(2 * SLOT_BYTES))
    (tmp_path / "currterm").write_text("voteLeader=n1\ncurrTerm=5\n")
    assert loaded(tmp_path) is None  # `currterm` may be older than a vote that was given


def test_what_an_earlier_release_wrote_for_java_counts_for_nothing(tmp_path: Path) -> None:
    HardStateFile.create(disk, str(tmp_path), HardState(5, N1)).close()
    (tmp_path / "currterm").write_text("voteLeader=n2\ncurrTerm=4\n")
    assert loaded(tmp_path) == HardState(5, N1)


def test_a_java_directory_has_only_currterm(tmp_path: Path) -> None:
    assert read_hard_state(disk, str(tmp_path)) is None
    (tmp_path / "currterm").write_text("voteLeader=n0\ncurrTerm=12\n")
    assert read_hard_state(disk, str(tmp_path)) == HardState(12, Replica("n0", "?"))
