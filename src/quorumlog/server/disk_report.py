"""DiskReport: how full the disk of a member is, before it refuses appends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from quorumlog.config import StoreConfig
from quorumlog.entry import Durability
from quorumlog.errors import LedgerError, StoreFailure
from quorumlog.figures import now
from quorumlog.log_state.log_state import LostRange
from quorumlog.store.member_directory import MemberDirectory


class DiskReport:
    def __init__(
        self,
        directory: MemberDirectory,
        read_later: Callable[[Callable[[], Any], Callable[[Any], None]], None],
    ) -> None:
        self._directory = directory
        self._read_later = read_later
        self._used_ratio = 0.0
        """As of the newest look."""
        self._is_looking = False

    def problem(self, config: StoreConfig, lost: Sequence[LostRange] = ()) -> str:
        """In a sentence; empty while there is room. The next who asks hears what this look finds.
        `lost`: what readers have lost to full disks."""
        if self._directory.durability is Durability.MEMORY:
            return ""
        self._look()
        if self._used_ratio <= min(config.disk_space_ratio_to_force_clean, config.disk_full_ratio):
            return ""
        full = (
            f"the disk of {self._directory.path} is nearly full{now(f'{100 * self._used_ratio:.0f} %')}"
        )
        limit = f"{100 * config.disk_full_ratio:.0f} % (disk_full_ratio)"
        refuses = f"above {limit} appends are refused"
        if self._used_ratio > config.disk_full_ratio:
            refuses = f"it is above {limit}, so appends are refused"
        if config.deletes:
            past = (
                "but only what an archive has taken"
                if config.retention == "archived"
                else f"also past readers{_losses(lost)}"
            )
            return f"{full}: the oldest segments go whatever their age, {past}; {refuses}"
        keeps = "nothing is deleted (file_reserved_hours, retention_bytes)"
        if config.retention == "off":
            keeps = "nothing is deleted here (retention = off)"
        return f"{full} and {keeps}; {refuses}: free space"

    def _look(self) -> None:
        def looked(found: float | StoreFailure | LedgerError) -> None:
            self._is_looking = False
            if isinstance(found, float):  # else whoever needs the disk will say so
                self._used_ratio = found

        if not self._is_looking:
            self._is_looking = True
            self._read_later(self._directory.used_ratio, looked)


def _losses(lost: Sequence[LostRange]) -> str:
    if not lost:
        return ""
    ranges = [
        f"{each.name} has lost entries {each.first_index} to {each.stop_index - 1}" for each in lost
    ]
    return now(", ".join(ranges))
