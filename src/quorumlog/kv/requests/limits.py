"""What makes a request valid, for the client that sends it and the member that appends it."""

from __future__ import annotations

from quorumlog.kv.errors import InvalidRequest
from quorumlog.kv.requests.operations import (
    FROM_KEY,
    Command,
    Compact,
    Compare,
    DeleteRange,
    Grant,
    Operation,
    Put,
    Range,
    Revoke,
    Target,
    Txn,
    check_written_once,
    writes,
)

MAX_OPERATIONS = 128
"""Of a transaction: in its longest list, with those of the inner ones that lie on one path."""
MAX_REQUEST_BYTES = 1_572_864
"""1.5 MiB, as etcd has it."""
MAX_ANSWER_BYTES = 32 << 20
"""More would hold up what else is on its way to the client; a frame of twice it ends the connection."""
MAX_OPEN_RANGES = 8
"""Of a transaction that writes: every member builds what it answers, and again at each start."""
MAX_RANGES = 2 * MAX_OPERATIONS
"""Of a transaction with those in it, also where they answer with little: nobody else is served while a
member looks over them."""
MAX_LIMIT = 10_000
"""Of a range: one above is none, as far as that goes."""
MAX_TTL_MS = 9_000_000_000_000
MAX_DEPTH = 8
"""Of transactions in transactions."""


def check(command: Command | Range, size_bytes: int) -> None:
    """Raises InvalidRequest."""
    if size_bytes > MAX_REQUEST_BYTES:
        raise InvalidRequest(
            f"a request of {size_bytes} bytes is above {MAX_REQUEST_BYTES}: write less at once"
        )
    if isinstance(command, Grant):
        if not 0 < command.ttl_ms <= MAX_TTL_MS:
            raise InvalidRequest(f"a TTL must be above 0 and at most {MAX_TTL_MS} ms")
    elif isinstance(command, Txn):
        _check_txn(command, MAX_DEPTH, MAX_OPERATIONS)
        open_ranges = _open_ranges(command)
        if open_ranges > MAX_OPEN_RANGES and writes(command):
            raise InvalidRequest(
                f"a transaction that writes has at most {MAX_OPEN_RANGES} ranges with no limit, or one"
                f" above {MAX_LIMIT}, and this one has {open_ranges}: give limits, or read in one that"
                " does not write"
            )
        ranges = _ranges(command)
        if ranges > MAX_RANGES:
            raise InvalidRequest(
                f"a transaction looks over at most {MAX_RANGES} ranges, comparisons and inner ones"
                f" included, and this one looks over {ranges}"
            )
    elif isinstance(command, Put | DeleteRange | Range):
        _check_operation(command, MAX_DEPTH, MAX_OPERATIONS)
    else:
        assert isinstance(command, Revoke | Compact), command


def _check_operation(operation: Operation, depth: int, most: int) -> None:
    if isinstance(operation, Txn):
        _check_txn(operation, depth - 1, most)
    elif not operation.key:
        raise InvalidRequest("a key is at least one byte")
    elif isinstance(operation, Put):
        if operation.keeps_value and operation.value:
            raise InvalidRequest("a put that keeps the value brings none")
        if operation.keeps_lease and operation.lease:
            raise InvalidRequest("a put that keeps the lease brings none")


def _check_txn(txn: Txn, depth: int, most: int) -> None:
    """`most`: operations that those around it leave, as etcd counts them."""
    if depth <= 0:
        raise InvalidRequest(f"transactions are nested deeper than {MAX_DEPTH}")
    longest = max(len(txn.compare), len(txn.success), len(txn.failure))
    if longest > most:
        raise InvalidRequest(
            f"a transaction has at most {MAX_OPERATIONS} operations in each of its lists, less those"
            " around an inner one"
        )
    for compare in txn.compare:
        check_compare(compare)
    for operations in (txn.success, txn.failure):
        for operation in operations:
            _check_operation(operation, depth, most - longest)
        check_written_once(operations)


def may_answer_much(command: Command | Operation) -> bool:
    """More than it says by itself: what others have written before."""
    if isinstance(command, Txn):
        return any(may_answer_much(each) for each in (*command.success, *command.failure))
    if isinstance(command, DeleteRange):
        return command.prev_kv and bool(command.end)
    return isinstance(command, Range) and bool(_open(command))


def _open_ranges(txn: Txn) -> int:
    """That it may carry out, and that answer with whatever is there."""
    return max(sum(map(_open, txn.success)), sum(map(_open, txn.failure)))


def _ranges(txn: Txn) -> int:
    """That it may look over."""
    compared = sum(bool(each.end) for each in txn.compare)
    return compared + max(sum(map(_looks_over, txn.success)), sum(map(_looks_over, txn.failure)))


def _looks_over(operation: Operation) -> int:
    if isinstance(operation, Txn):
        return _ranges(operation)
    return isinstance(operation, Range) and bool(operation.end)


def _open(operation: Operation) -> int:
    if isinstance(operation, Txn):
        return _open_ranges(operation)
    if not isinstance(operation, Range):
        return 0
    return bool(operation.end) and not operation.count_only and not 0 < operation.limit <= MAX_LIMIT


def check_compare(compare: Compare) -> None:
    if not compare.key:
        raise InvalidRequest("a key is at least one byte")
    wants_bytes = compare.target is Target.VALUE
    if compare.target is Target.KEY or isinstance(compare.than, bytes) is not wants_bytes:
        raise InvalidRequest(f"{compare.target.name} cannot be compared with {compare.than!r}")


Bounds = tuple[bytes, bytes]


def contains(bounds: Bounds, key: bytes) -> bool:
    start, end = bounds
    if not end:
        return key == start
    return start <= key and (end == FROM_KEY or key < end)
