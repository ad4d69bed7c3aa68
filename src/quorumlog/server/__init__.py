"""Asyncio, sockets, threads, clocks and signals: used here and nowhere below.

Read in this order: `disk_thread`, `problem_log`, the room `peers` (members), `waiting_reads`,
`status_report` and `node_driver` (the loop around one node), `users_of_server` (authorization, as known
to one node), the room `clients`, `endpoints` (applications with a port of their own, and state
machines), `ledger_server` (composition), `local_cluster` (a cluster in one process), `free_ports`.
"""

from quorumlog.server.endpoints import Endpoint
from quorumlog.server.ledger_server import LedgerServer
from quorumlog.server.local_cluster import LocalCluster

__all__ = ["Endpoint", "LedgerServer", "LocalCluster"]
