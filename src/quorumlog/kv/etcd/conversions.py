"""Requests of etcd as those of the store, and the store's answers as etcd's."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import lru_cache

from quorumlog.kv.errors import Compacted, InvalidRequest, KeyNotFound, LeaseNotFound
from quorumlog.kv.etcd import messages_pb2 as pb
from quorumlog.kv.etcd.errors import Code, etcd_error
from quorumlog.kv.requests import (
    MAX_OPERATIONS,
    Compact,
    Compare,
    DeleteAnswer,
    DeleteRange,
    Event,
    KeyValue,
    Operation,
    Put,
    PutAnswer,
    Range,
    RangeAnswer,
    Relation,
    Target,
    Txn,
    TxnAnswer,
    WatchRequest,
)

MOST_OPERATIONS = 64 * MAX_OPERATIONS
"""Most operations and comparisons of a transaction, those of inner ones included. They are converted on
the loop, before the store checks them."""
_RANGE_TARGETS = (Target.KEY, Target.VERSION, Target.CREATE, Target.MOD, Target.VALUE)
_ORDERS = (pb.RangeRequest.NONE, pb.RangeRequest.ASCEND, pb.RangeRequest.DESCEND)
_COMPARED = {
    Target.VERSION: "version",
    Target.CREATE: "create_revision",
    Target.MOD: "mod_revision",
    Target.VALUE: "value",
    Target.LEASE: "lease",
}


@lru_cache(maxsize=64)
def number_of(text: str) -> int:
    """The 63-bit number that stands for the name of a member or cluster in etcd's messages."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def put_of(asked: pb.PutRequest) -> Put:
    """Raises LeaseNotFound."""
    if asked.lease < 0:
        raise LeaseNotFound(f"there is no lease {asked.lease}")
    return Put(
        asked.key, asked.value, asked.lease, asked.prev_kv, asked.ignore_value, asked.ignore_lease
    )


def delete_of(asked: pb.DeleteRangeRequest) -> DeleteRange:
    return DeleteRange(asked.key, asked.range_end, asked.prev_kv)


def range_of(asked: pb.RangeRequest) -> Range:
    """A limit or a revision below 0 counts as 0. Raises RpcError."""
    if not (0 <= asked.sort_target < len(_RANGE_TARGETS) and asked.sort_order in _ORDERS):
        raise etcd_error(Code.INVALID_ARGUMENT, "invalid sort option")
    return Range(
        asked.key,
        asked.range_end,
        max(0, asked.limit),
        max(0, asked.revision),
        _RANGE_TARGETS[asked.sort_target],
        asked.sort_order == pb.RangeRequest.DESCEND,
        asked.keys_only,
        asked.count_only,
        max(0, asked.min_mod_revision),
        _upper(asked.max_mod_revision),
        max(0, asked.min_create_revision),
        _upper(asked.max_create_revision),
    )


def _upper(revision: int) -> int:
    """An upper bound below 0 becomes 1, the revision of an empty store, which no key has."""
    return revision if revision >= 0 else 1


def txn_of(asked: pb.TxnRequest) -> Txn:
    """Raises InvalidRequest, KeyNotFound, LeaseNotFound, RpcError."""
    _check_operations(asked, MOST_OPERATIONS)
    return _txn_of(asked)


def _check_operations(asked: pb.TxnRequest, most: int) -> int:
    """Returns how many are left of `most`. Raises InvalidRequest."""
    longest = max(len(asked.compare), len(asked.success), len(asked.failure))
    most -= len(asked.compare) + len(asked.success) + len(asked.failure)
    if longest > MAX_OPERATIONS or most < 0:
        raise InvalidRequest(
            f"a transaction has at most {MAX_OPERATIONS} operations in each of its lists, and"
            f" {MOST_OPERATIONS} with those of inner ones"
        )
    for operations in (asked.success, asked.failure):
        for each in operations:
            if each.HasField("request_txn"):
                most = _check_operations(each.request_txn, most)
    return most


def _txn_of(asked: pb.TxnRequest) -> Txn:
    return Txn(
        [_compare_of(each) for each in asked.compare],
        [_operation_of(each) for each in asked.success],
        [_operation_of(each) for each in asked.failure],
    )


