"""The 48-byte header of an entry, and its digest for the chain: one entry, Python ints.

    offset  bytes  field       (big-endian; docs/formats.md, data entry)
         0      4  magic       its kind: `quorumlog.entry.EntryKind`
         4      4  size        48 + body length
         8      8  index
        16      8  term
        24      8  pos         byte position in the log
        32      4  channel     of the state machine that takes the entry; 0: none
        36      4  chain_crc   running digest of the log up to and with this entry
        40      4  body_crc    CRC-32 of the body
        44      4  body_len
        48      n  body

`quorumlog.batch` does the same for many entries at once with numpy, whose fixed costs are above those of
a single entry; a test holds the two together.
"""

from __future__ import annotations

import struct

import msgspec

Buffer = bytes | bytearray | memoryview

HEADER_BYTES = 48
CHAIN_OFFSET = 36

MIX_INDEX = 0x9E3779B97F4A7C15
MIX_TERM = 0xD1B54A32D192ED03
MIX_SHAPE = 0x8CB92BA72F3D8DD7
MIX_BODY = 0xAEF17502108EF2D9
MIX_FIRST = 0xBF58476D1CE4E5B9
MIX_SECOND = 0x94D049BB133111EB
"""Odd constants: a change of one field changes the 64-bit state of the mix for certain."""

_HEADER = struct.Struct(">iiqqqiIIi")
assert _HEADER.size == HEADER_BYTES
_MASK_64 = (1 << 64) - 1
_MASK_32 = (1 << 32) - 1


class EntryHeader(msgspec.Struct, frozen=True, array_like=True, gc=False):
    magic: int
    size: int
    index: int
    term: int
    pos: int
    channel: int
    chain_crc: int
    body_crc: int
    body_len: int

    @property
    def digest(self) -> int:
        """d(i), this entry's digest for the chain: one splitmix64 finaliser over its fields."""
        z = (
            self.index * MIX_INDEX
            + self.term * MIX_TERM
            + ((self.magic << 32) | self.size) * MIX_SHAPE
            + ((self.channel << 32) | self.body_crc) * MIX_BODY
        ) & _MASK_64
        z = ((z ^ (z >> 30)) * MIX_FIRST) & _MASK_64
        z = ((z ^ (z >> 27)) * MIX_SECOND) & _MASK_64
        return (z ^ (z >> 31)) & _MASK_32

    def chain_after(self, previous_chain: int) -> int:
        return (previous_chain + self.digest) & _MASK_32

    @property
    def chain_before(self) -> int:
        """The chain that this entry continues, by its own word."""
        return (self.chain_crc - self.digest) & _MASK_32

    def pack_into(self, buffer: Buffer, chain_crc: int) -> None:
        """With another `chain_crc`, to the front of a writable buffer."""
        _HEADER.pack_into(
            buffer,
            0,
            self.magic,
            self.size,
            self.index,
            self.term,
            self.pos,
            self.channel,
            chain_crc,
            self.body_crc,
            self.body_len,
        )


def unpack_header(buffer: Buffer, offset: int = 0) -> EntryHeader:
    return EntryHeader(*_HEADER.unpack_from(buffer, offset))
