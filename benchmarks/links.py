"""Members whose links have a delay: the test proxy between them, in a process of its own.

The proxy takes its share of the processors, most of it where records are small and many: what is lost
beside members that dial each other is lost to proxy and delay together. Clients dial members directly.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from harness.faults import Watch
from harness.member_processes import MemberProcesses
from harness.proxy import Direction, LinkConditions, Network, both_ways
from quorumlog import connect_async

PROXY_NOTE = "a proxy process between the members takes processor time too"


class DelayedMembers(MemberProcesses):
    """`with DelayedMembers(folder) as members:` members behind a proxy, without delay to begin with."""

    def __init__(self, folder: Path, *, flush: str = "sync") -> None:
        super().__init__(folder, flush=flush)
        self._proxy = DelayProxy({member.member_id: member.address for member in self.members})

    def __enter__(self) -> Self:
        self._proxy.start()
        try:
            self.dial_at(lambda own, other: self._proxy.addresses[own, other])
        except BaseException:
            self._proxy.stop()
            raise
        return super().__enter__()

    def destroy(self) -> None:
        super().destroy()
        self._proxy.stop()

    def set_delay(self, delay_ms: float, *, of: str | None = None) -> None:
        """Bytes between members take `delay_ms` each way; `of`: only those to and from this member."""
        ids = [member.member_id for member in self.members]
        pairs = [(a, b) for a in ids for b in ids if a < b and of in (None, a, b)]
        self._proxy.set_conditions({"delay_ms": delay_ms}, both_ways(pairs))

    def set_bandwidth(self, bytes_per_second: float, direction: Direction) -> None:
        """Of each connection from one member to the other; in place of any delay."""
        self._proxy.set_conditions({"bytes_per_second": bytes_per_second}, [direction])


class DelayProxy:
    """The process, told what to do in lines of JSON."""

    def __init__(self, members: Mapping[str, str]) -> None:
        self._members = dict(members)
        self._process: subprocess.Popen[str] | None = None
        self.addresses: dict[Direction, str] = {}
        """Where the first of a pair dials the second."""

    def start(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.links"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            process_group=0,
        )
        try:
            self.addresses = {(a, b): address for a, b, address in self._ask(self._members)}
        except BaseException:
            self.stop()
            raise

    def set_conditions(self, conditions: Mapping[str, float], directions: Iterable[Direction]) -> None:
        self._ask({"conditions": conditions, "directions": list(directions)})

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def _ask(self, request: object) -> Any:
        assert self._process is not None, "the proxy was not started"
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the proxy ended with status {self._process.wait()}")
        return json.loads(answer)


async def servers_leader_first(members: MemberProcesses) -> str:
    """A client asks the first address first: so it reaches the leader without the proxy, through which
    followers would send it. Waits for a leader."""
    async with connect_async(members.servers) as client:
        leader = await Watch(client, members).leader()
    first = members[leader.id].address
    return ",".join([first, *(m.address for m in members.members if m.address != first)])


def serve() -> None:
    """The process: the first line names the members, each one after it sets the conditions."""
    with Network(json.loads(sys.stdin.readline())) as network:
        ids = network.member_ids
        _answer([[a, b, network.address(a, b)] for a in ids for b in ids if a != b])
        imposed: int | None = None
        for line in sys.stdin:
            request = json.loads(line)
            if imposed is not None:
                network.lift(imposed)
            directions = [(a, b) for a, b in request["directions"]]
            imposed = network.impose(directions, LinkConditions(**request["conditions"]))
            _answer("done")


def _answer(value: object) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    serve()
