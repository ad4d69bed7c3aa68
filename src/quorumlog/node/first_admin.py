"""FirstAdmin: the administrator that was written into the directory of a stopped member.

A stopped member can append nothing. So `quorumlog init-admin` leaves a file, and the member asks the
leader to write its content as an ordinary change of users, repeatedly until the member has committed it;
then the file is deleted. The leader skips a change that is already made.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec

from quorumlog.consensus.messages import FirstAdminRequest
from quorumlog.consensus.ready import Envelope, Role
from quorumlog.errors import DirectoryDamaged, ProtocolViolation
from quorumlog.log_state.control_entries import USERS_LEVEL
from quorumlog.log_state.users import UserOperation, UserOrder, Users, has_become_admin
from quorumlog.node.known_users import KnownUsers
from quorumlog.node.log_states import LogStateKeeper
from quorumlog.node.operator_orders import OperatorOrders
from quorumlog.node.ports import Member, raise_failure

ASK_EVERY_MS = 500
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(UserOrder).decode
ADMIN_OPERATIONS = (UserOperation.INIT_ADMIN, UserOperation.RESET_ADMIN)


class FirstAdmin:
    def __init__(
        self,
        member: Member,
        log_state: LogStateKeeper,
        orders: OperatorOrders,
        known: KnownUsers,
        draw_secret: Callable[[], bytes],
    ) -> None:
        self._directory, self._log_state = member.directory, log_state
        self._raft, self._host = member.raft, member.host
        self._orders = orders
        self._known = known
        self._draw_secret = draw_secret
        self.problem = ""
        self._order: UserOrder | None = None
        self._next_ms = 0.0
        try:
            self._order = self._directory.first_admin()
        except DirectoryDamaged as error:
            self.problem = str(error)

    def next_wakeup_ms(self) -> float:
        return math.inf if self._order is None else self._next_ms

    def tick(self, now_ms: float) -> None:
        if self._order is None:
            return
        order, users = self._order, self._known.look(now_ms)
        # At each look: what another member has for the same user may take its place a moment later.
        if isinstance(users, Users) and has_become_admin(users, order):
            self._over("")
            return
        if now_ms < self._next_ms:
            return
        self._next_ms = now_ms + ASK_EVERY_MS
        self.problem = f"{order.name} is to become an administrator, and is not one yet"
        if isinstance(users, str):
            self.problem += f": {users}"
        elif order.verb is UserOperation.INIT_ADMIN and users.has_administrator:
            self._over(
                f"{order.name} does not become an administrator: there is one, which can add others (if"
                " it is lost: quorumlog init-admin --help)"
            )
        elif self._raft.role is Role.LEADER:
            self._propose(order, self._answered)
        elif self._log_state.level < USERS_LEVEL:
            self.problem += " (quorumlog upgrade finish comes first)"
        elif self._raft.leader is not None:
            member, term = self._raft.status().replica, self._raft.term
            request = FirstAdminRequest(sender=member, term=term, order=_encode(order))
            self._host.send(Envelope(self._raft.leader, request))

    def _answered(self, outcome: object) -> None:
        if isinstance(outcome, Exception):
            self.problem += f": {outcome}"

    def _over(self, problem: str) -> None:
        self._host.promise_later(self._directory.forget_first_admin, raise_failure)
        self._order, self.problem = None, problem

    def on_request(self, request: FirstAdminRequest) -> None:
        """Of a member; it asks again, so it is not answered. Raises ProtocolViolation."""
        try:
            order = _decode(request.order)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ProtocolViolation(f"no order of an administrator: {error}") from None
        if order.verb in ADMIN_OPERATIONS:
            self._propose(order, lambda outcome: None)

    def _propose(self, order: UserOrder, done: Callable[[object], None]) -> None:
        """But once, however long it takes until it is committed."""
        state = self._log_state.appended
        if state is not None and not has_become_admin(state.users, order):
            self._orders.change_users(order, self._draw_secret(), done)
