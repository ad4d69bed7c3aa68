"""Nothing that a member keeps in memory grows without bound; its configuration says how far it may."""

from __future__ import annotations

from quorumlog.entry_header import HEADER_BYTES
from quorumlog.testing.promises import CheckedMember, Checker, Violation


class BoundedMemory(Checker):
    """Looks into private fields: how much a part keeps is nobody's business but a checker's."""

    def turned(self, member: CheckedMember) -> None:
        node = member.node
        raft, consensus, storage = node.raft, node.config.consensus, node.config.storage
        log, pending, waiting = raft.log, node._pending, raft._handler._waiting
        left = len(raft._outbox.messages) + len(raft._outbox.after_durable) + len(node._writer.promised)
        most = consensus.max_waiting_pushes
        limits = [
            (left, 0, "messages or proposals left in the core after a turn"),
            (len(waiting), most, "pushes ahead of the log (max_waiting_pushes)"),
        ]
        # One entry goes however large it is, so a window may run over by one.
        window_bytes = consensus.push_window_bytes + storage.entry_limit_bytes
        for dispatcher in raft.replication.dispatchers.values():
            if dispatcher._window.pushes:
                size_bytes = sum(size for _, size in dispatcher._window.pushes)
                what = f"bytes on their way to {dispatcher.to.member_id} (push_window_bytes)"
                limits.append((size_bytes, window_bytes, what))
        if log._ends:
            # Each stands for an entry at least: of this leader, or pushed by one that awaits our disk.
            ends = (node.config.max_uncommitted_bytes + 2 * window_bytes) // HEADER_BYTES
            limits.append((len(log._ends), 0 if node.is_idle else ends, "undurable changes of the log"))
        if node.is_idle:
            unsent = len(node._flusher._after_durable)
            limits.append((unsent, 0, "acknowledgements that wait for no sync"))
        if pending.proposed_count + len(pending.queued) > 1:
            uncommitted_bytes = pending.proposed_bytes + pending.queued_bytes
            most = node.config.max_uncommitted_bytes
            limits.append((uncommitted_bytes, most, "uncommitted bytes (max_uncommitted_bytes)"))
        for size, limit, what in limits:
            if size > limit:
                raise Violation(
                    f"{member.replica}, {raft.role.value} in term {raft.term}: {size} {what}, limit"
                    f" {limit}"
                )
