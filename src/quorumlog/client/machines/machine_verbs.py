"""What the leader is asked to change about its state machines, as `verbs` are written."""

from __future__ import annotations

from quorumlog.client.result_streams import Step, Verb, request_of
from quorumlog.errors import BadRequest
from quorumlog.log_state.control_entries import MOST_INDEX
from quorumlog.net.rpc.calls import LEADER, response_of
from quorumlog.wire.client_messages import StepOverRequest, StepOverResponse


def step_over(machine: str, index: int, unsafe: bool, timeout_ms: float) -> Verb[int]:
    if not isinstance(machine, str) or not machine:
        raise BadRequest(f"machine must be the name of a state machine, not {machine!r}")
    if type(index) is not int or not 0 <= index <= MOST_INDEX:
        raise BadRequest(f"index must be that of an entry, from 0 on, not {index!r}")
    message = StepOverRequest(machine=machine, index=index, unsafe=unsafe)
    request = request_of(message, LEADER, timeout_ms)
    yield Step((request,), (request,))
    return response_of(request, StepOverResponse).index
