"""Requests that a server of an earlier release does not know are refused before they are sent."""

import pytest

from quorumlog.client.protocol.client_requests import Request, encode_request
from quorumlog.errors import LevelNotReported
from quorumlog.log_state.users import UserOperation, UserOrder
from quorumlog.net.hello import HelloResponse
from quorumlog.net.rpc.calls import RequestTarget, TargetKind
from quorumlog.wire.client_messages import (
    AnyClientMessage,
    ChangeUsersRequest,
    ReloadRequest,
    UsersRequest,
)

LEVEL_OF_0_1 = 5


@pytest.mark.parametrize(
    "message",
    [
        ChangeUsersRequest(order=UserOrder(UserOperation.ADD_ROLE, "app")),
        UsersRequest(),
        ReloadRequest(),
    ],
    ids=lambda message: type(message).__name__,
)
def test_an_earlier_server_is_named_and_not_asked(message: AnyClientMessage) -> None:
    request = Request(message, RequestTarget(TargetKind.LEADER), submitted_ms=0, deadline_ms=1000)
    hello = HelloResponse(member_id="n0", level=LEVEL_OF_0_1)
    with pytest.raises(LevelNotReported, match=r"n0 runs an earlier release .*: upgrade it first"):
        encode_request("default", request, 1, hello, now_ms=0, previous_connection="")
