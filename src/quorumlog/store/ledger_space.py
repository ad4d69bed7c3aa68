"""LedgerSpace: room on the disk before the bytes come, so that an append is taken whole or refused.

Data may use space only as long as a reserve for control entries (no-ops) remains behind it: a group
whose disks are all full must still be able to elect a leader.
"""

from __future__ import annotations

from quorumlog.config import StoreConfig
from quorumlog.entry_header import HEADER_BYTES
from quorumlog.errors import DiskFull, StoreFailure
from quorumlog.store.disk import Disk
from quorumlog.store.flush import Reservation
from quorumlog.store.mmap_file_list import MmapFileList
from quorumlog.store.segment_scan import INDEX_UNIT_BYTES

CONTROL_RESERVE_BYTES = 1 << 20
"""What control entries may use and data may not: this, or one segment if that is less."""

_DATA_BYTES_PER_INDEX_BYTE = 16
"""Index space is reserved in smaller steps: an entry of 512 bytes has a unit of 32."""


class LedgerSpace:
    """Reserves in `data` and `index` together; whatever it reserved is synced before it returns."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        config: StoreConfig,
        data: MmapFileList,
        index: MmapFileList,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._config = config
        self._data = data
        self._index = index
        self._data_reserve = min(CONTROL_RESERVE_BYTES, config.segment_bytes)
        # As many units as the smallest entries in the reserve could need.
        self._index_reserve = -(-self._data_reserve // HEADER_BYTES) * INDEX_UNIT_BYTES
        self._index_step = max(config.reserve_step_bytes // _DATA_BYTES_PER_INDEX_BYTE, INDEX_UNIT_BYTES)

    def reserve(self, end_position: int, stop_index: int, *, control: bool) -> None:
        """For entries that will end at `end_position` and below `stop_index`.

        Raises DiskFull for lack of space, and for data also above the watermark `disk_full_ratio`,
        which is looked at whenever more has to be reserved; StoreFailure.
        """
        if control:
            # Only what it needs itself: the reserve was made before the data that lies in front.
            self._data.reserve(end_position, 0)
            self._index.reserve(stop_index * INDEX_UNIT_BYTES, 0)
            return
        data_stop, index_stop = self._with_control_reserve(end_position, stop_index)
        if self._data.reserved_position >= data_stop and self._index.reserved_position >= index_stop:
            return
        if self.is_above_watermark():
            raise DiskFull(
                f"more than {self._config.disk_full_ratio:.0%} of the file system of"
                f" {self._directory} is in use (disk_full_ratio)"
            )
        self._data.reserve(data_stop, self._config.reserve_step_bytes)
        self._index.reserve(index_stop, self._index_step)

    def restore_control_reserve(self, end_position: int, stop_index: int) -> None:
        """Behind the end of the log, after a start or a truncation, if there is space for it; data
        finds out when it comes."""
        data_stop, index_stop = self._with_control_reserve(end_position, stop_index)
        try:
            self._data.reserve(data_stop, 0)
            self._index.reserve(index_stop, 0)
        except DiskFull:
            return

    def _with_control_reserve(self, end_position: int, stop_index: int) -> tuple[int, int]:
        """Up to where space must be reserved so that control entries still fit behind data that ends
        here. Near the end of a segment that is a whole reserve in the next one, because a control
        entry that does not fit in front of the border goes there."""
        data_stop = end_position + self._data_reserve
        segment_end = self._data.base_of(end_position) + self._data.segment_bytes
        if data_stop > segment_end:
            data_stop = segment_end + self._data_reserve
        return data_stop, stop_index * INDEX_UNIT_BYTES + self._index_reserve

    # ---------------------------------------------------------------- ahead, in a flush

    def ahead(self, end_position: int) -> list[Reservation]:
        """The next step of data space, once less than half of one is left."""
        step = self._config.reserve_step_bytes
        reserved = self._data.reserved_position
        file = self._data.file_at(reserved)
        if file is None or reserved - end_position > step // 2:
            return []
        return [Reservation(file, reserved, min(reserved + step, file.end_position))]

    def adopt(self, reserved: list[Reservation]) -> None:
        """A flush has reserved and synced these, unless a truncation dropped the file meanwhile."""
        for file, first_position, stop_position in reserved:
            held = self._data.file_at(file.base_position) is file
            if held and first_position <= self._data.reserved_position < stop_position:
                self._data.reserved_position = stop_position

    def is_above_watermark(self) -> bool:
        """Any thread. Raises StoreFailure."""
        try:
            usage = self._disk.usage(self._directory)
        except OSError as error:
            raise StoreFailure(f"{self._directory}: its file system gives no usage: {error}") from error
        return usage.used_ratio > self._config.disk_full_ratio
