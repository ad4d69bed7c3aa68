"""Options that reads share, by name: `LedgerClient.read` and `LedgerClient.tail` say what each means."""

from __future__ import annotations

from typing import TypedDict


class ReadOptions(TypedDict, total=False):
    limit: int | None
    from_member: str | None
    read_consistency: str | None
    max_staleness_ms: float | None


class TailOptions(TypedDict, total=False):
    wait: bool
    timeout_ms: int | None
    from_member: str | None
    read_consistency: str | None
    max_staleness_ms: float | None
