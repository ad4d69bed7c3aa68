"""msgspec's validation errors with field names in place of its `$[3]`.

Structs lie in messages as arrays, so it knows the places of fields alone.
"""

from __future__ import annotations

import re
from contextlib import suppress
from functools import cache
from typing import Any

import msgspec
from msgspec import inspect

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""msgspec's exceptions for received bytes."""
MOST_BYTES = 1 << 16
"""Without a type all of it is made, for any sender."""
_PLACE = re.compile(r" - at `\$((?:\[\d*\])*)`$")
_STEP = re.compile(r"\[(\d*)\]")


def named_reason(error: Exception, data: bytes | memoryview, kind: Any) -> str:
    """`error`: of decoding `data`, MessagePack, as `kind`."""
    found = _PLACE.search(str(error))
    if found is None or len(data) > MOST_BYTES:
        return str(error)
    reason = str(error)[: found.start()]
    reason = reason[:1].lower() + reason[1:]
    # Where the value is not even an array, or no field is meant, there is no name.
    with suppress(
        msgspec.DecodeError, RecursionError, LookupError, TypeError, ValueError, AttributeError
    ):
        value = msgspec.msgpack.decode(data)
        name = _name_of([int(step) for step in _STEP.findall(found[1])], value, _described(kind))
        return f"{name}: {reason}" if name else reason
    return reason


_described = cache(inspect.type_info)


def _name_of(steps: list[int], value: Any, kind: Any) -> str:
    name = ""
    for step in steps:
        while isinstance(kind, inspect.Metadata):
            kind = kind.type
        if isinstance(kind, inspect.UnionType):
            kind = _choice_of(kind, value)
        if isinstance(kind, inspect.StructType):
            if kind.tag is not None and step == 0:
                return f"{name}.kind" if name else "kind"
            field = kind.fields[step - (kind.tag is not None)]
            name = f"{name}.{field.name}" if name else field.name
            kind = field.type
        elif isinstance(kind, inspect.TupleType):
            name, kind = f"{name}[{step}]", kind.item_types[step]
        else:
            name, kind = f"{name}[{step}]", kind.item_type
        value = value[step]
    return name


def _choice_of(union: inspect.UnionType, value: Any) -> Any:
    """Which of them the array says it is, or the only one that has parts."""
    structs: list[Any] = [each for each in union.types if isinstance(each, inspect.StructType)]
    tagged = [each for each in structs if each.tag == value[0]]
    return (tagged or structs or [each for each in union.types if hasattr(each, "item_type")])[0]
