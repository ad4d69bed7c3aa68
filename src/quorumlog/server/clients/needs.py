"""The rights each request of the log's port needs. One not listed here is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quorumlog.log_state.users import Kind, Right
from quorumlog.net.access import CLUSTER_ADMIN, NOTHING, Need
from quorumlog.wire import client_messages as wire

Needs = tuple[Need, ...]


def _log(right: Right) -> Callable[[Any, str], Needs]:
    return lambda request, group: (Need(right, Kind.LOG, group.encode()),)


def _cluster(request: Any, group: str) -> Needs:
    return (CLUSTER_ADMIN,)


def _reader(request: wire.MoveReaderRequest, group: str) -> Needs:
    """Who holds keeps entries from being deleted, and who ends a hold, or a reader, lets them go."""
    right = Right.READ if request.hold is None and not request.ends else Right.ADMIN
    reader = Need(right, Kind.CONSUMER_GROUP, request.reader.encode())
    return (Need(Right.READ, Kind.LOG, group.encode()), reader)


NEEDS: dict[type, Callable[[Any, str], Needs]] = {
    wire.AppendRequest: _log(Right.WRITE),
    wire.ConnectProducer: _log(Right.WRITE),
    wire.LastSequence: _log(Right.WRITE),
    wire.ListProducers: _log(Right.READ),
    wire.ForgetProducer: _log(Right.ADMIN),
    wire.ReadRequest: _log(Right.READ),
    wire.FindMarkRequest: _log(Right.READ),
    wire.MachineReadRequest: _log(Right.READ),
    wire.ReadersRequest: _log(Right.READ),
    wire.WhyKeptRequest: _log(Right.READ),
    wire.MoveReaderRequest: _reader,
    wire.StatusRequest: lambda request, group: NOTHING,
    wire.LayoutRequest: _cluster,  # the state of the log is in the answer, and users in that
    wire.TransferRequest: _cluster,
    wire.ChangeMembersRequest: _cluster,
    wire.ResetClockRequest: _cluster,
    wire.FinishUpgradeRequest: _cluster,
    wire.StepOverRequest: _cluster,
    wire.ReloadRequest: _cluster,
    wire.ChangeUsersRequest: _cluster,
    wire.UsersRequest: _cluster,
}


def key_of(request: Any, group: str) -> object:
    """Requests with the same key need the same."""
    kind = type(request)
    if kind is wire.MoveReaderRequest:
        return kind, group, request.reader, request.hold is None and not request.ends
    return kind, group


def needs_of(request: Any, group: str) -> Needs | None:
    """None: it is refused."""
    needs = NEEDS.get(type(request))
    return None if needs is None else needs(request, group)


ADMINISTRATIVE = frozenset(
    {
        wire.ForgetProducer,
        wire.TransferRequest,
        wire.ChangeMembersRequest,
        wire.ResetClockRequest,
        wire.FinishUpgradeRequest,
        wire.StepOverRequest,
        wire.ReloadRequest,
        wire.ChangeUsersRequest,
    }
)


def words_of(request: Any) -> str:
    """Of an administrative act, for the audit: no secret of it."""
    if isinstance(request, wire.ChangeUsersRequest):
        return request.order.words
    fields = {
        name: value
        for name in request.__struct_fields__
        if name != "request_id" and (value := getattr(request, name)) not in ("", 0, None, False)
    }
    return f"{type(request).__name__.removesuffix('Request')} {fields or ''}".rstrip()
