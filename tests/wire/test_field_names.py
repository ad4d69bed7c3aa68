"""What msgspec finds wrong is said with the names of fields."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from quorumlog.broker.group_commands import Assignment
from quorumlog.errors import ProtocolViolation
from quorumlog.kv.errors import InvalidRequest
from quorumlog.kv.requests import (
    Command,
    Compact,
    Compare,
    Put,
    Range,
    Relation,
    Target,
    Txn,
    decode_command,
    decode_command_of_client,
    decode_question,
    encode,
)
from quorumlog.net.frame import FrameDecoder, encode_frame
from quorumlog.wire.client_messages import ReadRequest
from quorumlog.wire.field_names import named_reason

ANY: Any = "x"


@pytest.mark.parametrize(
    ("command", "named"),
    [
        (Compact(ANY), "revision: expected `int`, got `str`"),
        (Put(b"k", b"v", ANY), "lease: expected `int`, got `str`"),
        (Txn([Compare(b"k", Target.MOD, Relation.EQUAL, ANY)], [], []), "compare[0].than: expected"),
        (Txn([], [Put(b"k", b"v"), Put(ANY, b"v")], []), "success[1].key: expected `bytes`"),
        (Txn([], [], [Txn([], [Range(b"k", limit=ANY)], [])]), "failure[0].success[0].limit: expected"),
        (["x", 1], "kind: "),
        ([999, 1], "kind: "),
        (5, "Expected `array`"),
    ],
)
def test_a_field_that_does_not_fit_is_named(command: object, named: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        decode_command_of_client(encode(command))
    assert named in str(refused.value) and "$" not in str(refused.value)


def test_the_result_of_an_entry_stays_what_earlier_releases_make_of_it() -> None:
    with pytest.raises(InvalidRequest) as applied:
        decode_command(encode(Compact(ANY)))
    assert str(applied.value).endswith("Expected `int`, got `str` - at `$[1]`")


def test_questions_frames_and_assignments_name_them_too() -> None:
    with pytest.raises(InvalidRequest, match="limit: expected `int`"):
        decode_question(encode(Range(b"k", limit=ANY)))
    message = ReadRequest(request_id=1, first_index=ANY, stop_index=2)
    with pytest.raises(
        ProtocolViolation, match=r"a frame holds no message: \[1\].first_index: expected"
    ):
        FrameDecoder().receive_data(b"".join(encode_frame("g", message)))
    with pytest.raises(msgspec.ValidationError) as wrong:
        msgspec.convert(("m", [5], ()), Assignment)
    data = msgspec.msgpack.encode(("m", [5], ()))
    assert named_reason(wrong.value, data, Assignment).startswith("topics[0]: ")


def test_what_is_no_message_pack_is_said_as_it_is() -> None:
    assert named_reason(ValueError("it is cut"), b"\xc1", Command) == "it is cut"
    assert named_reason(ValueError("odd - at `$[7][1]`"), b"\xc1", Command) == "odd"
    assert named_reason(ValueError("odd - at `$[7][1]`"), encode([1]), Command) == "odd"
