"""RunningGroup: what is loaded and watched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from quorumlog.client import AsyncLedgerClient, connect_async, leader_of
from quorumlog.config import DEFAULT_GROUP


class RunningGroup(NamedTuple):
    servers: str
    name: str = DEFAULT_GROUP
    pids: Sequence[int] = ()
    """Processes of its members on this machine, if any."""

    def connect(self, *, in_session: bool = False) -> AsyncLedgerClient:
        """`in_session`: an anonymous producer."""
        return connect_async(self.servers, group=self.name, idempotent=in_session)

    async def leader_address(self) -> str:
        """Where the leader says that it is reached: another member may know it behind a proxy.

        Waits for a leader; raises what the client raises once its deadline has passed.
        """
        async with self.connect() as client:
            while True:
                await client.append(b"who leads?")
                leader = leader_of(await client.status())
                if leader is not None:
                    return leader.address
