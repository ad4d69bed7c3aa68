"""One log whose commands answer more than is kept, and what is saved behind each of its entries."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np

from quorumlog.batch import EntryBatch
from quorumlog.entry import EntryKind
from quorumlog.kv.requests import (
    FROM_KEY,
    Command,
    Compare,
    DeleteRange,
    Put,
    Range,
    Relation,
    Target,
    Txn,
    encode,
)
from quorumlog.log_state.control_entries import ProducerBatch, ProducerEpoch, encode_body
from quorumlog.node.machine_runner import MachineRunner
from quorumlog.state_machine import StateMachine
from tests.kv.applied import Saved, saved

KEPT_BYTES = 1 << 20
"""Of sessions, in all: a small `MOST_BYTES`."""
FIRST_INDEX = 10
_ALL = Range(b"k", b"l")
_EDGE_OVERHEAD = 37
"""Of the answer of `_edge`, beside the value."""


def _edge(value_bytes: int) -> list[tuple[str, list[Command]]]:
    """The second answer is so long, and _EDGE_OVERHEAD bytes."""
    return [
        ("", [Put(b"edge", bytes(value_bytes))]),
        ("q", [Txn([], [Put(b"small", b"2")])]),
        ("p", [Txn([], [Put(b"z", b"1"), Range(b"edge")])]),
    ]


def commands() -> Iterator[tuple[str, list[Command]]]:
    """(session, the commands of one batch of it); "": of none."""
    for part in range(10):
        yield "", [Put(b"k%03d" % (part * 50 + each), bytes(4000)) for each in range(50)]
    many = Txn([], [Put(b"z", b"many"), *[_ALL] * 20])
    yield "p", [Put(b"a", b"1", prev_kv=True)]
    yield "q", [Txn([], [Put(b"z", b"1"), Range(b"k", b"l", limit=100)])]
    yield "p", [Put(b"a", b"2", prev_kv=True)]
    yield "p", [many]
    yield "q", [Put(b"a", b"3", prev_kv=True)]
    yield "p", [Put(b"a", b"4"), many, Put(b"a", b"5", prev_kv=True)]
    yield "r", [Txn([], [Put(b"z", b"2"), Range(b"k", b"k1")])]
    yield "q", [Txn([], [Put(b"z", b"3"), Range(b"k", b"k1")])]
    yield "p", [Txn([], [Put(b"z", b"4"), Range(b"k", b"k1"), Range(b"k1", b"k2")])]
    for sort_by in (Target.KEY, Target.MOD, Target.VALUE):
        for limit in (0, 9):
            ranged = Range(b"k", b"l", limit=limit, sort_by=sort_by, descending=True, max_mod=700)
            yield "q", [Txn([], [Put(b"y", b"1"), ranged])]
    yield "q", [Txn([], [Put(b"y", b"2"), Range(b"k", b"l", keys_only=True)])]
    yield "q", [Txn([], [Put(b"y", b"3"), Range(b"k", b"l", keys_only=True, sort_by=Target.VALUE)])]
    yield "q", [Txn([], [Put(b"y", b"4"), Range(b"k", b"l", count_only=True)])]
    holds = Compare(b"k", Target.VERSION, Relation.EQUAL, 1, b"l")
    yield "r", [Txn([holds], [Put(b"held", b"1"), Txn([], [_ALL]), _ALL, Range(b"a")])]
    yield from _edge(KEPT_BYTES - 16 - _EDGE_OVERHEAD)
    yield "q", [Put(b"a", b"6", prev_kv=True)]
    yield from _edge(KEPT_BYTES - 15 - _EDGE_OVERHEAD)
    yield "q", [Range(b"a"), Put(b"a", b"7", prev_kv=True)]  # type: ignore[list-item]
    yield (
        "p",
        [Txn([], [Put(b"y", b"5"), Range(b"k", b"l", revision=20), Range(b"k", b"l", revision=300)])],
    )
    yield "p", [DeleteRange(b"k", b"k1", prev_kv=True)]
    yield "p", [DeleteRange(b"\0", FROM_KEY, prev_kv=True), Put(b"a", b"8", prev_kv=True)]
    yield "q", [Txn([], [Put(b"y", b"6"), *[Range(b"k", b"l", revision=200)] * 2])]


def log(channel: int = 1) -> list[EntryBatch]:
    """A stretch for each batch of commands."""
    stretches = []
    index = FIRST_INDEX
    for session, batch in commands():
        parts = [EntryBatch.from_bodies([encode(command) for command in batch])]
        parts[0].set_channel(channel)
        if session:
            said = ProducerBatch(session, ProducerEpoch(5, 1), 0, len(batch))
            parts.insert(0, EntryBatch.control(EntryKind.PRODUCER, encode_body(said)))
        stretch = EntryBatch.concatenate(parts)
        stretch.stamp(index, 1, np.arange(stretch.count), 0)
        index += stretch.count
        stretches.append(stretch)
    return stretches


def runner(machine: StateMachine, acts_as: int) -> MachineRunner:
    return MachineRunner("kv", 1, machine, acts_as)


def digest(data: bytes) -> str:
    return f"{len(data)} {hashlib.sha256(data).hexdigest()[:16]}"


def saved_by(runner: MachineRunner) -> str:
    """Of the results that are kept, and of the store."""
    return f"{digest(runner._kept.encode())}, {digest(saved(runner.machine))}"  # type: ignore[arg-type]


def saved_whole(runner: MachineRunner) -> bytes:
    writer = Saved()
    runner.write_to(writer)
    return bytes(writer.data)
