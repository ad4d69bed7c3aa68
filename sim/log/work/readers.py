"""Readers of a simulated cluster, by name: whoever takes over goes on where the one before has been."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from quorumlog.errors import LedgerError, NotLeader, ReaderMoved, StoreFailure
from quorumlog.log_state.control_entries import Hold
from quorumlog.node.reader_moves import MovedReader, MoveOutcome, ReaderMove
from sim.log.operations import ClientMove

if TYPE_CHECKING:
    from quorumlog.testing.cluster import SimCluster

EVERY_MS = 400.0
PATIENCE_MS = 3_000.0
COPIES = 0.3
"""So much of what they say arrives once more, so much later."""
COPY_MS = (500.0, 4_000.0)
OF_ANOTHER_LOG = 0.1
"""So many archives end with a chain that is not the log's."""


class SimReader:
    """At most one request at a time; one that is not answered may still be carried out."""

    def __init__(self, cluster: SimCluster, name: str) -> None:
        self.name = name
        self._cluster = cluster
        self._random = cluster.stream(f"reader {name}")
        self._target = self._random.choice(cluster.members).member_id
        self._position: int | None = None
        """As it was told; None: whoever takes over has to ask."""
        self._last_index = -1
        """Of the entry that named it last, as it was told with the position."""
        self._seen_index = -1
        """Up to where it knows the log."""
        self._late: ReaderMove | None = None
        """Refused, as said of an older log: it is said once more."""

    def work(self) -> None:
        cluster = self._cluster
        if not cluster.clients_work:
            return
        request = self.ask(self._late or self._draw())

        def go_on() -> None:
            if request.outcome is None and cluster.now_ms - request.called_ms < PATIENCE_MS:
                cluster.at(EVERY_MS / 4, go_on)
                return
            if not isinstance(request.outcome, MovedReader):
                self._target = self._random.choice(cluster.members).member_id
                if isinstance(request.outcome, NotLeader) and request.outcome.leader_id:
                    self._target = request.outcome.leader_id
            self.work()

        cluster.at(self._random.expovariate(1 / EVERY_MS), go_on)

    def _draw(self) -> ReaderMove:
        draw, name, at, seen = self._random, self.name, self._position, self._seen_index
        what = draw.random()
        if at is None or what < 0.15:
            hold = draw.choice((None, Hold.NONE, Hold.READER, Hold.READER, Hold.ARCHIVE))
            if self._is_archived and name == "audit":
                hold = Hold.ARCHIVE
            return ReaderMove(name, hold=hold, opens=True, seen_index=seen)
        if what < 0.2:
            return ReaderMove(name, ends=True, seen_index=seen)
        if what < 0.3:
            back = max(0, at - draw.randint(0, 20))
            return ReaderMove(name, back, seeks_from=at, last_index=self._last_index)
        return self._with_chain(ReaderMove(name, at + draw.randint(0, 15), seen_index=seen))

    @property
    def _is_archived(self) -> bool:
        return self._cluster.profile.storage.retention == "archived"

    def _with_chain(self, move: ReaderMove) -> ReaderMove:
        """As who holds as an archive says it."""
        member = self._cluster.member(self._target)
        if not (self._is_archived and member.is_up) or move.position is None:
            return move
        try:
            chain = member.node.store.point_on_disk(move.position - 1).chain
        except (LedgerError, StoreFailure):
            return move
        return move._replace(last_chain=chain ^ (self._random.random() < OF_ANOTHER_LOG))

    def ask(self, move: ReaderMove) -> ClientMove:
        """What comes of it appears in the result as time passes."""
        cluster = self._cluster
        request = ClientMove(move, cluster.now_ms)
        cluster.notify("reader_asked", request)
        member = cluster.member(self._target)
        process = member.process

        def arrive() -> None:
            if member.process == process and member.is_up:
                member.enter(lambda: member.node.readers.move(move, hear))

        def hear(outcome: MoveOutcome) -> None:
            cluster.at(self._random.uniform(0.05, 2.0), lambda: self._answered(request, outcome))

        cluster.at(self._random.uniform(0.05, 2.0), arrive)
        if self._random.random() < COPIES:
            # A proxy has kept it: it arrives once more, and nobody waits for what comes of it.
            cluster.at(self._random.uniform(*COPY_MS), partial(self.copy, move))
        return request

    def copy(self, move: ReaderMove) -> None:
        """It arrives once more, at whoever is believed to lead by then."""
        member = self._cluster.member(self._target)
        if member.is_up:
            self._cluster.trace.count("reader: a late copy")
            member.enter(lambda: member.node.readers.move(move, self._copy_answered))

    def _copy_answered(self, outcome: MoveOutcome) -> None:
        self._cluster.trace.count(f"reader: a late copy: {type(outcome).__name__}")

    def _answered(self, request: ClientMove, outcome: MoveOutcome) -> None:
        cluster = self._cluster
        request.outcome = outcome
        what = f"reader {request.move.name}: {type(outcome).__name__}"
        cluster.trace.note(cluster.now_ms, self.name, what, lambda: str(outcome))
        cluster.trace.count(f"reader: {type(outcome).__name__}")
        is_known = isinstance(outcome, MovedReader) and not request.move.ends
        self._position = self._late = None
        if isinstance(outcome, MovedReader):
            self._seen_index = outcome.seen_index
        elif isinstance(outcome, ReaderMoved) and request.move.seen_index is not None:
            self._seen_index = outcome.committed_index
            self._late = request.move._replace(seen_index=self._seen_index)
        if is_known and isinstance(outcome, MovedReader):
            self._position, self._last_index = outcome.position, outcome.last_index
        cluster.notify("reader_moved", request)
