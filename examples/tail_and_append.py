"""One task follows the log while another appends to it, with the asyncio client.

python examples/tail_and_append.py                        # a cluster of its own
python examples/tail_and_append.py 127.0.0.1:20911        # a running one
"""

from __future__ import annotations

import asyncio
import sys

from quorumlog import AsyncLedgerClient, LocalCluster, connect_async

MESSAGES = 20


async def follow(log: AsyncLedgerClient, first_index: int) -> None:
    """Print what is appended from `first_index` on."""
    left = MESSAGES
    async for entry in log.tail(first_index):
        print(f"  read {entry.index}: {entry.body.decode()}")
        left -= 1
        if left == 0:
            return


async def main(servers: str) -> None:
    async with connect_async(servers) as log:
        begin = await log.append(b"the tail starts after this one")
        follower = asyncio.create_task(follow(log, begin.last_index + 1))
        for number in range(MESSAGES):
            receipt = await log.append(b"message %d" % number)
            print(f"appended {receipt.first_index}")
        await follower


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(main(sys.argv[1]))
    else:
        with LocalCluster(members=3) as cluster:
            asyncio.run(main(cluster.servers))
