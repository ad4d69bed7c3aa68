"""Configuration that reloads itself: a program reads it once, and watches every later change.

python examples/kv_live_configuration.py
"""

from __future__ import annotations

import threading

from quorumlog.kv import connect
from quorumlog.kv.testing import LocalStores

PREFIX = "config/"


class Configuration:
    """The newest values below a prefix, kept up to date by a thread."""

    def __init__(self, servers: str) -> None:
        self._kv = connect(servers, codec="json")
        found = self._kv.prefix(PREFIX)
        self.values = {item.key.decode(): item.value for item in found.items}
        # From the revision after the read: no change is missed.
        self._watch = self._kv.watch_prefix(PREFIX, first_revision=found.revision + 1)
        self._changed = threading.Condition()
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self) -> None:
        for change in self._watch:
            with self._changed:
                name = change.item.key.decode()
                if change.is_deletion:
                    self.values.pop(name, None)
                else:
                    self.values[name] = change.item.value
                self._changed.notify_all()

    def wait_for(self, name: str, value: object) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self.values.get(name) == value, timeout=30)


with LocalStores() as stores, connect(stores.servers, codec="json") as operator:
    operator["config/workers"] = 4
    configuration = Configuration(stores.servers)
    print("started with", configuration.values)
    stores.cluster.kill(stores.cluster.leader())
    operator["config/workers"] = 8
    configuration.wait_for("config/workers", 8)
    print("continues with", configuration.values)
