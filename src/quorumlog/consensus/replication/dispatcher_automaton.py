"""The automaton of an EntryDispatcher, from which the picture in the documents is made."""

from __future__ import annotations

from enum import Enum


class DispatcherState(Enum):
    COMPARE = "COMPARE"
    TRUNCATE = "TRUNCATE"
    APPEND = "APPEND"
    COMMIT = "COMMIT"
    INSTALL = "INSTALL"


class Event(Enum):
    BEGUN = "a term begins, or a directory is connected that was away when it began"
    MISSED = "the follower does not hold the compared entry"
    MATCHED = "the compared entry is held, and nothing above it is known to differ"
    MATCHED_BELOW_CONFLICT = "the compared entry is held, the one above it is another"
    CUT = "the follower has cut what contradicts ours above the match, or leaves that to the next push"
    INCONSISTENT = "the follower does not hold the entry before a push or a cut"
    LOG_GREW = "there are entries to send, or to send again"
    CAUGHT_UP = "everything has been sent"
    BELOW_BEGIN = "what the follower lacks is no longer in this log: it gets the start"
    INSTALLED = "the follower has the start, holds it already, or comes back"


TRANSITIONS: dict[tuple[DispatcherState, Event], DispatcherState] = {
    (DispatcherState.COMPARE, Event.MISSED): DispatcherState.COMPARE,
    (DispatcherState.COMPARE, Event.MATCHED): DispatcherState.APPEND,
    (DispatcherState.COMPARE, Event.MATCHED_BELOW_CONFLICT): DispatcherState.TRUNCATE,
    (DispatcherState.COMPARE, Event.BELOW_BEGIN): DispatcherState.INSTALL,
    (DispatcherState.INSTALL, Event.INSTALLED): DispatcherState.COMPARE,
    (DispatcherState.TRUNCATE, Event.CUT): DispatcherState.APPEND,
    (DispatcherState.TRUNCATE, Event.INCONSISTENT): DispatcherState.COMPARE,
    (DispatcherState.APPEND, Event.CAUGHT_UP): DispatcherState.COMMIT,
    (DispatcherState.APPEND, Event.LOG_GREW): DispatcherState.APPEND,
    (DispatcherState.APPEND, Event.INCONSISTENT): DispatcherState.COMPARE,
    (DispatcherState.COMMIT, Event.LOG_GREW): DispatcherState.APPEND,
    (DispatcherState.COMMIT, Event.INCONSISTENT): DispatcherState.COMPARE,
    **{(state, Event.BEGUN): DispatcherState.COMPARE for state in DispatcherState},
}
