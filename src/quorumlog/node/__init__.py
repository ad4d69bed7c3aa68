"""One member: the core, a store and the order of effects. Synchronous, without sockets or clocks.

`LedgerNode` is wrapped in a loop by the server and in virtual time by a simulator. Read in this order:
`ports` (what a node asks of its host), `entry_filler`, `pending_appends`, `transfers`, `sending`,
`reading`, `repair`, `installing` (a log that begins anew), `log_states`, `log_clock`, `operator_orders`,
`producer_sessions`, `writing`, `retention`, `reader_moves`, `lost_directories`, `member_changes`, the
room `applying`, `housekeeping` (what waits for the pauses between appends), `node_parts` (what a member
is made of), `messages_beside` (what never enters the core), `ledger_node`, `door_member` (what an
application with a protocol of its own sees of it); `peer_connections` (what the connections with another
member add up to).
"""

from quorumlog.node.applying.machine_opening import MachineFactory
from quorumlog.node.door_member import DoorMember
from quorumlog.node.ledger_node import LedgerNode
from quorumlog.node.pending_appends import AppendOutcome
from quorumlog.node.ports import Host

__all__ = ["AppendOutcome", "DoorMember", "LedgerNode", "MachineFactory", "Host"]
