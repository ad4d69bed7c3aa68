"""`status()`: one row a member, also when some or all of them are down."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from quorumlog.client.protocol.client_requests import Request
from quorumlog.errors import LedgerError, RequestTimeout, Unreachable
from quorumlog.net.rpc.view import GroupView
from quorumlog.wire.client_message import Int, Text
from quorumlog.wire.client_messages import StatusResponse

STATUS_TIMEOUT_MS = 1000.0
"""A member that says nothing for so long is shown as not reachable."""


class MemberStatusRow(StatusResponse, frozen=True, kw_only=True):
    """State reported by a member, or known of one that did not answer.

    If `reachable` is false (also for a member that does not serve the group), only its address,
    `problem`, and its id and `version` if another member reported them are set; every other text is
    empty, every other number -1."""

    reachable: bool
    problem: str = ""
    """Why it did not answer; empty if it did."""


def leader_of(rows: Iterable[MemberStatusRow]) -> MemberStatusRow | None:
    """The row of the leader; the one with the highest term if a replaced leader does not know it yet."""
    leaders = (row for row in rows if row.role == "leader")
    return max(leaders, key=lambda row: row.term, default=None)


_BLANK: dict[Any, str | int] = {Text: "", Int: -1}
UNKNOWN: dict[str, Any] = {
    field.name: _BLANK.get(field.type, ())
    for field in msgspec.structs.fields(StatusResponse)
    if field.name != "request_id"
}


def rows_of(
    requests: Mapping[str, Request], view: GroupView, timeout_ms: float
) -> list[MemberStatusRow]:
    """Sorted by id, from finished requests by address. Two addresses of one member are one row; two
    directories of one member, which may both be alive while one is replaced, are two."""
    row_of_member: dict[tuple[str, str], MemberStatusRow] = {}
    names_by_address: dict[str, str] = {}
    releases: dict[str, str] = {}
    for address, request in requests.items():
        status = request.response
        if isinstance(status, StatusResponse):
            known = msgspec.structs.asdict(status) | {"address": status.address or address}
            directory = status.id, status.directory_id
            row_of_member.setdefault(directory, MemberStatusRow(**known, reachable=True))
            names_by_address |= {member.address: member.id for member in status.members}
            releases |= {member.id: member.release for member in status.members if member.release}
    names_by_address = view.names | names_by_address
    answering = {member_id for member_id, _ in row_of_member}
    silent: dict[str, MemberStatusRow] = {}
    for address, request in requests.items():
        if request.response is None:
            member_id = names_by_address.get(address, "")
            if member_id in answering:
                continue
            known = UNKNOWN | {
                "id": member_id,
                "address": address,
                "version": releases.get(member_id, ""),
            }
            problem = _problem(address, request.error, timeout_ms)
            row = MemberStatusRow(**known, reachable=False, problem=problem)
            silent.setdefault(member_id or address, row)
    return sorted((*row_of_member.values(), *silent.values()), key=lambda row: (row.id, row.address))


def _problem(address: str, error: LedgerError | None, timeout_ms: float) -> str:
    """Status is asked of this one member: who leads and who else was tried is beside the point."""
    if isinstance(error, Unreachable) and str(error).startswith(f"{address}: "):
        return str(error)
    if error is None or isinstance(error, (RequestTimeout, Unreachable)):
        return f"no answer from {address} within {timeout_ms / 1000:.1f} s"
    return str(error)
