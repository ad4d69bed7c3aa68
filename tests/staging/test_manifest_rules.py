"""Which batch may follow which."""

from __future__ import annotations

import pytest

from quorumlog.staging import (
    Batch,
    BatchDiffers,
    BatchOutOfOrder,
    BatchRules,
    ProducerIdInUse,
    RowDigest,
)
from quorumlog.staging.manifests import Verdict, judge


def batch(batch_id: int, rows: int = 3, query_id: str = "q") -> Batch:
    return Batch(query_id, batch_id, rows, RowDigest(rows, rows), ())


def judged(newest: Batch | None, offered: Batch, **rules: object) -> Verdict:
    return judge(newest, offered, BatchRules(**rules), "copy")  # type: ignore[arg-type]


@pytest.mark.parametrize("batch_id", [0, 1, 40])
def test_the_first_of_a_query_may_have_any_number(batch_id: int) -> None:
    assert judged(None, batch(batch_id)) is Verdict.FOLLOWS


def test_micro_batches_follow_by_one() -> None:
    assert judged(batch(4), batch(5)) is Verdict.FOLLOWS
    with pytest.raises(BatchOutOfOrder, match="batches in between never came"):
        judged(batch(4), batch(6))
    with pytest.raises(BatchOutOfOrder, match="older checkpoint was restored"):
        judged(batch(4), batch(3))


def test_numbers_of_df_write_need_only_rise() -> None:
    assert judged(batch(4, query_id=""), batch(9, query_id="")) is Verdict.FOLLOWS
    with pytest.raises(BatchOutOfOrder, match="a number that rises"):
        judged(batch(4, query_id=""), batch(3, query_id=""))


def test_fixed_ranges_may_be_run_again_from_the_top() -> None:
    assert judged(batch(4, query_id=""), batch(3, query_id=""), skips_older=True) is Verdict.COMMITTED
    assert judged(batch(4, query_id=""), batch(5, query_id=""), skips_older=True) is Verdict.FOLLOWS
    with pytest.raises(BatchDiffers):
        judged(batch(4, query_id=""), batch(4, rows=2, query_id=""), skips_older=True)


@pytest.mark.parametrize("query_id", ["q", ""])
def test_a_batch_that_stands_is_nothing_to_do(query_id: str) -> None:
    assert judged(batch(4, query_id=query_id), batch(4, query_id=query_id)) is Verdict.COMMITTED


@pytest.mark.parametrize("other", [batch(4, rows=2), Batch("q", 4, 3, RowDigest(3, 4), ())])
def test_a_batch_that_stands_with_other_rows_is_told(other: Batch) -> None:
    with pytest.raises(BatchDiffers, match="batchDiffers=keep"):
        judged(batch(4), other)
    assert judged(batch(4), other, keeps_existing=True) is Verdict.COMMITTED


@pytest.mark.parametrize(
    ("old", "new", "named"), [("q", "r", "q"), ("q", "", "q"), ("", "q", r"df\.write")]
)
def test_another_query_names_the_one_that_it_takes_over_from(old: str, new: str, named: str) -> None:
    newest = batch(4, query_id=old)
    with pytest.raises(ProducerIdInUse, match=rf"nothing was appended.*resetProducer={named}$"):
        judged(newest, batch(0, query_id=new))
    with pytest.raises(ProducerIdInUse):
        judged(newest, batch(0, query_id=new), reset_query_id="another")
    reset = named.replace("\\", "")
    assert judged(newest, batch(0, query_id=new), reset_query_id=reset) is Verdict.FOLLOWS


def test_a_query_that_has_taken_over_may_go_on_saying_so() -> None:
    assert judged(batch(4, query_id="r"), batch(5, query_id="r"), reset_query_id="q") is Verdict.FOLLOWS
