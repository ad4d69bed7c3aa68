"""JSON lines: `{"index":1,"term":1,"text":"..."}`, or `base64` in place of `text` for what is no UTF-8.

For people and for other programs. Nothing tells whether the end is missing, or whether a byte of a text
has changed; the binary format does.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

import msgspec

from quorumlog.cli.carry.records import Ending, FileDamaged, FileTorn, Record, check_order
from quorumlog.config import FRAME_LIMIT_BYTES
from quorumlog.entry import Entry

MAX_LINE_BYTES = 6 * FRAME_LIMIT_BYTES + 1024
"""JSON writes a byte as six characters at most (`\\u0000`)."""


class Line(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    index: int
    term: int
    text: str | None = None
    base64: str | None = None

    def body(self) -> bytes:
        """Raises ValueError."""
        if (self.text is None) == (self.base64 is None):
            raise ValueError("a line has either text or base64")
        if self.text is not None:
            return self.text.encode()
        assert self.base64 is not None
        return base64.b64decode(self.base64, validate=True)


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Line).decode


class JsonLines:
    name = "jsonl"
    opening = b'{"index":'

    def open(self, file: BinaryIO) -> JsonLinesReader:
        return JsonLinesReader(file)

    def head(self, group: str, first_index: int) -> bytes:
        return b""

    def encoded(self, entries: Iterable[Entry]) -> bytes:
        return b"".join(map(_line, entries))

    def tail(self, ending: Ending) -> bytes:
        return b""


def _line(entry: Entry) -> bytes:
    content: dict[str, Any]
    try:
        content = {"text": entry.body.decode()}
    except UnicodeDecodeError:
        content = {"base64": base64.b64encode(entry.body).decode()}
    return _encode(Line(entry.index, entry.term, **content)) + b"\n"


class JsonLinesReader:
    group: str | None = None
    first_index: int | None = None
    head_bytes = 0

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.ending: Ending | None = None

    def records(self) -> Iterator[Record]:
        last_index, position, count = -1, 0, 0
        while line := self._file.readline(MAX_LINE_BYTES):
            if not line.endswith(b"\n"):
                if len(line) == MAX_LINE_BYTES:
                    raise FileDamaged(f"a line above {MAX_LINE_BYTES} bytes is none", position, count)
                raise FileTorn("the last line has no end", position, count)
            try:
                content = _decode(line)
                body = content.body()
            except (msgspec.MsgspecError, ValueError, binascii.Error) as error:
                raise FileDamaged(f"line {count + 1}: {error}", position, count) from None
            check_order(content.index, last_index, position, count)
            position += len(line)
            count += 1
            last_index = content.index
            yield Record(content.index, content.term, body, position)
        self.ending = Ending(count, last_index)
