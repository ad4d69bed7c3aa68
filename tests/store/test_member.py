"""The file `member`."""

from __future__ import annotations

from pathlib import Path

import pytest

from quorumlog.entry import Formation, Replica
from quorumlog.errors import DirectoryDamaged
from quorumlog.store.disk import OsDisk
from quorumlog.store.state_files import (
    MemberRecord,
    decode_member,
    encode_member,
    load_member,
    save_member,
)
from tests.store.stopping_disk import Stopped, StoppingDisk

disk = OsDisk()
FOUNDING = (Replica("n0", "aa"), Replica("n1", "bb"), Replica("n2", "cc"))
RECORD = MemberRecord(
    group="g1",
    member_id="n0",
    directory_id="aa",
    segment_bytes=1024,
    index_segment_bytes=320,
    formation=Formation((), FOUNDING, "09e35ebf43865a41f2f9f2baffb0565e"),
)


def test_golden_bytes() -> None:
    assert encode_member(RECORD) == (
        b'{"version":1,"group":"g1","member_id":"n0","directory_id":"aa","segment_bytes":1024,'
        b'"index_segment_bytes":320,"checked":true,"pending":[],'
        b'"founding":[["n0","aa"],["n1","bb"],["n2","cc"]],'
        b'"cluster_id":"09e35ebf43865a41f2f9f2baffb0565e","pending_id":""}\ncrc32=c00f41f6\n'
    )


def test_the_file_of_an_earlier_release_keeps_its_cluster_id() -> None:
    earlier = (
        b'{"version":1,"group":"g1","member_id":"n0","directory_id":"aa","segment_bytes":1024,'
        b'"index_segment_bytes":320,"checked":true,"pending":[],'
        b'"founding":[["n0","aa"],["n1","bb"],["n2","cc"]],'
        b'"cluster_id":"09e35ebf43865a41f2f9f2baffb0565e"}\ncrc32=7579141e\n'
    )
    assert decode_member(earlier) == RECORD


def test_there_and_back(tmp_path: Path) -> None:
    assert load_member(disk, str(tmp_path)) is None
    for record in (
        RECORD,
        MemberRecord(
            group="\u00e9",
            member_id="m",
            directory_id="d",
            segment_bytes=1 << 30,
            index_segment_bytes=32,
            formation=Formation(FOUNDING, (), pending_id="ab" * 16),
        ),
    ):
        save_member(disk, str(tmp_path), record)
        assert load_member(disk, str(tmp_path)) == record


def test_every_flipped_byte_is_noticed() -> None:
    data = encode_member(RECORD)
    for at in range(len(data)):
        flipped = bytearray(data)
        flipped[at] ^= 1
        with pytest.raises(ValueError):
            decode_member(bytes(flipped))


def test_a_damaged_file_stops_the_start_and_is_named(tmp_path: Path) -> None:
    (tmp_path / "member").write_bytes(encode_member(RECORD)[:-5])
    refusal = rf"{tmp_path}/member cannot be used: its CRC .* \(position 0\). Put back .* or move"
    with pytest.raises(DirectoryDamaged, match=refusal) as raised:
        load_member(disk, str(tmp_path))
    assert (raised.value.path, raised.value.position) == (f"{tmp_path}/member", 0)


def test_a_save_is_on_disk_before_its_name_is(tmp_path: Path) -> None:
    counting = StoppingDisk()
    save_member(counting, str(tmp_path), RECORD)
    steps = [what for what, _ in counting.steps]
    assert steps == ["create", "write", "sync", "rename", "sync_directory"]


def test_killed_at_any_step_it_is_the_old_file_or_the_new(tmp_path: Path) -> None:
    new = MemberRecord(
        group="g1", member_id="n0", directory_id="new", segment_bytes=1024, index_segment_bytes=320
    )
    save_member(disk, str(tmp_path), RECORD)
    seen = []
    for stop_at in range(5):
        with pytest.raises(Stopped):
            save_member(StoppingDisk(stop_at), str(tmp_path), new)
        seen.append(load_member(disk, str(tmp_path)))
        save_member(disk, str(tmp_path), RECORD)
    assert seen == [RECORD, RECORD, RECORD, RECORD, new]
