"""Failover by a coordinator: leases of the master and the in-sync set."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, NamedTuple, Protocol

import msgspec

from quorumlog.broker.epochs import Peer
from quorumlog.broker.replication.acknowledgements import InSyncSet, Member, SlaveState
from quorumlog.broker.replication.replica import BrokerReplica
from quorumlog.broker.wire import FailoverResponse
from quorumlog.errors import ConfigError, LedgerError, ProtocolViolation, StoreFailure
from quorumlog.net.system import boot_ms
from quorumlog.wire.field_names import UNREADABLE

# ---------------------------------------------------------------- Coordinator
# The record that the brokers of a group share, changed by compare-and-set under a lease.
#
#     RECORD   the epoch, its master and the in-sync set; stays
#     HOLDER   the lease of the master; ends with it
#
# Three are in `quorumlog.coordinators`. `tests/broker/failover/coordinator_contract.py` says what
# another one has to keep.

NO_HOLDER = 0


class CoordinatorSnapshot(NamedTuple):
    """The coordinator's state at one moment."""

    revision: int
    """Of the record: a higher one after each change. 0: there is no record."""
    record: bytes | None
    holder: int
    """The lease that holds the leadership; `NO_HOLDER`: none does."""


class GrantedLease(NamedTuple):
    lease: int
    ttl_ms: int
    """As granted, which may be more than was asked for."""


class Coordinator(Protocol):
    """Every call raises LedgerError if its outcome is unknown; a late request may still be carried out
    afterwards."""

    @property
    def relays_renewals(self) -> bool:
        """An answered renewal says only that those heard of by a tenth of a lease before it have reached
        the coordinator that ends leases."""

    async def read(self) -> CoordinatorSnapshot:
        """Record and holder of one moment, which is not long ago."""

    async def grant(self, ttl_ms: int) -> GrantedLease:
        """A lease. It runs from when the coordinator granted it."""

    async def put(self, revision: int, record: bytes, lease: int, *, takes: bool) -> int | None:
        """Replace the record of that revision as its holder; `takes`: if there is no holder, and become
        it. The new revision. None: nothing has changed, as the condition failed or the lease has
        ended."""

    async def renew(self, lease: int) -> int:
        """Its full time again, in milliseconds, from when the coordinator did it; 0: it has ended."""

    async def revoke(self, lease: int) -> None:
        """It ends, and with it the holder. No error if it has ended."""

    async def watch(self, changed: Callable[[], None]) -> None:
        """Call `changed` soon after each change of record or holder, until it is cancelled or fails.
        Call it again then; changes in between may be missed."""

    async def close(self) -> None: ...


class ElectionRecord(msgspec.Struct, frozen=True, kw_only=True):
    """As it lies at the coordinator: JSON, for people to read."""

    version: int = 1
    epoch: int
    master: Peer
    in_sync: dict[str, str]
    """Directory ids of the in-sync set, by broker: a store that was wiped is no member."""

    def encode(self) -> bytes:
        return msgspec.json.encode(self, order="sorted")

    @classmethod
    def decode(cls, data: bytes) -> ElectionRecord:
        """Raises ProtocolViolation: of a newer release, or not ours."""
        try:
            record = msgspec.json.decode(data, type=cls)
        except UNREADABLE as error:
            raise ProtocolViolation(f"the coordinator's record is none of ours: {error}") from None
        if record.version != 1:
            raise ProtocolViolation(f"the coordinator's record is of version {record.version}, not 1")
        return record


# ---------------------------------------------------------------- InSyncMembers
# Who is in the in-sync set, and whom the master waits for, which is never fewer.
#
# A slave is waited for before the coordinator may come to hold it as a member, and until the
# coordinator is known to hold it no more. So a broker that takes the lease by the coordinator's record
# has every message that was acknowledged, whatever became of a change that was not answered.

Members = dict[str, str]
"""Directory ids by broker."""


def members_of(*held: Members) -> InSyncSet:
    return frozenset(Member(*each) for members in held for each in members.items())


