"""What a member is asked of the time marks in its log, as `verbs` are written."""

from __future__ import annotations

from datetime import datetime

from quorumlog.append_times import AppendTimes
from quorumlog.client.arguments import time_ms_of, whole
from quorumlog.client.protocol.client_requests import read_target
from quorumlog.client.result_streams import Step, Verb, request_of
from quorumlog.errors import IndexOutOfRange
from quorumlog.log_state.log_state import Reset, Resets
from quorumlog.net.rpc.calls import LEADER, response_of
from quorumlog.wire.client_messages import (
    FindMarkRequest,
    FindMarkResponse,
    ResetClockRequest,
    ResetClockResponse,
)


def index_at(time: datetime, from_member: str | None, timeout_ms: float) -> Verb[int]:
    found = yield from _find(FindMarkRequest(time_ms=time_ms_of(time)), from_member, timeout_ms)
    return max(found.index, found.ledger_begin_index)


def time_ms_at(index: int, from_member: str | None, timeout_ms: float) -> Verb[int]:
    """-1: no mark stands in front of it."""
    index = whole("index", index)
    if index < 0:
        raise IndexOutOfRange(f"index {index} is below 0, where every log begins")
    found = yield from _find(FindMarkRequest(index=index), from_member, timeout_ms)
    if not found.ledger_begin_index <= index <= found.committed_index:
        raise IndexOutOfRange(
            f"index {index} is not between ledger_begin_index {found.ledger_begin_index} and"
            f" committed_index {found.committed_index}",
            ledger_begin_index=found.ledger_begin_index,
            committed_index=found.committed_index,
        )
    return found.time_ms


def append_times(first_index: int, from_member: str | None, timeout_ms: float) -> Verb[AppendTimes]:
    """For entries from this one on, which is committed."""
    found = yield from _find(FindMarkRequest(index=first_index), from_member, timeout_ms)
    return AppendTimes(found.time_ms, found.clock_resets)


def clock_resets(from_member: str | None, timeout_ms: float) -> Verb[Resets]:
    """Of the committed log, by index."""
    found = yield from _find(FindMarkRequest(index=0), from_member, timeout_ms)
    return found.clock_resets


def reset_clock(timeout_ms: float) -> Verb[Reset]:
    request = request_of(ResetClockRequest(), LEADER, timeout_ms)
    yield Step((request,), (request,))
    response = response_of(request, ResetClockResponse)
    return Reset(response.index, response.time_ms)


def _find(
    message: FindMarkRequest, from_member: str | None, timeout_ms: float
) -> Verb[FindMarkResponse]:
    request = request_of(message, read_target(from_member), timeout_ms)
    yield Step((request,), (request,))
    return response_of(request, FindMarkResponse)
