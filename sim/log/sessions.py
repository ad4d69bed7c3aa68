"""What a session of the log's port asks of the loop that a member runs in, in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from quorumlog.consensus.ready import Role
from quorumlog.errors import DirectoryDamaged, StoreFailure
from quorumlog.measures import Requests
from quorumlog.net.frame import Frame
from quorumlog.server.waiting_reads import WaitingReads
from quorumlog.testing.member import SimMember
from quorumlog.wire.client_messages import MemberInfo, StatusResponse


def address_of(member: SimMember) -> str:
    return next(str(each) for each in member.config.members if each.member_id == member.member_id)


class SessionDriver:
    """Of one process of a member."""

    stopped = None

    def __init__(self, member: SimMember) -> None:
        self.member = member
        self.process = member.process
        self.node = member.node
        self.config = member.node.config
        self.reads = WaitingReads(member.node, self._read_later)
        self.status = SimpleNamespace(response=self._status)
        self.requests = Requests()
        self.events = SimpleNamespace(refused=lambda outcome: None)

    @property
    def is_up(self) -> bool:
        return self.member.is_up and self.member.process == self.process

    def enter(self, connection: Any, frame: Frame) -> None:
        connection.session.take(cast(Any, self), frame)  # it has come in a turn

    def schedule(self) -> None: ...

    def _read_later(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        def read(result: Any) -> None:
            is_lost = isinstance(result, StoreFailure) and not isinstance(result, DirectoryDamaged)
            if not (is_lost and self.member.cluster.faults.disks.may_fail(self.member)):
                done(result)

        self.member.read_later(work, read)

    def _status(self, request_id: int) -> StatusResponse:
        raft, config = self.node.raft, self.config
        addresses = {each.member_id: address_of(each) for each in self.member.cluster.members}
        leader_id = raft.leader.member_id if raft.leader is not None else ""
        return StatusResponse(
            request_id=request_id,
            group=config.group,
            id=config.member_id,
            address=addresses[config.member_id],
            directory_id="",
            cluster_id="",
            role="leader" if raft.role is Role.LEADER else "follower",
            term=raft.term,
            leader_id=leader_id,
            leader_address=addresses.get(leader_id, ""),
            ledger_begin_index=0,
            ledger_end_index=raft.ledger_end.index,
            durable_index=0,
            committed_index=0,
            flush="sync",
            members=tuple(MemberInfo(id=each, address=at) for each, at in addresses.items()),
        )
