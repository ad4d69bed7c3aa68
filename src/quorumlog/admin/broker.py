"""A broker, with a log of its own or on a replicated one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice

from quorumlog.admin.looks import Look, Sample, Table, TakeLook, disk_samples, request_samples
from quorumlog.broker.broker_port import QueueTable
from quorumlog.broker.broker_server import BrokerServer
from quorumlog.broker.dledger.dledger_broker import DLedgerBroker
from quorumlog.broker.group_commands import dlq_topic, is_system_topic
from quorumlog.broker.groups.group_state import GroupState
from quorumlog.broker.store.message_store import MessageStore
from quorumlog.broker.wire import BrokerStatusResponse
from quorumlog.store.disk import OsDisk

MOST_QUEUES = 1_000
"""Shown one by one; of a whole broker, or of all groups."""
FLUSH_WAITS_MS = 2_500
Ends = Mapping[tuple[str, int], tuple[int, int]]
"""By topic and id of a queue: its first offset, and the next one."""


class BrokerProcess:
    """One with a log of its own."""

    def __init__(self, server: BrokerServer) -> None:
        self._server = server
        self.users = server.users

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        return self._server.loop

    def looks(self) -> Sequence[TakeLook]:
        return [self._look]

    def _look(self) -> Look:
        server = self._server
        service, status = server.ha_service, server.status(0)
        replica = None if service is None else service.replica
        unready = []
        if replica is not None and replica.master is None and not replica.takes_messages:
            unready.append("it knows no master")
        if server.store.cleaner.is_full:
            unready.append("its disk takes no writes: it is above disk_space_warning_level_ratio")
        since_ms = server.store.commit_log.flush_service.since_ms
        if since_ms is not None and server.store.clock() - since_ms >= FLUSH_WAITS_MS:
            unready.append("its disk hangs: a flush does not return")
        leads = replica is None or replica.takes_messages
        slaves = [] if replica is None or not leads else replica.slaves()
        ends, state = _ends(server.groups.queues), server.groups.state
        samples = [
            *_samples(status, ends, state),
            *request_samples("broker", server.requests),
            *_disk_samples(server.store),
            Sample("quorumlog_broker_is_master", leads),
            *(Sample("quorumlog_broker_slave_lag_bytes", e.lag_bytes, (e.id,)) for e in slaves),
            *(Sample("quorumlog_broker_slave_lag_seconds", e.lag_ms / 1000, (e.id,)) for e in slaves),
            *(Sample("quorumlog_broker_slave_connected", e.is_connected, (e.id,)) for e in slaves),
        ]
        failure = "" if server.failure is None else str(server.failure)
        tables = partial(_tables, status, ends, state)
        return Look("broker", "broker", tuple(unready), leads, failure, tuple(samples), tables)


def look_at_member(broker: DLedgerBroker, group: str) -> Look:
    """On the loop of its member, which decides whether it is ready."""
    status = broker.status(0)
    leads, state = status.broker_id == 0, broker.groups.feed.state
    ends = _ends(broker.queues)
    samples = (
        *_samples(status, ends, state),
        *request_samples("broker", broker.requests),
        Sample("quorumlog_broker_is_master", leads),
    )
    tables = partial(_tables, status, ends, state)
    return Look(group, "broker", leads=leads, samples=samples, tables=tables)


def _disk_samples(store: MessageStore) -> Iterator[Sample]:
    disk = store.disk
    yield from disk_samples(disk, disk.usage(store.root))
    if isinstance(disk, OsDisk):
        yield Sample("quorumlog_disk_wal_fsync_duration_seconds", disk.times.sync_us.taken())


def _ends(queues: QueueTable) -> Ends:
    known = islice(queues.items(), MOST_QUEUES)
    return {(key.topic, key.queue_id): (queue.min_offset, queue.max_offset) for key, queue in known}


def _samples(status: BrokerStatusResponse, ends: Ends, state: GroupState | None) -> Iterator[Sample]:
    yield Sample("quorumlog_broker_topics", status.topics)
    yield Sample("quorumlog_broker_queues", status.queues)
    yield Sample("quorumlog_broker_messages_put_total", status.put_messages)
    yield Sample("quorumlog_broker_put_bytes_total", status.put_bytes)
    yield Sample("quorumlog_broker_dispatch_behind_bytes", status.dispatch_behind_bytes)
    yield Sample("quorumlog_broker_log_bytes", status.max_offset - status.min_offset)
    yield Sample("quorumlog_broker_disk_used_ratio", status.disk_used_ratio)
    yield Sample("quorumlog_broker_problems", len(status.problems))
    for (topic, queue_id), (begin, end) in ends.items():
        labels = (topic, str(queue_id))
        yield Sample("quorumlog_topic_partition_oldest_offset", begin, labels)
        yield Sample("quorumlog_topic_partition_current_offset", end, labels)
    for name, group in () if state is None else state.groups.items():
        yield Sample("quorumlog_consumergroup_members", len(group.members), (name,))
    for (name, topic, queue_id), offset, lag in islice(_lags(ends, state), MOST_QUEUES):
        of_queue = (name, topic, str(queue_id))
        yield Sample("quorumlog_consumergroup_current_offset", offset, of_queue)
        yield Sample("quorumlog_consumergroup_lag", lag, of_queue)


def _lags(ends: Ends, state: GroupState | None) -> Iterator[tuple[tuple[str, str, int], int, int]]:
    """By group and queue: the committed offset, and the messages after it."""
    for name, group in () if state is None else state.groups.items():
        for (topic, queue_id), offset in group.offsets.items():
            end = ends.get((topic, queue_id), (0, offset))[1]
            yield (name, topic, queue_id), offset, max(0, end - offset)


def _tables(status: BrokerStatusResponse, ends: Ends, state: GroupState | None) -> list[Table]:
    known = {} if state is None else state.topics
    topics = {name: [0, 0] for name in islice(known, MOST_QUEUES) if not is_system_topic(name)}
    for (topic, _), (begin, end) in ends.items():
        row = topics.setdefault(topic, [0, 0])
        row[0] += 1
        row[1] += end - begin
    lags: dict[str, int] = {}
    for (name, *_), _, lag in _lags(ends, state):
        lags[name] = lags.get(name, 0) + lag
    groups = {} if state is None else state.groups
    dead = {name: topics.get(dlq_topic(name), [0, 0])[1] for name in groups}
    of_topics = [
        (name, known[name].queues if name in known else queues, messages)
        for name, (queues, messages) in sorted(topics.items())
    ]
    of_groups = [
        (name, len(group.members), group.generation, lags.get(name, 0), dead[name])
        for name, group in sorted(groups.items())
    ]
    of_broker = (status.role, status.master, status.put_messages)
    return [
        Table("Broker", ("role", "master", "messages put"), [of_broker]),
        Table("Problems", ("problem",), [(each,) for each in status.problems]),
        Table("Topics", ("topic", "queues", "messages"), of_topics),
        Table("Consumer groups", ("group", "members", "generation", "lag", "dead letters"), of_groups),
    ]
