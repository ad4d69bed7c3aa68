"""LogStates: a log's state at its end and at the committed index, and the control entries in between.

The state advances when entries are appended, on every member alike. A truncation leads back to the
committed state and folds once more what is left; there is no undo list.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from quorumlog.log_state.control_entries import (
    ControlEntry,
    Membership,
    OpenProducer,
    ReaderPositions,
)
from quorumlog.log_state.log_state import LogState, Reader, UnknownState, advanced, outdates

AnyState = LogState | UnknownState


def folded(state: AnyState, entries: Sequence[ControlEntry]) -> AnyState:
    for entry in entries:
        if isinstance(state, UnknownState):
            return state
        state = advanced(state, entry)
    return state


class LogStates:
    def __init__(self, committed: AnyState, committed_index: int) -> None:
        """`committed`: of the log up to `committed_index`; nothing above is appended yet."""
        self.committed = committed
        self.appended = committed
        """Of the whole log."""
        self.readers_changed_index = committed_index
        """No entry above it has ended a reader, led it back or changed its hold. What lies below where
        this object began is not known; never behind the end of the log, whatever was cut."""
        self.producers_forgotten_index = committed_index
        """The same of entries that forget a producer."""
        self._committed_index = committed_index
        self._entries: list[ControlEntry] = []
        """Above the committed index."""

    @property
    def committed_index(self) -> int:
        return self._committed_index

    def memberships(self) -> list[tuple[int, Membership | None]]:
        """(index of its entry, membership) of the committed one and of each behind it, where the state
        is known; None: the founding list."""
        committed = self.committed
        assert isinstance(committed, LogState), committed
        behind = [(e.index, e.body) for e in self._entries if isinstance(e.body, Membership)]
        return [(committed.membership_index, committed.membership), *behind]

    def append(self, first_index: int, controls: Sequence[ControlEntry]) -> None:
        """Entries from `first_index` on, `controls` among them, are appended."""
        assert first_index > self._committed_index, (first_index, self._committed_index)
        assert not self._entries or self._entries[-1].index < first_index, (
            self._entries[-1],
            first_index,
        )
        assert not controls or controls[0].index >= first_index, (controls[0], first_index)
        if controls:
            self._entries.extend(controls)
            self._note_readers(controls)
            self._note_forgotten(controls)
            self.appended = folded(self.appended, controls)

    def _note_readers(self, controls: Sequence[ControlEntry]) -> None:
        said = [entry for entry in controls if isinstance(entry.body, ReaderPositions)]
        if not said or not isinstance(self.appended, LogState):
            return
        readers = {reader.name: reader for reader in self.appended.readers}
        for entry in said:
            assert isinstance(entry.body, ReaderPositions), entry
            for position in entry.body.readers:
                old = readers.pop(position.name, None)
                if outdates(old, position):
                    self.readers_changed_index = entry.index
                if not position.ends:
                    readers[position.name] = Reader(
                        position.name, position.position, position.hold, entry.index
                    )

    def _note_forgotten(self, controls: Sequence[ControlEntry]) -> None:
        for entry in controls:
            if isinstance(entry.body, OpenProducer) and entry.body.forgets:
                self.producers_forgotten_index = entry.index

    def truncate_from(self, index: int) -> None:
        """Entries from `index` on, all above the committed one, are gone."""
        assert index > self._committed_index, (index, self._committed_index)
        self.readers_changed_index = min(self.readers_changed_index, index - 1)
        self.producers_forgotten_index = min(self.producers_forgotten_index, index - 1)
        if self._entries and self._entries[-1].index >= index:
            self._entries = list(takewhile(lambda entry: entry.index < index, self._entries))
            self.appended = folded(self.committed, self._entries)

    def commit(self, index: int) -> None:
        """Entries up to `index` are committed."""
        assert index >= self._committed_index, (index, self._committed_index)
        self._committed_index = index
        if self._entries and self._entries[0].index <= index:
            done = list(takewhile(lambda entry: entry.index <= index, self._entries))
            del self._entries[: len(done)]
            self.committed = folded(self.committed, done) if self._entries else self.appended
