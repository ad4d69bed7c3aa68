"""SimMember: the process of one member and the machine under it; the `Host` of its LedgerNode.

A process can end between any two effects, on its disk or to others (`SimDisk.crash_countdown`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

from quorumlog.config import GroupConfig
from quorumlog.consensus.messages import AnyPeerMessage
from quorumlog.consensus.ready import Envelope, RoleChange
from quorumlog.entry import Durability, Replica
from quorumlog.errors import DirectoryDamaged, ProtocolViolation, StoreFailure
from quorumlog.log_state.control_entries import LEVEL
from quorumlog.log_state.log_state import LostRange
from quorumlog.net.hello import Hello, HelloResponse
from quorumlog.net.peer_hello import member_list_of
from quorumlog.node import LedgerNode
from quorumlog.node.ports import BeginsAnew, DirectorySetBack
from quorumlog.store.disk import Disk
from quorumlog.store.log_points import LogStart
from quorumlog.store.member_directory import open_directory_of
from quorumlog.store.segments import DATA_NAME, segment_name
from quorumlog.testing.disk import Crashed, DiskQueue, SimDisk
from quorumlog.testing.network import End
from quorumlog.testing.wall_clock import WallClock

if TYPE_CHECKING:
    from quorumlog.testing.cluster import SimCluster

TURN_MS = 0.02
"""From an input to the turn that takes it; later arrivals are taken along."""


class SimMember:
    # A test that sets what no member has would prove nothing.
    __slots__ = (
        *("_applies", "_clock_ms", "_clock_set_ms", "_flushes", "_inbox", "_is_ending", "_memory"),
        *("_node", "_paused_until_ms", "_promises", "_reads", "_turn_due", "_wake_ms"),
        *("clock_rate", "cluster", "config", "directories", "disk", "ends", "hangs"),
        *("held_machines", "is_damaged", "is_lost", "least_sync_share", "level", "lost_power"),
        *("member_id", "path", "place", "process", "read_ms", "refusal", "replica"),
        *("sync_ms", "wall_clock"),
    )

    def __init__(self, cluster: SimCluster, config: GroupConfig, place: str = "") -> None:
        self.cluster = cluster
        self.config = config
        self.member_id = config.member_id
        self.place = place or config.member_id
        """The machine: two may hold directories of one member."""
        self.path = config.data_dir
        self.disk = SimDisk()
        self.process = 0
        """Counts the processes that ran this member; nothing of an older one has effects."""
        self.directories = 0
        self.replica = Replica(self.member_id, "")
        """The newest directory; its id is drawn at the first start."""
        self.is_lost = False
        """Its directory was wiped or lost its votes: it counts as down."""
        self.lost_power = False
        """Since it was last up: unsynced data may be lost."""
        self.is_damaged = False
        """Synced bytes of its files were changed; until the end of the run it counts as down too."""
        self.refusal = ""
        """Why the last start was refused."""
        self.sync_ms = cluster.profile.sync_ms
        """A sync takes up to this long, and at least the share of it that comes next."""
        self.least_sync_share = 0.0
        self.ends: dict[str, End] = {}
        """By the place of the other member."""
        self.hangs = self.disk.hangs = False
        """No sync returns that is waited for beside the loop. Ends with the process."""
        self.held_machines: frozenset[str] = frozenset()
        """Names of those that are not run, from the next start on."""
        self.read_ms: float | None = None
        """A read takes up to this long; None: as a sync does."""
        self.level = LEVEL
        self.clock_rate = 1.0
        self._clock_ms = 0.0
        self._clock_set_ms = 0.0
        self.wall_clock = WallClock()
        self._node: LedgerNode | None = None
        self._memory: Disk | None = None
        """Of a member without files that begins anew in the same process."""
        self._begin_process()

    # ---------------------------------------------------------------- process

    def _begin_process(self) -> None:
        self.process += 1
        self.refusal = ""
        self._inbox: list[Callable[[], None]] = []
        self._turn_due = False
        self._wake_ms = float("inf")
        self._paused_until_ms = 0.0
        self._is_ending = False
        """It has been told to end, and looks for a successor."""
        cluster, loop = self.cluster, (self.later, self.enter)
        saves = cluster.stream(f"promises of {self.place}, process {self.process}")
        chance = cluster.stream(f"applies of {self.place}, process {self.process}")
        self._flushes = DiskQueue(cluster.random, self._draw_sync_ms, *loop)
        self._promises = DiskQueue(saves, lambda: saves.uniform(0, self.sync_ms), *loop)
        self._reads = DiskQueue(cluster.random, self._draw_read_ms, *loop)
        self._applies = DiskQueue(chance, lambda: chance.uniform(0, cluster.profile.apply_ms), *loop)
        self._forget_connections()

    @property
    def is_up(self) -> bool:
        return self._node is not None

    @property
    def is_paused(self) -> bool:
        return self.cluster.now_ms < self._paused_until_ms

    @property
    def node(self) -> LedgerNode:
        assert self._node is not None, f"{self.member_id} is down"
        return self._node

    def note(self, what: str, detail: Callable[[], str] | str = "") -> None:
        self.cluster.trace.note(self.cluster.now_ms, self.member_id, what, detail)

    def start(self) -> None:
        if self._node is not None:
            return
        self._begin_process()
        self._guard(self._open)
        if self._node is not None:
            self.cluster.notify("started", self)
            self.lost_power = False
            self.cluster.network.started(self)
            self._schedule()

    def _open(self) -> None:
        try:
            disk, self._memory = self._memory or self.disk, None
            directory = open_directory_of(self.config, disk, draw_id=self._draw_directory_id)
        except DirectoryDamaged as damage:
            self.refusal = str(damage)
            self.note("refuses to start", self.refusal)
            self.cluster.trace.count("start: refused")
            self.disk.kill()
            self.cluster.faults.disks.refused(self)
            return
        self.replica = Replica(self.member_id, directory.directory_id)
        for line in directory.report:
            self.cluster.trace.count(f"recovery: {_branch_of(line)}")
        self.note("starts", lambda: f"end {directory.store.end}, {directory.report}")
        self._node = LedgerNode(
            self.config,
            directory,
            self,
            Random(self.cluster.random.getrandbits(64)),
            self.local_ms,
            on_ready=lambda ready: self.cluster.notify("ready", self, ready),
            machines=self.cluster.machines_of(self.member_id),
            held_machines=self.held_machines,
        )
        self._node.raft.observe(self.cluster.trace.count)

    def hello(self, to: SimMember) -> Hello:
        return Hello(role="control", to_member_id=to.member_id, **self._introduction())

    def hello_response(self) -> HelloResponse:
        return HelloResponse(**self._introduction())

    def _introduction(self) -> dict[str, Any]:
        directory = self.node.directory
        return {
            "member_id": self.member_id,
            "directory_id": self.replica.directory_id,
            "cluster_id": directory.formation.cluster_id,
            "members": member_list_of(self.config.members),
            "segment_bytes": self.config.storage.segment_bytes,
            "durability": directory.durability.value,
            "level": self.level,
        }

    def _draw_directory_id(self) -> str:
        self.directories += 1
        return f"{self.place}-{self.directories}"

    def kill(self) -> None:
        """SIGKILL: data handed to the operating system stays."""
        self._end("is killed", silently=False)
        self.disk.kill()

    def lose_power(self) -> None:
        self._end("loses power", silently=True)
        self.lost_power = True
        self.disk.lose_power(self.cluster.random)

    def wipe(self) -> None:
        """Its directory is gone; `start` makes a new one."""
        self.is_lost = True
        self.kill()
        self.disk.remove_tree(self.path)

    def segment_path(self, base_position: int = 0) -> str:
        return f"{self.path}/{DATA_NAME}/{segment_name(base_position)}"

    def terminate(self, then: Callable[[], None]) -> None:
        """SIGTERM: it looks for a successor first; `then` is called when it has stopped."""

        def end(reason: str) -> None:
            self.note("looked for a successor", reason)
            self.later(0.0, stop)

        def stop() -> None:
            self.stop()
            then()

        if self._node is not None and not self._is_ending:
            self._is_ending = True
            node = self._node
            self.enter(lambda: node.find_successor(end))

    def stop(self) -> None:
        """SIGTERM, without the search for a successor that comes first (`terminate`)."""
        if self._node is None or self.is_paused or self.hangs:
            return
        node = self._node

        def close() -> None:
            for queue in (self._promises, self._flushes, self._reads, self._applies):
                queue.drain()
            node.close(clean=True)

        if self._guard(close):
            self._end("stops", silently=False)
            self.disk.kill()

    def _end(self, how: str, *, silently: bool) -> None:
        if self._node is None:
            return
        self.note(how)
        self.cluster.notify("stopped", self)
        self._node = None
        self.hangs = self.disk.hangs = False
        self.process += 1
        self._forget_connections()
        self.cluster.network.gone(self, silently=silently)

    def _forget_connections(self) -> None:
        for end in self.ends.values():
            end.standing.clear()
            end.connections.close()
        self.ends = {}
        for place in self.cluster.places:
            self.add_end(place)

    def add_end(self, place: str) -> None:
        member_id = self.cluster.places[place]
        if member_id != self.member_id:
            self.ends[place] = End(self, member_id)

    def _guard(self, act: Callable[[], None]) -> bool:
        """Carry something out that may end the process; False if it did."""
        try:
            act()
        except Crashed:
            self.cluster.faults.processes.crashed(self)
            return False
        except BeginsAnew as reason:
            # As the server does it: the same process opens the directory anew.
            if isinstance(reason, DirectorySetBack):
                self.cluster.trace.count("an older copy becomes another directory")
                self.note("is an older copy", lambda: self.node.directory.path)
                self.cluster.notify("set_back", self)
            if self.config.store == "memory":
                self._memory = self.node.directory.disk
            self._end("begins anew", silently=False)
            self.disk.kill()
            self.cluster.at(self.cluster.replacing.uniform(0.1, 20), self.start)
            return False
        except StoreFailure as failure:
            if not self.cluster.faults.disks.may_fail(self):
                raise
            self.note("fails", str(failure))
            self.cluster.faults.disks.failed(self)
            return False
        return True

    # ---------------------------------------------------------------- time

    @property
    def local_ms(self) -> float:
        """The member's own monotonic clock."""
        return self._clock_ms + (self.cluster.now_ms - self._clock_set_ms) * self.clock_rate

    def set_clock(self, *, jump_ms: float = 0.0, rate: float | None = None) -> None:
        self._clock_ms = self.local_ms + jump_ms
        self._clock_set_ms = self.cluster.now_ms
        if rate is not None:
            self.clock_rate = rate
        self._wake_ms = float("inf")
        if self._node is not None:
            self._schedule()

    def pause(self, duration_ms: float) -> None:
        self._paused_until_ms = max(self._paused_until_ms, self.cluster.now_ms + duration_ms)

    def hang(self, hangs: bool) -> None:
        """Whether its disk does."""
        self.hangs = self.disk.hangs = hangs
        for queue in (self._flushes, self._promises):
            queue.hang(hangs)

    def later(self, after_ms: float, act: Callable[[], None]) -> None:
        """In this process; if it is paused then, when it resumes."""
        process = self.process

        def run() -> None:
            if self.process != process:
                return
            if self.is_paused:
                self.cluster.at(self._paused_until_ms - self.cluster.now_ms, run)
                return
            self._guard(act)

        self.cluster.at(after_ms, run)

    def _draw_sync_ms(self) -> float:
        return self.cluster.random.uniform(self.least_sync_share * self.sync_ms, self.sync_ms)

    def _draw_read_ms(self) -> float:
        return self.cluster.random.uniform(0, self.sync_ms if self.read_ms is None else self.read_ms)

    # ---------------------------------------------------------------- turns

    def enter(self, act: Callable[[], None]) -> None:
        """Have something done in the next turn."""
        if self._node is not None:
            self._inbox.append(act)
            self._schedule()

    def enter_node(self, method: str, *arguments: Any) -> None:
        self.enter(lambda: getattr(self.node, method)(*arguments))

    def receive(self, message: AnyPeerMessage) -> None:
        """In a turn. As in the server a violation ends the connection; only lossy disks lead to one."""
        try:
            self.node.receive(message)
        except ProtocolViolation as violation:
            if not self.cluster.profile.has_lossy_disks:
                raise
            self.cluster.trace.count("peer refused for other entries")
            sender_id = message.sender.member_id
            self.note(f"parts from {sender_id}", str(violation))
            self.cluster.notify("parted", self, message)
            self.cluster.network.reset(self.member_id, sender_id, closed_by=self.member_id)

    def _schedule(self) -> None:
        if not self._turn_due:
            self._turn_due = True
            self.later(TURN_MS, self._turn)

    def _turn(self) -> None:
        self._turn_due = False
        node = self.node
        node.advance(self.local_ms)
        inbox, self._inbox = self._inbox, []
        for act in inbox:
            act()
        node.turn()
        self.cluster.notify("turned", self)
        after_ms = max(0.0, (node.next_wakeup_ms() - self.local_ms) / self.clock_rate)
        at_ms = self.cluster.now_ms + after_ms
        if at_ms < self._wake_ms:
            self._wake_ms = at_ms
            self.later(after_ms, self._wake)

    def _wake(self) -> None:
        # A turn may have overtaken an earlier wish: waking in vain does no harm.
        if self.cluster.now_ms >= self._wake_ms:
            self._wake_ms = float("inf")
        self._schedule()

    # ---------------------------------------------------------------- Host

    def send(self, envelope: Envelope) -> bool:
        self.disk.count_effect()
        self.cluster.notify("sent", self, envelope)
        return self.cluster.network.send(self, envelope)

    def replicas_with_moving_data(self) -> Iterable[Replica]:
        return self.cluster.network.moving_data_of(self)

    def flush_later(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self._flushes.submit(work, self._finisher(done))

    def promise_later(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        if self.hangs or self.cluster.profile.has_hanging_disks:
            self._promises.submit(work, done)
        else:  # at once, so that it moves nothing of the runs that have no such disks
            done(self._promises.run(work))

    def read_later(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self._reads.submit(partial(self._beside, work), self._finisher(done))

    def apply_later(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self._applies.submit(partial(self._beside, work), self._finisher(done))

    def _beside(self, work: Callable[[], Any]) -> Any:
        """In a thread that waits for no sync of entries, which may be the one that hangs."""
        self.disk.hangs = False
        try:
            return work()
        finally:
            self.disk.hangs = self.hangs

    def _finisher(self, done: Callable[[Any], None]) -> Callable[[Any], None]:
        return lambda result: self.node.finish(done, result)

    def role_changed(self, change: RoleChange) -> None:
        self.note(f"is {change.role.value} in term {change.term}", f"leader {change.leader_id}")

    def committed(self, committed_index: int) -> None:
        self.note(f"commits up to {committed_index}")

    def lost_committed(self, first_index: int) -> None:
        self.cluster.trace.count("async: committed entries are cut")
        self.note(f"lost committed entries from {first_index} on")

    def reader_lost(self, lost: LostRange) -> None:
        self.cluster.trace.count("retention: a reader lost entries")
        self.note(f"passes reader {lost.name}", lambda: f"{lost.first_index} .. {lost.stop_index - 1}")

    def wall_clock_ms(self) -> int:
        return self.wall_clock.read_ms(self.cluster.now_ms)

    def replacing_log(self, start: LogStart) -> None:
        self.cluster.trace.count("install: a log is replaced")
        self.note("replaces its log", lambda: f"{self.node.store.end} by one after {start.point}")
        self.cluster.notify("replacing", self, start)

    def members_below(self, level: int) -> list[str]:
        return self.cluster.network.members_below(level, self)

    def syncs(self, replica: Replica) -> bool:
        up = [member for member in self.cluster.up() if member.replica == replica]
        return any(member.node.directory.durability is Durability.SYNC for member in up)

    def weakest_durability(self, own: Durability) -> Durability:
        return own


def _branch_of(line: str) -> str:
    """A sentence of a recovery report without its names and numbers."""
    words = [w for w in line.replace(",", " ").replace(":", " ").split() if w.isalpha()]
    return " ".join(words[:8])
