"""Every file of a member's directory damaged in every way, thousands of cases from a seed.

    python -m tests.node.damage_fuzz FIRST STOP       run the cases FIRST .. STOP - 1

Each case damages one of three members while it is down and starts all of them. There are two good ends:
the start refuses with a message that names file and position (a file that is missing has none), or the
group runs until every member is whole again and holds the same bytes. On the way the damaged member is
read like any other: what it serves is right.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

from quorumlog.batch import EntryBatch
from quorumlog.config import StoreConfig
from quorumlog.consensus.ready import Role
from quorumlog.errors import ConfigError, LedgerError, ProtocolViolation, StoreFailure
from quorumlog.node import LedgerNode, MachineFactory
from quorumlog.store.log_points import ColdRange
from tests.node.cell import Cell
from tests.node.machines import Chain

STORAGE = StoreConfig(
    segment_bytes=8192,
    index_segment_bytes=1024,
    reserve_step_bytes=8192,
    scrub_bytes_per_second=100 << 20,
)
VICTIM = "n1"
ENTRIES = 120
FIELD_OFFSETS = (0, 4, 8, 16, 24, 32, 36, 40, 44, 48)
Entries = dict[int, tuple[int, bytes]]


def make_group(path: Path, *, commands: bool = False) -> Entries:
    """Three members with the same log over several segments and terms, stopped; returns its entries.
    `commands`: two in three of them are for a state machine."""
    machines: dict[str, MachineFactory] = {"chain": Chain} if commands else {}
    cell = Cell(path, storage=STORAGE, machines=machines)
    cell.until(lambda: all(row.channel for row in cell.leader().machines.status()))
    for index in range(ENTRIES):
        outcomes: list[object] = []
        body = b"%d:" % index + bytes([index % 251]) * (index * 37 % 400)
        machine = "chain" if commands and index % 3 else ""
        cell.leader().append(EntryBatch.from_bodies([body]), 0, outcomes.append, machine=machine)
        cell.until(lambda outcomes=outcomes: outcomes)
        if index % 40 == 20:
            old = cell.leader()
            old.transfer(cell.followers()[0].replica.member_id, lambda outcome: None)
            cell.until(lambda old=old: cell.leader() is not old)
            cell.until(lambda: cell.leader().durable_committed_index == cell.leader().store.end.index)
    end = cell.leader().store.end.index
    cell.until(lambda: all(node.durable_committed_index == end for node in cell.nodes.values()))
    entries: Entries = {}
    for first in range(end + 1):
        batch = cell.leader().store.read(cell.leader().store.range_of(first, first + 1, 1))
        header = batch.headers()[0]
        entries[first] = (int(header["term"]), bytes(batch.body(0)))
    cell.close(clean=True)
    return entries


# ---------------------------------------------------------------- damage


def damage(rng: random.Random, directory: Path) -> str:
    """Do one thing to one file; returns what, in words."""
    files = sorted(file for file in directory.rglob("*") if file.is_file())
    logs = [file for file in files if file.parent != directory]
    file = rng.choice(logs if rng.random() < 0.75 else files)
    ways = [flip, flip, flip_field, flip_field, zero_page, cut, extend, swap, empty, remove, garble]
    way = rng.choice(ways)
    name = file.relative_to(directory)
    return f"{way.__name__} {name} {way(rng, file, files)}".strip()


def flip(rng: random.Random, file: Path, files: list[Path]) -> str:
    data = bytearray(file.read_bytes())
    used = [offset for offset, byte in enumerate(data) if byte] or list(range(len(data)))
    if not used:
        return "nothing"
    offset, bit = rng.choice(used), rng.randrange(8)
    data[offset] ^= 1 << bit
    file.write_bytes(data)
    return f"byte {offset} bit {bit}"


def flip_field(rng: random.Random, file: Path, files: list[Path]) -> str:
    """A field of an entry of a data segment or of a unit of an index segment."""
    data = bytearray(file.read_bytes())
    starts = record_starts(file, data)
    if not starts:
        return flip(rng, file, files)
    offset = min(rng.choice(starts) + rng.choice(FIELD_OFFSETS) + rng.randrange(4), len(data) - 1)
    data[offset] ^= 1 << rng.randrange(8)
    file.write_bytes(data)
    return f"byte {offset}"


def record_starts(file: Path, data: bytearray) -> list[int]:
    if file.parent.name == "index":
        return list(range(0, len(data), 32))
    starts, offset = [], 0
    while file.parent.name == "data" and data[offset : offset + 4] in (b"\0\0\0\1", b"\0\0\0\2"):
        starts.append(offset)
        offset += int.from_bytes(data[offset + 4 : offset + 8], "big")
        if data[offset : offset + 4] == b"\xff" * 4:
            return [*starts, offset]  # the blank record, too
        if len(starts) > len(data) // 48:
            break
    return starts


def zero_page(rng: random.Random, file: Path, files: list[Path]) -> str:
    data = bytearray(file.read_bytes())
    size = rng.choice((64, 512, 4096))
    offset = rng.randrange(len(data) // size + 1) * size
    data[offset : offset + size] = bytes(len(data[offset : offset + size]))
    file.write_bytes(data)
    return f"{size} bytes at {offset}"


def garble(rng: random.Random, file: Path, files: list[Path]) -> str:
    data = bytearray(file.read_bytes())
    size = rng.choice((8, 512, 4096))
    offset = rng.randrange(len(data) // size + 1) * size
    data[offset : offset + size] = rng.randbytes(len(data[offset : offset + size]))
    file.write_bytes(data)
    return f"{size} bytes at {offset}"


def cut(rng: random.Random, file: Path, files: list[Path]) -> str:
    size = rng.randrange(file.stat().st_size + 1)
    with file.open("r+b") as opened:
        opened.truncate(size)
    return f"to {size} bytes"


def extend(rng: random.Random, file: Path, files: list[Path]) -> str:
    with file.open("ab") as opened:
        opened.write(rng.choice((rng.randbytes(100), bytes(5000), rng.randbytes(8192))))
    return f"to {file.stat().st_size} bytes"


def swap(rng: random.Random, file: Path, files: list[Path]) -> str:
    other = rng.choice([each for each in files if each.parent == file.parent])
    data, others = file.read_bytes(), other.read_bytes()
    file.write_bytes(others)
    other.write_bytes(data)
    return f"with {other.name}"


def empty(rng: random.Random, file: Path, files: list[Path]) -> str:
    file.write_bytes(b"")
    return ""


def remove(rng: random.Random, file: Path, files: list[Path]) -> str:
    file.unlink()
    return ""


# ---------------------------------------------------------------- one case


def run_case(seed: int, source: Path, entries: Entries, scratch: Path) -> str:
    """`refused` or `repaired`; raises AssertionError with the seed and what was done otherwise."""
    rng = random.Random(seed)
    path = scratch / f"case-{seed}"
    shutil.copytree(source, path)
    done = [damage(rng, path / VICTIM) for _ in range(rng.choice((1, 1, 1, 2, 3)))]
    try:
        return start_and_repair(path, entries)
    except Exception as problem:
        raise AssertionError(f"case {seed} ({'; '.join(done)}): {problem!r}") from problem
    finally:
        shutil.rmtree(path)


def start_and_repair(path: Path, entries: Entries) -> str:
    try:
        cell = Cell(path, storage=STORAGE)
    except (ConfigError, StoreFailure) as refusal:
        assert names_the_place(str(refusal), path / VICTIM), (
            f"it says neither file nor position: {refusal}"
        )
        return "refused"
    try:
        victim = cell.nodes[VICTIM]
        read_everything(cell, victim, entries)
        run_until_whole(cell, entries)
        cell.now_ms += STORAGE.scrub_start_delay_ms  # bodies that nobody reads are left to the scrub
        for _ in range(30):
            cell.step()
        run_until_whole(cell, entries)
        held = read_everything(cell, victim, entries)
        assert held >= len(entries), f"only {held} entries can be read"
        logs = [data_of(path / member) for member in cell.nodes]
        assert logs[0] == logs[1] == logs[2], "the members hold different bytes"
        return "repaired"
    finally:
        cell.close()


def names_the_place(refusal: str, directory: Path) -> bool:
    named = re.findall(re.escape(str(directory)) + r"/([\w/.-]*\w)", refusal)
    position = re.search(r"\bposition \d+", refusal)
    missing = [name for name in named if f"no file {directory / name}" in refusal]
    is_missing = bool(missing) and not any((directory / name).exists() for name in missing)
    return is_missing or (position is not None and any((directory / name).is_file() for name in named))


def run_until_whole(cell: Cell, entries: Entries) -> None:
    def is_whole() -> bool:
        ends = {node.store.end for node in cell.nodes.values()}
        applied = {node.durable_committed_index for node in cell.nodes.values()}
        return (
            len(ends) == len(applied) == 1
            and ends.pop().index == applied.pop() >= len(entries)
            and not any(node.store.damaged for node in cell.nodes.values())
            and not any(
                "was started without the state machine" not in problem
                for node in cell.nodes.values()
                if is_voter(node)
                for problem in node.problems()
            )
        )

    cell.until(is_whole, "every member whole")


def is_voter(node: LedgerNode) -> bool:
    """A directory that forgot what it had promised is a new one: fed, and counted in nothing."""
    return node.raft.role is not Role.OBSERVER


def read_everything(cell: Cell, node: LedgerNode, entries: Entries) -> int:
    """As clients would, who check what they get; asserts that it is right, returns how much it was."""
    held, index = 0, 0
    while index <= node.committed_index:
        try:
            found = node.readable_range(index, -1, 4096)
        except LedgerError:
            index += 1
            continue
        if isinstance(found, ColdRange):
            try:
                _, batch = node.store.read_from(*found)
                batch.check_bodies()
            except (StoreFailure, ProtocolViolation):
                index += 1
                continue
        else:
            batch = found
        for entry, body in zip(batch.headers(), batch.bodies(), strict=True):
            number = int(entry["index"])
            served = (int(entry["term"]), bytes(body))
            assert number not in entries or entries[number] == served, f"entry {number} is {served}"
        held += batch.count
        index += batch.count
    return held


def data_of(directory: Path) -> dict[str, bytes]:
    """The data segments without what lies behind a blank record, which belongs to no entry."""
    segments = {}
    for file in sorted((directory / "data").iterdir()):
        data = bytearray(file.read_bytes())
        starts = record_starts(file, data)
        if starts and data[starts[-1] : starts[-1] + 4] == b"\xff" * 4:
            del data[starts[-1] + 8 :]
        if data.strip(b"\0"):
            segments[file.name] = bytes(data)
    return segments


def main(first: int, stop: int) -> None:
    ends: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "source"
        entries = make_group(source)
        for seed in range(first, stop):
            ends[run_case(seed, source, entries, Path(scratch))] += 1
    print(dict(ends))


if __name__ == "__main__":
    os.fsync = os.fdatasync = lambda descriptor: None  # type: ignore[assignment]  # no power is lost
    main(int(sys.argv[1]), int(sys.argv[2]))
