"""quorumlog: a Raft-replicated commit log for Python.

    from quorumlog import LocalCluster, connect

    with LocalCluster(members=3) as cluster, connect(cluster.servers) as log:
        receipt = log.append(b"hello")
        print(receipt.first_index, log.get(receipt.first_index).body)

Servers: `LedgerServer`, `LocalCluster`. Clients: `connect`, `connect_async`. Outcomes: `AppendReceipt`
or an error, which `quorumlog.errors` lists. Spark: `quorumlog.spark` (extra `spark`).
"""

# ruff: noqa: F403, F405 (names of clients and errors are listed once, in `__all__`)

from __future__ import annotations

from quorumlog.version import VERSION

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from quorumlog.append_times import TimedEntry
    from quorumlog.backups import backup, restore
    from quorumlog.batch import EntryBatch
    from quorumlog.client import *
    from quorumlog.config import ConsensusConfig, GroupConfig, MemberAddress, StoreConfig
    from quorumlog.entry import AppendReceipt, Durability, Entry
    from quorumlog.errors import *
    from quorumlog.server import LedgerServer, LocalCluster
    from quorumlog.state_machine import StateMachine
    from quorumlog.wire.client_messages import ProducerInfo

__all__ = [
    "AlreadyCommitted",
    "ProducerExpired",
    "ProducerFenced",
    "SequenceGap",
    "TooManyProducers",
    "ProducerInfo",
    "AppendReceipt",
    "AsyncLedgerClient",
    "BadRequest",
    "BodyTooLarge",
    "ClockNotReset",
    "ClusterChanged",
    "CommandError",
    "ConfigError",
    "ConnectionFull",
    "ConsensusConfig",
    "DirectoryDamaged",
    "DiskFull",
    "Durability",
    "Entry",
    "EntryBatch",
    "Forbidden",
    "Freshness",
    "GroupConfig",
    "IndexOutOfRange",
    "LeaderNotReady",
    "LeaderTransferring",
    "LedgerClient",
    "LedgerError",
    "LedgerServer",
    "LevelNotReported",
    "LocalCluster",
    "MemberAddress",
    "MemberStatusRow",
    "MembershipRefused",
    "NotAuthenticated",
    "NotCaughtUp",
    "NotLeader",
    "OutOfSequence",
    "OutcomeUnknown",
    "Overloaded",
    "PendingFull",
    "ProtocolViolation",
    "RangeDamaged",
    "ReaderMoved",
    "ReaderRow",
    "Refused",
    "RequestTimeout",
    "ResultUnknown",
    "StateMachine",
    "StepOverRefused",
    "StoreConfig",
    "StoreFailure",
    "StreamOutcomeUnknown",
    "StreamProgress",
    "TimedEntry",
    "TooManyReaders",
    "TooStale",
    "TransferFailed",
    "UnknownGroup",
    "UnknownMachine",
    "UnknownReader",
    "UpgradeNotFinished",
    "Unreachable",
    "WrongLastIndex",
    "WrongPort",
    "__version__",
    "backup",
    "connect",
    "connect_async",
    "leader_of",
    "restore",
]

__version__ = VERSION

_HOMES = {
    "append_times": ("TimedEntry",),
    "backups": ("backup", "restore"),
    "batch": ("EntryBatch",),
    "client": (
        "AsyncLedgerClient",
        "Freshness",
        "LedgerClient",
        "MemberStatusRow",
        "ReaderRow",
        "StreamOutcomeUnknown",
        "StreamProgress",
        "connect",
        "connect_async",
        "leader_of",
    ),
    "config": ("ConsensusConfig", "GroupConfig", "MemberAddress", "StoreConfig"),
    "entry": ("AppendReceipt", "Durability", "Entry"),
    "wire.client_messages": ("ProducerInfo",),
    "server": ("LedgerServer", "LocalCluster"),
    "state_machine": ("StateMachine",),
}
"""Public names that are no errors, by module; imported at first use, so that a Spark worker never loads
a server and a shell command starts at once."""


def __dir__() -> list[str]:
    """Names for `help` and completion, loaded or not."""
    return [*globals(), *(name for name in __all__ if name not in globals())]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'quorumlog' has no attribute {name!r}")
    from importlib import import_module

    home = next((home for home, names in _HOMES.items() if name in names), "errors")
    value = getattr(import_module(f"quorumlog.{home}"), name)
    globals()[name] = value
    return value
