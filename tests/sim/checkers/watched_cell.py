"""A cell of real nodes on simulated disks, in the shape in which checkers see a cluster."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from quorumlog.batch import EntryBatch
from quorumlog.config import StoreConfig
from quorumlog.entry import Replica
from quorumlog.log_state.control_entries import LEVEL
from quorumlog.node import LedgerNode
from quorumlog.testing.disk import SimDisk
from quorumlog.testing.operations import ClientAppend, Operations, Trace, read_at_once
from sim.log.checkers import Checker
from sim.log.operations import ClientRead
from tests.node.cell import SMALL, Cell
from tests.sim.scenario import QUIET


class WatchedMember:
    def __init__(self, member_id: str, node: LedgerNode, disk: SimDisk, cell: Cell) -> None:
        self.member_id = member_id
        self._cell = cell
        self.node = node
        self.disk = disk
        self.path = f"/{member_id}"
        self.is_up = True
        self.level = LEVEL
        self.lost_power = False

    @property
    def replica(self) -> Replica:
        return self.node.replica

    @property
    def local_ms(self) -> float:
        return self._cell.now_ms


class WatchedCell:
    """`watch` takes a checker in; from then on it is told of everything that the cell does."""

    def __init__(self, members: int = 3, *, storage: StoreConfig = SMALL) -> None:
        self.storage = storage
        self.is_faulty = False
        self.profile = replace(QUIET, size=members, storage=storage)
        self.operations = Operations()
        self.trace = Trace()
        self.checkers: list[Checker] = []
        disks = {f"n{i}": SimDisk() for i in range(members)}
        self.cell = Cell(Path("/"), members, storage=storage, disks=dict(disks))
        self.members: Any = tuple(
            WatchedMember(m, self.cell.nodes[m], disk, self.cell) for m, disk in disks.items()
        )
        by_id = {member.member_id: member for member in self.members}
        self.cell.on_ready = lambda member_id, ready: self.tell("ready", by_id[member_id], ready)
        self.cell.on_turned = lambda member_id: self.tell("turned", by_id[member_id])
        for member in self.members:
            self._watch_what_is_sent(member)

    @property
    def now_ms(self) -> float:
        return self.cell.now_ms

    def watch(self, *checkers: Checker) -> None:
        self.checkers += checkers
        for member in self.members:
            self.tell("started", member)

    def tell(self, what: str, *arguments: Any) -> None:
        for checker in self.checkers:
            if (hook := getattr(checker, what, None)) is not None:
                hook(*arguments)

    def _watch_what_is_sent(self, member: Any) -> None:
        self.cell.hosts[member.member_id].on_sent = lambda envelope: self.tell("sent", member, envelope)

    # ---------------------------------------------------------------- what happens

    def leader(self) -> Any:
        node = self.cell.leader()
        return next(member for member in self.members if member.node is node)

    def followers(self) -> list[Any]:
        leader = self.leader()
        return [member for member in self.members if member is not leader]

    def append(self, *bodies: bytes) -> ClientAppend:
        """Through the leader; returns once it is answered."""
        leader = self.leader()
        number = len(self.operations.appends) + 1
        append = ClientAppend(number, bodies, leader.member_id, self.now_ms)
        self.operations.appends.append(append)

        def answered(outcome: Any) -> None:
            append.outcome = outcome

        leader.node.append(EntryBatch.from_bodies(bodies), 0, answered)
        self.cell.until(lambda: append.outcome is not None, "an answer")
        append.returned_ms = self.now_ms
        self.tell("appended", append)
        self.cell.step()
        return append

    def read(self, member: Any, first_index: int = 0) -> ClientRead:
        node = member.node
        batch = read_at_once(node, first_index)
        self.operations.reads += 1
        read = ClientRead(member.member_id, first_index, batch, node.committed_index, self.now_ms)
        self.tell("read", read)
        return read

    def stop(self, member: Any) -> None:
        """The process is killed; others learn of it."""
        self.tell("stopped", member)
        member.is_up = False
        member.disk.kill()
        del self.cell.nodes[member.member_id]
        self.cell.cut_off.add(member.member_id)
        for other in self.cell.nodes.values():
            other.connection_lost(member.node.replica, True)

    def start(self, member: Any) -> None:
        self.cell.disks[member.member_id] = member.disk
        member.node = self.cell.start(member.member_id)
        member.is_up = True
        self.cell.cut_off.discard(member.member_id)
        self._watch_what_is_sent(member)
        self.tell("started", member)

    def until_whole(self) -> None:
        """Every log is the leader's, committed and applied to its end."""

        def whole() -> bool:
            end = self.leader().node.store.end
            nodes = self.cell.nodes.values()
            return all(n.store.end == end and n.durable_committed_index == end.index for n in nodes)

        self.cell.until(whole, "one log")
