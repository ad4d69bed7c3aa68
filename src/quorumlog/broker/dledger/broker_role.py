"""RolePassThrough: the role of a member is the role of its broker. Nobody else has a say in who leads.

    leader              master, once every entry of earlier leaders is committed and dispatched here
    follower, candidate slave

A member that leads asks its machines one linearizable question: a majority confirms that it leads, an
entry of its term is committed, and so is all before it; the answer comes when that is applied. Until
then nothing is let in, so what the machine of the messages says is true of the whole log. A master that
loses its majority commits nothing, and acknowledges nothing; it needs no clock to know that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from quorumlog.broker.dledger.message_entries import MACHINE_NAME
from quorumlog.broker.dledger.message_filler import MessageFiller
from quorumlog.broker.dledger.message_machine import QueueEndsAnswer
from quorumlog.broker.message_log import Role
from quorumlog.broker.messages.record_batch import QueueKey
from quorumlog.errors import CommandError, ConfigError, LedgerError
from quorumlog.node import DoorMember
from quorumlog.node.applying.machine_driver import Answer

MASTER_ID = 0
ASK_TIMEOUT_MS = 10_000


class RoleState(NamedTuple):
    role: Role
    """SYNC_MASTER: it is acknowledged what a majority holds; or SLAVE."""
    broker_id: int
    """0: the master; a slave's is the number in its member's id, and one."""
    term: int
    master_id: str
    """Member that leads, as far as is known; it may not be master yet. Empty: none is known."""

    @property
    def is_master(self) -> bool:
        return self.role is Role.SYNC_MASTER


def slave_id_of(member_id: str) -> int:
    """Raises ConfigError: a broker's id is made of the number in its member's."""
    digits = member_id[len(member_id.rstrip("0123456789")) :]
    if not digits:
        raise ConfigError(
            f"the member id {member_id!r} ends with no number, of which its broker id is made: name"
            " members like n0, n1, n2"
        )
    return int(digits) + 1


RoleStateListener = Callable[[RoleState], None]


class RolePassThrough:
    """On the loop."""

    def __init__(
        self,
        member: DoorMember,
        member_id: str,
        filler: MessageFiller,
        machines: Sequence[str],
        listeners: Sequence[RoleStateListener],
    ) -> None:
        """`machines`: names of all that have to be up to date before the member is master."""
        self._member = member
        self._slave_id = slave_id_of(member_id)
        self._member_id = member_id
        self._filler = filler
        self._machines = tuple(machines)
        self._listeners = list(listeners)
        self._asked_term: int | None = None
        self._answers: dict[str, bytes] = {}
        self.state = RoleState(Role.SLAVE, self._slave_id, 0, "")
        self.why_not = ""
        """In a sentence, why a member that leads is not master yet."""

    def add_listener(self, listener: RoleStateListener) -> None:
        self._listeners.append(listener)

    def look(self) -> None:
        """In a turn of the member: whenever its role has changed, and every now and then."""
        if not self._member.is_up:
            self._become(RoleState(Role.SLAVE, self._slave_id, self.state.term, ""))
            return
        raft, term = self._member.node().raft, self._member.leads_in
        leader = "" if raft.leader is None else raft.leader.member_id
        if self._filler.term is not None and self._filler.term != term:
            self._filler.end()
        if term is None:
            self._asked_term = None
            self.why_not = ""
            self._become(RoleState(Role.SLAVE, self._slave_id, raft.term, leader))
        elif self._filler.term == term:
            self._become(RoleState(Role.SYNC_MASTER, MASTER_ID, term, self._member_id))
        else:
            self._become(RoleState(Role.SLAVE, self._slave_id, term, leader))
            if self._asked_term != term:
                self._ask(term)

    def _ask(self, term: int) -> None:
        self._asked_term = term
        self._answers.clear()
        for machine in self._machines:

            def answered(answer: Answer, machine: str = machine) -> None:
                self._answered(term, machine, answer)

            self._member.ask(machine, b"", ASK_TIMEOUT_MS, answered, self)

    def _answered(self, term: int, machine: str, answer: Answer) -> None:
        if self._asked_term != term or self._member.leads_in != term:
            return
        if isinstance(answer, LedgerError) and not isinstance(answer, CommandError):
            self.why_not = f"{machine}: {answer}"
            self._asked_term = None  # asked again at the next look
            return
        # A machine that refuses the question has applied what came before it all the same.
        self._answers[machine] = b"" if isinstance(answer, LedgerError) else answer[0]
        if len(self._answers) < len(self._machines):
            return
        ends = msgspec.msgpack.decode(self._answers[MACHINE_NAME], type=QueueEndsAnswer)
        self.why_not = ""
        self._filler.begin(
            term,
            {QueueKey(topic, queue_id): end for topic, queue_id, end in ends.queues},
            ends.last_time_ms,
            ends.end_position,
        )
        self.look()

    def _become(self, state: RoleState) -> None:
        if state == self.state:
            return
        self.state = state
        for listener in self._listeners:
            listener(state)
