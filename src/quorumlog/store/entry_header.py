"""One entry header as Python ints: where numpy would cost more than the entry itself.

The bulk twins are `quorumlog.batch.HEADER_DTYPE` and `digests_of`; a test holds both together.
"""

from __future__ import annotations

import struct

import msgspec

from quorumlog.batch import HEADER_BYTES, Buffer

_HEADER = struct.Struct(">iiqqqiIIi")
assert _HEADER.size == HEADER_BYTES
_MASK_64 = (1 << 64) - 1
_MASK_32 = (1 << 32) - 1


class EntryHeader(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Fields in the order of the layout drawn in `quorumlog.batch`."""

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
        """d(i) of `quorumlog.batch`: what this entry adds to the chain."""
        z = (
            self.index * 0x9E3779B97F4A7C15
            + self.term * 0xD1B54A32D192ED03
            + ((self.magic << 32) | self.size) * 0x8CB92BA72F3D8DD7
            + ((self.channel << 32) | self.body_crc) * 0xAEF17502108EF2D9
        ) & _MASK_64
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK_64
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK_64
        return (z ^ (z >> 31)) & _MASK_32

    def continues(self, previous_chain: int) -> bool:
        """Is this entry's chain_crc what follows from the chain of the entry before it?"""
        return self.chain_crc == (previous_chain + self.digest) & _MASK_32


def unpack_header(buffer: Buffer, offset: int = 0) -> EntryHeader:
    return EntryHeader(*_HEADER.unpack_from(buffer, offset))