class InSyncMembers:
    def __init__(self, own_id: str, members: Members, timeout_ms: float, now_ms: float) -> None:
        """`members`: as the coordinator holds them."""
        self._own_id = own_id
        self._timeout_ms = timeout_ms
        self.members = members
        self._joining = set[Member]()
        """Waited for, so that what they hold now they hold when they are members."""
        self._undecided: list[Members] = []
        """What the coordinator may come to hold yet: changes that were sent."""
        self._caught_up_ms = dict.fromkeys(members_of(members), now_ms)
        """When a slave was seen to lack nothing, or its time began."""

    @property
    def waited_for(self) -> InSyncSet:
        return members_of(self.members, *self._undecided) | self._joining

    def look(self, slaves: Sequence[SlaveState], now_ms: float) -> Members | None:
        """Called periodically. Returns the record that the coordinator should hold, None if it certainly
        does."""
        for slave in slaves:
            if slave.is_caught_up:
                # One that says nothing is connected for long: what it lacks since when counts.
                since_ms = self._caught_up_ms.get(slave.member, float("-inf"))
                self._caught_up_ms[slave.member] = max(since_ms, now_ms - slave.lag_ms)
        held = members_of(self.members)
        late = {each for each in held if each.id != self._own_id and self._is_late(each, now_ms)}
        joining = {
            slave.member
            for slave in slaves
            if slave.is_caught_up and slave.holds_confirmed
            if slave.id != self._own_id and slave.member not in held
            if not self._is_late(slave.member, now_ms)
        }
        wanted = dict(sorted(held - late)) | dict(joining & self._joining)
        self._joining = joining
        # One whose fate is not known is settled by another: nothing sent before comes after it.
        return wanted if wanted != self.members or self._undecided else None

    def _is_late(self, member: Member, now_ms: float) -> bool:
        return now_ms - self._caught_up_ms.setdefault(member, now_ms) > self._timeout_ms

    def sent(self, wanted: Members) -> None:
        """The coordinator is asked for it."""
        self._undecided.append(wanted)

    def holds(self, members: Members) -> None:
        """The coordinator holds these, in a later revision than any change before was made for: none of
        those can come any more."""
        self.members = members
        self._undecided.clear()


# ----------------------------------------------------------------
# What `FailoverRules` want done that takes a while. Of the coordinator, which may be a simulated one:
# any number may be under way, and answers may come in any order.


@dataclass(frozen=True, eq=False, slots=True)
class Read:
    def ask(self, coordinator: Any) -> Any:
        return coordinator.read()


@dataclass(frozen=True, eq=False, slots=True)
class GrantLease:
    ttl_ms: int

    def ask(self, coordinator: Any) -> Any:
        return coordinator.grant(self.ttl_ms)


@dataclass(frozen=True, eq=False, slots=True)
class PutRecord:
    revision: int
    record: ElectionRecord
    lease: int
    takes: bool = False

    def ask(self, coordinator: Any) -> Any:
        return coordinator.put(self.revision, self.record.encode(), self.lease, takes=self.takes)


@dataclass(frozen=True, eq=False, slots=True)
class Renew:
    lease: int

    def ask(self, coordinator: Any) -> Any:
        return coordinator.renew(self.lease)


@dataclass(frozen=True, eq=False, slots=True)
class RevokeLease:
    lease: int

    def ask(self, coordinator: Any) -> Any:
        return coordinator.revoke(self.lease)


# Of the own broker: they block for the disk, one after the other in this order, and then
# `FailoverRules.done` is told.


class EpochVote(NamedTuple):
    epoch: int

    def __str__(self) -> str:
        return f"this broker promises epoch {self.epoch}"

    def do(self, broker: BrokerReplica) -> None:
        broker.promise(self.epoch)


class Lead(NamedTuple):
    epoch: int
    in_sync_set: InSyncSet

    def __str__(self) -> str:
        return f"this broker leads in epoch {self.epoch}"

    def do(self, broker: BrokerReplica) -> None:
        broker.become_master(self.epoch, self.in_sync_set)


