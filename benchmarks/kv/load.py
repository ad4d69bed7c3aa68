"""The load client of our store, in a process of its own: so many tasks on one client, each with one
request on its way.

    python -m benchmarks.kv.load SERVERS put|txn|get CLIENTS SECONDS VALUE_BYTES
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

import uvloop

from quorumlog.errors import OutcomeUnknown
from quorumlog.kv import Put, connect_async

PUTS_OF_TXN = 100


async def until_known(put: Callable[[], Awaitable[Any]]) -> None:
    """Again, if nobody knows whether it was carried out: twice is once. A busy machine may elect."""
    while True:
        with suppress(OutcomeUnknown):
            await put()
            return


async def load(servers: str, kind: str, clients: int, seconds: float, value_bytes: int) -> str:
    value = b"v" * value_bytes
    done = 0
    async with connect_async(servers, timeout_ms=60_000) as kv:
        await kv.put("key", value)
        begin = time.monotonic()
        end = begin + seconds

        async def one(client: int) -> None:
            nonlocal done
            number = 0
            while time.monotonic() < end:
                key = f"{client:04}/{number % 1000:06}"
                number += 1
                if kind == "put":
                    await until_known(partial(kv.put, key, value))
                    done += 1
                elif kind == "txn":
                    puts = [Put(f"{key}/{place}".encode(), value) for place in range(PUTS_OF_TXN)]
                    await until_known(partial(kv.txn, then=puts))
                    done += PUTS_OF_TXN
                else:
                    await kv.get("key")
                    done += 1

        await asyncio.gather(*[one(client) for client in range(clients)])
        return f"{done} {time.monotonic() - begin}"


if __name__ == "__main__":
    servers, kind, clients, seconds, value_bytes = sys.argv[1:]
    print(uvloop.run(load(servers, kind, int(clients), float(seconds), int(value_bytes))))
