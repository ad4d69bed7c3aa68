"""Users of simulated brokers: changed at masters, asked for everywhere, and what must hold of them:

nobody is let in by less than a machine has ever known, nor by what is older than the option says
what was acknowledged counts at last at every broker, and they all know it
an administrator that was left in a directory has become one when the file is gone
"""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from quorumlog.broker.broker_port import TICK_MS
from quorumlog.broker.classic_users import ClassicUsers
from quorumlog.broker.groups.classic_group_log import ClassicGroupLog
from quorumlog.broker.groups.group_service import GroupService
from quorumlog.broker.record_batch import RecordBatch
from quorumlog.broker.store.log_files import BrokerRole, PutOutcome, PutRequest
from quorumlog.broker.store.message_store import MessageStore
from quorumlog.config import UsersOptions
from quorumlog.errors import LedgerError, StoreFailure
from quorumlog.log_state.users import Kind, Right, UserOperation, UserOrder, Users, has_become_admin
from quorumlog.net.access import Caller, Need
from quorumlog.store.state_files import FIRST_ADMIN_NAME, save_first_admin
from sim.replicas.promises import ROOT

if TYPE_CHECKING:
    from sim.replicas.machines import Broker
    from sim.replicas.world import World

HEARTBEAT_MS = 200
MAY_BE_OLD_MS = 2_000
COUNTS_WITHIN_MS = 1_000.0
"""Of one machine's clock beside another's, and until a look."""
READS = (Need(Right.READ, Kind.TOPIC, b"t"),)


