"""Confirmations: who waits for a majority to confirm that this member leads, or follows who does."""

from __future__ import annotations

from collections.abc import Callable

from quorumlog.consensus.raft_node import RaftNode
from quorumlog.errors import LedgerError

Confirmed = Callable[[LedgerError | None], None]
"""Gets None, or a refusal: who leads has changed meanwhile."""


class Confirmations:
    def __init__(self, raft: RaftNode) -> None:
        self._raft = raft
        self._waiting: dict[int, tuple[Confirmed, object]] = {}
        """By number of the read: whom to tell, and who asked."""

    def request(self, done: Confirmed, owner: object) -> None:
        """Of a leader."""
        self._waiting[self._raft.request_read()] = done, owner

    def request_read(self, done: Confirmed, owner: object = None) -> None:
        """As `LedgerNode.confirm_leadership`, of any member: one that follows asks its leader, and tells
        once it has committed so far itself."""
        try:
            number = self._raft.reads.request()
        except LedgerError as error:
            done(error)
        else:
            self._waiting[number] = done, owner

    def grant(self, number: int) -> None:
        if number in self._waiting:
            done, _ = self._waiting.pop(number)
            done(None)

    def refuse(self, refusal: LedgerError) -> None:
        waiting, self._waiting = self._waiting, {}
        for done, _ in waiting.values():
            done(refusal)

    def discard(self, owner: object) -> None:
        self._waiting = {n: one for n, one in self._waiting.items() if one[1] is not owner}
