#!/usr/bin/env bash
# etcd3gw 2.7.0 with etcd 3.6.16: a watch from a revision that has been compacted is cancelled by the server, which says so
# (`canceled`, `compact_revision`); the client reads that answer and passes it over. The iterator stays open, without an
# error and without an event, whatever is written from then on, and `watch_once` raises WatchTimedOut, as if nothing had
# changed. A reader that comes back after a pause and resumes at its last revision, as watches are made for, hears nothing
# ever again. aetcd 1.0.0, at the same server and revision, raises RevisionCompactedError.
# Seen: of three writes after a watch has begun, three events from a revision that is there, none from one that is not.
# Needs Go; a first build takes some minutes.
set -euo pipefail
work=$(mktemp -d)
trap 'kill "${server:-}" 2>/dev/null || true; wait 2>/dev/null || true; rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check etcd3gw==2.7.0 aetcd==1.0.0
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
"$work/venv/bin/python" - "$client" <<'PYTHON'
import asyncio, queue, sys, threading, time

import aetcd
import etcd3gw
from etcd3gw.exceptions import ConnectionFailedError, WatchTimedOut

port = int(sys.argv[1])
client = etcd3gw.client(port=port, api_path="/v3/")
deadline_s = time.monotonic() + 60
while True:
    try:
        client.put("key", "0")
        break
    except ConnectionFailedError:
        assert time.monotonic() < deadline_s, "etcd does not start"
        time.sleep(0.1)
for value in range(1, 6):
    client.put("key", str(value))
newest = int(client.status()["header"]["revision"])
client.post(client.get_url("/kv/compaction"), json={"revision": newest, "physical": True})


def events_after(revision):
    """Values that a watch from `revision` tells of, of three writes, within 10 s."""
    events, cancel = client.watch("key", start_revision=revision)
    told = queue.Queue()
    threading.Thread(target=lambda: [told.put(event) for event in events], daemon=True).start()
    for value in ("a", "b", "c"):
        client.put("key", value)
    found, stop_s = [], time.monotonic() + 10
    while len(found) < 3 and (left_s := stop_s - time.monotonic()) > 0:
        try:
            found.append(told.get(timeout=left_s)["kv"]["value"].decode())
        except queue.Empty:
            break
    cancel()
    return found


async def aetcd_says(revision):
    async with aetcd.Client(port=port) as other:
        try:
            async with asyncio.timeout(10):
                async for event in await other.watch(b"key", start_revision=revision):
                    return event
        except aetcd.RevisionCompactedError as error:
            return str(error)


present, compacted = events_after(newest + 1), events_after(2)
try:
    once = client.watch_once("key", timeout=5, start_revision=2)
except WatchTimedOut:
    once = "WatchTimedOut"
other = asyncio.run(aetcd_says(2))
print(f"etcd3gw: events from {newest + 1}: {present}, from 2, compacted: {compacted}; watch_once: {once}")
print("aetcd:", other)
assert (present, compacted, once) == (["a", "b", "c"], [], "WatchTimedOut"), "the client tells of it by now"
assert "compacted" in str(other)
PYTHON
