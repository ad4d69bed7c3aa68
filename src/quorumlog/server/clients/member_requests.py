"""What a client wants changed about the members."""

from __future__ import annotations

from quorumlog.errors import BadRequest, LedgerError
from quorumlog.net.connection import Connection
from quorumlog.net.errors import error_response
from quorumlog.node.member_changes import MemberChange, MemberOutcome, MemberVerb
from quorumlog.server.node_driver import NodeDriver
from quorumlog.wire.client_messages import ChangeMembersRequest, ChangeMembersResponse


def change_members(driver: NodeDriver, request: ChangeMembersRequest, connection: Connection) -> None:
    """Answered once it is committed, or refused."""

    def done(outcome: MemberOutcome) -> None:
        if isinstance(outcome, LedgerError):
            connection.send(driver.config.group, error_response(request.request_id, outcome))
            return
        response = ChangeMembersResponse(
            request_id=request.request_id,
            voters=tuple(voter.member_id for voter in outcome.new),
            learners=tuple(learner.member_id for learner in outcome.learners),
        )
        connection.send(driver.config.group, response)

    if request.verb not in tuple(MemberVerb):
        done(BadRequest(f"{request.verb!r} is none of {', '.join(MemberVerb)}"))
        return
    verb = MemberVerb(request.verb)
    change = MemberChange(verb, request.member_id, request.address, request.dry_run)
    driver.change_members(change, done)
