"""The process that the port shows: a server, and its other services."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Protocol

from quorumlog.admin.looks import Look, Sample, Table, TakeLook, disk_samples, request_samples
from quorumlog.errors import LedgerError
from quorumlog.log_state.control_entries import Hold
from quorumlog.log_state.log_state import Reader
from quorumlog.log_state.users import Users
from quorumlog.net.access import Access
from quorumlog.node.retention import WhyKept
from quorumlog.server.ledger_server import LedgerServer
from quorumlog.server.node_driver import NodeDriver
from quorumlog.server.users_of_server import UsersOfServer
from quorumlog.store.time_marks import Mark
from quorumlog.wire.client_messages import EventInfo, MemberInfo, StatusResponse

HOLDS = {Hold.NONE: "", Hold.READER: "held", Hold.ARCHIVE: "archive"}
MOST_SHOWN = 20
KEPT_EVERY_S = 10.0
LAG_EVERY_S = 5.0
SILENT_MS = 5000.0


class UsersOfProcess(Protocol):
    access: Access

    @property
    def newest(self) -> Users | None:
        """The last that were known. None: there are some, and they were never known."""
        ...


class Process(Protocol):
    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """None: it has not started."""
        ...

    @property
    def users(self) -> UsersOfProcess: ...

    def looks(self) -> Sequence[TakeLook]:
        """On the loop."""
        ...


class LogProcess:
    """A `LedgerServer`, and the state of its endpoints."""

    def __init__(self, server: LedgerServer, beside: Sequence[TakeLook] = ()) -> None:
        self._server = server
        self._beside = beside
        self._snapshots: dict[tuple[str, str], tuple[int, float]] = {}
        """The newest of a machine of a group, and when it was seen first."""
        self._kept: dict[str, tuple[float, WhyKept | None]] = {}
        """When it was asked last, and what came of it."""
        self._lags: dict[str, dict[tuple[str, str], tuple[float, float]]] = {}
        """By group; of who lacks entries when it was asked last, and the seconds that came of it."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        return self._server.loop

    @property
    def users(self) -> UsersOfServer:
        return self._server.users

    def looks(self) -> Sequence[TakeLook]:
        return [*(partial(self._look, driver) for driver in self._server.drivers), *self._beside]

    def _look(self, driver: NodeDriver) -> Look:
        group = driver.config.group
        if driver.stopped:
            failure = "" if driver.failure is None else str(driver.failure)
            return Look(group, "log", unready=("it does not run",), failure=failure)
        status, state = driver.status.response(), driver.node.log_state.committed
        return Look(
            group,
            "log",
            unready=status.unready,
            leads=status.role == "leader",
            samples=(
                *_samples(driver, status),
                *self._snapshot_samples(group, status),
                *self._lag_samples(driver, status),
            ),
            tables=partial(
                _tables,
                status,
                driver.events.all(),
                () if state is None else state.readers,
                self._why(driver),
            ),
        )

    def _why(self, driver: NodeDriver) -> WhyKept | None:
        """What keeps segments, as it was a moment ago; of the leader."""
        group, now_s = driver.config.group, time.monotonic()
        if driver.node.refusal_unless_leading() is not None:
            self._kept.pop(group, None)
            return None
        known = self._kept.setdefault(group, (-math.inf, None))
        if now_s - known[0] >= KEPT_EVERY_S:
            self._kept[group] = now_s, known[1]

            def explained(why: WhyKept | LedgerError) -> None:
                if not isinstance(why, LedgerError):
                    self._kept[group] = now_s, why

            driver.node.retention.explain(explained)
        return self._kept[group][1]

    def _lag_samples(self, driver: NodeDriver, status: StatusResponse) -> Iterator[Sample]:
        state, committed_index = driver.node.log_state.committed, status.committed_index
        lacking = {
            ("reader", each.name): (each.position, committed_index + 1 - each.position)
            for each in (() if state is None else state.readers)
        }
        if status.role == "leader":
            for member in status.members:
                if member.id != status.id:
                    lag = _lag_of(member, status)
                    lacking["follower", member.id] = status.ledger_end_index + 1 - lag, lag
                    yield Sample("quorumlog_follower_lag_entries", lag, (member.id,))
        known = self._lags.get(status.group, {})
        self._lags[status.group] = {key: known[key] for key in lacking if key in known}
        for (kind, name), (first_index, lag) in lacking.items():
            if kind == "reader":
                yield Sample("quorumlog_reader_lag_entries", max(0, lag), (name,))
            seconds = 0.0 if lag <= 0 else self._lag_s(driver, (kind, name), first_index)
            yield Sample(f"quorumlog_{kind}_lag_seconds", seconds, (name,))

    def _lag_s(self, driver: NodeDriver, key: tuple[str, str], first_index: int) -> float:
        """Since the entry was appended that is lacking first, as it was a moment ago."""
        known, now_s = self._lags[driver.config.group], time.monotonic()
        asked_s, seconds = known.get(key, (-math.inf, 0.0))
        if now_s - asked_s >= LAG_EVERY_S:
            known[key] = now_s, seconds

            def found(mark: Mark | LedgerError | None) -> None:
                if isinstance(mark, Mark):
                    known[key] = now_s, max(0.0, time.time() - mark.time_ms / 1000)

            driver.node.marks.at_data_from(first_index, found)
        return known[key][1]

    def _snapshot_samples(self, group: str, status: StatusResponse) -> Iterator[Sample]:
        now_s = time.monotonic()
        for row in status.machines:
            key, newest = (group, row.name), (row.snapshot_index, now_s)
            if self._snapshots.setdefault(key, newest)[0] != row.snapshot_index:
                self._snapshots[key] = newest
            yield Sample("quorumlog_snapshot_age_seconds", now_s - self._snapshots[key][1], (row.name,))