class OwnUsers:
    """Of one process: its group log and its users, with a loop that turns when it is told to."""

    def __init__(self, broker: Broker, alone: MessageStore | None = None) -> None:
        """`alone`: without a replica."""
        self._broker = broker
        self._calls: list[Callable[[], None]] = []
        replica = None if alone is not None else broker.living
        self._store = store = alone or broker.living.store
        clock = broker.clock
        self.groups = ClassicGroupLog(store, GroupService(), replica, wall_ms=broker.world.clock)
        store.reput.dispatched = self.groups.grown
        options = UsersOptions(may_be_old_ms=MAY_BE_OLD_MS)
        self.users = ClassicUsers(store, self.groups, replica, options)
        self.groups.open(cast(Any, self), cast(Any, self), cast(Any, self))
        self._clock = clock
        broker.later(TICK_MS, self._tick)

    def _tick(self) -> None:
        self._broker.later(TICK_MS, self._tick)
        if not self._broker.world.is_quiet:  # then `work` comes often enough
            self.turn()

    def turn(self) -> None:
        self.groups.tick(self._clock())
        self.users.tick()
        calls, self._calls = self._calls, []
        for call in calls:
            call()

    # ---------------------------------------------------------------- as a loop, a ReadPool, and Puts

    def call_soon(self, call: Callable[..., None], *arguments: object) -> None:
        self._calls.append(lambda: call(*arguments))

    call_soon_threadsafe = call_soon

    def submit(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        def run() -> None:
            try:
                outcome = work()
            except (LedgerError, StoreFailure) as error:
                outcome = error
            done(outcome)

        self._calls.append(run)

    def add(self, records: RecordBatch, waits: bool, answer: Callable[[PutOutcome], None]) -> None:
        self._store.commit_log.put([PutRequest(records, waits, answer)])

    # ---------------------------------------------------------------- what clients do

    def change(self, order: UserOrder, done: Callable[[LedgerError | None], None]) -> None:
        try:
            if not self.groups.is_master:
                raise self.groups.not_master()
            self.users._change(order, done)
        except LedgerError as error:
            done(error)

    @property
    def knows(self) -> Users | None:
        return self.users.access.users

    def lets_in(self, user: str) -> bool:
        """As a port does, at this moment."""
        caller = Caller(self.users.access, SimpleNamespace(user=user, peer_name="c:1"))
        return not caller.is_checked or caller.refusal(READS, READS) is None


class UserWork:
    def __init__(self, world: World, seed: int) -> None:
        self._world = world
        self._random = Random(f"users of {seed}")
        self._number = 0
        self.acknowledged: dict[str, float] = {}
        """Roles, and when."""
        self._known: dict[str, int] = {}
        """By machine: how many roles it has ever known of; -1 if it is not named: of no users."""
        self._left: dict[str, tuple[object, UserOrder]] = {}
        """Orders in files, by machine, with its disk."""
        self.since_first_ms: float | None = None
        """Since the first user was acknowledged."""
        self._on: dict[int, object] = {}
        """Disks whose log has had users, by what is said of each for good."""

    @property
    def is_lost(self) -> bool:
        """With --unsafe users are lost like messages, and who is cut off does not hear of it."""
        return bool(self._world.counts["unsafe switches"])

    def step(self) -> None:
        what, random = self._random.random(), self._random
        if what < 0.04:
            self.change()
        elif what < 0.3:
            for broker in self._world.brokers.values():
                if broker.is_running:
                    self.look(broker)
        elif what < 0.303:
            down = [b for b in self._world.brokers.values() if b.replica is None]
            if down:
                self.leave(random.choice(down))

    def change(self) -> None:
        masters = self._world.masters
        if not masters:
            return
        broker = self._random.choice(masters)
        number, self._number = self._number, self._number + 1
        role = f"r{number:04d}"
        users = broker.own_users.groups.state.users
        order = UserOrder(UserOperation.ADD_ROLE, role)
        if not users.is_on:
            order = UserOrder(UserOperation.ADD_USER, "alice", ("admin",))

        def done(error: LedgerError | None) -> None:
            if error is None and order.verb is UserOperation.ADD_ROLE:
                self.acknowledged[role] = self._world.clock.now_ms
                self._world.counts["changes of users"] += 1
            if error is None and self.since_first_ms is None:
                self.since_first_ms = self._world.clock.now_ms

        self._world.guarded(broker.name, lambda: broker.own_users.change(order, done))

    def leave(self, broker: Broker) -> None:
        """As `init-admin` does, with `--reset` and without."""
        self._number += 1
        operation = (UserOperation.RESET_ADMIN, UserOperation.INIT_ADMIN)[self._number % 2]
        order = UserOrder(operation, f"left{self._number}")
        broker.disk.crash_countdown = None  # of the process that is down
        save_first_admin(broker.disk, ROOT, order)
        self._left[broker.name] = broker.disk, order
        self._world.tell("administrators left", broker.name)

    def look(self, broker: Broker) -> None:
        """Somebody without a user, and somebody who has one, come here."""
        own, name, now_ms = broker.own_users, broker.name, self._world.clock.now_ms
        self._look_for_file(broker)
        state = own.groups.state.users
        if state.is_on:
            self._known[name] = max(self._known.get(name, -1), len(state.roles))
            self._on[id(broker.disk)] = broker.disk
        is_open = own.lets_in("")
        assert not (is_open and id(broker.disk) in self._on), f"{name} is open, and its log had users"
        has_mark = own.users._had_had_users
        assert not (is_open and has_mark), f"{name} is open, and knows that there were users"
        if self.is_lost:
            return
        assert not own.groups.lacks_commands, f"the log of {name} lacks commands"
        users = own.knows
        is_overdue = own.users.access.is_overdue  # the process was stopped, and has not looked since
        if is_overdue and users is not None and not users.is_on:
            return
        if users is None or is_overdue:
            assert not own.lets_in("alice"), f"{name} lets alice in, and does not know who she is"
            assert not own.lets_in(""), f"{name} lets everybody in, and does not know the users"
            return
        known = self._known.get(name, -1)
        assert users.is_on or known < 0, f"{name} is open, and knew {known} roles"
        assert len(users.roles) >= known, f"{name} knew {known} roles, and serves by {users}"
        assert own.lets_in("") is not users.is_on
        limit_ms = now_ms - MAY_BE_OLD_MS * 1.1 - COUNTS_WITHIN_MS
        is_old = self.since_first_ms is not None and self.since_first_ms < limit_ms
        has_looked = own.users.access.good_until_s < math.inf
        if has_looked:  # else it was away, and hears of users at this moment
            assert users.is_on or not is_old, f"{name} is open so long after the first user"
        names = {role.name for role in users.roles}
        if users.is_on:
            self._world.counts["looks by users"] += 1
            late = [r for r, at in self.acknowledged.items() if at < limit_ms and r not in names]
            assert not late, f"{name} serves without {late}, which were acknowledged"

    def _look_for_file(self, broker: Broker) -> None:
        left = self._left.get(broker.name)
        if left is None:
            return
        disk, order = left
        if disk is not broker.disk:
            del self._left[broker.name]
        elif not broker.disk.exists(f"{ROOT}/{FIRST_ADMIN_NAME}"):
            users = broker.own_users.knows
            if users is None:
                return  # it was deleted, and the broker has begun again and reads its log
            del self._left[broker.name]
            is_for_nothing = order.verb is UserOperation.INIT_ADMIN and users.has_administrator
            is_admin = has_become_admin(users, order)
            assert is_admin or is_for_nothing, f"{order.name} left {broker.name}, and is none"
            self._world.counts["administrators of a file"] += is_admin

    def end(self) -> None:
        """All are there, and the same."""
        for _ in range(40):
            self._world.clock.advance(HEARTBEAT_MS)
            for name, broker in self._world.brokers.items():
                self._world.connect(name)
                self._world.pump(name, 1 << 20)
                broker.work()
        known = {name: broker.own_users.knows for name, broker in self._world.brokers.items()}
        if self.is_lost:
            lacks = any(broker.own_users.groups.lacks_commands for broker in self._world.masters)
            assert lacks or None not in known.values(), f"not all know their users: {known}"
            assert len(set(known.values())) == 1, known
            self._world.counts["ends with users lost"] += 1
            self._world.counts["ends without what users are made from"] += lacks
            return
        for name, users in known.items():
            assert users is not None, f"{name} does not know its users: {known}"
            roles = {role.name for role in users.roles}
            assert roles >= self.acknowledged.keys(), f"{name} lacks roles of {self.acknowledged}"
        assert len(set(known.values())) == 1, known
        for name, (_, order) in list(self._left.items()):
            broker = self._world.brokers[name]
            self._look_for_file(broker)
            is_master = broker.living.role is not BrokerRole.SLAVE
            assert name not in self._left or not is_master, f"{order.name} is left at {name}"
