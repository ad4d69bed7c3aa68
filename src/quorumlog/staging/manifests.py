"""A batch's manifest: the place of its rows in the staging group, and its identity.

A manifest is an entry of the staging group, appended by the producer that commits:

    "QLMF"      4 bytes
    version     1 byte, 1; 2 where a state machine takes the rows, which older releases know nothing of
    the rest    the fields of `Manifest` as a MessagePack array, compressed (zlib)
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from enum import Enum, auto
from typing import NamedTuple, Self

import msgspec
import numpy as np

from quorumlog.batch import EntryBatch
from quorumlog.errors import Refused
from quorumlog.header_array import UInt64Array

_WORD = 2**64
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


class RowDigest(NamedTuple):
    """Two sums over all rows, of numbers that look drawn at random: equal rows count as often as they
    come, which an exclusive or would not see."""

    low: int = 0
    high: int = 0

    def plus(self, other: RowDigest) -> RowDigest:
        return RowDigest((self.low + other.low) % _WORD, (self.high + other.high) % _WORD)

    @classmethod
    def of_hashes(cls, hashes: UInt64Array) -> Self:
        """Shape (rows,)."""
        low, high = mixed(hashes), mixed(hashes ^ _SECOND)
        return cls(int(np.add.reduce(low)), int(np.add.reduce(high)))

    @classmethod
    def of_entries(cls, batch: EntryBatch) -> Self:
        """Of rows that are an entry each."""
        crcs = batch.body_crcs().astype(np.uint64)
        return cls.of_hashes((crcs << np.uint64(32)) | batch.sizes.astype(np.uint64))


def mixed(numbers: UInt64Array) -> UInt64Array:
    """The finalizer of SplitMix64: every bit of a number reaches every bit of the result."""
    mixing = numbers + _GOLDEN
    mixing = (mixing ^ (mixing >> np.uint64(30))) * _FIRST
    mixing = (mixing ^ (mixing >> np.uint64(27))) * _SECOND
    return mixing ^ (mixing >> np.uint64(31))


# ----------------------------------------------------------------
# Why a batch is not committed. Nothing of it has come into the log then.


class SinkRefused(Refused):
    """The log has nothing of this batch that it did not have before."""


class BatchDiffers(SinkRefused):
    """The batch id is committed already, with other rows."""

    code = 470


class ProducerIdInUse(SinkRefused):
    """Another query has written the newest batch under this producer id."""

    code = 471


class BatchOutOfOrder(SinkRefused):
    """The batch id is older than the newest committed one, or skips some."""

    code = 472


class RowsNotHeld(SinkRefused):
    """The staged rows may be deleted by now, without a hold: they have to be staged again."""

    code = 473


class RowsGone(SinkRefused):
    """A committed manifest's rows are missing, or the log and its staging group do not match."""

    code = 474


class ManifestUnknown(SinkRefused):
    """An entry that should be a manifest cannot be read."""

    code = 475


_MAGIC = b"QLMF"
_VERSION, _VERSION_WITH_MACHINE = 1, 2
_MOST_BYTES = 256 * 1024 * 1024
"""Of a manifest that is unpacked: what would be larger is none of ours."""


