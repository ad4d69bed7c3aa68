"""Invariants under faults, a checker each; `promises` is the list for users."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import NamedTuple, Protocol

from quorumlog.consensus.messages import (
    AnyPeerMessage,
    HeartbeatRequest,
    PushEntryRequest,
    TakeLeadershipRequest,
)
from quorumlog.consensus.ready import Envelope, Ready, Role
from quorumlog.entry import AppendReceipt, Durability, Replica
from quorumlog.errors import DirectoryDamaged, IndexOutOfRange, RangeDamaged
from quorumlog.node import LedgerNode
from quorumlog.store.ledger_store import LedgerStore
from quorumlog.store.log_points import LogPoint, LogStart
from quorumlog.store.segments import DATA_NAME, segment_name
from quorumlog.store.snapshots import LeftOut
from quorumlog.testing.disk import SimDisk
from quorumlog.testing.machines import DIGEST_NAME, DigestWriter, result_of
from quorumlog.testing.operations import (
    ClientAnswer,
    ClientAppend,
    Operations,
    Trace,
)
from quorumlog.testing.profile import SimulationProfile
from quorumlog.testing.wall_clock import WallClock


class CheckedMember(Protocol):
    """What checkers see: nothing by which they could change it, and not how it is simulated."""

    @property
    def place(self) -> str:
        """Two of them may have one id."""

    @property
    def member_id(self) -> str: ...

    @property
    def replica(self) -> Replica: ...

    @property
    def is_up(self) -> bool: ...

    @property
    def level(self) -> int:
        """Of the log's format, up to which its release knows it."""

    @property
    def lost_power(self) -> bool:
        """Since it was last up: unsynced data may be lost."""

    @property
    def node(self) -> LedgerNode:
        """Of a member that is up."""

    @property
    def local_ms(self) -> float:
        """By its own monotonic clock."""

    @property
    def wall_clock(self) -> WallClock: ...

    @property
    def disk(self) -> SimDisk: ...

    @property
    def path(self) -> str:
        """Of its directory on its disk."""


class CheckedCluster(Protocol):
    @property
    def members(self) -> Sequence[CheckedMember]: ...

    @property
    def profile(self) -> SimulationProfile: ...

    @property
    def now_ms(self) -> float: ...

    @property
    def is_faulty(self) -> bool:
        """Faults strike; afterwards everything must become whole."""

    @property
    def operations(self) -> Operations: ...

    @property
    def trace(self) -> Trace: ...


# ---------------------------------------------------------------- Checker
# Watches a run and raises `Violation` at the first thing that must not be.
#
# A checker overrides what it needs to see. All calls come in the order of virtual time; none may change
# anything. What a checker remembers of a member it keys by `member.replica` (a directory), not by name:
# another directory under the same name has promised nothing.


class Violation(AssertionError):
    """An invariant was violated; the message names it, the members and the values."""


class Checker:
    def __init__(self, cluster: CheckedCluster) -> None:
        self.cluster = cluster

    def started(self, member: CheckedMember) -> None:
        """`member.node` is up on its directory; no message was sent or received yet."""

    def stopped(self, member: CheckedMember) -> None:
        """The process is gone (killed, power lost, failed or stopped); `member.node` is still the old
        one for the time of this call."""

    def put_back(self, member: CheckedMember) -> None:
        """It is down, and an older copy has taken the place of its directory."""

    def set_back(self, member: CheckedMember) -> None:
        """It learned that its directory was set back, and starts anew."""

    def ready(self, member: CheckedMember, ready: Ready) -> None:
        """The core gave out a Ready; nothing of it is carried out yet."""

    def sent(self, member: CheckedMember, envelope: Envelope) -> None:
        """A message is leaving now."""

    def parted(self, member: CheckedMember, message: AnyPeerMessage) -> None:
        """`member` closes a connection, for this message violates the protocol."""

    def replacing(self, member: CheckedMember, start: LogStart) -> None:
        """The log of the member is about to be replaced by one that begins after `start`: its next
        process has either, and this one sends nothing more."""

    def turned(self, member: CheckedMember) -> None:
        """A turn has ended; everything that it caused is carried out."""

    def appended(self, append: ClientAppend) -> None:
        """`append.outcome` has just been set."""

    def machine_answered(self, answer: ClientAnswer) -> None:
        """A state machine has answered a question."""

    def made_whole(self) -> None:
        """Faults have stopped, and the cluster had the time that it may take to become whole."""