class FollowMaster(NamedTuple):
    epoch: int
    master: Peer

    def __str__(self) -> str:
        return f"this broker follows {self.master.id} in epoch {self.epoch}"

    def do(self, broker: BrokerReplica) -> None:
        broker.become_slave(self.epoch, self.master)


CoordinatorRequest = Read | GrantLease | PutRecord | Renew | RevokeLease
OnDisk = EpochVote | Lead | FollowMaster


# ---------------------------------------------------------------- FailoverRules
# When a broker may lead, for how long, and who must have what it acknowledges.
#
# Values in, steps out; time is an input, in milliseconds of a clock that goes on while the machine
# sleeps.
#
#     WAITING     reads the record, follows who leads; nobody does, and this one is in sync: it campaigns
#     GRANTING    asks for a lease
#     PROMISING   stores the new epoch, and hears nothing of a lower one from then on
#     TAKING      compare-and-set: the record as it was read, no holder
#     LEADING     renews; acknowledges until its lease may be over
#
# A lease counts from when the request for it was *sent*, and less than its time, because two clocks do
# not run alike: it is over here before it is over at the coordinator.

log = logging.getLogger("quorumlog.broker")

NEVER_MS = float("-inf")
CLOCK_DRIFT = 0.05
"""By so much two machines' clocks may differ in speed."""
RENEWALS_PER_LEASE = 4
RELAYS_PER_LEASE = 10
"""A coordinator that relays renewals does it within such a part of a lease."""
READS_PER_LEASE = 4
MOST_RENEWALS_UNDER_WAY = 3
MOST_READS_UNDER_WAY = 2

CoordinatorAnswer = CoordinatorSnapshot | GrantedLease | int | None


@dataclass(frozen=True, slots=True)
class FailoverOptions:
    lease_ms: int = 10_000
    """How long a master leads without hearing of the coordinator, and so how long the others wait."""
    in_sync_timeout_ms: int = 3_000
    """A slave that has lacked something for so long leaves the in-sync set."""

    def __post_init__(self) -> None:
        """Raises ConfigError."""
        for name, low in (("lease_ms", 1_000), ("in_sync_timeout_ms", 100)):
            value = getattr(self, name)
            if not low <= value <= 600_000:
                raise ConfigError(f"{name} must be in {low} .. 600000, not {value}")


class Phase(Enum):
    WAITING = "waiting"
    GRANTING = "granting"
    PROMISING = "promising"
    TAKING = "taking"
    LEADING = "leading"


