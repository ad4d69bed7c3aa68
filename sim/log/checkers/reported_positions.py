"""What a reader was told stays: no leader knows of an older position, but where somebody sought it."""

from __future__ import annotations

from quorumlog.errors import ReaderMoved
from quorumlog.node.reader_moves import MovedReader, ReaderMove
from quorumlog.testing.promises import CheckedCluster, Violation
from sim.log.checkers.log_checker import LogChecker
from sim.log.operations import ClientMove


class ReportedPositions(LogChecker):
    def __init__(self, cluster: CheckedCluster) -> None:
        super().__init__(cluster)
        self._positions: dict[str, int] = {}
        """The highest position that was told and that nobody has asked to leave since."""
        self._unsettled: dict[str, dict[int, ReaderMove]] = {}
        """By name: seeks and ends that may still come, by when they were asked."""

    def reader_asked(self, request: ClientMove) -> None:
        move = request.move
        if move.ends or move.seeks_from is not None:
            self._positions.pop(move.name, None)
            self._unsettled.setdefault(move.name, {})[id(request)] = move

    def reader_moved(self, request: ClientMove) -> None:
        move, outcome = request.move, request.outcome
        unsettled = self._unsettled.setdefault(move.name, {})
        is_done = isinstance(outcome, MovedReader) and not self.cluster.profile.is_async
        if is_done or isinstance(outcome, ReaderMoved):
            unsettled.pop(id(request), None)
        elif move.ends or move.seeks_from is not None:
            unsettled[id(request)] = move  # a copy of it may come at any time
        if not is_done:
            return
        assert isinstance(outcome, MovedReader), outcome
        for at, other in list(unsettled.items()):
            if not _may_come(other, move, outcome):
                del unsettled[at]
        if move.ends:
            return
        known = self._positions.get(move.name, -1)
        if outcome.position < known and move.seeks_from is None:
            raise Violation(
                f"reader {move.name} was told that it stands at {known}, and after {move} at"
                f" {outcome.position}"
            )
        if not unsettled:
            self._positions[move.name] = outcome.position


def _may_come(other: ReaderMove, move: ReaderMove, outcome: MovedReader) -> bool:
    """Whether a copy of `other` still counts behind `move`, which was done."""
    if other.seeks_from is not None:
        return other.last_index is None or other.last_index >= outcome.last_index
    is_change = move.ends or move.seeks_from is not None
    return other.seen_index is None or not is_change or other.seen_index >= outcome.last_index
