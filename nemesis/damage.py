"""Damage to the files of a member that does not run.

What `DAMAGE_KINDS` does, a member makes good by itself: none of it touches what it has promised.
`DURABLE_DAMAGE_KINDS` change what lies below the durable point; of entries that are lost so, the others
send it their own.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from quorumlog.store.disk import OsDisk
from quorumlog.store.durable_file import DurablePoint, read_durable_point
from quorumlog.store.segments import INDEX_UNIT_BYTES, segment_name
from quorumlog.store.slot_file import SLOT_BYTES

TORN_BYTES = 4096
PAGE_BYTES = 4096

DamageKind = Callable[[Path, random.Random], None]


def tear_tail(data_dir: Path, rng: random.Random) -> None:
    """Garbage where the bytes stood that no sync had covered yet."""
    position = _durable(data_dir).point.position
    for path in _segments(data_dir, "data"):
        room_bytes = int(path.name) + path.stat().st_size - position
        if int(path.name) <= position and room_bytes > 0:
            _overwrite(path, position - int(path.name), rng.randbytes(min(room_bytes, TORN_BYTES)))


def delete_index(data_dir: Path, rng: random.Random) -> None:
    for path in _segments(data_dir, "index"):
        path.unlink()


def garble_index(data_dir: Path, rng: random.Random) -> None:
    """Garbage from some place on, as far as units were written."""
    stop = (_durable(data_dir).point.index + 1) * INDEX_UNIT_BYTES
    first = rng.randrange(_begin(data_dir, "index"), stop)
    for path in _segments(data_dir, "index"):
        base = int(path.name)
        low, high = max(first, base), min(stop, base + path.stat().st_size)
        if low < high:
            _overwrite(path, low - base, rng.randbytes(high - low))


def delete_checkpoint(data_dir: Path, rng: random.Random) -> None:
    (data_dir / "checkpoint").unlink(missing_ok=True)


def destroy_hard_state_slot(data_dir: Path, rng: random.Random) -> None:
    _overwrite(data_dir / "hardstate", rng.randrange(2) * SLOT_BYTES, rng.randbytes(SLOT_BYTES))


DAMAGE_KINDS: tuple[DamageKind, ...] = (
    tear_tail,
    delete_index,
    garble_index,
    delete_checkpoint,
    destroy_hard_state_slot,
)


def flip_data_bit(data_dir: Path, rng: random.Random) -> None:
    _flip_bit(data_dir, "data", _durable(data_dir).point.position, rng)


def flip_index_bit(data_dir: Path, rng: random.Random) -> None:
    _flip_bit(data_dir, "index", (_durable(data_dir).point.index + 1) * INDEX_UNIT_BYTES, rng)


def zero_data_page(data_dir: Path, rng: random.Random) -> None:
    stop = _durable(data_dir).point.position
    first = rng.randrange(_begin(data_dir, "data"), stop) // PAGE_BYTES * PAGE_BYTES
    path, offset = _place(data_dir, "data", first)
    _overwrite(path, offset, bytes(min(PAGE_BYTES, stop - first)))


DURABLE_DAMAGE_KINDS: tuple[DamageKind, ...] = (flip_data_bit, flip_index_bit, zero_data_page)


def _flip_bit(data_dir: Path, folder: str, stop_position: int, rng: random.Random) -> None:
    path, offset = _place(data_dir, folder, rng.randrange(_begin(data_dir, folder), stop_position))
    with path.open("rb") as file:
        file.seek(offset)
        (byte,) = file.read(1)
    _overwrite(path, offset, bytes([byte ^ 1 << rng.randrange(8)]))


def _begin(data_dir: Path, folder: str) -> int:
    """Where the first segment lies."""
    return int(_segments(data_dir, folder)[0].name)


def _place(data_dir: Path, folder: str, position: int) -> tuple[Path, int]:
    """The segment that holds `position`, and where in it."""
    path = [path for path in _segments(data_dir, folder) if int(path.name) <= position][-1]
    return path, position - int(path.name)


def _durable(data_dir: Path) -> DurablePoint:
    point = read_durable_point(OsDisk(), str(data_dir))
    assert point is not None, f"{data_dir} has no readable durable point"
    return point


def _segments(data_dir: Path, folder: str) -> list[Path]:
    """In the order of the log."""
    named = len(segment_name(0))
    return sorted(path for path in (data_dir / folder).iterdir() if len(path.name) == named)


def _overwrite(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)
