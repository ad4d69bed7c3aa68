"""What a configuration refuses when it is made, by name."""

from __future__ import annotations

from typing import Any

import pytest

from quorumlog.config import ConsensusConfig, GroupConfig, MemberAddress, StoreConfig
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
