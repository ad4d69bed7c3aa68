"""Linearizable reads of single entries: 64 readers, each with one request on its way, at one member and
at all three.

Readers are no clients of the library, which would cost more than the member: each is 64 requests on one
connection, or a connection each, of frames made beforehand. Every answer is counted, and one of each
connection decoded.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import cast

import uvloop

from benchmarks.links import servers_leader_first
from benchmarks.outcome import Outcome, Report
from harness.faults import Watch
from harness.member_processes import MemberProcesses
from quorumlog import connect_async
from quorumlog.bench.figures import PromisedFigure
from quorumlog.bench.running_group import usage_of
from quorumlog.bench.workloads import bodies_of
from quorumlog.client.status_rows import leader_of
from quorumlog.config import DEFAULT_GROUP, parse_address
from quorumlog.net.frame import FrameDecoder, encode_frame
from quorumlog.net.hello import Hello, HelloResponse
from quorumlog.wire.client_messages import ReadRequest, ReadResponse
from quorumlog.wire.read_promise import READ_INDEX, ReadGuarantee

READERS = 64
ENTRIES = 1000
BODY_BYTES = 100
WARM_UP_S = 0.5
LEAST = 20_000.0
_FRAME_BYTES = struct.Struct("<I")
_LENGTH_AT = 12


class _Connection(asyncio.BufferedProtocol):
    """Answers are told apart by nothing: each is followed by the next request."""

    def __init__(self, requests: Iterator[bytes], in_flight: int) -> None:
        self._requests = requests
        self._in_flight = in_flight
        self._receive = memoryview(bytearray(1 << 20))
        self._end = 0
        self._transport: asyncio.Transport | None = None
        self._is_greeted = False
        self.is_stopped = False
        self.answers = 0
        self.checked: ReadResponse | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one by its methods only
        self._transport.writelines(encode_frame(DEFAULT_GROUP, Hello(role="client")))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._receive[self._end :]

    def buffer_updated(self, count: int) -> None:
        self._end += count
        begin = whole = 0
        while self._end - begin >= _LENGTH_AT + 4:
            (length,) = _FRAME_BYTES.unpack_from(self._receive, begin + _LENGTH_AT)
            if self._end - begin < length:
                break
            if not self._is_greeted or self.checked is None:
                self._check(bytes(self._receive[begin : begin + length]))
            begin += length
            whole += 1
        self._receive[: self._end - begin] = self._receive[begin : self._end]
        self._end -= begin
        self.answers += whole
        if whole and not self.is_stopped:
            if not self._is_greeted:
                self._is_greeted = True
                self.answers, whole = 0, self._in_flight
            assert self._transport is not None
            self._transport.write(b"".join(next(self._requests) for _ in range(whole)))

    def _check(self, frame: bytes) -> None:
        ((_, message, *_),) = FrameDecoder().receive_data(frame)
        if not self._is_greeted:
            assert isinstance(message, HelloResponse) and message.knows_promises, message
        else:
            assert isinstance(message, ReadResponse) and message.count == 1, message
            assert message.age_ms >= 0, message
            self.checked = message


def _requests() -> Iterator[bytes]:
    frames = [
        b"".join(
            encode_frame(
                DEFAULT_GROUP,
                ReadRequest(
                    request_id=index,
                    first_index=index,
                    stop_index=index + 1,
                    limit_bytes=1,
                    promise=ReadGuarantee(consistency=READ_INDEX),
                ),
            )
        )
        for index in range(1, ENTRIES)
    ]
    while True:
        yield from frames


async def _read(addresses: list[str], connections: int, seconds: float) -> float:
    """Answers a second; the readers are divided among the addresses."""
    loop = asyncio.get_running_loop()
    requests = _requests()
    opened = []
    for number in range(connections):
        host, port = parse_address(addresses[number % len(addresses)])
        each = len(range(number, READERS, connections))
        make = partial(_Connection, requests, each)
        opened.append(await loop.create_connection(make, host, port))
    await asyncio.sleep(WARM_UP_S)
    before, began_s = sum(c.answers for _, c in opened), time.perf_counter()
    await asyncio.sleep(seconds)
    answers = sum(c.answers for _, c in opened) - before
    took_s = time.perf_counter() - began_s
    for transport, connection in opened:
        connection.is_stopped = True
        assert connection.checked is not None, "a connection without an answer"
        transport.close()
    return answers / took_s


def measure_fresh_reads(folder: Path, seconds: float, report: Report) -> Outcome:
    with MemberProcesses(folder) as members:
        uvloop.run(servers_leader_first(members))
        leader_address, *others = uvloop.run(_fill(members))
        pids = {member.address: member.pid for member in members.members}
        figures: dict[str, float] = {}
        for name, addresses, connections in (
            ("leader", [leader_address], 1),
            ("follower", others[:1], 1),
            ("three", [leader_address, *others], 3),
            ("follower_64_connections", others[:1], READERS),
        ):
            report(f"fresh reads: {name}, {seconds:g} s")
            before_s = sum(usage_of(pids[a]).cpu_seconds for a in addresses)
            rate = uvloop.run(_read(addresses, connections, seconds))
            used_s = sum(usage_of(pids[a]).cpu_seconds for a in addresses) - before_s
            figures[f"{name}_per_second"] = rate
            figures[f"{name}_cpu_us"] = used_s / (rate * (seconds + WARM_UP_S)) * 1e6
    figures["three_over_one"] = figures["three_per_second"] / figures["follower_per_second"]
    return Outcome(
        "fresh reads",
        figures,
        (
            PromisedFigure("follower_per_second", LEAST, True),
            PromisedFigure("three_over_one", 1.0, True),
        ),
        "read_index, single entries; cpu_us: of the members that are asked, for one read",
    )


async def _fill(members: MemberProcesses) -> list[str]:
    """Addresses, the leader's first."""
    async with connect_async(members.servers) as client:
        await client.append_batch(bodies_of(ENTRIES, BODY_BYTES))
        await Watch(client, members).all_equal()
        rows = await client.status()
        leader = leader_of(rows)
        assert leader is not None
        others = [row.address for row in rows if row.address != leader.address]
        return [leader.address, *others]


if __name__ == "__main__":
    import sys
    import tempfile

    with tempfile.TemporaryDirectory() as scratch:
        seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 5.0
        for name, figure in measure_fresh_reads(Path(scratch), seconds, print).figures.items():
            print(f"{name:32} {figure:12,.1f}")
