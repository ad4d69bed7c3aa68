"""quorumlog broker switch, add, remove, copies, resign, and the status of master and slaves."""

from __future__ import annotations

import time
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from quorumlog.cli.options import BrokerServers, argument, option
from quorumlog.cli.output import is_json, print_table, say, tell

if TYPE_CHECKING:
    from quorumlog.broker.client.blocking import BrokerClient
    from quorumlog.broker.client.switching import SwitchReport
    from quorumlog.broker.wire import BrokerStatusResponse, FailoverResponse, ReplicaResponse


def switch(
    to: Annotated[str, option("Id of the broker that becomes the master.", "ID")],
    at: BrokerServers,
    without: Annotated[
        list[str] | None,
        option(
            "With --unsafe: this broker is lost, and its present directory must never become"
            " master. May be repeated.",
            "ID",
        ),
    ] = None,
    unsafe: Annotated[
        bool, option("Switch even if acknowledged messages may be lost; prints the range.")
    ] = False,
) -> None:
    """Make another broker the master. --servers is any reachable broker.

    If the old master is alive it is drained first, and nothing is lost. With the old master lost, N - k
    + 1 of a replica list of N brokers and k copies must answer, and the new master must have the
    greatest log among them.

    Example: quorumlog broker switch --servers 127.0.0.1:10911 --to b

    Example: quorumlog broker switch --servers 127.0.0.1:10911 --to a --without b --unsafe
    """
    from quorumlog.broker.client.switching import ClusterProbe, Switch

    line = (lambda text: None) if is_json() else say
    with closing(ClusterProbe(at.servers)) as probe:
        report = Switch(probe, to, without or [], unsafe, at.timeout_ms, line).run()
    lost = None if report.lost is None else report.lost._asdict()
    tell({**report._asdict(), "lost": lost}, lambda: _say_switched(report))


def _say_switched(report: SwitchReport) -> None:
    say(f"{report.master} is the master of epoch {report.epoch}, from offset {report.max_offset} on")
    if report.followers:
        say(f"its slaves: {', '.join(report.followers)}")
    if report.unreachable:
        say(
            f"not reached: {', '.join(report.unreachable)}. Once back, they follow after this, with"
            f" their addresses in LIST: quorumlog broker switch --servers LIST --to {report.master}",
            "red",
        )
    if report.lost is not None:
        first, stop = report.lost
        until = f"to {stop}" if stop >= 0 else "on; the end is unknown"
        say(f"may be lost: the log from {first} {until}", "red")


def add(
    broker: Annotated[str, option("Id of the slave, which has caught up.", "ID")], at: BrokerServers
) -> None:
    """Add a slave to the replica list: its copies count for acknowledgements, and it may become master.
    It replaces a lost directory of the same id. --servers is any reachable broker.

    Example: quorumlog broker add --servers 127.0.0.1:10911 --broker c
    """
    _change(at, verb="add", broker_id=broker)


def remove(broker: Annotated[str, option("Id of the broker.", "ID")], at: BrokerServers) -> None:
    """Remove a broker from the replica list; it may keep following. --servers is any reachable broker.

    Example: quorumlog broker remove --servers 127.0.0.1:10911 --broker c
    """
    _change(at, verb="remove", broker_id=broker)


def copies(
    count: Annotated[int, argument("Number of copies, including the master's.", "K", min=1)],
    at: BrokerServers,
) -> None:
    """Set how many brokers of the replica list must hold a message before it is acknowledged. --servers
    is any reachable broker.

    Example: quorumlog broker copies 2 --servers 127.0.0.1:10911
    """
    _change(at, verb="copies", copies=count)


def _change(at: BrokerServers, **request: Any) -> None:
    from quorumlog.broker.client.switching import change_list
    from quorumlog.broker.wire import ReplicaRequest

    state = change_list(at.servers, ReplicaRequest(**request), timeout_ms=at.timeout_ms)
    assert state.copy_list is not None
    ids, count = state.copy_list.ids, state.copy_list.copies
    tell(
        {"members": ids, "copies": count, "is_confirmed": state.is_list_confirmed},
        f"acknowledged messages are on {count} of {', '.join(ids)}",
    )
    if not is_json() and not state.is_list_confirmed:
        say(
            "not yet: the list needs more disks of its members and of the previous list (see status)",
            "red",
        )


