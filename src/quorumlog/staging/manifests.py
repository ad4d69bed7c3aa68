"""What is said of a batch: where its rows lie in the staging group, and how it is recognised.

A manifest is an entry of the staging group, appended by the producer that commits:

    "QLMF"      4 bytes
    version     1 byte, 1; 2 where a state machine takes the rows, which older releases know nothing of
    the rest    the fields of `Manifest` as a MessagePack array, compressed (zlib)
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable

import msgspec

from quorumlog.staging.row_digests import RowDigest
from quorumlog.staging.sink_errors import ManifestUnknown

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
    """What lies together is one range; their order stays."""
    found: list[RowRange] = []
    for each in ranges:
        if found and found[-1].stop_index == each.first_index:
            found[-1] = RowRange(found[-1].first_index, found[-1].count + each.count)
        elif each.count:
            found.append(each)
    return tuple(found)


class Batch(msgspec.Struct, frozen=True, array_like=True):
    """What a driver wants to commit."""

    query_id: str
    """Of a streaming query, by its checkpoint; "" of what is written without one."""
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


class StandingManifest(msgspec.Struct, frozen=True):
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
