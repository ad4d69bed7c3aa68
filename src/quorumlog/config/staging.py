"""The staging group of a group, of the same members."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from quorumlog.config.options import GroupConfig

STAGING_SUFFIX = ".staging"
STAGING_FOLDER = "staging"
"""In the data directory of the member, on the disk that was chosen for it."""


def staging_name(group: str) -> str:
    return group + STAGING_SUFFIX


def is_staging_name(group: str) -> bool:
    return group.endswith(STAGING_SUFFIX)


def with_staging(groups: Sequence[GroupConfig]) -> tuple[GroupConfig, ...]:
    """The groups, each followed by its staging group if it has one that is not configured separately."""
    named = {config.group for config in groups}
    found: list[GroupConfig] = []
    for config in groups:
        found.append(config)
        if config.staging and staging_name(config.group) not in named:
            found.append(_staging_of(config))
    return tuple(found)


def _staging_of(config: GroupConfig) -> GroupConfig:
    """Rows stay until size says otherwise, and no longer: what a sink needs, it holds."""
    storage = replace(
        config.storage,
        retention="on",
        retention_bytes=config.staging_retention_bytes,
        file_reserved_hours=0,
        delete_when="",
        compact_behind_snapshots=False,
    )
    return replace(
        config,
        group=staging_name(config.group),
        data_dir=config.data_dir and f"{config.data_dir}/{STAGING_FOLDER}",
        storage=storage,
        staging=False,
    )
