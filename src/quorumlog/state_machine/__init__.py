"""The interface of an application's state machine, which keeps a state on every member of a group.

Read `machine` (the interface and its rules), then `snapshot_stream` (how it is saved and loaded).
`quorumlog.node.state_machine_caller` drives machines; docs/state-machines.md shows how to build one.
"""

from quorumlog.state_machine.machine import (
    KEPT_RESULT_BYTES,
    MOST_KEPT_BYTES,
    MOST_RESULT_BYTES,
    Applied,
    ApplyFailure,
    FirstResults,
    Result,
    StateMachine,
    words_of,
)
from quorumlog.state_machine.snapshot_stream import SnapshotReader, SnapshotWriter

__all__ = [
    "KEPT_RESULT_BYTES",
    "MOST_KEPT_BYTES",
    "MOST_RESULT_BYTES",
    "Applied",
    "ApplyFailure",
    "FirstResults",
    "Result",
    "SnapshotReader",
    "SnapshotWriter",
    "StateMachine",
    "words_of",
]
