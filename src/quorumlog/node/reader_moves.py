"""ReaderMoves: moves of named readers, on their way into the log.

The moves of a tenth of a second share one READER entry, and are answered once that is committed. They
are judged by the state of the whole log before that entry, so that only valid moves are written. A
refusal, or a reader already at its position, writes nothing and is an answer about the log: it waits
until a majority has confirmed the leader, and the log it was judged by is committed.

An abandoned connection may still deliver its bytes. So a move carries the log end that its client knew,
and is refused if a reader was ended, moved back or held otherwise since: the client, given the newer
end, repeats it, and a late copy does nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from quorumlog.entry import EntryId, EntryKind
from quorumlog.errors import (
    BadRequest,
    IndexOutOfRange,
    LedgerError,
    OutcomeUnknown,
    Overloaded,
    ReaderMoved,
    TooManyReaders,
    UnknownReader,
)
from quorumlog.log_state.control_entries import (
    CHAIN_LEVEL,
    MOST_IN_A_BODY,
    READER_NAME,
    READER_NAMES,
    SKIPPED_LEVEL,
    ControlEntry,
    Hold,
    ReaderPosition,
    ReaderPositions,
)
from quorumlog.log_state.log_state import MOST_READERS, LogState, Reader, advanced, outdates
from quorumlog.node.log_states import LogStateKeeper
from quorumlog.node.ports import Member

NEVER = float("inf")
JOIN_MS = 100
"""At most one READER entry in so long; the first after a pause is written at once."""
MOST_WAITING = 10_000
"""Of moves not written yet."""
RETRY_FULL_MS = JOIN_MS


class ReaderMove(NamedTuple):
    """A request of one reader; see `wire.client_messages.MoveReaderRequest`."""

    name: str
    position: int | None = None
    hold: Hold | None = None
    seeks_from: int | None = None
    ends: bool = False
    opens: bool = False
    last_index: int | None = None
    seen_index: int | None = None
    last_chain: int | None = None
    skipped: tuple[int, int] | None = None


class MovedReader(NamedTuple):
    """State of a reader after its move."""

    position: int
    hold: Hold
    last_index: int = -1
    """Of the entry that named it last."""
    seen_index: int = -1
    """Up to where the log is that this was judged by."""


MoveOutcome = MovedReader | LedgerError
MoveCallback = Callable[[MoveOutcome], None]


class _WaitingMove(NamedTuple):
    move: ReaderMove
    done: MoveCallback
    owner: Any


class _Written(NamedTuple):
    entry: EntryId
    answers: list[tuple[MoveCallback, MovedReader]]


class _Judged(NamedTuple):
    """Nothing is written of it: it is refused, or changes nothing."""

    waiting: _WaitingMove
    outcome: MoveOutcome


class ReaderMoves:
    def __init__(self, member: Member, log_state: LogStateKeeper) -> None:
        self._member = member
        self._store = member.store
        self._log_state = log_state
        self.queue: list[_WaitingMove] = []
        self._written: list[_Written] = []
        """By index."""
        self._judged: list[tuple[int, _Judged]] = []
        """(index, answer): because of the log up to this entry, once it is committed."""
        self._next_ms = -NEVER

    def move(self, move: ReaderMove, done: MoveCallback, owner: object = None) -> None:
        """`done` gets the reader's position once committed, or the refusal; nothing if `discard` comes
        first."""
        refusal = self._member.refusal_unless_leading()
        if refusal is not None:
            done(refusal)
        elif not re.match(READER_NAME, move.name):
            done(BadRequest(READER_NAMES.format(move.name)))
        elif len(self.queue) >= MOST_WAITING:
            full = f"{MOST_WAITING} moves of readers wait to be written"
            done(Overloaded(full, retry_after_ms=RETRY_FULL_MS))
        else:
            self.queue.append(_WaitingMove(move, done, owner))

    def discard(self, owner: object) -> None:
        self.queue = [waiting for waiting in self.queue if waiting.owner is not owner]
        self._judged = [each for each in self._judged if each[1].waiting.owner is not owner]

    def lose(self, refusal: LedgerError) -> None:
        queue, written = self.queue, self._written
        queue += [judged.waiting for _, judged in self._judged]
        self.queue, self._written, self._judged = [], [], []
        for waiting in queue:
            waiting.done(refusal)
        for entry in written:
            for done, _ in entry.answers:
                done(OutcomeUnknown("leadership was lost before the move of the reader was committed"))

    def commit(self, index: int) -> None:
        """Everything up to `index` is committed, of a term that this member leads."""
        while self._written and self._written[0].entry.index <= index:
            for done, moved in self._written.pop(0).answers:
                done(moved)
        judged, self._judged = self._judged, []
        for at, each in judged:
            self._answer_once_committed(each, at, index)

    def next_wakeup_ms(self) -> float:
        return self._next_ms if self.queue else NEVER

    def tick(self, now_ms: float) -> None:
        if not self.queue or now_ms < self._next_ms:
            return
        try:
            state = self._log_state.appended_state()
        except LedgerError as error:
            queue, self.queue = self.queue, []
            for waiting in queue:
                waiting.done(error)
            return
        self._next_ms = now_ms + JOIN_MS
        positions, answers, judged = self._judge(state)
        if positions:
            try:
                entry = self._member.propose_control(ReaderPositions(tuple(positions)))
            except LedgerError as error:
                for done in [done for done, _ in answers] + [each.waiting.done for each in judged]:
                    done(error)
                return
            answers = [
                (done, moved._replace(last_index=entry.index, seen_index=entry.index))
                for done, moved in answers
            ]
            self._written.append(_Written(entry, answers))
        for each in judged:
            confirmed = partial(self._confirmed, each, self._store.end.index)
            self._member.confirm_leadership(confirmed, each.waiting.owner)

    def _confirmed(self, judged: _Judged, index: int, refusal: LedgerError | None) -> None:
        if refusal is not None:
            judged.waiting.done(refusal)
        else:
            self._answer_once_committed(judged, index, self._log_state.committed_index)

    def _answer_once_committed(self, judged: _Judged, index: int, committed_index: int) -> None:
        if index <= committed_index:
            judged.waiting.done(judged.outcome)
        else:
            self._judged.append((index, judged))

    def _judge(
        self, state: LogState
    ) -> tuple[list[ReaderPosition], list[tuple[MoveCallback, MovedReader]], list[_Judged]]:
        """As much of the queue as one entry takes: what it says, and the answers to the moves."""
        positions: list[ReaderPosition] = []
        answers = []
        judged: list[_Judged] = []
        named: set[str] = set()
        taken = 0
        states = self._log_state.states
        assert states is not None, "the state was known a moment ago"
        changed_index = states.readers_changed_index
        for waiting in self.queue:
            if len(positions) == MOST_IN_A_BODY:
                break
            taken += 1
            move = waiting.move
            try:
                position = self._judged_by(state, move, changed_index)
            except LedgerError as error:
                judged.append(_Judged(waiting, error))
                continue
            old = state.reader(move.name)
            if position is not None:
                named.add(move.name)
                if outdates(old, position):
                    changed_index = self._store.end.index + 1
                state = _behind(state, self._store.end.index + 1, position)
                if positions and _takes_the_place_of(position, positions[-1]):
                    positions[-1] = position
                else:
                    positions.append(position)
                old = state.reader(move.name) or old
            moved = MovedReader(0, Hold.NONE)
            if old is not None:
                moved = MovedReader(old.position, old.hold, old.last_index, self._store.end.index)
            if move.name in named:
                answers.append((waiting.done, moved))
            else:
                judged.append(_Judged(waiting, moved))
        del self.queue[:taken]
        return positions, answers, judged

    def _judged_by(self, state: LogState, move: ReaderMove, changed_index: int) -> ReaderPosition | None:
        """What is written of it; None: it changes nothing. Raises why not."""
        old = state.reader(move.name)
        if old is None and not move.opens:
            raise UnknownReader(f"no reader {move.name} is known here: it was never made, or was ended")
        if move.ends:
            self._refuse_late(move, changed_index)
            return ReaderPosition(move.name, old.position if old is not None else 0, ends=True)
        if old is None and len(state.readers) >= MOST_READERS:
            raise TooManyReaders(
                f"the log keeps {MOST_READERS} readers by name, and {move.name} would be one more:"
                " forget one that is not needed"
            )
        first_kept = max(state.keep_from_index, self._store.begin.index + 1)
        position = self._position_of(move, old, first_kept)
        hold = move.hold
        if hold is None:
            hold = old.hold if old is not None else Hold.NONE
        is_seek = old is not None and move.seeks_from is not None and position != old.position
        if (hold is not Hold.NONE or is_seek) and position < first_kept:
            self._refuse(move, position, first_kept, "may be deleted by now: seek to a later one")
        if position > self._store.end.index + 1:
            self._refuse(move, position, first_kept, "lies after the end of the log")
        last_chain = None
        if position == move.position and self._log_state.may_say(CHAIN_LEVEL):
            last_chain = move.last_chain
        skipped = self._newly_skipped(move, old)
        if old is not None and (position, hold) == (old.position, old.hold):
            says_more = last_chain not in (None, old.last_chain) or skipped is not None
            if not says_more:
                return None
        self._refuse_late(move, changed_index)
        seeks_from = move.seeks_from if is_seek else None
        return ReaderPosition(
            move.name, position, hold, seeks_from, last_chain=last_chain, skipped=skipped
        )

    def _newly_skipped(self, move: ReaderMove, old: Reader | None) -> tuple[int, int] | None:
        """What it says of that and the log does not know yet, where every member could read it. Raises
        IndexOutOfRange."""
        skipped = move.skipped
        if skipped is None or not self._log_state.may_say(SKIPPED_LEVEL):
            return None
        if skipped[1] > self._store.end.index + 1:
            raise IndexOutOfRange(
                f"reader {move.name} cannot skip up to {skipped[1]}, after the end of the log (the last"
                f" entry is {self._store.end.index})",
                ledger_begin_index=self._store.begin.index + 1,
                committed_index=self._log_state.committed_index,
            )
        is_known = old is not None and old.with_skipped(*skipped) == old
        return None if is_known else skipped

    def _refuse_late(self, move: ReaderMove, changed_index: int) -> None:
        if move.seen_index is not None and move.seen_index < changed_index:
            raise ReaderMoved(
                f"the request about reader {move.name} was made when the log ended at entry"
                f" {move.seen_index}, and since then, in entry {changed_index} or before, a reader was"
                " removed, moved back or held otherwise: nothing was changed; look up its position",
                # What this entry itself says is on its way, and committed before anybody is told.
                committed_index=max(self._store.end.index, changed_index),
            )

    def _position_of(self, move: ReaderMove, old: Reader | None, first_kept: int) -> int:
        if old is None:
            return first_kept if move.position is None else move.position
        if move.position is None:
            return old.position
        if move.seeks_from is None:
            return max(old.position, move.position)
        if old.position == move.position:
            return old.position
        if old.position != move.seeks_from:
            raise ReaderMoved(
                f"reader {move.name} is at {old.position}, not at {move.seeks_from}: nothing"
                " was changed; look up its position, and seek from there"
            )
        if move.last_index not in (None, old.last_index):
            # It has left that place and come back: this may be a late copy of what it did before.
            raise ReaderMoved(
                f"reader {move.name} is at {old.position} since entry {old.last_index}, not"
                f" since entry {move.last_index}: nothing was changed; look up its position, and"
                " seek again"
            )
        return move.position

    def _refuse(self, move: ReaderMove, position: int, first_kept: int, why: str) -> None:
        raise IndexOutOfRange(
            f"reader {move.name} cannot be at {position}, which {why} (entries from {first_kept} on"
            f" are kept, the last is {self._store.end.index})",
            ledger_begin_index=first_kept,
            committed_index=self._log_state.committed_index,
        )


def _takes_the_place_of(position: ReaderPosition, before: ReaderPosition) -> bool:
    """Nothing is lost of two plain moves forward of one reader if only the second is written."""
    is_plain = position.seeks_from is None and before.seeks_from is None
    if before.skipped is not None or (before.last_chain is not None and position.last_chain is None):
        return False
    return is_plain and not position.ends and not before.ends and position.name == before.name


def _behind(state: LogState, index: int, position: ReaderPosition) -> LogState:
    entry = ControlEntry(index, EntryKind.READER, ReaderPositions((position,)))
    state_behind = advanced(state, entry)
    assert isinstance(state_behind, LogState), state_behind
    return state_behind
