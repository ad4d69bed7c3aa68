"""`/metrics`: the table of all metrics, and their exposition."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

from quorumlog.admin.looks import Look, Sample, Seen
from quorumlog.config import LimitOptions
from quorumlog.measures import Taken
from quorumlog.net.limits import process_limits
from quorumlog.version import VERSION

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family

GAUGE, COUNTER, SECONDS, COUNTS = "gauge", "counter", "histogram of seconds", "histogram"
COARSE = "histogram of seconds, by four"
BOUNDS = {SECONDS: range(6, 25), COARSE: range(6, 26, 2), COUNTS: range(1, 17)}
"""Binary digits of the buckets' bounds: 64 microseconds to 17 s, 1 to 65,535 records."""


MOST_LINES = 100
"""About how many lines are made before the thread yields the interpreter."""


class Metric(NamedTuple):
    kind: str
    help: str
    labels: tuple[str, ...] = ()
    """Beside `group`."""
    of_process: bool = False
    """It has no `group`."""


def _of(kind: str) -> Callable[..., Metric]:
    return lambda text, *labels: Metric(kind, text, labels)


gauge, counter, seconds, counts, coarse = map(_of, (GAUGE, COUNTER, SECONDS, COUNTS, COARSE))

_OF_GROUP = {
    # The log, by group.
    "quorumlog_server_has_leader": gauge("1: this member knows a leader"),
    "quorumlog_server_is_leader": gauge("1: this member is the leader"),
    "quorumlog_server_ready": gauge("1: /readyz answers 200"),
    "quorumlog_server_leader_changes_seen_total": counter("leader changes seen", "cause"),
    "quorumlog_server_term": gauge("Raft term"),
    "quorumlog_server_voters": gauge("voters of the group"),
    "quorumlog_server_voters_reachable": gauge(
        "voters that this member is connected to, itself included; leader: and that have answered"
        " it in the last five seconds, or three heartbeats"
    ),
    "quorumlog_server_quorum": gauge("voters needed to commit"),
    "quorumlog_server_producers": gauge("producer sessions that the log remembers"),
    "quorumlog_server_problems": gauge("number of `problems` in `quorumlog status`"),
    "quorumlog_server_proposals_committed_total": counter("appends committed while this member led"),
    "quorumlog_server_proposals_pending": gauge("appends that are not committed yet"),
    "quorumlog_server_proposals_pending_bytes": gauge("bytes of appends that are not committed yet"),
    "quorumlog_server_append_duration_seconds": seconds("from an append's arrival to its commit"),
    "quorumlog_server_requests_total": counter(
        "requests of clients, answered and refused", "op", "code"
    ),
    "quorumlog_server_request_duration_seconds": coarse(
        "from a request's arrival to its answer; reads may wait for entries", "op", "code"
    ),
    "quorumlog_log_first_index": gauge("first entry of the log"),
    "quorumlog_log_last_index": gauge("last entry of the log, committed or not"),
    "quorumlog_log_committed_index": gauge("last entry known to be committed"),
    "quorumlog_log_durable_index": gauge("last entry known to be on this member's disk"),
    "quorumlog_log_applied_index": gauge("last entry that a state machine has applied", "machine"),
    "quorumlog_log_appended_records_total": counter("entries written, as leader and as follower"),
    "quorumlog_log_appended_bytes_total": counter("bytes of entries written, as leader and as follower"),
    "quorumlog_log_batch_records": counts("entries per write"),
    "quorumlog_log_disk_bytes": gauge("disk space used by segments"),
    "quorumlog_log_damaged_entries": gauge("damaged entries on this member's disk"),
    "quorumlog_log_set_aside_bytes": gauge("bytes in set-aside/, kept for inspection"),
    "quorumlog_disk_wal_fsync_duration_seconds": seconds("duration of one sync in the flush thread"),
    "quorumlog_disk_write_duration_seconds": seconds("duration of one write to a file"),
    "quorumlog_disk_sync_waits_seconds": gauge("time since the running sync began; 0: none is running"),
    "quorumlog_disk_used_ratio": gauge("share of the file system that is in use"),
    "quorumlog_disk_free_bytes": gauge("free bytes of the file system"),
    "quorumlog_scrub_passes_total": counter("completed scrubs"),
    "quorumlog_scrub_progress_ratio": gauge("progress of the running scrub; 1: none is running"),
    "quorumlog_snapshot_lag_entries": gauge("committed entries after the newest snapshot", "machine"),
    "quorumlog_snapshot_save_duration_seconds": seconds(
        "time from the beginning of a snapshot to its last sync", "machine"
    ),
    "quorumlog_snapshot_age_seconds": gauge(
        "age of the newest snapshot, at most that of the process", "machine"
    ),
    "quorumlog_follower_lag_entries": gauge("leader: entries that a follower has not stored", "peer"),
    "quorumlog_follower_lag_bytes": gauge(
        "leader: bytes left to send to a follower that is fed from segment files", "peer"
    ),
    "quorumlog_follower_lag_seconds": gauge(
        "leader: age of the first entry that a follower has not stored", "peer"
    ),
    "quorumlog_follower_answered_seconds_ago": gauge(
        "leader: time since a follower's last answer; NaN: none yet", "peer"
    ),
    "quorumlog_network_peer_connections": gauge("open connections to another member, at most 4", "peer"),
    "quorumlog_network_peer_sent_bytes_total": counter(
        "bytes sent on the open connections to another member", "peer"
    ),
    "quorumlog_network_peer_received_bytes_total": counter(
        "bytes received on the open connections to another member", "peer"
    ),
    "quorumlog_network_peer_round_trip_time_seconds": gauge(
        "smoothed round-trip time of the kernel's TCP", "peer"
    ),
    "quorumlog_reader_lag_entries": gauge(
        "committed entries that a named reader has not read", "reader"
    ),
    "quorumlog_reader_lag_seconds": gauge(
        "age of the first committed entry that a named reader has not read, computed every five seconds",
        "reader",
    ),
    # The key-value store, on its members.
    "quorumlog_mvcc_current_revision": gauge("newest revision"),
    "quorumlog_mvcc_compact_revision": gauge("compacted revision"),
    "quorumlog_mvcc_keys": gauge("keys"),
    "quorumlog_mvcc_db_total_size_in_bytes": gauge("size of keys, values and history"),
    "quorumlog_mvcc_watchers": gauge("watches of this member"),
    "quorumlog_mvcc_slow_watchers": gauge("watches that read history to catch up"),
    "quorumlog_mvcc_put_total": counter("puts executed by this member, including those in transactions"),
    "quorumlog_mvcc_delete_total": counter("range deletions executed"),
    "quorumlog_mvcc_range_total": counter("range reads executed"),
    "quorumlog_mvcc_txn_total": counter("transactions executed"),
    "quorumlog_store_requests_total": counter(
        "requests at the store's port, answered and refused, without watches", "op", "code"
    ),
    "quorumlog_store_request_duration_seconds": coarse(
        "from a request's arrival to its answer", "op", "code"
    ),
    "quorumlog_server_quota_backend_bytes": gauge("size above which puts are refused"),
    "quorumlog_lease_objects": gauge("leases"),
    # The port for clients of Kafka.
    "quorumlog_kafka_topics": gauge("topics of Kafka's clients"),
    "quorumlog_kafka_partitions": gauge("their partitions"),
    "quorumlog_kafka_consumer_groups": gauge("consumer groups with committed offsets"),
    "quorumlog_kafka_requests_total": counter(
        "requests at the port for clients of Kafka, answered and refused", "op", "code"
    ),
    "quorumlog_kafka_request_duration_seconds": coarse(
        "from a request's arrival to its answer; fetches may wait for records", "op", "code"
    ),
    # The broker.
    "quorumlog_broker_is_master": gauge("1: this broker is the master"),
    "quorumlog_broker_topics": gauge("topics with queues"),
    "quorumlog_broker_queues": gauge("queues"),
    "quorumlog_broker_messages_put_total": counter("messages stored since the start"),
    "quorumlog_broker_requests_total": counter(
        "requests at the broker's port, answered and refused", "op", "code"
    ),
    "quorumlog_broker_request_duration_seconds": coarse(
        "from a request's arrival to its answer; pulls may wait for messages", "op", "code"
    ),
    "quorumlog_broker_put_bytes_total": counter(
        "bytes of messages stored since the start; not of brokers on a replicated log"
    ),
    "quorumlog_broker_dispatch_behind_bytes": gauge(
        "bytes of the log that are not dispatched to queues yet"
    ),
    "quorumlog_broker_log_bytes": gauge("bytes of the log from its beginning to its end"),
    "quorumlog_broker_disk_used_ratio": gauge("share of the file system that is in use"),
    "quorumlog_broker_problems": gauge("number of problems in `quorumlog broker status`"),
    "quorumlog_broker_slave_connected": gauge("master: 1: the slave is connected", "slave"),
    "quorumlog_broker_slave_lag_bytes": gauge("master: bytes that a slave lacks", "slave"),
    "quorumlog_broker_slave_lag_seconds": gauge(
        "master: time for which a slave has been behind", "slave"
    ),
    "quorumlog_topic_partition_oldest_offset": gauge("first offset of a queue", "topic", "partition"),
    "quorumlog_topic_partition_current_offset": gauge("next offset of a queue", "topic", "partition"),
    "quorumlog_consumergroup_members": gauge("members of a consumer group", "consumergroup"),
    "quorumlog_consumergroup_current_offset": gauge(
        "committed offset of a consumer group", "consumergroup", "topic", "partition"
    ),
    "quorumlog_consumergroup_lag": gauge(
        "messages after the committed offset of a consumer group", "consumergroup", "topic", "partition"
    ),
}
_OF_PROCESS = {
    "quorumlog_loop_lag_seconds": seconds("delay between a wake-up of the event loop and its callback"),
    "quorumlog_network_connections": gauge("open connections"),
    "quorumlog_network_connections_accepted_total": counter("connections accepted"),
    "quorumlog_network_connections_refused_total": counter(
        "connections refused because there were too many"
    ),
    "quorumlog_network_connections_stray_total": counter(
        "connections closed for invalid bytes, missing TLS or an invalid certificate"
    ),
    "quorumlog_network_over_limits_total": counter(
        "connections and requests refused for `[limits]`", "limit"
    ),
    "quorumlog_authentication_failures_total": counter("failed authentications of users"),
    "quorumlog_tls_certificate_expiry_timestamp_seconds": gauge(
        "end of the own certificate's validity, seconds since 1970; with TLS"
    ),
    "quorumlog_build_info": gauge("1", "version", "python"),
}
METRICS = _OF_GROUP | {name: metric._replace(of_process=True) for name, metric in _OF_PROCESS.items()}
"""By name; `process_*` of prometheus_client come beside them."""


