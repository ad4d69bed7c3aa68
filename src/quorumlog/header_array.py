"""The headers of many entries at once, with numpy, as `quorumlog.entry_header` has one."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from quorumlog.entry import ENTRY_KINDS
from quorumlog.entry_header import (
    HEADER_BYTES,
    MIX_BODY,
    MIX_FIRST,
    MIX_INDEX,
    MIX_SECOND,
    MIX_SHAPE,
    MIX_TERM,
)

HEADER_DTYPE = np.dtype(
    [
        ("magic", ">i4"),
        ("size", ">i4"),
        ("index", ">i8"),
        ("term", ">i8"),
        ("pos", ">i8"),
        ("channel", ">i4"),
        ("chain_crc", ">u4"),
        ("body_crc", ">u4"),
        ("body_len", ">i4"),
    ]
)
assert HEADER_DTYPE.itemsize == HEADER_BYTES

Int64Array = npt.NDArray[np.int64]
UInt64Array = npt.NDArray[np.uint64]
UInt32Array = npt.NDArray[np.uint32]
HeaderArray = npt.NDArray[Any]

LOW_32 = np.uint64(0xFFFFFFFF)
HIGH_32 = np.uint64(0xFFFFFFFF << 32)
BITS_32 = np.uint64(32)

# The 48 bytes of a header as six native 64-bit words: one conversion makes all that follows cheap.
HEADER_WORDS = 6
SHAPE, INDEX, TERM, POS, CHAIN, BODY = range(HEADER_WORDS)
"""magic << 32 | size, index, term, pos, channel << 32 | chain_crc, body_crc << 32 | body_len."""
_30, _27, _31 = np.uint64(30), np.uint64(27), np.uint64(31)
_MIX_INDEX, _MIX_TERM, _MIX_SHAPE = np.uint64(MIX_INDEX), np.uint64(MIX_TERM), np.uint64(MIX_SHAPE)
_MIX_BODY, _MIX_FIRST, _MIX_SECOND = np.uint64(MIX_BODY), np.uint64(MIX_FIRST), np.uint64(MIX_SECOND)

_WHERE = {
    "magic": (SHAPE, HIGH_32),
    "size": (SHAPE, LOW_32),
    "index": (INDEX, None),
    "term": (TERM, None),
    "pos": (POS, None),
    "channel": (CHAIN, HIGH_32),
    "chain_crc": (CHAIN, LOW_32),
    "body_crc": (BODY, HIGH_32),
    "body_len": (BODY, LOW_32),
}
assert tuple(_WHERE) == HEADER_DTYPE.names

_ABOVE_KINDS = np.uint64(max(ENTRY_KINDS) + 1)
_IS_KIND = np.isin(np.arange(_ABOVE_KINDS + np.uint64(1)), list(ENTRY_KINDS))
"""By magic. A table, so that a look costs the same however many kinds there are."""


def term_runs_of(records: HeaderArray) -> tuple[tuple[int, int], ...]:
    """Runs of equal terms in an array with `index` and `term` fields, as ((first_index, term), ...)."""
    terms = records["term"].astype(np.int64)
    edges = np.flatnonzero(terms[1:] != terms[:-1]) + 1
    firsts = [0, *edges.tolist()]
    return tuple((int(records["index"][i]), int(terms[i])) for i in firsts)


def words_of(headers: HeaderArray) -> UInt64Array:
    """Shape (6, count): headers of `HEADER_DTYPE` as native words, as `EntryBatch.words`."""
    rows = np.ascontiguousarray(headers).view(">u8").reshape(len(headers), HEADER_WORDS)
    words: UInt64Array = rows.T.astype(np.uint64, order="C")
    return words


def field_of(words: UInt64Array, name: str) -> Int64Array:
    """Shape (count,): a field of `HEADER_DTYPE`, as a number of 0 or more."""
    row, half = _WHERE[name]
    word = words[row]
    if half == HIGH_32:
        word = word >> BITS_32
    elif half == LOW_32:
        word = word & LOW_32
    field: Int64Array = word.view(np.int64)
    return field


def digests_of(words: UInt64Array) -> UInt64Array:
    """Shape (count,): d(i) of `quorumlog.batch`, 32-bit values. One splitmix64 finaliser over a sum of
    the identifying fields, each times an odd constant of its own: a change of any one field changes the
    64-bit state for certain, its low half with 1 - 2^-32."""
    body = (words[CHAIN] & HIGH_32) | (words[BODY] >> BITS_32)
    z: UInt64Array = words[INDEX] * _MIX_INDEX
    z += words[TERM] * _MIX_TERM
    z += words[SHAPE] * _MIX_SHAPE
    z += body * _MIX_BODY
    z ^= z >> _30
    z *= _MIX_FIRST
    z ^= z >> _27
    z *= _MIX_SECOND
    z ^= z >> _31
    z &= LOW_32
    return z


def chain_of(headers: HeaderArray, previous_chain: int) -> UInt32Array:
    """Shape (count,): chain_crc of each entry, continuing from `previous_chain`."""
    return chain_of_words(words_of(headers), previous_chain).astype(np.uint32)


def chain_of_words(words: UInt64Array, previous_chain: int) -> UInt64Array:
    sums = np.add.accumulate(digests_of(words))
    sums += np.uint64(previous_chain)
    sums &= LOW_32
    return sums


def is_kind(magics: HeaderArray) -> npt.NDArray[np.bool_]:
    """Which magics are those of entries; same shape, any integers."""
    known: npt.NDArray[np.bool_] = _IS_KIND[np.minimum(magics.astype(np.uint64), _ABOVE_KINDS)]
    return known


def first_wrong(
    headers: HeaderArray,
    sizes: Int64Array,
    positions: Int64Array,
    expected_index: int,
    previous_term: int,
    previous_chain: int | None,
) -> tuple[int, str]:
    """Place in `headers` of the first that does not continue the log (its length: none), and why.
    `sizes` and `positions`: of the entries as they lie. `previous_chain` None: no digest is looked
    at."""
    count = len(headers)
    if count == 0:
        return 0, ""
    terms = headers["term"].astype(np.int64)
    before = np.concatenate([np.array([previous_term], np.int64), terms[:-1]])
    shape = (
        is_kind(headers["magic"])
        & (headers["size"] == sizes)
        & (headers["body_len"] == sizes - HEADER_BYTES)
    )
    checks = [
        ("body_len and size disagree", ~shape),
        ("index does not follow", headers["index"] != np.arange(expected_index, expected_index + count)),
        ("pos is not where the entry lies", headers["pos"] != positions),
        ("term falls", terms < before),
    ]
    if previous_chain is not None:
        checks.append(
            ("chain_crc does not match", headers["chain_crc"] != chain_of(headers, previous_chain))
        )
    first, why = count, ""
    for problem, wrong in checks:
        at = int(wrong.argmax())
        if wrong[at] and at < first:
            first, why = at, problem
    return first, why
