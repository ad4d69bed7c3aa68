"""The state machine of a stopped member, rebuilt from its directory: a snapshot, and the entries
after it."""

from __future__ import annotations

import numpy as np

from quorumlog.entry import EntryKind
from quorumlog.errors import ConfigError, the_extra
from quorumlog.header_array import field_of
from quorumlog.kafka.places import MACHINE_NAME
from quorumlog.log_state.control_entries import MachineBinding, decode_body
from quorumlog.log_state.log_state import LogState, decode_state
from quorumlog.store.directory_reader import DirectoryReader, StoredMarks
from quorumlog.store.disk import OsDisk
from quorumlog.store.snapshots import SnapshotDamaged, SnapshotFiles, SnapshotsUnavailable

try:
    from quorumlog.kafka.machine import KafkaMachine
except ModuleNotFoundError as error:
    raise ConfigError(
        f"view kafka with option path needs the state machine's packages ({error}), {the_extra('kafka')}"
    ) from None


def stopped_machine(path: str, stop_index: int) -> KafkaMachine:
    """The machine with at least all entries before `stop_index`. Raises ConfigError if the log has no
    topics, or begins after its first entry without a good snapshot; DirectoryDamaged."""
    with DirectoryReader(OsDisk(), path) as reader:
        machine = KafkaMachine(lambda grown: None, lambda: reader.begin.position)
        next_index = _loaded(machine, reader) + 1
        channel = _channel(reader)
        if next_index < reader.ledger_begin_index:
            raise ConfigError(
                f"{path} has no good snapshot of the topics, and its log begins at index"
                f" {reader.ledger_begin_index}: the offsets there are unknown. Read another"
                " member's directory, or the running members"
            )
        for batch in reader.batches(next_index, stop_index, check_bodies=False):
            words = batch.words()
            own = field_of(words, "channel") == channel
            own &= field_of(words, "magic") == EntryKind.NORMAL
            for at in np.flatnonzero(own).tolist():
                machine.apply(batch.slice(at, at + 1), batch.first_index + at)
        return machine


def _loaded(machine: KafkaMachine, reader: DirectoryReader) -> int:
    """Index of the last entry in the snapshot; -1: there is no snapshot."""
    files = SnapshotFiles(OsDisk(), reader.path)
    try:
        indices = files.indices_of(MACHINE_NAME)
    except SnapshotsUnavailable:
        return -1
    for index in reversed([each for each in indices if each <= reader.ledger_end_index]):
        try:
            snapshot = files.open(MACHINE_NAME, index)
            try:
                snapshot.read(snapshot.head.kept_bytes)  # results of sessions
                machine.load(snapshot)
                snapshot.finish()
            finally:
                snapshot.close()
            return index
        except (SnapshotDamaged, SnapshotsUnavailable):
            machine.clear()
    return -1


def _channel(reader: DirectoryReader) -> int:
    """The machine's channel. Raises ConfigError if the log has none."""
    marks, first_index = StoredMarks(OsDisk(), reader), max(reader.ledger_begin_index, 0)
    for index, record in marks.states():
        state = decode_state(record)
        if isinstance(state, LogState):
            machine = state.machine(MACHINE_NAME)
            if machine is not None:
                return machine.channel
            first_index = index + 1
            break
    for batch in marks.control_batches(first_index, reader.ledger_end_index + 1):
        header = batch.first_header
        if header.magic == EntryKind.MACHINE:
            body = decode_body(EntryKind.MACHINE, batch.body(0))
            if isinstance(body, MachineBinding) and body.name == MACHINE_NAME:
                return body.channel
    raise ConfigError(f"{reader.path} has no topics of Kafka: no member was started with --kafka")
