"""Golden bytes: docs/formats.md, section 8, with this software's digests in the two CRC fields.

Ten entries of term 1 in data files of 1024 and index files of 256 bytes; entry 3 is a no-op, the
others have bodies of 200 equal bytes.
"""

from __future__ import annotations

import zlib
from pathlib import Path

from quorumlog.batch import EntryBatch
from quorumlog.entry_header import HEADER_BYTES
from tests.store.log_making import append_batch, append_noop, new_store, open_store, read_log, sync

POSITIONS = [0, 248, 496, 744, 1024, 1272, 1520, 1768, 2048, 2296]
MASK = (1 << 64) - 1


def golden_body(index: int) -> bytes:
    return b"" if index == 3 else bytes([0xA0 + index]) * 200


def write_golden_log(directory: str) -> list[int]:
    """Returns chain_crc of each entry as the files hold it."""
    store = new_store(directory)
    for index in range(10):
        if index == 3:
            append_noop(store, 1)
        else:
            append_batch(store, EntryBatch.from_bodies([golden_body(index)]), 1)
    sync(store)
    chains = [store.chain_at(index) for index in range(10)]
    assert [store.range_of(index, 10, 1).position for index in range(10)] == POSITIONS
    store.close()
    return chains


def digest(magic: int, size: int, index: int, term: int, body_crc: int) -> int:
    """d(i) of docs/formats.md, section 1.2, written down once more from the words there."""
    z = index * 0x9E3779B97F4A7C15 + term * 0xD1B54A32D192ED03
    z += (magic << 32 | size) * 0x8CB92BA72F3D8DD7 + body_crc * 0xAEF17502108EF2D9
    z &= MASK
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & MASK
    return (z ^ z >> 31) & 0xFFFFFFFF


def hexadecimal(text: str) -> bytes:
    return bytes.fromhex(text.replace(" ", ""))


def test_data_segments_byte_for_byte(tmp_path: Path) -> None:
    chains = write_golden_log(str(tmp_path))
    expected = bytearray(4096)
    chain = 0
    for index, position in enumerate(POSITIONS):
        body = golden_body(index)
        magic, size = 2 if index == 3 else 1, HEADER_BYTES + len(body)
        body_crc = zlib.crc32(body)
        chain = (chain + digest(magic, size, index, 1, body_crc)) & 0xFFFFFFFF
        assert chain == chains[index]
        header = (
            f"{magic:08x} {size:08x} {index:016x} {1:016x} {position:016x} 00000000"
            f"{chain:08x} {body_crc:08x} {len(body):08x}"
        )
        expected[position : position + size] = hexadecimal(header) + body
    expected[792:800] = hexadecimal("ffffffff 000000e8")
    expected[2016:2024] = hexadecimal("ffffffff 00000020")
    names = [f"{position:020d}" for position in (0, 1024, 2048, 3072)]
    assert sorted(p.name for p in (tmp_path / "data").iterdir()) == names
    assert b"".join((tmp_path / "data" / name).read_bytes() for name in names) == bytes(expected)


def test_named_records_of_the_vector(tmp_path: Path) -> None:
    write_golden_log(str(tmp_path))
    data = (tmp_path / "data" / f"{0:020d}").read_bytes()
    entry = data[248:496]
    assert entry[:36] == hexadecimal(
        "00000001 000000f8 0000000000000001 0000000000000001 00000000000000f8 00000000"
    )
    assert entry[44:] == hexadecimal("000000c8") + b"\xa1" * 200
    assert data[744:780] == hexadecimal(
        "00000002 00000030 0000000000000003 0000000000000001 00000000000002e8 00000000"
    )
    assert data[792:] == hexadecimal("ffffffff 000000e8") + bytes(224)


def test_index_segments_byte_for_byte(tmp_path: Path) -> None:
    write_golden_log(str(tmp_path))
    expected = bytearray(1024)
    for index, position in enumerate(POSITIONS):
        magic, size = (2, 0x30) if index == 3 else (1, 0xF8)
        unit = f"{magic:08x} {position:016x} {size:08x} {index:016x} {1:016x}"
        expected[index * 32 : index * 32 + 32] = hexadecimal(unit)
    names = sorted(p.name for p in (tmp_path / "index").iterdir())
    assert names[:2] == [f"{0:020d}", f"{256:020d}"]
    found = b"".join((tmp_path / "index" / name).read_bytes() for name in names)
    assert found[:1024] == bytes(expected)
    assert not any(found[1024:])


def test_an_exact_fit_leaves_a_blank_of_eight_bytes(tmp_path: Path) -> None:
    store = new_store(str(tmp_path))
    append_batch(store, EntryBatch.from_bodies([b"f" * (1016 - HEADER_BYTES)]), 1)
    first = tmp_path / "data" / f"{0:020d}"
    assert first.read_bytes()[1016:] == bytes(8)
    append_batch(store, EntryBatch.from_bodies([b"g"]), 1)
    assert first.read_bytes()[1016:] == hexadecimal("ffffffff 00000008")
    store.close()
    store, report = open_store(str(tmp_path))
    assert [body for _, _, body in read_log(store)] == [b"f" * 968, b"g"]
    assert report.lines == ()
    store.close()


def test_the_vector_opens_again(tmp_path: Path) -> None:
    write_golden_log(str(tmp_path))
    store, report = open_store(str(tmp_path))
    assert read_log(store) == [(index, 1, golden_body(index)) for index in range(10)]
    assert report.lines == ()
    store.close()