class RowRange(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Entries of the staging group that follow each other."""

    first_index: int
    count: int

    @property
    def stop_index(self) -> int:
        return self.first_index + self.count


def joined(ranges: Iterable[RowRange]) -> tuple[RowRange, ...]:
    """Merge adjacent ranges; their order stays."""
    found: list[RowRange] = []
    for each in ranges:
        if found and found[-1].stop_index == each.first_index:
            found[-1] = RowRange(found[-1].first_index, found[-1].count + each.count)
        elif each.count:
            found.append(each)
    return tuple(found)


class Batch(msgspec.Struct, frozen=True, array_like=True):
    """A batch that a driver commits."""

    query_id: str
    """Of a streaming query, by its checkpoint; "" for writes without one."""
    batch_id: int
    rows: int
    digest: RowDigest
    ranges: tuple[RowRange, ...]
    """Of its entries, in the order in which they are to come into the log."""
    machine: str = ""
    """State machine of the log that takes them; empty: none."""

    @property
    def entries(self) -> int:
        return sum(each.count for each in self.ranges)

    @property
    def first_index(self) -> int | None:
        """The lowest of its rows; None if it has none."""
        return min((each.first_index for each in self.ranges), default=None)

    @property
    def is_of_stream(self) -> bool:
        return bool(self.query_id)

    @property
    def described(self) -> str:
        return f"batch {self.batch_id} of {described_query(self.query_id)}"


class Manifest(msgspec.Struct, frozen=True, array_like=True):
    """A batch, and the number of its first entry among all that the sink has ever written."""

    batch: Batch
    first_sequence: int

    @property
    def stop_sequence(self) -> int:
        return self.first_sequence + self.batch.entries


class NewestManifest(msgspec.Struct, frozen=True):
    """The newest manifest of a producer, and where it lies."""

    index: int
    manifest: Manifest

    @property
    def batch(self) -> Batch:
        return self.manifest.batch


def described_query(query_id: str) -> str:
    return f"query {query_id}" if query_id else "df.write"


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Manifest)


def encode_manifest(manifest: Manifest) -> bytes:
    version = _VERSION_WITH_MACHINE if manifest.batch.machine else _VERSION
    return _MAGIC + bytes([version]) + zlib.compress(_encoder.encode(manifest), 1)


def decode_manifest(body: bytes) -> Manifest:
    """Raises ManifestUnknown."""
    head, packed = body[: len(_MAGIC) + 1], body[len(_MAGIC) + 1 :]
    if head[: len(_MAGIC)] != _MAGIC:
        raise ManifestUnknown("the newest entry of this producer in the staging group is no manifest")
    if head[-1:] not in (bytes([_VERSION]), bytes([_VERSION_WITH_MACHINE])):
        raise ManifestUnknown(
            f"the newest manifest is of version {head[-1]}, written by a newer release: use that one"
        )
    try:
        unpacker = zlib.decompressobj()
        return _decoder.decode(unpacker.decompress(packed, _MOST_BYTES))
    except (zlib.error, msgspec.MsgspecError) as error:
        raise ManifestUnknown(f"the newest manifest cannot be read: {error}") from None


# ----------------------------------------------------------------
# Which batch may follow the newest that stands. Values in, values out.
#
# stands already, same rows                      nothing to do
# stands already, other rows                     BatchDiffers, unless it says batchDiffers=keep
# of another query                               ProducerIdInUse, unless resetProducer names that one
# older                                          BatchOutOfOrder, unless it says batchOrder=skip
# one is left out (streams)                      BatchOutOfOrder
# the first, the first of its query, or next     it is appended


class Verdict(Enum):
    FOLLOWS = auto()
    COMMITTED = auto()


class BatchRules(NamedTuple):
    keeps_existing: bool = False
    """A committed batch id is done, regardless of the rows given now."""
    skips_older: bool = False
    """A batch below the newest one is done: fixed ranges that are run again from the top."""
    reset_query_id: str | None = None
    """The query that this one takes the producer over from."""


DF_WRITE = "df.write"
"""Name in `resetProducer` for writes without a query."""


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
        if (batch.rows, batch.digest) != (newest.rows, newest.digest) and not rules.keeps_existing:
            raise BatchDiffers(
                f"{batch.described} is in the log already under producer {producer!r}, with"
                f" {newest.rows} rows; now it comes with {batch.rows} rows, or others: nothing was"
                " appended. The checkpoint is older than the log, or the query returns other rows each"
                " time. Option batchDiffers=keep keeps the rows in the log and drops these"
            )
        return Verdict.COMMITTED
    if batch.batch_id < newest.batch_id:
        if rules.skips_older:
            return Verdict.COMMITTED
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
