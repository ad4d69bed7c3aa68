"""A nightly job on two machines, run by the leader until it fails.

The job writes with its token, and what it writes to refuses an older one: a leader that was paused may
come back in the middle of its job, when the other one leads already.

python examples/kv_cron_leader.py
"""

from __future__ import annotations

import threading

from quorumlog.kv import Compare, KeyValueClient, Put, Relation, Target, connect
from quorumlog.kv.testing import LocalStores


def run_job(kv: KeyValueClient, token: int, night: int) -> bool:
    """False: a client with a higher token was here before."""
    with_token = Compare(b"report/token", Target.VALUE, Relation.GREATER, b"%020d" % token)
    done = kv.txn(
        [with_token],
        [],
        [Put(b"report/token", b"%020d" % token), Put(b"report/night", b"%d" % night)],
    )
    return not done.succeeded


def serve(servers: str, name: str, may_end: threading.Event, told: list[str]) -> None:
    with connect(servers) as kv, kv.leadership("cron", name, ttl_s=5) as election:
        night = int(kv["report/night"]) + 1 if "report/night" in kv else 1
        election.check()
        assert run_job(kv, election.token, night)
        told.append(f"night {night}: {name} leads")
        may_end.wait()


with LocalStores() as stores:
    told: list[str] = []
    ends = [threading.Event(), threading.Event()]
    first = threading.Thread(target=serve, args=(stores.servers, "one", ends[0], told))
    first.start()
    with connect(stores.servers) as kv:
        while kv.leader("cron") is None:
            pass
        second = threading.Thread(target=serve, args=(stores.servers, "two", ends[1], told))
        second.start()
        ends[0].set()
        first.join()
        ends[1].set()
        second.join()
        print(*told, sep="\n")
        print("an old token is", "taken" if run_job(kv, 1, 9) else "refused")
