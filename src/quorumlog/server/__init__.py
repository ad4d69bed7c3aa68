"""Asyncio, sockets, threads, clocks and signals live here and nowhere below.

Read in this order: `disk_thread`, `problem_log`, the room `peers`
(members), `waiting_reads`, `disk_report`, `status_report` and `node_driver` (the loop around one node),
the room `clients`, the room `applications` (state machines, and doors with a port of their own),
`reopening` (another node on a directory whose log was replaced), `ledger_server` (composition),
`local_cluster` (a cluster in one process), `free_ports`.
"""

from quorumlog.server.applications.doors import Door
from quorumlog.server.ledger_server import LedgerServer
from quorumlog.server.local_cluster import LocalCluster

__all__ = ["Door", "LedgerServer", "LocalCluster"]
