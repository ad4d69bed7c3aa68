"""HTTP/2 as clients say it: by another implementation, byte by byte, and as nobody should."""

from __future__ import annotations

from random import Random

import h2.config
import h2.connection
import h2.events
import h2.settings
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumlog.kv.etcd import http2
from quorumlog.kv.etcd.http2 import (
    PREFACE,
    WINDOW_BYTES,
    Began,
    Data,
    Ended,
    Event,
    Http2,
    Http2Violation,
    Leaves,
    Reset,
    WindowOpened,
    frame,
    packed,
)

SETTINGS = frame(4, 0, 0)
HEADS = [(":method", "POST"), (":scheme", "http"), (":authority", "x"), (":path", "/a")]


def client() -> h2.connection.H2Connection:
    made = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True))
    made.initiate_connection()
    return made


def begun() -> Http2:
    server = Http2()
    server.receive(PREFACE + SETTINGS)
    return server


def sent(server: Http2) -> bytes:
    return b"".join(server.take_out())


def test_a_request_and_its_answer_go_between_two_implementations() -> None:
    there, server = client(), Http2()
    for number in (1, 3, 5):
        there.send_headers(number, [*HEADS, ("token", f"t{number}")])
        there.send_data(number, b"question", end_stream=True)
        events = server.receive(there.data_to_send())
        assert [each for each in events if not isinstance(each, WindowOpened)] == [
            Began(number, {name.encode(): v.encode() for name, v in [*HEADS, ("token", f"t{number}")]}),
            Data(number, b"question"),
            Ended(number),
        ]
        server.send_headers(number, packed([(":status", "200"), ("content-type", "x")]))
        server.send_data(number, b"answer")
        server.end(number, packed([("grpc-status", "0")]))
        told = there.receive_data(sent(server))
        (response,) = [each for each in told if isinstance(each, h2.events.ResponseReceived)]
        assert dict(response.headers) == {b":status": b"200", b"content-type": b"x"}
        (data,) = [each for each in told if isinstance(each, h2.events.DataReceived)]
        assert data.data == b"answer"
        (trailers,) = [each for each in told if isinstance(each, h2.events.TrailersReceived)]
        assert dict(trailers.headers) == {b"grpc-status": b"0"}


names = st.sampled_from(["token", "a", "grpc-timeout", "user-agent"])
values = st.sampled_from(["", "1", "2", "x" * 200])
requests = st.lists(st.dictionaries(names, values), min_size=1, max_size=12)


@given(requests=requests, seed=st.integers(0, 1000))
def test_headers_are_those_that_were_said_however_they_come(
    requests: list[dict[str, str]], seed: int
) -> None:
    """The table that both keep moves with each new header; bytes come whole, or in pieces."""
    there, random = client(), Random(seed)
    for number, headers in enumerate(requests):
        there.send_headers(2 * number + 1, [*HEADS, *headers.items()], end_stream=True)
    data = there.data_to_send()

    def heard(pieces: list[bytes]) -> list[Event]:
        server = Http2()
        return [event for piece in pieces for event in server.receive(piece)]

    expected = []
    for number, headers in enumerate(requests):
        said = {name.encode(): value.encode() for name, value in [*HEADS, *headers.items()]}
        expected += [Began(2 * number + 1, said), Ended(2 * number + 1)]
    cuts = sorted(random.randrange(len(data)) for _ in range(10))
    pieces = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
    for each in ([data], [bytes([byte]) for byte in data], pieces):
        assert [event for event in heard(each) if not isinstance(event, WindowOpened)] == expected


@given(st.binary(max_size=400))
def test_garbage_ends_the_connection_and_nothing_else(garbage: bytes) -> None:
    for before in (b"", PREFACE, PREFACE + SETTINGS):
        server = Http2()
        try:
            server.receive(before)
            server.receive(garbage)
        except Http2Violation as violation:
            assert violation.last_words


@given(st.integers(0, 10), st.integers(0, 255), st.integers(0, 5), st.binary(max_size=40))
def test_frames_that_are_half_right_end_the_connection_at_most(
    kind: int, flags: int, stream: int, payload: bytes
) -> None:
    there, server = client(), Http2()
    there.send_headers(1, HEADS)
    server.receive(there.data_to_send())
    try:
        for _ in range(3):
            server.receive(frame(kind, flags, stream, payload))
        server.send_data(1, b"x" * server.room(1))
        server.end(1, packed([("grpc-status", "0")]))
    except Http2Violation as violation:
        assert violation.last_words


