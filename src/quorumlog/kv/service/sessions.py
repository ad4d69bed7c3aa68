"""Session: one client's connection, as the service sees it."""

from __future__ import annotations

from typing import Protocol

from quorumlog.errors import LedgerError
from quorumlog.kv.errors import KeyValueError
from quorumlog.kv.requests import answers
from quorumlog.kv.requests.frames import Kind, frame
from quorumlog.kv.requests.operations import encode
from quorumlog.net.errors import error_response


class Session(Protocol):
    def send(self, data: bytes) -> None:
        """A frame; nothing happens once it is closed."""

    def abort(self) -> None:
        """Close the connection: its client turns to another member."""

    @property
    def unsent_bytes(self) -> int: ...


def answer(session: Session, number: int, body: bytes) -> None:
    session.send(frame(number, Kind.ANSWER, body))


def refuse(session: Session, number: int, error: LedgerError) -> None:
    if isinstance(error, KeyValueError):
        session.send(frame(number, Kind.ANSWER, answers.refused(error)))
    else:
        session.send(frame(number, Kind.ERROR, encode(error_response(0, error))))
