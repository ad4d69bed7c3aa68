"""HandOver: a leader on which a state machine does not run hands over to a member on which it does.

It has stopped here, or this member was started without it. The leader asks the others which machines run
there, and how far they have come. Only one that is past the entry at which the machine has stopped here
takes over: where a mistake of the application stops every member at the same entry, leadership stays
where it is. Nor does one take over that lacks a machine of this leader: it would hand over again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from quorumlog.consensus.messages import MachinesRequest, MachinesResponse
from quorumlog.consensus.raft_node import RaftNode
from quorumlog.consensus.ready import Envelope, Role
from quorumlog.entry import Replica
from quorumlog.node.installing import MACHINES_LEVEL
from quorumlog.node.ports import Host

NEVER = float("inf")
ASK_INTERVAL_MS = 1_000
MOST_INTERVAL_MS = 60_000
"""Reached by doubling: an application's mistake may stay for long."""


class MachineHoldings(NamedTuple):
    holds: Mapping[str, int]
    """By machine that is known here: the last entry whose effects were ever here, as files tell."""
    begin_index: int
    """The entry before the first of the log here."""


class HandOver:
    def __init__(
        self,
        replica: Replica,
        raft: RaftNode,
        host: Host,
        needs: Callable[[], Mapping[str, int]],
        running: Callable[[], Mapping[str, int]],
        transfer: Callable[[str], None],
        holds: Callable[[], MachineHoldings],
    ) -> None:
        """`needs`: machines that do not run here, and the entry that a successor has to have applied;
        `running`: those that do, and what they have applied; `holds`: for whoever asks."""
        self._replica = replica
        self._raft = raft
        self._host = host
        self._needs = needs
        self._running = running
        self._transfer = transfer
        self._holds = holds
        self._interval_ms = float(ASK_INTERVAL_MS)
        self._next_ms = NEVER

    def tick(self, now_ms: float) -> None:
        if self._raft.role is not Role.LEADER or not self._needs():
            self._next_ms, self._interval_ms = NEVER, float(ASK_INTERVAL_MS)
        elif self._next_ms == NEVER:
            self._next_ms = now_ms
        if now_ms < self._next_ms:
            return
        self._next_ms = now_ms + self._interval_ms
        self._interval_ms = min(2 * self._interval_ms, MOST_INTERVAL_MS)
        too_old = self._host.members_below(MACHINES_LEVEL)
        for peer in self._raft.status().peers:
            if peer.is_voter and peer.replica.member_id not in too_old:
                request = MachinesRequest(sender=self._replica, term=self._raft.term)
                self._host.send(Envelope(peer.replica, request))

    def next_wakeup_ms(self) -> float:
        return self._next_ms

    def on_request(self, request: MachinesRequest) -> None:
        holdings = self._holds()
        response = MachinesResponse(
            sender=self._replica,
            term=self._raft.term,
            applied=tuple(self._running().items()),
            holds=tuple(holdings.holds.items()),
            begin_index=holdings.begin_index,
        )
        self._host.send(Envelope(request.sender, response))

    def on_response(self, response: MachinesResponse) -> None:
        needs, applied = self._needs(), dict(response.applied)
        if (
            needs
            and self._raft.role is Role.LEADER
            and response.term == self._raft.term
            and all(applied.get(name, -1) >= index for name, index in needs.items())
            and applied.keys() >= self._running().keys()
        ):
            self._transfer(response.sender.member_id)
