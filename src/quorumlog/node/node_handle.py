"""NodeHandle: a member's interface for an endpoint: an application with a protocol of its own, in its
process.

Every call but `enter` is made in a turn of the member, that is, from a callback given to `enter`.
"""

from __future__ import annotations

from collections.abc import Callable

from quorumlog.batch import EntryBatch
from quorumlog.client_guard import answering, guarded
from quorumlog.consensus.ready import Role
from quorumlog.errors import LedgerError
from quorumlog.node.ledger_node import LedgerNode
from quorumlog.node.machine_driver import Answer
from quorumlog.node.pending_appends import AppendOutcome, SessionPlace


class NodeHandle:
    def __init__(
        self,
        node: Callable[[], LedgerNode | None],
        enter: Callable[[Callable[[], None]], None],
        ports: dict[str, str] | None = None,
        enter_now: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:
        """`node`: the one of now; None while the member begins anew. `enter`: see there. `ports`: where
        this process listens, by product; an endpoint adds its own. `enter_now`: see there, or as
        `enter`."""
        self.ports = {} if ports is None else ports
        self._node = node
        self._enter = enter
        self.enter_now = enter if enter_now is None else enter_now
        """As `enter`, in a turn of its own: from a callback of the loop after which nothing gathers."""

    def enter(self, act: Callable[[], None], client: object = None) -> None:
        """Have something done in the next turn, of the member that comes if this one begins anew.
        `client`: the session that has asked, whose connection ends if it cannot be done (see
        `client_guard`)."""
        self._enter(act if client is None else guarded(act, client))

    def node(self) -> LedgerNode:
        node = self._node()
        assert node is not None, "an endpoint acts while there is no member"
        return node

    @property
    def leads_in(self) -> int | None:
        """The term in which this member leads; None: it does not."""
        node = self._node()
        if node is None or node.raft.role is not Role.LEADER:
            return None
        return node.raft.term

    def refusal_unless_leading(self) -> LedgerError | None:
        """Names the leader, if it is known."""
        return self.node().refusal_unless_leading()

    @property
    def is_up(self) -> bool:
        return self._node() is not None

    @property
    def knows_leader(self) -> bool:
        """True if it leads or follows a leader, and no vote waits for the disk: it learns of commits."""
        node = self._node()
        return node is not None and node.raft.leader is not None and not node.is_held

    @property
    def cluster_id(self) -> str:
        """Empty before the group has formed."""
        return self.node().directory.formation.cluster_id

    def append(
        self,
        batch: EntryBatch,
        machine: str,
        timeout_ms: int,
        done: Callable[[AppendOutcome], None],
        owner: object = None,
        *,
        place: SessionPlace | None = None,
        filled: Callable[[object], None] | None = None,
        awaits_results: bool = True,
    ) -> None:
        """See `LedgerNode.append`. `owner`: the requester, here and below."""
        self.node().append(
            batch,
            timeout_ms,
            answering(done, owner),
            owner,
            place=place,
            machine=machine,
            filled=filled,
            awaits_results=awaits_results,
        )

    def ask(
        self,
        machine: str,
        question: bytes,
        timeout_ms: int,
        done: Callable[[Answer], None],
        owner: object,
        *,
        here: bool = False,
    ) -> None:
        """See `StateMachineCaller.ask`: linearizable. `here`: the answer of this member's machine, as
        far as it has applied, under any leader."""
        machines = self.node().machines
        ask = machines.ask_here if here else machines.ask
        ask(machine, question, timeout_ms, answering(done, owner), owner)

    def confirm_read(self, done: Callable[[LedgerError | None], None], owner: object) -> None:
        """`done` gets None once all that was acknowledged before this call, by whatever leader, is
        committed here, or the refusal."""
        self.node().confirmations.request_read(answering(done, owner), owner)

    def discard(self, owner: object) -> None:
        self.node().discard_requests_of(owner)
