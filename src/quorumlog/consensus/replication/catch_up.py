"""CatchUp: which members that do not vote yet could, by rounds (Ongaro's thesis, 4.2.1).

A round ends when the member holds what the log's end was when it began, and the next one begins. Who
ends one within an election time-out, and lacks few bytes, keeps up with what is appended: were it a
voter, a commit would not have to wait long for it."""

from __future__ import annotations

from typing import NamedTuple

from quorumlog.config import ConsensusConfig
from quorumlog.consensus.member_state import MemberState
from quorumlog.entry import Replica


class _Round(NamedTuple):
    begun_ms: float
    stop_index: int
    """It ends with this entry."""
    follows_quick_one: bool


class CatchUp:
    """Of the term that this member leads."""

    def __init__(self, config: ConsensusConfig, state: MemberState) -> None:
        self._config = config
        self._state = state
        self._rounds: dict[Replica, _Round] = {}

    def begin(self) -> None:
        self._rounds.clear()

    def look(self, replica: Replica, held_index: int) -> None:
        """With every heartbeat: it is connected, and known to hold the log up to there."""
        now_ms, end_index = self._state.now_ms, self._state.runs.end_index
        running = self._rounds.get(replica)
        if running is None:
            self._rounds[replica] = _Round(now_ms, end_index, False)
        elif held_index >= running.stop_index:
            self._rounds[replica] = _Round(now_ms, end_index, self._is_quick(running))
        elif not self._is_quick(running):
            self._rounds[replica] = running._replace(follows_quick_one=False)

    def _is_quick(self, running: _Round) -> bool:
        return self._state.now_ms - running.begun_ms <= self._config.election_timeout_ms

    def forget(self, replica: Replica) -> None:
        """Its connection is lost."""
        self._rounds.pop(replica, None)

    def keeps_up(self, replica: Replica) -> bool:
        running = self._rounds.get(replica)
        return running is not None and running.follows_quick_one
