"""Frames: what goes in comes out, however it is cut, and everything else is a ProtocolViolation."""

from __future__ import annotations

import random
import struct

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorumlog.batch import EntryBatch
from quorumlog.config import (
    FRAME_LIMIT_BYTES,
    LARGEST_ENTRY_BYTES,
    LARGEST_PUSH_BYTES,
    MAX_NAME_BYTES,
)
from quorumlog.consensus.messages import (
    HeartbeatRequest,
    PushEntryRequest,
    PushType,
    RangeResponse,
    VoteRequest,
    VoteResponse,
    VoteResult,
)
from quorumlog.entry import EntryId, Replica
from quorumlog.entry_header import HEADER_BYTES
from quorumlog.errors import ProtocolViolation
from quorumlog.net.errors import ErrorResponse
from quorumlog.net.frame import (
    FRAME_HEADER_BYTES,
    LARGE_FRAME_BYTES,
    MAGIC,
    RECEIVE_BUFFER_BYTES,
    AnyFrameMessage,
    Frame,
    FrameDecoder,
    encode_frame,
    frame_bytes_of,
)
from quorumlog.net.hello import Hello
from quorumlog.node.repair import PIECE_BYTES
from quorumlog.server.clients.client_reads import READ_LIMIT_BYTES
from quorumlog.wire.client_messages import (
    AppendRequest,
    MachineReadResponse,
    ReadResponse,
    StatusRequest,
)

VOTER = Replica("n1", "d1")


def stamped(bodies: list[bytes], first_index: int = 7, term: int = 3) -> EntryBatch:
    batch = EntryBatch.from_bodies(bodies)
    batch.stamp(first_index, term, batch.starts, 99)
    return batch


def frame_of(message: AnyFrameMessage, batch: EntryBatch | None = None, group: str = "g") -> bytes:
    return b"".join(encode_frame(group, message, batch))


def flat(frames: list[Frame]) -> list[tuple[str, object, bytes, list[int]]]:
    """Frames as plain values: batches have no equality of their own."""
    rows: list[tuple[str, object, bytes, list[int]]] = []
    for group, message, batch, _ in frames:
        shown: object = message
        if isinstance(message, PushEntryRequest):
            shown = msgspec.structs.replace(message, batch=None)
        rows.append(
            (
                group,
                shown,
                b"" if batch is None else bytes(batch.buffer),
                [] if batch is None else batch.sizes.tolist(),
            )
        )
    return rows


def conversation() -> list[bytes]:
    """Frames of every kind of batch: none, small, and above the large-frame limit."""
    return [
        frame_of(Hello(role="client")),
        frame_of(AppendRequest(request_id=1, stream=4, number=2), EntryBatch.from_bodies([b"a"])),
        frame_of(VoteRequest(term=4, vote_term=5, pre_vote=True, ledger_end=EntryId(9, 4))),
        frame_of(AppendRequest(request_id=2), EntryBatch.from_bodies([b"", b"bc" * 300, b"d"])),
        frame_of(
            ReadResponse(first_index=7, count=90, ledger_begin_index=0, committed_index=100),
            stamped([b"x" * 1000] * 90),
        ),
        frame_of(ErrorResponse(request_id=3, code=404, message="n0 leads", leader_id="n0")),
    ]


# -------------------------------------------------------------------- round trips


def test_every_frame_comes_back_as_it_was_sent() -> None:
    decoder = FrameDecoder()
    frames = decoder.receive_data(b"".join(conversation()))
    assert [type(f.message).__name__ for f in frames] == [
        "Hello",
        "AppendRequest",
        "VoteRequest",
        "AppendRequest",
        "ReadResponse",
        "ErrorResponse",
    ]
    assert frames[1].message == AppendRequest(request_id=1, stream=4, number=2)
    assert [bytes(b) for b in frames[3].batch.bodies()] == [b"", b"bc" * 300, b"d"]  # type: ignore[union-attr]
    assert frames[0].batch is None
    assert decoder.is_between_frames


def test_entry_bytes_are_not_copied_on_the_way_out() -> None:
    batch = EntryBatch.from_bodies([b"abc"])
    assert encode_frame("g", AppendRequest(), batch)[1] is batch.buffer


def test_an_empty_batch_is_no_payload() -> None:
    empty = EntryBatch(b"", np.empty(0, np.int64))
    message = ReadResponse(first_index=0, count=0, ledger_begin_index=0, committed_index=-1)
    assert FrameDecoder().receive_data(frame_of(message, empty))[0].batch is None


