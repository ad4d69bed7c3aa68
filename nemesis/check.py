"""The checker: do the logs on disk agree with what the clients were told?

- every acknowledged append is in the log exactly once, at its index;
- a refused one is not in the log; of an unknown one a prefix may be, in one piece, once;
- nothing is in the log that nobody appended;
- an append that had returned before another was called stands before it, and acknowledged appends of
  one client stand in the order in which it sent them;
- of a producer nothing is unknown at the end: its values stand in the log once, in the order of their
  numbers, without a gap, and what it was told that the log holds of it is so;
- a read returned every entry of the range that it was asked for, as it stands in the log;
- a read to the end reached everything that had been acknowledged before it was called;
- all members hold the same log.

Where members have dropped their first entries all this is asked of what every one of them still has.

Linear in the operations and entries, but for one sort.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from nemesis.history import LAST_SEQUENCE, READ_TO_END, Log, Operation


class Violation(NamedTuple):
    kind: str
    detail: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}"


class _Placed(NamedTuple):
    """An append of which something stands in the log."""

    first_index: int
    operation: Operation


def check(
    operations: Sequence[Operation], logs: Mapping[str, Log], begin_index: int = 0
) -> list[Violation]:
    """What is wrong; empty if nothing is. `logs`: by member id, at least one. `begin_index`: from where
    on all of them exist."""
    violations = list(_diverging(logs, begin_index))
    log = max(logs.values(), key=len)
    places: dict[str, int] = {}
    for index, value in enumerate(log):
        if value is None or index < begin_index:
            continue
        if value in places:
            violations.append(Violation("duplicate", f"{value} at {places[value]} and at {index}"))
        else:
            places[value] = index
    placed: list[_Placed] = []
    found = 0
    for operation in operations:
        if operation.is_append:
            here = [places.get(value, -1) for value in operation.values()]
            found += sum(index >= 0 for index in here)
            violations += _wrong_places(operation, here, begin_index)
            if here[0] >= 0:
                placed.append(_Placed(here[0], operation))
        elif operation.ok and operation.is_read:
            violations += _wrong_read(operation, log, begin_index)
    if found != len(places):
        violations += _strangers(operations, places)
    violations += _out_of_order(placed)
    violations += _out_of_client_order(operations)
    violations += _stale(operations)
    violations += _not_exactly_once(operations, log, begin_index)
    return violations


def _diverging(logs: Mapping[str, Log], begin_index: int) -> Iterator[Violation]:
    (first_id, first), *others = logs.items()
    for member_id, log in others:
        if log[begin_index:] != first[begin_index:]:
            shared = min(len(first), len(log))
            index = next((i for i in range(begin_index, shared) if first[i] != log[i]), shared)
            left, right = (_entry_name(one, index) for one in (first, log))
            yield Violation(
                "diverging members", f"at index {index} {first_id} holds {left}, {member_id} {right}"
            )


def _entry_name(log: Log, index: int) -> str:
    return "nothing" if index >= len(log) else log[index] or "a no-op"


def _wrong_places(operation: Operation, here: Sequence[int], begin_index: int) -> Iterator[Violation]:
    """`here`: the index of each of its values, -1 for those that are not in the log."""
    if operation.ok:
        for value, index, told in zip(operation.values(), here, operation.indices, strict=True):
            if told < begin_index:
                continue
            if index < 0:
                yield Violation("lost", f"{value} was acknowledged at {told} and is not in the log")
            elif index != told:
                yield Violation("moved", f"{value} was acknowledged at {told} and stands at {index}")
        return
    present = [index for index in here if index >= 0]
    if not present:
        return
    value = operation.values()[0]
    if begin_index and present[0] == begin_index:
        here = here[here.index(begin_index) :]  # those before it may have been dropped
    if operation.ok is False:
        yield Violation("refused but present", f"{value} stands at {present[0]}")
    elif list(here[: len(present)]) != list(range(present[0], present[0] + len(present))):
        yield Violation("torn", f"{value} and what followed it in one append stand at {list(here)}")


def _wrong_read(operation: Operation, log: Log, begin_index: int) -> Iterator[Violation]:
    first, stop = operation.index, operation.index + operation.count
    asked = f"{operation.client} read [{first}, {stop})"
    first = max(first, begin_index)
    returned = [entry for entry in operation.entries if entry[0] >= begin_index]
    if stop > len(log):
        yield Violation("read beyond the log", f"{asked}, the log ends at {len(log) - 1}")
        return
    stands = [(index, value) for index, value in enumerate(log[first:stop], first) if value is not None]
    if stands != returned:
        missing = sorted(set(stands) - set(returned))
        other = sorted(set(returned) - set(stands))
        kind = "changed" if other else "gap in a read" if missing else "reordered read"
        yield Violation(kind, f"{asked}: not returned {missing}, returned instead {other}")


def _strangers(operations: Sequence[Operation], places: Mapping[str, int]) -> Iterator[Violation]:
    appended = {v for operation in operations if operation.is_append for v in operation.values()}
    for value, index in places.items():
        if value not in appended:
            yield Violation("appended by nobody", f"{value} at {index}")


def _out_of_order(placed: list[_Placed]) -> Iterator[Violation]:
    """Going up the log: who returned before somebody further down was called is in the wrong place."""
    latest: Operation | None = None
    for index, operation in sorted(placed, key=lambda one: one.first_index):
        # Only an acknowledgement says that the append was over: an unknown one may come to be later.
        if latest is not None and operation.ok and operation.return_ns < latest.call_ns:
            before, after = operation.values()[0], latest.values()[0]
            yield Violation(
                "reordered",
                f"{before} at {index} had been acknowledged when {after}, which stands before it, was"
                " sent",
            )
        if latest is None or operation.call_ns > latest.call_ns:
            latest = operation


def _out_of_client_order(operations: Sequence[Operation]) -> Iterator[Violation]:
    """Batches of a stream are under way together, so that their times say nothing."""
    last: dict[str, Operation] = {}
    acknowledged = [op for op in operations if op.is_append and op.ok]
    for operation in sorted(acknowledged, key=lambda op: (op.client, op.value)):
        before = last.get(operation.client)
        if before is not None and before.index > operation.index:
            yield Violation(
                "reordered",
                f"{before.values()[0]} at {before.index} was sent before {operation.values()[0]} at"
                f" {operation.index}",
            )
        last[operation.client] = operation


def _stale(operations: Sequence[Operation]) -> Iterator[Violation]:
    """Along the calls of reads to the end: how far the log was known to go by then."""
    acknowledged = deque(
        sorted((op for op in operations if op.is_append and op.ok), key=lambda op: op.return_ns)
    )
    end, last = 0, ""
    reads = (op for op in operations if op.op == READ_TO_END and op.ok)
    for read in sorted(reads, key=lambda op: op.call_ns):
        while acknowledged and acknowledged[0].return_ns < read.call_ns:
            append = acknowledged.popleft()
            if append.stop_index > end:
                end, last = append.stop_index, append.values()[-1]
        if read.index + read.count < end:
            yield Violation(
                "stale read",
                f"{read.client} read from {read.index} to the end, which came at"
                f" {read.index + read.count}, but {last} had been acknowledged at {end - 1}",
            )


def _not_exactly_once(
    operations: Sequence[Operation], log: Log, begin_index: int
) -> Iterator[Violation]:
    """Of producers, whose sequences are the numbers of their values."""
    by_client: dict[str, list[Operation]] = {}
    for operation in operations:
        if operation.in_session:
            by_client.setdefault(operation.client, []).append(operation)
    held: dict[str, list[int]] = {client: [] for client in by_client}
    for value in log[begin_index:]:
        client, _, digits = (value or "").partition("/")
        if client in held:
            held[client].append(int(digits))
    for client, own in by_client.items():
        yield from _unresolved(own)
        yield from _told_wrongly(own)
        appends = [operation for operation in own if operation.is_append]
        expected = 0
        if begin_index and held[client]:
            expected = held[client][0]  # those before it may have been dropped
        for number in held[client]:
            if number != expected:
                yield Violation("out of sequence", f"{client}/{number} where {expected} was to come")
                break
            expected += 1
        else:
            stop = max((operation.value + operation.count for operation in appends), default=0)
            if expected != stop and not (begin_index and not held[client]):
                yield Violation("out of sequence", f"{client} ends before {expected}, not {stop}")


def _unresolved(own: Sequence[Operation]) -> Iterator[Violation]:
    for operation in own:
        if operation.is_append and not operation.ok:
            what = "unknown" if operation.ok is None else "refused"
            yield Violation(f"{what} in a session", f"{operation.values()[0]}, when all was whole again")


def _told_wrongly(own: Sequence[Operation]) -> Iterator[Violation]:
    """Its calls follow each other, but for batches of a stream and an append that it gave up."""
    appends = [operation for operation in own if operation.is_append]
    for told in own:
        if told.op != LAST_SEQUENCE:
            continue
        known = [a.value + a.count - 1 for a in appends if a.ok and a.return_ns < told.call_ns]
        called = [a.value + a.count - 1 for a in appends if a.call_ns < told.return_ns]
        if not max(known, default=-1) <= told.value <= max(called, default=-1):
            yield Violation(
                "wrong last sequence",
                f"{told.client} was told {told.value}; it knew of {max(known, default=-1)} and had sent"
                f" {max(called, default=-1)}",
            )
