"""EntryBatch: the unit of everything that moves. No per-entry Python on the way through.

One contiguous buffer of encoded entries, exactly as they lie on disk (`quorumlog.entry_header` draws the
layout), and their sizes. A producer encodes bodies; the leader stamps index, term, pos and both digests
in place; the same bytes are then written, pushed and read. The only per-entry cost is one C call for the
CRC of a body where it is stamped; where it is checked, one call looks at all bodies of a batch.

`chain_crc` is `chain(i) = (chain(i - 1) + d(i)) mod 2^32`, `chain(-1) = 0`, with `d` a mix of the header
fields that identify an entry: computed in bulk, and two replicas that agree on it at an index agree on
every entry up to there.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Self

import msgspec
import numpy as np
import numpy.typing as npt
from isal.isal_zlib import crc32

from quorumlog.entry import ENTRY_KINDS, Entry, EntryKind
from quorumlog.entry_header import (
    HEADER_BYTES,
    Buffer,
    EntryHeader,
    unpack_header,
)
from quorumlog.errors import BadRequest, ProtocolViolation
from quorumlog.header_array import (
    BITS_32,
    BODY,
    CHAIN,
    HEADER_DTYPE,
    HEADER_WORDS,
    HIGH_32,
    INDEX,
    LOW_32,
    POS,
    SHAPE,
    TERM,
    HeaderArray,
    Int64Array,
    UInt32Array,
    UInt64Array,
    chain_of_words,
    is_kind,
    term_runs_of,
    words_of,
)

_BLANK_HEADER = bytes(HEADER_BYTES)
_NORMAL_SHAPE = np.uint64(EntryKind.NORMAL << 32)
_NORMAL_MAGIC = int(EntryKind.NORMAL).to_bytes(4, "big")
_OF_A_FULL_DISK = np.array([EntryKind.NOOP, EntryKind.MEMBERSHIP, EntryKind.KEEP], np.uint64)
_FROM_NOOP = EntryKind.NOOP << 32
_ABOVE_NOOP = (EntryKind.NOOP + 1) << 32
_MOST_BYTES = np.uint64(2**31 - 1)
"""Of an entry: its header has a signed number."""
_EMPTY_REGISTER = 0xFFFFFFFF
"""As a CRC so far: its register is 0, and stays that over zeros."""
_FIRST_BODY = np.uint64(0x9226F562 << 32)
"""Four bytes that take the register from 0 to where a CRC begins, behind four zeros."""
assert crc32(int(_FIRST_BODY).to_bytes(8, "little"), _EMPTY_REGISTER) == 0
_FEW_BODIES = 16
_LONG_BODY_BYTES = 8192
"""Fewer, or longer ones: a call for each costs less than the copy."""
_BODIES_AT_ONCE = 512
"""More copies would leave the processor's cache."""
_ZERO = np.zeros(1, np.int64)
_ZERO.setflags(write=False)


