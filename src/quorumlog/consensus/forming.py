"""Forming: how a group comes to be, once.

    knows every directory -> stores the list as *pending* -> asks all, with a fresh number
        -> every other member has answered that number with the same list -> stores it as *founding*

A majority is not enough to form: a majority of empty directories would form a second group over the
data of the rest. Whoever has formed tells the others, and whoever is told joins; a member that is told
of a list without its own directory (it was wiped) observes. Nothing else ever forms a group, and the
founding list is never changed here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

from quorumlog.config import ConsensusConfig
from quorumlog.consensus.member_state import MemberState
from quorumlog.consensus.messages import FormRequest, FormResponse
from quorumlog.consensus.outbox import Outbox
from quorumlog.consensus.ready import Role
from quorumlog.entry import Formation, Replica

LONGEST_WAIT_FACTOR = 8
"""Questions are repeated after one longest vote wait, then after two, four, eight, eight, ..."""


class Forming:
    """Asks and answers about the founding list; idle once the member has formed."""

    def __init__(
        self,
        config: ConsensusConfig,
        state: MemberState,
        outbox: Outbox,
        rng: Random,
        member_ids: Sequence[str],
        formation: Formation,
    ) -> None:
        assert state.member.member_id in member_ids, (state.member, member_ids)
        self._config = config
        self._state = state
        self._outbox = outbox
        self._random = rng
        self._member_ids = sorted(member_ids)
        self.formation = formation
        self.changed = False
        """`formation` differs from what is stored; the next Ready carries it."""
        self.problem = ""
        self._number = 0
        self._answers: dict[Replica, bool] = {}
        """Who has answered the present number, and whether with our own pending list."""
        self._lists: dict[Replica, tuple[Replica, ...]] = {}
        """The last pending list that each directory told."""
        self._wait_ms = float(config.max_vote_interval_ms)
        self._next_ask_ms = math.inf

    @property
    def _unformed(self) -> bool:
        return self._state.role is Role.UNFORMED

    def start(self) -> None:
        if self._unformed and not self._look_at_list():
            self._ask_all()

    # ---------------------------------------------------------------- asking

    def on_connected(self, voter: Replica) -> None:
        if self._unformed and not self._look_at_list():
            self._ask(voter)

    def advance(self) -> None:
        if self._state.now_ms >= self._next_ask_ms:
            self._ask_all()

    def next_wakeup_ms(self) -> float:
        return self._next_ask_ms if self._unformed else math.inf

    def _look_at_list(self) -> bool:
        """Store the list if one directory of each member on it is known and it is a new one."""
        connected = sorted((*self._outbox.connected, self._state.member))
        pending = tuple(replica for replica in connected if replica.member_id in self._member_ids)
        if [replica.member_id for replica in pending] != self._member_ids:
            return False
        if pending == self.formation.pending and self._number:
            return False
        self.changed |= pending != self.formation.pending
        self.formation = Formation(pending=pending)
        self._wait_ms = float(self._config.max_vote_interval_ms)
        self._ask_all()
        return True

    def _ask_all(self) -> None:
        """A fresh number discards every answer so far: each must hold at one and the same time."""
        self._number = self._random.getrandbits(53)
        self._answers.clear()
        self._next_ask_ms = self._state.now_ms + self._wait_ms
        self._wait_ms = min(
            2 * self._wait_ms, float(LONGEST_WAIT_FACTOR * self._config.max_vote_interval_ms)
        )
        for voter in self._outbox.connected:
            self._ask(voter)
        self._form_if_agreed()

    def _ask(self, voter: Replica) -> None:
        """Or tell it, once formed."""
        self._outbox.send(
            voter,
            FormRequest(
                sender=self._state.member,
                term=self._state.term,
                number=self._number,
                pending=self.formation.pending,
                founding=self.formation.founding,
            ),
        )

    def on_response(self, response: FormResponse) -> None:
        self._lists[response.sender] = response.pending
        if response.founding:
            self._on_told(response.sender, response.founding)
        elif self._unformed and response.number == self._number:
            self._answers[response.sender] = response.pending == self.formation.pending
            self._form_if_agreed()

    def _form_if_agreed(self) -> None:
        pending = self.formation.pending
        if not self._unformed or self._state.member not in pending:
            return
        if all(voter == self._state.member or self._answers.get(voter, False) for voter in pending):
            self._form(pending)
            self._number = 0
            for voter in self._outbox.connected:
                self._ask(voter)

    def _form(self, founding: tuple[Replica, ...]) -> None:
        assert not self.formation.founding, self.formation
        self.formation = Formation.formed(founding, self.formation.pending)
        self.changed = True
        self._next_ask_ms = math.inf
        self._state.form(founding)

    # ---------------------------------------------------------------- answering

    def on_request(self, request: FormRequest) -> None:
        self._lists[request.sender] = request.pending
        if request.founding:
            self._on_told(request.sender, request.founding)
            return
        self._outbox.send(
            request.sender,
            FormResponse(
                sender=self._state.member,
                term=self._state.term,
                number=request.number,
                pending=self.formation.pending,
                founding=self.formation.founding,
            ),
        )
        answered_otherwise = self._answers.get(request.sender) is False
        if self._unformed and answered_otherwise and request.pending == self.formation.pending:
            # It has stored our list since it answered.
            self._ask_all()

    def _on_told(self, teller: Replica, founding: tuple[Replica, ...]) -> None:
        if self._unformed:
            self._form(founding)
        elif founding != self.formation.founding:
            self.problem = (
                f"{teller.member_id} belongs to another cluster: it was founded by {_names(founding)}"
                f" with other directories than this one ({_names(self.formation.founding)})"
            )

    def waits_for(self) -> str:
        """One sentence, empty if this member is a voter."""
        if self._state.role is Role.OBSERVER:
            return (
                f"observer: directory {self._state.member.directory_id} is not among the voters;"
                " waits for a membership change"
            )
        if not self._unformed:
            return ""
        own_ids = ",".join(self._member_ids)
        for teller in self._outbox.connected:
            ids = ",".join(replica.member_id for replica in self._lists.get(teller, ()))
            if ids not in ("", own_ids):
                return f"forming: {teller.member_id} lists members {ids}; this member lists {own_ids}"
        connected = [voter.member_id for voter in self._outbox.connected]
        missing = [
            member_id
            for member_id in self._member_ids
            if member_id not in connected and member_id != self._state.member.member_id
        ]
        if missing:
            return f"forming: waits for {', '.join(missing)} (not connected)"
        return f"forming: waits for the same list of directories at every one of {own_ids}"


def _names(voters: tuple[Replica, ...]) -> str:
    return ",".join(voter.member_id for voter in voters)
