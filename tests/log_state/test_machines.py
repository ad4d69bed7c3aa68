"""State machines in the log's state: bound once, each to a channel, by versions that only rise."""

from __future__ import annotations

import zlib

import msgspec
import pytest

from quorumlog.entry import EntryKind
from quorumlog.log_state.control_entries import MachineBinding, Unreadable, decode_body
from quorumlog.log_state.log_state import EMPTY, LogState, Machine, decode_state, folded
from tests.log_state import made


def state_of(*bodies: MachineBinding | None) -> LogState:
    state = folded(EMPTY, made.entries_at(0, list(bodies)))
    assert isinstance(state, LogState), state
    return state


def test_a_machine_is_bound_from_its_first_entry_on() -> None:
    state = state_of(None, MachineBinding("counter", 1, 1), None, MachineBinding("counter", 1, 2))
    assert state.machine("counter") == Machine("counter", 1, 2, 1)
    assert (state.level, state.free_channel()) == (3, 2)


@pytest.mark.parametrize(
    "late",
    [MachineBinding("other", 1, 1), MachineBinding("counter", 2, 9), MachineBinding("counter", 1, 3)],
)
def test_no_channel_changes_hands_and_no_version_falls(late: MachineBinding) -> None:
    state = state_of(MachineBinding("counter", 1, 3))
    assert state_of(MachineBinding("counter", 1, 3), late) == state


def test_a_state_that_was_saved_before_there_were_machines_is_read() -> None:
    fields = msgspec.msgpack.decode(EMPTY.encode()[8:], type=list[msgspec.Raw])[:-1]
    payload = msgspec.msgpack.encode(fields)
    state = decode_state(b"QLST" + zlib.crc32(payload).to_bytes(4, "big") + payload)
    assert state == EMPTY


@pytest.mark.parametrize("name", ["", "Counter", "../up", "a/b", "a" * 65, "a\n", "-a"])
def test_a_name_that_could_be_no_file_is_no_machine(name: str) -> None:
    body = decode_body(EntryKind.MACHINE, msgspec.msgpack.encode([name, 1, 1]))
    assert isinstance(body, Unreadable)
