"""Watches times changes: told in slices, whole to each watch, nothing twice and no gap."""

from __future__ import annotations

import random

import msgspec
import pytest

from quorumlog.kv import service as watch_hub
from quorumlog.kv.requests import (
    FROM_KEY,
    DeleteRange,
    Event,
    EventsResponse,
    Put,
    Response,
    Txn,
    WatchRequest,
    encode,
)
from quorumlog.kv.service import WatchHub
from quorumlog.kv.store.keyspace import Changed, Feed
from quorumlog.kv.store.machine import KeyValueMachine
from tests.kv.applied import AppliedStore


class Client:
    def __init__(self) -> None:
        self.unsent_bytes = 0
        self.events: dict[int, list[tuple[int, bytes]]] = {}
        self.responses = 0
        self.next_revision: dict[int, int] = {}

    def send(self, message: Response) -> None:
        assert isinstance(message, EventsResponse)
        self.responses += 1
        told = msgspec.convert(msgspec.msgpack.decode(encode(message.events)), list[Event])
        events = self.events.setdefault(message.request_id, [])
        events += [(each.kv.mod_revision, each.kv.key) for each in told]
        assert message.next_revision > self.next_revision.get(message.request_id, -1)
        self.next_revision[message.request_id] = message.next_revision

    def abort(self) -> None:
        raise AssertionError


class Store:
    def __init__(self) -> None:
        self.feed = Feed()
        self.store = AppliedStore(KeyValueMachine(feed=self.feed))
        self.questions = 0
        self.hub = WatchHub(self._history)
        self.hub.begins(0)
        self.changes: list[tuple[int, bytes]] = []

    def _history(self, question: bytes, done: object) -> None:
        self.questions += 1
        done(self.store.machine.query(question))  # type: ignore[operator]

    def do(self, *commands: object) -> None:
        self.feed.take()
        self.store.do_all(*commands)  # type: ignore[arg-type]
        changes = [each for each in self.feed.take() if isinstance(each, Changed)]
        self.changes += [(each.revision, written.key) for each in changes for written in each.written]
        self.hub.changed(changes)

    def settle(self) -> None:
        for tick in range(1000):
            self.hub.tick(float(tick))
            while self.hub.is_telling:
                self.hub.tell()
            if not self.hub._behind:
                return
        raise AssertionError("a watch does not catch up")


def put_all(count: int) -> Txn:
    return Txn([], [Put(b"k%05d" % number, b"") for number in range(count)], [])


@pytest.mark.parametrize("end", [b"", FROM_KEY])
def test_one_turn_tells_some_watches(monkeypatch: pytest.MonkeyPatch, end: bytes) -> None:
    """5,000 of everything and 2,000 deletions in one command held a member up for 3 s, and the lead was
    lost."""
    monkeypatch.setattr(watch_hub, "SLICE", 1_000)
    store, client, late = Store(), Client(), Client()
    for number in range(300):
        store.hub.add(client, WatchRequest(request_id=number, key=b"k00000", end=end))
    told = client.responses
    store.do(put_all(100), DeleteRange(b"k", FROM_KEY))
    store.hub.cancel(client, 299)
    store.hub.add(late, WatchRequest(request_id=1, key=b"k00000", end=end))
    turns = 0
    while store.hub.is_telling:
        assert client.responses - told <= 1_000 // watch_hub.SEND + 1
        told = client.responses
        if turns == 0:
            store.do(Put(b"k00000", b"later"))
        else:
            store.hub.tell()
        turns += 1
    assert turns > 5
    wanted = [change for change in store.changes if end or change[1] == b"k00000"]
    assert [client.events[number] for number in range(299)] == [wanted] * 299
    assert late.events[1] == wanted[-1:]
    assert not client.events[299]