# ---------------------------------------------------------------- CommittedLog
# What the cluster as a whole has committed, as the checkers came to know it.
#
# `chain_crc` runs over the whole log, so two logs that agree on it at one index agree on every entry up
# to there: one comparison of numbers stands for all of them.


class EntryMark(NamedTuple):
    """An entry, and by its chain all entries before it."""

    term: int
    chain: int


def mark_at(store: LedgerStore, index: int) -> EntryMark | None:
    """The entry of a log at `index`; None if it is not held, or if the disk no longer reads it."""
    try:
        return EntryMark(store.id_at(index).term, store.chain_at(index))
    except (IndexOutOfRange, RangeDamaged, DirectoryDamaged):
        return None


def mark_on(cluster: CheckedCluster, replica: Replica, index: int) -> EntryMark | None:
    """The same of a directory; None also while its member is down and cannot be looked at."""
    for member in cluster.members:
        if member.is_up and member.replica == replica:
            return mark_at(member.node.store, index)
    return None


class CommittedLog:
    """Grows as members report committed entries. Filled by `CommittedEntries`."""

    def __init__(self, cluster: CheckedCluster) -> None:
        self._cluster = cluster
        self._marks: list[EntryMark] = []
        self._committed_in: list[int] = []
        """Term of the member that was the first to say so."""
        self._claims: dict[int, EntryMark] = {}
        """By index, above `end_index`."""
        self.reported_index = -1
        """The highest index that a member has called committed. Its entry may be missing here, while
        only a member has it that cannot read earlier entries."""
        self.forgotten_from: int | None = None
        """Async mode: the lowest index that a power loss has taken from any directory. From there on,
        and nowhere below, acknowledged entries may be lost and committed ones replaced."""

    @property
    def end_index(self) -> int:
        return len(self._marks) - 1

    @property
    def safe_stop_index(self) -> int:
        """Below it nothing may change."""
        stop = len(self._marks)
        return stop if self.forgotten_from is None else min(stop, self.forgotten_from)

    def at(self, index: int) -> EntryMark:
        return self._marks[index]

    def marks(self, first_index: int, stop_index: int) -> list[EntryMark]:
        return self._marks[first_index:stop_index]

    def committed_in(self, index: int) -> int:
        return self._committed_in[index]

    def last_committed_before(self, term: int) -> int:
        """The last index that was committed in an earlier term; -1: none."""
        for index in range(self.end_index, -1, -1):
            if self._committed_in[index] < term:
                return index
        return -1

    def claim(self, index: int, mark: EntryMark) -> None:
        """A member has shown this as committed, above the entries readable so far."""
        known = self._claims.setdefault(index, mark)
        if known != mark and self.forgotten_from is None:
            raise Violation(f"entry {index} was shown as {known} and as {mark}, both as committed")

    def append(self, mark: EntryMark, committed_in: int) -> None:
        self.claim(len(self._marks), mark)
        del self._claims[len(self._marks)]
        self._marks.append(mark)
        self._committed_in.append(committed_in)

    def forget_from(self, index: int) -> None:
        """A directory has lost entries from `index` on in a power loss."""
        assert self._cluster.profile.is_async, index
        self.forgotten_from = index if self.forgotten_from is None else min(self.forgotten_from, index)

    def replace_from(self, index: int) -> None:
        """A later leader has committed something else from `index` on."""
        assert index >= self.safe_stop_index, (index, self.forgotten_from)
        del self._marks[index:]
        del self._committed_in[index:]


