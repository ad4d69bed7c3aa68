"""Stores in virtual time; `make sim-kv` runs many more seeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from quorumlog.consensus.ready import Role
from quorumlog.errors import RequestTimeout
from quorumlog.kv.requests import (
    FROM_KEY,
    Compact,
    Grant,
    History,
    Put,
    Range,
    Revoke,
    WatchRequest,
    done,
)
from quorumlog.kv.service import OneWatch, WatchHub
from quorumlog.kv.store.engine import RocksEngine
from quorumlog.kv.store.keyspace import Keyspace
from quorumlog.kv.store.machine import KeyValueMachine
from quorumlog.net.rpc.timings import Timings
from quorumlog.testing.member import SimMember
from sim.kv.histories import Looked, Wrote
from sim.kv.promises import check_keys, check_leases, check_watches
from sim.kv.sim_clients import KEYS, SimStoreClient
from sim.kv.store_run import made_stores, run_store
from tests.kv.applied import AppliedStore, Saved, saved
from tests.sim.test_installs import SMALL


def stores_keep_their_promises(seeds: Sequence[int] = range(1, 9)) -> None:
    for seed in seeds:
        failure = run_store(seed).failure
        assert not failure, f"seed {seed}: {failure}"


def test_a_store_keeps_its_promises_where_members_fail() -> None:
    """What one seed happens to do moves with each change of the simulator: all of them do everything."""
    counts: Counter[str] = Counter()
    for seed in (1, 3, 4):
        result = run_store(seed, faults_ms=4_000)
        assert not result.failure, f"seed {seed}: {result.failure}"
        counts.update(result.counts)
    for what in ("Looked", "Wrote", "Deleted", "watched", "kept alive", "locked"):
        assert counts[f"store: {what}"], what


def test_a_seed_is_the_same_run_each_time() -> None:
    first, second = (run_store(5, faults_ms=1_000) for _ in range(2))
    assert first.trace_hash == second.trace_hash
    assert not first.failure, first.failure


def test_a_store_that_nobody_changes_writes_nothing() -> None:
    """Once its history is compacted."""
    seed = next(each for each in range(100) if Random(f"{each}:compaction").choice((0, 3_000)))
    stores = made_stores(seed, ())
    cluster = stores.cluster
    client = SimStoreClient(stores.endpoints, stores.histories, "c0")
    for member in cluster.members:
        member.start()
    client.work()
    cluster.run_for(3_000)
    cluster.clients_work = False
    cluster.run_for(20_000)
    ends = [member.node.store.end.index for member in cluster.members]
    assert min(ends) > 10
    cluster.run_for(10_000)
    assert [member.node.store.end.index for member in cluster.members] == ends


class _Silent:
    unsent_bytes = 0

    def send(self, data: bytes) -> None:
        """Whatever it is."""


def watches_catch_up_in_pieces() -> None:
    """History comes some at a time: what is between two answers is asked for."""
    asked: list[int] = []
    answers: list[Any] = []

    def ask(question: bytes, done: Any) -> None:
        asked.append(msgspec.msgpack.decode(question, type=History).first_revision)
        answers.append(done)

    hub = WatchHub(ask)
    hub.begins(10)
    hub.add(_Silent(), WatchRequest(request_id=1, key=b"a", first_revision=1))
    answers[0](done(10, (20, 5, [])))
    assert asked == [1, 5], "it has not caught up"


def test_watches_catch_up_in_pieces() -> None:
    watches_catch_up_in_pieces()


@pytest.mark.parametrize("end", [b"", b"z"])
def test_who_leaves_with_many_watches_holds_nobody_up(
    monkeypatch: pytest.MonkeyPatch, end: bytes
) -> None:
    """None is compared with another one; 40,000 of two clients held the member up for 17 s."""
    hub = WatchHub(lambda question, done: None)
    stays, leaves = _Silent(), _Silent()
    for session in (stays, leaves):
        for number in range(100):
            hub.add(session, WatchRequest(request_id=number, key=b"a", end=end))
    compared: list[Any] = []
    monkeypatch.setattr(OneWatch, "__eq__", lambda one, other: compared.append(other))
    hub.lost(leaves)
    assert len(hub) == 100
    assert not compared


def test_many_watches_of_a_client_read_history_a_few_at_a_time() -> None:
    """8 KB that ask for 400 of them made a member grow by 0.8 GB."""
    answers: list[Any] = []
    hub = WatchHub(lambda question, done: answers.append(done))
    hub.begins(10)
    asks, other = _Silent(), _Silent()
    for number in range(100):
        hub.add(asks, WatchRequest(request_id=number, key=b"a", first_revision=1))
    assert len(answers) == 4
    hub.tick(0.0)
    assert len(answers) == 4
    hub.add(other, WatchRequest(request_id=1, key=b"a", first_revision=1))
    assert len(answers) == 5, "others do not wait for it"
    hub.cancel(asks, 50)
    answers.pop(0)(RequestTimeout("late"))
    hub.tick(50.0)
    answered = 0
    while answers:
        assert len(answers) <= 5
        answers.pop(0)(done(10, (20, 11, [])))
        answered += 1
    assert answered == 100, "each of them, whoever ticks"
    for session in (asks, other):
        hub.lost(session)
    assert not hub._asking and not hub._behind


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
    client = SimStoreClient(stores.endpoints, stores.histories, "client")
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


def a_read_has_what_was_acknowledged_before_it_whoever_is_asked() -> None:
    """Followers hear a heartbeat later what is committed, and have applied less until then."""
    stores = made_stores(2)
    cluster = stores.cluster
    for member in cluster.members:
        member.start()
    while not (leading := [m for m in cluster.members if m.node.raft.role is Role.LEADER]):
        cluster.run_for(50)
    clients = {
        member: SimStoreClient(stores.endpoints, stores.histories, member.member_id)
        for member in cluster.members
    }
    for member, client in clients.items():
        client.connect_to(member)
    history = stores.histories.of_key[KEYS[0]]

    def written() -> int:
        return sum(isinstance(each.operation, Wrote) for each in history)

    for count in range(1, 11):
        while written() < count:
            clients[leading[0]].put(KEYS[0])
            for _ in range(1_000):
                if written() >= count:
                    break
                cluster.run_for(0.1)
        for client in clients.values():
            client.look(KEYS[0])
        cluster.run_for(300)
    assert sum(isinstance(each.operation, Looked) for each in history) >= 10
    check_keys(stores.histories)


def test_a_read_has_what_was_acknowledged_before_it_whoever_is_asked() -> None:
    a_read_has_what_was_acknowledged_before_it_whoever_is_asked()


INSTALLS = replace(SMALL, storage=replace(SMALL.storage, snapshot_entries=5))


def a_watch_goes_on_over_a_snapshot_that_its_member_takes_over() -> None:
    """Its member is cut off until nobody has the entries any more that it lacks."""
    stores = made_stores(1, profile=INSTALLS)
    cluster = stores.cluster
    for member in cluster.members:
        member.start()

    def until(condition: Callable[[], bool]) -> None:
        until_ms = cluster.now_ms + 20_000
        while not condition():
            assert cluster.now_ms < until_ms
            cluster.run_for(20)

    def leader() -> SimMember | None:
        leading = (m for m in cluster.members if m.node.raft.role is Role.LEADER)
        return next((m for m in leading if m.node.machines.status()[0].channel), None)

    def put(count: int) -> None:
        for _ in range(count):
            before = keyspace().revision
            writer.put(KEYS[0])
            until(lambda before=before: keyspace().revision > before)

    def keyspace() -> Keyspace:
        return stores.endpoints.machines[leads.member_id].keyspace

    def cut_log(member: SimMember) -> bool:
        node, bound = member.node, member.node.machines.snapshot_bound()
        if node.store.begin.index <= away.node.store.end.index and bound and not node.drops.is_under_way:
            saved = [start for start in node.store.boundaries.saved() if start.point.index <= bound]
            if saved:
                member.enter(lambda: node.drops.begin(saved[0]))
        return node.store.begin.index > away.node.store.end.index

    until(lambda: leader() is not None)
    leads = leader()
    assert leads is not None
    away, other = (member for member in cluster.members if member is not leads)
    writer = SimStoreClient(stores.endpoints, stores.histories, "writer")
    writer.connect_to(leads)
    at_once = Timings(tick_ms=1.0, redial_ms=1.0, redial_limit_ms=1.0)
    watcher = SimStoreClient(stores.endpoints, stores.histories, "watcher", at_once)
    watcher.connect_to(away)
    put(1)
    watcher.watch()
    (seen,) = stores.histories.watches
    until(lambda: seen.next_revision > 0)
    put(3)
    until(lambda: len(seen.changes) == 3)
    for near in (leads, other):
        for pair in ((away, near), (near, away)):
            cluster.network.cut.add((pair[0].member_id, pair[1].member_id))
    put(30)
    until(lambda: cut_log(leads) and cut_log(other))
    cluster.network.heal(set(cluster.network.cut))
    until(lambda: stores.endpoints.machines[away.member_id].keyspace.revision == keyspace().revision)
    assert cluster.trace.counts["install: a log is replaced"] == 1
    put(1)
    until(lambda: seen.next_revision > keyspace().revision)
    check_watches(stores.histories, keyspace())
    assert len(seen.changes) == 34


def test_a_watch_goes_on_over_a_snapshot_that_its_member_takes_over() -> None:
    a_watch_goes_on_over_a_snapshot_that_its_member_takes_over()


def a_watch_leaves_a_leader_that_is_cut_off() -> None:
    """From the other members, while clients reach all of them: what is written elsewhere is heard before
    the links are there again."""
    stores = made_stores(3)
    cluster = stores.cluster
    for member in cluster.members:
        member.start()

    def leader_of(*among: SimMember) -> SimMember | None:
        leading = (m for m in among if m.node.raft.role is Role.LEADER)
        return next((m for m in leading if m.node.machines.status()[0].channel), None)

    def until(condition: Callable[[], object]) -> None:
        until_ms = cluster.now_ms + 20_000
        while not condition():
            assert cluster.now_ms < until_ms
            cluster.run_for(20)

    until(lambda: leader_of(*cluster.members))
    leader = leader_of(*cluster.members)
    assert leader is not None
    watcher = SimStoreClient(stores.endpoints, stores.histories, "watcher")
    watcher.connect_to(leader)
    watcher.watch()
    (seen,) = stores.histories.watches
    until(lambda: seen.next_revision > 0)
    watcher.connect_to(None)
    others = [member for member in cluster.members if member is not leader]
    for other in others:
        for pair in ((leader, other), (other, leader)):
            cluster.network.cut.add((pair[0].member_id, pair[1].member_id))
    until(lambda: leader_of(*others))
    writer = SimStoreClient(stores.endpoints, stores.histories, "writer")
    writer.connect_to(leader_of(*others))
    writer.put(KEYS[0])
    until(lambda: seen.changes)


def test_a_watch_leaves_a_leader_that_is_cut_off() -> None:
    a_watch_leaves_a_leader_that_is_cut_off()


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


def a_store_is_saved_as_it_was_at_the_first_slice() -> None:
    """Meanwhile all keys change, and the history is compacted that it is saved with."""
    store = AppliedStore(KeyValueMachine(slice_items=2))
    for value in (b"1", b"2"):
        for key in (b"a", b"b", b"c", b"d"):
            store.do(Put(key, value))
    expected = saved(store.machine)
    writer = Saved()
    for _ in store.machine.save_slices(writer):
        store.do_all(*[Put(key, b"3") for key in (b"a", b"b", b"c", b"d")])
        store.do(Compact(store.revision))
    other = AppliedStore()
    other.machine.load(Saved(bytes(writer.data)))
    assert saved(other.machine) == expected


def test_a_store_is_saved_as_it_was_at_the_first_slice() -> None:
    a_store_is_saved_as_it_was_at_the_first_slice()


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
