"""ReplicaMaster: a replica's side as a master: who may be told that a message is safe, and when."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping

from msgspec.structs import replace

from quorumlog.broker.epochs.epoch_history import Epoch, Peer, RunKey
from quorumlog.broker.errors import InSyncReplicasNotEnough, NotMaster, StaleEpoch
from quorumlog.broker.record_batch import QueueKey
from quorumlog.broker.replication.group_transfer_service import GroupTransferService
from quorumlog.broker.replication.protocol.acknowledgements import Acknowledgements, Mark
from quorumlog.broker.replication.protocol.ha_frames import State
from quorumlog.broker.replication.protocol.master_link import Leadership, LinkToSlave
from quorumlog.broker.replication.replica_core import ReplicaCore
from quorumlog.broker.replication.replica_store import ReplicaStore
from quorumlog.broker.replication.roles import InSyncSet, Member, SlaveState
from quorumlog.broker.store.commit_log import Replication
from quorumlog.broker.store.log_files import Role
from quorumlog.errors import LedgerError

log = logging.getLogger("quorumlog.broker")

DRAIN_MS = 10_000.0
"""A master that was drained goes on after so long, if whoever asked for it is heard no more."""
_SAMPLE_MS, _MOST_SAMPLES = 20.0, 2048
_MOST_PUT_ENDS = 1 << 16
_MOST_AHEAD = 100


class ReplicaMaster(ReplicaCore):
    """Acknowledgements: any thread (`_acks_lock`), never waiting for the disk."""

    def __init__(self, store: ReplicaStore, me: Peer, *, has_epochs: bool) -> None:
        super().__init__(store, me, has_epochs=has_epochs)
        self.may_acknowledge: Callable[[], bool] = lambda: True
        """Asked in the last moment before each acknowledgement, and before consumers see anything new:
        false once a lease is over, so that a process that was paused says nothing that it may not. Any
        thread; never blocks."""
        self.fenced_by = 0
        """Number of a newer epoch than it leads in, that somebody else has promised."""
        self.group_transfer = GroupTransferService(store.config.slave_timeout, store.clock)
        self._acks = Acknowledgements("", 1, 0)
        self._acks_lock = threading.Lock()
        self._links: dict[str, list[LinkToSlave]] = {}
        """By the slave's id. One each, but with --ha-dialect rocketmq, where the id is a host's."""
        self._peers: dict[str, Peer] = {}
        self._coming: set[str] = set()
        """Directories that were in sync when the list was changed, and come back until then."""
        self._coming_until_ms = 0.0
        self._ends: deque[tuple[float, int]] = deque(maxlen=_MOST_SAMPLES)
        """When the log had grown to where: for how long a slave lacks something."""
        self._put_ends: deque[int] = deque()
        """Where puts ended that are not confirmed, or enough of them; with the log's last end."""
        self._ahead: set[tuple[str, int]] = set()
        """As `ReplicaRecord.ahead`, and what is not noted yet."""
        self._is_stopped = True
        self._drained_until_ms: float | None = None
        self._drain_lock = threading.Lock()
        store.commit_log.replication = Replication(
            self._refusal,
            self._appended,
            self.group_transfer.submit,
            self._flushed,
            self._may_acknowledge,
        )

    @property
    def in_sync_replicas(self) -> int:
        """Of a master: what is acknowledged is on so many."""
        lists = self._acks.lists
        return lists[-1].copies if lists else self._acks.in_sync_replicas

    @property
    def is_run_confirmed(self) -> bool:
        """And that is on disk: a list that was asked for holds."""
        record = self.record
        return bool(record.history) and record.confirmed >= record.history[-1].key

    @property
    def in_sync_set(self) -> InSyncSet | None:
        return self._acks.in_sync_set

    def slaves(self) -> list[SlaveState]:
        """All that were ever connected to it in this run. Any thread."""
        with self._acks_lock:
            return [self._state_of(mark) for mark in self._acks.marks.values()]

    def peer_of(self, slave_id: str) -> Peer:
        """Of one of `slaves`."""
        return self._peers[slave_id]

    def counts(self, slave: Member) -> bool:
        """Its acknowledgements are waited for, by hand or by a fixed set."""
        return self._acks.counts(slave)

    # ---------------------------------------------------------------- acknowledging

    def stop_acknowledging(self) -> None:
        """From the moment that this returns: what is under way ends as an unknown outcome, what comes is
        refused. Never blocks; any thread."""
        self._is_stopped = True
        self.group_transfer.close()

    def go_on_acknowledging(self) -> None:
        """In the same epoch."""
        self.group_transfer.open(self.store.commit_log.replicated_offset or 0)
        self._is_stopped = False

    def drain(self) -> None:
        """Take nothing, until `resume` or for `DRAIN_MS`; asked again, for as long anew. What was taken
        goes on to be acknowledged until a promise ends that. Never blocks; any thread."""
        with self._drain_lock:
            self._drained_until_ms = self.store.clock() + DRAIN_MS

    @property
    def is_drained(self) -> bool:
        """Without a gap since `drain` was asked for last."""
        return self._drained_until_ms is not None

    def resume(self) -> None:
        """After `drain`: the same epoch goes on. Raises StaleEpoch."""
        with self._lock:
            if not self.is_leading:
                raise StaleEpoch(f"broker {self.id} is not the master any more")
            with self._drain_lock:
                self._drained_until_ms = None
                self.go_on_acknowledging()
        self._advance()

    @property
    def outlasts_its_drain(self) -> bool:
        """Whoever drained it is gone: `end_drain` is due."""
        until_ms = self._drained_until_ms
        return until_ms is not None and self.is_leading and self.store.clock() >= until_ms

    def end_drain(self) -> None:
        """Blocks for role changes."""
        with self._lock:
            if self.outlasts_its_drain:
                log.warning("whoever drained this broker is heard no more: it goes on as the master")
                self.resume()

    def wait_for(self, in_sync_set: InSyncSet) -> None:
        """Acknowledge what all of them hold; one that is not connected is waited for. Never blocks; any
        thread."""
        assert Member(self.id, self.directory_id) in in_sync_set, (self.id, in_sync_set)
        with self._acks_lock:
            self._acks.in_sync_set = in_sync_set
        self._advance()

    def _may_acknowledge(self) -> bool:
        if self.role is Role.SLAVE:
            return False
        return not self._is_stopped and not self.fenced_by and self.may_acknowledge()

    def _refusal(self) -> LedgerError | None:
        if self.role is Role.SLAVE:
            master = self.record.master
            where = "" if master is None or not master.address else f": send to {master.address}"
            return NotMaster(f"broker {self.id} is a slave{where}")
        if self.fenced_by:
            return StaleEpoch(
                f"epoch {self.fenced_by} was promised elsewhere: broker {self.id} of epoch"
                f" {self.history.epoch} is not the master any more"
            )
        if self._is_stopped or self.is_drained or not self.may_acknowledge():
            return NotMaster(f"broker {self.id} hands over, or is not sure to be the master any more")
        if not self._acks.waits_for_others:
            return None
        with self._acks_lock:
            there = self._in_sync()
            if self.store.clock() < self._coming_until_ms:
                there |= self._coming
            missing = self._acks.missing(there)
        return InSyncReplicasNotEnough(missing, retry_after_ms=100) if missing else None

    def _appended(self) -> None:
        now, end = self.store.clock(), self.max_offset
        with self._acks_lock:
            self._put_ends.append(end)
            if len(self._put_ends) > _MOST_PUT_ENDS:
                self._put_ends = deque([*list(self._put_ends)[:-1:2], end])
        if not self._ends or now >= self._ends[-1][0] + _SAMPLE_MS:
            self._ends.append((now, end))
            low = min((mark.acknowledged_offset for mark in self._acks.marks.values()), default=end)
            while self._ends and self._ends[0][1] <= low:
                self._ends.popleft()
        else:
            # A slave that lacks just this lacks it since then, also if nothing follows.
            self._ends[-1] = (self._ends[-1][0], end)
        self.observer.grown()
        if not self.store.config.is_sync_flush:
            self._advance()

    def _flushed(self) -> None:
        if self.role is Role.SLAVE:
            self.observer.grown()
        else:
            self._advance()

    def _advance(self) -> None:
        """The own log, or what a slave has of it, has come further. Any thread."""
        if not self._may_acknowledge():
            return
        commit_log = self.store.commit_log
        is_sync = self.store.config.is_sync_flush
        with self._acks_lock:
            acks = self._acks
            acks.own_offset = commit_log.flushed_offset if is_sync else commit_log.max_offset
            acks.advance()
            confirmed = acks.confirmed_offset
            if not self.has_epochs:
                confirmed = self._put_end_below(confirmed)
            if confirmed <= (commit_log.replicated_offset or 0):
                return
            commit_log.replicated_offset = confirmed
        self.group_transfer.notify_transfer_some(confirmed)
        self.store.show_confirmed()
        self.observer.confirmed()

    def _put_end_below(self, offset: int) -> int:
        """With --ha-dialect rocketmq a slave reports how many bytes have come, which may end within a
        record; nobody is shown a part of one. With `_acks_lock`."""
        found = self.store.commit_log.replicated_offset or 0
        while self._put_ends and self._put_ends[0] <= offset:
            found = max(self._put_ends.popleft(), found)
        return found

    # ---------------------------------------------------------------- as a MasterSide

    @property
    def leadership(self) -> Leadership:
        history, config = self.history, self.store.config
        return Leadership(
            self.me,
            history.epoch,
            history,
            config.mapped_file_size_commit_log,
        )

    @property
    def run(self) -> RunKey:
        return self.record.history[-1].key

    @property
    def is_leading(self) -> bool:
        """Slaves may follow."""
        history = self.record.history
        if self.role is Role.SLAVE or not history or self.fenced_by:
            return False
        return history[-1].epoch == self.record.promised

    def queue_begins(self) -> tuple[int, dict[str, dict[int, int]]]:
        position, of_queues = self.store.queues.begins()
        return position, _by_topic(of_queues)

    @property
    def alive_from(self) -> dict[str, dict[int, int]]:
        return _by_topic(self.store.queues.alive_from)

    @property
    def old_slave_problem(self) -> str:
        acks = self._acks
        if acks.in_sync_set is None and (self.history.epoch.leader or len(acks.lists) != 1):
            return "There was a switch, or a change of the list, which its record would not know of"
        return ""

    def is_ahead(self, host: str, offset: int) -> bool:
        with self._acks_lock:
            if not offset:  # it was emptied
                self._ahead = {each for each in self._ahead if each[0] != host}
            elif offset > self.max_offset:
                self._ahead.add((host, offset))
            return (host, offset) in self._ahead

    @property
    def has_ahead_to_note(self) -> bool:
        """`note_ahead` is due."""
        return self._ahead != set(self.record.ahead)

    def note_ahead(self) -> None:
        """Also after another start slaves that had more are not followed. Blocks for the disk. Raises
        StoreFailure."""
        with self._lock:
            with self._acks_lock:
                ahead = sorted(self._ahead)[-_MOST_AHEAD:]
                self._ahead = set(ahead)
            self._save(replace(self.record, ahead=ahead))

    def slave_came(
        self, slave: Peer, link: LinkToSlave, run: RunKey | None, release: str = ""
    ) -> Mark | None:
        with self._acks_lock:
            if run is not None and run != self.record.history[-1].key:
                return None  # it has not stored the history of this run
            links = self._links.setdefault(slave.id, [])
            if self.has_epochs:
                for older in links:
                    older.close("the slave has another connection")
                links.clear()
            links.append(link)
            mark = self._acks.connected(slave.id, slave.directory_id)
            mark.release = release
            self._peers[slave.id] = slave
        link.state(self._state())
        log.info("slave %s follows from %d on", slave.id, link.next_offset)
        return mark

    def slave_lost(self, mark: Mark, link: LinkToSlave) -> None:
        with self._acks_lock:
            links = self._links.get(mark.id, [])
            if link not in links:
                return
            links.remove(link)
            if links:
                return
            mark.is_connected = False

    def slave_reported(self, mark: Mark, written: int, flushed: int) -> None:
        counts = flushed if self.store.config.is_sync_flush else written
        with self._acks_lock:
            self._acks.report(mark, written, flushed, counts)
        self._advance()

    # ---------------------------------------------------------------- what slaves store, too

    @property
    def has_confirmed_run(self) -> bool:
        """The own run is confirmed, and that is not on disk: `note_confirmed` is due."""
        return self._acks.is_run_confirmed and self.is_leading and not self.is_run_confirmed

    def note_confirmed(self) -> None:
        """So that nobody asks the lists before any more. Blocks for the disk. Raises StoreFailure."""
        with self._lock:
            if self.has_confirmed_run:
                self._save(replace(self.record, confirmed=self.record.history[-1].key))
                self._send_state()

    def set_topics(self, topics: dict[str, int]) -> None:
        """Slaves get them, too. Blocks for the disk. Raises StoreFailure."""
        with self._lock:
            self.store.topics = dict(topics)
            if self.role is not Role.SLAVE:
                self._save(replace(self.record, topics={**self.record.topics, **topics}))
                self._send_state()

    def _state(self) -> State:
        return State(topics=self.record.topics, is_run_confirmed=self.is_run_confirmed)

    def _send_state(self) -> None:
        state = self._state()
        with self._acks_lock:
            links = [link for each in self._links.values() for link in each]
        for link in links:
            link.state(state)
        self.observer.grown()

    @property
    def takes_messages(self) -> bool:
        """As far as it knows."""
        return self._may_acknowledge() and not self.is_drained

    def newer_epoch(self, epoch: Epoch, directory_id: str) -> None:
        """`directory_id`: who has promised it. One that no list names, of another group perhaps, has no
        say here: what is acknowledged does not stand on it."""
        by_hand = [run.copy_list.directories for run in self.history.runs if run.copy_list is not None]
        if self.in_sync_set is None and not any(directory_id in listed for listed in by_hand):
            return
        if self.in_sync_set is not None and epoch.number <= self.history.epoch.number:
            return  # a register has given the number to this one: the other has promised it in vain
        if self.role is not Role.SLAVE and epoch.number > self.fenced_by:
            log.warning("epoch %s was promised elsewhere: this broker takes nothing more", epoch)
            self.fenced_by = epoch.number
            self.stop_acknowledging()

    def _lag_ms(self, mark: Mark) -> float:
        offset = mark.acknowledged_offset
        if offset >= self.max_offset:
            return 0.0
        for when, end in self._ends.copy():
            if end > offset:
                return self.store.clock() - when
        return 0.0

    def _is_caught_up(self, mark: Mark) -> bool:
        config = self.store.config
        lag_bytes = self.max_offset - mark.acknowledged_offset
        if not mark.is_connected or lag_bytes >= config.ha_max_gap_not_in_sync:
            return False
        return self._lag_ms(mark) < config.ha_max_lag_not_in_sync

    def _in_sync(self) -> set[str]:
        """Directories. With `_acks_lock`."""
        there = {mark.directory_id for mark in self._acks.marks.values() if self._is_caught_up(mark)}
        there.add(self.directory_id)
        return there

    def _state_of(self, mark: Mark) -> SlaveState:
        return SlaveState(
            mark.id,
            mark.directory_id,
            mark.is_connected,
            mark.written_offset,
            mark.flushed_offset,
            max(self.max_offset - mark.acknowledged_offset, 0),
            int(self._lag_ms(mark)),
            self._is_caught_up(mark),
            self._acks.holds(mark),
            mark.release,
        )


def _by_topic(of_queues: Mapping[QueueKey, int]) -> dict[str, dict[int, int]]:
    by_topic = dict[str, dict[int, int]]()
    for key, value in of_queues.items():
        by_topic.setdefault(key.topic, {})[key.queue_id] = value
    return by_topic
