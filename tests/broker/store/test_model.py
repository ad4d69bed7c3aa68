"""A message store beside a model of it: dictionaries and lists."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from quorumlog.broker.config import ASYNC_FLUSH
from quorumlog.broker.message import Message
from quorumlog.broker.offline.offline_store import OfflineStore
from quorumlog.broker.record_batch import QueueKey
from quorumlog.testing.disk import SimDisk
from tests.broker.store.store_making import (
    ROOT,
    SMALL,
    Clock,
    is_ok,
    open_store,
    put,
    records_of,
    work,
)

TOPICS = ("t", "topic-%RETRY%", "a" * 130)
KEYS = ("k", "K9", "schlüssel", "鍵")
messages = st.builds(
    Message,
    topic=st.sampled_from(TOPICS),
    body=st.binary(max_size=300),
    tags=st.sampled_from(("", "T", "Größe")),
    keys=st.lists(st.sampled_from(KEYS), max_size=2, unique=True).map(tuple),
    properties=st.dictionaries(st.sampled_from(("p", "q")), st.text("xyz ", max_size=9), max_size=2),
    flag=st.integers(-(2**31), 2**31 - 1),
)


class StoreModel(RuleBasedStateMachine):
    """Every batch is of one topic and queue; what was put is in `queues`, and flushed up to there."""

    @initialize(is_sync=st.booleans())
    def begin(self, is_sync: bool) -> None:
        self.config = SMALL if is_sync else replace(SMALL, flush_disk_type=ASYNC_FLUSH)
        self.disk, self.clock = SimDisk(), Clock()
        self.store = open_store(self.disk, self.config, self.clock)
        self.queues: dict[QueueKey, list[Message]] = {}
        self.waiting: list[list[object]] = []

    @rule(
        batch=st.lists(messages, min_size=1, max_size=4), queue_id=st.integers(0, 2), wait=st.booleans()
    )
    def put(self, batch: list[Message], queue_id: int, wait: bool) -> None:
        batch = [replace(message, topic=batch[0].topic) for message in batch]
        answers = put(self.store, records_of(batch, queue_id), waits=wait)
        self.queues.setdefault(QueueKey(batch[0].topic, queue_id), []).extend(batch)
        if not wait or not self.config.is_sync_flush:
            assert is_ok(answers[0])
        else:
            assert answers == []
            self.waiting.append(answers)  # type: ignore[arg-type]

    @rule()
    def work(self) -> None:
        work(self.store)
        if self.config.is_sync_flush:
            assert all(len(answers) == 1 and is_ok(answers[0]) for answers in self.waiting)  # type: ignore[arg-type]
            self.waiting.clear()

    @rule()
    def flush_queues(self) -> None:
        self.store.flush_queues(thorough=True)

    @rule(lost=st.sampled_from(("", "consumequeue", "index")))
    def stop_and_start(self, lost: str) -> None:
        self.store.close()
        self.waiting.clear()
        with OfflineStore(ROOT, self.disk) as stopped:
            assert stopped.verify()["problems"] == []
        if lost:
            for path in [path for path in self.disk.paths() if f"/{lost}/" in path]:
                self.disk.delete(path)
        self.store = open_store(self.disk, self.config, self.clock)
        assert self.store.was_clean
        self.check_all()

    @rule()
    def kill(self) -> None:
        """Whatever was written stays."""
        self.disk.kill()
        self.waiting.clear()
        self.store = open_store(self.disk, self.config, self.clock)
        assert not self.store.was_clean
        self.check_all()

    @precondition(lambda self: self.queues)
    @rule(data=st.data())
    def pull(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.queues)))
        queue = self.store.queues.get(key)
        if queue is None:
            return
        offset = data.draw(st.integers(0, queue.max_offset))
        pulled = self.store.reader.pull(key, offset, data.draw(st.integers(1, 5)))
        bodies = [message.body for message in pulled.records.messages()]
        assert bodies == [m.body for m in self.queues[key][offset : pulled.next_offset]]
        assert pulled.records.columns.queue_offsets.tolist() == list(range(offset, pulled.next_offset))

    def check_all(self) -> None:
        for key, sent in self.queues.items():
            got = self.store.reader.pull(key, 0, 10**6, 1 << 30).records.messages()
            assert [(m.body, m.tags, m.keys, m.flag) for m in got] == [
                (m.body, m.tags, tuple(m.keys), m.flag) for m in sent
            ]
        for key in KEYS:
            for topic in TOPICS:
                found = self.store.reader.query(topic, key, most=500).messages()
                expected = sum(
                    key in m.keys for k, sent in self.queues.items() if k.topic == topic for m in sent
                )
                assert len(found) == expected
                positions = [m.physical_offset for m in found]
                assert positions == sorted(positions, reverse=True)

    @invariant()
    def nothing_is_shown_that_is_not_confirmed(self) -> None:
        if hasattr(self, "store"):
            for queue in self.store.queues.all:
                assert queue.last_position <= self.store.commit_log.confirm_offset

    def teardown(self) -> None:
        if hasattr(self, "store"):
            work(self.store)
            self.check_all()


TestStoreModel = StoreModel.TestCase
TestStoreModel.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
