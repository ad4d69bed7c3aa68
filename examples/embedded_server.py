"""A server inside an application, in the application's own loop: here the only member of its group.

On three machines each application would name all three members, and itself. The data is durable, so the
directory of a real one is not a temporary one.

python examples/embedded_server.py
"""

from __future__ import annotations

import asyncio
import tempfile
from typing import Any

from quorumlog import GroupConfig, LedgerServer, MemberAddress, connect_async
from quorumlog.server.free_ports import free_ports


async def work(address: str) -> None:
    """What the application is there for."""
    async with connect_async(address) as log:
        receipts = await asyncio.gather(*(log.append(b"event %d" % number) for number in range(100)))
        print(f"{len(receipts)} events from index {receipts[0].first_index} on")


async def main(directory: str) -> None:
    member = MemberAddress("n0", "127.0.0.1", free_ports(1)[0])
    config = GroupConfig(member.member_id, (member,), data_dir=directory)
    async with LedgerServer([config]) as server:
        working = asyncio.create_task(work(server.address))
        ends: list[asyncio.Future[Any]] = [working, server.failed]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if server.failure is not None:
            raise SystemExit(f"the log has stopped: {server.failure}")
        await working
    print("stopped")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        asyncio.run(main(directory))
