"""Read consistency: `read_consistency` on the wire. docs/reads.md"""

from __future__ import annotations

import msgspec

from quorumlog.wire.client_message import Int, Text

READ_INDEX, COMMITTED = "read_index", "committed"
CONSISTENCIES = (READ_INDEX, COMMITTED)


class ReadGuarantee(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Any member may keep it. A server that does not know it would answer anyway: clients check
    `HelloResponse.knows_promises` first."""

    consistency: Text = COMMITTED
    max_staleness_ms: float = -1.0
    """Of `committed`: refuse older state with TooStale; -1: any age."""
    at_least_index: Int = -1
    """Of `committed`: answer once this entry is committed here; -1: at once."""