def headers_frame(stream: int, flags: int = 4, block: bytes | None = None) -> bytes:
    return frame(1, flags, stream, packed(HEADS) if block is None else block)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (headers_frame(2), "a stream of a server"),
        (headers_frame(0), "headers of no stream"),
        (frame(0, 0, 1, b"x"), "data of no stream"),
        (frame(3, 0, 1, b"1234"), "a reset of no stream"),
        (frame(3, 0, 0, b"1234"), "a reset of no stream"),
        (headers_frame(1, flags=0) + frame(6, 0, 0, bytes(8)), "between the parts of headers"),
        (frame(9, 4, 1), "a part of no headers"),
        (headers_frame(1, flags=0) + frame(9, 0, 3), "between the parts of headers"),
        (headers_frame(1, flags=0, block=b"") + frame(9, 0, 1) * 65, "headers without end"),
        (headers_frame(1, flags=0) + frame(9, 0, 1, bytes(16_000)) * 2, "headers without end"),
        (headers_frame(1, block=b"\xff\xff\xff\xff\x7f"), "headers that cannot be read"),
        (headers_frame(1, block=b"\x80"), "headers that cannot be read"),
        (headers_frame(1, flags=4 | 8, block=b"\x05abc"), "more padding than there is"),
        (headers_frame(1, flags=4 | 0x20, block=b"abc"), "a priority is cut off"),
        (headers_frame(1) * 2, "headers within a stream"),
        (headers_frame(1, flags=5) + frame(0, 0, 1, b"x"), "behind the end of a stream"),
        (frame(4, 0, 1), "settings that are none"),
        (frame(4, 0, 0, b"12345"), "settings that are none"),
        (frame(4, 0, 0, bytes([0, 4, 255, 255, 255, 255])), "a window is too large"),
        (frame(4, 0, 0, bytes([0, 5, 0, 0, 0, 1])), "no size of frames"),
        (frame(5, 0, 1, bytes(4)), "a client promises nothing"),
        (frame(6, 0, 0, bytes(7)), "a ping that is none"),
        (frame(6, 0, 1, bytes(8)), "a ping that is none"),
        (frame(8, 0, 0, bytes(4)), "a window opens by nothing"),
        (frame(8, 0, 0, bytes(3)), "a window opens by nothing"),
        (frame(8, 0, 1, b"\0\0\0\1"), "a window opens by nothing"),
        (frame(8, 0, 0, b"\x7f\xff\xff\xff"), "a window is too large"),
        ((1 << 14 | 1).to_bytes(3, "big") + bytes(6), "a frame of 16385 bytes"),
    ],
)
def test_what_no_client_says_is_named_in_the_last_words(said: bytes, words: str) -> None:
    server = begun()
    sent(server)
    with pytest.raises(Http2Violation, match=words) as violated:
        server.receive(said)
    assert words.encode() in violated.value.last_words
    assert violated.value.last_words[3] == 7, "GOAWAY"


def test_a_connection_begins_with_the_preface_and_settings() -> None:
    with pytest.raises(Http2Violation, match="no preface"):
        Http2().receive(b"PRI * HTTP/1")
    with pytest.raises(Http2Violation, match="no settings come first"):
        Http2().receive(PREFACE + frame(6, 0, 0, bytes(8)))


def test_what_is_sent_stays_within_the_windows_of_the_client() -> None:
    server = begun()
    server.receive(frame(4, 0, 0, bytes([0, 4, 0, 0, 0, 100])))
    server.receive(headers_frame(1, flags=5))
    assert server.room(1) == 100
    server.send_data(1, bytes(60))
    assert server.room(1) == 40
    server.receive(frame(4, 0, 0, bytes([0, 4, 0, 0, 0, 10])))
    assert server.room(1) == -50, "a window that was made smaller"
    assert server.receive(frame(8, 0, 1, (1000).to_bytes(4, "big"))) == [WindowOpened(1)]
    assert server.room(1) == 950
    server.receive(frame(8, 0, 1, (10**6).to_bytes(4, "big")))
    assert server.room(1) == 1 << 14, "a frame"
    for _ in range(3):
        server.send_data(1, bytes(1 << 14))
    assert server.room(1) == 65_535 - 60 - 3 * (1 << 14), "of the connection"


def test_windows_that_a_client_has_used_are_opened_again() -> None:
    there, server = client(), Http2()
    there.send_headers(1, HEADS)
    server.receive(there.data_to_send())
    there.receive_data(sent(server))
    came = 0
    while came < 3 * WINDOW_BYTES:
        room = min(there.local_flow_control_window(1), there.max_outbound_frame_size)
        assert room > 0, came
        there.send_data(1, bytes(room))
        came += room
        server.receive(there.data_to_send())
        there.receive_data(sent(server))


def test_streams_that_are_answered_or_reset_make_room_for_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http2, "MOST_STREAMS", 2)
    server = begun()
    server.receive(headers_frame(1) + headers_frame(3))
    assert server.receive(frame(3, 0, 1, bytes(4))) == [Reset(1)]
    server.receive(headers_frame(5))
    sent(server)
    server.end(3, packed([("grpc-status", "0")]))
    assert sent(server).endswith(frame(3, 0, 3, bytes(4))), "it need not say more"
    assert server.receive(frame(0, 0, 3, b"late")) == [] and server.room(3) == 0
    assert server.receive(headers_frame(3, flags=5)) == [], "trailers of one that is over"
    server.receive(headers_frame(7))
    with pytest.raises(Http2Violation, match="too many streams"):
        server.receive(headers_frame(9))


def test_what_changes_nothing_is_passed_over() -> None:
    server = begun()
    sent(server)
    assert server.receive(frame(2, 0, 1, bytes(5)) + frame(77, 1, 9, b"new")) == []
    assert server.receive(frame(4, 1, 0)) == [] and sent(server) == b""
    server.receive(frame(6, 0, 0, b"12345678"))
    assert sent(server) == frame(6, 1, 0, b"12345678")
    assert server.receive(frame(7, 0, 0, bytes(8))) == [Leaves()]
    assert server.receive(headers_frame(1, 4 | 8, b"\2" + packed(HEADS) + b"\0\0"))[0].stream == 1
    assert server.receive(frame(0, 8, 1, b"\3dat\0\0\0")) == [Data(1, b"dat")]
