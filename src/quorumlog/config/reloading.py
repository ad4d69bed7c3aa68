"""Reloadable options of a running member."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, NamedTuple

from quorumlog.config.options import GroupConfig

_OF_GROUP = (
    *("append_timeout_ms", "max_uncommitted_bytes", "max_connection_bytes", "catch_up_bytes_per_second"),
    *("linger_ms", "time_marks", "auto_replace_after_ms", "retention_follower_budget_bytes"),
    "staging_retention_bytes",  # which is the other group's `retention_bytes`
)
_OF_DIRECTORY = (
    *("max_entry_bytes", "disk_full_ratio", "retention", "file_reserved_hours", "retention_bytes"),
    *("compact_behind_snapshots", "delete_when", "disk_space_ratio_to_check_expired"),
    *("disk_space_ratio_to_force_clean", "flush_interval_ms", "checkpoint_interval_ms"),
    *("durable_sync_interval_ms", "index_sync_bytes", "page_cache_bytes", "scrub_bytes_per_second"),
)
RELOADABLE = frozenset(_OF_GROUP + _OF_DIRECTORY)
"""Reloadable options of a running member. The rest is read at a start: it defines the directory, or the
time-outs between members."""


class Reloaded(NamedTuple):
    config: GroupConfig
    """The member's configuration from now on."""
    changed: tuple[str, ...]
    """`option old -> new`."""
    needs_restart: tuple[str, ...]
    """Options that differ from the running ones and need a restart."""


def reloaded(running: GroupConfig, wanted: GroupConfig) -> Reloaded:
    """Raises ConfigError if the changed options are invalid together with the unchanged ones."""
    changed: list[str] = []
    needs_restart: list[str] = []

    def merge(part: Any, wanted_part: Any) -> dict[str, Any]:
        taken = {}
        for name in (each.name for each in fields(part) if each.name not in ("consensus", "storage")):
            old, new = getattr(part, name), getattr(wanted_part, name)
            if old != new and name in RELOADABLE:
                taken[name] = new
                changed.append(f"{name} {old} -> {new}")
            elif old != new:
                needs_restart.append(name)
        return taken

    merge(running.consensus, wanted.consensus)
    storage = replace(running.storage, **merge(running.storage, wanted.storage))
    config = replace(running, **merge(running, wanted), storage=storage)
    return Reloaded(config, tuple(changed), tuple(needs_restart))


def changes(old: Any, new: Any) -> list[str]:
    """Of two tables of one kind: `option old -> new`."""
    pairs = [(each.name, getattr(old, each.name), getattr(new, each.name)) for each in fields(old)]
    return [f"{name} {was} -> {is_}" for name, was, is_ in pairs if was != is_]
