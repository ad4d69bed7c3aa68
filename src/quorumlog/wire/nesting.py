"""How deeply MessagePack is nested. msgspec goes down a level of C's stack for each container, and how
many it has differs between versions of Python and between callers; members must not differ."""

from __future__ import annotations

import re

MOST_NESTED = 64
"""Containers around a value of a command: more than any has, and fewer than any member can read."""
REFUSAL = f"it is nested deeper than {MOST_NESTED} containers"

_OPENING = bytes([*range(0x80, 0xA0), 0xDC, 0xDD, 0xDE, 0xDF])
_small = re.compile(rb"[\x00-\x80\x90\xc0\xc2\xc3\xe0-\xff]*").match
"""Values of one byte, empty containers among them."""
_FIXED = [1 if _small(bytes([head])).end() else 0 for head in range(256)]  # type: ignore[union-attr]
"""Bytes of a value with this head, itself included, where the head alone says how many."""
for _head, _bytes in ((0xCA, 4), (0xCB, 8), (0xCC, 1), (0xCD, 2), (0xCE, 4), (0xCF, 8)):
    _FIXED[_head] = 1 + _bytes
for _head, _bytes in ((0xD0, 1), (0xD1, 2), (0xD2, 4), (0xD3, 8)):
    _FIXED[_head] = 1 + _bytes
_FIXED[0xA0:0xC0] = range(1, 33)
_FIXED[0xD4:0xD9] = (3, 4, 6, 10, 18)
_FIXED[0xC1] = 1  # no value at all
_LENGTHS = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xC7: 1, 0xC8: 2, 0xC9: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
_EXTENSIONS = (0xC7, 0xC8, 0xC9)
_COUNTS = {0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4}
_MAPS = (0xDE, 0xDF)
_RUN = 8
"""So many values to come are worth a look at how many of them are small."""


def nested_deeper(data: bytes | memoryview, most: int = MOST_NESTED) -> bool:
    """Is a value of this message nested in more containers than that? False for bytes that are no
    message, as far as they can be read. The number of values is not limited: every release would have to
    count alike, or members of two would differ."""
    body = bytes(data)
    if len(body) - len(body.translate(None, _OPENING)) <= most:
        return False
    at, rest = 0, 1
    """`rest`: values to come in the innermost container that is open."""
    around: list[int] = []
    """And in those around it."""
    while True:
        while not rest:
            if not around:
                return False
            rest = around.pop()
        if at >= len(body):
            return False
        head = body[at]
        rest -= 1
        if width := _FIXED[head]:
            at += width
            if width == 1 and rest > _RUN:
                run = min(_small(body, at).end() - at, rest)  # type: ignore[union-attr]
                at, rest = at + run, rest - run
        elif width := _LENGTHS.get(head, 0):
            at += 1
            at += width + int.from_bytes(body[at : at + width], "big") + (head in _EXTENSIONS)
        else:
            width = _COUNTS.get(head, 0)
            at += 1
            count = int.from_bytes(body[at : at + width], "big") if width else head & 0x0F
            around.append(rest)
            rest = 2 * count if head < 0x90 or head in _MAPS else count
            if len(around) > most:
                return True
            at += width