def row_of(value: Any) -> Any:
    """For --json: fields by name. On the wire they are arrays."""
    if isinstance(value, list | tuple):
        return [row_of(each) for each in value]
    fields = getattr(value, "__struct_fields__", None)
    if fields is None:
        return value
    return {name: row_of(getattr(value, name)) for name in fields if name != "request_id"}


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
            say(f"  follows {where}, {release}, {behind} bytes behind its last known end")
        if listed and state.directory_id not in listed:
            say(f"  is not on the list: quorumlog broker add --broker {state.id}")
    names = {peer.id for peer in listed.values()}
    for slave in state.slaves:
        if slave.counts:
            counts = "counts"
        elif slave.id in names:
            counts = f"with another directory than the one listed: broker add --broker {slave.id}"
        else:
            counts = f"is not on the list: broker add --broker {slave.id}"
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
                say(f"  slave {peer.id}: away, on the list, not connected since the list was written")
    for tail in state.tails:
        say(
            f"  set aside: {tail.first_offset} to {tail.stop_offset} of epoch {tail.epoch}, in"
            f" {tail.path}"
        )
    if state.problem:
        say(f"problem: {state.problem}", "red")


def resign(at: BrokerServers) -> None:
    """Make a master that a coordinator has elected give up its lease, without loss; a broker of the
    in-sync set, possibly the same one, is elected.

    Example: quorumlog broker resign --servers 127.0.0.1:10911
    """
    with at.connected() as broker:
        state = broker.failover(resigns=True)
    tell(row_of(state), f"the master gave up its lease: epoch {state.epoch} is over")


def say_failover(state: FailoverResponse) -> None:
    leadership = f"leads for another {state.lease_left_ms} ms" if state.lease_left_ms else state.phase
    in_sync = ", ".join(state.in_sync_set) or "nobody"
    say(
        f"failover: {leadership}, epoch {state.epoch}, master {state.master or 'not known'},"
        f" in sync {in_sync}"
    )


_SAMPLE_S = 0.5
"""Over so long the rate is counted."""


class _BrokerSample(NamedTuple):
    address: str
    broker: BrokerClient
    status: BrokerStatusResponse
    replica: ReplicaResponse | None
    asked_s: float


def print_brokers(at: BrokerServers) -> None:
    """A row for each address, and for each slave that one of them knows of beside them."""
    from quorumlog.errors import LedgerError

    rows: list[tuple[object, ...]] = []
    with ExitStack() as connections:
        samples: list[_BrokerSample] = []
        for address in at.addresses:
            try:
                broker = connections.enter_context(
                    BrokerServers(address, at.timeout).connected(only_looks=True)
                )
                status, replica = broker.status(), replica_of(broker)
            except LedgerError:
                rows.append((None, address, "not reached", *[None] * 5))
                continue
            samples.append(_BrokerSample(address, broker, status, replica, time.monotonic()))
        if samples:
            time.sleep(max(_SAMPLE_S - (time.monotonic() - samples[0].asked_s), 0))
        rows += [_row(each) for each in samples]
    known = {each.replica.id for each in samples if each.replica is not None}
    for each in samples:
        if each.replica is None or each.replica.role == "SLAVE":
            continue
        for slave in each.replica.slaves:
            if slave.id not in known:
                role = "SLAVE" if slave.is_connected else "SLAVE, away"
                ends = None, slave.flushed_offset
                rows.append((slave.id, slave.address or None, role, None, *ends, slave.lag_bytes, None))
    print_table("broker, address, role, epoch #, log ends #, on disk #, lag #, messages/s #", rows)


def _row(sample: _BrokerSample) -> tuple[object, ...]:
    from quorumlog.errors import LedgerError

    status, replica = sample.status, sample.replica
    try:
        put = sample.broker.status().put_messages - status.put_messages
        rate: int | None = round(put / max(time.monotonic() - sample.asked_s, 0.001))
    except LedgerError:
        rate = None
    epoch, name, lag = status.term or None, None, None
    if replica is not None:
        epoch, name = replica.epoch, replica.id
        if replica.role == "SLAVE":
            lag = max(replica.master_offset - replica.max_offset, 0)
    ends = status.max_offset, status.flushed_offset
    return name, sample.address, status.role, epoch, *ends, lag, rate


def replica_of(broker: BrokerClient) -> ReplicaResponse | None:
    """None of one that does not replicate, or not by itself."""
    from quorumlog.broker.errors import NotReplicated
    from quorumlog.errors import OutcomeUnknown

    try:
        return broker.replica()
    except (NotReplicated, OutcomeUnknown):  # OutcomeUnknown: an older broker does not know the word
        return None
