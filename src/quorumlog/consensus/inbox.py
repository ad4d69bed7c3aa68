"""Inbox: checks each message's term, then dispatches it to its handler.

A message that only leaders send is refused or makes this member follow its sender, a known member or
not. Of a reply of a higher term only the term is used; one of a lower term is dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from quorumlog.consensus.elector import LeaderElector
from quorumlog.consensus.forming import Forming
from quorumlog.consensus.handler import EntryHandler
from quorumlog.consensus.leadership_transfer import LeadershipTransfer
from quorumlog.consensus.member_state import MemberState
from quorumlog.consensus.messages import (
    AnyMessage,
    FormRequest,
    FormResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    PushEntryRequest,
    PushEntryResponse,
    PushResult,
    ReadIndexRequest,
    ReadIndexResponse,
    TakeLeadershipRequest,
    VoteRequest,
    VoteResponse,
)
from quorumlog.consensus.reads import LinearizableReads
from quorumlog.consensus.ready import Role
from quorumlog.consensus.replication import Replication
from quorumlog.entry import Replica


class Inbox:
    def __init__(
        self,
        state: MemberState,
        elector: LeaderElector,
        handler: EntryHandler,
        replication: Replication,
        transfer: LeadershipTransfer,
        reads: LinearizableReads,
        forming: Forming,
    ) -> None:
        self._state = state
        self._elector = elector
        self._handler = handler
        self._replication = replication
        self._transfer = transfer
        self._reads = reads
        self.steps: dict[type, Callable[[Any], None]] = {
            FormRequest: forming.on_request,
            FormResponse: forming.on_response,
            VoteRequest: elector.on_vote_request,
            VoteResponse: self._on_vote_response,
            HeartbeatRequest: self._on_heartbeat_request,
            HeartbeatResponse: self._on_heartbeat_response,
            PushEntryRequest: self.on_push_request,
            PushEntryResponse: self._on_push_response,
            TakeLeadershipRequest: self._on_take_leadership,
            ReadIndexRequest: reads.on_question,
            ReadIndexResponse: reads.on_answer,
        }

    def _leads_us(self, sender: Replica, term: int) -> PushResult:
        """The term gate for what only leaders send: SUCCESS if this member now follows the sender."""
        state = self._state
        if state.role is Role.UNFORMED:
            return PushResult.NOT_FORMED
        if term < state.term:
            return PushResult.EXPIRED_TERM
        if term == state.term and state.leader not in (None, sender):
            return PushResult.INCONSISTENT_LEADER
        self._elector.follow(sender, term)
        return PushResult.SUCCESS

    def _adopts_term_of(self, reply: AnyMessage) -> bool:
        """The term gate for replies: True if it is of a higher term, and done with."""
        if reply.term <= self._state.term:
            return False
        if self._elector.adopts_terms_of_replies:
            self._elector.adopt_term(reply.term)
        return True

    def _on_heartbeat_request(self, request: HeartbeatRequest) -> None:
        accepted = self._leads_us(request.sender, request.term) is PushResult.SUCCESS
        if accepted:
            self._handler.on_committed(request.committed_index)
            self._reads.on_heartbeat(request)
        self._elector.on_heartbeat_request(request, accepted=accepted)

    def on_push_request(self, request: PushEntryRequest, refuse: PushResult | None = None) -> None:
        gate = self._leads_us(request.sender, request.term)
        if gate is PushResult.SUCCESS:
            self._handler.on_push(request, refuse)
        else:
            self._handler.refuse(request, gate)

    def _on_take_leadership(self, request: TakeLeadershipRequest) -> None:
        if self._leads_us(request.sender, request.term) is PushResult.SUCCESS:
            self._transfer.cool_down_for(request.sender)
            self._elector.on_take_leadership(request)

    def _on_vote_response(self, response: VoteResponse) -> None:
        if not self._adopts_term_of(response):
            self._elector.on_vote_response(response)

    def _on_heartbeat_response(self, response: HeartbeatResponse) -> None:
        state = self._state
        is_current = state.role is Role.LEADER and response.term == state.term
        if self._adopts_term_of(response) or not is_current:
            return
        counts = self._replication.is_proven(response.sender)
        self._elector.answers.take(response, self._elector.round, counts=counts)
        self._reads.on_round_answered()

    def _on_push_response(self, response: PushEntryResponse) -> None:
        # An unformed member has no term yet; everything else speaks of the term that it answers in.
        state = self._state
        if state.role is not Role.LEADER or response.term != state.term:
            unformed = state.role is Role.LEADER and response.result is PushResult.NOT_FORMED
            if self._adopts_term_of(response) or not unformed:
                return
        self._replication.on_response(response)
        if self._transfer.target is not None:
            self._transfer.ask_if_caught_up()