# ---------------------------------------------------------------- Election safety
# At most one leader a term (Raft paper, figure 3).

ONLY_FROM_LEADERS = (HeartbeatRequest, PushEntryRequest, TakeLeadershipRequest)


class OneLeader(Checker):
    """Members that claim to lead, or send messages of leaders."""

    def __init__(self, cluster: CheckedCluster) -> None:
        super().__init__(cluster)
        self._leaders: dict[int, Replica] = {}

    def ready(self, member: CheckedMember, ready: Ready) -> None:
        change = ready.role_change
        if change is not None and change.role is Role.LEADER:
            self._note(member, change.term, "becomes leader")

    def sent(self, member: CheckedMember, envelope: Envelope) -> None:
        message = envelope.message
        if isinstance(message, ONLY_FROM_LEADERS):
            self._note(member, message.term, f"sends {type(message).__name__}")

    def _note(self, member: CheckedMember, term: int, what: str) -> None:
        leader = self._leaders.setdefault(term, member.replica)
        if leader != member.replica:
            raise Violation(f"{member.replica} {what} in term {term}, whose leader is {leader}")


class LogMatching(Checker):
    """Two logs that hold an entry of the same index and term are the same up to it.

    Looked at where logs end (Raft paper, figure 3). It holds in async mode too: no member leads
    again in a term that it held before a restart, so no id is ever given twice."""

    def __init__(self, cluster: CheckedCluster) -> None:
        super().__init__(cluster)
        self._ends: dict[Replica, LogPoint] = {}
        self._chains: dict[tuple[int, int], tuple[int, Replica]] = {}
        """(index, term) -> chain, and whose log was the first to end there."""

    def turned(self, member: CheckedMember) -> None:
        end = member.node.store.end
        if end is self._ends.get(member.replica):
            return
        self._ends[member.replica] = end
        chain, first = self._chains.setdefault((end.index, end.term), (end.chain, member.replica))
        if chain != end.chain:
            raise Violation(
                f"{member.replica} and {first} both hold entry {end.index} of term {end.term}, but not"
                f" the same log up to it: chains {end.chain:#x} and {chain:#x}"
            )

    started = turned


# ---------------------------------------------------------------- Same machines
# Members whose state machines have applied up to the same entry, and left out the same ones, save the
# same bytes; none has applied what is not on its own disk; a snapshot holds what they are at its entry,
# whatever was applied while it was written; and a result is that of the command that asked for it.

_Key = tuple[str, int, int, tuple[LeftOut, ...]]
"""(machine, index, term, what it leaves out up to there)."""


