"""A client's message may end its connection, and never the member that serves it.

Everything that a request makes the serving code do (check, convert, encode an answer) is guarded here.
An error that is raised within the member itself, from the moment that a value was given to it, is not
the client's: an invariant is broken then, and the member stops.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Protocol, TypeVar

from quorumlog.errors import ConfigError, LedgerError, ProtocolViolation, StoreFailure

T = TypeVar("T")

MEMBER = ("quorumlog.node.", "quorumlog.consensus.", "quorumlog.log_state.", "quorumlog.store.")
PASSED_THROUGH = ("quorumlog.node.node_handle",)
"""It passes on messages of serving code and the member's answers."""


class Client(Protocol):
    """The requester: the connection, or its session."""

    def violate(self, violation: ProtocolViolation) -> None:
        """Close the connection, and say why, once."""


def is_full(client: object) -> bool:
    """It does not read its answers: more has to wait (see `Connection.is_full`)."""
    return bool(getattr(client, "is_full", False))


def contain(error: Exception, client: object) -> None:
    """Ends the connection of the client whose words have raised. Raises `error` again where it is of the
    member itself, or where there is no client to blame."""
    violate = getattr(client, "violate", None)
    if violate is None or not is_of_client(error):
        raise error
    if not isinstance(error, ProtocolViolation):
        error = ProtocolViolation(f"its message cannot be processed: {type(error).__name__}: {error}")
    violate(error)


def guarded(act: Callable[[], None], client: object) -> Callable[[], None]:
    """`act` carries out the client's request."""

    def acting() -> None:
        try:
            act()
        except Exception as error:
            contain(error, client)

    return acting


def answering(call: Callable[[T], None], client: object) -> Callable[[T], None]:
    """`call` sends an answer, in the middle of the member's turn."""

    def answer(outcome: T) -> None:
        try:
            call(outcome)
        except Exception as error:
            contain(error, client)

    return answer


def is_of_client(error: Exception) -> bool:
    """Refusals are always: nothing is broken where one was raised."""
    if isinstance(error, StoreFailure):
        return False
    if isinstance(error, LedgerError | ConfigError | ProtocolViolation):
        return True
    return not _is_of_member(error.__traceback__)


def _is_of_member(trace: TracebackType | None) -> bool:
    while trace is not None:
        module = str(trace.tb_frame.f_globals.get("__name__", ""))
        if module.startswith(MEMBER) and module not in PASSED_THROUGH:
            return True
        trace = trace.tb_next
    return False
