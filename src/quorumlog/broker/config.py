"""Options of a message store, by RocketMQ's names in Python's spelling: flushIntervalCommitLog is
`flush_interval_commit_log`. Intervals in milliseconds, sizes in bytes, as there."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from quorumlog.errors import ConfigError

GIB = 1 << 30
MIB = 1 << 20
DAY_MS = 86_400_000
SYNC_FLUSH, ASYNC_FLUSH = "SYNC_FLUSH", "ASYNC_FLUSH"
QUEUE_UNIT_BYTES = 20
DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
_UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": DAY_MS}
INDEX_HEADER_BYTES, INDEX_SLOT_BYTES, INDEX_ENTRY_BYTES = 40, 4, 20


def _in(default: int, low: int, high: int) -> Any:
    return field(default=default, metadata={"low": low, "high": high})


@dataclass(frozen=True, slots=True)
class MessageStoreConfig:
    """One store's directory."""

    flush_disk_type: str = ASYNC_FLUSH
    """`SYNC_FLUSH`: a put is acknowledged once it is on disk. `ASYNC_FLUSH`: once it is written."""
    mapped_file_size_commit_log: int = _in(GIB, 4096, 2 * GIB - 1)
    mapped_file_size_consume_queue: int = _in(300_000 * QUEUE_UNIT_BYTES, QUEUE_UNIT_BYTES, GIB)
    """A multiple of 20."""
    max_hash_slot_num: int = _in(5_000_000, 1, 100_000_000)
    max_index_num: int = _in(5_000_000 * 4, 2, 100_000_000)
    message_index_enable: bool = True
    flush_interval_commit_log: int = _in(500, 1, DAY_MS)
    flush_commit_log_least_pages: int = _in(4, 0, 1 << 20)
    flush_commit_log_thorough_interval: int = _in(10_000, 1, DAY_MS)
    flush_commit_log_timed: bool = False
    """False, as up to RocketMQ 4.8: a put wakes the flush. True, as from 4.9 on: only the interval."""
    sync_flush_timeout: int = _in(5_000, 1, DAY_MS)
    flush_interval_consume_queue: int = _in(1_000, 1, DAY_MS)
    flush_consume_queue_least_pages: int = _in(2, 0, 1 << 20)
    flush_consume_queue_thorough_interval: int = _in(60_000, 1, DAY_MS)
    check_crc_on_recover: bool = True
    file_reserved_time: int = _in(72, 0, 24 * 36_525)
    """Hours that a commit log file is kept after its last message."""
    delete_when: str = "04"
    """Hours of the day, UTC, in which old files are deleted: `04` or `04;16`."""
    message_delay_level: str = DELAY_LEVELS
    """Delays of the levels 1 to 18: the same on every member of a replicated log."""
    disk_max_used_space_ratio: int = _in(75, 10, 95)
    disk_space_clean_forcibly_ratio: int = _in(85, 30, 99)
    disk_space_warning_level_ratio: int = _in(90, 35, 100)
    """Above this messages are refused."""
    delete_file_batch_max: int = _in(10, 1, 10_000)
    clean_resource_interval: int = _in(10_000, 1, DAY_MS)
    reserve_step_bytes: int = _in(64 * MIB, 4096, GIB)
    """Space of commit log files is allocated ahead in steps of this size."""
    recent_bytes: int = _in(32 * MIB, 0, 1 << 40)
    """Newest bytes kept in memory for dispatch."""
    max_set_aside_bytes: int = _in(GIB, 0, 1 << 50)
    in_sync_replicas: int = _in(0, 0, 100)
    """Number of copies, including the master's, before a message is acknowledged. 0: two with a sync
    master, one with an async one (RocketMQ 5 has 1, and then waits for no slave)."""
    slave_timeout: int = _in(3_000, 1, DAY_MS)
    """A put that slaves have not acknowledged by then gets FLUSH_SLAVE_TIMEOUT."""
    ha_max_gap_not_in_sync: int = _in(256 * MIB, 1, 1 << 50)
    """A slave that lags by more bytes is not in sync,"""
    ha_max_lag_not_in_sync: int = _in(10_000, 1, DAY_MS)
    """nor one that has lagged for this long."""
    ha_send_heartbeat_interval: int = _in(1_000, 1, DAY_MS)
    ha_housekeeping_interval: int = _in(20_000, 1, DAY_MS)
    """A connection silent for this long is closed."""
    ha_reconnect_interval: int = _in(200, 1, DAY_MS)
    ha_transfer_batch_size: int = _in(32_768, 256, 8 * MIB)
    """Of one frame with --ha-dialect rocketmq."""

    def __post_init__(self) -> None:
        """Raises ConfigError."""
        for each in fields(self):
            value = getattr(self, each.name)
            if each.metadata and not each.metadata["low"] <= value <= each.metadata["high"]:
                low, high = each.metadata["low"], each.metadata["high"]
                raise ConfigError(f"{each.name} must be in {low} .. {high}, not {value}")
        if self.flush_disk_type not in (SYNC_FLUSH, ASYNC_FLUSH):
            raise ConfigError(
                f"flush_disk_type must be {SYNC_FLUSH} or {ASYNC_FLUSH}, not {self.flush_disk_type!r}"
            )
        if self.mapped_file_size_consume_queue % QUEUE_UNIT_BYTES:
            raise ConfigError("mapped_file_size_consume_queue must be a multiple of 20")
        self.delete_hours()
        self.delays_ms()

    def delete_hours(self) -> tuple[int, ...]:
        """Of the day, 0 to 23, in which `delete_when` lets old files go. Raises ConfigError."""
        try:
            hours = tuple(int(part) for part in self.delete_when.split(";") if part)
        except ValueError:
            hours = (-1,)
        if not all(0 <= hour < 24 for hour in hours):
            raise ConfigError(f"delete_when must be like 04 or 04;16, not {self.delete_when!r}")
        return hours

    def delays_ms(self) -> tuple[int, ...]:
        """Of the levels 1 to 18. Raises ConfigError."""
        try:
            delays = tuple(int(w[:-1]) * _UNITS_MS[w[-1]] for w in self.message_delay_level.split())
        except (KeyError, ValueError):
            delays = ()
        levels = len(DELAY_LEVELS.split())
        if len(delays) != levels or min(delays) < 0:
            raise ConfigError(
                f"message_delay_level must be {levels} words, as in {DELAY_LEVELS!r}, not"
                f" {self.message_delay_level!r}"
            )
        return delays

    @property
    def is_sync_flush(self) -> bool:
        return self.flush_disk_type == SYNC_FLUSH

    @property
    def index_file_bytes(self) -> int:
        return (
            INDEX_HEADER_BYTES
            + self.max_hash_slot_num * INDEX_SLOT_BYTES
            + self.max_index_num * INDEX_ENTRY_BYTES
        )
