"""Committed entries that are gone: what `checkpoint` or the index names behind the end of a log."""

from __future__ import annotations

from quorumlog.store.files.checkpoint_file import CHECKPOINT_NAME, Checkpoint
from quorumlog.store.files.durable_file import DURABLE_NAME, DurablePoint
from quorumlog.store.ledger_store import LogPoint
from quorumlog.store.log.placement import problem_of_units
from quorumlog.store.log.segment_list import INDEX_NAME
from quorumlog.store.log.segment_view import MAX_INDEX, IndexUnits, SegmentView
from quorumlog.store.offline.log_extent import Damage, LogExtent

_UNIT_CHUNK = 65_536


def missing_entries(
    data: SegmentView,
    units: IndexUnits,
    extent: LogExtent,
    checkpoint: Checkpoint | None,
    durable: DurablePoint | None,
) -> Damage | None:
    """The entries between the end of the log and the last one that any of them names; None if there are
    none. `durable`: of a Java member, or unreadable: None.

    With a durable point the index is not asked: above it units prove nothing. Nor is it where a
    checkpoint says that the log ended just here: a Java member leaves old units in place when it cuts.
    """
    end = extent.end
    named = [(-1, "")]
    if checkpoint is not None:
        named.append((checkpoint.committed_index, f"{CHECKPOINT_NAME} names entry {{}} as committed"))
    if durable is not None:
        named.append((durable.point.index, f"{DURABLE_NAME} names entry {{}}"))
    elif checkpoint is None or checkpoint.end_index != end.index:
        named.append((_last_index_of_units(data, units, end), f"the {INDEX_NAME} names entry {{}}"))
    last_index, words = max(named, key=lambda each: each[0])
    if last_index <= end.index:
        return None
    first_index = end.index + 1
    entries = f"entry {first_index} is missing"
    if last_index > first_index:
        entries = f"entries {first_index} .. {last_index} are missing"
    path = data.name_of(end.position) if data.bases else CHECKPOINT_NAME
    why = f" ({extent.tail})" if extent.tail else ""
    problem = f"{entries}: {words.format(last_index)}, and the log ends here{why}"
    return Damage(path, end.position, first_index, problem, last_index + 1)


def _last_index_of_units(data: SegmentView, units: IndexUnits, end: LogPoint) -> int:
    """The last entry that the index has behind `end`, each linked to the one before; -1 if none."""
    last_index, position = -1, end.position
    segment_end = data.base_of(position) + data.segment_bytes
    first_index = end.index + 1
    while first_index < units.stop_index:
        chunk = units.read(first_index, min(first_index + _UNIT_CHUNK, units.stop_index))
        wrong, _ = problem_of_units(chunk, first_index, data.segment_bytes, MAX_INDEX)
        count = len(chunk) if wrong < 0 else wrong
        if not count or int(chunk["position"][0]) not in (position, segment_end):
            break
        last_index = first_index + count - 1
        position = int(chunk["position"][count - 1]) + int(chunk["size"][count - 1])
        segment_end = data.base_of(position - 1) + data.segment_bytes
        first_index += count
        if wrong >= 0:
            break
    return last_index
