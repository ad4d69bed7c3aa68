"""Where the time of an append goes: `python -m benchmarks.trace [--writers 64]`.

Three members are started with stamps around some of their functions, and loaded by bare connections. One
clock of the machine (CLOCK_MONOTONIC) serves all processes, so the steps of a round, from the arrival of
bytes at the leader to the answer, can be drawn below each other: medians over all rounds. What a stamp
costs (about 0.2 us) is part of what is drawn. A compiled core cannot be stamped.
"""

from __future__ import annotations

import asyncio
import functools
import json
import statistics
import sys
import tempfile
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
import uvloop

from benchmarks.links import servers_leader_first
from harness.member_processes import MemberProcesses
from quorumlog.bench.machine import machine_of
from quorumlog.bench.raw_writer import RawWriter, leader_connections
from quorumlog.bench.running_group import usage_of

BODY = bytes(1024)
WARM_UP_S = 1.0
WIDTH = 56
"""Characters of the picture."""


class Step(NamedTuple):
    who: str
    """"leader" or "follower"."""
    label: str
    words: str
    follows: int
    """The step of this number comes first; -1: the round's beginning."""


STEPS = (
    Step("leader", "receive", "bytes into frames", -1),
    Step("leader", "check", "the append is checked and queued", 0),
    Step("leader", "write", "the batch is written", 1),
    Step("leader", "push", "pushes to both followers", 2),
    Step("leader", "send", "pushes go to the kernel", 3),
    Step("leader", "sync", "fdatasync", 2),
    Step("follower", "receive", "bytes into frames, digests checked", 3),
    Step("follower", "write", "the push is written", 6),
    Step("follower", "sync", "fdatasync", 7),
    Step("follower", "send", "the answer goes to the kernel", 8),
    Step("leader", "receive", "the answer is read", 9),
    Step("leader", "commit", "receipts for what is committed", 10),
    Step("leader", "send", "the answer to the client goes to the kernel", 11),
)
_BY_WRITE = 2
"""Where rounds overlap, one begins with the leader's write."""

Span = tuple[int, int]
"""Begin and end, in ns of the machine's clock."""


# ---------------------------------------------------------------- in a member


def _stamp(spans: dict[str, list[Span]], owner: type, name: str, label: str) -> None:
    function = getattr(owner, name)
    found = spans[label]

    @functools.wraps(function)
    def stamped(*arguments: Any, **options: Any) -> Any:
        begin = time.perf_counter_ns()
        try:
            return function(*arguments, **options)
        finally:
            found.append((begin, time.perf_counter_ns()))

    setattr(owner, name, stamped)


def _serve() -> None:
    """`quorumlog serve` with stamps, which lie beside its options once it has stopped."""
    from quorumlog.cli.main import main as quorumlog
    from quorumlog.net.connection import Connection, LoopTurn
    from quorumlog.node.ledger_node import LedgerNode
    from quorumlog.node.pending_appends import PendingAppends
    from quorumlog.node.sending import PushSender
    from quorumlog.store.flush import Flush
    from quorumlog.store.ledger_store import LedgerStore

    spans: dict[str, list[Span]] = defaultdict(list)
    for owner, name, label in (
        (Connection, "buffer_updated", "receive"),
        (LedgerNode, "append", "check"),
        (LedgerStore, "append", "write"),
        (PushSender, "push", "push"),
        (LoopTurn, "flush", "send"),
        (Flush, "run", "sync"),
        (PendingAppends, "complete", "commit"),
    ):
        _stamp(spans, owner, name, label)
    try:
        quorumlog()
    finally:
        Path(f"{sys.argv[-1]}.spans").write_text(json.dumps(spans))


# ---------------------------------------------------------------- what they say


class Member:
    def __init__(self, spans: dict[str, list[list[int]]]) -> None:
        self._spans = {label: [(begin, end) for begin, end in found] for label, found in spans.items()}
        self._begins = {label: [begin for begin, _ in found] for label, found in self._spans.items()}

    def first(self, label: str, since: int) -> Span | None:
        """The first that begins at or after `since`."""
        found = self._spans.get(label, [])
        place = bisect_left(self._begins.get(label, []), since)
        return found[place] if place < len(found) else None

    def between(self, label: str, begin: int, end: int) -> list[Span]:
        begins = self._begins.get(label, [])
        return self._spans.get(label, [])[bisect_left(begins, begin) : bisect_left(begins, end)]


