"""ReplicaRequests: what a client asks of a broker as master or slave, and makes it be."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from quorumlog.broker.epochs.epoch_history import Peer, RunKey
from quorumlog.broker.errors import NotReplicated, SwitchRefused
from quorumlog.broker.message_log import Role
from quorumlog.broker.replication.replica import Replica
from quorumlog.broker.replication.roles import SlaveState
from quorumlog.broker.replication.service.ha_service import HAService
from quorumlog.broker.wire.broker_messages import (
    PeerRow,
    ReplicaRequest,
    ReplicaResponse,
    TailRow,
)
from quorumlog.errors import BadRequest, ConfigError, LedgerError


class ReplicaRequests:
    """On the loop's thread; what blocks runs on the service's thread for it, in order."""

    def __init__(
        self, service: HAService | None, loop: asyncio.AbstractEventLoop, *, is_by_hand: bool = True
    ) -> None:
        """`is_by_hand`: False where a coordinator says who leads."""
        self._service = service
        self._is_by_hand = is_by_hand
        self._loop = loop

    def take(
        self, request: ReplicaRequest, answer: Callable[[ReplicaResponse | LedgerError], None]
    ) -> None:
        service = self._service
        if service is None:
            answer(
                NotReplicated(
                    "this broker is neither master nor slave: start it with quorumlog broker serve"
                    " --role"
                )
            )
            return
        replica = service.replica
        verb = request.verb
        if not verb:
            answer(self.state(request.request_id))
            return
        if not self._is_by_hand:
            answer(
                SwitchRefused(
                    "a coordinator says who leads: let the master hand over with: quorumlog"
                    " broker resign"
                )
            )
            return
        if verb == "drain":
            # Never blocks, and must not wait behind what does.
            replica.drain()
            answer(self.state(request.request_id))
            return
        work = work_of(replica, request)
        if work is None:
            answer(BadRequest(f"a broker has no verb {verb!r}"))
            return

        def carry_out() -> None:
            try:
                work()
            except ConfigError as error:
                raise BadRequest(str(error)) from None

        def done(outcome: Any) -> None:
            answer(outcome if isinstance(outcome, LedgerError) else self.state(request.request_id))

        service.submit(carry_out, done)

    def state(self, request_id: int = 0) -> ReplicaResponse:
        service = self._service
        assert service is not None
        client = service.client
        problem, master_offset, master_release = "", -1, ""
        if service.replica.role is Role.SLAVE and client is not None:
            problem, master_offset = client.problem, client.master_offset
            master_release = client.master_release
        return state_of(
            service.replica,
            request_id,
            dialect=service.dialect,
            problem=problem,
            master_offset=master_offset,
            master_release=master_release,
        )


def state_of(
    replica: Replica,
    request_id: int = 0,
    *,
    dialect: str,
    problem: str = "",
    master_offset: int = -1,
    master_release: str = "",
) -> ReplicaResponse:
    record, history = replica.record, replica.history
    is_slave = replica.role is Role.SLAVE
    if replica.fenced_by:
        problem = f"epoch {replica.fenced_by} was promised elsewhere: this is not the master any more"
    in_sync, listed = replica.in_sync_set, history.copy_list
    if listed is not None and not listed.copies:
        listed = None  # a coordinator says who counts
    return ReplicaResponse(
        request_id=request_id,
        id=replica.id,
        directory_id=replica.directory_id,
        address=replica.me.address,
        ha_address=replica.me.ha_address,
        role=replica.role.value,
        epoch=record.promised.number,
        leader=record.promised.leader,
        log_epoch=replica.log_epoch,
        fenced_by=replica.fenced_by,
        is_leading=replica.is_leading,
        min_offset=replica.min_offset,
        max_offset=replica.max_offset,
        flushed_offset=replica.flushed_offset,
        confirm_offset=replica.confirm_offset,
        in_sync_replicas=(listed.copies if listed else 0) if is_slave else replica.in_sync_replicas,
        in_sync_set=None if in_sync is None else sorted({each.id for each in in_sync}),
        dialect=dialect,
        history=record.history,
        confirmed=record.confirmed,
        copy_list=listed,
        is_list_confirmed=not is_slave and replica.is_run_confirmed,
        master=record.master,
        master_offset=master_offset,
        master_release=master_release,
        slaves=[] if is_slave else [_slave_row(replica, slave) for slave in replica.slaves()],
        tails=[
            TailRow(
                epoch=tail.epoch,
                first_offset=tail.first_offset,
                stop_offset=tail.stop_offset,
                path=tail.path,
            )
            for tail in record.tails
        ],
        problem=problem,
    )


def work_of(replica: Replica, request: ReplicaRequest) -> Callable[[], None] | None:
    """None of a verb that is not known. Blocks for the disk."""
    if request.asked_directory_id not in ("", replica.directory_id):
        return partial(_refuse_as_another, replica.id)
    epoch, broker_id, directory_id = request.epoch, request.broker_id, request.directory_id
    master = Peer(
        id=broker_id,
        directory_id=directory_id,
        address=request.address,
        ha_address=request.ha_address,
    )
    return {
        "promise": lambda: replica.promise(epoch, directory_id, anew=True),
        "lead": lambda: replica.lead(epoch, RunKey(*request.confirmed), request.forced_list),
        "slave": lambda: replica.become_slave(epoch, master),
        "resume": replica.resume,
        "drain": replica.drain,
        "add": lambda: replica.add(broker_id),
        "remove": lambda: replica.remove(broker_id),
        "copies": lambda: replica.set_copies(request.copies),
    }.get(request.verb)


def _refuse_as_another(broker_id: str) -> None:
    raise SwitchRefused(
        f"broker {broker_id} has another directory than when it was asked first: switch again"
    )


def _slave_row(replica: Replica, slave: SlaveState) -> PeerRow:
    peer = replica.peer_of(slave.id)
    return PeerRow(
        id=slave.id,
        directory_id=slave.directory_id,
        address=peer.address,
        ha_address=peer.ha_address,
        counts=replica.counts(slave.member),
        is_connected=slave.is_connected,
        written_offset=slave.written_offset,
        flushed_offset=slave.flushed_offset,
        lag_bytes=slave.lag_bytes,
        lag_ms=slave.lag_ms,
        is_caught_up=slave.is_caught_up,
        release=slave.release,
    )
