"""Requests about several topics or groups: a row for each, with a command or an error code."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from quorumlog.errors import LedgerError
from quorumlog.kafka.machine import Command, decode_numbers, entry_of
from quorumlog.kafka.service import MOST_TIMEOUT_MS, KafkaCall, KafkaService, code_of
from quorumlog.log_state.users import Kind

Row = dict[str, Any]


def first_code(rows: Iterable[Row]) -> int:
    """The first error code in the rows; 0: none."""
    return next(filter(None, (row["error_code"] for row in rows)), 0)


def carry_out(
    service: KafkaService,
    call: KafkaCall,
    commands: Sequence[Command],
    timeout_ms: int,
    done: Callable[[list[int]], None],
    kind: Kind = Kind.CLUSTER,
) -> None:
    """`done` receives an error code for each. `kind`: of the codes of what the log refuses."""
    codes: dict[int, int] = {}

    def over(number: int, results: tuple[bytes | None, ...] | LedgerError) -> None:
        if isinstance(results, LedgerError):
            codes[number] = code_of(results, kind)
        else:
            codes[number] = decode_numbers(results[0])[0]
        if len(codes) == len(commands):
            done([codes[each] for each in range(len(commands))])

    if not commands:
        done([])
    for number, command in enumerate(commands):
        call.tell_audit(command)
        service.append(entry_of(command), timeout_ms, call.client, partial(over, number))


def change(
    service: KafkaService,
    call: KafkaCall,
    wanted: Sequence[tuple[Row, Command | None]],
    field: str,
    kind: Kind = Kind.CLUSTER,
) -> None:
    """Carry out the command of each row, and answer with the rows. A row without a command has its
    code already."""
    commands = [command for _, command in wanted if command is not None]

    def done(codes: list[int]) -> None:
        left = iter(codes)
        for row, command in wanted:
            if command is not None:
                row["error_code"] = next(left)
        rows = [row for row, _ in wanted]
        call.answer({field: rows}, first_code(rows))

    if getattr(call.fields, "validate_only", False):
        done([0] * len(commands))
    else:
        timeout_ms = getattr(call.fields, "timeout", MOST_TIMEOUT_MS)
        carry_out(service, call, commands, timeout_ms, done, kind)
