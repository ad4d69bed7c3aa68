"""The brokers of a group, one a row: asked themselves, or as their master tells of them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

from quorumlog.cli.output import print_table

if TYPE_CHECKING:
    from quorumlog.broker.client.blocking_broker_client import BrokerClient
    from quorumlog.broker.wire import ReplicaResponse, StatusResponse

_SAMPLE_S = 0.5
"""Over so long the rate is counted."""


class _Asked(NamedTuple):
    address: str
    broker: BrokerClient
    status: StatusResponse
    replica: ReplicaResponse | None
    asked_s: float


def print_brokers(addresses: Sequence[str], timeout_ms: int) -> None:
    """A row for each address, and for each slave that one of them knows of beside them."""
    from quorumlog.broker import connect
    from quorumlog.errors import LedgerError

    rows: list[tuple[object, ...]] = []
    with ExitStack() as connections:
        asked: list[_Asked] = []
        for address in addresses:
            try:
                broker = connections.enter_context(connect(address, timeout_ms=timeout_ms))
                status, replica = broker.status(), replica_of(broker)
            except LedgerError:
                rows.append((None, address, "not reached", *[None] * 5))
                continue
            asked.append(_Asked(address, broker, status, replica, time.monotonic()))
        if asked:
            time.sleep(max(_SAMPLE_S - (time.monotonic() - asked[0].asked_s), 0))
        rows += [_row(each) for each in asked]
    known = {each.replica.id for each in asked if each.replica is not None}
    for each in asked:
        if each.replica is None or each.replica.role == "SLAVE":
            continue
        for slave in each.replica.slaves:
            if slave.id not in known:
                role = "SLAVE" if slave.is_connected else "SLAVE, away"
                ends = None, slave.flushed_offset
                rows.append((slave.id, slave.address or None, role, None, *ends, slave.lag_bytes, None))
    print_table(
        {
            "broker": False,
            "address": False,
            "role": False,
            "epoch": True,
            "log ends": True,
            "on disk": True,
            "lag": True,
            "messages/s": True,
        },
        rows,
    )


def _row(asked: _Asked) -> tuple[object, ...]:
    from quorumlog.errors import LedgerError

    status, replica = asked.status, asked.replica
    try:
        put = asked.broker.status().put_messages - status.put_messages
        rate: int | None = round(put / max(time.monotonic() - asked.asked_s, 0.001))
    except LedgerError:
        rate = None
    epoch, name, lag = status.term or None, None, None
    if replica is not None:
        epoch, name = replica.epoch, replica.id
        if replica.role == "SLAVE":
            lag = max(replica.master_offset - replica.max_offset, 0)
    ends = status.max_offset, status.flushed_offset
    return name, asked.address, status.role, epoch, *ends, lag, rate


def replica_of(broker: BrokerClient) -> ReplicaResponse | None:
    """None of one that does not replicate, or not by itself."""
    from quorumlog.broker.errors import NotReplicated
    from quorumlog.errors import OutcomeUnknown

    try:
        return broker.replica()
    except (NotReplicated, OutcomeUnknown):  # OutcomeUnknown: an older broker does not know the word
        return None
