"""What programs do with python-etcd3: python use_python_etcd3.py HOST:PORT.

It prints a line for each step.
"""

from __future__ import annotations

import sys
import threading
import time

import etcd3

TIMEOUT_S = 30.0


def main(address: str) -> None:
    host, port = address.split(":")
    with etcd3.client(host=host, port=int(port), timeout=TIMEOUT_S) as client:
        for prefix in ("py/", "txn/", "watch/"):
            client.delete_prefix(prefix)  # of an attempt before
        for step in (keys, transactions, watches, leases, locks, cluster):
            step(client)
            print(step.__name__, flush=True)


def keys(client: etcd3.Etcd3Client) -> None:
    client.put("py/a", "1")
    value, meta = client.get("py/a")
    assert (value, meta.key, meta.version) == (b"1", b"py/a", 1)
    assert client.put("py/a", "2", prev_kv=True).prev_kv.value == b"1"
    assert client.get("py/nothing") == (None, None)
    for name in ("c", "b"):
        client.put(f"py/{name}", name)
    found = client.get_prefix("py/", sort_order="descend", sort_target="key")
    assert [meta.key for _, meta in found] == [b"py/c", b"py/b", b"py/a"]
    assert [value for value, _ in client.get_range("py/a", "py/c")] == [b"2", b"b"]
    assert client.put_if_not_exists("py/new", "1") and not client.put_if_not_exists("py/new", "2")
    assert client.replace("py/new", "1", "2") and not client.replace("py/new", "1", "3")
    assert client.delete("py/new") and not client.delete("py/new")
    assert client.delete_prefix("py/").deleted == 3


def transactions(client: etcd3.Etcd3Client) -> None:
    client.put("txn/a", "1")
    of = client.transactions
    held, answers = client.transaction(
        compare=[of.value("txn/a") == "1", of.version("txn/a") > 0, of.create("txn/b") == 0],
        success=[of.put("txn/b", "2"), of.get("txn/b"), of.delete("txn/a")],
        failure=[of.put("txn/c", "3")],
    )
    assert held and answers[1][0][0] == b"2"
    held, answers = client.transaction(
        compare=[of.version("txn/a") > 0],
        success=[],
        failure=[of.txn(compare=[], success=[of.put("txn/c", "3")], failure=[]), of.get("txn/c")],
    )
    assert not held and answers[-1][0][0] == b"3"


def watches(client: etcd3.Etcd3Client) -> None:
    events, cancel = client.watch_prefix("watch/", prev_kv=True)
    client.put("watch/a", "1")
    client.put("watch/a", "2")
    client.delete("watch/a")
    first, second, third = (next(events) for _ in range(3))
    assert (first.key, first.value) == (b"watch/a", b"1")
    assert second.prev_value == b"1" and isinstance(third, etcd3.events.DeleteEvent)
    cancel()
    told = threading.Event()
    watch_id = client.add_watch_callback("watch/b", lambda response: told.set())
    client.put("watch/b", "1")
    assert told.wait(TIMEOUT_S)
    client.cancel_watch(watch_id)
    revision = client.put("watch/b", "2").header.revision
    client.compact(revision)
    deadline_s = time.monotonic() + TIMEOUT_S
    while compacted(client) != revision:  # another member may not have compacted yet
        assert time.monotonic() < deadline_s, "a watch from before a compaction"


def compacted(client: etcd3.Etcd3Client) -> int:
    """The revision that a watch from the beginning is told to be compacted; 0: none."""
    events, cancel = client.watch("watch/b", start_revision=1)
    try:
        next(events)
    except etcd3.exceptions.RevisionCompactedError as error:
        return int(error.compacted_revision)
    cancel()
    return 0


def leases(client: etcd3.Etcd3Client) -> None:
    lease = client.lease(60)
    client.put("lease/a", "1", lease=lease)
    assert lease.granted_ttl == 60 and 0 < lease.remaining_ttl <= 60 and lease.keys == [b"lease/a"]
    assert [answer.TTL for answer in lease.refresh()] == [60]
    lease.revoke()
    assert client.get("lease/a") == (None, None)


def locks(client: etcd3.Etcd3Client) -> None:
    first, second = client.lock("lock", ttl=60), client.lock("lock", ttl=60)
    assert first.acquire(timeout=TIMEOUT_S) and first.is_acquired()
    assert not second.acquire(timeout=0.2)
    waits = threading.Thread(target=second.acquire, args=(TIMEOUT_S,))
    waits.start()
    assert first.release()
    waits.join(TIMEOUT_S)
    assert second.is_acquired() and second.release()


def cluster(client: etcd3.Etcd3Client) -> None:
    members = list(client.members)
    assert members and all(member.client_urls for member in members)
    status = client.status()
    assert status.leader is None or status.leader.id in [member.id for member in members]
    assert list(client.list_alarms()) == []
    client.defragment()


if __name__ == "__main__":
    main(sys.argv[1])