class SameMachines(Checker):
    def __init__(self, cluster: CheckedCluster) -> None:
        super().__init__(cluster)
        self._seen: dict[tuple[Replica, str], int] = {}
        """Index at which it was looked at last."""
        self._digests: dict[_Key, tuple[str, Replica]] = {}
        """What it saves there, and whose was the first."""
        self._saved: dict[tuple[Replica, str], int] = {}
        """Entry of the snapshot that was looked at last."""

    def turned(self, member: CheckedMember) -> None:
        node = member.node
        saved = {status.name: status.snapshot_index for status in node.machines.status()}
        for name, applied, runner in node.machines.at_rest():
            if self._seen.get((member.replica, name)) == applied.index:
                continue
            self._seen[member.replica, name] = applied.index
            # A snapshot is of what was committed, and may outlive entries that its disk has lost.
            durable_index = max(node.store.durable.index, saved[name])
            if node.directory.durability is Durability.SYNC and applied.index > durable_index:
                raise Violation(
                    f"{name} of {member.replica} has applied entry {applied.index}, and its disk has"
                    f" entries up to {durable_index} only"
                )
            writer = DigestWriter()
            runner.write_to(writer)
            left_out = runner.left_out_up_to(applied.index)
            self._compare(member.replica, (name, applied.index, applied.term, left_out), writer.digest)
            self.cluster.trace.count("machines: compared")
        for status in node.machines.status():
            self._look_at_snapshot(member, status.name, status.snapshot_index)

    def _look_at_snapshot(self, member: CheckedMember, name: str, index: int) -> None:
        """At the newest; it may have come from another member."""
        if index < 0 or self._saved.get((member.replica, name)) == index:
            return
        self._saved[member.replica, name] = index
        with closing(member.node.directory.snapshots.open(name, index)) as snapshot:
            writer = DigestWriter()
            writer.write(snapshot.read())
            key = (name, index, snapshot.head.point[1], snapshot.head.left_out)
            self._compare(member.replica, key, writer.digest)
        self.cluster.trace.count("machines: a snapshot compared")

    def _compare(self, replica: Replica, key: _Key, digest: str) -> None:
        known, first = self._digests.setdefault(key, (digest, replica))
        if known != digest:
            name, index, term, _ = key
            raise Violation(
                f"{name} of {replica} is at entry {index} of term {term} what that of {first} is not"
            )

    def appended(self, append: ClientAppend) -> None:
        receipt = append.outcome
        if append.machine != DIGEST_NAME or not isinstance(receipt, AppendReceipt):
            return
        refused = dict(receipt.failures)
        for place, body in enumerate(append.bodies):
            index = receipt.first_index + place
            expected = result_of(index, body)
            if index in self.cluster.operations.stepped_over and place in refused:
                expected = None
            if receipt.results[place] != expected or (expected is None) != (place in refused):
                raise Violation(
                    f"append {append.number} at {receipt.first_index} has the results of others:"
                    f" {receipt}"
                )
        self.cluster.trace.count("machines: results")

    def machine_answered(self, answer: ClientAnswer) -> None:
        if self.cluster.profile.is_async:
            return  # what was acknowledged may be gone
        if answer.applied_index < answer.acknowledged_index:
            raise Violation(
                f"{answer.member_id} answered from what it had applied up to {answer.applied_index},"
                f" when {answer.acknowledged_index} had been acknowledged before the question"
            )


class DurableEntries(Checker):
    """What was on a directory's disk is there at its next start, whatever ended the process before.

    Under `flush = async` the same holds of what the store has synced; what it had only written may
    be gone after a power loss, and from then on counts as forgotten (`CommittedLog.forgotten_from`)."""

    def __init__(self, cluster: CheckedCluster, log: CommittedLog) -> None:
        super().__init__(cluster)
        self._log = log
        self.on_disk: dict[Replica, LogPoint] = {}
        """By directory: up to where its entries are synced. Stays when the directory is lost."""
        self._written: dict[Replica, LogPoint] = {}
        self._replacing: dict[Replica, LogPoint] = {}
        """Where the log of a directory begins if its next process finds it replaced."""

    def turned(self, member: CheckedMember) -> None:
        store = member.node.store
        self.on_disk[member.replica] = store.durable
        self._written[member.replica] = store.end

    stopped = turned
    """A process may have acknowledged in the turn that killed it."""

    def ready(self, member: CheckedMember, ready: Ready) -> None:
        """A cut takes entries back by order, and may be done in part when the process ends."""
        if ready.truncate_from is None:
            return
        for points in (self.on_disk, self._written):
            point = points.get(member.replica)
            if point is not None and point.index >= ready.truncate_from:
                mark = mark_at(member.node.store, ready.truncate_from - 1)
                if mark is None:
                    del points[member.replica]
                else:
                    points[member.replica] = LogPoint(ready.truncate_from - 1, *mark, -1)

    def replacing(self, member: CheckedMember, start: LogStart) -> None:
        self._replacing[member.replica] = start.point

    def put_back(self, member: CheckedMember) -> None:
        for points in (self.on_disk, self._written):
            for replica in [replica for replica in points if replica.member_id == member.member_id]:
                del points[replica]

    def started(self, member: CheckedMember) -> None:
        end = member.node.store.end
        replacing = self._replacing.pop(member.replica, None)
        if replacing is not None and member.node.store.begin == replacing:
            # What the old log had on disk was cut with it; whether it may go `Installs` has judged.
            self.turned(member)
            return
        on_disk, written = self.on_disk.get(member.replica), self._written.get(member.replica)
        if on_disk is not None:
            self._check_held(member, on_disk, "synced")
        if written is not None and self.cluster.profile.is_async:
            if end.index < written.index and member.lost_power:
                self._log.forget_from(end.index + 1)
                self.cluster.trace.count("async: a power loss took entries")
            else:
                self._check_held(member, written, "written")
        self.turned(member)

    def _check_held(self, member: CheckedMember, point: LogPoint, how: str) -> None:
        end = member.node.store.end
        if end.index < point.index:
            raise Violation(
                f"{member.replica} had {how} entry {point.index} (term {point.term}) before it ended; it"
                f" starts with a log that ends at {end.index} (term {end.term})"
            )
        held = mark_at(member.node.store, point.index)
        if held is not None and held != (point.term, point.chain):
            raise Violation(
                f"{member.replica} had {how} entry {point.index} as (term, chain)"
                f" {(point.term, point.chain)} before it ended; it starts with {held}"
            )


