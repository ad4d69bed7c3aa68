"""Java's `String.hashCode`, of many strings at once: the sum of c[i] * 31^(n-1-i) modulo 2^32 over
UTF-16 units."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

_LAST_ASCII = 127
_POWERS_OF_31 = np.ones(1, np.uint32)


def java_hash(text: str) -> int:
    """Signed, of 32 bits."""
    data = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for at in range(0, len(data), 2):
        value = (31 * value + (data[at] << 8 | data[at + 1])) & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


cached_java_hash = lru_cache(4096)(java_hash)


def powers_of_31(count: int) -> npt.NDArray[np.uint32]:
    global _POWERS_OF_31
    if len(_POWERS_OF_31) < count:
        powers = np.full(max(count, 2 * len(_POWERS_OF_31)), 31, np.uint32)
        powers[0] = 1
        _POWERS_OF_31 = np.multiply.accumulate(powers, dtype=np.uint32)
    return _POWERS_OF_31


def gather(data: Bytes, starts: Int64Array, sizes: Int64Array) -> tuple[Bytes, Int64Array]:
    """The pieces one behind the other, and where each begins there."""
    stops = np.cumsum(sizes)
    begins = stops - sizes
    total = int(stops[-1]) if len(stops) else 0
    index = np.arange(total, dtype=np.int64) + np.repeat(starts - begins, sizes)
    return data[index], begins


def java_hashes(data: Bytes, starts: Int64Array, sizes: Int64Array) -> Int64Array:
    """Of strings that lie in `data` as UTF-8; signed. An empty one has 0."""
    hashes = np.zeros(len(starts), np.int64)
    some = np.flatnonzero(sizes > 0)
    if not len(some):
        return hashes
    starts, sizes = starts[some], sizes[some]
    pieces, begins = gather(data, starts, sizes)
    most = int(sizes.max())
    powers = powers_of_31(most)
    units = pieces.astype(np.uint32)
    if len(pieces) == most * len(sizes):
        # Of one length, as the keys are that clients make.
        sums = units.reshape(-1, most) @ powers[most - 1 :: -1]
    else:
        exponents = np.repeat(begins + sizes - 1, sizes) - np.arange(len(pieces))
        sums = np.add.reduceat(units * powers[exponents], begins, dtype=np.uint32)
    hashes[some] = sums.view(np.int32)
    if int(pieces.max()) <= _LAST_ASCII:
        return hashes
    # A character beyond ASCII is one unit or two in Java, and two bytes or more here.
    foreign = np.logical_or.reduceat(pieces > _LAST_ASCII, begins)
    for at in np.flatnonzero(foreign).tolist():
        piece = bytes(pieces[begins[at] : begins[at] + sizes[at]])
        hashes[some[at]] = java_hash(piece.decode("utf-8", "replace"))
    return hashes


def utf16_units(data: Bytes, starts: Int64Array, sizes: Int64Array) -> Int64Array:
    """How long these strings are in Java; none is empty."""
    if not len(starts):
        return np.zeros(0, np.int64)
    pieces, begins = gather(data, starts, sizes)
    if int(pieces.max()) <= _LAST_ASCII:
        return sizes
    units = ((pieces & 0xC0) != 0x80).astype(np.int64) + (pieces >= 0xF0)
    return np.add.reduceat(units, begins)
