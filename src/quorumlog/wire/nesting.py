"""How deeply MessagePack is nested. msgspec goes down a level of C's stack for each container, and how
many it has differs between versions of Python and between callers; members must not differ."""

from __future__ import annotations

import re

MOST_NESTED = 64
"""Containers around a value of a command: more than any has, and fewer than any member can read."""
MOST_STEPS = 200_000
"""Of a look at one message, a value each, or a run of small ones: what takes more is refused as well."""
REFUSAL = f"it is nested deeper than {MOST_NESTED} containers, or has too many values"

_OPENING = bytes([*range(0x80, 0xA0), 0xDC, 0xDD, 0xDE, 0xDF])
_small = re.compile(rb"[\x00-\x80\x90\xc0\xc2\xc3\xe0-\xff]*").match
"""Values of one byte, empty containers among them."""
_SIZES = {0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}
_SIZES |= {0xD4 + power: 1 + (1 << power) for power in range(5)}
_LENGTHS = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xC7: 1, 0xC8: 2, 0xC9: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
_EXTENSIONS = (0xC7, 0xC8, 0xC9)
_COUNTS = {0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4}
_MAPS = (0xDE, 0xDF)


def nested_deeper(data: bytes | memoryview, most: int = MOST_NESTED) -> bool:
    """Does a value of this message lie in more containers than that, or are there so many values that
    nobody looks? False of what is no message, as far as it can be read."""
    body = bytes(data)
    if len(body) - len(body.translate(None, _OPENING)) <= most:
        return False
    at, left = 0, [1]  # values to come, of each container that is open
    for _ in range(MOST_STEPS):
        if not left:
            return False
        run = min(_small(body, at).end() - at, left[-1])  # type: ignore[union-attr]
        at, left[-1] = at + run, left[-1] - run
        if not left[-1]:
            left.pop()
            continue
        if run:
            continue
        if at >= len(body):
            return False
        head, at = body[at], at + 1
        left[-1] -= 1
        if 0x80 <= head < 0xA0 or head in _COUNTS:
            width = _COUNTS.get(head, 0)
            count = int.from_bytes(body[at : at + width], "big") if width else head & 0x0F
            left.append(2 * count if head < 0x90 or head in _MAPS else count)
            if len(left) - 1 > most:
                return True
            at += width
        elif 0xA0 <= head < 0xC0:
            at += head & 0x1F
        elif (width := _LENGTHS.get(head, 0)) != 0:
            at += width + int.from_bytes(body[at : at + width], "big") + (head in _EXTENSIONS)
        else:
            at += _SIZES.get(head, 0)
    return True
