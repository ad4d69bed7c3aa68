"""Histories of one register, from wherever they come, in the words that both checkers are asked in."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from sim.kv.histories import MISSING, Deleted, Looked, Wrote
from sim.kv.linearizability import UNKNOWN, TimedOperation, is_linearizable

NEVER = 1 << 60
_LINE = re.compile(r"INFO\s+jepsen\.util\s+-\s+(\d+)\s+:(\w+)\s+:(\w+)\s+(.*?)\s*$")


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    client: int
    call: int
    """Moments are places in an order, not times."""
    ends: int = msgspec.field(name="return")
    kind: str
    """read, write, delete, cas."""
    start: str | None = msgspec.field(name="from", default=None)
    """Of a cas: what it expects; None: that there is nothing."""
    value: str | None = None
    """What was read, or is written."""
    holds: bool = True
    """Of a cas and a deletion: it has changed something."""
    unknown: bool = False
    """Nobody was told what became of it."""


def step(state: tuple[str | None], asked: object, outcome: object) -> tuple[str | None] | None:
    """`is_linearizable`'s; a state is what the register holds."""
    assert isinstance(asked, Operation), asked
    if asked.kind == "read":
        return state if asked.unknown or (asked.value,) == state else None
    if asked.kind == "write":
        return (asked.value,)
    if asked.kind == "delete":
        return (None,) if asked.unknown or asked.holds is (state != (None,)) else None
    holds = state == (asked.start,)
    if not asked.unknown and holds is not asked.holds:
        return None
    return (asked.value,) if holds else state


def judged(history: Sequence[Operation], most_steps: int) -> bool | None:
    """By our own checker."""
    happened = []
    for each in history:
        # Who asked and when makes no difference to what it does.
        asked = msgspec.structs.replace(each, client=0, call=0, ends=0)
        happened.append(TimedOperation(each.call, each.ends, asked, UNKNOWN if each.unknown else None))
    empty: tuple[str | None] = (None,)
    return is_linearizable(happened, empty, step, most_steps)


def of_jepsen(path: Path) -> list[Operation]:
    """A log of Jepsen's test of etcd, as it comes with Porcupine."""
    begun: dict[str, tuple[int, str, list[str]]] = {}
    found: list[Operation] = []

    def end(client: str, at: int, outcome: str, told: str) -> None:
        call, kind, given = begun.pop(client)
        unknown = outcome == "never" or (outcome == "fail" and kind == "read")
        start, value = (given[0], given[1]) if kind == "cas" else (None, given[0])
        if kind == "read":
            value = told
        found.append(
            Operation(
                client=int(client),
                call=call,
                ends=at,
                kind=kind,
                start=start,
                value=None if value in ("nil", "") or (unknown and kind == "read") else value,
                holds=outcome == "ok",
                unknown=unknown,
            )
        )

    for at, line in enumerate(path.read_text().splitlines()):
        match = _LINE.match(line)
        if match is None:
            continue
        client, what, kind, rest = match.groups()
        if what == "invoke":
            begun[client] = at, kind, rest.strip("[]").split()
        elif what in ("ok", "fail") and client in begun:
            end(client, at, what, rest)
    for client in list(begun):
        end(client, NEVER, "never", "")
    return found


def of_store(history: Sequence[TimedOperation]) -> list[Operation]:
    """Of one key of the key-value store. Values are written once each, so that a value says which write
    it comes from."""
    moments = {at: place for place, at in enumerate(sorted({t for e in history for t in e[:2]}))}
    values: dict[int, str] = {}
    for each in history:
        if (
            isinstance(each.operation, Looked)
            and isinstance(each.outcome, tuple)
            and each.outcome != MISSING
        ):
            values[each.outcome[1]] = each.outcome[0].decode()
        elif isinstance(each.operation, Wrote) and type(each.outcome) is int:
            values[each.outcome] = each.operation.value.decode()
    found = []
    for number, each in enumerate(history):
        asked, outcome = each.operation, each.outcome
        unknown = outcome is UNKNOWN
        start = value = None
        holds = True
        if isinstance(asked, Wrote):
            kind, value = ("write" if asked.expected is None else "cas"), asked.value.decode()
            if asked.expected:
                start = values[asked.expected]
            holds = outcome is not None
        elif isinstance(asked, Deleted):
            kind, holds = "delete", outcome != 0
        else:
            kind = "read"
            if isinstance(outcome, tuple) and outcome != MISSING:
                value = outcome[0].decode()
        found.append(
            Operation(
                client=number,
                call=moments[each.called],
                ends=NEVER if each.returned == float("inf") else moments[each.returned],
                kind=kind,
                start=start,
                value=value,
                holds=holds,
                unknown=unknown,
            )
        )
    return found
