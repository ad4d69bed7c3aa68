"""ReplicaFile: the identity of a store among masters and slaves, and its votes (`ROOT/replica`, a file
of ours, JSON). On disk before any message or action that depends on it."""

from __future__ import annotations

import os
from typing import Any

import msgspec

from quorumlog.broker.epochs import CopyList, Epoch, EpochHistory, Peer, Run, RunKey
from quorumlog.broker.store.log_files import BrokerRole
from quorumlog.broker.store.message_store import REPLICA_NAME
from quorumlog.errors import ConfigError, DirectoryDamaged, StoreFailure
from quorumlog.store.disk import Disk, refusal
from quorumlog.store.state_files import read_file, replace_file

FORMAT = 2


class SetAsideTail(msgspec.Struct, frozen=True, kw_only=True):
    """The part cut off after the last point in common with a new master."""

    epoch: int
    first_offset: int
    stop_offset: int
    path: str


class ReplicaRecord(msgspec.Struct, frozen=True, kw_only=True):
    format: int = FORMAT
    id: str
    directory_id: str
    promised: Epoch = Epoch()
    history: list[Run] = msgspec.field(default_factory=list, name="runs")
    """Of the log and beyond its end. Under a name that the release before does not know: so it reads the
    format, and refuses that."""
    confirmed: RunKey = RunKey()
    """The newest run of its log of which it knows that it is confirmed."""
    role: BrokerRole = BrokerRole.SLAVE
    master: Peer | None = None
    """The master that a slave follows; at first only its `ha_address` is known."""
    topics: dict[str, int] = {}
    ahead: list[tuple[str, int]] = []
    """With --ha-dialect rocketmq: host of a slave, and where its log ended, which was above the own
    one's end."""
    tails: list[SetAsideTail] = []


class _Record1(msgspec.Struct, frozen=True, kw_only=True):
    """Of format 1, which had the lists of who counts beside the log."""

    id: str
    directory_id: str
    promised_epoch: int = 0
    history: list[tuple[int, int, int]] = []
    role: BrokerRole = BrokerRole.SLAVE
    master: Peer | None = None
    has_met_master: bool = False
    told: list[Any] = []
    in_sync_replicas: int = 1
    lowered_from: int = 0
    counted: list[Peer] = []
    joining: list[str] = []
    topics: dict[str, int] = {}
    ahead: list[tuple[str, int]] = []
    tails: list[SetAsideTail] = []

    @property
    def is_in_a_switch(self) -> bool:
        """Or in a change of who counts: the lists of two brokers may differ."""
        if self.joining or self.lowered_from or self.told:
            return True
        if self.role is BrokerRole.SLAVE:
            return bool(self.promised_epoch) and not self.has_met_master
        return bool(self.history) and self.history[-1][0] != self.promised_epoch

    def renewed(self, me: Peer, *, has_lists: bool) -> ReplicaRecord:
        """`has_lists`: False where a coordinator says who counts."""
        listed = {peer.id: peer for peer in self.counted}
        if self.role is not BrokerRole.SLAVE:
            listed[me.id] = me
        elif self.master is not None and self.master.id:
            listed[self.master.id] = self.master
        runs = [Run(number, "", run, start) for number, run, start in self.history]
        if runs and has_lists:
            copies = CopyList(tuple(listed[each] for each in sorted(listed)), self.in_sync_replicas)
            runs[0] = msgspec.structs.replace(runs[0], copy_list=copies)
        return ReplicaRecord(
            id=self.id,
            directory_id=self.directory_id,
            promised=Epoch(self.promised_epoch, ""),
            history=runs,
            role=self.role,
            master=self.master,
            topics=self.topics,
            ahead=self.ahead,
            tails=self.tails,
        )


class _Format(msgspec.Struct):
    format: int = 1


def new_directory_id() -> str:
    return os.urandom(8).hex()


def before_slaves() -> EpochHistory:
    """Of a log that was written before it had slaves: its bytes are of one run, of a number that no
    other log has. So a slave that has a part of them may continue from there."""
    return EpochHistory([Run(0, "", int.from_bytes(os.urandom(6)), 0)])


class ReplicaFile:
    """One thread at a time."""

    def __init__(self, disk: Disk, root: str) -> None:
        self._disk = disk
        self._path = f"{root}/{REPLICA_NAME}"

    def load(self, me: Peer, *, has_lists: bool = True) -> ReplicaRecord | None:
        """None: there is none. `me`: `directory_id` is of no matter. Raises DirectoryDamaged,
        ConfigError, StoreFailure."""
        try:
            data = read_file(self._disk, self._path)
        except OSError as error:
            raise StoreFailure(refusal(self._path, "read", error)) from error
        if data is None:
            return None
        try:
            held = msgspec.json.decode(data, type=_Format).format
            if held == FORMAT:
                return msgspec.json.decode(data, type=ReplicaRecord)
            if held == 1:
                return self._upgraded(msgspec.json.decode(data, type=_Record1), me, has_lists)
        except msgspec.MsgspecError as error:
            # A promise that is forgotten may be broken: nobody goes on without it.
            raise DirectoryDamaged(
                f"{self._path} cannot be read ({error}): this store has lost the epochs that it"
                " promised. Set the whole directory aside, let an empty one follow the newest"
                " master, and add that to the replica list: quorumlog broker add",
                path=self._path,
                position=0,
            ) from None
        raise ConfigError(f"{self._path} is of format {held}, this release knows {FORMAT}")

    def _upgraded(self, record: _Record1, me: Peer, has_lists: bool) -> ReplicaRecord:
        if has_lists and record.is_in_a_switch:
            raise ConfigError(
                f"{self._path} was left in the middle of a switch, or of a change of the replica"
                " list: start this broker with the old release, finish it there (broker switch,"
                " broker forget), and upgrade then"
            )
        here = msgspec.structs.replace(me, directory_id=record.directory_id)
        return record.renewed(here, has_lists=has_lists)

    def save(self, record: ReplicaRecord) -> None:
        """On disk when this returns. Raises StoreFailure."""
        try:
            replace_file(self._disk, self._path, msgspec.json.encode(record), synced=True)
        except OSError as error:
            raise StoreFailure(refusal(self._path, "written", error)) from error
