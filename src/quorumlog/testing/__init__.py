"""For tests of software that uses quorumlog: a real cluster in the process, and a simulated one.

    local_cluster    three members with sockets and threads in this process, gone after the test
    simulated_log    a log on simulated machines in virtual time; same seed, same faults, same outcomes

In `conftest.py`: `pytest_plugins = ["quorumlog.testing"]`. Neither needs anything but pytest, and
`SimulatedLog` does not even need that.

The simulator, read in this order: `profile` (the kind of a run), `operations`, `machines`, `disk`,
`network`, `wall_clock`, `member`, `clients`, `faults`, `cluster`, `promises` (invariants).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from quorumlog.batch import EntryBatch
from quorumlog.consensus.ready import Role
from quorumlog.entry import AppendReceipt, Entry
from quorumlog.errors import (
    BadRequest,
    CommandError,
    LeaderNotReady,
    LedgerError,
    OutcomeUnknown,
    ResultUnknown,
    UnknownMachine,
)
from quorumlog.node import MachineFactory
from quorumlog.node.machine_driver import Answer
from quorumlog.server import LocalCluster
from quorumlog.testing.clients import SimClient
from quorumlog.testing.cluster import SimCluster, make_whole
from quorumlog.testing.operations import Trace, read_at_once
from quorumlog.testing.profile import FAULT_KINDS as MEMBER_KINDS
from quorumlog.testing.profile import HANGING_DISK, LINK_KINDS, draw_cluster
from quorumlog.testing.promises import Violation

if TYPE_CHECKING:
    from quorumlog.testing.member import SimMember

FAULT_KINDS = (*MEMBER_KINDS, HANGING_DISK, *LINK_KINDS)
FAULTS = ("kill", "power loss", "pause", "partition", "one-way cut", "reset", "slow disk")
"""Default faults of a `SimulatedLog`; all kinds are in `FAULT_KINDS`."""

CONFIRM_LIMIT_MS = 1_000.0
"""Virtual; then a leader that is not confirmed is asked again, or its successor is."""

__all__ = ["FAULTS", "FAULT_KINDS", "LocalCluster", "SimulatedLog", "Violation"]


class SimulatedLog:
    """A replicated log in virtual time, for testing code against its failures.

    Time passes only inside the calls. All invariants of the log are checked meanwhile; a violation
    raises `Violation` with the history. Segments are small, so that there are many: give bodies of at
    most 1,900 bytes, which every seed accepts.

        log = SimulatedLog(seed=7, faults=("kill", "partition"))
        receipt = log.append(b"a", b"b")
        assert [entry.body for entry in log.read(receipt.first_index)] == [b"a", b"b"]
        log.run_for(10_000)
        log.heal()
    """

    def __init__(
        self,
        seed: int,
        *,
        members: int = 3,
        faults: Sequence[str] = FAULTS,
        fault_every_ms: float = 2_000.0,
        state_machines: Mapping[str, MachineFactory] | None = None,
    ) -> None:
        """`faults`: kinds of `FAULT_KINDS`, empty for none. Raises ValueError for an unknown kind.

        `state_machines`: as of `LedgerServer`. Snapshots of members that have applied up to the same
        entry are compared, and taken often.
        """
        unknown = set(faults) - set(FAULT_KINDS)
        if unknown:
            raise ValueError(f"no such faults: {sorted(unknown)}; there are {', '.join(FAULT_KINDS)}")
        random = Random(seed)
        profile = replace(
            draw_cluster(random, members),
            fault_kinds=tuple(kind for kind in faults if kind in MEMBER_KINDS),
            fault_every_ms=fault_every_ms,
            link_kinds=tuple(kind for kind in faults if kind in LINK_KINDS),
            link_fault_every_ms=fault_every_ms,
            has_hanging_disks=HANGING_DISK in faults,
            clients=0,
            drops_segments=False,
            has_retention=False,
        )
        profile = replace(profile, storage=replace(profile.storage, retention="off"))
        if state_machines:
            storage = replace(profile.storage, snapshot_entries=10)
            profile = replace(profile, storage=storage, apply_ms=5.0)
        self.trace = Trace()
        self._cluster = SimCluster(random, profile, self.trace, state_machines)
        self._client = SimClient(self._cluster, "client")
        for member in self._cluster.members:
            member.start()
        if faults:
            self._cluster.faults.begin()

    @property
    def now_ms(self) -> float:
        """Virtual time since the beginning."""
        return self._cluster.now_ms

    def append(
        self,
        *bodies: bytes,
        expected_last: int | None = None,
        machine: str = "",
        timeout_ms: int = 30_000,
    ) -> AppendReceipt:
        """Append as one batch; a refusal is retried, an unknown outcome is not. `expected_last`: as in
        `LedgerClient.append`; raises WrongLastIndex. `machine`: as in `append_batch`. Raises
        OutcomeUnknown (any prefix may be in the log, or may still commit), or the last refusal once
        `timeout_ms` of virtual time are over; BadRequest for what is no list of bodies."""
        if not bodies:
            raise BadRequest("a batch needs at least one body")
        given = tuple(map(bytes, EntryBatch.from_bodies(bodies).bodies()))
        deadline_ms = self.now_ms + timeout_ms
        while True:
            left_ms = max(1, int(deadline_ms - self.now_ms))
            call = self._client.append(
                given,
                min(left_ms, 5_000),
                expected_last=expected_last,
                machine=machine,
            )
            while call.returned_ms < 0:
                self._cluster.run_for(1.0)
            if isinstance(call.outcome, AppendReceipt):
                return call.outcome
            if isinstance(call.outcome, ResultUnknown):
                raise call.outcome
            if not call.is_refused:
                raise OutcomeUnknown(f"no answer from {call.asked_member_id}; it may be in the log")
            assert isinstance(call.outcome, LedgerError), call.outcome
            if not call.outcome.retriable or self.now_ms >= deadline_ms:
                raise call.outcome
            self._cluster.run_for(10.0)

    def ask(self, machine: str, question: bytes = b"", *, timeout_ms: int = 30_000) -> bytes:
        """Query a state machine, as in `LedgerClient.ask`. Raises LeaderNotReady if no member answers
        in that much virtual time."""
        deadline_ms = self.now_ms + timeout_ms
        while self.now_ms < deadline_ms:
            answers: list[Answer] = []
            self._client.ask(machine, question, answers.append)
            stop_ms = self.now_ms + 2 * CONFIRM_LIMIT_MS
            while not answers and self.now_ms < stop_ms:
                self._cluster.run_for(1.0)
            if answers and isinstance(answers[0], tuple):
                return answers[0][0]
            if answers and isinstance(answers[0], CommandError | UnknownMachine):
                raise answers[0]
            self._cluster.run_for(10.0)
            self._client.turn_elsewhere()
        raise LeaderNotReady(f"{machine} could not be asked for {timeout_ms} ms", retry_after_ms=50)

    def read(
        self, first_index: int = 0, *, member_id: str | None = None, timeout_ms: int = 30_000
    ) -> list[Entry]:
        """Every committed entry from `first_index` on, from the leader or `member_id`. Raises
        LeaderNotReady if no member answers in that much virtual time."""
        deadline_ms = self.now_ms + timeout_ms
        while self.now_ms < deadline_ms:
            member = self._confirmed_leader() if member_id is None else self._up(member_id)
            if member is not None:
                try:
                    return self._entries(member, first_index)
                except LedgerError:
                    pass  # a new leader, or damage that is being repaired
            self._cluster.run_for(50.0)
        raise LeaderNotReady(f"no member could be read from for {timeout_ms} ms", retry_after_ms=50)

    def _up(self, member_id: str) -> SimMember | None:
        up = (member for member in self._cluster.up() if not member.is_paused)
        return next((member for member in up if member.member_id == member_id), None)

    def _confirmed_leader(self) -> SimMember | None:
        """Which a majority has just confirmed; None: nobody leads, or it takes too long."""
        for member in self._cluster.members:
            if member.is_up and not member.is_paused and member.node.raft.role is Role.LEADER:
                outcomes: list[LedgerError | None] = []
                node = member.node
                member.enter(partial(node.confirm_leadership, outcomes.append))
                stop_ms = self.now_ms + CONFIRM_LIMIT_MS
                while not outcomes and self.now_ms < stop_ms and member.is_up and member.node is node:
                    self._cluster.run_for(0.1)
                if outcomes == [None] and member.is_up and member.node is node:
                    return member
        return None

    @staticmethod
    def _entries(member: SimMember, first_index: int) -> list[Entry]:
        node = member.node
        entries: list[Entry] = []
        while first_index <= node.committed_index:
            batch = read_at_once(node, first_index)
            entries += batch.entries()
            first_index += batch.count
        return entries

    def run_for(self, duration_ms: float) -> None:
        """Let virtual time pass."""
        self._cluster.run_for(duration_ms)

    def heal(self) -> None:
        """End all faults; returns once every member is up and holds the same log, and checks that."""
        make_whole(self._cluster)


# ---------------------------------------------------------------- pytest

try:
    import pytest
except ImportError:  # pragma: no cover - the classes above need no pytest
    pass
else:

    @pytest.fixture
    def local_cluster() -> Iterator[LocalCluster]:
        """Three real members in this process; `local_cluster.servers` is the argument of `connect`."""
        with LocalCluster(members=3) as cluster:
            yield cluster

    @pytest.fixture
    def simulated_log(request: pytest.FixtureRequest) -> Iterator[SimulatedLog]:
        """Parametrize it (`indirect`) with seeds; healed and checked when the test has passed."""
        log = SimulatedLog(getattr(request, "param", 1))
        yield log
        log.heal()
