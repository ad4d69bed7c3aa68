"""The file `backup`."""

from __future__ import annotations

from pathlib import Path

import pytest

from quorumlog.errors import ConfigError, DirectoryDamaged
from quorumlog.store.disk import OsDisk
from quorumlog.store.log_points import LogPoint
from quorumlog.store.state_files import (
    BACKUP_NAME,
    BackupRecord,
    decode_backup,
    encode_backup,
    load_backup,
    save_backup,
)
from tests.store.made_logs import open_small

disk = OsDisk()
EMPTY = BackupRecord(group="orders", cluster_id="aa")
WHOLE = BackupRecord(
    group="orders",
    cluster_id="aa",
    cut=LogPoint(7, 2, 99, 4096),
    record=b"QLST\x00\xff",
    time_ms=5,
    taken_ms=6,
    release="1.0",
)


def test_there_and_back(tmp_path: Path) -> None:
    assert load_backup(disk, str(tmp_path)) is None
    for record in (EMPTY, WHOLE):
        save_backup(disk, str(tmp_path), record)
        assert load_backup(disk, str(tmp_path)) == record


def test_golden_bytes() -> None:
    assert encode_backup(WHOLE) == (
        b'{"version":1,"group":"orders","cluster_id":"aa","cut":[7,2,99,4096],"record":"UUxTVAD/",'
        b'"time_ms":5,"taken_ms":6,"release":"1.0"}\ncrc32=15972daf\n'
    )


def test_any_byte_that_changes_is_noticed_and_the_file_named(tmp_path: Path) -> None:
    path = tmp_path / BACKUP_NAME
    data = bytearray(encode_backup(WHOLE))
    for place in range(len(data)):
        data[place] ^= 1
        path.write_bytes(data)
        with pytest.raises(DirectoryDamaged, match=rf"{path} cannot be used: .*position 0"):
            load_backup(disk, str(tmp_path))
        data[place] ^= 1


def test_one_of_a_later_release_is_refused_by_its_version() -> None:
    with pytest.raises(ValueError, match="its version is 2, this software knows 1"):
        decode_backup(encode_backup(BackupRecord(version=2, group="g", cluster_id="")))


@pytest.mark.parametrize("is_whole", [False, True])
def test_no_member_starts_on_a_backup(tmp_path: Path, is_whole: bool) -> None:
    path = tmp_path / "n0"
    if is_whole:
        open_small(path).close(clean=True)
    path.mkdir(exist_ok=True)
    save_backup(disk, str(path), WHOLE)
    with pytest.raises(ConfigError, match=rf"{path} is a backup, not the directory of a member"):
        open_small(path)
