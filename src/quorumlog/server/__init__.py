"""The world: asyncio, sockets, threads, clocks and signals live here and nowhere below.

Read in this order: `connection` (frames over TCP), `peer_link`, `peer_session`, `peer`,
`peer_admission`, `address_probe` and `stalled_peers` (members), `client_session` and `append_streams`
(clients), `disk_thread`, `problem_log`, `node_driver` (the loop around one node),
`ledger_server` (composition), `local_cluster` (a cluster in one process), `free_ports`.
"""

from quorumlog.server.ledger_server import LedgerServer
from quorumlog.server.local_cluster import LocalCluster

__all__ = ["LedgerServer", "LocalCluster"]
