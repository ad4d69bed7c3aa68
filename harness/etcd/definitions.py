"""Definitions of messages, read from a .proto file as far as two of them can be compared."""

from __future__ import annotations

import re

Definitions = dict[str, dict[str, tuple[int, str]]]
"""Of each message and enumeration by its name, (number, type) of each field by its name; values of
enumerations have no type."""
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_OPTIONS = re.compile(r"\[[^\]]*\]")
_BLOCK = re.compile(r"\s*(message|enum|oneof|service|rpc|option|extend)\b\s*([\w.]*)")
_FIELD = re.compile(r"\s*((?:repeated\s+)?[\w.]+|map<[^>]*>)\s+(\w+)\s*=\s*(\d+)\s*$")
_VALUE = re.compile(r"\s*(\w+)\s*=\s*(-?\d+)\s*$")


def definitions(text: str) -> Definitions:
    found: Definitions = {}
    blocks: list[tuple[str, str]] = []
    statement = ""
    for piece in re.split(r"([{};])", _OPTIONS.sub("", _COMMENT.sub("", text))):
        if piece == "{":
            match = _BLOCK.match(statement)
            blocks.append((match[1], match[2]) if match else ("", ""))
        elif piece == "}":
            blocks.pop()
        elif piece == ";":
            _field(found, blocks, statement)
        statement = piece if piece not in "{};" else ""
    return found


def _field(found: Definitions, blocks: list[tuple[str, str]], statement: str) -> None:
    if any(kind not in ("message", "enum", "oneof") for kind, _ in blocks) or not blocks:
        return
    name = ".".join(name for kind, name in blocks if kind != "oneof")
    if blocks[-1][0] == "enum":
        if match := _VALUE.match(statement):
            found.setdefault(name, {})[match[1]] = int(match[2]), ""
    elif match := _FIELD.match(statement):
        words = match[1].split()
        words[-1] = words[-1].rpartition(".")[2]  # without its package
        found.setdefault(name, {})[match[2]] = int(match[3]), " ".join(words)
