"""Which batch may follow the newest that stands. Values in, values out.

stands already, same rows                      nothing to do
stands already, other rows                     BatchDiffers, unless it says batchDiffers=keep
of another query                               ProducerIdInUse, unless resetProducer names that one
older                                          BatchOutOfOrder, unless it says batchOrder=skip
one is left out (streams)                      BatchOutOfOrder
the first, the first of its query, or next     it is appended
"""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple

from quorumlog.staging.manifests import Batch, described_query
from quorumlog.staging.sink_errors import BatchDiffers, BatchOutOfOrder, ProducerIdInUse


class Verdict(Enum):
    FOLLOWS = auto()
    STANDS = auto()


class BatchRules(NamedTuple):
    keeps_what_stands: bool = False
    """A batch id that stands is done, whatever rows come for it now."""
    skips_older: bool = False
    """A batch below the newest one is done: fixed ranges that are run again from the top."""
    reset_query_id: str | None = None
    """The query that this one takes the producer over from."""


DF_WRITE = "df.write"
"""What `resetProducer` calls what was written without a query."""


def check_query(newest: Batch | None, query_id: str, rules: BatchRules, producer: str) -> None:
    """Before anything is written. Raises ProducerIdInUse."""
    if newest is None or newest.query_id == query_id:
        return
    old = newest.query_id or DF_WRITE
    if rules.reset_query_id == old:
        return
    raise ProducerIdInUse(
        f"producer {producer!r} was last used by {described_query(newest.query_id)} (batch"
        f" {newest.batch_id}), and this is {described_query(query_id)}: nothing was appended. Has the"
        " checkpoint been deleted? Give the query another producerId; or, if the old one never comes"
        f" back and its rows do not come twice, option resetProducer={old}"
    )


def judge(newest: Batch | None, batch: Batch, rules: BatchRules, producer: str) -> Verdict:
    """Raises BatchDiffers, ProducerIdInUse, BatchOutOfOrder."""
    check_query(newest, batch.query_id, rules, producer)
    if newest is None or newest.query_id != batch.query_id:
        return Verdict.FOLLOWS
    if batch.batch_id == newest.batch_id:
        if (batch.rows, batch.digest) != (newest.rows, newest.digest) and not rules.keeps_what_stands:
            raise BatchDiffers(
                f"{batch.described} is in the log already under producer {producer!r}, with"
                f" {newest.rows} rows; now it comes with {batch.rows} rows, or others: nothing was"
                " appended. The checkpoint is older than the log, or the query gives other rows each"
                " time. Option batchDiffers=keep keeps what the log has and drops what came now"
            )
        return Verdict.STANDS
    if batch.batch_id < newest.batch_id:
        if rules.skips_older:
            return Verdict.STANDS
        raise BatchOutOfOrder(
            f"{batch.described} comes after batch {newest.batch_id} under producer {producer!r}: nothing"
            f" was appended. {_why_older(batch)}"
        )
    if batch.is_of_stream and batch.batch_id != newest.batch_id + 1:
        raise BatchOutOfOrder(
            f"{batch.described} comes although batch {newest.batch_id} is the newest under producer"
            f" {producer!r}: batches in between never came here; nothing was appended. The checkpoint"
            " was used with another sink meanwhile, or the log is an older copy; write with a new"
            " checkpoint and producerId"
        )
    return Verdict.FOLLOWS


def _why_older(batch: Batch) -> str:
    if batch.is_of_stream:
        return (
            "An older checkpoint was restored, and its batches may be in the log already: restore the"
            " newest checkpoint, or begin a new one at the right offsets with another producerId"
        )
    return (
        "Give batchId a number that rises; or, where fixed ranges of rows have fixed numbers and are run"
        " again from the top, option batchOrder=skip"
    )
