"""Replica: a store as master or slave. It knows no sockets: `ha_service` sends its messages and passes
in those received. `confirm_offset` never falls, neither here nor over a switch: consumers saw the
messages below it."""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from quorumlog.broker.epochs import CopyList, Epoch, EpochHistory, Peer, RunKey, lists_in_force
from quorumlog.broker.errors import InSyncReplicasNotEnough, NotMaster, StaleEpoch, SwitchRefused
from quorumlog.broker.record_batch import QueueKey
from quorumlog.broker.replication.acknowledgements import (
    Acknowledgements,
    GroupTransferService,
    InSyncSet,
    Member,
    SlaveProgress,
    SlaveState,
)
from quorumlog.broker.replication.links import (
    Follow,
    LinkToSlave,
    LinkWork,
    OwnLog,
    State,
    by_queue,
)
from quorumlog.broker.replication.replica_file import (
    ReplicaFile,
    ReplicaRecord,
    SetAsideTail,
    before_slaves,
    new_directory_id,
)
from quorumlog.broker.replication.replica_store import ReplicaStore
from quorumlog.broker.store.commit_log import LogReplication
from quorumlog.broker.store.log_files import BrokerRole
from quorumlog.broker.store.message_store import USERS_HEARD, USERS_ON
from quorumlog.errors import ConfigError, LedgerError

log = logging.getLogger("quorumlog.broker")

DRAIN_MS = 10_000.0
"""A drained master continues after so long without a request of the operator."""
_SAMPLE_MS, _MOST_SAMPLES = 20.0, 2048
_MOST_PUT_ENDS = 1 << 16
_MOST_AHEAD = 100
_MOST_TAILS = 20
MOST_AGE_MS = 1 << 50
_COMES_BACK_MS = 1000.0
"""So long messages are taken for a slave that is told to come back."""
_NO_RUN = RunKey()


class ReplicaObserver:
    """Called by any thread, often."""

    def role_changed(self) -> None:
        """Connections of the old role, or of the old run, end."""

    def grown(self) -> None:
        """There is more to send, or to report."""

    def confirmed(self) -> None:
        """More is confirmed than before."""


class Heard(NamedTuple):
    """A master's message."""

    at_ms: float
    """When its users were sure to be not old."""
    confirm_offset: int
    """As sent."""
    follows: int
    """As often this slave has begun to follow."""


