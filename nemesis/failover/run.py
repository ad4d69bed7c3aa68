"""Faults one after the other, then the check: every acknowledged message is there, everywhere alike."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from nemesis import users
from nemesis.failover.group import QUEUES, TOPIC, FailoverGroup, failover_group
from nemesis.failover.senders import Senders
from quorumlog.broker import connect
from quorumlog.errors import LedgerError

FAULTS = ("kill", "pause", "coordinator cut", "slaves cut")
WHOLE_TIMEOUT_S = 60.0
POLL_S = 0.05


@dataclass(slots=True)
class Report:
    coordinator: str
    faults: Counter[str] = field(default_factory=Counter)
    epochs: int = 0
    acknowledged: int = 0
    unknown: int = 0
    lost: int = 0
    """Acknowledged, and not there."""
    stored: int = 0
    users: str = ""
    let_in: int = 0
    """Clients that no broker should have let in."""
    silences: list[float] = field(default_factory=list)
    """From each SIGKILL of a master to the next acknowledgement, in leases as they were asked for."""


def wait_for(condition: Callable[[], bool], what: str, timeout_s: float = WHOLE_TIMEOUT_S) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline_s:
            raise AssertionError(f"not within {timeout_s:.0f} s: {what}")
        time.sleep(POLL_S)


def befall(group: FailoverGroup, kind: str, name: str, senders: Senders, report: Report) -> None:
    """A fault, until another broker has acknowledged something, or the same one again; then its end."""
    before = senders.count
    leads = name in group.leaders()
    begin, end = {
        "kill": (group.kill, group.restart),
        "pause": (group.pause, group.go_on),
        "coordinator cut": (group.cut, group.mend),
        "slaves cut": (group.cut_slaves, group.mend_slaves),
    }[kind]
    begin(name)
    began_s = time.monotonic()
    if kind == "slaves cut":
        if leads:
            wait_for(lambda: group.in_sync(name) == 1, f"{name} without its slaves")
            before = senders.count
            if group.in_sync_replicas == 1:
                wait_for(lambda: senders.count > before + 20, f"acknowledgements of {name} alone")
        end(name)
        before = senders.count
        wait_for(lambda: senders.count > before + 20, f"acknowledgements after a {kind} of {name}")
        return
    if leads:
        wait_for(lambda: any(each != name for each in group.leaders()), "another master")
        before = senders.count
    wait_for(lambda: senders.count > before + 20, f"acknowledgements, with {name} in a {kind}")
    if leads and kind == "kill":
        report.silences.append(round(1000 * senders.silence_s(began_s) / group.lease_ms, 2))
    end(name)


def become_whole(group: FailoverGroup) -> str:
    """The master, once everybody is in sync with it."""

    def whole() -> bool:
        leaders = group.leaders()
        if len(leaders) != 1:
            return False
        try:
            with connect(group.brokers[leaders[0]].address) as master:
                return len(master.failover().in_sync_set) == len(group.brokers)
        except LedgerError:
            return False

    wait_for(whole, "one master with everybody in sync")
    return group.leaders()[0]


def stored(address: str) -> list[list[bytes]]:
    """Bodies of each queue, in order."""
    found: list[list[bytes]] = []
    with connect(address) as broker:
        for queue_id in range(QUEUES):
            bodies: list[bytes] = []
            offset, stop = 0, broker.max_offset(TOPIC, queue_id)
            while offset < stop:
                pulled = broker.pull(TOPIC, queue_id, offset)
                bodies += [message.body for message in pulled.messages]
                offset = pulled.next_offset
            found.append(bodies)
    return found


def _holds(address: str, bodies: list[list[bytes]]) -> bool:
    return stored(address) == bodies


def check(group: FailoverGroup, senders: Senders, report: Report) -> None:
    """Fills in the report. The senders have stopped, and everybody is in sync."""
    master = become_whole(group)
    of_master = stored(group.brokers[master].address)
    there = {body for bodies in of_master for body in bodies}
    acknowledged = [body for bodies in senders.acknowledged for body in bodies]
    report.acknowledged, report.stored = len(acknowledged), len(there)
    report.unknown = sum(len(each) for each in senders.unknown)
    report.lost = sum(body not in there for body in acknowledged)
    with connect(group.brokers[master].address) as client:
        report.epochs = client.failover().epoch
    for name, broker in group.brokers.items():
        if name != master:
            # What a slave shows follows its master's confirm offset a moment later.
            wait_for(partial(_holds, broker.address, of_master), f"{name} as {master}")


def run(
    folder: Path,
    kind: str,
    *,
    rounds: int,
    seed: int,
    faults: Sequence[str] = FAULTS,
    in_sync_replicas: int = 2,
    lease_ms: int = 2_000,
    has_users: bool = False,
) -> Report:
    """Raises AssertionError if a group does not become whole again, or does not know its users."""
    drawn, report = random.Random(seed), Report(kind)
    made = failover_group(
        *(folder, kind),
        lease_ms=lease_ms,
        in_sync_replicas=in_sync_replicas,
        options=users.options_of(folder) if has_users else (),
    )
    with ExitStack() as stack:
        group = stack.enter_context(made)
        become_whole(group)
        watched = None
        if has_users:
            addresses = {name: broker.address for name, broker in group.brokers.items()}
            watched = stack.enter_context(users.Users(addresses, TOPIC))
        user = users.APP if has_users else None
        senders = stack.enter_context(Senders(group.addresses, user=user))
        for number in range(rounds):
            fault = faults[number % len(faults)]
            leaders = group.leaders()
            # Mostly whoever leads: to the others little happens.
            name = leaders[0] if leaders and drawn.random() < 0.7 else drawn.choice([*group.brokers])
            report.faults[fault] += 1
            befall(group, fault, name, senders, report)
            become_whole(group)
        senders.stop()
        if watched is not None:
            become_whole(group)
            watched.stop()
            watched.check()
            report.users, report.let_in = str(watched), len(watched.violations)
        check(group, senders, report)
    return report
