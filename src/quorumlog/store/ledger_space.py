"""LedgerSpace: reserves disk space before a write, so that an append is taken whole or refused.

Space is taken in steps as large as the log, up to `reserve_step_bytes`. After the data, a reserve for
control entries (no-ops) remains: a group whose disks are all full must still be able to elect a leader.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from quorumlog.config import StoreConfig
from quorumlog.entry_header import HEADER_BYTES
from quorumlog.errors import DiskFull
from quorumlog.store.disk import Disk, disk_work
from quorumlog.store.entry_index import IndexSegments
from quorumlog.store.segments import INDEX_UNIT_BYTES, SegmentList

CONTROL_RESERVE_BYTES = 1 << 20
"""Reserve for control entries only: this, or one segment if that is less."""

_DATA_BYTES_PER_INDEX_BYTE = 16
"""Index space is reserved in smaller steps: an entry of 512 bytes has a unit of 32."""

_FIRST_STEP_BYTES = 1 << 20
"""Of data, unless `reserve_step_bytes` is less."""


def control_reserve(
    config: StoreConfig, end_position: int, stop_index: int, *, parts: int = 1
) -> tuple[int, int]:
    """Up to where space must be reserved in data and index so that control entries still fit after data
    that ends here: near the end of a segment, also in the next one. `parts`: for one of so many."""
    data_reserve = min(CONTROL_RESERVE_BYTES, config.segment_bytes) // parts
    # As many units as the smallest entries in the reserve could need.
    index_reserve = -(-data_reserve // HEADER_BYTES) * INDEX_UNIT_BYTES
    data_stop = end_position + data_reserve
    segment_end = end_position // config.segment_bytes * config.segment_bytes + config.segment_bytes
    if data_stop > segment_end:
        data_stop = segment_end + data_reserve
    return data_stop, stop_index * INDEX_UNIT_BYTES + index_reserve


class LedgerSpace:
    """Reserves in `data` and `index` together, synced before it returns."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        config: StoreConfig,
        data: SegmentList,
        index: IndexSegments,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._config = config
        self._data = data
        self._index = index
        self.makes_none = False
        """See `LedgerStore.make_no_space`."""
        self._refused = (-1, -1)
        """What was reserved when there was no space for more ahead: not asked again until it has moved,
        since each try makes and removes files before an acknowledgement."""

    def configure(self, config: StoreConfig) -> None:
        """With the same sizes of segments and steps."""
        self._config = config

    def reserve(
        self,
        end_position: int,
        first_index: int,
        stop_index: int,
        *,
        control: bool,
        sparing: bool = False,
    ) -> None:
        """For the next entries, from `first_index` on, which will end at `end_position` and below
        `stop_index`. `control` entries may use the reserve, and have to leave half of it after them if
        `sparing`.

        Raises DiskFull for lack of space, or if only the reserve for elections is left; for data also
        above `disk_full_ratio`; StoreFailure.
        """
        if control:
            # Only what it needs itself: the reserve was made before the data that lies in front.
            data_stop, index_stop = end_position, stop_index * INDEX_UNIT_BYTES
            if sparing:
                data_stop, index_stop = control_reserve(self._config, end_position, stop_index, parts=2)
                self._refuse_to_make(data_stop, index_stop)
            self._data.reserve(data_stop, 0)
            try:
                self._index.reserve(index_stop, 0)
            except DiskFull:
                if not self._index.has_unwritten:
                    if not self._index.lacks_reserve:
                        raise
                    self._index.hold_behind(first_index * INDEX_UNIT_BYTES)
            return
        data_stop, index_stop = control_reserve(self._config, end_position, stop_index)
        if self._has_reserved(data_stop, index_stop):
            return
        self._refuse_to_make(data_stop, index_stop)
        if self.is_above_watermark():
            raise DiskFull(
                f"the file system of {self._directory} is fuller than disk_full_ratio"
                f" ({self._config.disk_full_ratio:g} of 1) allows: free space, or raise it"
            )
        data_step, index_step = self._steps(end_position, stop_index)
        self._data.reserve(data_stop, data_step)
        self._index.reserve(index_stop, index_step)
        self._index.lacks_reserve = False

    def _has_reserved(self, data_stop: int, index_stop: int) -> bool:
        has_data = self._data.reserved_position >= data_stop
        return has_data and self._index.reserved_position >= index_stop

    def _refuse_to_make(self, data_stop: int, index_stop: int) -> None:
        if self.makes_none and not self._has_reserved(data_stop, index_stop):
            raise DiskFull(
                f"the disk of {self._directory} does not respond, so no space can be reserved on it"
            )

    def _steps(self, end_position: int, stop_index: int) -> tuple[int, int]:
        largest = self._config.reserve_step_bytes
        held = end_position - self._data.first_position
        held_index = stop_index * INDEX_UNIT_BYTES - self._index.first_position
        return (
            min(max(held, _FIRST_STEP_BYTES), largest),
            min(
                max(held_index, _FIRST_STEP_BYTES // _DATA_BYTES_PER_INDEX_BYTE),
                max(largest // _DATA_BYTES_PER_INDEX_BYTE, INDEX_UNIT_BYTES),
            ),
        )

    def restore_control_reserve(self, end_position: int, stop_index: int) -> None:
        """After the end of the log, as far as there is space; data finds out when it comes."""
        data_stop, index_stop = control_reserve(self._config, end_position, stop_index)
        try:
            self._data.reserve(data_stop, 0)
            self._index.reserve(index_stop, 0)
        except DiskFull:
            return

    # ---------------------------------------------------------------- ahead, in another thread

    def ahead(self, end_position: int, stop_index: int) -> Callable[[], None] | None:
        """See `LedgerStore.space_ahead`: a step where less than half of one is left."""
        if self._reserved == self._refused:
            return None
        data_stop, index_stop = control_reserve(self._config, end_position, stop_index)
        data_step, index_step = self._steps(end_position, stop_index)
        steps = []
        for files, stop_position, step_bytes in (
            (self._data, data_stop, data_step),
            (self._index, index_stop, index_step),
        ):
            step_bytes = min(step_bytes, files.segment_bytes)
            reserved = files.reserved_position
            if reserved - stop_position <= step_bytes // 2:
                steps.append((files, reserved, step_bytes))
        return functools.partial(self._reserve_ahead, steps) if steps else None

    def _reserve_ahead(self, steps: list[tuple[SegmentList, int, int]]) -> None:
        """Lack of space is no error yet."""
        reserved = self._reserved
        if self.is_above_watermark():
            self._refused = reserved
            return
        try:
            for files, reserved_position, step_bytes in steps:
                files.reserve_ahead(reserved_position, step_bytes)
        except DiskFull:
            self._refused = reserved

    @property
    def _reserved(self) -> tuple[int, int]:
        return self._data.reserved_position, self._index.reserved_position

    def is_above_watermark(self) -> bool:
        """Any thread. Raises StoreFailure."""
        with disk_work(self._directory, "measured"):
            usage = self._disk.usage(self._directory)
        return usage.used_ratio > self._config.disk_full_ratio
