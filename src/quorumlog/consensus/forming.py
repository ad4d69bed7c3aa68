"""Forming: how a group comes to be, once.

    knows every directory -> stores the list as *pending* -> asks all, with a fresh number
        -> every other member has answered that number with the same list and the same cluster id
        -> stores both as *founding* list and cluster id

The first on the list draws the cluster id when it stores a list that is new to it. The others adopt it
once it reports the list that they hold themselves; without an id no member forms.

A majority is not enough to form: a majority of empty directories would form a second group over the data
of the rest. A formed member informs the others, and they join; a member that learns of a list without
its own directory (it was wiped) observes. Nothing else ever forms a group, and the founding list and the
cluster id are never changed here.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from random import Random

import msgspec

from quorumlog.config import ConsensusConfig
from quorumlog.consensus.member_state import MemberState, Outbox
from quorumlog.consensus.messages import FormRequest, FormResponse
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
        level: int,
    ) -> None:
        """`level`: of the log's format, up to which this member knows it."""
        assert state.member.member_id in member_ids, (state.member, member_ids)
        self._config = config
        self._state = state
        self._outbox = outbox
        self._random = rng
        self._member_ids = sorted(member_ids)
        self.formation = formation
        self._level = level
        self.changed = False
        """`formation` differs from the stored one; the next Ready carries it."""
        self.problem = ""
        self._number = 0
        self._answers: dict[Replica, bool] = {}
        """Directories that have answered the present number, and whether with our own pending list and
        id."""
        self._levels: dict[Replica, int] = {}
        """The last answer of each directory."""
        self._lists: dict[Replica, tuple[Replica, ...]] = {}
        """The last pending list that each directory reported."""
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
        """Store the list if one directory of each member on it is known and it is a new one, or has no
        id although it is this member's to draw."""
        connected = sorted((*self._outbox.connected, self._state.member))
        pending = tuple(replica for replica in connected if replica.member_id in self._member_ids)
        if [replica.member_id for replica in pending] != self._member_ids:
            return False
        formation = self.formation if pending == self.formation.pending else Formation(pending)
        if pending[0] == self._state.member and not formation.pending_id:
            formation = formation._replace(pending_id=f"{self._random.getrandbits(128):032x}")
        if formation == self.formation and self._number:
            return False
        self._store_pending(formation)
        return True

    def _adopt_id(self, message: FormRequest | FormResponse) -> None:
        """If it is the first on the list who says it, of the list that is stored here too."""
        pending = self.formation.pending
        if (
            pending
            and message.sender == pending[0]
            and message.pending == pending
            and message.cluster_id not in ("", self.formation.pending_id)
        ):
            self._store_pending(Formation(pending, pending_id=message.cluster_id))

    def _store_pending(self, formation: Formation) -> None:
        self.changed |= formation != self.formation
        self.formation = formation
        self._wait_ms = float(self._config.max_vote_interval_ms)
        self._ask_all()

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
        self._send(voter, FormRequest, self._number)

    def _send(self, to: Replica, kind: type[FormRequest | FormResponse], number: int) -> None:
        formation = self.formation
        self._outbox.send(
            to,
            kind(
                sender=self._state.member,
                term=self._state.term,
                number=number,
                pending=formation.pending,
                founding=formation.founding,
                cluster_id=formation.cluster_id or formation.pending_id,
                level=self._level if self._unformed else formation.level,
            ),
        )

    def on_response(self, response: FormResponse) -> None:
        self._lists[response.sender] = response.pending
        if response.founding:
            self._on_message(response)
        elif self._unformed:
            self._adopt_id(response)
            if response.number == self._number:
                self._answers[response.sender] = self._agrees(response)
                self._levels[response.sender] = response.level
                self._form_if_agreed()

    def _agrees(self, message: FormRequest | FormResponse) -> bool:
        """An earlier release says no id: it does not know whether it holds ours."""
        own_id = self.formation.pending_id
        return own_id != "" and (message.pending, message.cluster_id) == (self.formation.pending, own_id)

    def _form_if_agreed(self) -> None:
        pending, cluster_id = self.formation.pending, self.formation.pending_id
        if not self._unformed or self._state.member not in pending:
            return
        if all(voter == self._state.member or self._answers.get(voter, False) for voter in pending):
            others = [self._levels.get(voter, 0) for voter in pending if voter != self._state.member]
            self._form(pending, cluster_id, min([self._level, *others]))
            self._number = 0
            for voter in self._outbox.connected:
                self._ask(voter)

    def _form(self, founding: tuple[Replica, ...], cluster_id: str, level: int) -> None:
        assert cluster_id and not self.formation.founding, (cluster_id, self.formation)
        self.formation = Formation(self.formation.pending, founding, cluster_id, level=level)
        self.changed = True
        self._next_ask_ms = math.inf
        self._state.form(founding)

    # ---------------------------------------------------------------- answering

    def on_request(self, request: FormRequest) -> None:
        self._lists[request.sender] = request.pending
        if request.founding:
            self._on_message(request)
            return
        if self._unformed:
            self._adopt_id(request)
        self._send(request.sender, FormResponse, request.number)
        answered_otherwise = self._answers.get(request.sender) is False
        if self._unformed and answered_otherwise and self._agrees(request):
            # It has stored our list and id since it answered.
            self._ask_all()

    def _on_message(self, message: FormRequest | FormResponse) -> None:
        founding = message.founding
        if self._unformed:
            # Who says no id is of an earlier release. If it is a founder, nobody has formed with an id
            # that was drawn: it would have had to say that id itself. An observer knows too little.
            if message.cluster_id or message.sender in founding:
                self._form(
                    founding, message.cluster_id or id_of_earlier_release(founding), message.level
                )
        elif founding != self.formation.founding:
            own = _names(self.formation.founding)
            self.problem = (
                f"{message.sender.member_id} belongs to another cluster: it was founded by"
                f" {_names(founding)} with other directories than this one ({own})"
            )

    def waits_for(self) -> str:
        """One sentence, empty if this member may lead."""
        if not self._unformed:
            return self._state.waits_for
        own_ids = ",".join(self._member_ids)
        for teller in self._outbox.connected:
            ids = ",".join(replica.member_id for replica in self._lists.get(teller, ()))
            if ids not in ("", own_ids):
                return f"forming: {teller.member_id} lists members {ids}; this member lists {own_ids}"
        connected = [voter.member_id for voter in self._outbox.connected]
        for member_id in self._member_ids:
            directories = connected.count(member_id) + (member_id == self._state.member.member_id)
            if directories > 1:
                # Which of them is to be a founder is not for members to decide.
                return (
                    f"forming: {directories} members call themselves {member_id}, each with a directory"
                    " of its own: stop all but one"
                )
        missing = [
            member_id
            for member_id in self._member_ids
            if member_id not in connected and member_id != self._state.member.member_id
        ]
        if missing:
            return f"forming: waits for {', '.join(missing)} (not connected)"
        return f"forming: waits for the same list of directories at every one of {own_ids}"


def id_of_earlier_release(founding: tuple[Replica, ...]) -> str:
    """The cluster id that a member of an earlier release computes."""
    return hashlib.sha256(msgspec.json.encode(sorted(founding))).hexdigest()[:32]


def _names(voters: tuple[Replica, ...]) -> str:
    return ",".join(voter.member_id for voter in voters)
