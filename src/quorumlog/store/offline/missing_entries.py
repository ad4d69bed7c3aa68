"""Committed entries that are gone: what `checkpoint` or the index names behind the end of a log."""

from __future__ import annotations

import numpy as np

from quorumlog.store.files.checkpoint_file import CHECKPOINT_NAME, Checkpoint
from quorumlog.store.files.durable_file import DURABLE_NAME, DurablePoint
from quorumlog.store.log.placement import problem_of_units
from quorumlog.store.log.segment_list import INDEX_NAME
from quorumlog.store.log.segment_view import MAX_POSITION, UNIT_CHUNK, IndexUnits, SegmentView
from quorumlog.store.offline.log_extent import Damage, LogExtent


def missing_entries(
    data: SegmentView,
    units: IndexUnits,
    extent: LogExtent,
    checkpoint: Checkpoint | None,
    durable: DurablePoint | None,
) -> Damage | None:
    """The entries between the end of the log and the last one that any of them names; None if there are
    none. `durable`: of a Java member, or unreadable: None.

    Above a durable point units prove nothing, so the index is not asked then; nor where a checkpoint
    says that the log ended just here, since a Java member leaves old units in place when it cuts.
    """
    end = extent.end
    first_index, by_units = end.index + 1, -1
    named = [(-1, "")]
    if checkpoint is not None:
        named.append((checkpoint.committed_index, f"{CHECKPOINT_NAME} names entry {{}} as committed"))
    if durable is not None:
        named.append((durable.point.index, f"{DURABLE_NAME} names entry {{}}"))
    elif checkpoint is None or checkpoint.end_index != end.index:
        first_index, by_units = _named_by_units(data, units, extent)
        named.append((by_units, f"the {INDEX_NAME} names entry {{}}"))
    last_index, words = max(named, key=lambda each: each[0])
    if last_index <= end.index:
        return None
    entries = f"entry {first_index} is missing"
    if last_index > first_index:
        entries = f"entries {first_index} .. {last_index} are missing"
    path = INDEX_NAME if last_index == by_units else CHECKPOINT_NAME
    if data.bases:
        path = data.name_of(end.position)
    why = f" ({extent.tail})" if extent.tail else ""
    problem = f"{entries}: {words.format(last_index)}, and the log ends here{why}"
    return Damage(path, end.position, first_index, problem, last_index + 1)


def _named_by_units(data: SegmentView, units: IndexUnits, extent: LogExtent) -> tuple[int, int]:
    """(first, last) of the entries that the index has behind the end, each linked to the one before; the
    last is -1 if there are none. A lower term is of a unit that a cut has left in place."""
    first_index, term, position = extent.end.index + 1, extent.end.term, extent.end.position
    if not extent.segments:
        first_index = units.begin_index
    index, last_index = first_index, -1
    while index < units.stop_index:
        chunk = units.read(index, min(index + UNIT_CHUNK, units.stop_index))
        if data.bases:
            wrong, _ = problem_of_units(chunk, index, data.segment_bytes, MAX_POSITION)
        else:  # nothing says how long a segment is
            is_wrong = (chunk["index"] != np.arange(index, index + len(chunk))) | (chunk["size"] <= 0)
            wrong = int(is_wrong.argmax()) if is_wrong.any() else -1
        count = len(chunk) if wrong < 0 else wrong
        if not count or int(chunk["term"][0]) < term:
            break
        next_segment = data.base_of(position - 1) + data.segment_bytes
        is_linked = int(chunk["position"][0]) in (position, next_segment)
        if extent.segments and not is_linked:
            break
        last_index = index + count - 1
        last = chunk[count - 1]
        term, position = int(last["term"]), int(last["position"]) + int(last["size"])
        index += count
        if wrong >= 0:
            break
    return first_index, last_index