class CommittedEntries(Checker):
    """Each index gets one (term, chain) for ever, on every member.

    Looked at whenever a member's committed index has moved, and once after each of its starts. The
    chain at that index vouches for everything below it."""

    def __init__(self, cluster: CheckedCluster, log: CommittedLog) -> None:
        super().__init__(cluster)
        self._log = log
        self._looked: dict[Replica, int] = {}
        """The committed index of each directory's process that was last compared."""

    def started(self, member: CheckedMember) -> None:
        self._looked.pop(member.replica, None)

    def look_at(self, member: CheckedMember) -> None:
        """Compare the member's committed entries, and record new ones."""
        index = member.node.committed_index
        self._log.reported_index = max(self._log.reported_index, index)
        if index == self._looked.get(member.replica, -1):
            return
        known_index = min(index, self._log.end_index)
        if known_index >= 0:
            held = mark_at(member.node.store, known_index)
            if held is None:
                return  # unreadable here: the next index may not be
            if held != self._log.at(known_index) and not self._is_replaced(member, known_index):
                self._looked[member.replica] = index
                return
        self._looked[member.replica] = index
        for new_index in range(self._log.end_index + 1, index + 1):
            mark = mark_at(member.node.store, new_index)
            if mark is None:
                shown = mark_at(member.node.store, index)
                if shown is not None:
                    self._log.claim(index, shown)
                return
            self._log.append(mark, member.node.raft.term)

    turned = look_at
    stopped = look_at
    """Messages of the turn that killed it count."""

    def _is_replaced(self, member: CheckedMember, index: int) -> bool:
        """Raise Violation unless a power loss explains the difference; True if the member speaks for
        the later leader, whose log counts from now on."""
        first_index, held = self._first_difference(member, index)
        known = self._log.at(first_index)
        term, committed_in = member.node.raft.term, self._log.committed_in(first_index)
        if first_index < self._log.safe_stop_index:
            raise Violation(
                f"entry {first_index} was committed in term {committed_in} as {known}; {member.replica}"
                f" in term {term} holds {held} there and says that {index} is committed (async lost"
                f" from: {self._log.forgotten_from})"
            )
        if term <= committed_in:
            return False
        self._log.replace_from(first_index)
        return True

    def _first_difference(self, member: CheckedMember, index: int) -> tuple[int, EntryMark | None]:
        """`index` is one; the lowest one that can be read."""
        store = member.node.store
        held = mark_at(store, index)
        while index > 0:
            below = mark_at(store, index - 1)
            if below is None or below == self._log.at(index - 1):
                break
            index, held = index - 1, below
        return index, held


