"""A request that was refused is forgotten."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace
from typing import Any, cast

import pytest

from quorumlog.errors import BadRequest
from quorumlog.server.clients.client_session import ClientSession
from quorumlog.server.users_of_server import UsersOfServer
from quorumlog.version import IS_COMPILED
from quorumlog.wire.client_messages import StatusRequest

NO_USERS = UsersOfServer("", dict, is_plain=True)


class Question:
    """What came with the request, of any size."""


@pytest.mark.skipif(IS_COMPILED, reason="a compiled session takes none but real connections")
def test_what_a_refused_request_brought_is_not_kept_until_garbage_is_collected() -> None:
    """80 refused questions of 16 MB each made a member grow by 1.2 GB."""
    sent: list[Any] = []
    connection = SimpleNamespace(send=lambda *said: sent.append(said), is_full=False, peer_name="here:1")
    session = ClientSession(cast(Any, connection), {}, lambda connection_id: None, NO_USERS)
    driver = SimpleNamespace(config=SimpleNamespace(group="g", full_name="g/n0"))
    question = Question()
    kept = weakref.ref(question)

    async def answer(question: Question) -> None:
        raise BadRequest("no")

    session._waiting = 1
    gc.disable()
    try:
        asked = answer(question)
        session._serve(cast(Any, driver), StatusRequest(request_id=1), cast(Any, asked), None)
        del question, asked
        assert sent
        assert kept() is None
    finally:
        gc.enable()
