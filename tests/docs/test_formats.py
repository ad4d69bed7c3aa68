"""docs/formats.md says what the code writes: offsets and sizes, message fields, codes, golden bytes."""

from __future__ import annotations

import json
import re
import struct
import typing
from enum import IntEnum
from pathlib import Path

import msgspec
import numpy as np
import pytest

from quorumlog import errors
from quorumlog.batch import EntryBatch
from quorumlog.broker.groups import group_state
from quorumlog.broker.replication import replica_file
from quorumlog.cli.carry import export_format
from quorumlog.consensus.messages import AnyPeerMessage, PushResult, PushType, VoteResult
from quorumlog.entry import EntryKind, Replica
from quorumlog.errors import LedgerError
from quorumlog.header_array import HEADER_DTYPE
from quorumlog.kv.store.machine import KeyValueMachine
from quorumlog.log_state import control_entries
from quorumlog.net import frame, hello
from quorumlog.net.errors import ErrorResponse
from quorumlog.net.frame import FrameDecoder
from quorumlog.net.hello import Greeting
from quorumlog.pipelines import archive
from quorumlog.store import durable_file, segments, slot_file, state_files
from quorumlog.store.durable_file import DURABLE_MAGIC, decode_durable_point
from quorumlog.store.segments import INDEX_DTYPE, scan_segment
from quorumlog.store.slot_file import SLOT_BYTES, SLOT_FILE_BYTES, decode_sector
from quorumlog.store.state_files import (
    HARD_STATE_MAGIC,
    BackupRecord,
    decode_checkpoint,
    decode_hard_state,
    decode_member,
    encode_member,
)
from quorumlog.wire.client_messages import (
    AnyClientMessage,
    AppendRequest,
    MemberInfo,
    ReaderInfo,
    SegmentInfo,
)
from tests.docs.golden_directory import (
    BODY,
    DIRECTORY_ID,
    ENTRIES,
    EXPORT_NAME,
    FRAME_NAME,
    GOLDEN,
    OWN,
    write_golden,
    written_bytes,
)
from tests.docs.markdown import DOCS, Row, section, tables

TEXT = (DOCS / "formats.md").read_text()
Layout = list[tuple[int, int, str]]


def layout_of(heading: str) -> Layout:
    """(offset, bytes, field) of the rows of a byte table that have a fixed place and size."""
    rows = tables(section(TEXT, heading))[0]
    return [
        (int(row["offset"]), int(row["bytes"]), row["field"])
        for row in rows
        if row["offset"].isdigit() and row["bytes"].isdigit()
    ]


def test_the_numbers_of_the_formats_are_those_of_this_release() -> None:
    (rows,) = tables(section(TEXT, "Numbers of the formats"))
    assert {row["what"]: int(row["number"]) for row in rows} == {
        "`protocol` of a greeting": hello.PROTOCOL_VERSION,
        "`level` of a log's entries": control_entries.LEVEL,
        "member": state_files.MEMBER_VERSION,
        "backup": state_files.BACKUP_VERSION,
        "an export file": export_format.VERSION,
        "an archive's manifest": archive.VERSION,
        "the key-value store's state machine": KeyValueMachine.version,
        "the state of consumer groups": group_state.FORMAT,
        "a broker's `replica`": replica_file.FORMAT,
    }


def test_every_kind_of_entry_has_its_row() -> None:
    _, rows = tables(section(TEXT, "Data entry"))
    assert [(int(row["magic"]), row["kind"]) for row in rows] == [
        (kind, kind.name) for kind in EntryKind
    ]


def layout_of_dtype(dtype: np.dtype[typing.Any]) -> Layout:
    assert dtype.fields is not None
    return [(field[1], field[0].itemsize, name) for name, field in dtype.fields.items()]


def layout_of_struct(packed: struct.Struct, names: list[str]) -> Layout:
    order, codes = packed.format[0], re.findall(r"\d*[a-zA-Z]", packed.format[1:])
    assert order in "<>", packed.format
    assert len(codes) == len(names) or packed.format == "<4sIIIII", (packed.format, names)
    layout, offset = [], 0
    for code, name in zip(codes, names, strict=True):
        size = struct.calcsize(order + code)
        layout.append((offset, size, name))
        offset += size
    return layout


# ---------------------------------------------------------------- byte tables


