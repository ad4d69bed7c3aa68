"""ClassicUsers: authorization at a classic broker, from the commands in its log.

A broker whose file `users` says that users may exist serves requests while it knows that they are
current: a master while no other can have replaced it; a slave once it has applied all that its master
reported as confirmed, and for `[users] may_be_old_ms` after that report. Until then it answers status
requests only, and takes the master to follow from the last known administrators; else no switch would be
possible without a master.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from contextlib import suppress

from quorumlog.broker.broker_port import BrokerSession
from quorumlog.broker.group_commands import ChangeUsers, refusal_in
from quorumlog.broker.groups.classic_group_log import COMMANDS, ClassicGroupLog
from quorumlog.broker.replication.links import USERS_HEARTBEAT_MS
from quorumlog.broker.replication.replica import BrokerReplica, Heard
from quorumlog.broker.store.log_files import BrokerRole
from quorumlog.broker.store.message_store import USERS_ON, MessageStore
from quorumlog.config import UsersOptions
from quorumlog.errors import BadRequest, DirectoryDamaged, LedgerError, StoreFailure
from quorumlog.log_state.users import (
    KEY_BYTES,
    NO_USERS,
    UserOperation,
    UserOrder,
    Users,
    change_of,
    checked_order,
    has_become_admin,
)
from quorumlog.net.access import Access
from quorumlog.store.state_files import delete_first_admin, load_first_admin
from quorumlog.wire.client_messages import (
    ChangeUsersRequest,
    ChangeUsersResponse,
    UsersRequest,
    users_response,
)

HEARTBEATS = 6
"""Least age allowed for users, in heartbeats: a slave knows its master's state of a report and a
heartbeat ago, which depends on reports as old."""
PROPOSE_EVERY_MS = 500.0
DEFAULTS = UsersOptions()
NOBODY = Users(is_on=True)
LOST_USERS = (
    "the log has lost its users, with a disk or by --unsafe, and every request is refused: stop the"
    " master, and name an administrator (quorumlog init-admin)"
)
LACKS_USERS = (
    "the log lacks the entries that define its users: switch to a broker that knows them, or stop this"
    " one and begin with a new administrator as the only user (quorumlog init-admin --reset)"
)
PLAIN_USERS = (
    "there are users, and --ha-port has no TLS: any host that reaches it may copy the log, and the"
    " password verifiers (docs/security.md)"
)


class ClassicUsers:
    """On the loop."""

    def __init__(
        self,
        store: MessageStore,
        groups: ClassicGroupLog,
        replica: BrokerReplica | None = None,
        options: UsersOptions = DEFAULTS,
        *,
        is_plain: bool = False,
    ) -> None:
        """`replica`: None for a single broker. `is_plain`: slaves need not use TLS. Raises
        ConfigError."""
        self.access = Access()
        self.access.clock = lambda: store.clock() / 1000
        self._store, self._groups, self._replica = store, groups, replica
        self._is_plain = is_plain
        heartbeats_ms = HEARTBEATS * min(store.config.ha_send_heartbeat_interval, USERS_HEARTBEAT_MS)
        self._may_be_old_ms = float(max(options.may_be_old_ms, heartbeats_ms))
        is_slave = replica is not None and replica.has_epochs and replica.role is BrokerRole.SLAVE
        self._is_filled = not is_slave or store.commit_log.max_offset > 0
        """Else it has begun with nothing, and serves nobody until it has caught up."""
        self.access.is_blank = self._is_blank
        self._since_ms = -math.inf
        """When the users were known not to be old."""
        self._led_in: int | None = None
        """The last epoch in which all was carried out as the master."""
        self._awaited: tuple[Heard, int | None] | None = None
        """What is to be carried out until they are known; with the end of its commands, once all of it
        is dispatched."""
        self._had_had_users = store.has_had_users
        """At the last look."""
        self._problem = ""
        self._first: UserOrder | None = None
        """Who is to become an administrator, by the file that was left for this start."""
        self._with_first: tuple[Users | None, Users] = None, NO_USERS
        """Users, and with that one among them."""
        self._propose_at_ms = 0.0
        try:
            self._first = load_first_admin(store.disk, store.root)
        except DirectoryDamaged as error:
            self._problem = str(error)
        groups.taken = self.look
        self.look()

    # ---------------------------------------------------------------- known or not

    def look(self) -> None:
        """Called periodically, and before an answer that depends on applied commands."""
        store, state = self._store, self._groups.state
        if state.users.is_on and not store.has_had_users:
            try:
                store.note_users(USERS_ON)
            except StoreFailure as failure:
                store.on_failure(failure)
                return
            if self._replica is not None:
                self._groups.reads.submit(self._replica.tell_of_users, lambda outcome: None)
        if store.has_had_users and not self._had_had_users:
            self._had_had_users = True
            if not state.users.is_on:  # they may be in what was not carried out
                self._since_ms, self._awaited = -math.inf, None
        now_ms, access = store.clock(), self.access
        until_ms = self._fresh_since_ms(now_ms) + self._may_be_old_ms
        is_fresh = now_ms <= until_ms
        self._is_filled |= is_fresh
        if is_fresh or (self._is_filled and not store.has_users):
            access.good_until_s = until_ms / 1000 if store.has_users else math.inf
            # A log that has lost its users is no log that never had any.
            is_lost = store.has_had_users and not state.users.is_on
            access.learn(NOBODY if is_lost else state.users)
        else:
            why = (
                f"this broker has not heard for {self._may_be_old_ms / 1000:.0f} s what its master has"
                " confirmed, or has not caught up yet: until then its users are unknown"
            )
            access.learn(None, why, self._last())
        replica = self._replica
        if replica is not None:
            # Who follows it now may have known more than it did as a slave.
            leads = self._led_in == replica.epoch
            replica.users_since_ms = self._since_ms if leads else -math.inf

    def _last(self) -> Users | None:
        """Who may say whom to follow while the users are not known: those that were known last, and the
        administrator that was left in this directory."""
        users, order = self._groups.state.users, self._first
        if order is not None and self._with_first[0] is not users:
            self._with_first = users, users
            with suppress(BadRequest):
                change = change_of(users, order, secrets.token_bytes(KEY_BYTES))
                self._with_first = users, users.changed(change)
        last = users if order is None else self._with_first[1]
        return last if last.is_on else None

    def _is_blank(self) -> bool:
        store = self._store
        return not (self._is_filled or store.has_users or store.commit_log.max_offset)

    def _fresh_since_ms(self, now_ms: float) -> float:
        groups, replica = self._groups, self._replica
        if groups.led_in is not None and groups.follower.is_whole:
            self._led_in = groups.led_in
        if replica is None:
            return -math.inf if self._led_in is None else now_ms
        if replica.role is BrokerRole.SLAVE:
            self._hear()
        elif self._led_in == replica.epoch:
            self._since_ms = max(self._since_ms, replica.sure_since_ms)
        return self._since_ms

    def _hear(self) -> None:
        store, follower = self._store, self._groups.follower
        heard = self._replica.heard if self._replica is not None else None
        if self._awaited is None or heard is None or heard.follows != self._awaited[0].follows:
            self._awaited = None if heard is None or heard.at_ms <= self._since_ms else (heard, None)
        if self._awaited is None:
            return
        awaited, commands = self._awaited
        if commands is None and store.reput.reput_from_offset >= awaited.confirm_offset:
            queue = store.queues.get(COMMANDS)
            commands = 0 if queue is None else queue.max_offset
            self._awaited = awaited, commands
        at = follower.next_command if follower.is_of_the_log and follower.is_whole else None
        if commands is not None and at is not None and at >= commands:
            self._since_ms, self._awaited = max(self._since_ms, awaited.at_ms), None

    @property
    def newest(self) -> Users | None:
        """The last that were known. None: there may be some, and this broker does not know them yet."""
        users = self.access.users or self.access.last
        return users or (None if self._store.has_users else NO_USERS)

    @property
    def words(self) -> str:
        """For `status`."""
        users = self.access.users
        return "unknown" if users is None else "on" if users.is_on else "off"

    @property
    def problems(self) -> list[str]:
        is_plain = self._is_plain and self._store.has_users
        is_lost = self.access.users is NOBODY
        lacks_users = self._store.has_users and self._groups.lacks_commands
        words = ((is_plain, PLAIN_USERS), (is_lost, LOST_USERS), (lacks_users, LACKS_USERS))
        return [each for is_so, each in ((bool(self._problem), self._problem), *words) if is_so]

    # ---------------------------------------------------------------- changes

    def tick(self) -> None:
        self.look()
        order, users, now_ms = self._first, self.access.users, self._store.clock()
        if order is None:
            return
        is_init, lacks = order.verb is UserOperation.INIT_ADMIN, self._groups.lacks_commands
        if users is not None and has_become_admin(users, order):
            self._over("")
        elif users is not None and is_init and users.has_administrator:
            self._over(
                f"{order.name} does not become an administrator: there is one, which adds others (the"
                " help of quorumlog init-admin says what to do if that one is lost)"
            )
        elif not self._groups.is_master or (users is None and (is_init or not lacks)):
            self._problem = f"{order.name} becomes an administrator once this broker is the master"
            if lacks:
                self._problem += ", and knows the users"
        elif now_ms >= self._propose_at_ms:
            self._propose_at_ms = math.inf
            self._problem = f"{order.name} is to become an administrator, and is not one yet"
            try:
                if lacks:
                    self._begin_anew(order)
                else:
                    self._change(order, self._told)
            except LedgerError as error:
                self._told(error)

    def _told(self, error: LedgerError | None) -> None:
        self._propose_at_ms = self._store.clock() + PROPOSE_EVERY_MS
        if error is not None and self._first is not None:
            self._problem += f": {error}"

    def _over(self, problem: str) -> None:
        try:
            delete_first_admin(self._store.disk, self._store.root)
        except StoreFailure as failure:
            self._store.on_failure(failure)
            return
        self._first, self._problem = None, problem

    def request(self, session: BrokerSession, message: ChangeUsersRequest | UsersRequest) -> None:
        """Raises LedgerError."""
        request_id = message.request_id
        if not self._groups.is_master:
            raise self._groups.not_master()
        if isinstance(message, UsersRequest):
            session.answer(users_response(request_id, self._groups.state.users))
            return

        def changed(error: LedgerError | None) -> None:
            if error is None:
                index = self._groups.follower.next_command or 0
                session.answer(ChangeUsersResponse(request_id=request_id, index=index - 1))
            else:
                session.refuse(request_id, error)

        self._change(checked_order(message.order), changed)

    def _change(self, order: UserOrder, done: Callable[[LedgerError | None], None]) -> None:
        """Raises BadRequest."""
        groups = self._groups
        if groups.lacks_commands:
            raise BadRequest(LACKS_USERS)
        change_of(groups.state.users, order, b"")  # nobody is told of users for what is none
        command = ChangeUsers(order, secrets.token_bytes(KEY_BYTES))
        self._note(
            done, lambda: groups.propose(lambda: command, lambda outcome: done(refusal_in(outcome)))
        )

    def _begin_anew(self, order: UserOrder) -> None:
        """Raises BadRequest."""
        users = NO_USERS.changed(change_of(NO_USERS, order, secrets.token_bytes(KEY_BYTES)))

        def begin() -> None:
            self._groups.begin_anew(users)
            self._told(None)

        self._note(self._told, begin)

    def _note(self, failed: Callable[[LedgerError | None], None], then: Callable[[], None]) -> None:
        """That there are users from here on. Raises BadRequest."""
        store, groups, replica = self._store, self._groups, self._replica
        if replica is not None and not replica.has_epochs:
            raise BadRequest("with --ha-dialect rocketmq a broker has no users: slaves hear of none")

        def noted(outcome: object) -> None:
            if isinstance(outcome, StoreFailure):
                store.on_failure(outcome)
            elif isinstance(outcome, LedgerError):
                failed(outcome)
            elif not groups.is_master:
                failed(groups.not_master())
            else:
                then()

        note = store.note_users if replica is None else replica.note_users
        groups.reads.submit(note, noted)
