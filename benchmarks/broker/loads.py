"""The loads that both systems get, and what is measured of each."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from quorumlog.broker import Message, connect_async

BATCH, BATCH_SENDERS = 64, 4
BODIES = (1024, 128)
_TICKS = os.sysconf("SC_CLK_TCK")


class Load(NamedTuple):
    senders: int
    batch: int

    @property
    def name(self) -> str:
        if self.batch > 1:
            return f"{self.senders} senders, batches of {self.batch}"
        return "1 sender" if self.senders == 1 else f"{self.senders} senders"


LOADS = (Load(1, 1), Load(64, 1), Load(256, 1), Load(BATCH_SENDERS, BATCH))


class Figure(NamedTuple):
    per_second: float
    cpu_us: float
    """Of the servers, for each message."""


HEAD = "quorumlog /s | CPU us | RocketMQ /s | CPU us | ratio | CPU ratio |"
RULE = "--- | --- | --- | --- | --- | --- |"


def row(ours: Figure, theirs: Figure | None) -> str:
    """The cells below `HEAD`."""
    cells = f"{ours.per_second:,.0f} | {ours.cpu_us:.0f} |"
    if theirs is None:
        return f"{cells} | | | |"
    ratio, cpu_ratio = ours.per_second / theirs.per_second, ours.cpu_us / theirs.cpu_us
    return f"{cells} {theirs.per_second:,.0f} | {theirs.cpu_us:.0f} | {ratio:.2f} | {cpu_ratio:.2f} |"


def figure(pids: Sequence[int], seconds: float, run: Callable[[], float]) -> Figure:
    """`run`: messages a second, over so many seconds. `pids`: of the servers."""
    before = sum(map(_cpu_seconds, pids))
    per_second = run()
    used = sum(map(_cpu_seconds, pids)) - before
    return Figure(per_second, used / per_second / seconds * 1e6)


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def ours(address: str, load: Load, body_bytes: int, seconds: float) -> float:
    """Messages a second, of a client in a process of its own."""
    arguments = ["--address", address, json.dumps([*load, body_bytes, seconds])]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.broker", *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout)


def send(address: str, text: str) -> float:
    """What that process does."""
    senders, batch, body_bytes, seconds = json.loads(text)
    return asyncio.run(_send(address, Load(senders, batch), body_bytes, seconds))


async def _send(address: str, load: Load, body_bytes: int, seconds: float) -> float:
    body = bytes(body_bytes)
    sent = 0
    async with connect_async(address, timeout_ms=60_000) as broker:
        stop_at = time.monotonic() + seconds

        async def one() -> None:
            nonlocal sent
            while time.monotonic() < stop_at:
                if load.batch == 1:
                    await broker.send(Message("bench", body))
                else:
                    await broker.send_batch([Message("bench", body)] * load.batch)
                sent += load.batch

        begin = time.monotonic()
        await asyncio.gather(*[one() for _ in range(load.senders)])
        return sent / (time.monotonic() - begin)
