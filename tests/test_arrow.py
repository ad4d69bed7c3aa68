"""Record batches say what reading entry by entry says, whatever the shape of the batch."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quorumlog.arrow import ENTRY_SCHEMA, record_batch_of
from quorumlog.batch import EntryBatch
from quorumlog.entry import EntryKind
from quorumlog.errors import BadRequest

CONTROL_KINDS = [kind for kind in EntryKind if kind is not EntryKind.NORMAL]
Body = bytes | EntryKind
"""Or the kind of a control entry."""


def part_of(body: Body) -> EntryBatch:
    if isinstance(body, EntryKind):
        return EntryBatch.control(body, b"" if body is EntryKind.NOOP else b"not for readers")
    return EntryBatch.from_bodies([body])


def made(bodies: Sequence[Body | None], first_index: int = 0, term: int = 1) -> EntryBatch:
    """A stamped batch with a no-op where a body is None."""
    parts = [part_of(EntryKind.NOOP if body is None else body) for body in bodies]
    batch = EntryBatch.concatenate(parts)
    batch.stamp(first_index, term, batch.starts, 0)
    return batch


def assert_says_the_same(batch: EntryBatch) -> None:
    rows = record_batch_of(batch)
    rows.validate(full=True)
    assert rows.schema == ENTRY_SCHEMA
    expected = [{"index": e.index, "term": e.term, "body": e.body} for e in batch.entries()]
    assert rows.to_pylist() == expected


@settings(deadline=None)
@given(
    st.lists(st.sampled_from(CONTROL_KINDS) | st.binary(max_size=100), max_size=12),
    st.integers(0, 2**40),
    st.integers(1, 2**40),
)
def test_rows_are_the_entries_and_no_control_entry_is_one(
    bodies: list[Body], first_index: int, term: int
) -> None:
    batch = made(bodies, first_index, term)
    assert_says_the_same(batch)
    assert [entry.body for entry in batch.entries()] == [b for b in bodies if isinstance(b, bytes)]


@settings(deadline=None)
@given(st.lists(st.none() | st.binary(max_size=20), min_size=1, max_size=8), st.data())
def test_rows_of_a_slice_are_its_entries(bodies: list[bytes | None], data: st.DataObject) -> None:
    batch = made(bodies, 7)
    stop = data.draw(st.integers(0, batch.count))
    assert_says_the_same(batch.slice(data.draw(st.integers(0, stop)), stop))


@pytest.mark.parametrize(
    "bodies",
    [
        [],
        [None],
        [b""],
        [None, None],
        [b"a", None, b"", None, b"longer than a"],
        [b"%04d" % number for number in range(1000)],
    ],
    ids=["no entries", "a no-op", "an empty body", "no-ops", "no-ops inside", "equally long"],
)
def test_rows_of_odd_batches(bodies: list[bytes | None]) -> None:
    assert_says_the_same(made(bodies, 5, 3))


def test_rows_stay_what_they_are_when_the_batch_is_gone() -> None:
    batch = made([b"kept", None, b"as well"])
    rows = record_batch_of(batch)
    batch.buffer[:] = bytes(len(batch.buffer))
    del batch
    assert rows.column("body").to_pylist() == [b"kept", b"as well"]


def test_columns_of_the_header_and_constants_are_chosen_by_the_schema() -> None:
    batch = made([b"one", None, b"three"])
    schema = pa.schema([("pos", pa.int64()), ("log", pa.string()), ("channel", pa.int32())])
    rows = record_batch_of(batch, schema, {"log": pa.scalar("orders")})
    assert rows.to_pydict() == {"pos": [0, 99], "log": ["orders"] * 2, "channel": [0, 0]}


def test_what_32_bit_offsets_cannot_say_is_refused() -> None:
    length = 2**31
    # Never touched memory: only its length counts.
    batch = EntryBatch(np.zeros(length, np.uint8).data, [length - 48, 48])
    with pytest.raises(BadRequest, match="take slices"):
        record_batch_of(batch)


def run(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_clients_and_servers_do_without_pyarrow() -> None:
    modules = "quorumlog.client.async_client, quorumlog.client.blocking_client, quorumlog.server"
    assert run(f"import sys, {modules}; print('pyarrow' in sys.modules)") == "False\n"


def test_without_pyarrow_the_extra_is_named_before_anything_is_asked() -> None:
    program = """
import sys
from quorumlog import connect
sys.modules["pyarrow"] = None  # as where it is not installed
with connect("127.0.0.1:1") as log:
    try:
        log.read_arrow(0)
    except ModuleNotFoundError as error:
        print(error)
"""
    assert "pip install '.[arrow]' in a clone" in run(program)
