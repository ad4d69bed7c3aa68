"""Requests of etcd's API that would take long to parse are refused before they are."""

from __future__ import annotations

import json
from typing import Any

import pytest

from quorumlog.kv.errors import InvalidRequest
from quorumlog.kv.etcd import conversions, json_mapping
from quorumlog.kv.etcd import messages_pb2 as pb
from quorumlog.kv.etcd.errors import error_of
from quorumlog.kv.etcd.json_mapping import parsed
from quorumlog.kv.requests import MAX_OPERATIONS, check, encode

EMPTY = b"\x12\x00"
"""An operation of a transaction, in protobuf."""


def words_of(refused: pytest.ExceptionInfo[InvalidRequest]) -> str:
    return error_of(refused.value).words


@pytest.mark.parametrize("value", [b"{}", b"[]", b'{"requestTxn":{}}', b"1"])
def test_a_body_of_very_many_values_is_refused_before_it_is_parsed(
    value: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_mapping, "loads", None)
    body = b'{"success":[' + value + (b"," + value) * 200_000 + b"]}"
    with pytest.raises(InvalidRequest) as refused:
        parsed(pb.TxnRequest, body)
    assert words_of(refused) == "etcdserver: request is too large"


def test_the_largest_transaction_is_taken_with_all_its_fields() -> None:
    fields: dict[str, Any] = {
        each.name: "YQ==" if each.type == each.TYPE_BYTES else 1
        for each in pb.RangeRequest.DESCRIPTOR.fields
        if each.type != each.TYPE_BOOL
    }
    fields |= {"range_end": "", "sort_order": "ASCEND", "keys_only": True, "count_only": True}
    compare = {"key": "YQ==", "target": "VALUE", "result": "EQUAL", "value": "YQ==", "range_end": ""}
    operations = [{"request_range": {**fields, "serializable": True}}] * MAX_OPERATIONS
    asked = {"compare": [compare] * MAX_OPERATIONS, "success": operations, "failure": operations}
    wanted = conversions.txn_of(parsed(pb.TxnRequest, json.dumps(asked).encode()))
    check(wanted, len(encode(wanted)))
    assert len(wanted.success) == len(wanted.failure) == MAX_OPERATIONS


def nested(width: int, depth: int) -> pb.TxnRequest:
    asked = pb.TxnRequest()
    for _ in range(depth):
        asked = pb.TxnRequest(success=[pb.RequestOp(request_txn=asked)] * width)
    return asked


@pytest.mark.parametrize(
    "asked",
    [pb.TxnRequest.FromString(EMPTY * (MAX_OPERATIONS + 1)), nested(22, 3)],
    ids=["long", "nested"],
)
def test_a_transaction_of_too_many_operations_is_refused_before_it_is_converted(
    asked: pb.TxnRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversions, "_operation_of", None)
    with pytest.raises(InvalidRequest) as refused:
        conversions.txn_of(asked)
    assert words_of(refused) == "etcdserver: too many operations in txn request"


def test_inner_transactions_are_taken() -> None:
    assert len(conversions.txn_of(nested(64, 2)).success) == 64