def round_of(leader: Member, followers: list[Member], begin: int, first: int) -> list[Span] | None:
    """Each step's span, from `first` on; None where one is missing. Of the followers the one counts that
    answers first."""
    found: list[list[Span]] = []
    for follower in followers:
        spans: list[Span] = [(begin, begin)] * first
        for number in range(first, len(STEPS)):
            step = STEPS[number]
            since = begin if number == first else spans[step.follows][0 if step.label == "send" else 1]
            if step.who == "follower" and step.label == "receive":
                since = spans[step.follows][0]
            span = (leader if step.who == "leader" else follower).first(step.label, since)
            if span is None:
                break
            spans.append(span)
        else:
            found.append(spans)
    return min(found, key=lambda spans: spans[9][1], default=None)


def picture(rounds: list[list[Span]], first: int) -> list[str]:
    """A line a step: when it begins and how long it takes, in us, medians."""
    steps = range(first, len(STEPS))
    begins = {
        s: statistics.median((spans[s][0] - spans[first][0]) / 1000 for spans in rounds) for s in steps
    }
    lasts = {s: statistics.median((spans[s][1] - spans[s][0]) / 1000 for spans in rounds) for s in steps}
    whole = max(begins[s] + lasts[s] for s in steps)
    lines = [f"{'':8} {'us from':>8} {'lasts':>6}  {'':{WIDTH}}"]
    for s in steps:
        at, long = (round(x / whole * WIDTH) for x in (begins[s], lasts[s]))
        bar = (" " * at + "#" * max(long, 1))[:WIDTH]
        step = STEPS[s]
        lines.append(f"{step.who:8} {begins[s]:8.0f} {lasts[s]:6.0f}  {bar:{WIDTH}}  {step.words}")
    return lines


def _median_us(each_ns: Iterable[int]) -> float:
    return statistics.median(each_ns) / 1000


# ---------------------------------------------------------------- the run


async def _load(
    members: MemberProcesses, writers: int, seconds: float
) -> tuple[str, list[tuple[float, float]]]:
    """The leader's address, and when each append was sent and answered, in s."""
    servers = await servers_leader_first(members)
    answered: list[tuple[float, float]] = []
    stop_at = time.perf_counter() + WARM_UP_S + seconds
    make = functools.partial(RawWriter, "default", BODY)
    async with leader_connections(make, writers, members.running_group) as connections:
        await asyncio.gather(
            *(
                one.start(
                    lambda: time.perf_counter() > stop_at,
                    lambda sent_s: answered.append((sent_s, time.perf_counter())),
                )
                for one in connections
            )
        )
    return servers.partition(",")[0], answered


def main(
    writers: Annotated[int, typer.Option(help="Each with one append in flight.", min=1)] = 1,
    seconds: Annotated[float, typer.Option(help="After a second that is not counted.")] = 5.0,
    flush: Annotated[str, typer.Option(help="sync or async.")] = "sync",
) -> None:
    """Draw one round of appends, in medians, with the waits between its steps."""
    with tempfile.TemporaryDirectory(prefix="bench-trace-") as folder:
        members = MemberProcesses(Path(folder) / "members", flush=flush)
        for member in members.members:
            member.module = "benchmarks.trace"
        with members:
            leader, answered = uvloop.run(_load(members, writers, seconds))
            cpu = {member.address: usage_of(member.pid).cpu_seconds for member in members.members}
            for member in members.members:
                member.stop()
        spans = {
            member.address: Member(
                json.loads((members.folder / f"{member.member_id}.toml.spans").read_text())
            )
            for member in members.members
        }
        machine = machine_of(folder).describe()
    begin = answered[0][0] + WARM_UP_S
    of_leader = spans[leader]
    followers = [each for address, each in spans.items() if address != leader]
    first = 0 if writers == 1 else _BY_WRITE
    starts = [int(sent * 1e9) for sent, _ in answered if sent >= begin]
    if writers > 1:
        starts = [
            at for at, _ in of_leader.between("write", int(begin * 1e9), int(answered[-1][0] * 1e9))
        ]
    rounds = [one for at in starts if (one := round_of(of_leader, followers, at, first)) is not None]
    counted = [one for one in answered if one[0] >= begin]
    elapsed = counted[-1][1] - counted[0][0]
    latency = statistics.median((end - sent) * 1e6 for sent, end in counted)
    typer.echo(machine)
    typer.echo(
        f"{writers} writers, flush {flush}: {len(counted) / elapsed:,.0f} appends/s, {latency:,.0f} us"
        f" each, {len(counted) / len(rounds):.1f} a round;"
        f" {sum(cpu.values()) / len(answered) * 1e6:,.0f} us of processors an append, start included"
    )
    for line in picture(rounds, first):
        typer.echo(line)


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        _serve()
    else:
        typer.run(main)
