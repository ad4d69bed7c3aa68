"""Errors on the wire: a LedgerError as an ErrorResponse, and back."""

from __future__ import annotations

from quorumlog import errors
from quorumlog.errors import (
    AlreadyCommitted,
    IndexOutOfRange,
    LedgerError,
    OutcomeUnknown,
    ReaderMoved,
    SequenceGap,
    UnknownGroup,
    WrongLastIndex,
)
from quorumlog.state_machine import words_of
from quorumlog.wire.client_messages import ErrorResponse

_ERROR_OF_CODE: dict[int, type[LedgerError]] = {
    kind.code: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, LedgerError) and kind.code >= 0
}


def error_response(request_id: int, error: LedgerError) -> ErrorResponse:
    """The one place where an error becomes a message."""
    return ErrorResponse(
        request_id=request_id,
        code=error.code,
        message=words_of(error),  # it may repeat what a client has said, however long that is
        leader_id=error.leader_id or "",
        leader_address=error.leader_address or "",
        retry_after_ms=error.retry_after_ms,
        ledger_begin_index=getattr(error, "ledger_begin_index", -1),
        committed_index=getattr(error, "committed_index", -1),
        expected_last=getattr(error, "expected", -1),
        actual_last=getattr(error, "actual", -1),
        expected_sequence=getattr(error, "expected_sequence", -1),
        last_sequence=getattr(error, "last_sequence", -1),
        age_ms=getattr(error, "age_ms", -1.0),
        groups=getattr(error, "groups", ()),
    )


def error_of(response: ErrorResponse) -> LedgerError:
    """The one place where a message becomes an error again. A code of a newer server counts as
    OutcomeUnknown: only that class is safe to report for every kind of request."""
    kind = _ERROR_OF_CODE.get(response.code)
    if kind is None:
        return OutcomeUnknown(
            f"the server answered with the unknown code {response.code}: {response.message}"
        )
    if issubclass(kind, IndexOutOfRange):
        return kind(
            response.message,
            ledger_begin_index=response.ledger_begin_index,
            committed_index=response.committed_index,
            age_ms=response.age_ms,
        )
    if issubclass(kind, UnknownGroup):
        return kind(response.message, groups=response.groups)
    if issubclass(kind, ReaderMoved):
        return kind(response.message, committed_index=response.committed_index)
    if issubclass(kind, WrongLastIndex):
        return kind(response.message, expected=response.expected_last, actual=response.actual_last)
    if issubclass(kind, SequenceGap):
        return kind(response.message, expected_sequence=response.expected_sequence)
    if issubclass(kind, AlreadyCommitted):
        return kind(response.message, last_sequence=response.last_sequence)
    return kind(
        response.message,
        leader_id=response.leader_id or None,
        leader_address=response.leader_address or None,
        retry_after_ms=response.retry_after_ms,
    )