class FailoverRules:
    def __init__(
        self,
        broker: BrokerReplica,
        options: FailoverOptions,
        now_ms: float,
        start: Callable[[CoordinatorRequest | OnDisk], None],
        *,
        begins: bool = False,
        relays_renewals: bool = False,
    ) -> None:
        """`start` begins a step, and returns before it is done; it ends with `answered`, or `done`.
        `begins`: this store may make the first record of a group although it has messages.
        `relays_renewals`: see `Coordinator`."""
        self._broker = broker
        self._start = start
        self._begins = begins
        self.options = options
        self.phase = Phase.WAITING
        self.record: ElectionRecord | None = None
        """The newest that is known to be held."""
        self.problem = ""
        """Why nobody leads, or this one cannot; for people."""
        self._revision = 0
        self._pending_requests: dict[CoordinatorRequest, float] = {}
        """Requests under way, and when they were sent."""
        self._next_read_ms = now_ms
        self._following: FollowMaster | None = None
        self._follow_problem = ""
        self._epoch = 0
        """The one that is campaigned for, or led in."""
        self.lease = NO_HOLDER
        """That it holds."""
        self._lease_until_ms = NEVER_MS
        self._relays_renewals = relays_renewals
        self._renewed_ms = (NEVER_MS, NEVER_MS)
        """Sending and answer of the renewal that the lease counts from next, where they are relayed."""
        self._next_renew_ms = now_ms
        self._in_sync: InSyncMembers | None = None
        """From when the broker leads."""

    # ---------------------------------------------------------------- asked from outside

    def may_acknowledge(self, now_ms: float) -> bool:
        """In the last moment before an acknowledgement. Any thread."""
        return self.lease_left_ms(now_ms) > 0

    def lease_left_ms(self, now_ms: float) -> float:
        until_ms = self._lease_until_ms  # first: the next campaign sets it before it leads
        return max(0.0, until_ms - now_ms) if self.phase is Phase.LEADING else 0.0

    # ---------------------------------------------------------------- inputs

    def tick(self, now_ms: float) -> None:
        """Often: several times in a lease."""
        if self.phase is Phase.LEADING:
            self._keep_leading(now_ms)
        elif self.phase is Phase.WAITING and now_ms >= self._next_read_ms:
            self._read(now_ms)

    def changed(self, now_ms: float) -> None:
        """The record or its holder seems to be another one."""
        self._next_read_ms = now_ms
        if self.phase is Phase.LEADING:
            self._read(now_ms)
        self.tick(now_ms)

    def done(self, step: OnDisk, now_ms: float, error: str = "") -> None:
        """The broker has taken the requested role; `error`: why not."""
        if isinstance(step, FollowMaster):
            if self._following == step:
                self.problem = self._follow_problem = error
            return
        if isinstance(step, Lead) and not self.may_acknowledge(now_ms):
            self._broker.stop_acknowledging()  # its lease has ended while the disk was busy
        awaited = Phase.PROMISING if isinstance(step, EpochVote) else Phase.LEADING
        if self.phase is not awaited or step.epoch != self._epoch:
            return
        if error:
            self._give_up(now_ms, error)
        elif isinstance(step, EpochVote):
            self._take(now_ms)
        else:
            assert self.record is not None
            members, timeout_ms = self.record.in_sync, self.options.in_sync_timeout_ms
            self._in_sync = InSyncMembers(self._broker.id, members, timeout_ms, now_ms)

    def resign(self, now_ms: float) -> None:
        """Nothing is acknowledged any more; another member of the in-sync set may take over at once."""
        if self.phase is Phase.LEADING:
            self._give_up(now_ms, "it has resigned")

    def answered(
        self, request: CoordinatorRequest, answer: CoordinatorAnswer, now_ms: float, error: str = ""
    ) -> None:
        """The answer to a request; `error`: its outcome is unknown."""
        sent_ms = self._pending_requests.pop(request)
        if isinstance(request, Read):
            self._has_read(answer, now_ms, error)
        elif isinstance(request, GrantLease):
            self._granted(answer, sent_ms, now_ms, error)
        elif isinstance(request, PutRecord):
            then = self._taken if request.takes else self._has_changed
            then(request, answer, now_ms, error)
        elif isinstance(request, Renew):
            self._renewed(request, answer, sent_ms, now_ms, error)

    # ---------------------------------------------------------------- waiting

    def _ask(self, request: CoordinatorRequest, now_ms: float) -> None:
        self._pending_requests[request] = now_ms
        self._start(request)

    def _pending_count(self, kind: type[CoordinatorRequest]) -> int:
        return sum(isinstance(request, kind) for request in self._pending_requests)

    def _read(self, now_ms: float) -> None:
        # One that is under way may have been too early, or may never be answered.
        if self._pending_count(Read) < MOST_READS_UNDER_WAY:
            self._next_read_ms = now_ms + self.options.lease_ms / READS_PER_LEASE
            self._ask(Read(), now_ms)

    def _has_read(self, answer: CoordinatorAnswer, now_ms: float, error: str) -> None:
        if error:
            self.problem = f"the coordinator does not answer: {error}"
            return
        assert isinstance(answer, CoordinatorSnapshot), answer
        try:
            record = None if answer.record is None else ElectionRecord.decode(answer.record)
        except ProtocolViolation as violation:
            self.problem = str(violation)
            return
        if self.phase is Phase.WAITING:
            self._revision, self.record = answer.revision, record
            self._judge(record, answer.holder, now_ms)
        elif self.phase is Phase.LEADING and answer.revision >= self._revision:  # it is none of before
            if record is None or record.epoch != self._epoch or answer.holder != self.lease:
                self._give_up(now_ms, "the lease was lost at the coordinator")
            elif answer.revision > self._revision and self._in_sync is not None:
                self._holds(answer.revision, record)

    def _judge(self, record: ElectionRecord | None, holder: int, now_ms: float) -> None:
        """Nobody campaigns here, and nobody leads: who does?"""
        broker = self._broker
        is_member = record is not None and record.in_sync.get(broker.id) == broker.directory_id
        if record is None:
            if (broker.max_offset or broker.log_epoch) and not self._begins:
                self.problem = (
                    "the coordinator has no record of this group, and the store has messages: if no"
                    " other store of the group has more, start this one once with --failover-begin"
                )
            elif holder == NO_HOLDER:
                self._campaign(now_ms)
        elif record.epoch < broker.log_epoch:
            self.problem = (
                f"the coordinator's record is of epoch {record.epoch}, and the store has messages of"
                f" epoch {broker.log_epoch}: the coordinator has lost its newest state"
            )
        elif holder != NO_HOLDER:
            if record.master.id != broker.id:
                self._follow(record)
            elif is_member:
                # Of a process that was killed, or of an attempt whose answer was lost. Nobody acts by
                # it: the store is this process's.
                self._ask(RevokeLease(holder), now_ms)
                self._next_read_ms = now_ms
            else:
                self.problem = f"another broker leads under the id {broker.id}"
        elif is_member:
            self._campaign(now_ms)
        else:
            waits = ", ".join(record.in_sync)
            self.problem = (
                f"there is no master, and this broker is not in sync: it waits for one of {waits}"
            )

    def _follow(self, record: ElectionRecord) -> None:
        step = FollowMaster(record.epoch, record.master)
        if self._following != step:
            self._following, self._follow_problem = step, ""
            self._start(step)
        self.problem = self._follow_problem

    # ---------------------------------------------------------------- a campaign

    def _campaign(self, now_ms: float) -> None:
        self.phase = Phase.GRANTING
        self._ask(GrantLease(self.options.lease_ms), now_ms)

    def _granted(self, answer: CoordinatorAnswer, sent_ms: float, now_ms: float, error: str) -> None:
        if error:
            self._give_up(now_ms, f"the coordinator does not answer: {error}")
            return
        assert isinstance(answer, GrantedLease), answer
        self.lease = answer.lease
        self._lease_until_ms = self._until(sent_ms, answer.ttl_ms)
        self._renewed_ms = (sent_ms, now_ms)
        broker = self._broker
        if self.record is None:
            # The store was led without a coordinator.
            self._epoch = broker.epoch + 1 if broker.log_epoch else max(1, broker.epoch)
        else:
            # One that was promised in vain may be taken: by the record, nobody has led in it.
            self._epoch = max(self.record.epoch + 1, broker.epoch, broker.fenced_by + 1)
        self._following = None
        self.phase = Phase.PROMISING
        self._start(EpochVote(self._epoch))

    def _until(self, sent_ms: float, ttl_ms: float) -> float:
        return sent_ms + ttl_ms * (1 - CLOCK_DRIFT)

    def _take(self, now_ms: float) -> None:
        """The epoch is on disk."""
        self.phase = Phase.TAKING
        broker = self._broker
        members = {broker.id: broker.directory_id}
        if self.record is not None:
            # The old master leaves: it is gone, or follows in a moment and joins then. It was fenced by
            # the promise, so nothing is acknowledged that this broker does not have. All others stay.
            members = dict(self.record.in_sync)
            if self.record.master.id != broker.id:
                members.pop(self.record.master.id, None)
        self._ask(self._put(members, takes=True), now_ms)

    def _put(self, members: Members, *, takes: bool = False) -> PutRecord:
        record = ElectionRecord(epoch=self._epoch, master=self._broker.me, in_sync=members)
        return PutRecord(self._revision, record, self.lease, takes)

    def _taken(self, request: PutRecord, answer: CoordinatorAnswer, now_ms: float, error: str) -> None:
        if error or answer is None or now_ms >= self._lease_until_ms:
            self._give_up(now_ms, f"the lease was not taken: {error}" if error else "")
            return
        assert isinstance(answer, int), answer
        self.phase = Phase.LEADING
        self.problem = ""
        self._revision, self.record = answer, request.record
        self._next_renew_ms = now_ms
        self._start(Lead(self._epoch, members_of(request.record.in_sync)))

    def _give_up(self, now_ms: float, why: str) -> None:
        """The lease goes, and with it an attempt that may still be on its way."""
        was_leading = self.phase is Phase.LEADING
        self.phase = Phase.WAITING
        self.problem = why
        if was_leading:
            self._in_sync = self._following = None
            self._broker.stop_acknowledging()
            log.warning("this broker acknowledges nothing more: %s", why)
        if self.lease != NO_HOLDER:
            self._ask(RevokeLease(self.lease), now_ms)
            self.lease = NO_HOLDER
        self._next_read_ms = now_ms

    # ---------------------------------------------------------------- leading

    def _keep_leading(self, now_ms: float) -> None:
        if now_ms >= self._lease_until_ms:
            self._give_up(now_ms, "the lease could not be renewed in time")
            return
        if self._broker.fenced_by > self._epoch:
            self._give_up(now_ms, f"a slave has promised epoch {self._broker.fenced_by}")
            return
        if now_ms >= self._next_renew_ms and self._pending_count(Renew) < MOST_RENEWALS_UNDER_WAY:
            self._next_renew_ms = now_ms + self.options.lease_ms / RENEWALS_PER_LEASE
            self._ask(Renew(self.lease), now_ms)
        if self._in_sync is None or self._pending_count(PutRecord) or self._pending_count(Read):
            return
        wanted = self._in_sync.look(self._broker.slaves(), now_ms)
        if wanted is not None:
            self._in_sync.sent(wanted)
        self._wait_for_others(self._in_sync)
        if wanted is not None:
            self._ask(self._put(wanted), now_ms)

    def _wait_for_others(self, in_sync: InSyncMembers) -> None:
        if in_sync.waited_for != self._broker.in_sync_set:
            names = ", ".join(sorted(each.id for each in in_sync.waited_for))
            log.warning("acknowledgements need %s", names)
            self._broker.wait_for(in_sync.waited_for)

    def _has_changed(
        self, request: PutRecord, answer: CoordinatorAnswer, now_ms: float, error: str
    ) -> None:
        if self.phase is not Phase.LEADING or request.lease != self.lease:
            return
        if error or answer is None:
            self._read(now_ms)
            return
        assert isinstance(answer, int), answer
        self._holds(answer, request.record)

    def _holds(self, revision: int, record: ElectionRecord) -> None:
        assert self._in_sync is not None
        self._revision, self.record = revision, record
        self._in_sync.holds(record.in_sync)
        self._wait_for_others(self._in_sync)

    def _renewed(
        self, request: Renew, answer: CoordinatorAnswer, sent_ms: float, now_ms: float, error: str
    ) -> None:
        if self.phase is not Phase.LEADING or request.lease != self.lease:
            return
        if error:
            self.problem = f"the lease was not renewed: {error}"
            return
        assert isinstance(answer, int), answer
        if answer == 0:
            self._give_up(now_ms, "the lease has ended at the coordinator")
        elif now_ms < self._lease_until_ms:
            self.problem = ""
            if self._relays_renewals:
                before_ms, answered_ms = self._renewed_ms
                if sent_ms < answered_ms + self.options.lease_ms / RELAYS_PER_LEASE:
                    return  # neither of both may have been relayed
                self._renewed_ms, sent_ms = (sent_ms, now_ms), before_ms
            self._lease_until_ms = max(self._lease_until_ms, self._until(sent_ms, answer))


