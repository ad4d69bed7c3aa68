"""BrokerRoles: what a classic broker says of who is master, and to whom it says so unasked."""

from __future__ import annotations

from quorumlog.broker.epochs.epoch_history import Peer
from quorumlog.broker.message_log import Role
from quorumlog.broker.replication.replica import Replica
from quorumlog.broker.serving.broker_session import BrokerSession
from quorumlog.broker.wire.broker_messages import RoleNotice, RoleRequest, RoleResponse

_MASTER, _SLAVE = 0, 1


class BrokerRoles:
    """On the loop's thread."""

    def __init__(self, address: str, replica: Replica | None) -> None:
        """`replica`: None of a broker that stands alone, which is its own master."""
        self._address = address
        self._replica = replica
        self._watchers: dict[BrokerSession, int] = {}

    def take(self, session: BrokerSession, request: RoleRequest) -> None:
        if request.watches:
            self._watchers[session] = request.request_id
        session.answer(self.response(request.request_id))

    def lost(self, session: BrokerSession) -> None:
        self._watchers.pop(session, None)

    def changed(self) -> None:
        """The role, the master or the epoch."""
        state = self.response(0)
        for session, request_id in list(self._watchers.items()):
            session.answer(
                RoleNotice(
                    request_id=request_id,
                    role=state.role,
                    broker_id=state.broker_id,
                    term=state.term,
                    master=state.master,
                )
            )

    def response(self, request_id: int) -> RoleResponse:
        replica = self._replica
        if replica is None:
            return RoleResponse(
                request_id=request_id,
                member_id=self._address,
                role=Role.ASYNC_MASTER.value,
                broker_id=_MASTER,
                term=0,
                master=self._address,
                brokers=[(self._address, _MASTER, self._address)],
            )
        # A master that may acknowledge nothing is none for a client: another one may be it by now.
        is_master = replica.takes_messages
        told = replica.master
        master = replica.me if is_master else told or Peer(id="")
        listed = replica.history.copy_list
        peers = {} if listed is None else {peer.id: peer.address for peer in listed.members}
        if told is not None and told.id:
            peers[told.id] = told.address
        peers[replica.id] = replica.me.address
        return RoleResponse(
            request_id=request_id,
            member_id=replica.id,
            role=replica.role.value if is_master else Role.SLAVE.value,
            broker_id=_MASTER if is_master else _SLAVE,
            term=replica.epoch,
            master=master.address,
            brokers=[
                (peer_id, _MASTER if peer_id == master.id else _SLAVE, address)
                for peer_id, address in sorted(peers.items())
            ],
        )
