"""Queues and index as a state machine: saved in slices while it goes on."""

from __future__ import annotations

import io
from unittest.mock import patch

import numpy as np
import pytest

from quorumlog.batch import EntryBatch
from quorumlog.broker.dledger.message_machine import (
    BODY_OFFSET,
    HOT_MS,
    MessageMachine,
    MessageMachines,
    entries_of,
    records_of,
)
from quorumlog.broker.message import Message, encode_records
from quorumlog.broker.record_batch import QueueKey, RecordBatch
from quorumlog.broker.store import dispatch
from quorumlog.broker.store.dispatch import QueueHole
from quorumlog.store.memory_disk import MemoryDisk
from sim.broker.sim_brokers import CONFIG

QUEUE = QueueKey("orders", 0)


class Dispatched:
    """A machine, and the log in front of it."""

    def __init__(self) -> None:
        self.begin_position = 0
        self.machine = MessageMachine(
            MemoryDisk(), "messages", CONFIG, lambda keys: None, lambda: self.begin_position
        )
        self.count = self.position = 0

    def send(self, count: int, time_ms: int = 1_700_000_000_000) -> None:
        entries = self.entries(count, time_ms)
        self.machine.apply(entries, self.count)
        self.count += count
        self.position += int(entries.sizes.sum())

    def entries(self, count: int, time_ms: int = 1_700_000_000_000) -> EntryBatch:
        """The next ones."""
        numbers = range(self.count, self.count + count)
        sent = [Message("orders", b"%d" % number, keys=(f"k{number}",)) for number in numbers]
        entries = entries_of(RecordBatch.contiguous(*encode_records(sent, 0, 0)))
        positions = self.position + entries.starts
        offsets = np.arange(self.count, self.count + count)
        records_of(entries).stamp(offsets, positions + BODY_OFFSET, time_ms, bytes(8))
        entries.stamp(self.count, 1, positions, 0)
        return entries


def test_a_queue_cannot_go_on_behind_a_message_that_was_left_out() -> None:
    log = Dispatched()
    log.send(2)
    log.count += 1
    with pytest.raises(QueueHole):
        log.send(1)
    assert not MessageMachines.may_leave_out


def test_what_has_to_make_open_or_delete_files_is_not_quick() -> None:
    log = Dispatched()
    is_quick = log.machine.is_quick
    assert not is_quick(log.entries(1))  # its queue has no file, nor has the index
    log.send(1)
    assert is_quick(log.entries(1)) and is_quick(log.entries(2))
    later_ms = 1_700_000_000_000 + HOT_MS + 1
    assert not is_quick(log.entries(1, later_ms))  # the last page may have to be read
    log.send(1, later_ms)
    assert is_quick(log.entries(1, later_ms))
    log.begin_position = 1
    assert not is_quick(log.entries(1, later_ms))  # what the log has dropped is deleted first
    log.send(1, later_ms)
    assert is_quick(log.entries(1, later_ms))
    assert not is_quick(log.entries(CONFIG.max_index_num, later_ms))
    assert not is_quick(EntryBatch.from_bodies([b"no message"]))


def loaded(data: bytes) -> MessageMachine:
    machine = Dispatched().machine
    reader = io.BytesIO(data)
    machine.load(reader)
    assert not reader.read()
    return machine


def test_what_is_dispatched_between_two_slices_is_not_saved_and_nothing_is_lost() -> None:
    log = Dispatched()
    log.send(20)
    end_position = log.machine.end_position
    writer = io.BytesIO()
    with patch.object(dispatch, "PIECE_UNITS", 3):
        slices = log.machine.save_slices(writer)
        next(slices)
        written = []
        for _ in slices:
            written.append(writer.tell())
            log.begin_position = end_position  # the log drops its beginning meanwhile
            log.send(4)
    assert len(written) == 7 + 7 - 1
    saved = loaded(writer.getvalue())
    assert saved.end_position == end_position
    queue = saved.queues.get(QUEUE)
    assert queue is not None
    assert (queue.min_offset, queue.max_offset) == (0, 20)
    assert saved.index is not None
    assert saved.index.find("orders", "k19", 10, 0, 1 << 60)
    assert not saved.index.find("orders", "k20", 10, 0, 1 << 60)
    whole = log.machine.queues.get(QUEUE)
    assert whole is not None
    assert whole.max_offset == log.count
    log.send(1)
    assert whole.min_offset == 20  # now that nobody saves them
    assert loaded_of(log.machine).end_position == log.machine.end_position


def loaded_of(machine: MessageMachine) -> MessageMachine:
    writer = io.BytesIO()
    for _ in machine.save_slices(writer):
        pass
    return loaded(writer.getvalue())
