"""ReadRequests: the requests of one client's reads, with what each is promised."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from quorumlog.client.arguments import INDEX_LIMIT, checked_machine, positive, whole
from quorumlog.client.protocol.append_joiner import body_of
from quorumlog.client.protocol.client_protocol import ClientProtocol
from quorumlog.client.protocol.client_requests import Request
from quorumlog.client.protocol.read_plan import ReadPlan
from quorumlog.client.reading.read_choice import Freshness, ReadChoice
from quorumlog.client.result_streams import Verb, asked, call, request_of
from quorumlog.errors import IndexOutOfRange, ProtocolViolation
from quorumlog.net.rpc.calls import ANY_MEMBER, LEADER, RequestTarget, TargetKind
from quorumlog.wire.client_messages import (
    MachineReadRequest,
    MachineReadResponse,
    ReadRequest,
    ReadResponse,
)
from quorumlog.wire.read_promise import ReadPromise

LAGGING_MEMBER_WAIT_MS = 1000
"""How long a follower may take to learn that an entry that others know of is committed."""
SUBSTITUTE_TIMEOUT_MS = 5000
"""For a member that is asked in place of a damaged one: there may be another to ask after it."""


class ReadRequests:
    def __init__(self, protocol: ClientProtocol, timeout_ms: float) -> None:
        self._protocol = protocol
        self._timeout_ms = timeout_ms

    def range_plan(
        self,
        first_index: int,
        stop_index: int | None,
        choice: ReadChoice,
        entries_hint: int | None = None,
        *,
        heads: bool = False,
        **sizes: int,
    ) -> ReadPlan:
        may_lag = stop_index is not None and choice.target is not LEADER
        return self.plan(
            whole("first_index", first_index),
            None if stop_index is None else whole("stop_index", stop_index),
            choice,
            wait_ms=LAGGING_MEMBER_WAIT_MS if may_lag else 0,
            entries_hint=entries_hint,
            heads=heads,
            **{name: positive(name, size) for name, size in sizes.items()},
        )

    def plan(
        self, first_index: int, stop_index: int | None, choice: ReadChoice, **options: Any
    ) -> ReadPlan:
        may_ask_others = choice.target in (LEADER, ANY_MEMBER)

        def make_request(message: ReadRequest) -> Request:
            told = plan.told
            if told is None or options.get("follow"):
                promise = choice.promise(self._protocol.written_index)
            else:
                # Where the read ends was promised; another member that goes on has to come as far.
                index = max(told.committed_index, self._protocol.written_index)
                promise = ReadPromise(at_least_index=index) if choice.consistency else None
            return self.request(message, choice.target, promise)

        plan = ReadPlan(
            first_index,
            stop_index,
            make_request=make_request,
            make_substitute=self._substitute if may_ask_others else None,
            **options,
        )
        return plan

    def request(
        self, message: ReadRequest, target: RequestTarget, promise: ReadPromise | None = None
    ) -> Request:
        if promise is not None:
            message = replace(message, promise=promise)
        timeout_ms = self._timeout_ms + message.wait_ms
        return request_of(message, target, timeout_ms, counts_progress=True)

    def _substitute(self, message: ReadRequest, tried: set[str]) -> Request | None:
        address = self._protocol.view.untried_address(tried)
        if address is None:
            return None
        timeout_ms = min(self._timeout_ms, SUBSTITUTE_TIMEOUT_MS)
        target = RequestTarget(TargetKind.ADDRESS, address)
        return request_of(message, target, timeout_ms + message.wait_ms, counts_progress=True)

    def end(self, choice: ReadChoice, timeout_ms: float) -> Verb[Freshness]:
        """Where the log ends, as it was chosen, and how old that may be."""
        # Above all entries there is only the end: the refusal names it, when it is as promised.
        promise = choice.promise(self._protocol.written_index)
        message = ReadRequest(first_index=INDEX_LIMIT - 1, to_end=True, promise=promise)
        request = request_of(message, choice.target, timeout_ms)
        yield call(request)
        error = request.error
        if isinstance(error, IndexOutOfRange):
            return freshness_of(request, error)
        raise error or ProtocolViolation(f"{request.response} above the end of every log")

    def ask(self, machine: str, question: bytes, choice: ReadChoice, timeout_ms: float) -> Verb[bytes]:
        message = MachineReadRequest(
            machine=checked_machine(machine),
            question=body_of(question),
            promise=choice.promise(self._protocol.written_index),
        )
        target = choice.target if choice.consistency else LEADER
        return (yield from asked(message, target, timeout_ms, MachineReadResponse)).answer


def freshness_of(request: Request, told: ReadResponse | IndexOutOfRange) -> Freshness:
    link = request.answered_on
    member_id = link.hello.member_id if link is not None and link.hello is not None else ""
    return Freshness(told.committed_index, told.age_ms if told.age_ms >= 0 else None, member_id)
