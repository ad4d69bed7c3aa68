"""Session: one client's connection, as the service sees it."""

from __future__ import annotations

from typing import Protocol

from quorumlog.errors import LedgerError
from quorumlog.kv.requests.messages import AnswerResponse, Response
from quorumlog.net.errors import error_response


class Session(Protocol):
    def send(self, message: Response) -> None:
        """Nothing happens once it is closed."""

    def abort(self) -> None:
        """Close the connection: its client turns to another member."""

    @property
    def unsent_bytes(self) -> int: ...


def answer(session: Session, request_id: int, body: bytes) -> None:
    session.send(AnswerResponse(request_id=request_id, answer=body))


def refuse(session: Session, request_id: int, error: LedgerError) -> None:
    session.send(error_response(request_id, error))
