"""A command that is nested deeply is refused by every member, or by none."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumlog.batch import EntryBatch
from quorumlog.broker.group_commands import decode_command as group_command
from quorumlog.broker.group_commands import read_answer
from quorumlog.broker.groups.group_service import GroupService
from quorumlog.broker.groups.group_state import GROUPS, GroupMachine, saved_bytes
from quorumlog.errors import BadRequest
from quorumlog.kv.errors import InvalidRequest
from quorumlog.kv.requests import (
    Put,
    Txn,
    decode_command,
    decode_command_of_client,
    decode_question,
)
from quorumlog.kv.requests import read_answer as read_answer_of_store
from quorumlog.kv.store.machine import KeyValueMachine
from quorumlog.node.machine_runner import version_of
from quorumlog.wire.nesting import MOST_NESTED, nested_deeper

SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary()
)
EXTENSIONS = st.builds(msgspec.msgpack.Ext, st.integers(-128, 127), st.binary(max_size=40))
VALUES = st.recursive(
    SCALARS | EXTENSIONS | st.lists(st.binary(min_size=90, max_size=300), max_size=20),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(), inner, max_size=20),
)


def depth_of(value: Any) -> int:
    if isinstance(value, dict):
        value = list(value.values())
    return 1 + max(map(depth_of, value)) if value and isinstance(value, list) else 0


def nested(depth: int) -> Any:
    value = msgspec.msgpack.encode([0, b"\x91" * 100, 7])
    return msgspec.Raw(b"\x92" * (depth - 1) + value + b"\x01" * (depth - 1))


@given(VALUES, st.integers(0, 5))
def test_it_is_counted_as_it_is_read(value: Any, most: int) -> None:
    assert nested_deeper(msgspec.msgpack.encode(value), most) == (depth_of(value) > most)


@given(st.binary(max_size=300).map(lambda tail: b"\x91" * 5 + tail))
def test_what_is_no_message_is_read_to_its_end(data: bytes) -> None:
    assert nested_deeper(data, 4) or nested_deeper(data, 60) is False


def test_large_flat_messages_are_not_deep() -> None:
    for value in (
        [0] * 100_000,
        [[]] * 100_000,
        [[1, b"ab"]] * 200_000,
        {str(n): [n] for n in range(20_000)},
    ):
        assert not nested_deeper(msgspec.msgpack.encode(value), 3)


@pytest.mark.parametrize("decode", [decode_command, decode_command_of_client])
def test_a_store_refuses_at_the_bound(decode: Any) -> None:
    """Behind the fields that it knows: they are skipped."""
    put = [1, b"key", b"value", 0, False, False, False]
    assert decode(msgspec.msgpack.encode([*put, nested(MOST_NESTED - 1)])).key == b"key"
    with pytest.raises(InvalidRequest, match="nested deeper than 64 containers"):
        decode(msgspec.msgpack.encode([*put, nested(MOST_NESTED)]))
    with pytest.raises(InvalidRequest, match="nested deeper than 64 containers"):
        decode_question(b"\x91" * 100_000)


def test_no_store_refuses_for_how_many_values_there_are() -> None:
    """All releases carry out what `check` lets in, whatever they have looked at before."""
    numbers = iter(range(10_000))
    inner = [
        Txn((), tuple(Put(b"%d" % next(numbers), b"") for _ in range(15)), ()) for _ in range(16 * 14)
    ]
    outer = [Txn((), tuple(inner[at : at + 14]), ()) for at in range(0, len(inner), 14)]
    machine = KeyValueMachine()
    machine.apply(EntryBatch.from_bodies([msgspec.msgpack.encode(Txn((), tuple(outer), ()))]), 0)
    assert machine.keyspace.keys == 16 * 14 * 15


def test_topics_and_groups_refuse_at_the_bound() -> None:
    delete = [3, "topic"]
    assert group_command(msgspec.msgpack.encode([*delete, nested(MOST_NESTED - 1)]))
    with pytest.raises(msgspec.DecodeError, match="nested deeper than 64 containers"):
        group_command(msgspec.msgpack.encode([*delete, nested(MOST_NESTED)]))


def test_a_machine_answers_with_a_refusal_and_goes_on() -> None:
    """An entry that somebody has appended past the port."""
    groups = GroupMachine()
    before = saved_bytes(groups.state)
    with pytest.raises(BadRequest, match="nested deeper"):
        read_answer(groups.carry_out(msgspec.msgpack.encode([3, "topic", nested(2_000)])), object)
    assert saved_bytes(groups.state) == before
    put = [1, b"key", b"value", 0, False, False, False, nested(2_000)]
    machine = KeyValueMachine()
    (result,) = machine.apply(EntryBatch.from_bodies([msgspec.msgpack.encode(put)]), 0).results
    with pytest.raises(InvalidRequest, match="nested deeper"):
        read_answer_of_store(result, object)
    assert machine.keyspace.keys == 0


def test_the_version_of_topics_and_groups_is_told() -> None:
    """Where a later release raises it the log goes over at one entry, and members of this one stop."""
    assert version_of(GroupService().machines[GROUPS]) == GroupMachine.version == 1