def _samples(driver: NodeDriver, status: StatusResponse) -> Iterator[Sample]:
    node = driver.node
    measures = node.measures
    yield Sample("quorumlog_server_has_leader", bool(status.leader_id))
    yield Sample("quorumlog_server_is_leader", status.role == "leader")
    yield Sample("quorumlog_server_ready", not status.unready)
    for cause, changes in driver.leader_changes.items():
        yield Sample("quorumlog_server_leader_changes_seen_total", changes, (cause,))
    yield Sample("quorumlog_server_term", status.term)
    yield Sample("quorumlog_server_proposals_committed_total", sum(measures.committed.counts))
    yield Sample("quorumlog_server_proposals_pending", measures.pending)
    yield Sample("quorumlog_server_proposals_pending_bytes", measures.pending_bytes)
    yield from request_samples("server", driver.requests)
    yield Sample("quorumlog_server_append_duration_seconds", measures.committed)
    yield Sample("quorumlog_server_problems", len(status.problems))
    yield Sample("quorumlog_log_first_index", status.ledger_begin_index)
    yield Sample("quorumlog_log_last_index", status.ledger_end_index)
    yield Sample("quorumlog_log_committed_index", status.committed_index)
    yield Sample("quorumlog_log_durable_index", status.durable_index)
    for row in status.machines:
        yield Sample("quorumlog_log_applied_index", row.applied_index, (row.name,))
    yield Sample("quorumlog_log_appended_records_total", measures.batch_records.total)
    yield Sample("quorumlog_log_appended_bytes_total", measures.batch_bytes.total)
    yield Sample("quorumlog_log_batch_records", measures.batch_records)
    yield Sample("quorumlog_log_disk_bytes", status.log_disk_bytes)
    yield Sample("quorumlog_disk_wal_fsync_duration_seconds", driver.sync_us.taken())
    since_ms = node.disk_waits_since_ms
    waits_s = 0.0 if since_ms is None else time.monotonic() - since_ms / 1000
    yield Sample("quorumlog_disk_sync_waits_seconds", waits_s)
    yield from disk_samples(driver.directory.disk, driver.status.disk.usage)
    yield Sample("quorumlog_log_damaged_entries", status.damaged_entries)
    yield Sample("quorumlog_log_set_aside_bytes", status.set_aside_bytes)
    yield Sample("quorumlog_scrub_passes_total", status.scrub_passes)
    is_scrubbing = status.scrub_next_index >= 0 and status.scrub_stop_index > 0
    progress = status.scrub_next_index / status.scrub_stop_index if is_scrubbing else 1.0
    yield Sample("quorumlog_scrub_progress_ratio", progress)
    for machine in status.machines:
        lag = status.committed_index - machine.snapshot_index
        yield Sample("quorumlog_snapshot_lag_entries", lag, (machine.name,))
    for name, taken in node.machines.save_us().items():
        yield Sample("quorumlog_snapshot_save_duration_seconds", taken, (name,))
    yield Sample("quorumlog_server_voters", max(0, status.voters))
    yield Sample("quorumlog_server_quorum", status.quorum_size)
    silent_ms = max(SILENT_MS, 3 * driver.config.consensus.heartbeat_interval_ms)
    reachable = sum(each.is_voter and _is_reachable(each, status, silent_ms) for each in status.members)
    yield Sample("quorumlog_server_voters_reachable", reachable)
    yield Sample("quorumlog_server_producers", max(0, status.producers))
    yield from _peer_samples(driver, status)