class BrokerReplica:
    """Role changes and messages of a master: any thread but the loop's, one at a time (`_lock`).
    Acknowledgements: any thread (`_acks_lock`), never waiting for the disk."""

    def __init__(
        self,
        store: ReplicaStore,
        me: Peer,
        first_role: BrokerRole,
        *,
        master_ha_address: str = "",
        has_epochs: bool = True,
        is_elected: bool = False,
    ) -> None:
        """`first_role`: of a store that never had one; a switch since then goes before it. `has_epochs`:
        False with --ha-dialect rocketmq. `is_elected`: a coordinator decides when it leads, which a
        start does not know. `me`: without its directory. Raises ConfigError, StoreFailure."""
        self.store = store
        self.me, self.id = me, me.id
        self.has_epochs = has_epochs
        self.observer = ReplicaObserver()
        self._lock = threading.RLock()
        """Held over role changes and over what comes from a master."""
        self._file = ReplicaFile(store.disk, store.root)
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
        store.commit_log.replication = LogReplication(
            self._refusal,
            self._appended,
            self.group_transfer.submit,
            self._flushed,
            self._may_acknowledge,
        )
        self._is_elected = is_elected
        self._follows = 0
        self.heard: Heard | None = None
        """Since it follows."""
        self.users_since_ms = math.inf
        """When its users were sure to be not old; inf: nobody looks."""
        self._told_confirmed = RunKey()
        """A run of its master that is confirmed, and may not be in its own log yet."""
        named = Peer(id="", ha_address=master_ha_address) if master_ha_address else None
        self.record = self._first_record(first_role, named)
        self.directory_id = self.record.directory_id
        self.me = replace(me, directory_id=self.directory_id)
        self._ahead = set(self.record.ahead)
        if self.record.topics and store.topics is not None:
            store.topics = {**self.record.topics, **store.topics}
        leads = self.history.epoch in (Epoch(), self.record.promised) or not has_epochs
        if self.record.role is not BrokerRole.SLAVE and not leads:
            # It promised an epoch to somebody else, and was not told yet to whom.
            log.warning("epoch %s was promised: waiting for its master", self.record.promised)
            self._save(replace(self.record, role=BrokerRole.SLAVE, master=None))
        if is_elected or self.record.role is BrokerRole.SLAVE:
            store.commit_log.become(BrokerRole.SLAVE)
        else:
            self._begin_by_hand(self.record.role)

    @property
    def epoch(self) -> int:
        return self.record.promised.number

    @property
    def history(self) -> EpochHistory:
        return EpochHistory(self.record.history)

    @property
    def log_epoch(self) -> int:
        """Of the writer of the last byte."""
        runs = [run for run in self.record.history if run.start_offset < self.max_offset]
        return runs[-1].number if runs else 0

    @property
    def role(self) -> BrokerRole:
        return self.store.commit_log.role

    @property
    def master(self) -> Peer | None:
        """The master that a slave follows."""
        return self.record.master if self.role is BrokerRole.SLAVE else None

    @property
    def min_offset(self) -> int:
        return self.store.commit_log.min_offset

    @property
    def max_offset(self) -> int:
        return self.store.commit_log.max_offset

    @property
    def flushed_offset(self) -> int:
        return self.store.commit_log.flushed_offset

    @property
    def confirm_offset(self) -> int:
        return self.store.commit_log.confirm_offset

    def _save(self, record: ReplicaRecord) -> None:
        self._file.save(record)
        self.record = record

    def _first_record(self, first_role: BrokerRole, named: Peer | None) -> ReplicaRecord:
        """`named`: a master of which only the address is known yet."""
        me = self.me
        held = self._file.load(me, has_lists=self.has_epochs and not self._is_elected)
        if held is not None:
            if held.id != me.id:
                raise ConfigError(
                    f"{self.store.root} is the store of broker {held.id}, not of {me.id}: set --id"
                )
            if not self.has_epochs and not self._is_elected:
                return self._as_started(held, first_role, named)
            if held.role is not first_role and not self._is_elected:
                now = "a slave" if held.role is BrokerRole.SLAVE else "the master"
                log.warning(
                    "this broker has been %s since epoch %s: --role sets only the role at the first"
                    " start",
                    now,
                    held.promised,
                )
            is_known = held.master is not None and held.master.id
            if held.role is BrokerRole.SLAVE and not is_known and named is not None:
                held = replace(held, master=named)
            return held
        directory_id = new_directory_id()
        is_slave = first_role is BrokerRole.SLAVE
        if not is_slave:
            self.store.leave_master_behind()
        record = ReplicaRecord(
            id=me.id,
            directory_id=directory_id,
            role=first_role,
            promised=Epoch() if is_slave else Epoch(1, directory_id),
            master=named,
            history=list(before_slaves().runs) if self.has_epochs and self.max_offset else [],
        )
        # What the store had before there were slaves was acknowledged, and consumers have seen it.
        self.store.commit_log.replicated_offset = self.store.commit_log.max_offset
        self.store.wakeup_reput()
        self._file.save(record)
        return record

    def _as_started(self, held: ReplicaRecord, role: BrokerRole, named: Peer | None) -> ReplicaRecord:
        """Without epochs there is no switch: `--role` of each start says what it is."""
        record = replace(held, role=role, master=named)
        if role is not BrokerRole.SLAVE:
            promised = max(held.promised, Epoch(1, held.directory_id))
            record = replace(record, promised=promised, master=None)
        if record != held:
            self._file.save(record)
        return record

    def _first_list(self) -> CopyList | None:
        """Of a group that has none yet, or was led by somebody outside. None: it has one."""
        listed, config = self.history.held(self.max_offset).copy_list, self.store.config
        if not self.has_epochs:
            return None
        if listed is None or not listed.copies:
            is_async = self.record.role is BrokerRole.ASYNC_MASTER
            return CopyList((self.me,), config.in_sync_replicas or (1 if is_async else 2))
        if config.in_sync_replicas not in (0, listed.copies):
            log.warning(
                "in_sync_replicas is %d, and the list %d, which is in force: quorumlog broker copies",
                config.in_sync_replicas,
                listed.copies,
            )
        return None

    # ---------------------------------------------------------------- who leads

    def promise(self, epoch: int, leader: str = "", *, anew: bool = False) -> None:
        """Vote for an epoch, on disk when this returns; requests of lower epochs are refused, and their
        work stops. `leader`: the directory that is to lead; empty: its own. `anew`: an epoch already
        voted for is refused, so that only one operator gets the vote. Raises StaleEpoch,
        StoreFailure."""
        with self._lock:
            asked = Epoch(epoch, leader or self.directory_id)
            self._check_epoch(asked.number)
            if asked.number > self.record.promised.number:
                self.stop_acknowledging()
                self._save(replace(self.record, promised=asked))
                # Who has most is judged by what is on disk: without --flush sync more is acknowledged.
                self.store.commit_log.flush(0)
                self.observer.role_changed()
            elif anew:
                raise StaleEpoch(
                    f"epoch {epoch} was promised to another switch already: see broker status, and"
                    " switch again"
                )

    def become_master(self, epoch: int, in_sync_set: InSyncSet) -> None:
        """By a register. Raises StaleEpoch, StoreFailure."""
        is_alone = self.store.config.in_sync_replicas == 1
        role = BrokerRole.ASYNC_MASTER if is_alone else BrokerRole.SYNC_MASTER
        with self._lock:
            self._check_epoch(epoch)
            self._check_not_led(epoch)
            self._begin(
                Epoch(epoch, self.directory_id),
                role,
                in_sync_set,
                # Should nobody outside say it any more, what was acknowledged is here.
                copy_list=CopyList((self.me,), 0),
                is_forced=True,
            )

    def _begin_by_hand(
        self, role: BrokerRole, confirmed: RunKey = _NO_RUN, forced_list: CopyList | None = None
    ) -> None:
        first, epoch = forced_list or self._first_list(), self.record.promised
        is_forced = first is not None and self.history.copy_list is not None
        if is_forced:
            self.store.leave_master_behind()
        self._begin(epoch, role, copy_list=first, is_forced=is_forced, confirmed=confirmed)

    def lead(
        self,
        epoch: int,
        confirmed: RunKey = _NO_RUN,
        forced_list: CopyList | None = None,
        *,
        may_lose_users: bool = False,
    ) -> None:
        """By an operator: in the newest epoch voted for. `confirmed`: the newest run known to be
        confirmed. `forced_list`: overrides earlier lists. `may_lose_users`: another broker knows of
        users, which are lost if this log has none. Raises StaleEpoch, SwitchRefused, StoreFailure."""
        with self._lock:
            self._check_epoch(epoch)
            if self.record.promised != Epoch(epoch, self.directory_id):
                raise StaleEpoch(f"epoch {epoch} was not promised to this directory")
            self._check_not_led(epoch)
            if forced_list is not None:
                self._check_forced(forced_list)
            listed = forced_list or self.history.held(self.max_offset).copy_list
            if listed is None:
                raise SwitchRefused(
                    f"broker {self.id} has not connected to a master yet, and knows no replica list"
                )
            if may_lose_users and forced_list is not None:
                self.store.note_users(USERS_ON)
            self._begin_by_hand(_role_of(listed), confirmed, forced_list)

    def become_slave(self, epoch: int, master: Peer) -> None:
        """The own log after the last point in common is set aside once the master has shown a newer
        epoch. With a register there is no other leader: a master with a lower epoch than a vote spent
        here in vain learns it from its slave, and leads again. Raises StaleEpoch, StoreFailure."""
        with self._lock:
            if master.id == self.id:
                raise ConfigError(f"broker {self.id} cannot be its own slave")
            told, promised = Epoch(epoch, master.directory_id), self.record.promised
            if self._is_elected:
                if self.role is not BrokerRole.SLAVE and self.history.epoch.number == epoch:
                    raise StaleEpoch(f"this broker is the master of epoch {epoch} itself")
                told = told if epoch >= promised.number else promised
            else:
                self._check_epoch(epoch)
                if told < promised:
                    raise StaleEpoch(f"epoch {epoch} was promised to another directory")
            self.stop_acknowledging()
            self.store.commit_log.become(BrokerRole.SLAVE)
            self.store.commit_log.flush(0)
            self._save(replace(self.record, promised=told, role=BrokerRole.SLAVE, master=master))
            self.fenced_by = 0
            self.observer.role_changed()

    def _check_epoch(self, epoch: int) -> None:
        if not self.has_epochs:
            raise ConfigError("--ha-dialect rocketmq has no epochs: roles change by a start with --role")
        if epoch < self.record.promised.number:
            raise StaleEpoch(f"epoch {self.record.promised} was promised, {epoch} is older")

    def _check_not_led(self, epoch: int) -> None:
        if self.record.history and epoch <= self.history.epoch.number:
            raise StaleEpoch(f"epoch {self.history.epoch} already had a master")

    def _check_forced(self, copy_list: CopyList) -> None:
        directories = copy_list.directories
        is_whole = len(directories) == len(copy_list.members) >= copy_list.copies >= 1
        if not is_whole or self.directory_id not in directories:
            raise ConfigError(f"a replica list of {copy_list.ids} cannot have {copy_list.copies} copies")

    # ---------------------------------------------------------------- the list

    def add(self, broker_id: str) -> None:
        """A slave counts from here on; another directory of its name does no more. Raises NotMaster,
        SwitchRefused, InSyncReplicasNotEnough, StoreFailure."""
        with self._lock:
            listed = self._list_to_change()
            with self._acks_lock:
                mark = self._acks.marks.get(broker_id)
            if mark is None:
                raise SwitchRefused(f"broker {broker_id} does not follow this master")
            _refuse_old(mark)
            if not self._is_caught_up(mark):
                raise InSyncReplicasNotEnough(
                    f"broker {broker_id} is not in sync: it lacks"
                    f" {self.max_offset - mark.acknowledged_offset} bytes, or is not connected",
                    retry_after_ms=100,
                )
            if mark.directory_id in listed.directories:
                raise SwitchRefused(f"broker {broker_id} is on the list: {', '.join(listed.ids)}")
            members = [peer for peer in listed.members if peer.id != broker_id]
            members.append(self._peers[broker_id])
            self._change(CopyList(tuple(members), listed.copies))

    def remove(self, broker_id: str) -> None:
        """Raises as `add`."""
        with self._lock:
            listed = self._list_to_change()
            members = [peer for peer in listed.members if peer.id != broker_id]
            if len(members) == len(listed.members):
                raise SwitchRefused(f"no broker {broker_id} is on the list: {', '.join(listed.ids)}")
            if broker_id == self.id:
                raise SwitchRefused(f"broker {broker_id} leads: switch to another one first")
            if len(members) < listed.copies:
                raise SwitchRefused(
                    f"{listed.copies} copies need as many brokers: quorumlog broker copies"
                    f" {len(members)} first, or add another one"
                )
            self._change(CopyList(tuple(members), listed.copies))

    def set_copies(self, copies: int) -> None:
        """Raises as `add`."""
        with self._lock:
            listed = self._list_to_change()
            if not 1 <= copies <= len(listed.members):
                raise SwitchRefused(
                    f"{copies} copies of {len(listed.members)} brokers ({', '.join(listed.ids)}):"
                    " quorumlog broker add --broker ID makes them more"
                )
            self._change(CopyList(listed.members, copies))

    def _list_to_change(self) -> CopyList:
        if not self.is_leading or self._is_stopped or self.is_drained:
            raise NotMaster(f"broker {self.id} is not the master{self._master_words(': --servers')}")
        acks = self._acks
        if not acks.lists or acks.in_sync_set is not None:
            raise SwitchRefused(
                "the coordinator keeps the in-sync set: there is no replica list to change"
            )
        if not acks.is_run_confirmed:
            asked = "; ".join(f"{each.needed} of {', '.join(each.ids)}" for each in acks.lists)
            raise SwitchRefused(
                f"the newest replica list is not confirmed yet; it must be on the disks of {asked}"
            )
        self._refuse_old_slaves(acks.lists[-1])
        return acks.lists[-1]

    def _change(self, copy_list: CopyList) -> None:
        """A list that could not be confirmed now is refused. Raises InSyncReplicasNotEnough."""
        with self._acks_lock:
            there = self._in_sync()
        for each in (self._acks.lists[-1], copy_list):
            count = len(each.directories & there)
            if count < each.needed:
                raise InSyncReplicasNotEnough(
                    f"{count} of {', '.join(each.ids)} are in sync, and the change needs {each.needed}",
                    retry_after_ms=100,
                )
        # The run that ends is confirmed, though it may not be on disk yet: the lists before it are asked
        # no more.
        role, epoch = _role_of(copy_list), self.record.promised
        self._begin(epoch, role, copy_list=copy_list, confirmed=self.run, goes_on=True)

    def joining(self) -> str:
        """While a group is being formed, which has fewer brokers than copies: a slave that goes onto the
        list by itself. Empty: none."""
        acks = self._acks
        if not acks.lists or not acks.is_run_confirmed or not self.is_leading or self.is_drained:
            return ""
        listed = acks.lists[-1]
        if len(listed.members) >= listed.copies:
            return ""
        with self._acks_lock:
            for mark in acks.marks.values():
                is_new = mark.is_connected and mark.release and mark.id not in listed.ids
                if is_new and acks.holds(mark):
                    return mark.id
        return ""

    # ---------------------------------------------------------------- a run begins

    def _begin(
        self,
        epoch: Epoch,
        role: BrokerRole,
        in_sync_set: InSyncSet | None = None,
        *,
        copy_list: CopyList | None = None,
        is_forced: bool = False,
        confirmed: RunKey = _NO_RUN,
        goes_on: bool = False,
    ) -> None:
        """Of the own writes, on disk before the first of them. `goes_on`: what is under way may be
        acknowledged in it."""
        commit_log, config = self.store.commit_log, self.store.config
        if not goes_on:
            self.stop_acknowledging()
            with commit_log.paused():
                pass  # whoever was writing has done it, and nobody else does
            commit_log.flush(0)
            self.store.count_queues()
        with commit_log.paused():
            commit_log.flush(0)
            end = commit_log.max_offset
            history = self.history.begun(
                epoch, end, copy_list, is_forced=is_forced, is_flushed=config.is_sync_flush
            )
            record = replace(
                self.record,
                promised=epoch,
                role=role,
                master=None,
                history=list(history.runs),
                confirmed=max(self.record.confirmed, confirmed),
                topics=self.record.topics | (self.store.topics or {}),
            )
            self._save(record)
            by_hand = self.has_epochs and in_sync_set is None
            with self._acks_lock:
                # Their slaves are told to come back: messages wait for them, and are not refused.
                self._coming = self._in_sync() if goes_on else set()
                self._coming_until_ms = self.store.clock() + _COMES_BACK_MS
                offset = min(commit_log.replicated_offset or 0, end)
                self._acks = Acknowledgements(
                    self.directory_id,
                    config.in_sync_replicas or (2 if role is BrokerRole.SYNC_MASTER else 1),
                    offset,
                    in_sync_set=in_sync_set,
                    lists=lists_in_force(history, record.confirmed) if by_hand else (),
                    begun_at=end,
                )
                self._links.clear()
                self._put_ends.clear()
                self._put_ends.append(end)
                commit_log.replicated_offset = offset
        self._ends.clear()
        if not goes_on:
            self.fenced_by = 0
            self._drained_until_ms = None
            self.go_on_acknowledging()
        commit_log.become(role)
        log.info("broker %s is %s in epoch %s from %d on", self.id, role.value, epoch, end)
        self._advance()
        self.observer.role_changed()

    # ---------------------------------------------------------------- as a slave

    def own_log(self) -> OwnLog:
        config = self.store.config
        return OwnLog(
            self.me,
            self.record.promised,
            self.history,
            self.min_offset,
            self.max_offset,
            config.mapped_file_size_commit_log,
            config.is_sync_flush,
            self.record.master,
        )

    def follow(self, follow: Follow) -> tuple[int, int]:
        """Before the first bytes of a master. Returns `written_end`. Raises StaleEpoch, StoreFailure."""
        with self._lock:
            if self.role is not BrokerRole.SLAVE or follow.history.epoch < self.record.promised:
                raise StaleEpoch(f"epoch {self.record.promised} was promised meanwhile")
            if follow.cuts and follow.start_offset < self.min_offset:
                raise StaleEpoch("the common part of both logs has been deleted by age")
            record, end = self.record, self.max_offset
            tails = record.tails
            # The promise first: a cut for a master of an epoch that is forgotten would be for nobody.
            record = replace(record, promised=follow.history.epoch, master=follow.welcome.master)
            self._save(record)
            if follow.cuts:
                epoch = self.log_epoch
                path = self.store.cut(follow.start_offset)
                start = follow.start_offset
                tail = SetAsideTail(epoch=epoch, first_offset=start, stop_offset=end, path=path)
                tails = [*tails, tail][-_MOST_TAILS:]
            # What the old master has confirmed beyond the own end, another one may have otherwise, with
            # --unsafe: it says itself how far it is.
            commit_log = self.store.commit_log
            commit_log.replicated_offset = min(commit_log.replicated_offset or 0, follow.start_offset)
            if follow.history.is_forced_since(self.history.epoch):
                self.store.leave_master_behind()
            # The history of what the log will hold: nothing of it is written yet. Behind the cut, whose
            # bytes are not in it; before a new begin, which is above what the old one says is in common.
            self._save(replace(record, history=list(follow.history.runs), tails=tails))
            self._told_confirmed = RunKey()
            self._follows, self.heard = self._follows + 1, None
            self.store.hide(by_queue(follow.welcome.alive_from))
            if follow.begins_anew:
                queues = follow.welcome.queues
                begins = None if queues is None else by_queue(queues)
                self.store.begin_anew_at(follow.start_offset, begins)
            elif follow.start_offset == 0:
                # What is known of queues may be of a log that began elsewhere, and was lost.
                self.store.begin_with_log()
            return self.written_end

    def take(self, work: LinkWork, epoch: Epoch, *, asks_flush: bool) -> tuple[int, int]:
        """Take messages of the master of this epoch. Returns `written_end`. Raises StaleEpoch, DiskFull,
        StoreFailure."""
        with self._lock:
            if self.has_epochs and epoch != self.record.promised:
                raise StaleEpoch(f"epoch {self.record.promised} was promised meanwhile")
            if self.role is not BrokerRole.SLAVE:
                raise StaleEpoch("this broker is a master meanwhile")
            commit_log = self.store.commit_log
            state, had_had_users = work.state, self.store.has_had_users
            if state is not None:
                if state.has_users:
                    self._note_users_of(state)  # before a byte of what follows
                topics = (self.store.topics or {}) | state.topics
                history, copy_list = self.record.history, state.copy_list
                if copy_list is not None and not self._is_elected:
                    history = [replace(history[0], copy_list=copy_list), *history[1:]]
                if (topics, history) != (self.record.topics, self.record.history):
                    self._save(replace(self.record, topics=topics, history=history))
                self.store.topics = topics
                if state.is_run_confirmed:
                    self._told_confirmed = self.record.history[-1].key
            if work.records:
                commit_log.append_replica(work.records)
                if asks_flush:
                    commit_log.flush(0)
                else:
                    commit_log.submit_flush_request(commit_log.max_offset, None)
            confirmed = work.confirm_offset if self.has_epochs else commit_log.max_offset
            if confirmed > (commit_log.replicated_offset or 0):
                commit_log.replicated_offset = confirmed
            if self._told_confirmed > self.record.confirmed:
                last = self.history.held(self.flushed_offset).last
                if last is not None and last.key == self._told_confirmed:
                    self._save(replace(self.record, confirmed=last.key))
            self.store.wakeup_reput()
            is_told = had_had_users != self.store.has_had_users  # of what is confirmed next
            if work.heard_ms > -math.inf and not is_told:
                self.heard = Heard(work.heard_ms, work.confirm_offset, self._follows)
            return self.written_end

    def _note_users_of(self, state: State) -> None:
        if not state.has_had_users:
            self.store.note_users(USERS_HEARD)
        elif not self.store.has_had_users:
            self.heard = None  # what was confirmed before may be without them
            self.store.note_users(USERS_ON)

    @property
    def written_end(self) -> tuple[int, int]:
        """Where the written log ends, and the flushed one, as a slave reports it."""
        return self.max_offset, self.flushed_offset

    # ---------------------------------------------------------------- as a master

    @property
    def in_sync_replicas(self) -> int:
        """Of a master: the number of copies of acknowledged messages."""
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
        """From the moment that this returns: pending messages end with an unknown outcome, new ones are
        refused. Never blocks; any thread."""
        self._is_stopped = True
        self.group_transfer.close()

    def go_on_acknowledging(self) -> None:
        """In the same epoch."""
        self.group_transfer.open(self.store.commit_log.replicated_offset or 0)
        self._is_stopped = False

    def drain(self) -> None:
        """Refuse new messages, until `resume` or for `DRAIN_MS` from the last call. Earlier messages are
        still acknowledged until a vote ends that. Never blocks; any thread."""
        with self._drain_lock:
            self._drained_until_ms = self.store.clock() + DRAIN_MS

    @property
    def is_drained(self) -> bool:
        """Without a gap since `drain` was asked for last."""
        return self._drained_until_ms is not None

    def resume(self) -> None:
        """After `drain`: the same epoch continues. Raises StaleEpoch."""
        with self._lock:
            if not self.is_leading:
                raise StaleEpoch(f"broker {self.id} is not the master any more")
            with self._drain_lock:
                self._drained_until_ms = None
                self.go_on_acknowledging()
        self._advance()

    @property
    def outlasts_its_drain(self) -> bool:
        """The operator that drained it is gone: `end_drain` is due."""
        until_ms = self._drained_until_ms
        return until_ms is not None and self.is_leading and self.store.clock() >= until_ms

    def end_drain(self) -> None:
        """Blocks for role changes."""
        with self._lock:
            if self.outlasts_its_drain:
                log.warning(
                    "the switch that drained this broker was not continued: it continues as the master"
                )
                self.resume()

    def wait_for(self, in_sync_set: InSyncSet) -> None:
        """Acknowledge messages that all of them hold, waiting for disconnected ones. Never blocks; any
        thread."""
        assert Member(self.id, self.directory_id) in in_sync_set, (self.id, in_sync_set)
        with self._acks_lock:
            self._acks.in_sync_set = in_sync_set
        self._advance()

    def _may_acknowledge(self) -> bool:
        if self.role is BrokerRole.SLAVE:
            return False
        return not self._is_stopped and not self.fenced_by and self.may_acknowledge()

    def _refusal(self) -> LedgerError | None:
        if self.role is BrokerRole.SLAVE:
            return NotMaster(f"broker {self.id} is a slave{self._master_words(': send to')}")
        if self.fenced_by:
            return StaleEpoch(
                f"epoch {self.fenced_by} was promised elsewhere: broker {self.id} of epoch"
                f" {self.history.epoch} is not the master any more"
            )
        if self._is_stopped or self.is_drained or not self.may_acknowledge():
            return NotMaster(f"broker {self.id} is handing over or its lease may have expired; retry")
        if not self._acks.waits_for_others:
            return None
        with self._acks_lock:
            there = self._in_sync()
            if self.store.clock() < self._coming_until_ms:
                there |= self._coming
            missing = self._acks.missing(there)
        return InSyncReplicasNotEnough(missing, retry_after_ms=100) if missing else None

    def _master_words(self, words: str) -> str:
        master = self.record.master
        return "" if master is None or not master.address else f"{words} {master.address}"

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
        if self.role is BrokerRole.SLAVE:
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
        self.store.wakeup_reput()
        self.observer.confirmed()

    def _put_end_below(self, offset: int) -> int:
        """With --ha-dialect rocketmq a slave reports how many bytes have come, which may end within a
        record; nobody is shown a part of one. With `_acks_lock`."""
        found = self.store.commit_log.replicated_offset or 0
        while self._put_ends and self._put_ends[0] <= offset:
            found = max(self._put_ends.popleft(), found)
        return found

    # ---------------------------------------------------------------- for links to slaves

    @property
    def run(self) -> RunKey:
        """The newest. It is another one before the first byte of that is written."""
        return self.record.history[-1].key

    @property
    def is_leading(self) -> bool:
        """Slaves may follow."""
        history = self.record.history
        if self.role is BrokerRole.SLAVE or not history or self.fenced_by:
            return False
        return history[-1].epoch == self.record.promised

    def queue_begins(self) -> tuple[int, dict[str, dict[int, int]]]:
        """Where a log may begin, and each queue by topic with it; as `Welcome.queues`."""
        position, of_queues = self.store.queues.begins()
        return position, _by_topic(of_queues)

    @property
    def alive_from(self) -> dict[str, dict[int, int]]:
        """As `Welcome.alive_from`."""
        return _by_topic(self.store.queues.alive_from)

    @property
    def old_slave_problem(self) -> str:
        """Why a slave of the release before cannot be served; empty: it can."""
        acks = self._acks
        if acks.in_sync_set is None and (self.history.epoch.leader or len(acks.lists) != 1):
            return "There was a switch, or a change of the list, which its record would not know of"
        if self.store.has_users:
            return "There are users, which that release does not know: it would serve every client"
        return ""

    def is_ahead(self, host: str, offset: int) -> bool:
        """A slave without epochs whose log ends there has, or had, more than this log."""
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
    ) -> SlaveProgress | None:
        """A slave that may follow; an older link of it is closed. `run`: whose history it has stored.
        `release`: empty where it does not say it. None: another run has begun since."""
        with self._acks_lock:
            if run is not None and run != self.record.history[-1].key:
                return None  # it has not stored the history of this run
            if self.store.has_users and not release:
                return None  # it comes back, and is refused
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

    def slave_lost(self, mark: SlaveProgress, link: LinkToSlave) -> None:
        with self._acks_lock:
            links = self._links.get(mark.id, [])
            if link in links:
                links.remove(link)
                mark.is_connected = bool(links)

    def slave_reported(self, mark: SlaveProgress, written: int, flushed: int) -> None:
        counts = flushed if self.store.config.is_sync_flush else written
        with self._acks_lock:
            self._acks.report(mark, written, flushed, counts)
        self._advance()

    # ---------------------------------------------------------------- what slaves store, too

    @property
    def has_confirmed_run(self) -> bool:
        """Its run is confirmed, and that is not on disk: `note_confirmed` is due."""
        return self._acks.is_run_confirmed and self.is_leading and not self.is_run_confirmed

    def note_confirmed(self) -> None:
        """Record it, so that earlier lists are no longer needed. Blocks for the disk. Raises
        StoreFailure."""
        with self._lock:
            if self.has_confirmed_run:
                self._save(replace(self.record, confirmed=self.record.history[-1].key))
                self._send_state()

    def note_users(self) -> None:
        """Before the first of them comes into the log. Blocks for the disk. Raises SwitchRefused,
        StoreFailure."""
        with self._lock:
            self._refuse_old_slaves()
            self.store.note_users()
            self._refuse_old_slaves()  # one may have come meanwhile, and none does from here on
            self._send_state()

    def _refuse_old_slaves(self, listed: CopyList | None = None) -> None:
        """Those that are connected, and on this list. Raises SwitchRefused."""
        with self._acks_lock:
            for mark in self._acks.marks.values():
                if mark.is_connected and (listed is None or mark.directory_id in listed.directories):
                    _refuse_old(mark)

    def stamp(self) -> tuple[int, int]:
        """`Data.sent_ms` and `Data.users_age_ms`, now."""
        now_ms = self.store.clock()
        return int(now_ms), int(min(max(now_ms - self.users_since_ms, 0), MOST_AGE_MS))

    @property
    def sure_since_ms(self) -> float:
        """Since when no other broker can have been the master, except by --unsafe; -inf: this one is
        not."""
        if not self.is_leading or not self._may_acknowledge():
            return -math.inf
        with self._acks_lock:
            return self._acks.sure_since_ms(self.store.clock())

    def _state(self) -> State:
        return State(
            topics=self.record.topics,
            is_run_confirmed=self.is_run_confirmed,
            has_users=self.store.has_users,
            has_had_users=self.store.has_had_users,
        )

    def tell_of_users(self) -> None:
        """Report that users exist now. May wait for the lock's holder, and its disk."""
        with self._lock:
            self._send_state()

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
        """A slave has promised it: this master leads no more. `directory_id`: the voter. One on no list,
        perhaps of another group, is ignored: no acknowledgement depends on it."""
        lists = [run.copy_list for run in self.record.history if run.copy_list is not None]
        if self.in_sync_set is None and not any(directory_id in each.directories for each in lists):
            return
        if self.in_sync_set is not None and epoch.number <= self.history.epoch.number:
            return  # a register has given the number to this one: the other has promised it in vain
        if self.role is not BrokerRole.SLAVE and epoch.number > self.fenced_by:
            log.warning("epoch %s was promised elsewhere: this broker takes nothing more", epoch)
            self.fenced_by = epoch.number
            self.stop_acknowledging()

    def _lag_ms(self, mark: SlaveProgress) -> float:
        offset = mark.acknowledged_offset
        if offset < self.max_offset:
            for when, end in self._ends.copy():
                if end > offset:
                    return self.store.clock() - when
        return 0.0

    def _is_caught_up(self, mark: SlaveProgress) -> bool:
        config, lag_bytes = self.store.config, self.max_offset - mark.acknowledged_offset
        is_near = mark.is_connected and lag_bytes < config.ha_max_gap_not_in_sync
        return is_near and self._lag_ms(mark) < config.ha_max_lag_not_in_sync

    def _in_sync(self) -> set[str]:
        """Directories. With `_acks_lock`."""
        there = {mark.directory_id for mark in self._acks.marks.values() if self._is_caught_up(mark)}
        there.add(self.directory_id)
        return there

    def _state_of(self, mark: SlaveProgress) -> SlaveState:
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


def _refuse_old(mark: SlaveProgress) -> None:
    """Raises SwitchRefused."""
    if not mark.release:
        raise SwitchRefused(
            f"broker {mark.id} is of the release before, which knows no list and no users: upgrade it"
            " first"
        )


def _role_of(copy_list: CopyList) -> BrokerRole:
    return BrokerRole.SYNC_MASTER if copy_list.copies > 1 else BrokerRole.ASYNC_MASTER


def _by_topic(of_queues: Mapping[QueueKey, int]) -> dict[str, dict[int, int]]:
    by_topic = dict[str, dict[int, int]]()
    for key, value in of_queues.items():
        by_topic.setdefault(key.topic, {})[key.queue_id] = value
    return by_topic
