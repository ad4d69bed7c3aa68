"""Message stores on a simulated disk, and what is put into them."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from quorumlog.broker.config import SYNC_FLUSH, MessageStoreConfig
from quorumlog.broker.message import Message, PutMessageResult, PutStatus, encode_records
from quorumlog.broker.offline.offline_store import OfflineStore
from quorumlog.broker.record_batch import QueueKey, RecordBatch
from quorumlog.broker.store.log_files import PutOutcome, PutRequest
from quorumlog.broker.store.message_store import MessageStore
from quorumlog.store.disk import Disk

SMALL = MessageStoreConfig(
    flush_disk_type=SYNC_FLUSH,
    mapped_file_size_commit_log=4096,
    mapped_file_size_consume_queue=200,
    max_hash_slot_num=20,
    max_index_num=40,
    reserve_step_bytes=4096,
)
ROOT = "store"


class Clock:
    """Milliseconds, a second a call: nobody waits for it."""

    def __init__(self, now_ms: float = 1_700_000_000_000) -> None:
        self.now_ms = now_ms

    def __call__(self) -> float:
        self.now_ms += 1000
        return self.now_ms


def open_store(
    disk: Disk, config: MessageStoreConfig = SMALL, clock: Clock | None = None, **options: Any
) -> MessageStore:
    clock = clock or Clock()
    return MessageStore(ROOT, config, disk=disk, wall_clock=clock, clock=clock, **options)


def put_and_wait(store: MessageStore, records: RecordBatch) -> PutOutcome:
    """Whether its services have threads or not."""
    answer: Future[PutOutcome] = Future()
    store.commit_log.put([PutRequest(records, True, answer.set_result)])
    if not store._threads:
        store.flush_once()
    return answer.result(timeout=60)


def numbered(first: int, count: int, topic: str = "t", size: int = 100) -> list[Message]:
    """Bodies that begin with their number."""
    return [
        Message(topic, f"{number:06d}".encode().ljust(size, b"."), tags="T", keys=(f"k{number}",))
        for number in range(first, first + count)
    ]


def records_of(messages: Sequence[Message], queue_id: int = 0) -> RecordBatch:
    return RecordBatch.contiguous(*encode_records(messages, queue_id, 1_600_000_000_000))


def put(store: MessageStore, *batches: RecordBatch, waits: bool = True) -> list[PutOutcome]:
    """As one turn; nothing is flushed until `flush_once`. Answers, as far as they came."""
    answers: list[PutOutcome] = []
    store.commit_log.put([PutRequest(batch, waits, answers.append) for batch in batches])
    return answers


def work(store: MessageStore) -> None:
    """What the threads of the services would do."""
    store.flush_once()
    store.reput_once()


def put_and_work(store: MessageStore, *batches: RecordBatch) -> list[PutOutcome]:
    answers: list[PutOutcome] = []
    store.commit_log.put([PutRequest(batch, True, answers.append) for batch in batches])
    work(store)
    return answers


def is_ok(outcome: PutOutcome) -> bool:
    return isinstance(outcome, PutMessageResult) and outcome.status is PutStatus.PUT_OK


def numbers_in_log(disk: Disk) -> list[int]:
    """Of the messages in a stopped store, in the order of its log."""
    with OfflineStore(ROOT, disk) as store:
        return [int(m.body[:6]) for records in store.batches() for m in records.messages()]


def numbers_in_queue(store: MessageStore, topic: str = "t", queue_id: int = 0) -> list[int]:
    queue = store.queues.get(QueueKey(topic, queue_id))
    if queue is None:
        return []
    pulled = store.reader.pull(QueueKey(topic, queue_id), queue.min_offset, 10_000, 1 << 30)
    return [int(message.body[:6]) for message in pulled.records.messages()]


def release(store: MessageStore) -> None:
    """As if the process had been killed: nothing is flushed, `abort` stays."""
    store._lock.release()
