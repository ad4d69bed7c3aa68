"""Failover by a coordinator: options of `quorumlog broker serve`, `resign`, and what status says."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quorumlog.cli.broker.broker_options import DEFAULT_SERVER, Server
from quorumlog.cli.options import Json
from quorumlog.cli.output import print_json, say
from quorumlog.errors import ConfigError

if TYPE_CHECKING:
    from quorumlog.broker.failover.failover_service import FailoverService
    from quorumlog.broker.replication.replica import Replica
    from quorumlog.broker.wire import FailoverResponse


class FailoverChoice(Enum):
    ETCD = "etcd"
    KV = "kv"
    ZOOKEEPER = "zookeeper"


Failover = Annotated[
    FailoverChoice | None,
    typer.Option(
        "--failover",
        help="Who says which broker leads: an etcd, a ZooKeeper, or our own key-value store. Instead of"
        " --role.",
        show_default=False,
    ),
]
CoordinatorList = Annotated[
    str,
    typer.Option(
        "--coordinator",
        help="Where that is: HOST:PORT,... of its client ports.",
        metavar="LIST",
        show_default=False,
    ),
]
Group = Annotated[
    str,
    typer.Option("--group", help="Brokers that fail over for each other name the same.", metavar="NAME"),
]
LeaseMs = Annotated[
    int,
    typer.Option("--lease-ms", help="So long a master leads without its coordinator.", metavar="MS"),
]
InSyncTimeoutMs = Annotated[
    int,
    typer.Option(
        "--in-sync-timeout-ms",
        help="A slave that has lacked something for so long is not waited for.",
        metavar="MS",
    ),
]
FailoverBegin = Annotated[
    bool,
    typer.Option(
        "--failover-begin",
        help="Lead although the store has messages and the coordinator has no record. Once, and for the"
        " store that has most.",
    ),
]


def failover_of(
    choice: FailoverChoice,
    coordinators: str,
    group: str,
    *,
    lease_ms: int,
    in_sync_timeout_ms: int,
    begins: bool,
) -> Callable[[Replica], FailoverService]:
    """Checks all of it now: a store that is opened with a slip in them is bound to its id already. What
    is returned is called where the event loop runs. Raises ConfigError."""
    from quorumlog.broker.failover.failover_rules import FailoverOptions
    from quorumlog.broker.failover.failover_service import FailoverService
    from quorumlog.coordinators import CoordinatorKind, check_servers, coordinator_of

    if not coordinators:
        raise ConfigError("--failover needs --coordinator HOST:PORT,HOST:PORT,...")
    if not group or not all(c.isalnum() or c in "-_." for c in group):
        raise ConfigError(f"--group {group!r}: write letters, digits, - _ and .")
    options = FailoverOptions(lease_ms=lease_ms, in_sync_timeout_ms=in_sync_timeout_ms)
    kind = CoordinatorKind(choice.value)
    check_servers(kind, coordinators)

    def make(replica: Replica) -> FailoverService:
        coordinator = coordinator_of(kind, coordinators, group)
        return FailoverService(replica, coordinator, options, begins=begins)

    return make


def alone(in_sync_replicas: int) -> str:
    """What `serve` says of a group of two, which does not go on as one may think; 0: the default."""
    if in_sync_replicas == 1:
        return ""
    return (
        f" It takes messages while {in_sync_replicas or 2} brokers are in sync: of two brokers none goes"
        " on without the other one unless both have --in-sync-replicas 1."
    )


def resign(server: Server = DEFAULT_SERVER, json: Json = False) -> None:
    """Make a master that a coordinator has elected hand over, without loss: its lease goes back, and a
    broker of its in-sync set leads, which may be the same one.

    Example: quorumlog broker resign --server 127.0.0.1:10911
    """
    from quorumlog.broker import connect

    with connect(server) as broker:
        state = broker.failover(resigns=True)
    if json:
        print_json(failover_row(state))
    else:
        say(f"{server} does not lead: epoch {state.epoch} is over")


def failover_row(state: FailoverResponse) -> dict[str, Any]:
    return {name: getattr(state, name) for name in state.__struct_fields__ if name != "request_id"}


def say_failover(state: FailoverResponse) -> None:
    who = f"leads for another {state.lease_left_ms} ms" if state.lease_left_ms else state.phase
    in_sync = ", ".join(state.in_sync_set) or "nobody"
    say(f"failover: {who}, epoch {state.epoch}, master {state.master or 'not known'}, in sync {in_sync}")
