"""What a reader was told stays: no leader knows of an older position, but where somebody sought it."""

from __future__ import annotations

from quorumlog.node.retention.reader_moves import ReaderStand
from quorumlog.sim.checkers.checker import Checker, Violation
from quorumlog.sim.checkers.view import CheckedCluster
from quorumlog.sim.operations import ClientMove


class ReaderPositions(Checker):
    def __init__(self, cluster: CheckedCluster) -> None:
        super().__init__(cluster)
        self._told: dict[str, int] = {}
        """The highest position that was told and that nobody has asked to leave since."""
        self._unsettled: dict[str, set[int]] = {}
        """By name: seeks and ends that may still come, by when they were asked."""

    def reader_asked(self, asked: ClientMove) -> None:
        move = asked.move
        if move.ends or move.seeks_from is not None:
            self._told.pop(move.name, None)
            self._unsettled.setdefault(move.name, set()).add(id(asked))

    def reader_moved(self, asked: ClientMove) -> None:
        move, outcome = asked.move, asked.outcome
        open_ones = self._unsettled.get(move.name, set())
        open_ones.discard(id(asked))
        if not isinstance(outcome, ReaderStand) or self.cluster.profile.is_async:
            if id(asked) not in open_ones and not isinstance(outcome, ReaderStand):
                self._leave_open(asked)
            return
        if move.ends:
            return
        known = self._told.get(move.name, -1)
        if outcome.position < known and move.seeks_from is None:
            raise Violation(
                f"reader {move.name} was told that it stands at {known}, and after {move} at"
                f" {outcome.position}"
            )
        if not open_ones:
            self._told[move.name] = outcome.position

    def _leave_open(self, asked: ClientMove) -> None:
        """Whether it was carried out is not known: what it asks for may come at any time."""
        move = asked.move
        if move.ends or move.seeks_from is not None:
            self._unsettled.setdefault(move.name, set()).add(id(asked))