def test_a_push_takes_its_entries_along_and_leaves_its_sender_behind() -> None:
    batch = stamped([b"one", b"two"])
    push = PushEntryRequest(
        sender=VOTER,
        term=3,
        push=PushType.APPEND,
        committed_index=6,
        previous=EntryId(6, 3),
        first_index=7,
        count=2,
        term_runs=((7, 3),),
        previous_chain=99,
        batch=batch,
    )
    group, message, received, _ = FrameDecoder().receive_data(frame_of(push))[0]
    assert group == "g"
    assert isinstance(message, PushEntryRequest)
    assert message.sender == Replica("", "")
    assert message.batch is received
    assert received is not None
    received.check_encoding()
    received.check_sequence(7, 99)
    assert msgspec.structs.replace(message, sender=VOTER, batch=batch) == push


def test_an_answer_to_a_request_for_a_range_takes_its_entries_along() -> None:
    batch = stamped([b"one", b"two"])
    answer = RangeResponse(sender=VOTER, term=3, number=5, count=2, batch=batch)
    (frame,) = FrameDecoder().receive_data(frame_of(answer))
    assert isinstance(frame.message, RangeResponse)
    assert (frame.message.number, frame.message.count) == (5, 2)
    assert bytes(frame.message.batch.buffer) == bytes(batch.buffer)


def test_the_sender_of_any_peer_message_stays_behind() -> None:
    vote = VoteResponse(sender=VOTER, term=2, vote_term=2, pre_vote=False, result=VoteResult.ACCEPT)
    received = FrameDecoder().receive_data(frame_of(vote))[0].message
    assert received == msgspec.structs.replace(vote, sender=Replica("", ""))


def test_a_small_payload_leaves_the_receive_buffer_and_a_large_one_is_its_own_buffer() -> None:
    decoder = FrameDecoder()
    small = decoder.receive_data(frame_of(AppendRequest(), EntryBatch.from_bodies([b"s" * 10])))
    large = decoder.receive_data(frame_of(AppendRequest(), EntryBatch.from_bodies([b"L" * 300_000])))
    # Overwrite everything that the decoder may still hold.
    decoder.receive_data(frame_of(AppendRequest(), EntryBatch.from_bodies([b"z" * 50_000])) * 6)
    assert small[0].batch is not None
    assert large[0].batch is not None
    assert bytes(small[0].batch.body(0)) == b"s" * 10
    assert bytes(large[0].batch.body(0)) == b"L" * 300_000
    assert not small[0].batch.buffer.readonly
    assert not large[0].batch.buffer.readonly


def test_a_large_frame_is_received_straight_into_its_own_buffer() -> None:
    data = frame_of(AppendRequest(), EntryBatch.from_bodies([b"L" * 1_000_000]))
    decoder = FrameDecoder()
    decoder.receive_data(data[:1000])
    assert not decoder.is_between_frames
    into = decoder.get_buffer()
    assert len(into) == len(data) - 1000
    into[:] = data[1000:]
    (frame,) = decoder.buffer_updated(len(into))
    assert frame.batch is not None
    assert np.shares_memory(np.frombuffer(into, np.uint8), np.frombuffer(frame.batch.buffer, np.uint8))


# -------------------------------------------------------------------- cut anywhere


def test_whole_and_one_byte_at_a_time_are_the_same() -> None:
    data = b"".join(conversation())
    whole = FrameDecoder().receive_data(data)
    decoder = FrameDecoder()
    single: list[Frame] = []
    for position in range(len(data)):
        single += decoder.receive_data(data[position : position + 1])
    assert flat(single) == flat(whole)
    assert len(whole) == 6


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 120_000), min_size=1, max_size=8),
    cuts=st.lists(st.integers(1, RECEIVE_BUFFER_BYTES + 1000), max_size=40),
)
def test_any_sizes_cut_anywhere(sizes: list[int], cuts: list[int]) -> None:
    data = b"".join(
        frame_of(AppendRequest(request_id=i), EntryBatch.from_bodies([bytes([i]) * size, b"-"]))
        for i, size in enumerate(sizes)
    )
    decoder = FrameDecoder()
    frames: list[Frame] = []
    position = 0
    for cut in [*cuts, len(data)]:
        frames += decoder.receive_data(data[position : position + cut])
        position += cut
    assert flat(frames) == flat(FrameDecoder().receive_data(data))
    assert [f.message.request_id for f in frames] == list(range(len(sizes)))  # type: ignore[union-attr]
    assert [int(f.batch.sizes[0]) - 48 for f in frames] == sizes  # type: ignore[union-attr]
    assert decoder.is_between_frames


