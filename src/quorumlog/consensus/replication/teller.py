"""Teller: what a leader says to one member without entries, in its own term."""

from __future__ import annotations

from quorumlog.consensus.member_state import MemberState
from quorumlog.consensus.messages import PushEntryRequest, PushType
from quorumlog.consensus.outbox import Outbox
from quorumlog.entry import Replica


class Teller:
    def __init__(self, state: MemberState, outbox: Outbox, to: Replica) -> None:
        self._state = state
        self._outbox = outbox
        self._to = to

    def compare(self, index: int, number: int) -> None:
        self._say(PushType.COMPARE, index, number)

    def truncate(self, last_index: int, number: int) -> None:
        """Both ids at the cut are named: the last entry that may stay and the first of ours above it. A
        follower that holds both cuts nothing, so a late copy of this message does no harm."""
        cut = self._state.runs.id_at(last_index + 1)
        self._say(PushType.TRUNCATE, last_index, number, cut.index, ((cut.index, cut.term),))

    def commit(self, held_index: int, number: int = 0, next_index: int = -1) -> None:
        """With a number it asks whether all below `next_index` has arrived."""
        self._say(PushType.COMMIT, held_index, number, next_index)

    def _say(
        self,
        push: PushType,
        previous_index: int,
        number: int,
        first_index: int = -1,
        runs: tuple[tuple[int, int], ...] = (),
    ) -> None:
        state = self._state
        message = PushEntryRequest(
            sender=state.member,
            term=state.term,
            push=push,
            committed_index=state.committed_index,
            number=number,
            previous=state.runs.id_at(previous_index),
            first_index=first_index,
            term_runs=runs,
        )
        self._outbox.send(self._to, message)
