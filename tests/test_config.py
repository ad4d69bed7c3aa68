"""What a configuration refuses when it is made, by name."""

from __future__ import annotations

from typing import Any

import pytest

from quorumlog.config import (
    GIB,
    LARGEST_ENTRY_BYTES,
    LARGEST_PUSH_BYTES,
    MIB,
    ConsensusConfig,
    GroupConfig,
    MemberAddress,
    StoreConfig,
)
from quorumlog.errors import ConfigError

ALONE: dict[str, Any] = {
    "member_id": "n0",
    "members": (MemberAddress("n0", "127.0.0.1", 20911),),
    "data_dir": "data",
}


@pytest.mark.parametrize("value", [150.0, "150", True])
@pytest.mark.parametrize(
    ("kind", "options", "name"),
    [
        (ConsensusConfig, {}, "heartbeat_interval_ms"),
        (StoreConfig, {}, "scrub_start_delay_ms"),
        (GroupConfig, ALONE, "linger_ms"),
    ],
)
def test_times_and_sizes_are_whole_numbers(kind: Any, options: Any, name: str, value: object) -> None:
    kind(**options, **{name: 150})
    with pytest.raises(ConfigError, match=f"{name} must be a whole number"):
        kind(**options, **{name: value})


@pytest.mark.parametrize(
    ("kind", "options", "name", "bound"),
    [
        (StoreConfig, {}, "max_entry_bytes", LARGEST_ENTRY_BYTES),
        (ConsensusConfig, {"push_window_bytes": GIB}, "push_limit_bytes", LARGEST_PUSH_BYTES),
    ],
)
def test_what_fits_into_no_frame_is_refused_with_the_bound(
    kind: Any, options: Any, name: str, bound: int
) -> None:
    kind(**options, **{name: bound})
    for above in (bound + 1, 32 * MIB):
        with pytest.raises(ConfigError, match=rf"^{name} \({above}\) must be at most {bound}: "):
            kind(**options, **{name: above})


@pytest.mark.parametrize(
    ("kind", "name", "least"),
    [
        (StoreConfig, "max_entry_bytes", 49),
        (StoreConfig, "segment_bytes", 512),
        (StoreConfig, "index_segment_bytes", 32),
        (StoreConfig, "flush_interval_ms", 1),
        (StoreConfig, "checkpoint_interval_ms", 1),
        (StoreConfig, "durable_sync_interval_ms", 1),
        (StoreConfig, "index_sync_bytes", 1),
        (StoreConfig, "reserve_step_bytes", 1),
        (ConsensusConfig, "push_limit_bytes", 1),
        (ConsensusConfig, "max_waiting_pushes", 1),
        (ConsensusConfig, "lost_connection_wait_ms", 0),
        (ConsensusConfig, "commit_delay_ms", 0),
    ],
)
def test_the_least_that_works_is_taken_and_one_less_is_not(kind: Any, name: str, least: int) -> None:
    kind(**{name: least})
    with pytest.raises(ConfigError, match=name):
        kind(**{name: least - 1})


def test_what_a_log_can_hold_is_the_same_whatever_a_member_takes_of_clients() -> None:
    small, large = StoreConfig(max_entry_bytes=1000), StoreConfig(max_entry_bytes=LARGEST_ENTRY_BYTES)
    assert small.entry_limit_bytes == large.entry_limit_bytes == LARGEST_ENTRY_BYTES
    assert (small.append_limit_bytes, large.append_limit_bytes) == (1000, LARGEST_ENTRY_BYTES)
    assert StoreConfig(segment_bytes=512).append_limit_bytes == 504


@pytest.mark.parametrize("name", ["", "g" * 256, "\u00e9" * 128])
def test_names_fit_into_the_head_of_a_frame(name: str) -> None:
    with pytest.raises(ConfigError, match="--group"):
        GroupConfig(**ALONE, group=name)
    with pytest.raises(ConfigError, match="--members"):
        GroupConfig(name, (MemberAddress(name, "127.0.0.1", 1),), "data")
    GroupConfig(**ALONE, group="g" * 255)
