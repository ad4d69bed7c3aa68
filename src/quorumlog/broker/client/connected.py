"""Connected: a client that connects when it is made, so that a slip in the address is told at once."""

from __future__ import annotations

from quorumlog.broker.client.async_broker_client import AsyncBrokerClient
from quorumlog.net.loop_thread import ClientShell


class Connected(ClientShell[AsyncBrokerClient]):
    def _connect(self) -> None:
        try:
            self._thread.run(self._it.__aenter__())
        except BaseException:
            self.close()
            raise
