"""FreshReadWork: somebody who asks whatever member how far the log goes, and is to miss nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from quorumlog.errors import LedgerError
from quorumlog.node.machine_driver import Answer
from quorumlog.testing.machines import DIGEST_NAME
from quorumlog.testing.operations import ClientAnswer
from sim.log.operations import FreshRead

if TYPE_CHECKING:
    from quorumlog.testing.cluster import SimCluster
    from quorumlog.testing.member import SimMember

EVERY_MS = 60.0


class FreshReadWork:
    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._random = cluster.stream("fresh reads")

    def begin(self) -> None:
        self._cluster.at(self._random.expovariate(1 / EVERY_MS), self._work)

    def _work(self) -> None:
        if not self._cluster.clients_work:
            return
        self.begin()
        up = self._cluster.up()
        if up:
            member = self._random.choice(up)
            for _ in range(self._random.choice((1, 1, 3))):
                self.ask(member)

    def ask(self, member: SimMember) -> FreshRead:
        """A linearizable read; what comes of it appears in the result as time passes."""
        cluster = self._cluster
        read = FreshRead(member.member_id, cluster.now_ms, cluster.operations.acknowledged_index)

        def done(refusal: LedgerError | None) -> None:
            read.refusal = refusal
            what = "granted" if refusal is None else type(refusal).__name__
            cluster.trace.count(f"fresh read: {member.node.raft.role.value} {what}")
            if refusal is None:
                read.index = member.node.committed_index
                cluster.notify("read_freshly", read)
                if cluster.profile.runs_machines:
                    self._ask_machine(member, read.acknowledged_index)

        member.enter(lambda: member.node.confirmations.request_read(done))
        return read

    def _ask_machine(self, member: SimMember, acknowledged_index: int) -> None:
        """Of a member whose read was granted: its machine answers as freshly."""
        cluster = self._cluster

        def on_answer(answer: Answer) -> None:
            if not isinstance(answer, LedgerError):
                cluster.trace.count("question: answered freshly")
                client_answer = ClientAnswer(member.member_id, acknowledged_index, answer[1])
                cluster.notify("machine_answered", client_answer)

        member.node.machines.ask_here(DIGEST_NAME, b"", 1000, on_answer, self)
