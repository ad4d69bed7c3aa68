"""ReplicaCore: what a master and a slave have in common: a store, a record of promises, an address."""

from __future__ import annotations

import threading

from quorumlog.broker.epochs.epoch_history import EpochHistory, Peer
from quorumlog.broker.replication.replica_file import ReplicaFile, ReplicaRecord
from quorumlog.broker.replication.replica_store import ReplicaStore
from quorumlog.broker.store.log_files import Role


class ReplicaObserver:
    """Called by any thread, often."""

    def role_changed(self) -> None:
        """Connections of the old role, or of the old run, end."""

    def grown(self) -> None:
        """There is more to send, or to report."""

    def confirmed(self) -> None:
        """More is confirmed than before."""


class ReplicaCore:
    record: ReplicaRecord

    def __init__(self, store: ReplicaStore, me: Peer, *, has_epochs: bool) -> None:
        self.store = store
        self.me = me
        self.has_epochs = has_epochs
        self.observer = ReplicaObserver()
        self._lock = threading.RLock()
        """Held over role changes and over what comes from a master."""
        self._file = ReplicaFile(store.disk, store.root)

    @property
    def id(self) -> str:
        return self.me.id

    @property
    def directory_id(self) -> str:
        return self.me.directory_id

    @property
    def epoch(self) -> int:
        return self.record.promised.number

    @property
    def history(self) -> EpochHistory:
        return EpochHistory(self.record.history)

    @property
    def log_epoch(self) -> int:
        """Of whoever has written the last byte."""
        runs = [run for run in self.record.history if run.start_offset < self.max_offset]
        return runs[-1].number if runs else 0

    @property
    def role(self) -> Role:
        return self.store.commit_log.role

    @property
    def master(self) -> Peer | None:
        """Whom a slave was told to follow."""
        return self.record.master if self.role is Role.SLAVE else None

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
