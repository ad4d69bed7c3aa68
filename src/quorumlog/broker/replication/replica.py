"""Replica: a store as master or slave. It keeps what `ReplicatedBroker` promises, and knows no sockets:
those who have them (`service`) ask it what to say, and tell it what they heard."""

from __future__ import annotations

import logging
import os
from typing import NamedTuple

from msgspec.structs import replace

from quorumlog.broker.errors import StaleEpoch, SwitchRefused
from quorumlog.broker.message_log import Role
from quorumlog.broker.replication.protocol.acknowledgements import Acknowledgements
from quorumlog.broker.replication.protocol.ha_frames import Peer
from quorumlog.broker.replication.protocol.slave_link import Follow, OwnLog, Work
from quorumlog.broker.replication.reign_begin import Begin, as_counted, replicas_needed, started_with
from quorumlog.broker.replication.replica_file import (
    VERSIONS_OF_EPOCH,
    ReplicaRecord,
    SetAsideTail,
    before_epochs,
    new_directory_id,
)
from quorumlog.broker.replication.replica_master import ReplicaMaster
from quorumlog.broker.replication.replica_store import ReplicaStore
from quorumlog.broker.replication.roles import BrokerAddress, InSyncSet
from quorumlog.errors import ConfigError

log = logging.getLogger("quorumlog.broker")

_MOST_TAILS = 20


class Written(NamedTuple):
    """What a slave can report."""

    written_offset: int
    flushed_offset: int
    state_version: int