def _compare_of(asked: pb.Compare) -> Compare:
    try:
        target, relation = Target(asked.target), Relation(asked.result)
        than = getattr(asked, _COMPARED[target])
    except (ValueError, KeyError):
        raise InvalidRequest(
            f"there is no comparison of target {asked.target} and result {asked.result}"
        ) from None
    return Compare(asked.key, target, relation, than, asked.range_end)


def _operation_of(asked: pb.RequestOp) -> Operation:
    match asked.WhichOneof("request"):
        case "request_range":
            return range_of(asked.request_range)
        case "request_put":
            return put_of(asked.request_put)
        case "request_delete_range":
            return delete_of(asked.request_delete_range)
        case "request_txn":
            return _txn_of(asked.request_txn)
    raise KeyNotFound("an operation of a transaction is empty")  # in the word that etcd has for it


def compact_of(asked: pb.CompactionRequest) -> Compact:
    """Raises Compacted."""
    if asked.revision < 0:
        raise Compacted("there is no history below revision 0")
    return Compact(asked.revision)


def watch_of(asked: pb.WatchCreateRequest) -> WatchRequest:
    return WatchRequest(
        key=asked.key or b"\0",
        end=asked.range_end,
        first_revision=asked.start_revision if asked.start_revision >= 0 else 1,
        prev_kv=asked.prev_kv,
        puts=pb.WatchCreateRequest.NOPUT not in asked.filters,
        deletions=pb.WatchCreateRequest.NODELETE not in asked.filters,
    )


# ---------------------------------------------------------------- answers


def key_value(kv: KeyValue) -> pb.KeyValue:
    return pb.KeyValue(
        key=kv.key,
        create_revision=kv.create_revision,
        mod_revision=kv.mod_revision,
        version=kv.version,
        value=kv.value,
        lease=kv.lease,
    )


def _key_values(kvs: Iterable[KeyValue]) -> list[pb.KeyValue]:
    return [key_value(kv) for kv in kvs]


def put_response(header: pb.ResponseHeader, found: PutAnswer) -> pb.PutResponse:
    prev_kv = None if found.prev_kv is None else key_value(found.prev_kv)
    return pb.PutResponse(header=header, prev_kv=prev_kv)


def delete_response(header: pb.ResponseHeader, found: DeleteAnswer) -> pb.DeleteRangeResponse:
    prev_kvs = _key_values(found.prev_kvs)
    return pb.DeleteRangeResponse(header=header, deleted=found.deleted, prev_kvs=prev_kvs)


def range_response(header: pb.ResponseHeader, found: RangeAnswer) -> pb.RangeResponse:
    kvs = _key_values(found.kvs)
    return pb.RangeResponse(header=header, kvs=kvs, more=found.more, count=found.count)


def txn_response(header: pb.ResponseHeader, found: TxnAnswer) -> pb.TxnResponse:
    """Responses in a transaction have its revision in their headers; nested transactions have an
    empty header."""
    return _txn_response(header, found, header.revision)


def _txn_response(header: pb.ResponseHeader, found: TxnAnswer, revision: int) -> pb.TxnResponse:
    responses = [_inner(each, revision) for each in found.answers]
    return pb.TxnResponse(header=header, succeeded=found.succeeded, responses=responses)


def _inner(found: PutAnswer | DeleteAnswer | RangeAnswer | TxnAnswer, revision: int) -> pb.ResponseOp:
    header = pb.ResponseHeader(revision=revision)
    if isinstance(found, PutAnswer):
        return pb.ResponseOp(response_put=put_response(header, found))
    if isinstance(found, DeleteAnswer):
        return pb.ResponseOp(response_delete_range=delete_response(header, found))
    if isinstance(found, RangeAnswer):
        return pb.ResponseOp(response_range=range_response(header, found))
    return pb.ResponseOp(response_txn=_txn_response(pb.ResponseHeader(), found, revision))


def event_of(event: Event) -> pb.Event:
    return pb.Event(
        type=pb.Event.DELETE if event.is_deletion else pb.Event.PUT,
        kv=key_value(event.kv),
        prev_kv=None if event.prev_kv is None else key_value(event.prev_kv),
    )
