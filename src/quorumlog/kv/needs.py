"""The rights each request of the store's port needs. One not listed here is refused.

Leases have no names: the right to write any key suffices to grant one and keep it alive. Revoking one
needs the right to delete its keys, and its time to live the right to read them, which the store checks
later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quorumlog.kv import requests
from quorumlog.kv.requests import FROM_KEY, check, decode_command_of_client, decode_question
from quorumlog.log_state.users import Kind, Right
from quorumlog.net.access import NOTHING, Need

Needs = tuple[Need, ...]
ANY_WRITE = Need(Right.WRITE, Kind.KEY, is_any=True)
READ_ALL = Need(Right.READ, Kind.KEY, b"", None)
ADMIN_ALL = Need(Right.ADMIN, Kind.KEY, b"", None)


def _keys(right: Right, key: bytes, end: bytes) -> Need:
    if not end:
        return Need(right, Kind.KEY, key)
    if end == FROM_KEY:
        return Need(right, Kind.KEY, key, None)
    return Need(right, Kind.KEY, key, max(end, key + b"\0"))


def _reading(request: Any) -> Needs:
    return (_keys(Right.READ, request.key, request.end),)


def _put(put: requests.Put) -> Needs:
    write = Need(Right.WRITE, Kind.KEY, put.key)
    return (write, Need(Right.READ, Kind.KEY, put.key)) if put.prev_kv else (write,)


def _delete(delete: requests.DeleteRange) -> Needs:
    write = _keys(Right.WRITE, delete.key, delete.end)
    return (write, *_reading(delete)) if delete.prev_kv else (write,)


def _txn(txn: requests.Txn) -> Needs:
    """Of both branches: which one is carried out tells what was compared."""
    parts = (*txn.compare, *txn.success, *txn.failure)
    return tuple(need for part in parts for need in OPERATIONS[type(part)](part))


OPERATIONS: dict[type, Callable[[Any], Needs]] = {
    requests.Compare: _reading,
    requests.Put: _put,
    requests.DeleteRange: _delete,
    requests.Range: _reading,
    requests.Txn: _txn,
    requests.Grant: lambda grant: (ANY_WRITE,),
    requests.Revoke: lambda revoke: (ANY_WRITE,),
    requests.Compact: lambda compact: (ADMIN_ALL,),
    requests.History: _reading,
    requests.Leases: lambda leases: (READ_ALL,),
    requests.LeaseKeys: lambda lease: (READ_ALL,),
    requests.StoreStats: lambda stats: NOTHING,
}
"""Of commands and questions, and their parts."""


def _of(decode: Callable[[bytes], Any], body: bytes) -> Needs:
    """What is too large is refused before each part of it is looked at."""
    decoded = decode(body)
    if isinstance(decoded, requests.Command | requests.Range):
        check(decoded, len(body))
    return OPERATIONS[type(decoded)](decoded)


NEEDS: dict[type, Callable[[Any], Needs]] = {
    requests.CommandRequest: lambda request: _of(decode_command_of_client, request.command),
    requests.QuestionRequest: lambda request: _of(decode_question, request.question),
    requests.KeepAliveRequest: lambda request: (ANY_WRITE,),
    requests.TimeToLiveRequest: lambda request: NOTHING,
    requests.StoreStatusRequest: lambda request: NOTHING,
    requests.WatchRequest: _reading,
    requests.CancelRequest: lambda request: NOTHING,
    requests.LoginRequest: lambda request: NOTHING,
}


def needs_of(request: Any) -> Needs | None:
    """None: it is refused. Raises InvalidRequest."""
    needs = NEEDS.get(type(request))
    return None if needs is None else needs(request)


def key_of(request: Any) -> object:
    """Requests with the same key need the same; None: of few it is known so cheaply. Raises
    InvalidRequest."""
    if type(request) is requests.CommandRequest:
        command = decode_command_of_client(request.command)
        if type(command) is requests.Put:
            return command.prev_kv, command.key
    return None


def ended_lease(request: Any) -> int | None:
    """The lease whose keys it deletes."""
    if isinstance(request, requests.CommandRequest):
        command = decode_command_of_client(request.command)
        if isinstance(command, requests.Revoke):
            return command.lease
    return None
