"""AnswerRoom: how many bytes an answer may still take. Who builds one asks before it takes more: what is
above is not built, while the command goes on to its end."""

from __future__ import annotations

import msgspec


class AnswerRoom:
    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self.left_bytes = size_bytes
        """Below 0: the answer is too large, and whatever was built of it goes."""

    def take(self, size_bytes: int) -> bool:
        """False: there is no room for that, nor for anything behind it."""
        self.left_bytes -= size_bytes
        return self.left_bytes >= 0

    @property
    def is_over(self) -> bool:
        return self.left_bytes < 0


class EncodedItems:
    """An array of encoded values, in no more memory than its bytes."""

    def __init__(self, room: AnswerRoom) -> None:
        self._room = room
        self._data = bytearray()
        self.count = 0

    def add(self, item: bytes) -> bool:
        """False: there is no room for it."""
        room = self._room
        room.left_bytes -= len(item)  # as `take`, without a call for each key
        if room.left_bytes < 0:
            self._data.clear()
            return False
        self._data += item
        self.count += 1
        return True

    def encoded(self) -> msgspec.Raw:
        count = self.count
        if count < 16:
            head = bytes([0x90 | count])
        elif count < 1 << 16:
            head = b"\xdc" + count.to_bytes(2, "big")
        else:
            head = b"\xdd" + count.to_bytes(4, "big")
        self._data[:0] = head
        return msgspec.Raw(self._data)
