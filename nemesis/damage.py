"""Damage to the files of a member that does not run.

What `DAMAGE_KINDS` does, a member makes good by itself: none of it touches what it has promised. A bit
flipped below the durable point is another matter.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from quorumlog.store.disk import OsDisk
from quorumlog.store.durable_file import DurablePoint, read_durable_point
from quorumlog.store.mmap_file_list import segment_name
from quorumlog.store.segment_scan import INDEX_UNIT_BYTES
from quorumlog.store.slot_file import SLOT_BYTES

TORN_BYTES = 4096

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
    first = rng.randrange(stop)
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


def flip_durable_bit(data_dir: Path, rng: random.Random) -> int:
    """Returns the position in the log."""
    position = rng.randrange(_durable(data_dir).point.position)
    path = [path for path in _segments(data_dir, "data") if int(path.name) <= position][-1]
    offset = position - int(path.name)
    with path.open("rb") as file:
        file.seek(offset)
        (byte,) = file.read(1)
    _overwrite(path, offset, bytes([byte ^ 1 << rng.randrange(8)]))
    return position


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