@pytest.mark.parametrize(
    ("heading", "dtype"), [("Data entry", HEADER_DTYPE), ("Index file", INDEX_DTYPE)]
)
def test_tables_of_numpy_records(heading: str, dtype: np.dtype[typing.Any]) -> None:
    assert layout_of(heading) == layout_of_dtype(dtype)
    assert all(field[0].str[0] == ">" for field in dtype.fields.values())


def test_table_of_the_blank_record() -> None:
    assert layout_of("Blank record") == layout_of_struct(segments._SHAPE, ["magic", "size"])
    assert segments.blank_record(232) == struct.pack(">ii", -1, 232)


def test_table_of_a_slot() -> None:
    head = layout_of_struct(slot_file._HEAD, ["magic", "sequence"])
    payload_offset = slot_file._HEAD.size
    crc_offset = payload_offset + slot_file.PAYLOAD_BYTES
    assert layout_of("Slot") == [
        *head,
        (payload_offset, slot_file.PAYLOAD_BYTES, "payload"),
        (crc_offset, slot_file._CRC.size, "crc"),
    ]
    assert crc_offset + slot_file._CRC.size == slot_file.SECTOR_BYTES


def test_table_of_the_hard_state() -> None:
    names = ["term", "has_vote", "member_bytes", "directory_bytes"]
    assert layout_of("Hard state") == layout_of_struct(state_files._HEAD, names)


def test_table_of_the_durable_point() -> None:
    names = ["index", "term", "chain", "position", "index_synced_position", "directory_bytes"]
    assert layout_of("Durable point") == layout_of_struct(durable_file._PAYLOAD, names)


def test_tables_of_an_export_file() -> None:
    head, record, end_mark = (
        [(int(row["offset"]), int(row["bytes"]), row["field"]) for row in rows if row["bytes"].isdigit()]
        for rows in tables(section(TEXT, "Export file"))
    )
    names = ["magic", "version", "first_index", "group_bytes", "crc"]
    assert head == layout_of_struct(export_format._HEAD, names)
    assert record == layout_of_struct(export_format._RECORD, ["body_bytes", "crc", "index", "term"])
    names = ["body_bytes", "crc", "last_index", "records"]
    assert end_mark == layout_of_struct(export_format._RECORD, names)


def test_the_golden_export_is_read() -> None:
    with (GOLDEN / EXPORT_NAME).open("rb") as file:
        reader = export_format.ExportReader(file)
        (record,) = reader.records()
    assert (reader.group, reader.first_index, reader.ending) == ("g", 0, (1, 1))
    assert (record.index, record.term, record.body) == (1, 1, b"hello")


def test_table_of_the_frame_header() -> None:
    names = ["magic", "control_crc", "batch_crc", "frame_bytes", "control_bytes", "count"]
    assert layout_of("Frame header") == layout_of_struct(frame._HEADER, names)
    assert frame.DEFAULT_MAX_FRAME_BYTES == 16 * 1024 * 1024


def test_keys_of_the_text_files() -> None:
    (rows,) = tables(section(TEXT, "Member"))
    line = (GOLDEN / "member").read_bytes().partition(b"\n")[0]
    assert [row["key"] for row in rows] == list(json.loads(line))
    (rows,) = tables(section(TEXT, "Backup"))
    assert [row["key"] for row in rows] == list(BackupRecord.__struct_fields__)
    (rows,) = tables(section(TEXT, "Checkpoint"))
    lines = (GOLDEN / "checkpoint").read_text().splitlines()
    assert [row["key"] for row in rows] == [line.partition("=")[0] for line in lines]


# ---------------------------------------------------------------- messages and codes


def message_rows(heading: str) -> list[tuple[int, str, str]]:
    rows = next(t for t in tables(section(TEXT, heading)) if "message" in t[0])
    return [(int(row["tag"]), row["message"], row["fields"]) for row in rows]


@pytest.mark.parametrize(
    ("heading", "union"),
    [
        ("Peer messages", AnyPeerMessage),
        ("Client messages", Greeting | ErrorResponse | AnyClientMessage),
    ],
)
def test_every_message_has_its_row(heading: str, union: typing.Any) -> None:
    expected = []
    for message in typing.get_args(union):
        info = msgspec.inspect.type_info(message)
        assert isinstance(info, msgspec.inspect.StructType)
        assert info.array_like
        expected.append((info.tag, message.__name__, ", ".join(message.__struct_fields__)))
    assert message_rows(heading) == sorted(expected)


