"""An entry as a line, for people and for programs."""

from __future__ import annotations

import base64
from collections.abc import Callable

import msgspec

from quorumlog.batch import Entry

_encode = msgspec.json.Encoder().encode


def _as_text(entry: Entry) -> bytes:
    return entry.body + b"\n"


def _as_json(entry: Entry) -> bytes:
    row: dict[str, object] = {"index": entry.index, "term": entry.term}
    try:
        row["body"] = entry.body.decode()
    except UnicodeDecodeError:
        row["body_base64"] = base64.b64encode(entry.body).decode()
    return _encode(row) + b"\n"


def _as_hex(entry: Entry) -> bytes:
    return f"{entry.index} {entry.term} {entry.body.hex()}\n".encode()


WRITERS: dict[str, Callable[[Entry], bytes]] = {"text": _as_text, "json": _as_json, "hex": _as_hex}
"""By what `--format` says."""
