from __future__ import annotations

import zlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumlog.log_state.control_entries import (
    CHAIN_LEVEL,
    LEVEL,
    SKIPPED_LEVEL,
    ClockReset,
    ControlBody,
    Hold,
    Keep,
    ReaderPosition,
    ReaderPositions,
    TimeMark,
    Unreadable,
)
from quorumlog.log_state.log_state import (
    EMPTY,
    MOST_LOST_RANGES,
    MOST_READERS,
    LogState,
    StateTime,
    UnknownState,
    decode_state,
    decode_time,
    folded,
)
from quorumlog.store.slot_file import payload_bytes_of
from quorumlog.store.state_files import START_SECTOR_BYTES
from tests.log_state import made


def state_of(*bodies: ControlBody | Unreadable | None) -> LogState:
    state = folded(EMPTY, made.entries_at(0, list(bodies)))
    assert isinstance(state, LogState), state
    return state


def read(name: str, position: int, hold: Hold = Hold.NONE, seeks_from: int | None = None) -> ControlBody:
    return ReaderPositions((ReaderPosition(name, position, hold, seeks_from),))


@given(st.lists(made.BODIES, max_size=20))
def test_a_state_comes_back_from_its_record(bodies: list[ControlBody]) -> None:
    state = state_of(*bodies)
    assert decode_state(state.encode()) == state
    time = decode_time(state.encode())
    assert isinstance(time, StateTime)
    assert (time.time_ms, time.time_index) == (state.time_ms, state.time_index)


@given(st.lists(made.BODIES, max_size=20))
def test_time_within_a_run_and_what_is_kept_never_fall(bodies: list[ControlBody]) -> None:
    before = EMPTY
    for count in range(1, len(bodies) + 1):
        state = state_of(*bodies[:count])
        if not isinstance(bodies[count - 1], ClockReset):
            assert (before.time_ms or 0) <= (state.time_ms or 0)
        assert before.keep_from_index <= state.keep_from_index
        assert before.level <= state.level
        before = state


@given(st.lists(made.BODIES, max_size=20))
def test_no_keep_passes_an_archive_that_is_not_below_it(bodies: list[ControlBody]) -> None:
    for count in range(1, len(bodies) + 1):
        if isinstance(bodies[count - 1], Keep):
            before, state = state_of(*bodies[: count - 1]), state_of(*bodies[:count])
            held = [reader.position for reader in before.readers if reader.hold is Hold.ARCHIVE]
            assert not held or state.keep_from_index <= max(before.keep_from_index, min(held))


@given(st.binary(max_size=80), st.integers(0, 79))
def test_a_record_that_is_not_one_is_unreadable(data: bytes, at: int) -> None:
    assert isinstance(decode_state(data), Unreadable)
    record = bytearray(state_of(TimeMark(7)).encode())
    record[at % len(record)] ^= 1
    assert isinstance(decode_state(bytes(record)), Unreadable)


@pytest.mark.parametrize(
    "payload", [b"", b"no zlib", zlib.compress(b"x" * 99)[:-3], zlib.compress(b"x") + b"y"]
)
def test_a_compressed_record_that_is_not_whole_is_unreadable(payload: bytes) -> None:
    record = b"QLSZ" + zlib.crc32(payload).to_bytes(4, "big") + payload
    refusal = decode_state(record)
    assert isinstance(refusal, Unreadable)
    assert "compressed" in refusal.reason


def test_a_level_that_is_not_known_is_refused_by_name() -> None:
    payload = msgspec.msgpack.encode([LEVEL + 1, "whatever"])
    record = b"QLST" + zlib.crc32(payload).to_bytes(4, "big") + payload
    refusal = decode_state(record)
    assert isinstance(refusal, Unreadable)
    assert f"level {LEVEL + 1}" in refusal.reason


def test_a_time_mark_that_falls_changes_nothing() -> None:
    state = state_of(TimeMark(9), None, TimeMark(8))
    assert (state.time_ms, state.time_index) == (9, 0)


def test_a_reader_goes_forward_unless_it_seeks_from_where_it_stands() -> None:
    for said, position in [
        (read("x", 4), 9),
        (read("x", 4, seeks_from=8), 9),
        (read("x", 4, seeks_from=9), 4),
        (read("x", 12), 12),
    ]:
        reader = state_of(read("x", 9), said).reader("x")
        assert reader is not None
        assert reader.position == position


def test_a_chain_is_that_of_the_position_that_it_was_said_of() -> None:
    def archive(position: int, chain: int | None) -> ReaderPositions:
        return ReaderPositions((ReaderPosition("a", position, Hold.ARCHIVE, last_chain=chain),))

    for said, stands in [
        (archive(9, None), (9, 5)),
        (archive(9, 6), (9, 6)),
        (archive(4, 6), (9, 5)),
        (archive(12, None), (12, None)),
        (archive(12, 6), (12, 6)),
        (read("a", 4, seeks_from=9), (4, None)),
    ]:
        state = state_of(archive(9, 5), said)
        reader = state.reader("a")
        assert reader is not None
        assert (reader.position, reader.last_chain) == stands, said
        assert state.level == CHAIN_LEVEL
    plain = state_of(read("x", 9))
    assert len(msgspec.msgpack.decode(plain.encode()[8:])[6][0]) == 4, "as earlier releases know it"


