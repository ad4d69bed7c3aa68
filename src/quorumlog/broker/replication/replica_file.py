"""ReplicaFile: who a store is among masters and slaves, and what it has promised (`ROOT/replica`, a file
of ours, JSON). On disk before anything that follows from it is said or done."""

from __future__ import annotations

import os

import msgspec

from quorumlog.broker.message_log import Role
from quorumlog.broker.message_store import REPLICA_NAME
from quorumlog.broker.replication.protocol.ha_frames import Peer
from quorumlog.errors import ConfigError, DirectoryDamaged, StoreFailure
from quorumlog.store.disk import Disk, refusal
from quorumlog.store.files.replaced_file import read_file, replace_file

FORMAT = 1
VERSIONS_OF_EPOCH = 1 << 20


class SetAsideTail(msgspec.Struct, frozen=True, kw_only=True):
    """What was cut off behind the last point in common with a new master."""

    epoch: int
    first_offset: int
    stop_offset: int
    path: str


class ReplicaRecord(msgspec.Struct, frozen=True, kw_only=True):
    format: int = FORMAT
    id: str
    directory_id: str
    promised_epoch: int = 0
    history: list[tuple[int, int, int]] = []
    """(epoch, run, start offset), of the log and beyond its end."""
    role: Role = Role.SLAVE
    master: Peer | None = None
    """Whom a slave follows; of what it was told first only `ha_address` is known."""
    master_epoch: int = 0
    """Of the reign in which it follows `master`."""
    has_met_master: bool = False
    """In this reign it has said who counts: `counted` is its list, and `history` that of its log."""
    holds_begin: bool = False
    """Of this reign: when it was told of it the log held all that it begins with, and `counted` names
    all that count in it."""
    told: list[Peer] = []
    """Who may have been told that this one is the next master, which has not begun to reign. It stands
    for no older one without them: with them it may be replaced by somebody else already."""
    is_sync: bool = False
    in_sync_replicas: int = 1
    waited_from: int = 0
    """From this offset on so many have what was acknowledged: before, it was set to fewer."""
    lowered_from: int = 0
    """Of a master: so many have it still, until all that count know that fewer do."""
    state_version: int = 0
    """Of `counted` and what follows: the epoch of who made it, and how many it had made."""
    counted: list[Peer] = []
    """Slaves that count with this master, or did with the last one, or will."""
    joining: list[str] = []
    """Ids of those that will, once all of `counted` have stored it: also after another start, and with
    another master."""
    joining_known_to: list[str] = []
    """Ids of masters that have stored it."""
    topics: dict[str, int] = {}
    ahead: list[tuple[str, int]] = []
    """With --ha-dialect rocketmq: host of a slave, and where its log ended, which was above the own
    one's end."""
    tails: list[SetAsideTail] = []


def next_version(record: ReplicaRecord) -> int:
    """Of what a master tells its slaves."""
    return max(record.state_version, record.promised_epoch * VERSIONS_OF_EPOCH) + 1


def new_directory_id() -> str:
    return os.urandom(8).hex()


def before_epochs() -> list[tuple[int, int, int]]:
    """The history of a log that was written before it had slaves: its bytes are of one run, of a number
    that no other log has. So a slave that has got a part of them may go on from there."""
    return [(0, int.from_bytes(os.urandom(6)), 0)]


class ReplicaFile:
    """One thread at a time."""

    def __init__(self, disk: Disk, root: str) -> None:
        self._disk = disk
        self._path = f"{root}/{REPLICA_NAME}"

    def load(self) -> ReplicaRecord | None:
        """None: there is none. Raises DirectoryDamaged, ConfigError, StoreFailure."""
        try:
            data = read_file(self._disk, self._path)
        except OSError as error:
            raise StoreFailure(refusal(self._path, "read", error)) from error
        if data is None:
            return None
        try:
            found = msgspec.json.decode(data, type=ReplicaRecord)
        except msgspec.MsgspecError as error:
            # A promise that is forgotten may be broken: nobody goes on without it.
            raise DirectoryDamaged(
                f"{self._path} cannot be read ({error}): this store has forgotten what it has"
                " promised. Set the whole directory aside, let an empty one follow the newest master,"
                " and have that forget the old one: quorumlog broker forget",
                path=self._path,
                position=0,
            ) from None
        if found.format != FORMAT:
            raise ConfigError(f"{self._path} is of format {found.format}, this release knows {FORMAT}")
        return found

    def save(self, record: ReplicaRecord) -> None:
        """On disk when this returns. Raises StoreFailure."""
        try:
            replace_file(self._disk, self._path, msgspec.json.encode(record), synced=True)
        except OSError as error:
            raise StoreFailure(refusal(self._path, "written", error)) from error
