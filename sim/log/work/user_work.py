"""UserWork: users come, change and go, administrators are left in directories of stopped members, and
clients of all of them, and of nobody, ask every member for what they may and may not.

The ports are the product's: `UsersOfServer` looks, and `ClientSession` lets through.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from quorumlog.batch import EntryBatch
from quorumlog.config import DEFAULT_GROUP, UsersOptions
from quorumlog.consensus.ready import Role
from quorumlog.errors import LedgerError
from quorumlog.log_state.users import (
    ADMINISTRATORS,
    ITERATIONS,
    KEY_BYTES,
    SALT_BYTES,
    Kind,
    Right,
    RoleGrant,
    UserOperation,
    UserOrder,
    Users,
    Verifier,
)
from quorumlog.net.errors import ErrorResponse, error_of
from quorumlog.net.frame import Frame
from quorumlog.node.operator_orders import UsersOutcome
from quorumlog.server.clients.client_session import ClientSession
from quorumlog.server.users_of_server import Timer, UsersOfServer
from quorumlog.store.state_files import MEMBER_NAME, save_first_admin
from quorumlog.testing.operations import ClientAppend
from quorumlog.testing.promises import CheckedMember, Violation
from quorumlog.wire.client_messages import AppendRequest, ReadRequest, ReadResponse
from sim.log.checkers.known_rights import MAY_BE_OLD_MS
from sim.log.checkers.log_checker import LogChecker
from sim.log.operations import Served
from sim.log.sessions import SessionDriver

if TYPE_CHECKING:
    from random import Random

    from quorumlog.testing.cluster import SimCluster
    from quorumlog.testing.member import SimMember

GROUP = DEFAULT_GROUP.encode()
FIRST_MS, ORDER_EVERY_MS, LEFT_EVERY_MS, ASK_EVERY_MS = 4_000.0, 500.0, 4_000.0, 150.0
MOVES = 0.1
"""So often a client connects to another member before it asks."""
LATENCY_MS = (0.05, 2.0)
WAIT_LOOKS = 10
"""A read that waits has ended when its member has looked so often since its right went."""
logging.getLogger("quorumlog.audit").addHandler(logging.NullHandler())  # else it goes to stderr
ROOT = "root"
NAMES, ROLES = ("ann", "bob", "cid"), ("r0", "r1", "r2")
GRANTS = tuple(
    RoleGrant(right, Kind.LOG, name, is_exact)
    for right in Right
    for name, is_exact in ((GROUP, True), (GROUP[:3], False), (b"other", True))
)


class _Timer:
    def __init__(self, act: Callable[[], None]) -> None:
        self._act: Callable[[], None] | None = act

    def cancel(self) -> None:
        self._act = None

    def __call__(self) -> None:
        if self._act is not None:
            self._act()


class _Driver(SessionDriver):
    def enter(self, connection: Any, frame: Frame) -> None:
        if isinstance(frame.message, AppendRequest):
            connection.serves(Right.WRITE, "append")
        super().enter(connection, frame)


class _Port:
    """Of one process of a member."""

    def __init__(self, member: SimMember) -> None:
        self._member = member
        self.driver = driver = _Driver(member)
        self.connections: list[_Connection] = []
        self._role = member.node.raft.role
        self.users = UsersOfServer(
            DEFAULT_GROUP,
            lambda: cast(Any, {DEFAULT_GROUP: driver}),
            is_plain=False,
            options=UsersOptions(may_be_old_ms=MAY_BE_OLD_MS),
            clock=lambda: member.local_ms / 1000,
            later=self._later,
        )
        self.users.access.moved.append(lambda: member.enter(driver.reads.wake))
        self._look(self.users.look)

    def _later(self, after_s: float, act: Callable[[], None]) -> Timer:
        timer = _Timer(partial(self._look, act))
        self._member.later(1000 * after_s, timer)
        return timer

    def turned(self) -> None:
        """As servers do, it looks when its member's role has changed."""
        role, self._role = self._role, self._member.node.raft.role
        if self._role is not role:
            self._look(self.users.look)

    def _look(self, act: Callable[[], None]) -> None:
        act()
        self._member.cluster.notify("users_looked_at", self._member, self.users.access.users)
        for connection in self.connections:
            connection.looked()


