"""What is said of a batch, and how it is stored."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumlog.batch import EntryBatch
from quorumlog.staging import Batch, Manifest, ManifestUnknown, RowDigest, RowRange
from quorumlog.staging.commits import behind
from quorumlog.staging.manifests import decode_manifest, encode_manifest, joined

BATCH = Batch("q", 7, 30, RowDigest(1, 2**64 - 1), (RowRange(100, 10), RowRange(50, 20)))


def test_a_manifest_is_read_as_it_was_written() -> None:
    manifest = Manifest(BATCH, 1000)
    assert decode_manifest(encode_manifest(manifest)) == manifest
    assert manifest.stop_sequence == 1030
    assert BATCH.first_index == 50


def test_a_release_that_knows_no_machines_does_not_take_such_rows_for_plain_ones() -> None:
    manifest = Manifest(msgspec.structs.replace(BATCH, machine="messages"), 1000)
    assert encode_manifest(manifest)[4] == 2
    assert encode_manifest(Manifest(BATCH, 1000))[4] == 1
    assert decode_manifest(encode_manifest(manifest)) == manifest


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"an entry of somebody", "is no manifest"),
        (b"QLMF\x03...", "newer release"),
        (encode_manifest(Manifest(BATCH, 0))[:-9], "cannot be read"),
        (b"QLMF\x01", "cannot be read"),
        (b"", "is no manifest"),
    ],
)
def test_what_is_no_manifest_is_never_taken_for_one(body: bytes, why: str) -> None:
    with pytest.raises(ManifestUnknown, match=why):
        decode_manifest(body)


def test_ten_thousand_ranges_fit_into_an_entry() -> None:
    ranges = tuple(RowRange(number * 10_000 + number % 7, 9_000) for number in range(10_000))
    manifest = Manifest(Batch("q", 0, 1, RowDigest(), ranges), 0)
    assert len(encode_manifest(manifest)) < 200_000


def test_ranges_that_touch_are_one_and_their_order_stays() -> None:
    ranges = [RowRange(5, 5), RowRange(10, 2), RowRange(0, 5), RowRange(7, 0)]
    assert joined(ranges) == (RowRange(5, 7), RowRange(0, 5))


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(1, 5)), max_size=5), st.integers(0, 30))
def test_what_is_replayed_already_is_left_out(pairs: list[tuple[int, int]], skipped: int) -> None:
    ranges = tuple(RowRange(*pair) for pair in pairs)
    indices = [index for each in ranges for index in range(each.first_index, each.stop_index)]
    left = behind(ranges, skipped)
    assert [i for each in left for i in range(each.first_index, each.stop_index)] == indices[skipped:]


# ---------------------------------------------------------------- digests


def digest_of(rows: list[bytes]) -> RowDigest:
    return RowDigest.of_entries(EntryBatch.from_bodies(rows)) if rows else RowDigest()


@given(st.lists(st.binary(max_size=5)), st.randoms(), st.integers(0, 20))
def test_neither_order_nor_parts_change_a_digest(rows: list[bytes], random: object, cut: int) -> None:
    shuffled = sorted(rows, key=lambda row: row[::-1])
    assert digest_of(shuffled[:cut]).plus(digest_of(shuffled[cut:])) == digest_of(rows)


def test_another_row_or_one_more_time_the_same_changes_it() -> None:
    rows = [b"a", b"b", b"c"]
    others = ([b"a", b"b"], [b"a", b"b", b"d"], [*rows, b"c"], [*rows, b"c", b"c"], [b"ab", b"c"], [])
    digests = {digest_of(each) for each in (rows, *others)}
    assert len(digests) == 1 + len(others)


def test_a_digest_adds_up_in_64_bits() -> None:
    one = RowDigest.of_hashes(np.array([2**64 - 1], np.uint64))
    assert one.plus(one) == RowDigest(one.low * 2 % 2**64, one.high * 2 % 2**64)
