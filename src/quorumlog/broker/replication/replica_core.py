"""ReplicaCore: what a master and a slave have in common: a store, a record of promises, an address."""

from __future__ import annotations

import threading
from collections.abc import Callable

from quorumlog.broker.message_log import Role
from quorumlog.broker.replication.protocol.epoch_history import EpochHistory
from quorumlog.broker.replication.protocol.ha_frames import Peer
from quorumlog.broker.replication.replica_file import ReplicaFile, ReplicaRecord
from quorumlog.broker.replication.replica_store import ReplicaStore
from quorumlog.broker.replication.roles import BrokerAddress


class ReplicaCore:
    record: ReplicaRecord

    def __init__(self, store: ReplicaStore, address: BrokerAddress, *, has_epochs: bool) -> None:
        self.store = store
        self.address = address
        self.has_epochs = has_epochs
        self.role_changed: Callable[[], None] = lambda: None
        """Connections of the old role end. Any thread."""
        self._lock = threading.RLock()
        """Held over role changes and over what comes from a master."""
        self._file = ReplicaFile(store.disk, store.root)

    @property
    def id(self) -> str:
        return self.address.id

    @property
    def directory_id(self) -> str:
        return self.record.directory_id

    @property
    def epoch(self) -> int:
        return self.record.promised_epoch

    @property
    def history(self) -> EpochHistory:
        return EpochHistory(self.record.history)

    @property
    def log_epoch(self) -> int:
        return self.history.truncated(self.max_offset).log_epoch

    @property
    def reign_epoch(self) -> int:
        """Of the own reign, or of the master that it was told to follow; 0: it knows of none."""
        record = self.record
        if record.master is None or not record.master.id:
            return self.history.log_epoch
        # A record of an earlier release does not say it.
        told = self.history.log_epoch if record.has_met_master else record.promised_epoch
        return record.master_epoch or told

    @property
    def role(self) -> Role:
        return self.store.commit_log.role

    @property
    def master(self) -> BrokerAddress | None:
        master = self.record.master
        if master is None or self.role is not Role.SLAVE:
            return None
        return BrokerAddress(master.id, master.address, master.ha_address)

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

    @property
    def me(self) -> Peer:
        me = self.address
        return Peer(
            id=me.id, directory_id=self.directory_id, address=me.address, ha_address=me.ha_address
        )

    def _save(self, record: ReplicaRecord) -> None:
        self._file.save(record)
        self.record = record
