"""ReplicaRequests: what a client asks of a broker as master or slave, and makes it be."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from quorumlog.broker.errors import NotReplicated, SwitchRefused
from quorumlog.broker.message_log import Role
from quorumlog.broker.replication.protocol.epoch_history import EpochHistory
from quorumlog.broker.replication.protocol.ha_frames import Peer
from quorumlog.broker.replication.reign_begin import Begin
from quorumlog.broker.replication.replica import Replica
from quorumlog.broker.replication.roles import BrokerAddress, SlaveState
from quorumlog.broker.replication.service.ha_service import HAService
from quorumlog.broker.wire.broker_messages import (
    BeginRow,
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
    record = replica.record
    is_slave = replica.role is Role.SLAVE
    if replica.fenced_by:
        problem = f"epoch {replica.fenced_by} was promised elsewhere: this is not the master any more"
    in_sync = replica.in_sync_set
    return ReplicaResponse(
        request_id=request_id,
        id=replica.id,
        directory_id=replica.directory_id,
        role=replica.role.value,
        epoch=replica.epoch,
        log_epoch=replica.log_epoch,
        fenced_by=replica.fenced_by,
        min_offset=replica.min_offset,
        max_offset=replica.max_offset,
        flushed_offset=replica.flushed_offset,
        confirm_offset=replica.confirm_offset,
        is_sync=record.is_sync,
        in_sync_replicas=record.in_sync_replicas if is_slave else replica.in_sync_replicas,
        in_sync_set=None if in_sync is None else sorted({each.id for each in in_sync}),
        dialect=dialect,
        ha_address=replica.address.ha_address,
        history=record.history,
        master=None if record.master is None else _row(record.master, master_release),
        master_offset=master_offset,
        slaves=[] if is_slave else [_slave_row(replica, slave) for slave in replica.slaves()],
        counted=[_row(peer) for peer in record.counted],
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
        reign=replica.reign_epoch,
        has_met_master=record.has_met_master,
        holds_begin=record.holds_begin,
        waited_from=record.waited_from,
        state_version=record.state_version,
        as_master=_begin_row(replica.as_master()),
        told=[_row(peer) for peer in record.told],
    )


def work_of(replica: Replica, request: ReplicaRequest) -> Callable[[], None] | None:
    """None of a verb that is not known. Blocks for the disk."""
    if request.asked_directory_id not in ("", replica.directory_id):
        return partial(_refuse_as_another, replica.id)
    epoch = request.epoch
    master = BrokerAddress(request.broker_id, request.address, request.ha_address)
    return {
        "promise": lambda: replica.promise(epoch, anew=True, drained_at=request.drained_at),
        "master": lambda: replica.become_master(epoch, request.is_sync, begin=_begin_of(request)),
        "chosen": lambda: replica.is_chosen(epoch, [_peer(each) for each in request.told]),
        "slave": lambda: replica.become_slave(epoch, master, request.directory_id, _begin_of(request)),
        "resume": replica.resume,
        "drain": replica.drain,
        "forget": lambda: replica.forget(request.broker_id, unsafe=request.unsafe),
    }.get(request.verb)


def _refuse_as_another(broker_id: str) -> None:
    raise SwitchRefused(
        f"broker {broker_id} has another directory than when it was asked first: switch again"
    )


def _row(peer: Peer, release: str = "") -> PeerRow:
    return PeerRow(
        id=peer.id,
        directory_id=peer.directory_id,
        address=peer.address,
        ha_address=peer.ha_address,
        counts=not peer.has_to_join,
        release=release,
    )


def _peer(row: PeerRow) -> Peer:
    return Peer(
        id=row.id,
        directory_id=row.directory_id,
        address=row.address,
        ha_address=row.ha_address,
        has_to_join=not row.counts,
    )


def _begin_row(begin: Begin) -> BeginRow:
    return BeginRow(
        history=begin.history.triples(),
        offset=begin.offset,
        counted=[_row(peer) for peer in begin.counted],
        in_sync_replicas=begin.in_sync_replicas,
        is_sync=begin.is_sync,
    )


def _begin_of(request: ReplicaRequest) -> Begin | None:
    row = request.begin
    if row is None:
        return None
    counted = [_peer(each) for each in row.counted]
    return Begin(EpochHistory(row.history), row.offset, counted, row.in_sync_replicas, row.is_sync)


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