def test_what_waits_to_be_told_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_hub, "SLICE", 10)
    monkeypatch.setattr(watch_hub, "MOST_UNDELIVERED_BYTES", 1_500)
    store, client = Store(), Client()
    for number in range(20):
        store.hub.add(client, WatchRequest(request_id=number, key=b"k", end=FROM_KEY))
    for _ in range(100):
        store.do(Put(b"k", b""))
        assert store.hub._undelivered_bytes <= 1_500
        store.hub.compacted()
        assert len(store.hub._rounds) < 20
    store.settle()
    assert [client.events[number] for number in range(20)] == [store.changes] * 20
    assert store.questions


def test_what_no_watch_hears_is_not_gone_through_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """160,000 changes of keys that nobody watches took a third of a second in one turn."""
    monkeypatch.setattr(watch_hub, "SLICE", 100)
    monkeypatch.setattr(watch_hub, "MOST_CHANGES", 60)
    store, client = Store(), Client()
    store.hub.add(client, WatchRequest(request_id=1, key=b"other"))
    store.do(*[put_all(60)] * 20)
    assert store.hub.is_telling
    while store.hub.is_telling:
        before = len(store.hub._rounds)
        store.hub.tell()
        assert before - len(store.hub._rounds) <= 2
    assert not client.events[1]


def test_what_is_lost_again_and_again_is_lost_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command that changes too much was kept until all watches had heard that it is lost."""
    monkeypatch.setattr(watch_hub, "SLICE", 1)
    monkeypatch.setattr(watch_hub, "MOST_CHANGES", 3)
    store, client = Store(), Client()
    for number in range(200):
        store.hub.add(client, WatchRequest(request_id=number, key=b"k", end=FROM_KEY))
    for number in range(50):
        store.do(put_all(8))
        if number % 3 == 0:
            store.do(Put(b"k", b""))
        if number % 5 == 0:
            store.hub.compacted()
        assert len(store.hub._rounds) < 5
    store.settle()
    assert [client.events[number] for number in range(200)] == [store.changes] * 200


@pytest.mark.parametrize("seed", range(20))
def test_each_watch_hears_each_change_once(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(watch_hub, "SLICE", chance.choice([1, 50, 500]))
    monkeypatch.setattr(watch_hub, "MOST_CHANGES", chance.choice([3, 30]))
    monkeypatch.setattr(watch_hub, "MOST_UNDELIVERED_BYTES", chance.choice([1_000, 100_000]))
    store = Store()
    clients = [Client() for _ in range(4)]
    watches: list[tuple[Client, WatchRequest, int]] = []
    keys = [b"k%05d" % number for number in range(8)]
    for step in range(150):
        what = chance.random()
        if what < 0.3:
            first = chance.choice([0, chance.randint(1, store.hub.delivered_revision + 1)])
            end = chance.choice([b"", FROM_KEY, chance.choice(keys)])
            asked = WatchRequest(request_id=step, key=chance.choice(keys), end=end, first_revision=first)
            client = chance.choice(clients)
            watches.append((client, asked, first or store.hub.delivered_revision + 1))
            store.hub.add(client, asked)
        elif what < 0.7:
            commands = [Put(chance.choice(keys), b""), put_all(8), DeleteRange(b"k", FROM_KEY)]
            store.do(*chance.choices(commands, k=chance.randint(1, 3)))
        elif what < 0.8:
            chance.choice(clients).unsent_bytes = chance.choice([0, watch_hub.SLOW_BYTES + 1])
        elif what < 0.85:
            store.hub.begins(store.hub.delivered_revision)
        elif what < 0.9:
            store.hub.tick(step * watch_hub.PROGRESS_MS)
        else:
            store.hub.tell()
    for client in clients:
        client.unsent_bytes = 0
    store.settle()
    for client, asked, first in watches:
        wanted = [
            (revision, key)
            for revision, key in store.changes
            if revision >= first
            and (
                key == asked.key
                if not asked.end
                else asked.key <= key and asked.end in (FROM_KEY, max(asked.end, key + b"\0"))
            )
        ]
        assert client.events[asked.request_id] == wanted, asked
