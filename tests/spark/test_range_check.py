from __future__ import annotations

import numpy as np
import pytest

from quorumlog.batch import EntryBatch
from quorumlog.spark.partitions import LedgerPartition, RangeCheck, RangeMismatch
from tests.spark.made_batches import MadeLog

LOG = MadeLog([None, *(b"body %d" % number for number in range(99))])


def checking(first_index: int, stop_index: int, *, is_chained: bool = True) -> RangeCheck:
    chains = (LOG.point_of(first_index - 1).chain, LOG.point_of(stop_index - 1).chain)
    check = RangeCheck(LedgerPartition("g", first_index, stop_index, (), *chains))
    check.is_chained = is_chained
    return check


def test_a_whole_range_in_pieces_is_complete() -> None:
    check = checking(10, 60)
    check.accept(LOG.range(10, 11), "n0")
    check.accept(LOG.range(11, 40), "n1")
    assert not check.is_complete
    check.accept(LOG.range(40, 60), "n0")
    assert check.is_complete
    check.finish()


def test_an_incomplete_range_does_not_finish() -> None:
    check = checking(10, 60)
    check.accept(LOG.range(10, 40), "n0")
    incomplete = r"read 30 entries up to offset 40 .* the plan has 50 entries"
    with pytest.raises(RangeMismatch, match=incomplete):
        check.finish()


@pytest.mark.parametrize(("first_index", "stop_index"), [(11, 20), (9, 20), (0, 1)])
def test_another_first_index_is_refused(first_index: int, stop_index: int) -> None:
    for is_chained in (True, False):
        with pytest.raises(RangeMismatch, match="n2: entries from index 10 on are not contiguous"):
            checking(10, 60, is_chained=is_chained).accept(LOG.range(first_index, stop_index), "n2")


def test_more_than_asked_for_and_nothing_at_all_are_refused() -> None:
    with pytest.raises(RangeMismatch, match="n0 gave 51 entries from index 10 on, asked for 50"):
        checking(10, 60).accept(LOG.range(10, 61), "n0")
    with pytest.raises(RangeMismatch, match="gave 0 entries"):
        checking(10, 60).accept(EntryBatch(b"", []), "n0")


def test_a_repeated_or_missing_piece_is_refused_and_the_right_one_still_taken() -> None:
    check = checking(10, 60)
    check.accept(LOG.range(10, 20), "n0")
    for wrong in (LOG.range(10, 20), LOG.range(21, 30)):
        with pytest.raises(RangeMismatch):
            check.accept(wrong, "n1")
    check.accept(LOG.range(20, 60), "n2")
    check.finish()


def damaged(position: int) -> EntryBatch:
    batch = LOG.range(10, 20)
    batch.buffer[position] ^= 1
    return batch


@pytest.mark.parametrize("position", [0, 4, 8, 16, 32, 36, 40])
def test_a_flipped_bit_in_a_header_is_found(position: int) -> None:
    """Of the header `pos` and `body_len` are in no digest; who reads the entries checks them, and the
    bodies."""
    with pytest.raises(RangeMismatch):
        check = checking(10, 20)
        check.accept(damaged(position), "n1")


def test_a_log_written_by_another_hand_in_the_middle_is_found() -> None:
    """Each piece is sound in itself, but the second is of a log with another history."""
    other = MadeLog([None, *(b"BODY %d" % number for number in range(99))])
    check = checking(10, 60)
    check.accept(LOG.range(10, 30), "n0")
    with pytest.raises(RangeMismatch, match="n1: chain_crc does not match at index 30"):
        check.accept(other.range(30, 60), "n1")


def test_a_range_that_does_not_end_as_planned_is_found() -> None:
    """Such a log passes entry by entry where nothing but its own digests is known."""
    check = RangeCheck(LedgerPartition("g", 10, 20, (), None, 12345))
    check.accept(LOG.range(10, 20), "n0")
    with pytest.raises(RangeMismatch, match=r"end with chain_crc \d+; the plan has 12345"):
        check.finish()


def test_a_range_that_does_not_continue_the_one_before_is_found() -> None:
    check = RangeCheck(LedgerPartition("g", 10, 20, (), 12345, None))
    with pytest.raises(RangeMismatch, match="n0: chain_crc does not match at index 10"):
        check.accept(LOG.range(10, 20), "n0")


def test_without_digests_order_and_count_are_still_checked() -> None:
    bare = LOG.range(10, 20)
    headers = bare.headers()
    for name in ("chain_crc", "body_crc"):
        headers[name] = np.zeros(10)
    bare._put_headers(headers)
    with pytest.raises(RangeMismatch):
        checking(10, 20).accept(bare, "n0")
    check = checking(10, 20, is_chained=False)
    check.accept(bare, "n0")
    check.finish()


def test_lost_entries_are_not_counted_as_read() -> None:
    check = checking(10, 60)
    check.skip_to(30)
    check.accept(LOG.range(30, 60), "n0")
    check.finish()


def test_a_range_may_be_lost_as_a_whole() -> None:
    check = checking(10, 60)
    check.skip_to(60)
    assert check.is_complete
    check.finish()
