from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumlog.entry import EntryKind
from quorumlog.log_state.control_entries import (
    BODIES,
    CHAIN_LEVEL,
    MOST_BODY_BYTES,
    MOST_IN_A_BODY,
    SKIPPED_LEVEL,
    ControlBody,
    Hold,
    ReaderPosition,
    ReaderPositions,
    Unreadable,
    decode_body,
    encode_body,
    kind_of,
    level_of,
)
from tests.log_state import made


@given(made.BODIES)
def test_a_body_comes_back_as_it_was(body: ControlBody) -> None:
    assert decode_body(kind_of(body), encode_body(body)) == body
    assert encode_body(body) == encode_body(body)


def test_what_no_reader_has_said_is_written_as_earlier_releases_know_it() -> None:
    plain, archive = ReaderPosition("x", 3), ReaderPosition("x", 3, Hold.ARCHIVE, last_chain=7)
    skipping = ReaderPosition("x", 3, skipped=(1, 2))
    said = {
        ReaderPositions((plain,)): [[["x", 3, 0, None, False]]],
        ReaderPositions((archive,)): [[["x", 3, 2, None, False, 7]]],
        ReaderPositions((skipping, archive)): [
            [["x", 3, 0, None, False, None, [1, 2]], ["x", 3, 2, None, False, 7]]
        ],
    }
    for body, fields in said.items():
        assert msgspec.msgpack.decode(encode_body(body)) == fields
    assert [level_of(body) for body in said] == [1, CHAIN_LEVEL, SKIPPED_LEVEL]


@given(st.sampled_from(list(BODIES)), st.binary(max_size=60))
def test_any_bytes_are_a_body_or_unreadable(kind: EntryKind, data: bytes) -> None:
    assert isinstance(decode_body(kind, data), BODIES[kind] | Unreadable)


@given(made.BODIES, st.data())
def test_a_body_that_is_cut_is_unreadable(body: ControlBody, data: st.DataObject) -> None:
    whole = encode_body(body)
    stop = data.draw(st.integers(0, len(whole) - 1))
    assert isinstance(decode_body(kind_of(body), whole[:stop]), Unreadable)


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (EntryKind.TIME, [5, "a field of a later release"]),
        (EntryKind.TIME, [-1]),
        (EntryKind.TIME, [2**60]),
        (EntryKind.KEEP, [-1]),
        (EntryKind.READER, [[["", 3]]]),
        (EntryKind.READER, [[["x" * 256, 3]]]),
        (EntryKind.READER, [[["x", 3, 7]]]),
        (EntryKind.READER, [[["x", 3, 2, None, False, 2**32]]]),
        (EntryKind.READER, [[["x", 3]] * (MOST_IN_A_BODY + 1)]),
        (EntryKind.MEMBERSHIP, [[["n0", "a"]]]),
    ],
)
def test_what_is_out_of_bounds_is_unreadable_and_names_its_kind(kind: EntryKind, fields: object) -> None:
    body = decode_body(kind, msgspec.msgpack.encode(fields))
    assert isinstance(body, Unreadable)
    assert kind.name in body.reason


def test_a_body_that_is_too_long_is_not_looked_at() -> None:
    body = decode_body(EntryKind.TIME, bytes(MOST_BODY_BYTES + 1))
    assert isinstance(body, Unreadable)
    assert str(MOST_BODY_BYTES + 1) in body.reason
