"""Why segments are kept, from the directory of a stopped member."""

from __future__ import annotations

from quorumlog.errors import DirectoryDamaged
from quorumlog.log_state.control_entries import Hold
from quorumlog.log_state.log_state import EMPTY, AnyState, LogState, decode_state, folded
from quorumlog.node.log_states import controls_of
from quorumlog.node.retention import Decision, Limit, LogShape, SegmentBoundary, kept_segments
from quorumlog.store.directory_reader import DirectoryReader
from quorumlog.store.disk import OsDisk
from quorumlog.store.state_files import load_start
from quorumlog.wire.client_messages import SegmentInfo


def kept_in(path: str) -> tuple[tuple[SegmentInfo, ...], str]:
    """Oldest first, and the state that applies to all. The whole log is read: its control entries may
    lie anywhere. Raises DirectoryDamaged."""
    disk = OsDisk()
    with DirectoryReader(disk, path) as reader:
        start = load_start(disk, path)
        begun = EMPTY if start is None else decode_state(start.record)
        if not isinstance(begun, LogState):
            raise DirectoryDamaged(f"{path}: {begun.reason}", path=path, position=0)
        stop_index, stop_position = reader.begin.index + 1, reader.begin.position
        boundaries: list[SegmentBoundary] = []
        state: AnyState = begun
        held = [each for each in reader.segments if 0 <= each.first_index <= reader.ledger_end_index]
        if not held and reader.entry_count:
            next(
                reader.batches(reader.ledger_begin_index, reader.ledger_end_index + 1)
            )  # names the file
        for number, segment in enumerate(held):
            if number:
                time_ms = state.time_ms if isinstance(state, LogState) else None
                boundaries.append(SegmentBoundary(segment.first_index, segment.position, time_ms))
            next_first = held[number + 1].first_index if number + 1 < len(held) else None
            stop_index = reader.ledger_end_index + 1 if next_first is None else next_first
            for batch in reader.batches(segment.first_index, stop_index):
                state = folded(state, controls_of(batch))
                last = batch.headers()[-1]
                stop_position = int(last["pos"]) + int(last["size"])
        if not isinstance(state, LogState):
            raise DirectoryDamaged(f"{path}: {state.reason}", path=path, position=0)
        first = held[0] if held else None
        log = LogShape(
            first.first_index if first else stop_index,
            first.position if first else stop_position,
            stop_index,
            stop_position,
            tuple(boundary.counted(state.clock_resets) for boundary in boundaries),
        )
        kinds = {Hold.READER: "reader", Hold.ARCHIVE: "archive"}
        holding = [each for each in state.readers if each.hold in kinds]
        limits = [Limit(each.position, f"{kinds[each.hold]} {each.name}") for each in holding]
        rest = Limit(state.keep_from_index, f"keep_from_index is {state.keep_from_index}")
        decision = Decision(rest, tuple(limits), state.keep_from_index, False)
        segments = kept_segments(log, decision, state.keep_from_index, state.keep_from_index)
    infos = (
        SegmentInfo(
            first_index=each.first_index,
            stop_index=each.stop_index,
            size_bytes=each.size_bytes,
            time_ms=-1 if each.time_ms is None else each.time_ms,
            reasons=each.reasons,
        )
        for each in segments
    )
    return tuple(infos), f"keep_from_index {state.keep_from_index}, by the end of this log"
