"""An entry as a line, for people and for programs."""

from __future__ import annotations

import base64
from collections.abc import Callable

import msgspec

from quorumlog.append_times import TimedEntry
from quorumlog.entry import Entry

_encode = msgspec.json.Encoder().encode


def _as_text(entry: Entry) -> bytes:
    if isinstance(entry, TimedEntry):
        return f"{_spoken(entry)} ".encode() + entry.body + b"\n"
    return entry.body + b"\n"


def _spoken(entry: TimedEntry) -> str:
    """All equally long; `-` where no time is known."""
    time = entry.append_time
    return f"{'-':24}" if time is None else f"{time:%Y-%m-%dT%H:%M:%S}.{time.microsecond // 1000:03}Z"


def _as_json(entry: Entry) -> bytes:
    row: dict[str, object] = {"index": entry.index, "term": entry.term}
    if isinstance(entry, TimedEntry):
        row["append_time"] = None if entry.append_time is None else _spoken(entry)
    try:
        row["body"] = entry.body.decode()
    except UnicodeDecodeError:
        row["body_base64"] = base64.b64encode(entry.body).decode()
    return _encode(row) + b"\n"


def _as_hex(entry: Entry) -> bytes:
    time = f"{_spoken(entry)} " if isinstance(entry, TimedEntry) else ""
    return f"{time}{entry.index} {entry.term} {entry.body.hex()}\n".encode()


WRITERS: dict[str, Callable[[Entry], bytes]] = {"text": _as_text, "json": _as_json, "hex": _as_hex}
"""By what `--format` says."""