class _Connection:
    """Of a client whose certificate says who it is."""

    is_full = False

    def __init__(self, cluster: SimCluster, port: _Port, user: str) -> None:
        self._cluster = cluster
        self._port = port
        self.member = port.driver.member
        self.user, self.peer_name = user, "10.0.0.9:1"
        self.closed = False
        self.waiting: dict[int, int] = {}
        """Reads that wait, and from which entry on they are."""
        self._looks = 0
        """Of the member, since some of them lack their right."""
        self.appends: dict[int, ClientAppend] = {}
        self.session = ClientSession(
            *(cast(Any, self), cast(Any, {DEFAULT_GROUP: port.driver}), lambda connection_id: None),
            port.users,
        )
        port.connections.append(self)

    @property
    def is_up(self) -> bool:
        return not self.closed and self._port.driver.is_up

    def serves(self, right: Right, what: str) -> None:
        self._cluster.trace.count(f"users: {what} let through")
        self._cluster.notify("served", self.member, Served(self.user, right, what))

    # ---------------------------------------------------------------- as a connection: what is answered

    def send(self, group: str, message: Any, batch: EntryBatch | None = None) -> None:
        number = message.request_id
        self.waiting.pop(number, None)
        append = self.appends.pop(number, None)
        if isinstance(message, ReadResponse) and batch is not None:
            self.serves(Right.READ, "read")
        elif isinstance(message, ErrorResponse):
            refusal = error_of(message)
            self._cluster.trace.count(f"users: {type(refusal).__name__}")
            if append is not None:
                append.outcome, append.returned_ms = refusal, self._cluster.now_ms
                self._cluster.notify("appended", append)

    def looked(self) -> None:
        users, end_index = self._port.users.access.users, self.member.node.committed_index
        waits = any(first_index > end_index for first_index in self.waiting.values())
        knows = users is not None and users.is_on
        if users is None or not (waits and knows) or _may(users, self.user, Right.READ):
            self._looks = 0
            return
        self._looks += 1
        if self._looks > WAIT_LOOKS:
            raise Violation(f"a read of {self.user or 'nobody'} waits at {self.member.replica}: {users}")

    def leave(self) -> None:
        self.closed = True
        self._port.connections.remove(self)
        if self._port.driver.is_up:
            self.member.enter(self.session.lost)


def _may(users: Users, user: str, right: Right) -> bool:
    return users.rights_of(user).may(right, Kind.LOG, GROUP)


class UserPorts(LogChecker):
    """Told of each process that begins, it serves there."""

    def __init__(self, cluster: SimCluster) -> None:
        super().__init__(cluster)
        self.by_place: dict[str, _Port] = {}

    def started(self, member: CheckedMember) -> None:
        self.by_place[member.place] = _Port(cast("SimMember", member))

    def turned(self, member: CheckedMember) -> None:
        port = self.by_place[member.place]
        port.turned()
        port.driver.reads.committed(member.node.committed_index)


class SimUser:
    def __init__(self, cluster: SimCluster, ports: UserPorts, name: str) -> None:
        """`name`: empty: it says none."""
        self._cluster = cluster
        self._ports = ports
        self.name = name
        self._random: Random = cluster.stream(f"user {name!r}")
        self._connection: _Connection | None = None
        self._requests = 0

    def work(self) -> None:
        self._cluster.at(self._random.expovariate(1 / ASK_EVERY_MS), self.work)
        if not self._cluster.clients_work:
            return
        connection = self._connection
        if connection is None or not connection.is_up or self._random.random() < MOVES:
            up = self._cluster.up()
            if connection is not None and not connection.closed:
                connection.leave()
            self._connection = connection = self.connect(self._random.choice(up)) if up else None
        if connection is not None:
            self._ask(connection)

    def connect(self, member: SimMember) -> _Connection:
        return _Connection(self._cluster, self._ports.by_place[member.place], self.name)

    def _ask(self, connection: _Connection) -> None:
        kind = self._random.random()
        if kind < 0.3:
            self.append(connection)
        else:
            end_index = self._cluster.operations.acknowledged_index
            behind = self._random.choice((0, 5, 1000))
            wait_ms = 60_000 if kind > 0.8 else 0
            self.read(connection, max(0, end_index - behind) + 50 * (kind > 0.8), wait_ms)

    def read(self, connection: _Connection, first_index: int, wait_ms: int = 0) -> None:
        self._requests += 1
        request = ReadRequest(request_id=self._requests, first_index=first_index, wait_ms=wait_ms)
        self._say(connection, request)

    def append(self, connection: _Connection) -> ClientAppend:
        cluster = self._cluster
        number = len(cluster.operations.appends) + 1
        append = ClientAppend(number, (b"%d.0." % number,), connection.member.member_id, cluster.now_ms)
        cluster.operations.appends.append(append)
        self._requests += 1
        request = AppendRequest(request_id=self._requests, timeout_ms=1_000)
        connection.appends[self._requests] = append
        self._say(connection, request, EntryBatch.from_bodies(append.bodies))
        return append

    def _say(self, connection: _Connection, request: Any, batch: EntryBatch | None = None) -> None:
        def take() -> None:
            if not connection.closed:
                if isinstance(request, ReadRequest) and request.wait_ms:
                    connection.waiting[request.request_id] = request.first_index
                connection.session.frame(Frame(DEFAULT_GROUP, request, batch))

        def arrive() -> None:
            if connection.is_up:
                connection.member.enter(take)

        self._cluster.at(self._random.uniform(*LATENCY_MS), arrive)


