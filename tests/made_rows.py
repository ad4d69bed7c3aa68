"""Rows of `status()` as tests need them."""

from __future__ import annotations

from typing import Any

from quorumlog import MemberStatusRow
from quorumlog.client.status_rows import UNKNOWN


def made_row(member_id: str, **told: Any) -> MemberStatusRow:
    return MemberStatusRow(**{**UNKNOWN, "reachable": True, "id": member_id, **told})
