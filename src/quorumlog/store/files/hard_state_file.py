"""HardStateFile: term and vote, which must survive a crash for elections to be safe.

`hardstate` is a slot file (slot_file.py) with this payload, big-endian:

    offset  bytes  field
         0      8  term
         8      1  1 if a vote was given in this term, else 0
         9      1  length m of the member id
        10      1  length d of the directory id
        11      m  member id voted for, UTF-8
      11+m      d  directory id voted for, UTF-8

Every change is in both slots, synced, before the reply that depends on it leaves: any one good slot is
enough.

`currterm` is the same for a Java member that takes the directory over (docs/formats.md, currterm):
written after `hardstate`, not synced, never the only copy of a promise. If a Java member has raised it
meanwhile, the higher term wins.
"""

from __future__ import annotations

import struct
import threading
from typing import Self

from quorumlog.entry import HardState, Replica
from quorumlog.errors import StoreFailure
from quorumlog.store.disk import Disk, is_lack_of_space, refusal
from quorumlog.store.files.replaced_file import parse_properties, read_readable, replace_file
from quorumlog.store.files.slot_file import PAYLOAD_BYTES, SlotFile, read_payload

HARD_STATE_NAME = "hardstate"
CURRTERM_NAME = "currterm"
HARD_STATE_MAGIC = b"qlhard 1"
UNKNOWN_DIRECTORY_ID = "?"

_HEAD = struct.Struct(">qBBB")


def encode_hard_state(state: HardState) -> bytes:
    """Raises ValueError if the ids voted for do not fit into a slot."""
    vote = state.voted_for
    if vote is None:
        return _HEAD.pack(state.term, 0, 0, 0)
    member_id, directory_id = vote.member_id.encode(), vote.directory_id.encode()
    if max(len(member_id), len(directory_id)) > 255 or (
        _HEAD.size + len(member_id) + len(directory_id) > PAYLOAD_BYTES
    ):
        raise ValueError(f"a vote for {vote} does not fit into {PAYLOAD_BYTES} bytes")
    return _HEAD.pack(state.term, 1, len(member_id), len(directory_id)) + member_id + directory_id


def decode_hard_state(payload: bytes) -> HardState:
    term, has_vote, member_bytes, directory_bytes = _HEAD.unpack_from(payload)
    if not has_vote:
        return HardState(term, None)
    middle = _HEAD.size + member_bytes
    member_id = payload[_HEAD.size : middle].decode()
    return HardState(term, Replica(member_id, payload[middle : middle + directory_bytes].decode()))


def encode_currterm(state: HardState) -> bytes:
    voted_for = state.voted_for.member_id if state.voted_for else ""
    return f"voteLeader={voted_for}\ncurrTerm={state.term}\n".encode()


def read_currterm(disk: Disk, directory: str) -> HardState | None:
    """What `currterm` says, or None if it is missing, unreadable or not whole."""
    data, _ = read_readable(disk, f"{directory}/{CURRTERM_NAME}")
    if data is None:
        return None
    values = parse_properties(data.decode(errors="replace"))
    term = values.get("currTerm", "")
    if not term.isascii() or not term.isdigit():
        return None
    voted_for = values.get("voteLeader", "")
    return HardState(int(term), Replica(voted_for, UNKNOWN_DIRECTORY_ID) if voted_for else None)


def read_hard_state(disk: Disk, directory: str) -> HardState | None:
    """What a member would start with; for a Java directory its `currterm`. None if a `hardstate` has no
    good slot, or if there is neither file."""
    path = f"{directory}/{HARD_STATE_NAME}"
    if not disk.exists(path):
        return read_currterm(disk, directory)
    payload = read_payload(disk, path, HARD_STATE_MAGIC)
    if payload is None:
        return None
    return _winner(decode_hard_state(payload), read_currterm(disk, directory))


def _winner(own: HardState, java: HardState | None) -> HardState:
    """The higher term; at equal terms the copy that holds a vote, our own if both do."""
    if java is None or java.term < own.term:
        return own
    if java.term > own.term:
        return java
    return own if own.voted_for is not None or java.voted_for is None else java


class HardStateFile:
    """All calls are thread-safe: the thread that writes checkpoints repeats what had no space.
    `problem`: why `currterm` could not be written, "" if it was."""

    def __init__(self, disk: Disk, directory: str, slots: SlotFile) -> None:
        self._disk = disk
        self._directory = directory
        self._slots = slots
        self._lock = threading.Lock()
        self.problem = ""

    @classmethod
    def create(cls, disk: Disk, directory: str, state: HardState) -> Self:
        """New files that hold `state`, synced; the caller syncs the directory."""
        path = f"{directory}/{HARD_STATE_NAME}"
        file = cls(
            disk, directory, SlotFile.create(disk, path, HARD_STATE_MAGIC, encode_hard_state(state))
        )
        file._write_currterm(state)
        return file

    @classmethod
    def open(cls, disk: Disk, directory: str) -> Self:
        """Raises FileNotFoundError; a file without a good slot opens, and `load` says None."""
        path = f"{directory}/{HARD_STATE_NAME}"
        return cls(disk, directory, SlotFile.open(disk, path, HARD_STATE_MAGIC))

    def load(self) -> HardState | None:
        """None if no slot is good. `currterm` alone is not enough: it may lag behind a vote."""
        payload = self._slots.payload
        if payload is None:
            return None
        return _winner(decode_hard_state(payload), read_currterm(self._disk, self._directory))

    def save(self, state: HardState) -> None:
        """On disk, in both slots, when this returns. Raises StoreFailure."""
        with self._lock:
            before = self._slots.payload
            if before is not None:
                old = decode_hard_state(before)
                assert state.term >= old.term, (state, old)
                if state.term == old.term and old.voted_for is not None:
                    assert state.voted_for == old.voted_for, (state, old)
            self._slots.write_both_synced(encode_hard_state(state))
            self._write_currterm(state)

    def retry_currterm(self) -> None:
        """Cheap if there is nothing to do."""
        if not self.problem:
            return
        with self._lock:
            payload = self._slots.payload
            if self.problem and payload is not None:
                self._write_currterm(decode_hard_state(payload))

    def _write_currterm(self, state: HardState) -> None:
        path = f"{self._directory}/{CURRTERM_NAME}"
        try:
            replace_file(self._disk, path, encode_currterm(state), synced=False)
        except OSError as error:
            problem = refusal(path, "written", error)
            if not is_lack_of_space(error):
                raise StoreFailure(problem) from error
            self.problem = problem
        else:
            self.problem = ""

    def close(self) -> None:
        self._slots.close()
