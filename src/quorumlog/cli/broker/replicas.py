"""quorumlog broker switch, add, remove, copies, and what status says of master and slaves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from quorumlog.cli.broker.broker_options import DEFAULT_SERVER, Server
from quorumlog.cli.options import Json
from quorumlog.cli.output import print_json, say

if TYPE_CHECKING:
    from quorumlog.broker.wire import ReplicaResponse


def switch(
    to: Annotated[
        str, typer.Option("--to", help="Id of the broker that becomes the master.", metavar="ID")
    ],
    server: Server = DEFAULT_SERVER,
    without: Annotated[
        list[str] | None,
        typer.Option(
            "--without",
            help="With --unsafe: this broker does not answer, is lost for good, and will never be"
            " switched to with the directory that it had. May be repeated.",
            metavar="ID",
            show_default=False,
        ),
    ] = None,
    unsafe: Annotated[
        bool,
        typer.Option(
            "--unsafe",
            help="Also where acknowledged messages may be lost by it; the range is named then.",
        ),
    ] = False,
    timeout: Annotated[
        float,
        typer.Option("--timeout", help="For the new master to catch up.", metavar="SECONDS", min=0.1),
    ] = 10.0,
    json: Json = False,
) -> None:
    """Make another broker the master. --server is any broker that answers.

    With the old master alive it is drained first, and nothing is lost. With the old master lost,
    N - k + 1 of a list of N brokers and k copies must answer, and the greatest log of theirs is to be
    taken.

    Example: quorumlog broker switch --server 127.0.0.1:10911 --to b

    Example: quorumlog broker switch --server 127.0.0.1:10911 --to a --without b --unsafe
    """
    from quorumlog.broker.client.switching import switch as carry_out

    line = (lambda text: None) if json else say
    report = carry_out(
        server,
        to,
        without=without or [],
        unsafe=unsafe,
        timeout_ms=int(timeout * 1000),
        say=line,
    )
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
        say(f"may be lost: the log from {first} {until}", "red")


ListTimeout = Annotated[
    float,
    typer.Option("--timeout", help="For the list to be on enough disks.", metavar="SECONDS", min=0.1),
]


def add(
    broker: Annotated[
        str, typer.Option("--broker", help="Id of the slave, which has caught up.", metavar="ID")
    ],
    server: Server = DEFAULT_SERVER,
    timeout: ListTimeout = 10.0,
    json: Json = False,
) -> None:
    """Put a slave onto the list of those that count: it may acknowledge, and be switched to. A directory
    that was listed under its name, and is lost, goes off it. --server is any broker that answers.

    Example: quorumlog broker add --server 127.0.0.1:10911 --broker c
    """
    _change(server, timeout, json, verb="add", broker_id=broker)


def remove(
    broker: Annotated[str, typer.Option("--broker", help="Id of the broker.", metavar="ID")],
    server: Server = DEFAULT_SERVER,
    timeout: ListTimeout = 10.0,
    json: Json = False,
) -> None:
    """Take a broker off the list of those that count: it may go on to follow. --server is any broker
    that answers.

    Example: quorumlog broker remove --server 127.0.0.1:10911 --broker c
    """
    _change(server, timeout, json, verb="remove", broker_id=broker)


def copies(
    count: Annotated[int, typer.Argument(metavar="K", min=1, help="The master's included.")],
    server: Server = DEFAULT_SERVER,
    timeout: ListTimeout = 10.0,
    json: Json = False,
) -> None:
    """So many brokers of the list have a message before it is acknowledged. --server is any broker that
    answers.

    Example: quorumlog broker copies 2 --server 127.0.0.1:10911
    """
    _change(server, timeout, json, verb="copies", copies=count)


def _change(server: str, timeout: float, json: bool, **request: Any) -> None:
    from quorumlog.broker.client.switching import change_list
    from quorumlog.broker.wire import ReplicaRequest

    state = change_list(server, ReplicaRequest(**request), timeout_ms=int(timeout * 1000))
    assert state.copy_list is not None
    ids, count = state.copy_list.ids, state.copy_list.copies
    if json:
        print_json({"members": ids, "copies": count, "is_confirmed": state.is_list_confirmed})
        return
    say(f"{count} of {', '.join(ids)} have what is acknowledged")
    if not state.is_list_confirmed:
        say("not yet: the list is not on enough of their disks, and of those before (status)", "red")


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


def say_replica(state: ReplicaResponse) -> None:
    say(
        f"broker {state.id}: {state.role} in epoch {state.epoch}, log of epoch {state.log_epoch},"
        f" slaves connect to {state.ha_address} ({state.dialect})"
    )
    listed = {} if state.copy_list is None else {p.directory_id: p for p in state.copy_list.members}
    if state.in_sync_set is not None:
        say(f"  in sync: {', '.join(state.in_sync_set)}")
    elif state.copy_list is not None:
        note = "" if state.role == "SLAVE" or state.is_list_confirmed else ", not confirmed yet"
        say(f"  list: {state.copy_list.copies} copies of {', '.join(state.copy_list.ids)}{note}")
    if state.role == "SLAVE" and state.master is not None:
        name = state.master.id or "a master"
        where = f"{name} at {state.master.ha_address}"
        behind = max(state.master_offset - state.max_offset, 0)
        if state.problem:
            say(f"  is to follow {where}")
        else:
            release = f"release {state.master_release or 'unknown'}"
            say(f"  follows {where}, {release}, {behind} bytes behind what was heard of it")
        if listed and state.directory_id not in listed:
            say(f"  is not on the list: quorumlog broker add --broker {state.id}")
    names = {peer.id for peer in listed.values()}
    for slave in state.slaves:
        if slave.counts:
            counts = "counts"
        elif slave.id in names:
            counts = f"with another directory than the one listed: broker add --broker {slave.id}"
        else:
            counts = f"does not count: broker add --broker {slave.id}"
        words = [
            "connected" if slave.is_connected else "away",
            counts,
            f"on its disk up to {slave.flushed_offset}",
            f"lacks {slave.lag_bytes} bytes for {slave.lag_ms} ms",
            f"release {slave.release or 'unknown'}",
        ]
        say(f"  slave {slave.id}: {', '.join(words)}")
    if state.is_leading and state.in_sync_set is None:
        there = {slave.directory_id for slave in state.slaves} | {state.directory_id}
        for directory_id, peer in listed.items():
            if directory_id not in there:
                say(f"  slave {peer.id}: away, counts, not connected since the list was written")
    for tail in state.tails:
        say(
            f"  set aside: {tail.first_offset} to {tail.stop_offset} of epoch {tail.epoch}, in"
            f" {tail.path}"
        )
    if state.problem:
        say(f"problem: {state.problem}", "red")
