"""What the leader is asked to change about the members, as `verbs` are written."""

from __future__ import annotations

from typing import NamedTuple

from quorumlog.client.result_streams import Step, Verb, request_of
from quorumlog.errors import BadRequest
from quorumlog.net.rpc.calls import LEADER, response_of
from quorumlog.wire.client_messages import ChangeMembersRequest, ChangeMembersResponse


class Members(NamedTuple):
    """Ids of those who are in a group, once a change of it is committed."""

    voters: tuple[str, ...]
    learners: tuple[str, ...]


def change_members(
    verb: str, member_id: str, address: str, dry_run: bool, timeout_ms: float
) -> Verb[Members]:
    for name, text in (("verb", verb), ("member_id", member_id), ("address", address)):
        if not isinstance(text, str) or (not text and name != "address"):
            raise BadRequest(f"{name} must be a text, not {text!r}")
    if verb == "add" and ("=" in member_id or "," in member_id or member_id.split() != [member_id]):
        # Nobody would ever answer under it, and the command would wait.
        raise BadRequest(f"{member_id!r} is no id of a member: it has no blanks, commas and =")
    message = ChangeMembersRequest(verb=verb, member_id=member_id, address=address, dry_run=dry_run)
    request = request_of(message, LEADER, timeout_ms)
    yield Step((request,), (request,))
    response = response_of(request, ChangeMembersResponse)
    return Members(response.voters, response.learners)
