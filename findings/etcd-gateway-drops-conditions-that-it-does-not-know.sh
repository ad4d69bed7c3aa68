#!/usr/bin/env bash
# etcd 3.6.16, JSON gateway: a field whose value is no name of its enumeration is dropped, and the default holds in its
# place. In a transaction's comparison, whose default is EQUAL, a condition that is false becomes true: "the version is not 1"
# with NOT_EQUALS for NOT_EQUAL deletes a key of version 1. Unknown fields are ignored in the same way: `end` for
# `range_end` deletes one key instead of a range. 3.5.35 refuses the former with status 400; 3.7.3 is as 3.6.16.
# Seen: with NOT_EQUAL nothing is deleted, with NOT_EQUALS the key is; no error in either case.
# Needs Go; a first build takes some minutes.
set -euo pipefail
work=$(mktemp -d)
trap 'kill "${server:-}" 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$work"' EXIT
cd "$work"
export GOFLAGS=-modcacherw GOWORK=off
go mod init finding.example >/dev/null 2>&1
go get -tool go.etcd.io/etcd/server/v3@v3.6.16 >/dev/null 2>&1
go build -o etcd go.etcd.io/etcd/server/v3
read -r client peer < <(python3 -c 'import socket
probes = [socket.socket() for _ in range(2)]
for probe in probes: probe.bind(("127.0.0.1", 0))
print(*(probe.getsockname()[1] for probe in probes))')
./etcd --data-dir data --log-level error --listen-client-urls "http://127.0.0.1:$client" \
    --advertise-client-urls "http://127.0.0.1:$client" --listen-peer-urls "http://127.0.0.1:$peer" \
    --initial-advertise-peer-urls "http://127.0.0.1:$peer" --initial-cluster "default=http://127.0.0.1:$peer" 2>/dev/null &
server=$!
python3 - "$client" <<'PYTHON'
import json, sys, time, urllib.error, urllib.request
from base64 import b64encode


def post(path, body):
    url = f"http://127.0.0.1:{sys.argv[1]}/v3/kv/{path}"
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode())) as answer:
        return json.load(answer)


key = b64encode(b"key").decode()
deadline_s = time.monotonic() + 60
while True:
    try:
        post("put", {"key": key, "value": key})
        break
    except (OSError, urllib.error.URLError):
        assert time.monotonic() < deadline_s, "etcd does not start"
        time.sleep(0.1)


def deleted(result):
    """By a transaction whose condition is that the version of the key is not 1; it is 1."""
    compare = {"key": key, "target": "VERSION", "result": result, "version": "1"}
    post("txn", {"compare": [compare], "success": [{"request_delete_range": {"key": key}}]})
    return "kvs" not in post("range", {"key": key})


seen = {result: deleted(result) for result in ("NOT_EQUAL", "NOT_EQUALS")}
print("etcd 3.6.16, key of version 1 deleted if its version is", seen)
assert seen == {"NOT_EQUAL": False, "NOT_EQUALS": True}, "an unknown name is no longer dropped"
PYTHON
