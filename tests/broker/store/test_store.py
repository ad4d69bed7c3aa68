"""Flush services, time-outs, retention, damage and space: a story each."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from quorumlog.broker.config import ASYNC_FLUSH, MessageStoreConfig
from quorumlog.broker.errors import MessageDamaged
from quorumlog.broker.message import (
    DELAY,
    SCHEDULE_TOPIC,
    Message,
    PutMessageResult,
    PutStatus,
    encode_properties,
    properties_that_fit,
)
from quorumlog.broker.offline.offline_store import OfflineStore
from quorumlog.broker.record_batch import QueueKey, RecordBatch
from quorumlog.broker.store.log_files import PutOutcome
from quorumlog.broker.store.message_store import MessageStore
from quorumlog.errors import ConfigError, DirectoryDamaged, DiskFull
from quorumlog.testing.disk import SimDisk
from tests.broker.store.store_making import (
    ROOT,
    SMALL,
    Clock,
    is_ok,
    numbered,
    numbers_in_queue,
    open_store,
    put,
    put_and_work,
    records_of,
    work,
)

HOUR_MS = 3_600_000


class StillClock(Clock):
    def __call__(self) -> float:
        return self.now_ms


def test_properties_that_grew_as_text_lose_the_largest_and_keep_the_rest() -> None:
    """Bytes that are no UTF-8 become three each where a consumer reads them."""
    data = properties_that_fit({"k": "v", "large": "\ufffd" * 12_000})
    assert data == b"k\x01v\x02"
    whole = {"k": "v", "large": "x" * 30_000}
    assert properties_that_fit(whole) == encode_properties(whole)


def test_a_start_that_meets_a_new_queue_remembers_what_another_has_lost() -> None:
    disk = SimDisk()
    store = open_store(disk)
    put_and_work(store, records_of(numbered(0, 15), 1))
    store.flush_queues(thorough=True)
    put(store, records_of(numbered(15, 1), 0))
    store.flush_once()
    disk.kill()
    disk.delete(f"{ROOT}/consumequeue/t/1/{0:020d}")
    store = open_store(disk)
    assert numbers_in_queue(store, queue_id=1) == list(range(15))
    assert numbers_in_queue(store, queue_id=0) == [15]


def test_one_flush_answers_all_that_waited_when_it_began() -> None:
    store = open_store(SimDisk())
    first = put(store, *[records_of(numbered(n, 1)) for n in range(5)])
    second = put(store, records_of(numbered(5, 2)))
    assert first == second == []
    store.flush_once()
    assert [is_ok(answer) for answer in first + second] == [True] * 6
    assert isinstance(second[0], PutMessageResult)
    assert (second[0].queue_offset, second[0].message_count) == (5, 2)


def test_nothing_is_seen_before_it_is_flushed() -> None:
    store = open_store(SimDisk())
    put_and_work(store, records_of(numbered(0, 1)))
    put(store, records_of(numbered(1, 1)))
    store.reput_once()
    assert numbers_in_queue(store) == [0]
    work(store)
    assert numbers_in_queue(store) == [0, 1]


def test_a_message_that_does_not_wait_is_answered_at_once() -> None:
    store = open_store(SimDisk())
    (answer,) = put(store, records_of(numbered(0, 1)), waits=False)
    assert is_ok(answer)
    assert store.commit_log.flushed_offset == 0


def test_a_flush_that_takes_too_long_is_told_as_such_and_never_as_durable() -> None:
    clock = StillClock()
    store = open_store(SimDisk(), clock=clock)
    answers = put(store, records_of(numbered(0, 1)))
    store.commit_log.flush_service.expire(clock.now_ms + SMALL.sync_flush_timeout - 1)
    assert answers == []
    store.commit_log.flush_service.expire(clock.now_ms + SMALL.sync_flush_timeout)
    assert [getattr(answer, "status", None) for answer in answers] == [PutStatus.FLUSH_DISK_TIMEOUT]
    work(store)
    assert len(answers) == 1, "an answer is given once"
    assert numbers_in_queue(store) == [0], "it was written all the same"


@pytest.mark.parametrize("timed", [False, True])
def test_an_asynchronous_flush_waits_for_pages_or_for_the_thorough_interval(timed: bool) -> None:
    config = replace(
        SMALL,
        flush_disk_type=ASYNC_FLUSH,
        mapped_file_size_commit_log=1 << 20,
        flush_commit_log_timed=timed,
    )
    clock = StillClock()
    woken: list[None] = []
    store = open_store(SimDisk(), config, clock)
    store.wakeup_flush = lambda: woken.append(None)
    store.flush_once()  # a thorough one: the first
    put(store, records_of(numbered(0, 1)))
    assert bool(woken) is not timed, "a put wakes the flush, unless it is timed"
    store.flush_once()
    assert store.commit_log.flushed_offset == 0, "fewer pages than flush_commit_log_least_pages"
    put(store, records_of(numbered(1, 40, size=400)))
    store.flush_once()
    assert store.commit_log.flushed_offset == store.commit_log.max_offset
    put(store, records_of(numbered(41, 1)))
    clock.now_ms += config.flush_commit_log_thorough_interval
    store.flush_once()
    assert store.commit_log.flushed_offset == store.commit_log.max_offset
    assert store.checkpoint.physic_msg_timestamp > 0


def test_a_batch_moves_whole_to_the_next_file() -> None:
    store = open_store(SimDisk())
    size = records_of(numbered(0, 1)).total_bytes
    fit = (SMALL.mapped_file_size_commit_log - 8) // size
    put_and_work(store, records_of(numbered(0, fit - 1)))
    (answer,) = put_and_work(store, records_of(numbered(fit - 1, 3)))
    assert isinstance(answer, PutMessageResult)
    assert answer.physical_offset == SMALL.mapped_file_size_commit_log
    assert numbers_in_queue(store) == list(range(fit + 2))


def test_old_files_go_by_age_and_the_queues_and_the_index_with_them() -> None:
    disk, clock = SimDisk(), StillClock()
    store = open_store(
        disk,
        replace(SMALL, delete_when="0;1;2;3;4;5;6;7;8;9;10;11;12;13;14;15;16;17;18;19;20;21;22;23"),
        clock,
    )
    for number in range(100):
        clock.now_ms += HOUR_MS / 4
        put_and_work(store, records_of(numbered(number, 1)))
    store.cleaner.run_once()
    assert store.commit_log.min_offset == 0, "younger than 72 hours"
    clock.now_ms += 60 * HOUR_MS
    store.cleaner.run_once()
    assert store.commit_log.min_offset > 0
    held = numbers_in_queue(store)
    assert held == list(range(held[0], 100))
    assert 0 < held[0] < 90
    queue = store.queues.get(QueueKey("t", 0))
    assert queue is not None
    assert queue.min_offset == held[0]
    store.close()
    for path in [path for path in disk.paths() if "/consumequeue/" in path]:
        disk.delete(path)
    again = open_store(disk, clock=clock)
    assert numbers_in_queue(again) == held, "derived anew, in the middle of the queue"
    (answer,) = put_and_work(again, records_of(numbered(100, 1)))
    assert isinstance(answer, PutMessageResult)
    assert answer.queue_offset == 100


def test_damage_of_what_was_promised_is_refused_and_not_cut() -> None:
    disk = SimDisk()
    store = open_store(disk)
    for number in range(60):
        put_and_work(store, records_of(numbered(number, 1)))
    positions = store.queues.all[0].units(0, 60)["position"].tolist()
    store.close()
    last = positions[-2]
    base = last // 4096 * 4096
    disk.flip(f"{ROOT}/commitlog/{base:020d}", last - base + 120, 1)
    with pytest.raises(DirectoryDamaged, match="quorumlog broker recover"):
        open_store(disk)


def test_a_message_that_the_disk_cannot_read_harms_no_other() -> None:
    disk = SimDisk()
    store = open_store(disk)
    for number in range(60):
        put_and_work(store, records_of(numbered(number, 1)))
    disk.lose_page(f"{ROOT}/commitlog/{0:020d}", 0)
    with pytest.raises(MessageDamaged):
        store.reader.pull(QueueKey("t", 0), 0, 1)
    pulled = store.reader.pull(QueueKey("t", 0), 50, 10)
    assert len(pulled.records) == 10


def test_a_full_disk_refuses_and_goes_on_when_there_is_space() -> None:
    disk = SimDisk(capacity_bytes=300_000)
    store = open_store(disk)
    stored = refused = 0
    while refused < 3:
        (answer,) = put_and_work(store, records_of(numbered(stored, 1)))
        if is_ok(answer):
            stored += 1
        else:
            assert isinstance(answer, DiskFull)
            refused += 1
    disk.capacity_bytes *= 4
    (answer,) = put_and_work(store, records_of(numbered(stored, 1)))
    assert is_ok(answer)
    assert numbers_in_queue(store) == list(range(stored + 1))


def test_units_of_delayed_messages_say_when_they_are_due() -> None:
    levels = "1", "2", "18", "99", "0", "soon", "-3", ""
    disk = SimDisk()
    store = open_store(disk, replace(SMALL, message_delay_level="3s 7s " + "1h " * 16))
    delayed = [
        Message(SCHEDULE_TOPIC, b"%d" % n, tags="A", properties={DELAY: level})
        for n, level in enumerate(levels)
    ]
    (answer,) = put_and_work(store, records_of(delayed, 1))
    put_and_work(store, records_of([Message("t", b"", tags="A", properties={DELAY: "1"})]))
    assert isinstance(answer, PutMessageResult)
    due = [answer.store_time_ms + delay_ms for delay_ms in (3000, 7000, HOUR_MS, HOUR_MS)]
    codes = [queue.units(0, 99)["tags_code"].tolist() for _, queue in sorted(store.queues.items())]
    assert codes == [due + [65] * 4, [65]], "a level that is none leaves the hash of the tags"


def test_nonsense_harms_nobody_else_in_its_turn() -> None:
    store = open_store(SimDisk(), topics={"t": 1})
    good = records_of(numbered(0, 1))
    bad = records_of(numbered(1, 1))
    bad.data[100] ^= 1
    shapeless = RecordBatch.contiguous(bytearray(b"\xff" * 120), [120])
    other_queue = records_of(numbered(2, 1), 3)
    mixed = RecordBatch.contiguous(
        bytearray(b"".join(bytes(records_of(numbered(n, 1), 0).buffer) for n in (3, 4))), [207, 207]
    )
    assert len(mixed.buffer) == 414
    answers: dict[str, list[PutOutcome]] = {}
    from quorumlog.broker.store.log_files import PutRequest

    requests = []
    for name, batch in (
        ("good", good),
        ("bad", bad),
        ("shapeless", shapeless),
        ("other", other_queue),
        ("mixed", mixed),
    ):
        answers[name] = []
        requests.append(PutRequest(batch, True, answers[name].append))
    store.commit_log.put(requests)
    work(store)
    said = {name: str(answer[0]) if not is_ok(answer[0]) else "ok" for name, answer in answers.items()}
    assert said["good"] == said["mixed"] == "ok"
    assert "CRC" in said["bad"]
    assert "shape" in said["shapeless"]
    assert "with a queue 3" in said["other"]
    assert numbers_in_queue(store) == [0, 3, 4]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"flush_disk_type": "sync"}, "SYNC_FLUSH"),
        ({"flush_interval_commit_log": 0}, "flush_interval_commit_log must be in 1"),
        ({"delete_when": "25"}, "delete_when"),
        ({"mapped_file_size_consume_queue": 1001}, "multiple of 20"),
    ],
)
def test_options_are_checked(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MessageStoreConfig(**options)  # type: ignore[arg-type]


def test_another_file_size_is_refused_by_name() -> None:
    disk = SimDisk()
    open_store(disk).close()
    with pytest.raises(ConfigError, match="mapped_file_size_commit_log = 4096"):
        open_store(disk, replace(SMALL, mapped_file_size_commit_log=8192))


def store_with_three_files_a_queue(disk: SimDisk) -> MessageStore:
    store = open_store(disk)
    assert all(map(is_ok, put_and_work(store, *[records_of(numbered(n, 5)) for n in range(0, 25, 5)])))
    store.flush_queues(thorough=True)
    return store


@pytest.mark.parametrize("lost", [0, 200, 400])
@pytest.mark.parametrize("is_clean", [True, False])
def test_a_queue_that_has_lost_a_file_is_derived_anew(lost: int, is_clean: bool) -> None:
    disk = SimDisk()
    store = store_with_three_files_a_queue(disk)
    if is_clean:
        store.close()
    else:
        disk.kill()
    disk.delete(f"{ROOT}/consumequeue/t/0/{lost:020d}")
    with OfflineStore(ROOT, disk) as stopped:
        assert any("derives" in problem for problem in stopped.verify()["problems"])
        assert [int(m.body[:6]) for batch in stopped.batches() for m in batch.messages()] == [*range(25)]
    assert numbers_in_queue(open_store(disk)) == list(range(25))


def test_what_a_crash_has_left_short_is_looked_at_as_a_start_would_have_it() -> None:
    disk = SimDisk()
    store_with_three_files_a_queue(disk)
    disk.kill()
    log_end = 0
    for path, size in (
        (f"{ROOT}/consumequeue/t/0/{400:020d}", 120),
        (f"{ROOT}/commitlog/{4096:020d}", 2000),
    ):
        file = disk.open(path)
        log_end = file.size()
        file.set_size(size)
        file.close()
    assert log_end == SMALL.mapped_file_size_commit_log
    with OfflineStore(ROOT, disk) as stopped:
        told = stopped.verify()
    assert (stopped.file_bytes, stopped.queue_bytes) == (4096, 200)
    assert told["problems"], "a record that was flushed is gone"
    with pytest.raises(DirectoryDamaged, match=f"the record at {told['end']} "):
        open_store(disk)


def test_messages_that_retention_has_dropped_are_no_loss(caplog: pytest.LogCaptureFixture) -> None:
    disk = SimDisk()
    store = open_store(disk)
    put_and_work(store, *[records_of(numbered(n, 10)) for n in range(0, 90, 10)])
    store.cleaner.drop_before(2 * SMALL.mapped_file_size_commit_log)
    kept = numbers_in_queue(store)
    assert 30 < len(kept) < 90
    disk.kill()
    assert numbers_in_queue(open_store(disk)) == kept
    assert "derived anew" not in caplog.text


def test_a_queue_that_loses_its_first_file_before_its_end_was_ever_noted_is_derived_anew() -> None:
    disk = SimDisk()
    store = open_store(disk)
    put_and_work(store, *[records_of(numbered(n, 5)) for n in range(0, 25, 5)])
    disk.kill()
    disk.delete(f"{ROOT}/consumequeue/t/0/{0:020d}")
    assert numbers_in_queue(open_store(disk)) == list(range(25))


def test_an_index_that_reached_further_than_the_log_keeps_what_the_log_has() -> None:
    """Its file goes as a whole."""
    disk = SimDisk()
    store = open_store(disk, replace(SMALL, flush_disk_type=ASYNC_FLUSH))
    put_and_work(store, records_of(numbered(0, 5)))
    store.commit_log.flush(0)
    put_and_work(store, records_of(numbered(5, 5)))
    assert store.index is not None
    store.index.flush()
    store.checkpoint.flush()
    disk.lose_power(Random(0))
    store = open_store(disk, replace(SMALL, flush_disk_type=ASYNC_FLUSH))
    kept = numbers_in_queue(store)
    assert kept[:5] == list(range(5)) and len(kept) < 10
    for number in kept:
        assert len(store.reader.query("t", f"k{number}").messages()) == 1, number
