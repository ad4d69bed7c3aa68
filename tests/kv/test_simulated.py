"""Stores in virtual time; `make sim-kv` runs many more seeds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from quorumlog.consensus.ready import Role
from quorumlog.kv.requests.operations import FROM_KEY, Grant, History, Put, Range, Revoke
from quorumlog.kv.simulated.promises import check_leases
from quorumlog.kv.simulated.sim_clients import SimStoreClient
from quorumlog.kv.simulated.store_run import made_stores, run_store
from quorumlog.kv.store import ranges
from quorumlog.kv.store.machine import KeyValueMachine
from quorumlog.kv.store.rocks_engine import RocksEngine
from quorumlog.sim.member import SimMember
from tests.kv.applied import AppliedStore, Saved, saved


def stores_keep_their_promises(seeds: Sequence[int] = range(1, 9)) -> None:
    for seed in seeds:
        failure = run_store(seed).failure
        assert not failure, f"seed {seed}: {failure}"


@pytest.mark.parametrize("seed", [1, 3])
def test_a_store_keeps_its_promises_where_members_fail(seed: int) -> None:
    result = run_store(seed, faults_ms=4_000)
    assert not result.failure, result.failure
    for what in ("Looked", "Wrote", "Deleted", "watched", "kept alive", "locked"):
        assert result.counts[f"store: {what}"], what


def test_a_seed_is_the_same_run_each_time() -> None:
    first, second = (run_store(5, faults_ms=1_000) for _ in range(2))
    assert first.trace_hash == second.trace_hash
    assert not first.failure, first.failure


def watches_catch_up_in_pieces() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranges, "MOST_CHANGES", 2)
        stores_keep_their_promises(range(1, 4))


def a_leader_that_is_cut_off_keeps_no_lease_alive() -> None:
    stores = made_stores(3)
    cluster = stores.cluster
    for member in cluster.members:
        member.start()

    def leader_of(*among: SimMember) -> SimMember:
        while True:
            cluster.run_for(50)
            for member in among:
                leads = member.node.raft.role is Role.LEADER
                if leads and member.node.machines.status()[0].channel:
                    return member

    leader = leader_of(*cluster.members)
    others = [member for member in cluster.members if member is not leader]
    client = SimStoreClient(stores.doors, stores.histories, "client")
    client.connect_to(leader)
    client.hold_lease()
    while not stores.histories.leases:
        cluster.run_for(50)
    for other in others:
        for pair in ((leader, other), (other, leader)):
            cluster.network.cut.add((pair[0].member_id, pair[1].member_id))
    for _ in range(100):
        client.hold_lease()
        cluster.run_for(100)
    leader_of(*others)
    check_leases(stores.histories)
    assert stores.histories.ended_ms, "the new leader has ended it in its time"


def test_a_leader_that_is_cut_off_keeps_no_lease_alive() -> None:
    a_leader_that_is_cut_off_keeps_no_lease_alive()


def a_saved_store_has_its_leases() -> None:
    store = AppliedStore()
    lease = store.do(Grant(5000)).lease
    store.do(Put(b"a", b"1", lease=lease))
    other = AppliedStore(KeyValueMachine(), index=store.index)
    other.machine.load(Saved(saved(store.machine)))
    assert list(other.machine.keyspace.leases) == [lease]
    assert other.do(Revoke(lease)).deleted == 1
    assert not other.ask(Range(b"a")).kvs
    assert other.ask(History(1, b"\0", FROM_KEY)).events[-1].is_deletion


def test_a_saved_store_has_its_leases() -> None:
    a_saved_store_has_its_leases()


class _Broken:
    """RocksDB of a process that dies with its second write of a batch."""

    def __init__(self, db: object) -> None:
        self._db = db
        self.writes_left = 1

    def write(self, *arguments: object) -> None:
        assert self.writes_left, "the process has died"
        self.writes_left -= 1
        self._db.write(*arguments)  # type: ignore[attr-defined]

    def put(self, *arguments: object, **options: object) -> None:
        assert self.writes_left, "the process has died"
        self.writes_left -= 1
        self._db.put(*arguments, **options)  # type: ignore[attr-defined]

    def __getattr__(self, name: str) -> object:
        return getattr(self._db, name)


def rocksdb_has_a_batch_with_its_index_or_nothing(path: Path) -> None:
    engine = RocksEngine(path)
    store = AppliedStore(KeyValueMachine(lambda: engine))
    store.do(Put(b"a", b"1"))
    whole = engine._db
    engine._db = _Broken(whole)  # type: ignore[assignment]
    try:
        store.do(Put(b"a", b"2"))
    except Exception:  # it died
        engine._pending.clear()
    engine._db = whole
    applied = engine.applied()
    assert applied is not None
    assert store.get(b"a") == b"%d" % applied.index
    engine.close()


def test_rocksdb_has_a_batch_with_its_index_or_nothing(tmp_path: Path) -> None:
    rocksdb_has_a_batch_with_its_index_or_nothing(tmp_path)
