"""quorumlog broker switch, forget, and what status says of master and slaves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from quorumlog.cli.broker.broker_options import DEFAULT_SERVER, Server
from quorumlog.cli.options import Json
from quorumlog.cli.output import print_json, say

if TYPE_CHECKING:
    from quorumlog.broker.wire.broker_messages import ReplicaResponse


def switch(
    to: Annotated[
        str, typer.Option("--to", help="Id of the broker that becomes the master.", metavar="ID")
    ],
    server: Server = DEFAULT_SERVER,
    unsafe: Annotated[
        bool,
        typer.Option(
            "--unsafe",
            help="Also where acknowledged messages are lost by it, which are named then.",
        ),
    ] = False,
    timeout: Annotated[
        float,
        typer.Option("--timeout", help="For the new master to catch up.", metavar="SECONDS", min=0.1),
    ] = 10.0,
    json: Json = False,
) -> None:
    """Make another broker the master. --server is any broker that answers.

    With the old master alive it is drained first, and nothing is lost. With the old master lost, every
    slave that ever counted must answer, and the one that has most of the newest master's log is to be
    taken.

    Example: quorumlog broker switch --server 127.0.0.1:10911 --to b
    """
    from quorumlog.broker.client.switching import switch as carry_out

    line = (lambda text: None) if json else say
    report = carry_out(server, to, unsafe=unsafe, timeout_ms=int(timeout * 1000), say=line)
    if json:
        row: dict[str, Any] = report._asdict()
        print_json({**row, "lost": None if report.lost is None else report.lost._asdict()})
        return
    say(f"{report.master} is the master of epoch {report.epoch}, from offset {report.max_offset} on")
    if report.followers:
        say(f"its slaves: {', '.join(report.followers)}")
    if report.unreachable:
        say(f"not reached: {', '.join(report.unreachable)}. When they are back: the same again", "red")
    if report.lost is not None:
        first, stop = report.lost
        until = f"to {stop}" if stop >= 0 else "on, nobody knows how far"
        say(f"lost: the log from {first} {until}", "red")


def forget(
    slave: Annotated[
        str, typer.Option("--slave", help="Id of the slave that will not come back.", metavar="ID")
    ],
    server: Server = DEFAULT_SERVER,
    unsafe: Annotated[
        bool,
        typer.Option(
            "--unsafe",
            help="Also where no other slave holds what was acknowledged: this one must be emptied then"
            " before it follows again, or a switch to it may lose what it lacks.",
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Let a slave count no more: it is lost for good, and not to be asked at a switch. Or its directory
    is, and another one is there under its name: that counts then. --server is the master. Refused while
    others do not hold everything that was acknowledged.

    Example: quorumlog broker forget --server 127.0.0.1:10911 --slave c
    """
    from quorumlog.broker import connect
    from quorumlog.broker.wire.broker_messages import ReplicaRequest

    with connect(server) as broker:
        state = broker.replica(ReplicaRequest(verb="forget", broker_id=slave, unsafe=unsafe))
    counted = [peer.id for peer in state.counted]
    if json:
        print_json({"counted": counted})
    else:
        say(f"slaves that count: {', '.join(counted) or 'none'}")


def replica_row(state: ReplicaResponse) -> dict[str, Any]:
    """For --json: fields by name. On the wire they are arrays."""
    row: dict[str, Any] = _named(state)
    return row


def _named(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_named(each) for each in value]
    fields = getattr(value, "__struct_fields__", None)
    if fields is None:
        return value
    return {name: _named(getattr(value, name)) for name in fields if name != "request_id"}


def _in_sync_of(state: ReplicaResponse) -> str:
    asked = state.as_master.in_sync_replicas
    if state.role == "SLAVE" or not 0 < asked < state.in_sync_replicas:
        return str(state.in_sync_replicas)
    return f"{state.in_sync_replicas} ({asked} once all that count have stored it)"


def say_replica(state: ReplicaResponse) -> None:
    say(
        f"broker {state.id}: {state.role} in epoch {state.epoch}, log of epoch {state.log_epoch},"
        f" in_sync_replicas {_in_sync_of(state)}, slaves connect to {state.ha_address}"
        f" ({state.dialect})"
    )
    if state.role == "SLAVE" and state.master is not None:
        name = state.master.id or "a master"
        where = f"{name} at {state.master.ha_address}"
        behind = max(state.master_offset - state.max_offset, 0)
        if state.problem:
            say(f"  is to follow {where}")
        else:
            release = f"release {state.master.release or 'unknown'}"
            say(f"  follows {where}, {release}, {behind} bytes behind what was heard of it")
    directories = {peer.id: peer.directory_id for peer in state.counted if peer.counts}
    for slave in state.slaves:
        counts = "counts" if slave.counts else "does not count"
        if slave.directory_id != directories.get(slave.id, slave.directory_id):
            counts = (
                "another directory than the one that counts: if that is lost for good, quorumlog broker"
                f" forget --slave {slave.id}"
            )
        words = [
            "connected" if slave.is_connected else "away",
            counts,
            f"on its disk up to {slave.flushed_offset}",
            f"lacks {slave.lag_bytes} bytes for {slave.lag_ms} ms",
            f"release {slave.release or 'unknown'}",
        ]
        say(f"  slave {slave.id}: {', '.join(words)}")
    if state.counted and state.role == "SLAVE":
        names = [
            f"{peer.id} (with another directory)"
            if peer.id == state.id and peer.directory_id != state.directory_id
            else peer.id
            for peer in state.counted
        ]
        say(f"  slaves that count: {', '.join(names)}")
    elif state.in_sync_set is None:
        seen = {slave.id for slave in state.slaves}
        for peer in state.counted:
            if peer.id not in seen:
                counts = "counts" if peer.counts else "counts once it is back"
                say(f"  slave {peer.id}: away, {counts}, not connected since the start")
    for tail in state.tails:
        say(
            f"  set aside: {tail.first_offset} to {tail.stop_offset} of epoch {tail.epoch}, in"
            f" {tail.path}"
        )
    if state.problem:
        say(f"problem: {state.problem}", "red")
