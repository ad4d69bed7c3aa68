"""Several real LedgerNodes on real directories, with time, network and flush in the test's hands."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from quorumlog.config import GroupConfig, MemberAddress, StoreConfig
from quorumlog.consensus.ready import Envelope, Ready, Role, RoleChange
from quorumlog.entry import Durability, Replica
from quorumlog.errors import LedgerError, StoreFailure
from quorumlog.log_state.control_entries import LEVEL
from quorumlog.log_state.log_state import LostRange
from quorumlog.node import LedgerNode, MachineFactory
from quorumlog.node.ports import BeginsAnew
from quorumlog.store.disk import Disk, OsDisk
from quorumlog.store.log_points import LogStart
from quorumlog.store.member_directory import open_member_directory

STEP_MS = 5.0
SMALL = StoreConfig(segment_bytes=64 * 1024, index_segment_bytes=8 * 1024, reserve_step_bytes=16 * 1024)

Job = tuple[Callable[[], Any], Callable[[Any], None]]


class ManualHost:
    """What one node asked of its host, until the test carries it out."""

    def __init__(self) -> None:
        self.sent: list[Envelope] = []
        self.flushes: list[Job] = []
        self.promises: list[Job] = []
        self.holds_promises = False
        self.reads: list[Job] = []
        self.applies: list[Job] = []
        self.roles: list[RoleChange] = []
        self.on_role_change: Callable[[RoleChange], None] | None = None
        """Called in the turn in which the role changes."""
        self.on_sent: Callable[[Envelope], None] = lambda envelope: None
        self.on_read: Callable[[Any], None] = lambda result: None
        """Called with what was read, before the node hears of it."""
        self.trace: list[str] = []
        self.level = LEVEL
        self.clock_ms = 1_000_000

    def send(self, envelope: Envelope) -> bool:
        self.on_sent(envelope)
        self.trace.append(f"send {type(envelope.message).__name__}")
        self.sent.append(envelope)
        return True

    def replicas_with_moving_data(self) -> tuple[Replica, ...]:
        return ()

    def flush_later(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self.trace.append("flush asked")
        self.flushes.append((work, done))

    def promise_later(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self.promises.append((work, done))
        if not self.holds_promises:
            run(self.promises)

    def read_later(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        def read() -> Any:
            result = work()
            self.on_read(result)
            return result

        self.reads.append((read, done))

    def apply_later(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self.applies.append((work, done))

    def role_changed(self, change: RoleChange) -> None:
        self.roles.append(change)
        if self.on_role_change is not None:
            self.on_role_change(change)

    def committed(self, committed_index: int) -> None:
        self.trace.append(f"committed {committed_index}")

    def lost_committed(self, first_index: int) -> None:
        self.trace.append(f"lost from {first_index}")

    def reader_lost(self, lost: LostRange) -> None:
        self.trace.append(f"{lost.name} lost {lost.first_index} to below {lost.stop_index}")

    def wall_clock_ms(self) -> int:
        return self.clock_ms

    def replacing_log(self, start: LogStart) -> None:
        self.trace.append(f"replaced by a log behind {start.point.index}")

    def members_below(self, level: int) -> list[str]:
        return ["n2"] if self.level < level else []

    def syncs(self, replica: Replica) -> bool:
        return True

    def weakest_durability(self, own: Durability) -> Durability:
        return own


def run(jobs: list[Job]) -> None:
    while jobs:
        work, done = jobs.pop(0)
        try:
            result = work()
        except (StoreFailure, LedgerError) as error:
            result = error
        done(result)


class Cell:
    """`hold_flush`: members whose disk does not finish a flush until `release` is called."""

    def __init__(
        self,
        path: Path,
        members: int = 3,
        *,
        storage: StoreConfig = SMALL,
        disks: dict[str, Disk] | None = None,
        machines: dict[str, MachineFactory] | None = None,
        level: int = LEVEL,
        **options: Any,
    ) -> None:
        self.now_ms = 0.0
        self._path = path
        self._storage = storage
        self.disks = disks or {}
        self._options: dict[str, Any] = {"time_marks": False, **options}
        ids = [f"n{i}" for i in range(members)]
        self._addresses = tuple(MemberAddress(m, "127.0.0.1", 20911 + i) for i, m in enumerate(ids))
        self.level = level
        """Of the log's format, which members know that start from now on."""
        self.hosts: dict[str, ManualHost] = {}
        self.hold_flush: set[str] = set()
        self.hold_apply: set[str] = set()
        self.machines = machines or {}
        self.held_machines: dict[str, set[str]] = {}
        """By member, from its next start on."""
        self.cut_off: set[str] = set()
        self.drops: Callable[[str, str, Any], bool] = lambda sender, to, message: False
        """Is this message lost? By member ids."""
        self.on_ready: Callable[[str, Ready], None] = lambda member, ready: None
        self.on_turned: Callable[[str], None] = lambda member: None
        self.nodes: dict[str, LedgerNode] = {}
        for member in ids:
            self.start(member)

    def start(self, member: str) -> LedgerNode:
        config = GroupConfig(
            member_id=member,
            members=self._addresses,
            data_dir=str(self._path / member),
            storage=self._storage,
            **self._options,
        )
        directory = open_member_directory(
            self.disks.get(member) or OsDisk(),
            config.data_dir,
            group=config.group,
            member_id=member,
            config=self._storage,
            group_size=len(self._addresses),
        )
        host = self.hosts[member] = ManualHost()
        host.level = self.level
        seed = int(member[1:])
        node = LedgerNode(
            config,
            directory,
            host,
            random.Random(seed),
            self.now_ms,
            on_ready=lambda ready: self.on_ready(member, ready),
            machines=self.machines,
            held_machines=self.held_machines.get(member, ()),
        )
        for peer in self.nodes.values():
            node.connected(peer.replica)
            peer.connected(node.replica)
        self.nodes[member] = node
        return node

    def kill(self, member: str) -> None:
        killed = self.nodes.pop(member)
        killed.close(clean=False)
        del self.hosts[member]
        for peer in self.nodes.values():
            peer.connection_lost(killed.replica, True)

    def step(self, milliseconds: float = STEP_MS) -> None:
        """Let time pass, then carry out everything until nothing moves."""
        self.now_ms += milliseconds
        for node in self.nodes.values():
            node.advance(self.now_ms)
        moved = True
        while moved:
            moved = False
            for member in tuple(self.nodes):
                self._turn(member)
                host = self.hosts[member]
                may_apply = host.applies and member not in self.hold_apply
                if host.reads or may_apply or (host.flushes and member not in self.hold_flush):
                    moved = True
                    try:
                        run(host.reads)
                        if may_apply:
                            run(host.applies)
                        if member not in self.hold_flush:
                            run(host.flushes)
                    except BeginsAnew:
                        self.kill(member)
                        self.start(member)
                        continue
                    self._turn(member)
            for member, host in tuple(self.hosts.items()):
                sent, host.sent = host.sent, []
                for envelope in sent:
                    moved = True
                    to = envelope.to.member_id
                    lost = {member, to} & self.cut_off or self.drops(member, to, envelope.message)
                    if to in self.nodes and self.nodes[to].replica == envelope.to and not lost:
                        self._deliver(to, envelope.message)

    def _deliver(self, to: str, message: Any) -> None:
        try:
            self.nodes[to].receive(message)
        except BeginsAnew:
            self.kill(to)
            self.start(to)

    def _turn(self, member: str) -> None:
        self.nodes[member].turn()
        self.on_turned(member)

    def until(self, condition: Callable[[], Any], what: str = "") -> Any:
        for _ in range(4000):
            value = condition()
            if value:
                return value
            self.step()
        raise AssertionError(f"never happened in virtual time: {what or condition}")

    def leader(self) -> LedgerNode:
        def led() -> LedgerNode | None:
            leaders = [
                node
                for member, node in self.nodes.items()
                if node.raft.role is Role.LEADER and member not in self.cut_off
            ]
            return max(leaders, key=lambda node: node.raft.term, default=None)

        return self.until(led, "a leader")

    def followers(self) -> list[LedgerNode]:
        leader = self.leader()
        return [node for node in self.nodes.values() if node is not leader]

    def close(self, *, clean: bool = False) -> None:
        for node in self.nodes.values():
            node.close(clean=clean)
