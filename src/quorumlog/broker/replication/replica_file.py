"""ReplicaFile: the identity of a store among masters and slaves, and its votes (`ROOT/replica`, a file
of ours, JSON). On disk before any message or action that depends on it."""

from __future__ import annotations

import os
from typing import Any

import msgspec
from msgspec.structs import replace

from quorumlog.broker.epochs import CopyList, Epoch, EpochHistory, Peer, Run, RunKey
from quorumlog.broker.store.log_files import BrokerRole
from quorumlog.broker.store.message_store import REPLICA_NAME
from quorumlog.errors import ConfigError, DirectoryDamaged
from quorumlog.store.disk import Disk, disk_work
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
    """What format 1 had besides: the lists of who counts beside the log."""

    promised_epoch: int = 0
    history: list[tuple[int, int, int]] = []
    has_met_master: bool = False
    told: list[Any] = []
    in_sync_replicas: int = 1
    lowered_from: int = 0
    counted: list[Peer] = []
    joining: list[str] = []

    def is_in_a_switch(self, role: BrokerRole) -> bool:
        """Or in a change of who counts: the lists of two brokers may differ."""
        if self.joining or self.lowered_from or self.told:
            return True
        if role is BrokerRole.SLAVE:
            return bool(self.promised_epoch) and not self.has_met_master
        return bool(self.history) and self.history[-1][0] != self.promised_epoch

    def runs(self, copy_list: CopyList | None) -> list[Run]:
        runs = [Run(number, "", run, start) for number, run, start in self.history]
        return [replace(run, copy_list=copy_list) for run in runs[:1]] + runs[1:]


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
        with disk_work(self._path, "read"):
            data = read_file(self._disk, self._path)
        if data is None:
            return None
        try:
            held = msgspec.json.decode(data, type=_Format).format
            if held == FORMAT:
                return msgspec.json.decode(data, type=ReplicaRecord)
            if held == 1:
                return self._upgraded(data, me, has_lists)
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

    def _upgraded(self, data: bytes, me: Peer, has_lists: bool) -> ReplicaRecord:
        record = msgspec.json.decode(data, type=ReplicaRecord)
        old = msgspec.json.decode(data, type=_Record1)
        if has_lists and old.is_in_a_switch(record.role):
            raise ConfigError(
                f"{self._path} was left in the middle of a switch, or of a change of the replica"
                " list: start this broker with the old release, finish it there (broker switch,"
                " broker forget), and upgrade then"
            )
        peers = {peer.id: peer for peer in old.counted}
        if record.role is not BrokerRole.SLAVE:
            peers[me.id] = replace(me, directory_id=record.directory_id)
        elif record.master is not None and record.master.id:
            peers[record.master.id] = record.master
        listed = CopyList(tuple(peers[each] for each in sorted(peers)), old.in_sync_replicas)
        return replace(
            record,
            format=FORMAT,
            promised=Epoch(old.promised_epoch, ""),
            history=old.runs(listed if has_lists else None),
        )

    def save(self, record: ReplicaRecord) -> None:
        """On disk when this returns. Raises StoreFailure."""
        with disk_work(self._path, "written"):
            replace_file(self._disk, self._path, msgspec.json.encode(record), synced=True)
