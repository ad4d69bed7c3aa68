"""What a configuration refuses when it is made, by name."""

from __future__ import annotations

from dataclasses import MISSING, Field, fields, is_dataclass, replace
from typing import Any

import pytest

from quorumlog import config
from quorumlog.config import (
    FRAME_LIMIT_BYTES,
    LARGEST_ENTRY_BYTES,
    LARGEST_PUSH_BYTES,
    LARGEST_WINDOW_BYTES,
    MIB,
    RELOADABLE,
    AdminOptions,
    ConsensusConfig,
    GroupConfig,
    KafkaOptions,
    KvOptions,
    LimitOptions,
    MemberAddress,
    StoreConfig,
    TlsOptions,
    UsersOptions,
    reloaded,
    with_staging,
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
        (
            ConsensusConfig,
            {"push_window_bytes": LARGEST_WINDOW_BYTES},
            "push_limit_bytes",
            LARGEST_PUSH_BYTES,
        ),
        (ConsensusConfig, {}, "push_window_bytes", LARGEST_WINDOW_BYTES),
    ],
)
def test_what_fits_into_no_frame_or_connection_is_refused_with_the_bound(
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


NUMBERS = [
    (kind, options, each)
    for kind, options in (
        (ConsensusConfig, {}),
        (StoreConfig, {}),
        (GroupConfig, ALONE),
        (MemberAddress, {"member_id": "n0", "host": "127.0.0.1"}),
        (UsersOptions, {}),
        (LimitOptions, {}),
    )
    for each in fields(kind)
    if each.type in ("int", "float")
]


@pytest.mark.parametrize(
    ("kind", "options", "number"), NUMBERS, ids=lambda each: getattr(each, "name", "")
)
def test_every_number_has_a_range(kind: Any, options: Any, number: Field[Any]) -> None:
    """The defaults lie in it, what lies outside is refused by name, and so is what is no number."""
    nonsense: list[object] = [-1, 2**63, True, "5", None, float("nan"), float("inf")]
    if number.type == "int":
        least, most, _ = number.metadata["range"]
        assert least <= most < 2**63
        assert number.default is MISSING or least <= number.default <= most
        nonsense += [least - 1, most + 1, 5.5]
    for value in nonsense:
        with pytest.raises(ConfigError, match=number.name):
            kind(**{**options, number.name: value})


def test_no_number_hides_in_another_type() -> None:
    """Else it would have no range."""
    kinds = (
        *(ConsensusConfig, StoreConfig, GroupConfig, MemberAddress),
        *(TlsOptions, AdminOptions, KvOptions, KafkaOptions, UsersOptions, LimitOptions),
    )
    types = {str(each.type) for kind in kinds for each in fields(kind)} - {"int", "float", "bool"}
    names = {kind.__name__ for kind in kinds}
    assert types == {"str", "tuple[str, ...]", "tuple[MemberAddress, ...]"} | (names & types)
    classes = {each for each in vars(config).values() if is_dataclass(each) and isinstance(each, type)}
    assert classes == set(kinds)


def test_what_a_log_can_hold_is_the_same_whatever_a_member_takes_of_clients() -> None:
    small, large = StoreConfig(max_entry_bytes=1000), StoreConfig(max_entry_bytes=LARGEST_ENTRY_BYTES)
    assert small.entry_limit_bytes == large.entry_limit_bytes == FRAME_LIMIT_BYTES
    assert (small.append_limit_bytes, large.append_limit_bytes) == (1000, LARGEST_ENTRY_BYTES)
    assert StoreConfig(segment_bytes=512).append_limit_bytes == 504


@pytest.mark.parametrize("name", ["", "g" * 256, "\u00e9" * 128])
def test_names_fit_into_the_head_of_a_frame(name: str) -> None:
    with pytest.raises(ConfigError, match="--group"):
        GroupConfig(**ALONE, group=name)
    with pytest.raises(ConfigError, match="--id"):
        GroupConfig(name, (MemberAddress(name, "127.0.0.1", 1),), "data")
    GroupConfig(**ALONE, group="g" * 255)


def test_what_a_running_member_may_be_given_anew_is_taken_and_the_rest_is_named() -> None:
    running = GroupConfig(**ALONE)
    wanted = replace(
        running,
        linger_ms=5,
        data_dir="elsewhere",
        consensus=replace(running.consensus, heartbeat_interval_ms=100),
        storage=replace(running.storage, scrub_bytes_per_second=0, segment_bytes=4 * MIB),
    )
    result = reloaded(running, wanted)
    assert set(result.changed) == {"linger_ms 0 -> 5", f"scrub_bytes_per_second {4 * MIB} -> 0"}
    assert set(result.needs_restart) == {"data_dir", "heartbeat_interval_ms", "segment_bytes"}
    assert result.config == replace(
        running, linger_ms=5, storage=replace(running.storage, scrub_bytes_per_second=0)
    )
    assert reloaded(result.config, wanted) == (result.config, (), result.needs_restart)


def test_what_may_change_has_to_go_with_what_stays() -> None:
    running = GroupConfig(**ALONE, append_timeout_ms=100)
    wanted = replace(running, append_timeout_ms=1000, linger_ms=500)
    assert reloaded(running, wanted).config == wanted
    assert {each.name for part in (GroupConfig, StoreConfig) for each in fields(part)} >= RELOADABLE


def test_a_staging_group_has_the_options_of_its_group_but_what_it_keeps() -> None:
    config = GroupConfig(
        "n0",
        (MemberAddress("n0", "127.0.0.1", 1),),
        data_dir="/data",
        group="orders",
        storage=StoreConfig(flush="async", retention="archived", file_reserved_hours=5),
        staging=True,
        staging_retention_bytes=7,
        append_timeout_ms=77,
    )
    first, second = with_staging([config])
    assert first is config
    assert (second.group, second.data_dir, second.staging) == (
        "orders.staging",
        "/data/staging",
        False,
    )
    assert (second.append_timeout_ms, second.storage.flush) == (77, "async")
    storage = second.storage
    assert (storage.retention, storage.retention_bytes, storage.file_reserved_hours) == ("on", 7, 0)


def test_a_staging_group_that_is_configured_itself_is_as_it_says() -> None:
    config = GroupConfig("n0", (MemberAddress("n0", "h", 1),), data_dir="/d", staging=True)
    own = replace(config, group="default.staging", data_dir="/elsewhere", staging=False)
    assert with_staging([config, own]) == (config, own)
    assert with_staging([replace(config, staging=False)]) == (replace(config, staging=False),)


def test_a_period_that_is_not_a_number_is_refused() -> None:
    with pytest.raises(ConfigError, match="auto_compaction_s must be at least 0, not nan"):
        KvOptions(auto_compaction_s=float("nan"))
