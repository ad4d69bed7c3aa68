"""One member: the core, a store and the order of effects. Synchronous, without sockets or clocks.

`LedgerNode` is wrapped in a loop by the server and in virtual time by a simulator. Read in this order:
`ports` (what a node asks of its host), `pending_appends`, `transfers`, `sending`, `reading`, `repair`,
`installing` (a log that begins anew), `log_states`, `log_clock`, `operator_orders`, `known_users`,
`first_admin`, `producer_sessions`, `writing`, `retention`, `reader_moves`, `member_changes`; of state
machines `kept_results` (those of sessions, for who repeats a command), `machine_runner` (one, on the
thread that applies, from its start on), `snapshot_keeper`, `machine_driver` (one, on the loop),
`step_overs`, `state_machine_caller` (all of them, and how the log comes to bind them); `node_parts`
(what a member is made of), `ledger_node`, `node_handle` (what an application with a protocol of its own
sees of it);
`peer_connections` (what the connections with another member add up to).
"""

from quorumlog.node.ledger_node import LedgerNode
from quorumlog.node.machine_runner import MachineFactory
from quorumlog.node.node_handle import NodeHandle
from quorumlog.node.pending_appends import AppendOutcome
from quorumlog.node.ports import Host

__all__ = ["AppendOutcome", "NodeHandle", "LedgerNode", "MachineFactory", "Host"]