# ---------------------------------------------------------------- The cluster is whole again
# One leader, and the same bytes at every member that is up, from where both logs exist.


def is_apart(node: LedgerNode, leader: LedgerNode) -> bool:
    """It is another directory of the leader's name, and no member: the two have no connection."""
    same_name = node.replica.member_id == leader.replica.member_id and node.replica != leader.replica
    return same_name and node.replica not in leader.status().membership.members()


def leader_of_one_log(nodes: Sequence[LedgerNode]) -> LedgerNode | None:
    """The leader that all of these follow, with the same log committed to its end on every disk; None:
    there is none."""
    leaders = [node for node in nodes if node.raft.role is Role.LEADER]
    if len(leaders) != 1:
        return None
    leader, end = leaders[0], leaders[0].store.end
    agreed = all(
        node.raft.leader == leader.replica
        and node.store.end == end
        and node.durable_committed_index == end.index
        for node in nodes
        if not is_apart(node, leader)
    )
    return leader if agreed else None


class Convergence(Checker):
    def made_whole(self) -> None:
        up = [member for member in self.cluster.members if member.is_up]
        leaders = [member for member in up if member.node.raft.role is Role.LEADER]
        if len(leaders) != 1:
            states = {m.member_id: (m.node.raft.role.value, m.node.raft.term) for m in up}
            raise Violation(f"after the faults there are {len(leaders)} leaders: {states}")
        leader = leaders[0]
        for member in up:
            if not is_apart(member.node, leader.node):
                self._compare(leader, member)

    def _compare(self, leader: CheckedMember, member: CheckedMember) -> None:
        node, end = member.node, leader.node.store.end
        followed = (node.raft.leader, node.raft.term)
        if followed != (leader.replica, leader.node.raft.term):
            raise Violation(
                f"{member.replica} follows (leader, term) {followed}; {leader.replica} leads term"
                f" {leader.node.raft.term}"
            )
        if node.store.end != end:
            raise Violation(
                f"the log of {member.replica} ends with {node.store.end}, that of the leader"
                f" {leader.replica} with {end}"
            )
        indices = (node.committed_index, node.durable_committed_index)
        if indices != (end.index, end.index):
            raise Violation(
                f"{member.replica} has committed, and committed on its disk, {indices} of a log that"
                f" ends at {end.index}"
            )
        if leader.node.config.store == "memory":
            return  # there are no files; the chain at the end speaks for every entry
        segment_bytes = leader.node.config.storage.segment_bytes
        # Each may begin elsewhere: from the higher begin on they are the same.
        first = max(leader.node.store.begin.position, node.store.begin.position)
        for base in range(first, end.position, segment_bytes):
            self._compare_segment(leader, member, f"{DATA_NAME}/{segment_name(base)}")

    def _compare_segment(self, leader: CheckedMember, member: CheckedMember, name: str) -> None:
        ours = leader.disk.content(f"{leader.path}/{name}")
        theirs = member.disk.content(f"{member.path}/{name}")
        if ours == theirs:
            return
        length = min(len(ours), len(theirs))
        at = next((i for i in range(length) if ours[i] != theirs[i]), length)
        raise Violation(
            f"{name} differs between {leader.replica} and {member.replica} from byte {at} on:"
            f" {ours[at : at + 16].hex()} and {theirs[at : at + 16].hex()}, lengths {len(ours)} and"
            f" {len(theirs)}"
        )


# ----------------------------------------------------------------
# The promises of a log to those who write to it and read from it.


def promises(cluster: CheckedCluster) -> list[Checker]:
    """In the order in which they run: some rely on records of earlier ones."""
    log = CommittedLog(cluster)
    return [
        OneLeader(cluster),
        LogMatching(cluster),
        SameMachines(cluster),
        DurableEntries(cluster, log),
        CommittedEntries(cluster, log),
        Convergence(cluster),
    ]
