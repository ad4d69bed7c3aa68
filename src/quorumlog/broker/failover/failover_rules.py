"""FailoverRules: when a broker may lead, for how long, and who must have what it acknowledges.

Values in, steps out; time is an input, in milliseconds of a clock that goes on while the machine sleeps.

    WAITING     reads the record, follows who leads; nobody does, and this one is in sync: it campaigns
    GRANTING    asks for a lease
    PROMISING   stores the new epoch, and hears nothing of a lower one from then on
    TAKING      compare-and-set: the record as it was read, no holder
    LEADING     renews; acknowledges until its lease may be over

A lease counts from when the request for it was *sent*, and less than its time, because two clocks do not
run alike: it is over here before it is over at the coordinator.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from quorumlog.broker.failover.coordinator import NO_HOLDER, ElectionRecord, Granted, Standing
from quorumlog.broker.failover.failover_steps import (
    Follow,
    Grant,
    Lead,
    OnDisk,
    Promise,
    Put,
    Read,
    Renew,
    Request,
    Revoke,
)
from quorumlog.broker.failover.in_sync_members import InSyncMembers, Members, members_of
from quorumlog.broker.replication.replica import Replica
from quorumlog.errors import ConfigError, ProtocolViolation

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

Answer = Standing | Granted | int | None


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
        broker: Replica,
        options: FailoverOptions,
        now_ms: float,
        start: Callable[[Request | OnDisk], None],
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
        self._asked: dict[Request, float] = {}
        """Requests under way, and when they were sent."""
        self._next_read_ms = now_ms
        self._following: Follow | None = None
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
        """The broker is what it was asked to be; `error`: why it is not."""
        if isinstance(step, Follow):
            if self._following == step:
                self.problem = self._follow_problem = error
            return
        if isinstance(step, Lead) and not self.may_acknowledge(now_ms):
            self._broker.stop_acknowledging()  # its lease has ended while the disk was busy
        awaited = Phase.PROMISING if isinstance(step, Promise) else Phase.LEADING
        if self.phase is not awaited or step.epoch != self._epoch:
            return
        if error:
            self._give_up(now_ms, error)
        elif isinstance(step, Promise):
            self._take(now_ms)
        else:
            assert self.record is not None
            members, timeout_ms = self.record.in_sync, self.options.in_sync_timeout_ms
            self._in_sync = InSyncMembers(self._broker.id, members, timeout_ms, now_ms)

    def resign(self, now_ms: float) -> None:
        """Nothing is acknowledged any more; another member of the in-sync set may take over at once."""
        if self.phase is Phase.LEADING:
            self._give_up(now_ms, "it has resigned")

    def answered(self, request: Request, answer: Answer, now_ms: float, error: str = "") -> None:
        """What became of it; `error`: that is not known."""
        sent_ms = self._asked.pop(request)
        if isinstance(request, Read):
            self._has_read(answer, now_ms, error)
        elif isinstance(request, Grant):
            self._granted(answer, sent_ms, now_ms, error)
        elif isinstance(request, Put):
            then = self._taken if request.takes else self._has_changed
            then(request, answer, now_ms, error)
        elif isinstance(request, Renew):
            self._renewed(request, answer, sent_ms, now_ms, error)

    # ---------------------------------------------------------------- waiting

    def _ask(self, request: Request, now_ms: float) -> None:
        self._asked[request] = now_ms
        self._start(request)

    def _is_asked(self, kind: type[Request]) -> int:
        return sum(isinstance(request, kind) for request in self._asked)

    def _read(self, now_ms: float) -> None:
        # One that is under way may have been too early, or may never be answered.
        if self._is_asked(Read) < MOST_READS_UNDER_WAY:
            self._next_read_ms = now_ms + self.options.lease_ms / READS_PER_LEASE
            self._ask(Read(), now_ms)

    def _has_read(self, answer: Answer, now_ms: float, error: str) -> None:
        if error:
            self.problem = f"the coordinator does not answer: {error}"
            return
        assert isinstance(answer, Standing), answer
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
                self._ask(Revoke(holder), now_ms)
                self._next_read_ms = now_ms
            else:
                self.problem = f"another broker leads under the id {broker.id}"
        elif is_member:
            self._campaign(now_ms)
        else:
            waits = ", ".join(record.in_sync)
            self.problem = f"nobody leads, and this broker is not in sync: it waits for one of {waits}"

    def _follow(self, record: ElectionRecord) -> None:
        step = Follow(record.epoch, record.master)
        if self._following != step:
            self._following, self._follow_problem = step, ""
            self._start(step)
        self.problem = self._follow_problem

    # ---------------------------------------------------------------- a campaign

    def _campaign(self, now_ms: float) -> None:
        self.phase = Phase.GRANTING
        self._ask(Grant(self.options.lease_ms), now_ms)

    def _granted(self, answer: Answer, sent_ms: float, now_ms: float, error: str) -> None:
        if error:
            self._give_up(now_ms, f"the coordinator does not answer: {error}")
            return
        assert isinstance(answer, Granted), answer
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
        self._start(Promise(self._epoch))

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

    def _put(self, members: Members, *, takes: bool = False) -> Put:
        record = ElectionRecord(epoch=self._epoch, master=self._broker.me, in_sync=members)
        return Put(self._revision, record, self.lease, takes)

    def _taken(self, request: Put, answer: Answer, now_ms: float, error: str) -> None:
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
            self._ask(Revoke(self.lease), now_ms)
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
        if now_ms >= self._next_renew_ms and self._is_asked(Renew) < MOST_RENEWALS_UNDER_WAY:
            self._next_renew_ms = now_ms + self.options.lease_ms / RENEWALS_PER_LEASE
            self._ask(Renew(self.lease), now_ms)
        if self._in_sync is None or self._is_asked(Put) or self._is_asked(Read):
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

    def _has_changed(self, request: Put, answer: Answer, now_ms: float, error: str) -> None:
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
        self, request: Renew, answer: Answer, sent_ms: float, now_ms: float, error: str
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
