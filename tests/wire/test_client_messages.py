"""Every outcome crosses the wire and comes back as the same class with the same hints."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import msgspec
import pytest

import quorumlog.broker.errors
import quorumlog.kv.errors
import quorumlog.staging.manifests  # noqa: F401
from quorumlog.errors import (
    BadRequest,
    CommandError,
    IndexOutOfRange,
    LedgerError,
    NotLeader,
    OutcomeUnknown,
    WrongLastIndex,
)
from quorumlog.net.errors import ErrorResponse, error_of, error_response
from quorumlog.net.hello import Hello, HelloResponse
from quorumlog.wire.client_messages import AppendRequest
from tests.wire.released_frames import made


def below(kind: type[LedgerError]) -> Iterator[type[LedgerError]]:
    for each in kind.__subclasses__():
        yield each
        yield from below(each)


WIRE_ERRORS = sorted(
    {
        kind
        for kind in below(LedgerError)
        if "code" in vars(kind) and kind.__module__.startswith("quorumlog.")
    },
    key=lambda kind: kind.code,
)


@pytest.mark.parametrize("kind", WIRE_ERRORS, ids=lambda kind: kind.__name__)
def test_every_error_comes_back_as_itself_with_all_that_it_has(kind: type[LedgerError]) -> None:
    told = msgspec.structs.replace(made(ErrorResponse), code=kind.code)
    sent = error_of(told)
    assert type(sent) is kind
    for name in inspect.signature(kind).parameters:
        assert name == "message" or getattr(sent, name) == getattr(told, name)
    returned = error_of(error_response(5, sent))
    assert type(returned) is kind
    assert str(returned) == str(sent) == told.message
    assert vars(returned) == vars(sent)


def test_no_two_classes_have_the_same_code() -> None:
    assert len(WIRE_ERRORS) >= 70
    assert len({kind.code for kind in WIRE_ERRORS}) == len(WIRE_ERRORS)
    assert all(LedgerError.of_code[kind.code] is kind for kind in WIRE_ERRORS)


def test_a_class_of_an_application_goes_as_the_one_whose_code_it_has() -> None:
    class Mine(CommandError):
        code = CommandError.code

        def __init__(self, number: int) -> None:
            super().__init__(f"number {number}")

    returned = error_of(error_response(5, Mine(7)))
    assert type(returned) is CommandError
    assert str(returned) == "number 7"


def test_hints_travel() -> None:
    sent = NotLeader("n1 leads", leader_id="n1", leader_address="10.0.0.1:5", retry_after_ms=40)
    response = error_response(9, sent)
    assert response.request_id == 9
    returned = error_of(response)
    assert (returned.leader_id, returned.leader_address, returned.retry_after_ms) == (
        "n1",
        "10.0.0.1:5",
        40,
    )
    assert error_of(error_response(1, NotLeader())).leader_id is None


def test_both_bounds_of_a_read_travel() -> None:
    returned = error_of(error_response(1, IndexOutOfRange("9", ledger_begin_index=3, committed_index=8)))
    assert isinstance(returned, IndexOutOfRange)
    assert (returned.ledger_begin_index, returned.committed_index) == (3, 8)


def test_the_last_index_that_was_expected_and_the_real_one_travel() -> None:
    returned = error_of(error_response(1, WrongLastIndex("no", expected=3, actual=8)))
    assert isinstance(returned, WrongLastIndex)
    assert (returned.expected, returned.actual) == (3, 8)


def test_a_refusal_that_repeats_what_a_client_said_is_short_enough_to_be_read() -> None:
    """With six characters for each of it."""
    said = BadRequest(f"there is nothing of the name {chr(1) * 64 * 1024!r}")
    response = error_response(7, said)
    returned = msgspec.msgpack.decode(msgspec.msgpack.encode(response), type=ErrorResponse)
    assert returned == response
    assert returned.message.startswith(str(said)[:100])


def test_an_append_of_an_older_release_has_no_condition() -> None:
    fields = msgspec.msgpack.decode(msgspec.msgpack.encode(AppendRequest(timeout_ms=7, expected_last=3)))
    older = msgspec.msgpack.decode(msgspec.msgpack.encode(fields[: fields.index(3)]), type=AppendRequest)
    assert older == AppendRequest(timeout_ms=7)
    assert older.expected_last is None


def test_a_code_from_the_future_is_an_unknown_outcome() -> None:
    returned = error_of(ErrorResponse(code=9999, message="new"))
    assert isinstance(returned, OutcomeUnknown)
    assert "9999" in str(returned)


@pytest.mark.parametrize(
    ("message", "newer"),
    [
        (Hello(role="data", member_id="n1", run_id="r", listens_on="h:1", rival="r", level=1), 10),
        (
            HelloResponse(member_id="n1", max_frame_bytes=7, run_id="r", knows_conditions=True, level=1),
            8,
        ),
    ],
)
def test_a_greeting_is_read_by_an_older_release_and_one_of_it_is_read_here(
    message: Hello | HelloResponse, newer: int
) -> None:
    fields = msgspec.msgpack.decode(msgspec.msgpack.encode(message))
    decoder = msgspec.msgpack.Decoder(type(message))
    older = decoder.decode(msgspec.msgpack.encode(fields[:-newer]))
    assert older == type(message)(**dict(zip(message.__struct_fields__, fields[1:-newer], strict=False)))
    assert older.run_id == ""
    assert decoder.decode(msgspec.msgpack.encode([*fields, "of a release to come"])) == message