def test_the_fields_of_member_info() -> None:
    stated = section(TEXT, "Client messages").partition("list of MemberInfo: ")[2]
    fields = re.split(r",\s+", stated.partition(".")[0])
    assert fields == list(MemberInfo.__struct_fields__)


def test_the_fields_of_readers_and_of_segments() -> None:
    for kind in (ReaderInfo, SegmentInfo):
        stated = section(TEXT, "Client messages").partition(f"list of {kind.__name__}: ")[2]
        fields = re.split(r",\s+", stated.partition(".")[0])
        assert fields == list(kind.__struct_fields__)


@pytest.mark.parametrize(
    ("column", "values"), [("push", PushType), ("push result", PushResult), ("vote result", VoteResult)]
)
def test_every_value_of_an_enum_has_its_row(column: str, values: type[IntEnum]) -> None:
    rows: list[Row] = next(t for t in tables(section(TEXT, "Peer messages")) if column in t[0])
    assert [(row[column], int(row["value"])) for row in rows] == [(v.name, int(v)) for v in values]


def test_every_code_of_a_hello_response_has_its_row() -> None:
    rows = next(t for t in tables(section(TEXT, "Client messages")) if "Hello code" in t[0])
    stated = {row["Hello code"]: int(row["value"]) for row in rows}
    names = ("WELCOME", "NOT_SERVED", "REFUSED", "UNSETTLED", "DUPLICATE")
    assert stated == {name: getattr(hello, name) for name in names}


def test_every_error_has_its_code() -> None:
    (rows,) = tables(section(TEXT, "Response codes"))
    stated = [(int(row["code"]), row["error"], row["retriable"]) for row in rows]
    classes = [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, LedgerError) and value.code >= 0
    ]
    assert stated == sorted(
        (error.code, error.__name__, "yes" if error.retriable else "no") for error in classes
    )


# ---------------------------------------------------------------- golden files


def golden(name: str) -> bytes:
    return (GOLDEN / name).read_bytes()


FIRST, SECOND = "0" * 20, "00000000000000001024"


def test_the_code_writes_the_golden_files_today(tmp_path: Path) -> None:
    write_golden(tmp_path)
    assert written_bytes(tmp_path) == written_bytes(GOLDEN)


def fields_at(heading: str, data: bytes, position: int) -> dict[str, int]:
    """The integers that the document's table finds at `position`."""
    return {
        field: int.from_bytes(data[position + offset : position + offset + size], "big", signed=True)
        for offset, size, field in layout_of(heading)
    }


def test_the_tables_read_the_golden_segments() -> None:
    data = golden(f"data/{FIRST}") + golden(f"data/{SECOND}")
    index = golden(f"index/{FIRST}")
    assert len(data) == 2048
    positions = [0, 48, 296, 544, 1024, 1272, 1520]
    assert len(positions) == ENTRIES + 1
    for i, position in enumerate(positions):
        size = 248 if i else 48
        entry = fields_at("Data entry", data, position)
        unit = fields_at("Index file", index, i * 32)
        assert entry["magic"] == unit["magic"] == (1 if i else 2)
        assert entry["size"] == unit["size"] == size
        assert entry["index"] == unit["index"] == i
        assert entry["term"] == unit["term"] == 1
        assert entry["pos"] == unit["position"] == position
        assert entry["body_len"] == size - 48
        assert data[position + 48 : position + size] == BODY[: size - 48]
    assert fields_at("Blank record", data, 792) == {"magic": -1, "size": 232}
    assert data[1768:] == bytes(280)


def chain_by_the_document(entry: dict[str, int], previous: int) -> int:
    """The formula of the section "Data entry", line by line."""
    m64, m32 = (1 << 64) - 1, (1 << 32) - 1
    s = (entry["index"] * 0x9E3779B97F4A7C15 + entry["term"] * 0xD1B54A32D192ED03) & m64
    s = (s + (entry["magic"] << 32 | entry["size"]) * 0x8CB92BA72F3D8DD7) & m64
    s = (s + (entry["channel"] << 32 | entry["body_crc"] & m32) * 0xAEF17502108EF2D9) & m64
    s = ((s ^ s >> 30) * 0xBF58476D1CE4E5B9) & m64
    s = ((s ^ s >> 27) * 0x94D049BB133111EB) & m64
    return (previous + ((s ^ s >> 31) & m32)) & m32


