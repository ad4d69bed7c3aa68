"""One member: the core, a store and the order of effects. Synchronous, without sockets or clocks.

`LedgerNode` is wrapped in a loop by the server and in virtual time by a simulator. Read in this order:
`ports` (the interface to its host), `pending_appends`, `transfers`, `sending`, `reading`, `repair`,
`installing` (a replaced log), `log_states`, `log_clock`, `operator_orders`, `known_users`,
`first_admin`, `producer_sessions`, `writing`, `retention`, `reader_moves`, `member_changes`; of state
machines `kept_results` (results of sessions, for repeated commands), `machine_runner` (one, on the apply
thread), `snapshot_keeper`, `machine_driver` (one, on the loop), `step_overs`, `state_machine_caller`
(all of them, and their binding to the log); `housekeeping` (work that no append waits for),
`ledger_node` (the parts of a member, the order of effects),
`node_handle` (its interface for an application with a protocol of its own); `peer_connections` (the
combined state of the connections with another member).
"""

from quorumlog.node.ledger_node import LedgerNode
from quorumlog.node.machine_runner import MachineFactory
from quorumlog.node.node_handle import NodeHandle
from quorumlog.node.pending_appends import AppendOutcome
from quorumlog.node.ports import Host

__all__ = ["AppendOutcome", "NodeHandle", "LedgerNode", "MachineFactory", "Host"]
