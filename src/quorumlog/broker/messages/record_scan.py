"""Where records begin in bytes that are read from a file: each says how long it is."""

from __future__ import annotations

import struct
from enum import Enum
from typing import NamedTuple

import numpy as np

from quorumlog.broker.messages.record import (
    BLANK_BYTES,
    BLANK_MAGIC,
    LEAST_RECORD_BYTES,
    MAGIC,
    MAGIC_WIDE_TOPIC,
)
from quorumlog.broker.messages.record_columns import Int64Array
from quorumlog.entry_header import Buffer

_HEAD = struct.Struct(">II")
_RUN = 4096
"""Records of equal size are looked for so many at a time."""


class Stop(Enum):
    """Why a scan went no further."""

    BYTES = "bytes"
    """The next record is not whole in what was given."""
    BLANK = "blank"
    """The rest of the file is empty, and closed."""
    NOTHING = "nothing"
    """Zeros: nothing was written here."""
    NO_RECORD = "no record"


class Scan(NamedTuple):
    starts: Int64Array
    sizes: Int64Array
    stop: Stop
    stop_at: int
    wanted_bytes: int
    """With BYTES: of the next record, as far as that is known."""


def scan_records(data: Buffer, at: int = 0) -> Scan:
    """Only sizes and magic codes are looked at."""
    view = memoryview(data)
    end = len(view)
    starts: list[Int64Array] = []
    sizes: list[Int64Array] = []
    loose: list[int] = []
    loose_sizes: list[int] = []
    array = np.frombuffer(view, np.uint8)
    stop, wanted = Stop.BYTES, LEAST_RECORD_BYTES
    last_size = 0
    while at + BLANK_BYTES <= end:
        size, magic = _HEAD.unpack_from(view, at)
        if magic not in (MAGIC, MAGIC_WIDE_TOPIC):
            if magic == BLANK_MAGIC and size >= BLANK_BYTES:
                stop = Stop.BLANK
            else:
                stop = Stop.NOTHING if size == 0 and magic == 0 else Stop.NO_RECORD
            break
        if size < LEAST_RECORD_BYTES:
            stop = Stop.NO_RECORD
            break
        if at + size > end:
            wanted = size
            break
        loose.append(at)
        loose_sizes.append(size)
        at += size
        if size == last_size:
            run = _run_of(array, at, size)
            if run:
                starts += [np.array(loose, np.int64), at + size * np.arange(run, dtype=np.int64)]
                sizes += [np.array(loose_sizes, np.int64), np.full(run, size, np.int64)]
                loose.clear()
                loose_sizes.clear()
                at += run * size
        last_size = size
    starts.append(np.array(loose, np.int64))
    sizes.append(np.array(loose_sizes, np.int64))
    return Scan(np.concatenate(starts), np.concatenate(sizes), stop, at, wanted)


def _run_of(array: np.ndarray[tuple[int], np.dtype[np.uint8]], at: int, size: int) -> int:
    """How many whole records of this size follow each other from `at` on."""
    fit = min((len(array) - at) // size, _RUN)
    if fit <= 0:
        return 0
    window = np.lib.stride_tricks.as_strided(array[at:], (fit, 8), (size, 1))
    head = array[at - size : at - size + 8]
    same = (window == head).all(axis=1)
    return fit if same.all() else int(np.argmin(same))