def test_what_a_reader_skips_is_counted_once() -> None:
    def skips(first: int, stop: int, position: int = 0) -> ReaderPositions:
        return ReaderPositions((ReaderPosition("x", position, skipped=(first, stop)),))

    said = [read("x", 9), skips(3, 6), skips(3, 6), skips(5, 8), skips(1, 2), skips(7, 3), skips(2, 3)]
    counts = [(0, ()), (3, ((3, 6),)), (3, ((3, 6),)), (5, ((3, 8),)), (6, ((1, 2), (3, 8)))]
    for number, (entries, ranges) in enumerate([*counts, counts[-1], (7, ((1, 8),))], 1):
        state = state_of(*said[:number])
        reader = state.reader("x")
        assert reader is not None
        assert (reader.skipped_entries, reader.skipped_ranges) == (entries, ranges)
        assert reader.position == 9
        assert state.level == (1 if number == 1 else SKIPPED_LEVEL)
        assert decode_state(state.encode()) == state
    plain, moved = state_of(read("x", 9)), state_of(*said, read("x", 12))
    assert len(msgspec.msgpack.decode(plain.encode()[8:])[6][0]) == 4, "as earlier releases know it"
    assert [(each.position, each.skipped_entries) for each in moved.readers] == [(12, 7)]
    ended = state_of(*said, ReaderPositions((ReaderPosition("x", 0, ends=True),)), read("x", 3))
    assert [each.skipped_entries for each in ended.readers] == [0]


def test_the_newest_ranges_that_were_skipped_are_remembered() -> None:
    far = [ReaderPositions((ReaderPosition("x", 0, skipped=(at, at + 1)),)) for at in range(0, 20, 2)]
    (reader,) = state_of(*far).readers
    assert reader.skipped_entries == 10
    assert [first for first, _ in reader.skipped_ranges] == [*range(20 - 2 * MOST_LOST_RANGES, 20, 2)]
    again = [ReaderPositions((ReaderPosition("x", 0, skipped=(0, stop)),)) for stop in (1, 9, 13)]
    assert state_of(*far, *again[:2]).readers[0].skipped_entries == 10, "one that is forgotten"
    assert state_of(*far, *again).readers[0].skipped_entries == 10, "and what is remembered"
    (reader,) = state_of(*far, *again, *far[-1:], *again).readers
    assert reader.skipped_entries <= 20, "said as often as anybody likes"


def test_a_hold_keeps_what_its_reader_has_not_read() -> None:
    state = state_of(read("x", 5, Hold.READER), Keep(9))
    assert (state.keep_from_index, state.lost_ranges) == (5, ())


def test_force_passes_readers_and_says_what_they_lost_but_no_archive() -> None:
    state = state_of(read("x", 5, Hold.READER), read("a", 7, Hold.ARCHIVE), Keep(9, forced=True))
    assert state.keep_from_index == 7
    assert [tuple(msgspec.structs.astuple(each)) for each in state.lost_ranges] == [("x", 5, 7)]
    reader = state.reader("x")
    assert reader is not None
    assert reader.position == 7


def test_lost_ranges_are_bounded_and_end_with_their_reader() -> None:
    held = [read("x", 0, Hold.READER), *[Keep(at, forced=True) for at in range(1, 20)]]
    state = state_of(*held)
    assert [each.stop_index for each in state.lost_ranges] == list(range(20 - MOST_LOST_RANGES, 20))
    ended = state_of(*held, ReaderPositions((ReaderPosition("x", 0, ends=True),)))
    assert (ended.readers, ended.lost_ranges) == ((), ())


def test_no_more_readers_are_taken_than_a_start_has_room_for() -> None:
    long = "n" * 60
    names = [f"{long}{number:04}" for number in range(MOST_READERS + 1)]
    skips = [(2**40 + at, 2**40 + at + 1) for at in range(0, 2 * MOST_LOST_RANGES, 2)]
    held = [
        ReaderPositions((ReaderPosition(name, 0, Hold.READER, skipped=each),))
        for name in names
        for each in skips
    ]
    forced = [Keep(2**40 + at, forced=True) for at in range(MOST_LOST_RANGES + 1)]
    state = state_of(*held, *forced)
    assert [reader.name for reader in state.readers] == names[:MOST_READERS]
    assert len(state.lost_ranges) == MOST_READERS * MOST_LOST_RANGES
    assert 5 * len(state.encode()) < 2 * payload_bytes_of(START_SECTOR_BYTES)
    moved = state_of(*held, read(names[0], 5))
    assert moved.reader(names[0]) is not None


def test_nothing_is_known_behind_an_entry_that_cannot_be_read() -> None:
    state = folded(EMPTY, made.entries_at(3, [TimeMark(1), Unreadable("why"), TimeMark(2)]))
    assert isinstance(state, UnknownState)
    assert (state.index, "why" in state.reason) == (4, True)