class EntryBatch:
    """`count` encoded entries in one buffer, which must be writable for `stamp`. A slice shares memory
    with its batch, and is invalid once the batch is stamped again."""

    __slots__ = (
        "_chain_before",
        "_first_header",
        "_is_uniform",
        "_sizes",
        "_starts",
        "_words",
        "buffer",
        "count",
        "total_bytes",
    )

    def __init__(self, buffer: Buffer, sizes: npt.ArrayLike | None) -> None:
        """`sizes`: shape (count,), bytes of each entry, header included; they must fill the buffer.
        None: one entry fills it. Raises ProtocolViolation."""
        self._starts: Int64Array | None = None
        self._words: UInt64Array | None = None
        self._first_header: EntryHeader | None = None
        self._chain_before: int | None = None
        self._sizes: Int64Array | None = None
        self.buffer = memoryview(buffer).cast("B")
        self.total_bytes = len(self.buffer)
        if sizes is None:
            self.count = 1
            total = least = len(self.buffer)
        else:
            self._sizes = np.asarray(sizes, dtype=np.int64)
            self.count = len(self._sizes)
            if self.count == 1:
                total = least = int(self._sizes[0])
            else:
                total = int(np.add.reduce(self._sizes))
                least = int(np.minimum.reduce(self._sizes)) if self.count else HEADER_BYTES
        self._is_uniform = least * self.count == total
        if least < HEADER_BYTES:
            raise ProtocolViolation(f"an entry of {least} bytes has no header ({HEADER_BYTES} bytes)")
        if total != len(self.buffer):
            raise ProtocolViolation(
                f"a batch of {self.count} entries with {total} bytes by its sizes is"
                f" {len(self.buffer)} bytes long"
            )

    def __repr__(self) -> str:
        return f"<EntryBatch of {self.count} entries, {self.total_bytes} bytes>"

    # ---------------------------------------------------------------- making

    @classmethod
    def from_bodies(cls, bodies: Sequence[Buffer]) -> Self:
        """Index, term, pos and digests stay 0 until the leader stamps them. Raises BadRequest if a body
        is not bytes-like."""
        try:
            buffer = bytearray(_BLANK_HEADER).join([b"", *bodies])
            if len(bodies) == 1:
                size = len(buffer)
                header = EntryHeader(EntryKind.NORMAL, size, 0, 0, 0, 0, 0, 0, size - HEADER_BYTES)
                header.pack_into(buffer, 0)
                return cls(buffer, None)
            sizes = np.fromiter(map(len, bodies), np.int64, len(bodies))
        except TypeError as error:
            raise BadRequest(
                f"a body must be bytes, bytearray or memoryview{_wrong(bodies, error)}"
            ) from None
        sizes += HEADER_BYTES
        batch = cls(buffer, sizes)
        headers = batch.headers()
        headers["magic"] = EntryKind.NORMAL
        headers["size"] = sizes
        headers["body_len"] = sizes - HEADER_BYTES
        batch._put_headers(headers)
        return batch

    @classmethod
    def control(cls, kind: EntryKind, body: bytes = b"") -> Self:
        """A single control entry, unstamped as the others."""
        buffer = bytearray(HEADER_BYTES) + body
        EntryHeader(kind, len(buffer), 0, 0, 0, 0, 0, 0, len(body)).pack_into(buffer, 0)
        return cls(buffer, None)

    @classmethod
    def noop(cls) -> Self:
        """The single entry without a body that opens a term."""
        return cls.control(EntryKind.NOOP)

    @classmethod
    def concatenate(cls, batches: Sequence[EntryBatch]) -> Self:
        """One batch of its own memory with the entries of all."""
        buffers = [b.buffer for b in batches]
        buffer = bytearray().join(buffers)
        if sum([b.count for b in batches]) == len(batches):
            return cls(buffer, np.fromiter(map(len, buffers), np.int64, len(buffers)))
        return cls(buffer, np.concatenate([b.sizes for b in batches]))

    def slice(self, first: int, stop: int) -> EntryBatch:
        """Entries `first` .. `stop - 1` (positions in this batch), sharing memory."""
        assert 0 <= first <= stop <= self.count, (first, stop, self.count)
        starts = self.starts
        low = int(starts[first]) if first < self.count else len(self.buffer)
        high = int(starts[stop]) if stop < self.count else len(self.buffer)
        sizes = self.sizes[first:stop] if stop - first != 1 else None
        return EntryBatch(self.buffer[low:high], sizes)

    # ---------------------------------------------------------------- reading

    @property
    def sizes(self) -> Int64Array:
        """Shape (count,): bytes of each entry, header included."""
        if self._sizes is None:
            self._sizes = np.array([len(self.buffer)], np.int64)
        return self._sizes

    @property
    def starts(self) -> Int64Array:
        """Shape (count,): byte offset of each entry in `buffer`."""
        if self._starts is None:
            self._starts = np.cumsum(self.sizes) - self.sizes if self.count != 1 else _ZERO
        return self._starts

    def headers(self) -> HeaderArray:
        """Shape (count,), `HEADER_DTYPE`: a view where the entries are equally long, else a copy."""
        if self.count == 0:
            return np.empty(0, HEADER_DTYPE)
        if self._is_uniform:
            return np.ndarray((self.count,), HEADER_DTYPE, self.buffer, 0, (int(self.sizes[0]),))
        gathered: HeaderArray = self._window()[self.starts].view(HEADER_DTYPE)
        return gathered

    @property
    def first_header(self) -> EntryHeader:
        """Of a batch that has entries; kept as `words` is. All there is to know of a lone writer's
        batch."""
        if self._first_header is None:
            self._first_header = unpack_header(self.buffer)
        return self._first_header

    @property
    def chain_before(self) -> int:
        if self._chain_before is None:
            self._chain_before = (self._first_header or self.first_header).chain_before
        return self._chain_before

    def words(self) -> UInt64Array:
        """Shape (6, count): the headers as native words, see `SHAPE` and the others; do not change.
        Cached until the batch is stamped: after any other change of the buffer make a new batch."""
        if self._words is None:
            if self.count and self._is_uniform:
                self._words = self._word_view().astype(np.uint64, order="C")
            else:
                self._words = words_of(self.headers())
        return self._words

    def _word_view(self) -> HeaderArray:
        """Shape (6, count), big-endian, in the buffer itself; entries are equally long."""
        return np.ndarray((HEADER_WORDS, self.count), ">u8", self.buffer, 0, (8, int(self.sizes[0])))

    def _put_words(self, words: UInt64Array) -> None:
        self._forget()
        if self._is_uniform:
            self._word_view()[:] = words
        else:
            self._put_headers(words.T.astype(">u8", order="C").view(HEADER_DTYPE)[:, 0])
        self._words = words

    def _forget(self) -> None:
        self._words = None
        self._first_header = None
        self._chain_before = None

    def _window(self) -> HeaderArray:
        """Every byte offset of the buffer as the start of a 48-byte header (overlapping view)."""
        return np.ndarray(
            (len(self.buffer) - HEADER_BYTES + 1,), f"V{HEADER_BYTES}", self.buffer, 0, (1,)
        )

    def _put_headers(self, headers: HeaderArray) -> None:
        """Write back what `headers()` gave; nothing to do where it gave a view."""
        self._forget()
        if self.count and not self._is_uniform:
            self._window()[self.starts] = np.ascontiguousarray(headers).view(f"V{HEADER_BYTES}")

    @property
    def first_index(self) -> int:
        return int.from_bytes(self.buffer[8:16], "big", signed=True)

    @property
    def last_index(self) -> int:
        return self.first_index + self.count - 1

    @property
    def indices(self) -> Int64Array:
        """Shape (count,)."""
        if self.count == 1:
            return np.array([self.first_index])
        indices: Int64Array = self.words()[INDEX].view(np.int64)
        return indices

    def body(self, position: int) -> memoryview:
        """Of the entry at this position of the batch, 0 the first; not copied."""
        start = int(self.starts[position])
        return self.buffer[start + HEADER_BYTES : start + int(self.sizes[position])]

    def bodies(self) -> Iterator[memoryview]:
        """Of all entries in order, control entries as well; not copied."""
        buffer = self.buffer
        for start, size in zip(self.starts.tolist(), self.sizes.tolist(), strict=True):
            yield buffer[start + HEADER_BYTES : start + size]

    def heads(self) -> EntryBatch:
        """The headers alone, in memory of their own: entries of 48 bytes whose headers keep the sizes of
        the complete entries."""
        headers = self.headers().view(f"V{HEADER_BYTES}")  # else copied field by field
        return EntryBatch(headers.tobytes(), np.full(self.count, HEADER_BYTES, np.int64))

    def entries(self) -> Iterator[Entry]:
        """The NORMAL entries, one object each: for applications, not for the data plane."""
        headers = self.headers()
        rows = zip(
            headers["magic"].tolist(),
            headers["index"].tolist(),
            headers["term"].tolist(),
            self.bodies(),
            strict=True,
        )
        for magic, index, term, body in rows:
            if magic == EntryKind.NORMAL:
                yield Entry(index, term, bytes(body))

    def term_runs(self) -> tuple[tuple[int, int], ...]:
        """((first_index, term), ...) of the runs of equal terms, in order."""
        if self.count == 1:
            one = self._first_header or self.first_header
            return ((one.index, one.term),)
        if not self.count:
            return ()
        words = self.words()
        terms = words[TERM]
        if terms[0] == terms[-1] and bool(np.logical_and.reduce(terms == terms[0])):
            return ((int(words[INDEX][0]), int(terms[0])),)
        return term_runs_of(self.headers())

    @property
    def may_use_reserve(self) -> bool:
        """Only entries that elections need (no-ops, memberships), and those that let segments be
        deleted."""
        if not self.count or self.buffer[:4] == _NORMAL_MAGIC:
            return False
        return bool(np.isin(self.words()[SHAPE] >> BITS_32, _OF_A_FULL_DISK).all())

    @property
    def frees_space(self) -> bool:
        """It holds an entry without which no segment may go."""
        found = self.kinds_and_terms(self.log_state_positions())
        return any(kind == EntryKind.KEEP for kind, _ in found)

    @property
    def is_small_control(self) -> bool:
        """Only no-ops, which may use all of the reserve: memberships must leave some for them."""
        return self.may_use_reserve and self.total_bytes == HEADER_BYTES * self.count

    def log_state_positions(self) -> list[int]:
        """Where in the batch entries lie from which the log's state follows: none, almost always."""
        if self.count == 1:
            return [0] if self.first_header.magic > EntryKind.NOOP else []
        shapes = self.words()[SHAPE]
        if not self.count or int(np.maximum.reduce(shapes)) < _ABOVE_NOOP:
            return []
        positions: list[int] = np.flatnonzero(shapes >= np.uint64(_ABOVE_NOOP)).tolist()
        return positions

    def control_positions(self) -> list[int]:
        """The same, and no-ops too: the beginning of a term changes the state of interrupted changes."""
        if self.count == 1:
            return [0] if self.first_header.magic >= EntryKind.NOOP else []
        shapes = self.words()[SHAPE]
        if not self.count or int(np.maximum.reduce(shapes)) < _FROM_NOOP:
            return []
        positions: list[int] = np.flatnonzero(shapes >= np.uint64(_FROM_NOOP)).tolist()
        return positions

    def kinds_and_terms(self, positions: Sequence[int]) -> list[tuple[int, int]]:
        """Magic and term of the entries at these positions."""
        if self.count == 1:
            return [(self.first_header.magic, self.first_header.term)] * len(positions)
        words = self.words()[:, positions]
        return list(zip((words[SHAPE] >> BITS_32).tolist(), words[TERM].tolist(), strict=True))

    def body_crcs(self) -> UInt32Array:
        """Shape (count,): the CRC-32 of each body as it is, not of its header."""
        size = int(self.sizes[0]) if self.count and self._is_uniform else 0
        if HEADER_BYTES < size <= _LONG_BODY_BYTES:
            # Copies made in bulk are faster than a view of each.
            kind, step = f"V{size - HEADER_BYTES}", _BODIES_AT_ONCE
            bodies = np.ndarray((self.count,), kind, self.buffer, HEADER_BYTES, (size,))
            parts = (bodies[at : at + step].tolist() for at in range(0, self.count, step))
            crcs = map(crc32, itertools.chain.from_iterable(parts))
            return np.fromiter(crcs, np.uint32, self.count)
        buffer = self.buffer
        starts = (self.starts + HEADER_BYTES).tolist()
        stops = (self.starts + self.sizes).tolist()
        return np.fromiter(
            [crc32(buffer[start:stop]) for start, stop in zip(starts, stops, strict=True)],
            np.uint32,
            self.count,
        )

    # ---------------------------------------------------------------- stamping

    def stamp(self, first_index: int, term: int, positions: npt.ArrayLike, previous_chain: int) -> int:
        """Give the entries their place in the log and compute their `body_crc`; returns the chain of the
        last one. `positions`: shape (count,), the position of each entry in the log.

        The client's CRCs are not compared: `bodies_surely_match` detects accidental damage, and not
        a forged CRC."""
        if self.count == 0:
            return previous_chain
        if self.count == 1:
            return self._stamp_one(first_index, term, int(np.asarray(positions)[0]), previous_chain)
        words = self.words().copy()
        words[INDEX] = np.arange(first_index, first_index + self.count)
        words[TERM] = term
        words[POS] = positions
        words[BODY] = (self.body_crcs().astype(np.uint64) << BITS_32) | (words[BODY] & LOW_32)
        chain = chain_of_words(words, previous_chain)
        words[CHAIN] = (words[CHAIN] & HIGH_32) | chain
        self._put_words(words)
        return int(chain[-1])

    def _stamp_one(self, index: int, term: int, pos: int, previous_chain: int) -> int:
        old = self.first_header
        crc = crc32(self.buffer[HEADER_BYTES:])
        header = EntryHeader(old.magic, old.size, index, term, pos, old.channel, 0, crc, old.body_len)
        chain = header.chain_after(previous_chain)
        self._forget()
        header.pack_into(self.buffer, chain)
        return chain

    def set_channel(self, channel: int) -> None:
        """Of all entries, before they are stamped; overwrites the producer's value."""
        if self.count == 1:
            one = self._first_header or self.first_header
            if one.channel != channel:
                self._forget()
                msgspec.structs.replace(one, channel=channel).pack_into(self.buffer, one.chain_crc)
            return
        if self.count and bool((self.words()[CHAIN] >> BITS_32 != np.uint64(channel)).any()):
            headers = self.headers()
            headers["channel"] = channel
            self._put_headers(headers)

    # ---------------------------------------------------------------- checking

    def check_encoding(self, *, normal_only: bool = False) -> None:
        """Raise ProtocolViolation unless every header agrees with `sizes` and has a known kind.
        `normal_only`: control entries are refused too; clients append NORMAL entries."""
        if self.count == 1:
            one = self.first_header
            good = one.size == len(self.buffer) == one.body_len + HEADER_BYTES
            known = one.magic == EntryKind.NORMAL or (not normal_only and one.magic in ENTRY_KINDS)
        else:
            words = self.words()
            sizes = self.sizes.view(np.uint64)
            good = bool(((words[BODY] & LOW_32) == sizes - np.uint64(HEADER_BYTES)).all())
            known = bool((words[SHAPE] == sizes + _NORMAL_SHAPE).all())
            if not known:
                good = good and bool(((words[SHAPE] & LOW_32) == sizes).all())
                known = not normal_only and bool(is_kind(words[SHAPE] >> BITS_32).all())
        if not good:
            raise ProtocolViolation("an entry's header disagrees with the sizes of its batch")
        if not known:
            raise ProtocolViolation("an entry of a kind that may not be sent here")

    def check_heads(self) -> None:
        """As `check_encoding`, for a batch that `heads` made."""
        words = self.words()
        sizes = words[SHAPE] & LOW_32
        good = len(self.buffer) == self.count * HEADER_BYTES and bool(
            ((sizes == (words[BODY] & LOW_32) + np.uint64(HEADER_BYTES)) & (sizes <= _MOST_BYTES)).all()
        )
        if not good or not bool(is_kind(words[SHAPE] >> BITS_32).all()):
            raise ProtocolViolation("a header is none of an entry")

    def check_sequence(self, first_index: int, previous_chain: int) -> None:
        """Raise ProtocolViolation unless indices are contiguous, terms do not fall and chains link."""
        if self.count == 1:
            if self.first_header.index != first_index:
                raise ProtocolViolation(f"entries from index {first_index} on are not contiguous")
            if self.chain_before != previous_chain:
                raise ProtocolViolation(f"chain_crc does not match at index {first_index}")
            return
        words = self.words()
        expected = np.arange(first_index, first_index + self.count)
        if not bool((words[INDEX].view(np.int64) == expected).all()):
            raise ProtocolViolation(f"entries from index {first_index} on are not contiguous")
        terms = words[TERM].view(np.int64)
        if not bool((terms[1:] >= terms[:-1]).all()):
            raise ProtocolViolation(f"terms fall within a batch from index {first_index} on")
        wrong = chain_of_words(words, previous_chain) != (words[CHAIN] & LOW_32)
        if bool(wrong.any()):
            at = first_index + int(wrong.argmax())
            raise ProtocolViolation(f"chain_crc does not match at index {at}")

    def lies_at(self, positions: Int64Array) -> bool:
        """`positions`: int64, shape (count,). Whether every header names its own of them."""
        if self.count == 1:
            return self.first_header.pos == int(positions[0])
        return bool((self.words()[POS].view(np.int64) == positions).all())

    def check_bodies(self) -> None:
        """Raise ProtocolViolation unless every body matches its `body_crc`."""
        if self.bodies_surely_match():
            return
        words = self.words()
        wrong = np.flatnonzero(self.body_crcs() != words[BODY] >> BITS_32)
        if len(wrong):
            index = int(words[INDEX][int(wrong[0])])
            raise ProtocolViolation(f"body_crc does not match at index {index}")

    def bodies_surely_match(self) -> bool:
        """By one call for all of them; False: check each.

        A CRC is a remainder. A body with the complement of its CRC after it leaves none, wherever it
        lies in a text of such pairs and zeros, and a text with a changed bit leaves one. So a copy of
        the batch becomes such a text: in place of each header the complement of the CRC that the header
        before it has, zeros, and the word that puts the register where a CRC begins. The remainder
        misses as many errors as a CRC of the same bytes: one in 2^32 random changes of several bodies,
        and no change of two bits or of 32 in a row.
        """
        count = self.count
        if count < _FEW_BODIES or self.total_bytes > _LONG_BODY_BYTES * count:
            return False
        crcs = self.words()[BODY] >> BITS_32
        heads = np.zeros((count, HEADER_WORDS), "<u8")
        heads[1:, 0] = crcs[:-1] ^ LOW_32
        heads[:, -1] = _FIRST_BODY
        text = bytearray(self.buffer)
        if self._is_uniform:
            size = int(self.sizes[0])
            np.ndarray((count, HEADER_WORDS), "<u8", text, 0, (size, 8))[:] = heads
        else:
            window = np.ndarray((len(text) - HEADER_BYTES + 1,), f"V{HEADER_BYTES}", text, 0, (1,))
            window[self.starts] = heads.view(f"V{HEADER_BYTES}")[:, 0]
        return crc32(text, _EMPTY_REGISTER) == int(crcs[-1])


def _wrong(bodies: Any, error: TypeError) -> str:
    for place, body in enumerate(bodies if isinstance(bodies, Sequence) else ()):
        try:
            memoryview(body)
        except TypeError:
            return f"; number {place} of the batch is {type(body).__name__}"
    return f": {error}"
