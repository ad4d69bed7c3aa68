"""At most so many calls in a window, over all processes: a counter on a lease that ends with the window.

python examples/kv_rate_limiter.py
"""

from __future__ import annotations

from quorumlog.kv import Compare, KeyValueClient, Put, Relation, Target, connect
from quorumlog.kv.testing import LocalStores


def is_allowed(kv: KeyValueClient, name: str, limit: int, window_s: float) -> bool:
    """Count one call, unless there were `limit` in this window."""
    key = f"rate/{name}".encode()
    while True:
        item = kv.get(key)
        count = 0 if item is None else int(item.value)
        if count >= limit:
            return False
        if item is None:
            lease = kv.grant(window_s, keeps_alive=False)  # the window ends by itself
            unchanged = Compare(key, Target.CREATE, Relation.EQUAL, 0)
            put = Put(key, b"1", lease.id)
        else:
            unchanged = Compare(key, Target.MOD, Relation.EQUAL, item.mod_revision)
            put = Put(key, b"%d" % (count + 1), keeps_lease=True)
        if kv.txn([unchanged], [put]).succeeded:
            return True


with LocalStores() as stores, connect(stores.servers) as kv:
    allowed = [is_allowed(kv, "alice", limit=3, window_s=2) for _ in range(5)]
    print("in one window:", *("yes" if each else "no" for each in allowed))
    with kv.watch("rate/alice", puts=False) as ends:
        ends.batch(timeout_ms=30_000)
    print("in the next:", "yes" if is_allowed(kv, "alice", limit=3, window_s=2) else "no")
