"""What an application writes to keep a state on every member of a group: a state machine.

Read `machine` (what it does and may not do), then `snapshot_stream` (what it is saved to and loaded
from). Who drives one is in `quorumlog.node.state_machine_caller`; docs/state-machines.md shows how to
build one.
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