def families(looks: Iterable[Look], of_process: Iterable[Sample]) -> Iterator[Family]:
    """In the order of `METRICS`; of those that have samples."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    found: dict[str, list[tuple[list[str], float | Taken]]] = {}
    for look in looks:
        for name, value, labels in look.samples:
            if isinstance(value, Taken) and not any(value.counts):
                continue  # two dozen lines that say nothing
            found.setdefault(name, []).append(([look.group, *labels], value))
    for name, value, labels in of_process:
        found.setdefault(name, []).append(([*labels], value))
    lines = 0
    for name, metric in METRICS.items():
        names = [*(() if metric.of_process else ("group",)), *metric.labels]
        kind: Callable[..., Family] = GaugeMetricFamily
        if metric.kind == COUNTER:
            kind = CounterMetricFamily
        elif metric.kind in BOUNDS:
            kind = HistogramMetricFamily
        if name not in found:
            continue
        lines += sum(len(v.counts) if isinstance(v, Taken) else 1 for _, v in found[name])
        if lines >= MOST_LINES:
            lines = 0
            time.sleep(0)  # the loop may want the interpreter
        family = kind(name, metric.help, labels=names)
        for values, value in found[name]:
            if isinstance(value, Taken):
                family.add_metric(values, *_buckets(value, metric.kind))  # type: ignore[attr-defined]
            else:
                family.add_metric(values, value)  # type: ignore[attr-defined]
        yield family


def _buckets(taken: Taken, kind: str) -> tuple[list[tuple[str, float]], float]:
    """As prometheus_client wants them: what lies at or below each bound, and the sum."""
    below = list(accumulate(taken.counts))
    bounds = BOUNDS[kind]
    if kind == COUNTS:
        buckets = [(str(float(2**digits - 1)), float(below[digits])) for digits in bounds]
        return [*buckets, ("+Inf", below[-1])], taken.total
    buckets = [(str(2**digits / 1e6), float(below[digits])) for digits in bounds]
    return [*buckets, ("+Inf", below[-1])], taken.total / 1e6


def process_samples(
    lag: Taken, strays: int, failures: int, certificate_ends_s: float | None
) -> Iterator[Sample]:
    limits = process_limits()
    yield Sample("quorumlog_loop_lag_seconds", lag)
    yield Sample("quorumlog_network_connections", limits.open_connections)
    yield Sample("quorumlog_network_connections_accepted_total", limits.accepted)
    yield Sample("quorumlog_network_connections_refused_total", limits.refused)
    yield Sample("quorumlog_network_connections_stray_total", strays)
    for limit in fields(LimitOptions):
        yield Sample("quorumlog_network_over_limits_total", limits.over[limit.name], (limit.name,))
    yield Sample("quorumlog_authentication_failures_total", failures)
    if certificate_ends_s is not None:
        yield Sample("quorumlog_tls_certificate_expiry_timestamp_seconds", certificate_ends_s)
    yield Sample("quorumlog_build_info", 1, (VERSION, platform.python_version()))


class Exposition:
    """On the port's thread."""

    def __init__(
        self, seen: Callable[[], Seen | None], of_process: Callable[[], Iterable[Sample]]
    ) -> None:
        from prometheus_client import CollectorRegistry, ProcessCollector

        self._seen = seen
        self._of_process = of_process
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def collect(self) -> Iterator[Family]:
        seen = self._seen()
        return families(() if seen is None else seen.looks, self._of_process())

    def text(self) -> bytes:
        from prometheus_client import generate_latest

        return generate_latest(self._registry)
