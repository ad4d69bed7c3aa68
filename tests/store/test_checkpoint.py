"""The file `checkpoint`, ours and Java's."""

from __future__ import annotations

from pathlib import Path

import pytest

from quorumlog.store.disk import OsDisk
from quorumlog.store.state_files import (
    Checkpoint,
    decode_checkpoint,
    encode_checkpoint,
    load_checkpoint,
    save_checkpoint,
)
from tests.store.stopping_disk import StoppingDisk


def test_golden_bytes() -> None:
    assert encode_checkpoint(Checkpoint(20, 17, 3, 4_000_000_000)) == (
        b"endIndex=20\ncommittedIndex=17\ncommittedTerm=3\ncommittedChain=4000000000\n"
    )


def test_there_and_back_without_a_sync(tmp_path: Path) -> None:
    disk = StoppingDisk()
    assert load_checkpoint(disk, str(tmp_path)) is None
    for checkpoint in (Checkpoint(-1, -1, -1, 0), Checkpoint(9, 8, 7, 6)):
        save_checkpoint(disk, str(tmp_path), checkpoint)
        assert load_checkpoint(disk, str(tmp_path)) == checkpoint
    assert "sync" not in {what for what, _ in disk.steps}


def test_what_a_crash_left_half_written_is_written_anew(tmp_path: Path) -> None:
    (tmp_path / "checkpoint.tmp").write_text("endInd")
    save_checkpoint(OsDisk(), str(tmp_path), Checkpoint(9, 8, 7, 6))
    assert load_checkpoint(OsDisk(), str(tmp_path)) == Checkpoint(9, 8, 7, 6)
    assert not (tmp_path / "checkpoint.tmp").exists()


def test_java_writes_two_keys() -> None:
    java = b"#Thu Jan 01 00:00:00 UTC 1970\ncommittedIndex=499\nendIndex=500\n"
    assert decode_checkpoint(java) == Checkpoint(500, 499, -1, 0)


@pytest.mark.parametrize(
    "data", [b"", b"endIndex=5\n", b"committedIndex=x\n", b"committedIndex=12", b"\0\0\0\0", b"\xff\xfe"]
)
def test_nonsense_proves_nothing(data: bytes) -> None:
    assert decode_checkpoint(data) is None
