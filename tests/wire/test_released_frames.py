"""What a release has said and written is understood, and goes out as that release knows it: a group is
upgraded one member at a time, and its directories stay."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from quorumlog.broker import group_commands
from quorumlog.broker.replication import links as ha
from quorumlog.broker.replication import links as old
from quorumlog.broker.wire import broker_decoder, encode
from quorumlog.entry import EntryKind
from quorumlog.kv import requests as operations
from quorumlog.kv.requests import answer_to_old_greeting
from quorumlog.log_state.control_entries import BODIES, decode_body, encode_body
from quorumlog.net.frame import FRAME_HEADER_BYTES, FrameDecoder, encode_frame
from tests.wire.released_frames import DIALECTS as MAKERS

RELEASES = Path(__file__).parent.parent / "fixtures" / "wire"
LINES = [
    (release.name, *line.split())
    for release in sorted(RELEASES.iterdir())
    for line in release.read_text().splitlines()
]


def lines_of(dialect: str) -> list[Any]:
    return [
        pytest.param(name, bytes.fromhex(data), id=f"{release}-{name}")
        for release, of, name, data in LINES
        if of == dialect
    ]


def same_but_for_new_fields(old: Any, new: Any) -> bool:
    """`new` is `old` with fields behind its own, in whatever struct of it."""
    if isinstance(old, list) and isinstance(new, list):
        return len(old) <= len(new) and all(map(same_but_for_new_fields, old, new))
    if isinstance(old, dict) and isinstance(new, dict):
        return all(key in new and same_but_for_new_fields(value, new[key]) for key, value in old.items())
    return bool(old == new)


def control_of(frame: bytes) -> Any:
    size = int.from_bytes(frame[16:20], "little")
    return msgspec.msgpack.decode(frame[FRAME_HEADER_BYTES : FRAME_HEADER_BYTES + size])


@pytest.mark.parametrize(("name", "data"), lines_of("log"))
def test_a_message_of_the_log_is_the_same_in_both_directions(name: str, data: bytes) -> None:
    decoder = FrameDecoder()
    (frame,) = decoder.receive_data(data)
    assert decoder.is_between_frames
    assert type(frame.message).__name__ == name.partition("+")[0]
    assert (frame.batch is not None) == name.endswith("+batch")
    again = b"".join(encode_frame(frame.group, frame.message, frame.batch))
    assert same_but_for_new_fields(control_of(data), control_of(again))
    if control_of(data) == control_of(again):
        assert again == data


@pytest.mark.parametrize(("name", "data"), lines_of("control"))
def test_the_body_of_a_control_entry_is_the_same_byte_for_byte(name: str, data: bytes) -> None:
    (kind,) = (kind for kind, body in BODIES.items() if body.__name__ == name)
    body = decode_body(EntryKind(kind), data)
    assert type(body).__name__ == name
    assert encode_body(body) == data  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "data"), lines_of("command"))
def test_a_command_in_an_entry_is_the_same_byte_for_byte(name: str, data: bytes) -> None:
    product, _, kind = name.partition(".")
    decoders: dict[str, tuple[Callable[[bytes], Any], ...]] = {
        "store": (operations.decode_command, operations.decode_question),
        "group": (group_commands.decode_command, group_commands.decode_question),
    }
    decoded = [said for said in _each(decoders[product], data) if type(said).__name__ == kind]
    assert decoded
    assert all(msgspec.msgpack.encode(said) == data for said in decoded)


def _each(decoders: tuple[Callable[[bytes], Any], ...], data: bytes) -> Iterator[Any]:
    for decode in decoders:
        try:
            yield decode(data)
        except Exception:
            continue


@pytest.mark.parametrize(("name", "data"), lines_of("greeting"))
def test_the_greeting_of_another_port_is_known(name: str, data: bytes) -> None:
    if name.startswith("Broker"):
        (frame,) = broker_decoder().receive_data(data)
        assert type(frame.message).__name__ == name.replace("Broker", "Earlier")
        again = b"".join(encode(frame.message))  # type: ignore[arg-type]
        assert same_but_for_new_fields(control_of(data), control_of(again))
    else:
        assert (answer_to_old_greeting(data) is not None) == (name == "StoreHello")


@pytest.mark.parametrize(("name", "data"), lines_of("ha"))
def test_a_frame_of_replication_is_the_same_in_both_directions(name: str, data: bytes) -> None:
    """Of the release before, which spoke one of its own."""
    ((kind, payload),) = old.OldFrames().feed(data)
    if name == "Data":
        epoch, run, offset, confirm, _ = old._DATA.unpack_from(payload)
        body = payload[old._DATA.size :]
        said = ha.Data(offset=offset, confirm_offset=confirm, body=body)
        assert b"".join(old.encode_data(epoch, run, said)) == data
    elif name == "Heartbeat":
        epoch, run, end, confirm = old._HEARTBEAT.unpack(payload)
        beat = ha.Heartbeat(max_offset=end, confirm_offset=confirm)
        assert old.encode_heartbeat(epoch, run, beat) == data
    elif name == "Report":
        epoch, written, flushed, version = old._REPORT.unpack(payload)
        report = ha.Report(written_offset=written, flushed_offset=flushed)
        assert old.encode_report(epoch, report, version) == data
    else:
        message = old.decoded_control(kind, payload)
        assert type(message).__name__ == f"{name}1"
        known = msgspec.msgpack.decode(payload)
        for peer in (known.get("slave"), known.get("master"), *known.get("counted", [])):
            if peer is not None:
                del peer["has_to_join"]  # false where it is not said
        again = old.encode_control(message)
        assert again[4] == data[4]
        assert same_but_for_new_fields(known, msgspec.msgpack.decode(again[5:]))


@pytest.mark.parametrize("dialect", MAKERS)
def test_whatever_is_said_today_can_be_written_down_for_the_next_release(dialect: str) -> None:
    names = {name for name, _ in MAKERS[dialect]()}
    said = {name for _, of, name, _ in LINES if of == dialect}
    assert said - {"StoreHello", "StoreWelcome"} <= names, "the store says the one Hello by now"