class Replica(ReplicaMaster):
    """Role changes and what comes from a master: any thread but the loop's, one at a time (`_lock`).
    Acknowledgements: any thread (`_acks_lock`), never waiting for the disk."""

    def __init__(
        self,
        store: ReplicaStore,
        address: BrokerAddress,
        first_role: Role,
        *,
        master_ha_address: str = "",
        has_epochs: bool = True,
        is_elected: bool = False,
    ) -> None:
        """`first_role`: of a store that never had one; a switch since then goes before it. `has_epochs`:
        False with --ha-dialect rocketmq. `is_elected`: somebody outside says when it reigns, which a
        start does not know. Raises ConfigError, StoreFailure."""
        super().__init__(store, address, has_epochs=has_epochs)
        self._is_elected = is_elected
        self.record = self._first_record(first_role, master_ha_address)
        self._ahead = set(self.record.ahead)
        if self.record.topics and store.topics is not None:
            store.topics = {**self.record.topics, **store.topics}
        last = self.history.last
        if self.record.role is not Role.SLAVE and last and 0 < last.epoch < self.record.promised_epoch:
            # It promised an epoch to somebody else, and was not told yet to whom.
            log.warning("epoch %d was promised: waiting for its master", self.record.promised_epoch)
            self._save(replace(self.record, role=Role.SLAVE, master=None))
        if is_elected or self.record.role is Role.SLAVE:
            store.commit_log.become(Role.SLAVE)
        else:
            self._reign(self.record.promised_epoch, self.record)

    def _first_record(self, first_role: Role, master_ha_address: str) -> ReplicaRecord:
        held = self._file.load()
        me = self.address
        if held is not None:
            if held.id != me.id:
                raise ConfigError(
                    f"{self.store.root} is the store of broker {held.id}, not of {me.id}: set --id"
                )
            if held.role is not first_role and self.has_epochs and not self._is_elected:
                now = "a slave" if held.role is Role.SLAVE else "the master"
                log.warning(
                    "this broker has been %s since epoch %d: --role says what it was first",
                    now,
                    held.promised_epoch,
                )
            if not self.has_epochs and not self._is_elected:
                return self._as_started(held, first_role, master_ha_address)
            told = held.master is None or not held.master.id
            if held.role is Role.SLAVE and told and master_ha_address:
                held = replace(held, master=_unknown(master_ha_address))
            return held
        is_sync = first_role is Role.SYNC_MASTER
        record = ReplicaRecord(
            id=me.id,
            directory_id=new_directory_id(),
            role=first_role,
            is_sync=is_sync,
            promised_epoch=0 if first_role is Role.SLAVE else 1,
            master=_unknown(master_ha_address) if master_ha_address else None,
            history=before_epochs() if self.has_epochs and self.max_offset else [],
        )
        # What the store had before there were slaves was acknowledged, and consumers have seen it.
        self.store.commit_log.replicated_offset = self.store.commit_log.max_offset
        self.store.show_confirmed()
        self._file.save(record)
        return record

    def _as_started(self, held: ReplicaRecord, role: Role, master_ha_address: str) -> ReplicaRecord:
        """Without epochs there is no switch: `--role` of each start says what it is."""
        is_slave = role is Role.SLAVE
        record = replace(
            held,
            role=role,
            is_sync=held.is_sync if is_slave else role is Role.SYNC_MASTER,
            promised_epoch=held.promised_epoch if is_slave else max(held.promised_epoch, 1),
            master=_unknown(master_ha_address) if is_slave and master_ha_address else None,
        )
        if record != held:
            self._file.save(record)
        return record

    # ---------------------------------------------------------------- as a ReplicatedBroker

    def promise(self, epoch: int, *, anew: bool = False, drained_at: int = -1) -> None:
        """`anew`: one that was promised already is refused. Two switches by hand may have drawn the same
        epoch; who asks everybody that must be asked is then the only one to whom it is promised.
        `drained_at`: refused unless the master is drained, and its log ends there: it may have gone on
        meanwhile, and been drained by somebody else."""
        with self._lock:
            self._check_epoch(epoch)
            if epoch > self.record.promised_epoch:
                was_stopped = self._is_stopped
                self.stop_acknowledging()
                # Only now nothing is acknowledged that this does not see.
                if drained_at >= 0 and not (self.is_drained and self.max_offset == drained_at):
                    if not was_stopped:
                        self.go_on_acknowledging()
                        self._advance()
                    raise SwitchRefused(
                        f"broker {self.id} was drained for too long, and has gone on as the master:"
                        " switch again"
                    )
                self._save(replace(self.record, promised_epoch=epoch))
                # Who has most is judged by what is on disk: without --flush sync more is acknowledged.
                self.store.commit_log.flush(0)
                self.role_changed()
            elif anew:
                raise StaleEpoch(
                    f"epoch {epoch} was promised to another switch already: see broker status, and"
                    " switch again"
                )

    def become_master(
        self,
        epoch: int,
        sync: bool,
        in_sync_set: InSyncSet | None = None,
        *,
        begin: Begin | None = None,
    ) -> None:
        """`begin`: as slaves were told; refused if it is another one by now."""
        with self._lock:
            self._check_epoch(epoch)
            if self.history.runs and epoch <= self.history.log_epoch:
                raise StaleEpoch(f"a reign of epoch {self.history.log_epoch} has begun already")
            if begin is not None and begin != self.as_master()._replace(is_sync=sync):
                raise SwitchRefused(
                    f"broker {self.id} was started with other options since it was asked: switch again"
                )
            record, counted = self.record, self._counted_as_master()
            role = Role.SYNC_MASTER if sync else Role.ASYNC_MASTER
            record = replace(
                record,
                promised_epoch=epoch,
                role=role,
                master=None,
                has_met_master=False,
                holds_begin=False,
                is_sync=sync,
                waited_from=0,
                lowered_from=0,
                told=[],
                counted=list(counted.values()),
                joining=[each for each in record.joining if each in counted],
                joining_known_to=[*record.joining_known_to, self.id],
                state_version=epoch * VERSIONS_OF_EPOCH,
            )
            self._reign(epoch, record, in_sync_set)
            self.role_changed()

    def is_chosen(self, epoch: int, told: list[Peer]) -> None:
        """It is to be the master, and these are told so before it reigns."""
        with self._lock:
            self._check_epoch(epoch)
            self._save(replace(self.record, promised_epoch=epoch, told=told))

    def become_slave(
        self,
        epoch: int,
        master: BrokerAddress,
        directory_id: str = "",
        begin: Begin | None = None,
    ) -> None:
        """`directory_id`: of the master, where it is known. `begin`: of its reign. Whoever holds that
        can say what was acknowledged before, should the master be lost before anybody has met it."""
        with self._lock:
            self._check_epoch(epoch)
            if master.id == self.id:
                raise ConfigError(f"broker {self.id} cannot be its own slave")
            if self.role is not Role.SLAVE and self.history.log_epoch == epoch:
                raise StaleEpoch(f"this broker is the master of epoch {epoch} itself")
            self.stop_acknowledging()
            self.store.commit_log.become(Role.SLAVE)
            self.store.commit_log.flush(0)
            peer = Peer(
                id=master.id,
                directory_id=directory_id,
                address=master.address,
                ha_address=master.ha_address,
            )
            record = replace(self.record, promised_epoch=epoch, role=Role.SLAVE)
            record = replace(self._led_by(record, peer, epoch), has_met_master=False)
            if begin is not None and begin.is_held_by(self.me, self.history, self.flushed_offset):
                counted = {peer.id: peer for peer in [*record.counted, *begin.counted]}
                record = replace(
                    record,
                    holds_begin=True,
                    counted=list(counted.values()),
                    is_sync=begin.is_sync,
                    in_sync_replicas=replicas_needed(begin.in_sync_replicas, begin.is_sync),
                    waited_from=0,
                )
            self._save(record)
            self.fenced_by = 0
            self.role_changed()

    def as_master(self) -> Begin:
        """What it would begin a reign with."""
        counted, record = self._counted_as_master(), self.record
        option = self.store.config.in_sync_replicas
        return Begin(self.history, self.max_offset, list(counted.values()), option, record.is_sync)

    def _counted_as_master(self) -> dict[str, Peer]:
        record = self.record
        counted = {peer.id: peer for peer in record.counted}
        if record.master is not None and record.master.id:
            counted[record.master.id] = as_counted(record)
        counted.pop(self.id, None)
        return counted

    # ---------------------------------------------------------------- a reign

    def _check_epoch(self, epoch: int) -> None:
        if not self.has_epochs:
            raise ConfigError("--ha-dialect rocketmq has no epochs: roles change by a start with --role")
        if epoch < self.record.promised_epoch:
            raise StaleEpoch(f"epoch {self.record.promised_epoch} was promised, {epoch} is older")

    def _reign(self, epoch: int, record: ReplicaRecord, in_sync_set: InSyncSet | None = None) -> None:
        """Another run of the own writes begins here, on disk before the first of them."""
        commit_log, config = self.store.commit_log, self.store.config
        self.stop_acknowledging()
        commit_log.flush(0)
        self.store.count_queues()
        end = commit_log.max_offset
        needed = replicas_needed(config.in_sync_replicas, record.is_sync)
        # Another directory that begins at the same place, of the same name, has another number.
        first_run = 0 if self.history.runs else int.from_bytes(os.urandom(3))
        history = self.history.begun(epoch, end, first_run)
        record = replace(
            record,
            counted=record.counted if self.has_epochs else [],
            history=history.triples(),
            topics={**record.topics, **(self.store.topics or {})},
        )
        if self.has_epochs and self.history.log_epoch == record.promised_epoch:
            record = started_with(needed, self.record, record, end)
        else:
            record = replace(record, in_sync_replicas=needed)
        self._save(record)
        confirmed = min(commit_log.replicated_offset or 0, end)
        commit_log.replicated_offset = confirmed
        directories = {peer.id: "" if peer.has_to_join else peer.directory_id for peer in record.counted}
        joining = set(record.joining)
        with self._acks_lock:
            self._acks = Acknowledgements(
                self.id,
                needed,
                confirmed,
                in_sync_set=in_sync_set,
                counted={each: at for each, at in directories.items() if each not in joining},
                # They were not known to all that may be asked at a switch when this was stored.
                joining={each: at for each, at in directories.items() if each in joining},
                joining_version=record.state_version,
                known_to=frozenset(record.joining_known_to),
                lowered_from=record.lowered_from,
                lowered_version=record.state_version,
                begun_at=end,
            )
            self._links.clear()
            self._put_ends.clear()
            self._put_ends.append(end)
        self._ends.clear()
        self._told.clear()
        self.fenced_by = 0
        self.group_transfer.open(confirmed)
        self._drained_until_ms = None
        self._is_stopped = False
        commit_log.become(record.role)
        log.info("broker %s is %s in epoch %d from %d on", self.id, record.role.value, epoch, end)
        self._advance()

    # ---------------------------------------------------------------- as a slave

    def _led_by(self, record: ReplicaRecord, master: Peer, epoch: int) -> ReplicaRecord:
        """Until the new master says who counts: whoever did with the old one, the old one, and this
        broker may all be with it what acknowledges."""
        counted = {peer.id: peer for peer in record.counted}
        old = record.master
        if old is not None and old.id and old.id != master.id:
            counted.setdefault(old.id, as_counted(record))
            counted.setdefault(self.id, self.me)
        if old is None:  # it was the master itself, or knows of none
            counted.setdefault(self.id, self.me)
        return replace(
            record,
            master=master,
            master_epoch=epoch,
            told=record.told if record.master_epoch == epoch else [],
            holds_begin=record.holds_begin and record.master_epoch == epoch,
            counted=list(counted.values()),
        )

    def own_log(self) -> OwnLog:
        config, record = self.store.config, self.record
        return OwnLog(
            self.me,
            record.promised_epoch,
            self.history,
            self.max_offset,
            config.mapped_file_size_commit_log,
            config.is_sync_flush,
            record.master_epoch,
            "" if record.master is None else record.master.directory_id,
        )

    def follow(self, follow: Follow) -> Written:
        """Before the first bytes of a master. Raises StaleEpoch, StoreFailure."""
        with self._lock:
            if self.role is not Role.SLAVE or follow.epoch < self.record.promised_epoch:
                raise StaleEpoch(f"epoch {self.record.promised_epoch} was promised meanwhile")
            record, end = self.record, self.max_offset
            tails = record.tails
            # The promise first: a cut for a master of an epoch that is forgotten would be for nobody.
            record = replace(record, promised_epoch=follow.epoch)
            has_met = record.has_met_master and self.history.log_epoch == follow.epoch
            record = self._led_by(record, follow.welcome.master, follow.epoch)
            record = replace(record, has_met_master=has_met)
            self._save(record)
            if follow.cuts:
                epoch = self.log_epoch
                path = self.store.cut(follow.start_offset)
                tail = SetAsideTail(
                    epoch=epoch, first_offset=follow.start_offset, stop_offset=end, path=path
                )
                tails = [*tails, tail][-_MOST_TAILS:]
            # The history of what the log will hold: nothing of it is written yet. Behind the cut, whose
            # bytes are not in it; before a new begin, which is above what the old one says is in common.
            history = follow.history.triples()
            self._save(replace(record, history=history, tails=tails))
            if follow.begins_anew:
                self.store.begin_anew_at(follow.start_offset, follow.queue_begins)
            return self._written()

    def take(self, work: Work, epoch: int, *, asks_flush: bool) -> Written:
        """What has come of the master of this epoch. Raises StaleEpoch, DiskFull, StoreFailure."""
        with self._lock:
            if self.has_epochs and epoch != self.record.promised_epoch:
                raise StaleEpoch(f"epoch {self.record.promised_epoch} was promised meanwhile")
            if self.role is not Role.SLAVE:
                raise StaleEpoch("this broker is a master meanwhile")
            commit_log = self.store.commit_log
            state = work.state
            is_met = self.record.has_met_master
            if state is not None and (state.version != self.record.state_version or not is_met):
                topics = {**(self.store.topics or {}), **state.topics}
                self._save(
                    replace(
                        self.record,
                        counted=state.counted,
                        joining=state.joining,
                        joining_known_to=state.joining_known_to,
                        state_version=state.version,
                        in_sync_replicas=state.in_sync_replicas,
                        is_sync=state.is_sync,
                        waited_from=state.waited_from,
                        topics=topics,
                        has_met_master=True,
                    )
                )
                self.store.topics = topics
            if work.records:
                commit_log.append_replica(work.records)
                if asks_flush:
                    commit_log.flush(0)
                else:
                    commit_log.submit_flush_request(commit_log.max_offset, None)
            confirmed = work.confirm_offset if self.has_epochs else commit_log.max_offset
            if confirmed > (commit_log.replicated_offset or 0):
                commit_log.replicated_offset = confirmed
            self.store.show_confirmed()
            return self._written()

    def _written(self) -> Written:
        return Written(self.max_offset, self.flushed_offset, self.record.state_version)


def _unknown(ha_address: str) -> Peer:
    """A master of which only this is known yet."""
    return Peer(id="", directory_id="", address="", ha_address=ha_address)