class UserWork:
    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._random = cluster.stream("users")
        self.ports = UserPorts(cluster)
        cluster.checkers.append(self.ports)
        self.users = [SimUser(cluster, self.ports, name) for name in ("", ROOT, *NAMES)]

    def begin(self) -> None:
        for user in self.users:
            user.work()
        first_ms = self._random.choice((0.0, FIRST_MS))
        self._cluster.at(first_ms + self._random.expovariate(1 / ORDER_EVERY_MS), self._order)
        self._cluster.at(first_ms + self._random.expovariate(1 / LEFT_EVERY_MS), self._leave_one)

    @property
    def is_settled(self) -> bool:
        """Who is left at a member of the group is an administrator."""
        return all(
            member.node.first_admin.next_wakeup_ms() == math.inf
            for member in self._cluster.up()
            if member.node.raft.role is not Role.OBSERVER
        )

    # ---------------------------------------------------------------- by command

    def _order(self) -> None:
        cluster = self._cluster
        if not cluster.is_faulty:
            return
        cluster.at(self._random.expovariate(1 / ORDER_EVERY_MS), self._order)
        leading = cluster.leading()
        if leading:
            self.order_at(self._random.choice(leading))

    def order_at(self, leader: SimMember) -> None:
        def done(outcome: UsersOutcome) -> None:
            how = type(outcome).__name__ if isinstance(outcome, LedgerError) else "done"
            self._cluster.trace.count(f"users: a change {how}")

        def ask() -> None:
            state = leader.node.log_state.appended
            if state is not None:
                order = self._random.choice(self._orders(state.users))
                secret = self._random.randbytes(KEY_BYTES)
                leader.node.orders.change_users(order, secret, done)

        leader.enter(ask)

    def _orders(self, users: Users) -> list[UserOrder]:
        """Each of them would change something."""
        operation = UserOperation
        if not users.is_on:
            return [UserOrder(operation.ADD_USER, ROOT, (ADMINISTRATORS,), (), self.verifier())]
        found = [UserOrder(operation.ADD_ROLE, role) for role in ROLES if users.role(role) is None]
        for name in NAMES:
            user = users.user(name)
            if user is None:
                found.append(UserOrder(operation.ADD_USER, name, (), (), self.verifier()))
                continue
            found += [
                UserOrder(operation.REMOVE_USER, name),
                UserOrder(operation.SET_PASSWORD, name, (), (), self.verifier()),
            ]
            for role in users.roles:
                has_it = role.name in user.roles
                change = operation.TAKE_ROLES if has_it else operation.GIVE_ROLES
                found += [UserOrder(change, name, (role.name,))] * 2
        for role in users.roles:
            grant = self._random.choice(GRANTS)
            has_it = grant in role.grants
            found += [
                UserOrder(operation.REVOKE if has_it else operation.GRANT, role.name, (), (grant,))
            ] * 4
        return found

    def verifier(self) -> Verifier:
        draw = self._random.randbytes
        return Verifier(draw(SALT_BYTES), ITERATIONS, draw(KEY_BYTES), draw(KEY_BYTES))

    # ---------------------------------------------------------------- left in a directory

    def _leave_one(self) -> None:
        cluster, random = self._cluster, self._random
        if not cluster.is_faulty:
            return
        cluster.at(random.expovariate(1 / LEFT_EVERY_MS), self._leave_one)
        member = random.choice(cluster.members)
        if not member.is_up or member.is_damaged:
            return
        operation = random.choice((UserOperation.INIT_ADMIN, UserOperation.RESET_ADMIN))
        if not self.leave_at(member, UserOrder(operation, ROOT, (), (), self.verifier())):
            return
        cluster.at(random.uniform(0, 1_000), member.start)
        for _ in range(random.choice((0, 1, 2))):
            after_ms = random.uniform(0, 2_500)
            cluster.at(after_ms, lambda: member.kill() if cluster.is_faulty else None)
            cluster.at(after_ms + random.uniform(0, 1_000), member.start)
        if random.random() < 0.3:
            others = [each for each in cluster.member_ids if each != member.member_id]
            ways = {
                way for each in others for way in ((each, member.member_id), (member.member_id, each))
            }
            cluster.network.cut |= ways
            cluster.at(random.uniform(0, 3_000), lambda: cluster.network.heal(ways))

    def leave_at(self, member: SimMember, order: UserOrder) -> bool:
        """As `quorumlog init-admin` does it; the member is down then."""
        member.stop()
        member.kill()
        if not member.disk.exists(f"{member.path}/{MEMBER_NAME}"):
            return False
        try:
            save_first_admin(member.disk, member.path, order)
        except OSError:
            self._cluster.trace.count("users: no space for an administrator")
            return False
        self._cluster.notify("admin_left", member, order)
        return True