def test_the_chain_of_the_golden_segment_follows_the_formula() -> None:
    data = golden(f"data/{FIRST}") + golden(f"data/{SECOND}")
    chain = 0
    for position in (0, 48, 296, 544, 1024, 1272, 1520):
        entry = fields_at("Data entry", data, position)
        chain = chain_by_the_document(entry, chain)
        assert entry["chain_crc"] & 0xFFFFFFFF == chain
    constants = re.findall(r"0x[0-9A-F]{16}", section(TEXT, "Data entry"))
    assert constants == [
        "0x9E3779B97F4A7C15",
        "0xD1B54A32D192ED03",
        "0x8CB92BA72F3D8DD7",
        "0xAEF17502108EF2D9",
        "0xBF58476D1CE4E5B9",
        "0x94D049BB133111EB",
    ]


def test_the_scanner_reads_the_golden_segment() -> None:
    scan = scan_segment(
        memoryview(golden(f"data/{FIRST}")),
        0,
        0,
        expected_index=0,
        previous_term=-1,
        previous_chain=0,
        check_bodies=True,
    )
    assert (len(scan.sizes), scan.stop, scan.end_position) == (4, "blank", 792)


def test_the_hex_in_the_document_is_in_the_golden_files() -> None:
    lines = re.findall(
        r"^(data|index) +@(\d+) +(?:noop \d|entry \d|blank|unit \d) +([0-9a-f ]+)$",
        section(TEXT, "Golden bytes"),
        re.MULTILINE,
    )
    assert len(lines) == 6
    for folder, position, digits in lines:
        data = golden(f"{folder}/{FIRST}")
        expected = bytes.fromhex(digits.replace(" ", ""))
        assert data[int(position) : int(position) + len(expected)] == expected, (folder, position)


def test_the_golden_slots() -> None:
    for name, magic in (("hardstate", HARD_STATE_MAGIC), ("durable", DURABLE_MAGIC)):
        data = golden(name)
        assert len(data) == SLOT_FILE_BYTES == 8192
        assert f"`{magic.decode()}`" in section(TEXT, "Slot")
        slots = [decode_sector(magic, data[at : at + 512]) for at in (0, SLOT_BYTES)]
        assert all(slots), name
        payload = max(slot for slot in slots if slot)[1]
        if name == "hardstate":
            assert decode_hard_state(payload) == (1, OWN)
            assert fields_at("Hard state", payload, 0) == {
                "term": 1,
                "has_vote": 1,
                "member_bytes": 2,
                "directory_bytes": 32,
            }
            assert payload[11 : 11 + 34] == b"n0" + DIRECTORY_ID.encode()
        else:
            fields = fields_at("Durable point", payload, 0)
            point = decode_durable_point(payload)
            assert (fields["index"], fields["term"], fields["position"]) == (ENTRIES, 1, 1768)
            assert fields["index_synced_position"] == point.index_synced_position
            assert fields["chain"] & 0xFFFFFFFF == point.point.chain


def test_the_golden_text_files() -> None:
    record = decode_member(golden("member"))
    assert (record.group, record.member_id, record.directory_id) == ("g", "n0", DIRECTORY_ID)
    assert (record.segment_bytes, record.index_segment_bytes, record.checked) == (1024, 256, True)
    assert record.formation.founding == (Replica("n0", DIRECTORY_ID),)
    assert encode_member(record) == golden("member")
    checkpoint = decode_checkpoint(golden("checkpoint"))
    assert checkpoint is not None
    assert (checkpoint.end_index, checkpoint.committed_index, checkpoint.committed_term) == (6, 6, 1)


def test_the_golden_frame() -> None:
    data = golden(FRAME_NAME)
    little = {
        field: int.from_bytes(data[offset : offset + size], "little")
        for offset, size, field in layout_of("Frame header")
    }
    assert data[:4] == b"QLG\x01"
    assert little["frame_bytes"] == len(data)
    assert little["count"] == 1
    (frame,) = FrameDecoder().receive_data(data)
    assert frame.group == "g"
    assert frame.message == AppendRequest(request_id=7, timeout_ms=5000)
    assert isinstance(frame.batch, EntryBatch)
    assert [bytes(body) for body in frame.batch.bodies()] == [b"hello"]
    entries_at = 24 + little["control_bytes"] + 4 * little["count"]
    assert data[entries_at:] == bytes(EntryBatch.from_bodies([b"hello"]).buffer)