def test_a_truncated_frame_gives_nothing_and_is_not_between_frames() -> None:
    data = frame_of(AppendRequest(request_id=2), EntryBatch.from_bodies([b"body", b"2"]))
    for length in range(1, len(data)):
        decoder = FrameDecoder()
        assert decoder.receive_data(data[:length]) == []
        assert not decoder.is_between_frames


# -------------------------------------------------------------------- the largest frames

MOST = 2**63 - 1
GROUP = "g" * MAX_NAME_BYTES


def with_entries(batch: EntryBatch, term_runs: tuple[tuple[int, int], ...]) -> list[int]:
    """Bytes of every frame that carries these entries, with the longest heads there can be."""
    push = PushEntryRequest(
        term=MOST,
        push=PushType.APPEND,
        committed_index=MOST,
        number=MOST,
        previous=EntryId(MOST, MOST),
        first_index=MOST,
        count=batch.count,
        term_runs=term_runs,
        previous_chain=2**32 - 1,
        cold=True,
        batch=batch,
    )
    append = AppendRequest(
        request_id=MOST,
        stream=MOST,
        number=MOST,
        previous_connection=f"{MOST:016x}/{MOST}",
        timeout_ms=MOST,
    )
    repair = RangeResponse(term=MOST, number=MOST, count=batch.count, batch=batch)
    answer = ReadResponse(
        request_id=MOST,
        first_index=MOST,
        count=batch.count,
        ledger_begin_index=MOST,
        committed_index=MOST,
    )
    frames = [
        encode_frame(GROUP, push),
        encode_frame(GROUP, repair),
        encode_frame(GROUP, append, batch),
        encode_frame(GROUP, answer, batch),
    ]
    return [frame_bytes_of(frame) for frame in frames]


def test_the_largest_entry_fits_into_every_frame_that_carries_it() -> None:
    batch = EntryBatch.from_bodies([bytes(LARGEST_ENTRY_BYTES - HEADER_BYTES)])
    sizes = with_entries(batch, ((MOST, MOST),))
    assert max(sizes) <= FRAME_LIMIT_BYTES


def test_the_largest_push_fits_although_each_of_its_entries_opens_a_term() -> None:
    count = LARGEST_PUSH_BYTES // HEADER_BYTES
    batch = EntryBatch.from_bodies([b""] * count)
    assert batch.total_bytes <= LARGEST_PUSH_BYTES < batch.total_bytes + HEADER_BYTES
    sizes = with_entries(batch, tuple((MOST - number, MOST - number) for number in range(count)))
    assert max(sizes) <= FRAME_LIMIT_BYTES
    assert max(sizes) > FRAME_LIMIT_BYTES - 1024


def test_what_is_read_or_repaired_at_once_fits() -> None:
    """Neither names terms, so only the sizes come on top of the entries."""
    for limit_bytes in (READ_LIMIT_BYTES, PIECE_BYTES):
        assert limit_bytes * (HEADER_BYTES + 4) // HEADER_BYTES <= LARGEST_ENTRY_BYTES


# -------------------------------------------------------------------- nonsense


def outcome(data: bytes, max_frame_bytes: int = 1 << 20) -> list[Frame] | None:
    """Frames, or None for a ProtocolViolation; any other exception fails the test."""
    try:
        return FrameDecoder(max_frame_bytes).receive_data(data)
    except ProtocolViolation:
        return None


def test_every_single_bit_flip_is_noticed() -> None:
    """A flipped length may ask for bytes that never come; what is never given out is a wrong frame."""
    push = PushEntryRequest(term=3, push=PushType.APPEND, committed_index=6, first_index=7, count=2)
    for data in (
        frame_of(push, stamped([b"one", b"twelve"])),
        frame_of(StatusRequest(request_id=77)),
    ):
        for bit in range(len(data) * 8):
            flipped = bytearray(data)
            flipped[bit // 8] ^= 1 << (bit % 8)
            assert not outcome(bytes(flipped)), f"bit {bit}"


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=400))
def test_garbage_is_a_violation_or_not_yet_a_frame(data: bytes) -> None:
    assert not outcome(data)
    assert not outcome(MAGIC + data)


def sealed(control: bytes, *, batch: bytes = b"", count: int = 0) -> bytes:
    """A frame whose lengths and checksums are right, whatever it carries."""
    from isal.isal_zlib import crc32

    batch_crc = crc32(batch) if count else 0
    frame_bytes = FRAME_HEADER_BYTES + len(control) + len(batch)
    tail = struct.pack("<IIII", batch_crc, frame_bytes, len(control), count) + control
    return MAGIC + struct.pack("<I", crc32(tail)) + tail + batch


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=120))
def test_garbage_with_right_checksums_is_a_violation(control: bytes) -> None:
    assert outcome(sealed(control)) is None


