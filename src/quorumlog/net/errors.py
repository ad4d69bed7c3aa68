"""Errors on the wire: a LedgerError as an ErrorResponse, and back. Every class that has a code is known
once its module is imported."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from quorumlog.errors import LedgerError, OutcomeUnknown
from quorumlog.state_machine import words_of
from quorumlog.wire.client_message import ClientMessage, Int, Text


class ErrorResponse(ClientMessage, frozen=True, kw_only=True, tag=63):
    """Any request that ended in a `LedgerError`. After `message`: the arguments of its class."""

    code: Int
    message: Text
    leader_id: Text = ""
    leader_address: Text = ""
    retry_after_ms: Int = 0
    ledger_begin_index: Int = -1
    committed_index: Int = -1
    expected: Int = -1
    actual: Int = -1
    expected_sequence: Int = -1
    last_sequence: Int = -1
    age_ms: float = -1.0
    groups: tuple[Text, ...] = ()
    min_offset: Int = -1
    max_offset: Int = -1
    compacted_revision: Int = 0


@functools.cache
def _fields_of(code: int) -> tuple[str, ...]:
    """What the class of this code is made with, beside its message."""
    taken = inspect.signature(LedgerError.of_code.get(code, LedgerError)).parameters
    known = ErrorResponse.__struct_fields__
    return tuple(name for name in taken if name in known and name != "message")


def error_response(request_id: int, error: LedgerError) -> ErrorResponse:
    fields = _fields_of(error.code)
    known = {name: value for name in fields if (value := getattr(error, name)) is not None}
    # The message may repeat what a client has said, however long that is.
    return ErrorResponse(request_id=request_id, code=error.code, message=words_of(error), **known)


def error_of(response: ErrorResponse) -> LedgerError:
    """A code of a newer server counts as OutcomeUnknown: only that class is safe to report for every
    kind of request."""
    if response.code not in LedgerError.of_code:
        return OutcomeUnknown(
            f"the server answered with the unknown code {response.code}: {response.message}"
        )
    return error_with(response.code, response.message, OutcomeUnknown, msgspec.structs.asdict(response))


def error_with(
    code: int, message: str, unknown: type[LedgerError], known: Mapping[str, Any] = MappingProxyType({})
) -> LedgerError:
    """`unknown`: the class for an unknown code; it gets the arguments it takes."""
    kind = LedgerError.of_code.get(code, unknown)
    return kind(
        message,
        **{name: known[name] for name in _fields_of(kind.code) if known.get(name, "") != ""},
    )