TICKS_PER_LEASE = 50
MOST_TICK_MS = 100.0
REQUESTS_PER_LEASE = 4
"""So long is one answer waited for: a part of a lease."""
WATCH_AGAIN_S = 0.5
RESIGN_S = 2.0


class FailoverService:
    """The rules on an event loop: it asks the coordinator, and tells the broker."""

    def __init__(
        self,
        broker: BrokerReplica,
        coordinator: Coordinator,
        options: FailoverOptions,
        *,
        begins: bool = False,
    ) -> None:
        """`begins`: see `FailoverRules`. From here on the broker acknowledges nothing until it leads."""
        self._broker = broker
        self._coordinator = coordinator
        self.rules = FailoverRules(
            broker,
            options,
            boot_ms(),
            self._start,
            begins=begins,
            relays_renewals=coordinator.relays_renewals,
        )
        self._request_s = options.lease_ms / REQUESTS_PER_LEASE / 1000
        self._tick_s = min(MOST_TICK_MS, options.lease_ms / TICKS_PER_LEASE) / 1000
        self._disk = ThreadPoolExecutor(1, "broker-failover")
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        broker.may_acknowledge = lambda: self.rules.may_acknowledge(boot_ms())
        broker.stop_acknowledging()

    def start(self, failed: Callable[[StoreFailure], None]) -> None:
        """On the loop that runs."""
        self._failed = failed
        self._loop = asyncio.get_running_loop()
        self._spawn(self._watch())
        self._tick()

    def status(self, request_id: int) -> FailoverResponse:
        rules, record = self.rules, self.rules.record
        return FailoverResponse(
            request_id=request_id,
            phase=rules.phase.value,
            epoch=0 if record is None else record.epoch,
            master="" if record is None else record.master.id,
            lease_left_ms=int(rules.lease_left_ms(boot_ms())),
            in_sync_set=[] if record is None else sorted(record.in_sync),
            problem=rules.problem,
        )

    async def stop(self) -> None:
        """A master resigns, so that no wait for the end of its lease is needed."""
        if self._timer is not None:
            self._timer.cancel()
        self._is_closed = True
        self._broker.stop_acknowledging()
        self._broker.may_acknowledge = lambda: False
        if self.rules.phase is Phase.LEADING:
            with suppress(LedgerError, TimeoutError):
                await asyncio.wait_for(self._coordinator.revoke(self.rules.lease), RESIGN_S)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._coordinator.close()
        self._disk.shutdown(wait=False, cancel_futures=True)

    def resign(self) -> None:
        """Another member of the in-sync set may lead, or this one again."""
        self.rules.resign(boot_ms())

    # ---------------------------------------------------------------- the loop

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _tick(self) -> None:
        if self._is_closed:
            return
        self.rules.tick(boot_ms())
        self._timer = self._loop.call_later(self._tick_s, self._tick)

    async def _watch(self) -> None:
        while True:
            with suppress(LedgerError):
                await self._coordinator.watch(self._changed)
            await asyncio.sleep(WATCH_AGAIN_S)

    def _changed(self) -> None:
        if not self._is_closed:
            self.rules.changed(boot_ms())

    def _start(self, step: CoordinatorRequest | OnDisk) -> None:
        self._spawn(self._carry_out(step) if isinstance(step, OnDisk) else self._ask(step))

    async def _ask(self, request: CoordinatorRequest) -> None:
        answer: CoordinatorAnswer = None
        error = ""
        try:
            async with asyncio.timeout(self._request_s):
                answer = await request.ask(self._coordinator)
        except TimeoutError:
            error = "no answer in time"
        except LedgerError as failure:
            error = str(failure)
        if not self._is_closed:
            self.rules.answered(request, answer, boot_ms(), error)
            self.rules.tick(boot_ms())

    async def _carry_out(self, step: OnDisk) -> None:
        """One after the other, in the order in which they were asked for: the thread has a queue."""
        error = ""
        try:
            await self._loop.run_in_executor(self._disk, partial(step.do, self._broker))
        except StoreFailure as failure:
            self._failed(failure)
            error = str(failure)
        except LedgerError as refused:
            error = str(refused)
        log.warning("%s%s", step, f": {error}" if error else "")
        if not self._is_closed:
            self.rules.done(step, boot_ms(), error)
