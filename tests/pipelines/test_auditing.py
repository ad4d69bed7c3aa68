"""An audit finds the first entry that differs, in whatever replica, and says how."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from quorumlog.batch import EntryBatch
from quorumlog.errors import ConfigError, IndexOutOfRange
from quorumlog.pipelines import auditing
from quorumlog.pipelines.archiving import archive
from quorumlog.pipelines.auditing import Chunk, audit, digests_of
from quorumlog.pipelines.places import DirectoryLog, Place
from tests.spark.made_directories import flip_bit_of_body, write_directory

BODIES = [None, *(b"body-%04d" % number for number in range(120)), None, b"the last"]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auditing, "BLOCK_ENTRIES", 16)
    monkeypatch.setattr(auditing, "CHUNK_BLOCKS", 2)


def stored(path: Path, bodies: list[bytes | None] = BODIES, committed: int = 122) -> Place:
    return Place(path=str(write_directory(path, bodies, committed_index=committed)))


def test_replicas_and_an_archive_that_are_one_log(tmp_path: Path) -> None:
    places = [stored(tmp_path / "a"), stored(tmp_path / "b", committed=70)]
    archive(places[0], str(tmp_path / "archive"), stop_index=90)
    found = audit([*places, Place(archive=str(tmp_path / "archive"))])
    assert not found.differences
    assert [each.entries for each in found.places] == [123, 71, 90]


@pytest.mark.parametrize("begin", [0, 1, 16, 20, 33, 47, 48, 60])
def test_what_a_member_deletes_meanwhile_is_no_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begin: int
) -> None:
    """As retention does it: what is left is read, and what lies in a block that is not whole is not."""
    place = stored(tmp_path / "a")
    cuts = (0, 16, 32, 48)
    whole = digests_of(Chunk(place=place, cuts=cuts))

    class Dropping(DirectoryLog):
        def batches(self, first_index: int, stop_index: int) -> Iterator[EntryBatch]:
            if first_index < begin:
                raise IndexOutOfRange("gone", ledger_begin_index=begin, committed_index=122)
            return super().batches(first_index, stop_index)

    monkeypatch.setattr(auditing, "open_log", lambda _: Dropping(place))
    found = digests_of(Chunk(place=Place(servers="127.0.0.1:1"), cuts=cuts))
    left = [cut for cut in cuts if cut >= begin]
    assert (found.problem, found.entries) == ("", 48 - left[0] if left else 0)
    kept = max(len(left) - 1, 0)
    gone = 3 - kept
    assert [*found.blocks[gone:]] == [*whole.blocks[gone:]] and not any(found.blocks[:gone])
    assert found.last_chain == (whole.last_chain if kept else -1)
    assert found.chain_before == (-1 if begin else whole.chain_before)


def test_a_flipped_bit_is_named_with_its_entry(tmp_path: Path) -> None:
    places = [stored(tmp_path / "a"), stored(tmp_path / "b")]
    flip_bit_of_body(tmp_path / "b", b"body-0049")
    (found,) = audit(places).differences
    assert (found.place, found.index) == (places[1].path, 50)
    assert "body" in found.what


def test_entries_that_are_sound_each_for_itself_and_differ(tmp_path: Path) -> None:
    other = [*BODIES]
    other[77] = b"BODY-0076"
    places = [stored(tmp_path / "a"), stored(tmp_path / "b", other), stored(tmp_path / "c")]
    (found,) = audit(places).differences
    assert (found.place, found.other, found.index) == (places[0].path, places[1].path, 77)
    assert "body_crc" in found.what and "chain_crc" in found.what


def test_a_difference_is_told_that_is_deleted_before_it_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = [*BODIES]
    other[77] = b"BODY-0076"
    places = [stored(tmp_path / "a"), stored(tmp_path / "b", other)]

    def gone(*_: object) -> None:
        raise IndexOutOfRange("the log begins at 100", ledger_begin_index=100, committed_index=122)

    monkeypatch.setattr(auditing, "_headers", gone)
    (found,) = audit(places).differences
    assert (found.place, found.other, found.index) == (places[0].path, places[1].path, 64)
    assert "entries 64 .. 79 differ" in found.what and "the log begins at 100" in found.what


def test_a_place_that_holds_no_log_is_a_mistake_and_nothing_to_audit_is_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nothing to audit"):
        audit([])
    with pytest.raises(ConfigError, match="no archive"):
        audit([Place(archive=str(tmp_path))])
