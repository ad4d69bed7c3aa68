"""Protobuf's own JSON mapping, as of etcd's JSON gateway, but stricter: input that `json_format`
would misread is refused."""

from __future__ import annotations

import re
from json import loads
from typing import Any, TypeVar

from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from quorumlog.kv.errors import InvalidRequest
from quorumlog.kv.etcd.conversions import MOST_OPERATIONS

M = TypeVar("M", bound=Message)
MAX_DEPTH = 100
MOST_VALUES = 3 * MOST_OPERATIONS
"""Most objects, lists and members of a body, as `{`, `[` and `,`: an operation has at least three, and
the largest transaction without inner ones 6,000. Parsing one takes microseconds, on the loop."""
_INTEGER = re.compile(r"-?[0-9]{1,20}(\.0+)?")
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]*={0,2}")
_NUMBERS = {
    FieldDescriptor.TYPE_INT64,
    FieldDescriptor.TYPE_UINT64,
    FieldDescriptor.TYPE_INT32,
    FieldDescriptor.TYPE_UINT32,
}


def parsed(kind: type[M], body: bytes) -> M:
    """Accepts names in both spellings, base64 in both alphabets, with and without padding, and
    numbers as text. Refuses unknown names of fields and enumerations. Raises InvalidRequest."""
    if sum(map(body.count, (b"{", b"[", b","))) > MOST_VALUES:
        raise InvalidRequest(f"a request of more than {MOST_VALUES} values")
    try:
        given = loads(body, object_pairs_hook=_object) if body.strip() else {}
        if not isinstance(given, dict):
            raise InvalidRequest("the request is not a JSON object")
        _check(given, kind.DESCRIPTOR)
        return json_format.ParseDict(given, kind(), max_recursion_depth=MAX_DEPTH)
    except RecursionError:
        raise InvalidRequest("the request is nested too deeply") from None
    except json_format.ParseError as error:
        raise InvalidRequest(str(error).partition("\n")[0]) from None
    except ValueError as error:
        raise InvalidRequest(f"the request is not JSON: {error}") from None


def json_of(message: Message) -> str:
    """JSON on one line, with etcd's field names; values that are 0, empty or false are omitted."""
    return json_format.MessageToJson(message, preserving_proto_field_name=True, indent=None)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Raises InvalidRequest for a repeated name."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise InvalidRequest(f"{name!r:.40} is given twice")
        found[name] = value
    return found


def _check(given: Any, kind: Any) -> None:
    """Refuses input that `json_format` accepts and etcd does not: numbers with `_`, base64 with other
    characters, which it would omit, unknown names, and names in both spellings. Raises
    InvalidRequest."""
    if not isinstance(given, dict):
        return
    known = set()
    for name, value in given.items():
        field = kind.fields_by_camelcase_name.get(name) or kind.fields_by_name.get(name)
        if field is None:
            names = ", ".join(kind.fields_by_name) or "none"
            raise InvalidRequest(f"there is no field {name!r:.40}; there are {names}")
        if field.name in known:
            raise InvalidRequest(f"{field.name} is given in both spellings")
        known.add(field.name)
        for each in value if isinstance(value, list) else (value,):
            if field.message_type is not None:
                _check(each, field.message_type)
            elif isinstance(each, str):
                _check_text(name, each, field.type)
            elif field.type == FieldDescriptor.TYPE_BYTES and each is not None:
                raise InvalidRequest(f"{name} is {each!r:.40}, which is not text in base64")


def _check_text(name: str, text: str, kind: int) -> None:
    if kind in _NUMBERS and not _INTEGER.fullmatch(text):
        raise InvalidRequest(f"{name} is {text!r:.40}, which is not a number")
    if kind == FieldDescriptor.TYPE_BYTES and not _BASE64.fullmatch(text):
        raise InvalidRequest(f"{name} is {text!r:.40}, which is not base64")
