"""`status()`: one row a member, also when some or all of them are down."""

from __future__ import annotations

from typing import Any

import msgspec

from quorumlog.client.protocol.client_protocol import ClientProtocol
from quorumlog.client.protocol.client_requests import Request, Target, TargetKind
from quorumlog.errors import LedgerError, RequestTimeout, Unreachable
from quorumlog.wire.client_messages import MemberInfo, StatusRequest, StatusResponse

STATUS_TIMEOUT_MS = 1000.0
"""A member that says nothing for so long is shown as not reachable."""

_UNKNOWN_ROW: dict[str, Any] = {
    name: None for name in StatusResponse.__struct_fields__ if name != "request_id"
} | {"members": (), "problems": ()}


class StatusSurvey:
    """Asks every listed server, then the members that the answers told of.

    while requests := survey.next_requests(now_ms):
        submit(requests); wait until all are done
    return survey.rows()

    `rows` raises BadRequest if the client is closed.
    """

    def __init__(self, protocol: ClientProtocol, timeout_ms: float) -> None:
        self._protocol = protocol
        self._timeout_ms = timeout_ms
        self._asked: dict[str, Request] = {}

    def next_requests(self, now_ms: float) -> list[Request]:
        """Requests to addresses not asked yet; empty when every known member was asked."""
        new: list[Request] = []
        for address in self._protocol.view.known_addresses():
            if address not in self._asked:
                request = Request(
                    StatusRequest(),
                    Target(TargetKind.ADDRESS, address),
                    now_ms=now_ms,
                    deadline_ms=now_ms + self._timeout_ms,
                )
                self._asked[address] = request
                new.append(request)
        return new

    def _problem(self, address: str, error: LedgerError | None) -> str:
        """Status is asked of this one member: who leads and who else was tried is beside the point."""
        if isinstance(error, Unreachable) and str(error).startswith(f"{address}: "):
            return str(error)
        if error is None or isinstance(error, (RequestTimeout, Unreachable)):
            return f"no answer from {address} within {self._timeout_ms / 1000:.1f} s"
        return str(error)

    def rows(self) -> list[dict[str, Any]]:
        """One dictionary a member, sorted by id: the fields of StatusResponse, `reachable`, `problem`.

        A member that did not answer, or does not serve the group, has None for what only it could tell;
        id and address are known if another one told them, and `problem` says how it ended.
        """
        self._protocol.check_open()
        rows: list[dict[str, Any]] = []
        told: dict[str, MemberInfo] = {}
        for address, request in self._asked.items():
            status = request.response
            if isinstance(status, StatusResponse):
                row = msgspec.structs.asdict(status)
                del row["request_id"]
                row["members"] = tuple(msgspec.structs.asdict(member) for member in status.members)
                row |= {"address": status.address or address, "reachable": True, "problem": ""}
                rows.append(row)
                told |= {member.id: member for member in status.members}
        seen = {row["id"] for row in rows}
        unlisted = {member.address: member for member in told.values() if member.id not in seen}
        view = self._protocol.view
        greeted = {address: member_id for member_id, address in list(view.greeted.items())}
        for address, request in self._asked.items():
            if isinstance(request.response, StatusResponse):
                continue
            member = unlisted.get(address)
            member_id = member.id if member else greeted.get(address, "")
            if member_id and member_id in seen:
                continue
            rows.append(
                _UNKNOWN_ROW
                | {
                    "id": member_id,
                    "address": address,
                    "reachable": False,
                    "problem": self._problem(address, request.error),
                }
            )
        # Two addresses of one member, say a name and a number, are one row.
        unique: dict[Any, dict[str, Any]] = {}
        for row in rows:
            unique.setdefault(row["id"] or row["address"], row)
        return sorted(unique.values(), key=lambda row: (row["id"], row["address"]))
