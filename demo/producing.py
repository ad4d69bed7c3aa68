"""The producer's own process, and how the demo has it go on, kills it and starts it again.

    demo --stdin--> producer     rows that it may send: a number a line; at the end of its input it ends
    demo <-stdout-- producer     what the log held of it when it connected, then what is acknowledged

The producer keeps nothing on disk. The number of a row in the source is its sequence, so after a start
it asks the log for the last one and goes on behind it.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import uvloop

from harness.producer import Ack, Acknowledged
from quorumlog import connect_async

PRODUCER_ID = "flights"
APPEND_TIMEOUT_MS = 60_000
"""A batch that no leader takes for so long ends the demo."""


class Order(msgspec.Struct, frozen=True):
    """What one producer process is to do."""

    servers: str
    records: str
    """A file with one record a line."""
    batch_records: int
    in_flight: int
    may_send_rows: int


class Connected(msgspec.Struct, frozen=True, tag=True):
    next_row: int
    """The rows before it are in the log."""


class Told(msgspec.Struct, frozen=True, tag=True):
    at_s: float
    rows: int
    term: int


_decoder = msgspec.json.Decoder(Connected | Told)


class ProducerEnded(RuntimeError):
    """The producer has ended by itself, with rows left; the message has its last words."""


class ProducerKill(NamedTuple):
    at_s: float
    """`time.perf_counter`."""
    acknowledged_rows: int
    """Rows acknowledged to it."""
    resumed_at_row: int
    """From there on the next producer sent."""
    seconds_to_resume: float
    """From the kill until the log had told the next one."""


class ProducerProcess(Acknowledged):
    """`run()` has a process send every row; it may be killed, and another one goes on."""

    def __init__(self, folder: Path, records: Sequence[bytes], order: Order) -> None:
        """`order.records` is written here. Records are lines: without a line end inside."""
        super().__init__()
        Path(order.records).write_bytes(b"\n".join(records))
        self._rows = len(records)
        self._order = order
        self._words = folder / "producer.log"
        self._words.unlink(missing_ok=True)
        self._process: asyncio.subprocess.Process | None = None
        self._next_row: asyncio.Future[int] | None = None

    async def run(self) -> None:
        """Returns once every row is acknowledged."""
        try:
            while True:
                status = await self._run_once()
                if self.acknowledged_rows >= self._rows:
                    return
                if status != -9:
                    raise ProducerEnded(
                        f"the producer has ended with status {status}:\n{self._words.read_text()}"
                    )
        finally:
            if self._process is not None and self._process.returncode is None:
                self._process.kill()
                await self._process.wait()

    async def kill(self) -> ProducerKill:
        """SIGKILL; returns when the next process has asked the log where to go on."""
        assert self._process is not None
        at_s = time.perf_counter()
        self._next_row = asyncio.get_running_loop().create_future()
        self._process.kill()
        next_row = await self._next_row
        resumed_s = time.perf_counter()
        assert self.acks
        told = sum(ack.rows for ack in self.acks if ack.at_s <= at_s)
        return ProducerKill(at_s, told, next_row, resumed_s - at_s)

    def may_send(self, rows: int) -> None:
        """The first so many rows."""
        self._order = msgspec.structs.replace(self._order, may_send_rows=rows)
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(b"%d\n" % rows)

    async def _run_once(self) -> int:
        with self._words.open("ab") as words:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "demo.producing",
                msgspec.json.encode(self._order).decode(),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=words,
                start_new_session=True,  # Ctrl-C reaches only the program that ends it
            )
        assert self._process.stdout is not None
        async for line in self._process.stdout:
            if not line.endswith(b"\n"):
                break  # it was killed in the middle of a word
            said = _decoder.decode(line)
            if isinstance(said, Told):
                self._acknowledged(Ack(said.at_s, said.rows, said.term))
                continue
            assert said.next_row >= self.acknowledged_rows, "the log has lost an acknowledged row"
            self.acknowledged_rows = said.next_row  # the log has told of them now
            if self._next_row is not None:
                self._next_row.set_result(said.next_row)
        return await self._process.wait()


# -------------------------------------------------------------------- inside the process


async def produce(order: Order) -> None:
    records = Path(order.records).read_bytes().split(b"\n")
    limit = _Limit(order.may_send_rows)
    async with connect_async(
        order.servers, producer_id=PRODUCER_ID, timeout_ms=APPEND_TIMEOUT_MS
    ) as log:
        next_row = await log.last_sequence() + 1
        _say(Connected(next_row))
        listening = asyncio.create_task(limit.listen())
        room = asyncio.Semaphore(order.in_flight)

        async def send(row: int) -> None:
            batch = records[row : row + order.batch_records]
            receipt = await log.append_batch(batch, sequence=row)
            _say(Told(time.perf_counter(), receipt.count, receipt.term))
            room.release()

        async with asyncio.TaskGroup() as tasks:
            for row in range(next_row, len(records), order.batch_records):
                await limit.reaches(row)
                await room.acquire()
                tasks.create_task(send(row))  # they begin in this order, and so do the appends
        listening.cancel()


class _Limit:
    """Rows that may be sent; rises as standard input says."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._raised = asyncio.Condition()

    async def reaches(self, row: int) -> None:
        if row >= self._rows:
            async with self._raised:
                await self._raised.wait_for(lambda: row < self._rows)

    async def listen(self) -> None:
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        async for line in reader:
            async with self._raised:
                self._rows = int(line)
                self._raised.notify_all()
        # Whoever has started this process is gone.
        raise SystemExit(1)


def _say(said: Connected | Told) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(said) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    uvloop.run(produce(msgspec.json.decode(sys.argv[1], type=Order)))
