"""Service discovery: each instance registers on a lease, and is gone from the list when it is gone.

python examples/kv_service_discovery.py
"""

from __future__ import annotations

from quorumlog.kv import connect
from quorumlog.kv.testing import LocalStores

PREFIX = "services/web/"

with LocalStores() as stores, connect(stores.servers, codec="text") as client:
    with client.watch_prefix(PREFIX) as changes:
        one, two = (connect(stores.servers, codec="text") for _ in range(2))
        for name, instance in (("one", one), ("two", two)):
            lease = instance.grant(2)  # kept alive as long as the instance lives
            instance.put(PREFIX + name, f"http://{name}:8080", lease=lease)
            (change,) = changes.batch(timeout_ms=30_000)
            print("up:", change.item.key.decode(), change.item.value)
        one.close()  # as if it were killed: its lease is not kept alive
        (change,) = changes.batch(timeout_ms=30_000)
        print("down:", change.item.key.decode())
    print("left:", *(item.value for item in client.prefix(PREFIX).items))
    two.close()