def _is_reachable(member: MemberInfo, status: StatusResponse, silent_ms: float) -> bool:
    """The kernel keeps connections of a process that is stopped: a leader knows who answers."""
    if status.role != "leader" or member.id == status.id:
        return member.reachable
    return member.reachable and 0 <= member.answered_ms_ago < silent_ms


def _peer_samples(driver: NodeDriver, status: StatusResponse) -> Iterator[Sample]:
    for member in status.members:
        if member.id == status.id:
            continue
        labels = (member.id,)
        if status.role == "leader":
            yield Sample("quorumlog_follower_lag_bytes", max(0, member.behind_bytes), labels)
            silent_s = math.nan if member.answered_ms_ago < 0 else member.answered_ms_ago / 1000
            yield Sample("quorumlog_follower_answered_seconds_ago", silent_s, labels)
        if member.id in driver.peers:
            traffic = driver.peers[member.id].traffic
            round_trip_us = [each.round_trip_us for each in traffic if each.round_trip_us]
            sent, received = (sum(each[i] for each in traffic) for i in (0, 1))
            yield Sample("quorumlog_network_peer_connections", len(traffic), labels)
            yield Sample("quorumlog_network_peer_sent_bytes_total", sent, labels)
            yield Sample("quorumlog_network_peer_received_bytes_total", received, labels)
            if round_trip_us:
                shortest_s = min(round_trip_us) / 1e6
                yield Sample("quorumlog_network_peer_round_trip_time_seconds", shortest_s, labels)


def _lag_of(member: MemberInfo, status: StatusResponse) -> int:
    return max(0, status.ledger_end_index - max(member.water_mark, status.ledger_begin_index - 1))


def _tables(
    status: StatusResponse, events: Sequence[EventInfo], readers: Sequence[Reader], kept: WhyKept | None
) -> list[Table]:
    indices = (status.ledger_begin_index, status.ledger_end_index, status.committed_index)
    own = (status.role, status.term, *indices, status.version)
    members = [
        (
            each.id,
            each.address,
            "leads" if each.id == status.leader_id else each.part,
            "yes" if each.reachable else "no",
            each.water_mark if each.water_mark >= 0 else None,
            _lag_of(each, status) if status.role == "leader" else None,
            f"{each.answered_ms_ago / 1000:.1f} s ago" if each.answered_ms_ago >= 0 else None,
        )
        for each in status.members
    ]
    machines = [
        (
            each.name,
            each.applied_index,
            each.snapshot_index if each.snapshot_index >= 0 else None,
            each.problem,
        )
        for each in status.machines
    ]
    of_readers = [
        (each.name, each.position, max(0, status.committed_index + 1 - each.position), HOLDS[each.hold])
        for each in readers
    ]
    kept_by = [
        (each.first_index, each.stop_index - each.first_index, each.size_bytes, "; ".join(each.reasons))
        for each in (() if kept is None else kept.segments[:MOST_SHOWN])
    ]
    leaders = [
        (datetime.fromtimestamp(each.time_ms / 1000, UTC), each.text, each.times)
        for each in reversed(events)
        if each.kind == "leader"
    ]
    led = [(f"{at:%Y-%m-%d %H:%M:%SZ}", *what) for at, *what in leaders[:MOST_SHOWN]]
    return [
        Table(status.id, ("role", "term", "first", "last", "committed", "release"), [own]),
        Table(
            "Members", ("id", "address", "part", "reachable", "stored", "behind", "answered"), members
        ),
        Table("Problems", ("problem",), [(each,) for each in (*status.unready, *status.problems)]),
        Table("State machines", ("name", "applied", "snapshot", "problem"), machines),
        Table("Readers", ("name", "position", "behind", "holds"), of_readers),
        Table("Leaders", ("time", "what", "times"), led),
        Table("What keeps old segments", ("first", "entries", "bytes", "kept by"), kept_by),
    ]
