"""What Patroni asks of etcd, by its own class: python use_patroni.py HOST:PORT,... of JSON gateways.

It prints a line for each step.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

from patroni.dcs import get_dcs

TIMEOUT_S = 30.0


def dcs_of(name: str, gateways: str) -> Any:
    own = {"name": name, "ttl": 30, "retry_timeout": 10, "loop_wait": 10}
    return get_dcs({"scope": "door", **own, "etcd3": {"hosts": gateways.split(",")}})


def leader_of(dcs: Any) -> str:
    leader = dcs.get_cluster().leader
    return leader.name if leader is not None else ""


def eventually(holds: Callable[[], object]) -> None:
    """What others have changed comes by a watch."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while not holds():
        assert time.monotonic() < deadline_s, holds
        time.sleep(0.05)


def main(gateways: str) -> None:
    first, second = dcs_of("pg0", gateways), dcs_of("pg1", gateways)
    assert first.initialize(create_new=True, sysid="71") and not second.initialize(create_new=True)
    for dcs in (first, second):
        assert dcs.touch_member(
            {"conn_url": "postgres://127.0.0.1/", "state": "running", "role": "replica"}
        )
    print("initialize", flush=True)
    assert first.attempt_to_acquire_leader() and not second.attempt_to_acquire_leader()
    for dcs in (first, second):
        eventually(lambda: leader_of(dcs) == "pg0")  # noqa: B023
    cluster = second.get_cluster()
    assert len(cluster.members) == 2 and cluster.initialize == "71"
    assert first.update_leader(first.get_cluster(), 5)
    eventually(lambda: second.get_cluster().status.last_lsn == 5)
    print("leader", flush=True)
    assert first.set_config_value(json.dumps({"ttl": 30}))
    eventually(lambda: first.get_cluster().config)
    version = first.get_cluster().config.version
    assert first.set_config_value(json.dumps({"ttl": 40}), version)
    assert not first.set_config_value(json.dumps({"ttl": 50}), version)
    eventually(lambda: second.get_cluster().config.data == {"ttl": 40})
    print("config", flush=True)
    assert first.delete_leader(first.get_cluster().leader)
    assert second.attempt_to_acquire_leader()
    eventually(lambda: leader_of(first) == "pg1")
    assert second.delete_cluster()
    eventually(lambda: not first.get_cluster().members)
    print("switchover", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