json_like = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=12,
)
TAGS = [*range(0, 12), *range(30, 45), 63, -1]


@settings(max_examples=400, deadline=None)
@given(tag=st.sampled_from(TAGS), fields=st.lists(json_like, max_size=16), whole=json_like)
def test_any_messagepack_is_a_message_or_a_violation(
    tag: int, fields: list[object], whole: object
) -> None:
    outcome(sealed(msgspec.msgpack.encode(whole)))
    frames = outcome(sealed(msgspec.msgpack.encode(["g", [tag, *fields]])))
    assert frames is None or len(frames) == 1


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"GET / HTTP/1.1\r\nHost: example.org\r\n\r\n", "begins with"),
        (struct.pack("<4sIIIII", MAGIC, 0, 0, 2**31, 0, 0), "above the limit"),
        (struct.pack("<4sIIIII", MAGIC, 0, 0, 0, 0, 0), "cannot hold"),
        (struct.pack("<4sIIIII", MAGIC, 0, 0, 100, 2**32 - 1, 0), "cannot hold"),
        (struct.pack("<4sIIIII", MAGIC, 0, 0, 100, 0, 2**32 - 1), "cannot hold"),
        (struct.pack("<4sIIIII", MAGIC, 0, 0, 100, 4, 0), "cannot hold"),
        (sealed(b""), "no message"),
        (sealed(b"\x92\xa1g" + b"\x9d\x05" + b"\x91" * 5000), "no message"),
        (sealed(b"\x92\xa1\xff\x92\x26\x01"), "no message"),
        (sealed(b"\x92\xa1g\x92\x26\x01", batch=b"\x30\0\0\0" + bytes(60), count=1), "48 bytes"),
        (sealed(b"\x92\xa1g\x92\x26\x01", batch=b"\x01\0\0\0" + bytes(48), count=1), "1 bytes by"),
    ],
)
def test_nonsense_is_named(data: bytes, words: str) -> None:
    with pytest.raises(ProtocolViolation, match=words):
        FrameDecoder().receive_data(data)


def test_a_frame_above_the_limit_is_refused_by_its_header_alone() -> None:
    data = frame_of(AppendRequest(), EntryBatch.from_bodies([b"x" * LARGE_FRAME_BYTES]))
    decoder = FrameDecoder(max_frame_bytes=len(data) - 1)
    with pytest.raises(ProtocolViolation, match="above the limit"):
        decoder.receive_data(data[:FRAME_HEADER_BYTES])
    assert len(FrameDecoder(max_frame_bytes=len(data)).receive_data(data)) == 1


def test_a_peer_that_names_itself_is_a_violation() -> None:
    heartbeat = HeartbeatRequest(sender=VOTER, term=1, round=1, committed_index=0)
    control = msgspec.msgpack.encode(("g", heartbeat))
    with pytest.raises(ProtocolViolation, match="names its sender"):
        FrameDecoder().receive_data(sealed(control))


def test_after_a_violation_nothing_is_taken_any_more() -> None:
    decoder = FrameDecoder()
    with pytest.raises(ProtocolViolation):
        decoder.receive_data(b"x" * 100)
    with pytest.raises(ProtocolViolation):
        decoder.receive_data(frame_of(StatusRequest()))


def test_long_runs_of_random_cuts_reuse_the_receive_buffer() -> None:
    seeded = random.Random(7)
    decoder = FrameDecoder()
    sent = received = 0
    data = b""
    for _ in range(300):
        body = bytes(seeded.randrange(0, 40_000))
        data += frame_of(AppendRequest(request_id=sent), EntryBatch.from_bodies([body]))
        sent += 1
        cut = seeded.randrange(0, len(data) + 1)
        for frame in decoder.receive_data(data[:cut]):
            assert frame.message.request_id == received  # type: ignore[union-attr]
            received += 1
        data = data[cut:]
    received += len(decoder.receive_data(data))
    assert received == sent


def test_a_large_control_part_is_not_copied() -> None:
    """An answer of megabytes was copied three times over."""
    response = MachineReadResponse(answer=bytes(LARGE_FRAME_BYTES + 1), applied_index=7)
    head, control = encode_frame("default", response)
    assert len(head) == FRAME_HEADER_BYTES
    (frame,) = FrameDecoder().receive_data(b"".join((head, control)))
    assert frame.message == response
