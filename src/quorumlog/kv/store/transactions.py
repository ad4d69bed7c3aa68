"""What a command does to the keyspace, as etcd's v3 API has it. What a transaction will refuse is found
before it changes anything."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from quorumlog.kv.errors import (
    Compacted,
    FutureRevision,
    InvalidRequest,
    KeyNotFound,
    LeaseExists,
    LeaseNotFound,
)
from quorumlog.kv.requests.limits import check_compare
from quorumlog.kv.requests.operations import (
    NO_LEASE,
    Command,
    Compact,
    Compare,
    DeleteRange,
    Grant,
    KeyValue,
    Operation,
    Put,
    Range,
    Relation,
    Revoke,
    Target,
    Txn,
    check_written_once,
    decode_key_value,
    writes,
)
from quorumlog.kv.store.engine import CURRENT
from quorumlog.kv.store.keyspace import Keyspace, bounds
from quorumlog.kv.store.ranges import AnswerRoom, Body, EncodedItems, read_range

PUT_TAG, DELETE_TAG, TXN_TAG, GRANT_TAG, REVOKE_TAG, COMPACT_TAG = 1, 2, 4, 5, 6, 7

_HOLDS: dict[Relation, Callable[[Any, Any], bool]] = {
    Relation.EQUAL: operator.eq,
    Relation.GREATER: operator.gt,
    Relation.LESS: operator.lt,
    Relation.NOT_EQUAL: operator.ne,
}
_OF: dict[Target, Callable[[KeyValue], Any]] = {
    Target.VERSION: lambda kv: kv.version,
    Target.CREATE: lambda kv: kv.create_revision,
    Target.MOD: lambda kv: kv.mod_revision,
    Target.VALUE: lambda kv: kv.value,
    Target.LEASE: lambda kv: kv.lease,
}


def carry_out(keyspace: Keyspace, command: Command, index: int, room: AnswerRoom) -> Body:
    """The entry at `index`. Where its answer has no room, what is given is none. Raises KeyValueError,
    and nothing has changed then."""
    if isinstance(command, Put | DeleteRange | Txn):
        _check(keyspace, command)
        return _operation(keyspace, command, index, room)
    if isinstance(command, Grant):
        return _grant(keyspace, command, index)
    if isinstance(command, Revoke):
        return _revoke(keyspace, command, index)
    assert isinstance(command, Compact), command
    return _compact(keyspace, command)


def answer_txn(keyspace: Keyspace, txn: Txn, room: AnswerRoom) -> Body:
    """A question: a transaction that only reads. Raises KeyValueError."""
    if writes(txn):
        raise InvalidRequest("a question may not write")
    _check(keyspace, txn)
    return _operation(keyspace, txn, keyspace.revision, room)


# ---------------------------------------------------------------- what is refused


def _check(keyspace: Keyspace, operation: Operation) -> None:
    """Of what will be carried out, in the order in which etcd refuses. Comparisons see the state before
    the transaction, inner ones too."""
    if isinstance(operation, Put):
        _check_lease(keyspace, operation)
        _check_kept(keyspace, operation)
    elif isinstance(operation, Txn):
        for operations in (operation.success, operation.failure):
            check_written_once(operations)
        path = list(_path(keyspace, operation))
        for each in path:
            if isinstance(each, Put):
                _check_kept(keyspace, each)
                _check_lease(keyspace, each)
        for each in path:
            if isinstance(each, Range) and each.revision:
                keyspace.check_revision(each.revision)
    elif isinstance(operation, Range) and operation.revision:
        keyspace.check_revision(operation.revision)


def _path(keyspace: Keyspace, txn: Txn) -> Iterator[Put | DeleteRange | Range]:
    """What a transaction and those in it carry out."""
    for each in _branch(keyspace, txn)[1]:
        if isinstance(each, Txn):
            yield from _path(keyspace, each)
        else:
            yield each


def _check_lease(keyspace: Keyspace, put: Put) -> None:
    if put.lease and put.lease not in keyspace.leases:
        raise _no_lease(put.lease)


def _check_kept(keyspace: Keyspace, put: Put) -> None:
    keeps = put.keeps_value or put.keeps_lease
    if keeps and keyspace.engine.get(CURRENT, put.key) is None:
        raise KeyNotFound(f"the key {put.key!r} does not exist")


def _no_lease(lease: int) -> LeaseNotFound:
    return LeaseNotFound(f"there is no lease {lease}: it has ended, or was never granted")


# ---------------------------------------------------------------- operations


def _operation(keyspace: Keyspace, operation: Operation, index: int, room: AnswerRoom) -> Body:
    if isinstance(operation, Put):
        value, lease = operation.value, operation.lease
        if operation.keeps_value or operation.keeps_lease:
            old = keyspace.current(operation.key)
            assert old is not None, operation.key  # nothing in a transaction deletes what it puts
            value = old.value if operation.keeps_value else value
            lease = old.lease if operation.keeps_lease else lease
        before = keyspace.put(operation.key, value, lease, index)
        if before is None or not operation.prev_kv or not room.take(len(before)):
            return PUT_TAG, None
        return PUT_TAG, msgspec.Raw(before)
    if isinstance(operation, DeleteRange):
        return _delete(keyspace, operation, index, room)
    if isinstance(operation, Range):
        return read_range(keyspace, operation, room)
    # Which branch is taken was decided by the state before, of the inner ones too: etcd's order.
    plan = _plan(keyspace, operation)
    return _carry_out_plan(keyspace, plan, index, room)


Plan = tuple[bool, list["Operation | Plan"]]
"""Whether the comparisons held, and what is carried out, inner transactions as plans of their own."""


def _plan(keyspace: Keyspace, txn: Txn) -> Plan:
    succeeded, operations = _branch(keyspace, txn)
    return succeeded, [_plan(keyspace, each) if isinstance(each, Txn) else each for each in operations]


def _carry_out_plan(keyspace: Keyspace, plan: Plan, index: int, room: AnswerRoom) -> Body:
    succeeded, operations = plan
    answers = [
        _carry_out_plan(keyspace, each, index, room)
        if isinstance(each, tuple)
        else _operation(keyspace, each, index, room)
        for each in operations
    ]
    return TXN_TAG, succeeded, answers


def _delete(keyspace: Keyspace, operation: DeleteRange, index: int, room: AnswerRoom) -> Body:
    gone: Iterable[bytes]
    if operation.end:
        gone = keyspace.delete_range(*bounds(operation.key, operation.end), index)
    else:
        before = keyspace.delete(operation.key, index)
        gone = () if before is None else (before,)
    told = EncodedItems(room)
    count = 0
    for each in gone:  # to the end, whatever there is room for
        count += 1
        if operation.prev_kv:
            told.add(each)
    return DELETE_TAG, count, told.encoded()


def _branch(keyspace: Keyspace, txn: Txn) -> tuple[bool, Sequence[Operation]]:
    # Who appends past the store's door must not stop it on every member.
    for compare in txn.compare:
        check_compare(compare)
    succeeded = all(_holds(keyspace, compare) for compare in txn.compare)
    return succeeded, txn.success if succeeded else txn.failure


def _holds(keyspace: Keyspace, compare: Compare) -> bool:
    relation, of = _HOLDS[compare.relation], _OF[compare.target]
    stored: Iterable[bytes]
    if compare.end:
        start, stop = bounds(compare.key, compare.end)
        stored = (value for _, value in keyspace.engine.scan(CURRENT, start, stop))
    else:
        value = keyspace.engine.get(CURRENT, compare.key)
        stored = () if value is None else (value,)
    is_there = False
    for each in stored:
        is_there = True
        if not relation(of(decode_key_value(each)), compare.than):
            return False
    return is_there or (compare.target is not Target.VALUE and relation(0, compare.than))


# ---------------------------------------------------------------- leases and compaction


def _grant(keyspace: Keyspace, command: Grant, index: int) -> Body:
    lease = command.lease
    if lease in keyspace.leases:
        raise LeaseExists(f"there is a lease {lease} already")
    if lease == NO_LEASE:
        lease = index
        while lease in keyspace.leases:  # somebody chose that number
            lease += 1
    keyspace.grant(lease, command.ttl_ms, index)
    return GRANT_TAG, lease, command.ttl_ms, index


def _revoke(keyspace: Keyspace, command: Revoke, index: int) -> Body:
    lease = keyspace.leases.get(command.lease)
    if lease is None or command.granted_at not in (0, lease.granted_at):
        raise _no_lease(command.lease)
    return REVOKE_TAG, keyspace.revoke(command.lease, index)


def _compact(keyspace: Keyspace, command: Compact) -> Body:
    revision = command.revision
    if revision > keyspace.revision:
        raise FutureRevision(f"revision {revision} is above {keyspace.revision}, the newest")
    if revision <= keyspace.compacted:
        if not command.leads:
            raise Compacted(
                f"history below revision {keyspace.compacted} is compacted already",
                compacted_revision=keyspace.compacted,
            )
    else:
        keyspace.compacted = revision
    return (COMPACT_TAG,)
