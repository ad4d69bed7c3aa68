"""One short run of a group, decided by one seed: faults first, peace after.

    python -m tests.consensus.random_run FIRST_SEED [STOP_SEED]

Power losses (what was not synced is gone, or part of it), restarts, processes that stop for a while,
lost, repeated and late messages, partitions one way and both ways, flapping connections, slow disks,
wiped directories, transfers, reads. Checked all the time: one leader in a term, a committed entry never
changes and lies on a majority of disks, a new leader has every committed entry, a read sees what was
committed before it. Checked at the end: once the faults stop, every member gets the same log.
"""

from __future__ import annotations

import heapq
import random
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from itertools import count

from quorumlog.config import ConsensusConfig
from quorumlog.consensus import Ready, Role
from quorumlog.consensus.messages import PushEntryRequest, PushResult, PushType
from quorumlog.consensus.ready import Envelope
from quorumlog.entry import Replica
from quorumlog.errors import LedgerError

from .harness import FakeDisk, FakeMember, Value, with_sender

FAULTS_MS = 8_000.0
PEACE_MS = 8_000.0


class RandomRun:
    async_mode = False

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        rng = self.rng
        self.size = rng.choice((1, 2, 3, 3, 3, 3, 5, 5, 7))
        self.ids = tuple(f"n{i}" for i in range(self.size))
        hasty = rng.random() < 0.5
        self.config = ConsensusConfig(
            heartbeat_interval_ms=20 if hasty else 150,
            max_heartbeat_leak=3 if hasty else 5,
            min_vote_interval_ms=5 if hasty else 50,
            max_vote_interval_ms=40 if hasty else 300,
            push_limit_bytes=rng.choice((100, 500, 1000)),
            push_window_bytes=rng.choice((1_000, 100_000)),
            push_resend_ms=rng.choice((300, 1000)),
            max_waiting_pushes=rng.choice((2, 256)),
            preferred_leader_ids=("n0",) if rng.random() < 0.3 else (),
            preferred_cool_down_ms=rng.choice((1_000, 30_000)),
        )
        # Each run draws its own faults, so that no fault is drowned by the others.
        self.loss = rng.choice((0.0, 0.0, 0.02, 0.2))
        self.repeat = rng.choice((0.0, 0.05, 0.2))
        self.delay_ms = rng.choice((1.0, 5.0, 40.0, 150.0))
        self.in_order = rng.random() < 0.5
        self.sync_ms = rng.choice((0.5, 5.0, 100.0, 400.0))
        self.fault_every_ms = rng.choice((0.3, 1.0, 3.0)) * self.config.election_timeout_ms
        self.wipes = rng.random() < 0.3
        self.fault_mix = [f for f in self._faults() if rng.random() < 0.6] or self._faults()

        self.now_ms = 0.0
        self.faulty = True
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self.disks = {i: FakeDisk(Replica(i, f"{i}-d0")) for i in self.ids}
        self.retired: list[FakeDisk] = []
        self.members: dict[str, FakeMember] = {}
        self.starts = dict.fromkeys(self.ids, 0)
        self.paused_until = dict.fromkeys(self.ids, 0.0)
        self.inbox: dict[str, list[Callable[[FakeMember], None]]] = {i: [] for i in self.ids}
        self.wake_at: dict[str, float] = {}
        self.cut: set[tuple[str, str]] = set()
        """(from, to): messages that way are lost."""
        self.last_arrival: dict[tuple[str, str], float] = {}
        self.linked: dict[tuple[str, str], Replica] = {}
        """(member, peer): the member was told that the peer is connected."""
        # What the checkers know.
        self.leaders: dict[int, Replica] = {}
        self.votes: dict[tuple[Replica, int], Replica] = {}
        self.committed: list[tuple[int, Value]] = []
        self.committed_by: list[int] = []
        """The term of the leader that committed each of them."""
        self.founding: tuple[Replica, ...] = ()
        self.cluster_id = ""
        self.read_floor: dict[tuple[str, int, int], int] = {}
        self.values = count()
        self.grants = 0
        self.truncations = 0

    # ---------------------------------------------------------------- events

    def at(self, delay_ms: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now_ms + delay_ms, next(self._order), action))

    def run_until(self, stop_ms: float) -> None:
        while self._events and self._events[0][0] <= stop_ms:
            self.now_ms, _, action = heapq.heappop(self._events)
            action()
        self.now_ms = stop_ms

    def carry_out(self) -> None:
        for i in self.ids:
            self.at(self.rng.uniform(0, 300), lambda i=i: self.start(i))
        self.at(self.fault_every_ms, self.fault)
        self.at(50, self.work)
        self.run_until(FAULTS_MS)
        self.make_peace()
        self.run_until(self.now_ms + PEACE_MS)
        self.check_liveness()

    # ---------------------------------------------------------------- members

    def start(self, i: str) -> None:
        if i in self.members:
            return
        self.starts[i] += 1
        self.inbox[i].clear()
        self.paused_until[i] = 0.0
        self.members[i] = FakeMember(
            self.disks[i],
            self.ids,
            config=self.config,
            seed=self.rng.getrandbits(32),
            now_ms=self.now_ms,
            send=lambda envelope: self.send(i, envelope),
            async_mode=self.async_mode,
            on_ready=self.check_ready,
            damaged=self.damage_at_start(i),
        )
        self.turn(i, lambda member: None)
        for peer in self.ids:
            if peer != i and peer in self.members:
                self.link(i, peer)

    def damage_at_start(self, i: str) -> tuple[tuple[int, int], ...]:
        return ()

    def kill(self, i: str) -> None:
        member = self.members.pop(i, None)
        if member is None:
            return
        unsynced = len(member.disk.entries) - member.disk.synced_count
        member.disk.lose_power(self.rng.randint(0, unsynced) if self.rng.random() < 0.5 else 0)
        for peer in self.ids:
            self.linked.pop((i, peer), None)
            if (peer, i) in self.linked and (not self.faulty or self.rng.random() < 0.8):
                self.unlink(peer, i)

    def link(self, a: str, b: str) -> None:
        for me, peer in ((a, b), (b, a)):
            self.at(self.rng.uniform(0, 20), lambda me=me, peer=peer: self._connect(me, peer))

    def _connect(self, me: str, peer: str) -> None:
        if me not in self.members or peer not in self.members:
            return
        if self.faulty and ((me, peer) in self.cut or (peer, me) in self.cut):
            self.at(100, lambda: self._connect(me, peer))
            return
        replica = self.disks[peer].replica
        if self.linked.get((me, peer), replica) != replica:
            self.unlink(me, peer)
        self.linked[me, peer] = replica
        self.turn(me, lambda member: member.node.on_connected(replica, syncs=not self.async_mode))

    def unlink(self, me: str, peer: str) -> None:
        if (me, peer) in self.linked:
            replica = self.linked.pop((me, peer))
            closed = self.rng.random() < 0.8
            self.turn(me, lambda member: member.node.on_connection_lost(replica, is_gone=closed))

    def turn(self, i: str, act: Callable[[FakeMember], None]) -> None:
        """Every turn begins with the time, and ends with what has to be done."""
        member = self.members.get(i)
        if member is None:
            return
        if self.paused_until[i] > self.now_ms:
            self.inbox[i].append(act)
            return
        member.node.advance(self.now_ms)
        act(member)
        member.carry_out()
        self.flush(i, member)
        self.check(member)
        wake = member.node.next_wakeup_ms()
        if wake < self.wake_at.get(i, float("inf")) or self.wake_at[i] <= self.now_ms:
            self.wake_at[i] = wake
            if wake != float("inf"):
                self.at(max(0.0, wake - self.now_ms), lambda: self.turn(i, lambda member: None))

    def flush(self, i: str, member: FakeMember) -> None:
        if member.can_sync:
            member.begin_sync()
            takes_ms = self.rng.uniform(0, self.sync_ms if self.faulty else 2.0)
            self.at(takes_ms, lambda: self.synced(i, member))

    def synced(self, i: str, member: FakeMember) -> None:
        if self.members.get(i) is member:
            self.turn(i, lambda member: member.finish_sync())

    def resume(self, i: str) -> None:
        """A process that was stopped goes on: first the time, then what has piled up."""
        self.paused_until[i] = 0.0
        waiting, self.inbox[i] = self.inbox[i], []
        self.turn(i, lambda member: None)
        for act in waiting:
            self.turn(i, act)

    # ---------------------------------------------------------------- network

    def send(self, sender: str, envelope: Envelope) -> None:
        copies = 1
        if self.faulty:
            if self.rng.random() < self.loss:
                copies = 0
            elif self.rng.random() < self.repeat:
                copies = 2
        replica = self.members[sender].replica
        for _ in range(copies):
            delay_ms = self.rng.uniform(0.1, self.delay_ms if self.faulty else 5.0)
            if self.faulty and self.rng.random() < 0.01:
                delay_ms *= 20
            if self.in_order or not self.faulty:
                link = (sender, envelope.to.member_id)
                arrives_at = max(self.now_ms + delay_ms, self.last_arrival.get(link, 0.0))
                self.last_arrival[link] = arrives_at
                delay_ms = arrives_at - self.now_ms
            self.at(delay_ms, lambda: self.arrive(sender, replica, envelope))

    def arrive(self, sender: str, replica: Replica, envelope: Envelope) -> None:
        to = envelope.to.member_id
        member = self.members.get(to)
        if member is None or member.replica != envelope.to or (sender, to) in self.cut:
            return
        message = with_sender(envelope, replica)
        refuse = None
        if (
            self.faulty
            and isinstance(message, PushEntryRequest)
            and message.push is PushType.APPEND
            and self.rng.random() < 0.01
        ):
            refuse = PushResult.DISK_FULL
        self.turn(to, lambda member: member.node.step(message, refuse=refuse))

    # ---------------------------------------------------------------- faults

    def _faults(self) -> list[str]:
        return ["kill", "pause", "cut_one", "cut_way", "cut_group", "flap", "transfer"]

    def fault(self) -> None:
        if not self.faulty:
            return
        self.at(self.rng.uniform(0.5, 1.5) * self.fault_every_ms, self.fault)
        i = self.rng.choice(self.ids)
        kind = self.rng.choice(self.fault_mix)
        lasts_ms = self.rng.choice((0.1, 0.5, 2.0, 4.0)) * self.config.election_timeout_ms
        leading = [j for j in self.ids if j in self.members and self.members[j].node.role is Role.LEADER]
        if leading and self.rng.random() < 0.5:
            i = self.rng.choice(leading)
        if kind == "kill":
            self.kill(i)
            if self.wipes and len(self.retired) < (self.size - 1) // 2 and self.rng.random() < 0.3:
                self.wipe(i)
            self.at(lasts_ms, lambda: self.start(i))
        elif kind == "pause" and i in self.members:
            self.paused_until[i] = self.now_ms + lasts_ms
            self.at(lasts_ms, lambda: self.resume(i))
        elif kind == "transfer":
            to = self.rng.choice(self.ids)
            self.turn(i, lambda member: self.quietly(lambda: member.node.transfer_leadership(to)))
        elif kind == "flap":
            peer = self.rng.choice(self.ids)
            if peer != i and i in self.members and peer in self.members:
                self.unlink(i, peer)
                if self.rng.random() < 0.5:
                    self.unlink(peer, i)
                self.at(lasts_ms / 10, lambda: self.link(i, peer))
        else:
            others = [j for j in self.ids if j != i]
            if kind == "cut_group":
                group = {j for j in self.ids if self.rng.random() < 0.5}
                ways = {(a, b) for a in self.ids for b in self.ids if (a in group) != (b in group)}
            elif kind == "cut_way" and others:
                peer = self.rng.choice(others)
                ways = {(i, peer)}
            else:
                ways = {(i, j) for j in others} | {(j, i) for j in others}
            self.cut |= ways
            self.at(lasts_ms, lambda: self.heal(ways))

    def heal(self, ways: set[tuple[str, str]]) -> None:
        self.cut -= ways

    def wipe(self, i: str) -> None:
        old = self.disks[i]
        self.retired.append(old)
        self.disks[i] = FakeDisk(Replica(i, f"{i}-d{len(self.retired)}"))
        if not any(disk.formation.founding for disk in self.disks.values()):
            # The only directory that had formed is gone; it had led nobody.
            assert not self.committed
            self.founding, self.cluster_id = (), ""

    @staticmethod
    def quietly(act: Callable[[], object]) -> None:
        with suppress(LedgerError):
            act()

    def make_peace(self) -> None:
        self.faulty = False
        self.cut.clear()
        for i in self.ids:
            if i in self.members:
                self.resume(i)
            else:
                self.start(i)
        # Connections that were cut or lost come back, as a transport sees to it.
        for a in self.ids:
            for b in self.ids:
                if a < b:
                    self.link(a, b)

    # ---------------------------------------------------------------- work

    def work(self) -> None:
        self.at(self.rng.uniform(1, 60), self.work)
        leading = [j for j in self.ids if j in self.members and self.members[j].node.role is Role.LEADER]
        i = self.rng.choice(leading if leading and self.rng.random() < 0.5 else self.ids)
        if self.faulty or self.now_ms < FAULTS_MS + PEACE_MS - 3_000:
            amount = self.rng.choice((1, 1, 1, 3, 20))
            self.turn(i, lambda member: self.quietly(lambda: self.propose(member, amount)))
            self.turn(i, lambda member: self.quietly(lambda: self.read(member)))
        if i in self.members and self.rng.random() < 0.1:
            self.members[i].checkpoint()

    def propose(self, member: FakeMember, amount: int) -> None:
        member.propose(*(next(self.values) for _ in range(amount)))

    def read(self, member: FakeMember) -> None:
        number = member.node.request_read()
        key = (member.replica.member_id, self.starts[member.replica.member_id], number)
        self.read_floor[key] = len(self.committed) - 1

    # ---------------------------------------------------------------- checkers

    def check_ready(self, member: FakeMember, ready: Ready) -> None:
        for grant in ready.read_grants:
            i = member.replica.member_id
            floor = self.read_floor.pop((i, self.starts[i], grant.number))
            assert grant.index >= floor, (grant, floor)
            self.grants += 1
        if ready.hard_state is not None and ready.hard_state.voted_for is not None:
            key = (member.replica, ready.hard_state.term)
            vote = self.votes.setdefault(key, ready.hard_state.voted_for)
            assert vote == ready.hard_state.voted_for, (key, vote, ready.hard_state)
        if ready.formation is not None and ready.formation.founding:
            founding, cluster_id = ready.formation.founding, ready.formation.cluster_id
            assert cluster_id, ready.formation
            if not self.founding:
                self.founding, self.cluster_id = founding, cluster_id
            assert (founding, cluster_id) == (self.founding, self.cluster_id), ready.formation
        assert not ready.loses_committed
        self.truncations += ready.truncate_from is not None

    def check(self, member: FakeMember) -> None:
        node = member.node
        assert node.ledger_end.index == len(member.disk.entries) - 1, (node.ledger_end, member.replica)
        assert node.log.durable_index < member.disk.synced_count, (node.log, member.replica)
        assert not node._state.set_back, (
            node._state.set_back,
            "no disk here forgets what it has synced",
        )
        if node.role is Role.LEADER:
            known = self.leaders.get(node.term)
            if known is None:
                self.leaders[node.term] = member.replica
                assert member.replica in self.founding, (member.replica, self.founding)
                # Leader completeness: what a leader of an earlier term committed. (A member may still
                # win a term that the others have left behind, and lack what came later.)
                stop = sum(term < node.term for term in self.committed_by)
                assert member.disk.entries[:stop] == self.committed[:stop], member.replica
            else:
                assert known == member.replica, (node.term, known, member.replica)
        self.check_committed(member)

    def check_committed(self, member: FakeMember) -> None:
        node = member.node
        known = len(self.committed)
        ends = node.committed_index + 1
        checked = getattr(member, "checked", 0)
        if ends <= checked:
            return
        entries = member.disk.entries
        both = min(ends, known)
        assert entries[checked:both] == self.committed[checked:both], (member.replica, checked, both)
        if ends > known:
            assert node.role is Role.LEADER, (member.replica, ends, known)
            new = entries[known:ends]
            disks = [*self.disks.values(), *self.retired]
            having = [
                disk.replica
                for disk in disks
                if disk.replica in self.founding
                and disk.entries[known : min(ends, disk.synced_count)] == new
            ]
            assert len(having) > len(self.founding) // 2, (member.replica, known, ends, having)
            assert node.term >= (self.committed_by or [0])[-1], (node.term, self.committed_by[-1])
            self.committed += new
            self.committed_by += [node.term] * len(new)
        member.checked = ends  # type: ignore[attr-defined]

    def check_liveness(self) -> None:
        states = {i: self.members[i].node.status() for i in self.ids}
        leaders = [i for i in self.ids if states[i].role is Role.LEADER]
        assert len(leaders) == 1, states
        logs = {i: self.disks[i].entries for i in self.ids}
        for i in self.ids:
            assert logs[i] == self.committed, (i, len(logs[i]), len(self.committed), states)
            assert states[i].committed_index == len(self.committed) - 1, (i, states)
            assert not states[i].problems, states[i].problems
            expected = Role.FOLLOWER if self.disks[i].replica in self.founding else Role.OBSERVER
            assert i in leaders or states[i].role is expected, states[i]
        peers = states[leaders[0]].peers
        assert all(peer.state == "COMMIT" for peer in peers), peers


class AsyncRun(RandomRun):
    """flush = async: a power loss takes acknowledged entries, so that committed ones may be lost and
    replaced. What is left to check: one leader in a term, and that the group becomes one log again."""

    async_mode = True
    losses = 0

    def flush(self, i: str, member: FakeMember) -> None:
        member.report_written()
        if self.rng.random() < 0.05:
            member.disk.synced_count = len(member.disk.entries)

    def wipe(self, i: str) -> None:
        """Not here: which of the voters may be missing is the other runs' question."""

    def read(self, member: FakeMember) -> None:
        """Not here: what was committed may be gone."""

    def check_ready(self, member: FakeMember, ready: Ready) -> None:
        self.losses += ready.loses_committed

    def check(self, member: FakeMember) -> None:
        node = member.node
        assert node.ledger_end.index == len(member.disk.entries) - 1, (node.ledger_end, member.replica)
        if node.role is Role.LEADER:
            known = self.leaders.setdefault(node.term, member.replica)
            assert known == member.replica, (node.term, known, member.replica)

    def check_liveness(self) -> None:
        longest = max(self.ids, key=lambda i: self.members[i].node.committed_index)
        self.committed = list(self.disks[longest].entries)
        self.founding = self.disks[longest].formation.founding
        super().check_liveness()


class DamagedRun(RandomRun):
    """Starts and running members find durable entries damaged; one that another member still holds is
    repaired a little later, and in peace all of them are."""

    repaired = 0

    def damage_at_start(self, i: str) -> tuple[tuple[int, int], ...]:
        durable = self.disks[i].synced_count
        if not self.faulty or self.rng.random() < 0.5 or not durable:
            return ()
        return (self.draw_range(durable),)

    def draw_range(self, durable_stop: int) -> tuple[int, int]:
        stop = durable_stop - int(self.rng.random() ** 3 * durable_stop)
        return max(0, stop - self.rng.choice((1, 2, 5, 30))), stop

    def work(self) -> None:
        super().work()
        for i, member in list(self.members.items()):
            damaged = member.node.log.damaged
            durable_stop = member.node.log.durable_index + 1
            if self.faulty and not damaged and durable_stop and self.rng.random() < 0.01:
                drawn = self.draw_range(durable_stop)
                self.turn(i, lambda member, drawn=drawn: member.node.on_damaged(*drawn))
            for each in list(damaged.ranges):
                if self.rng.random() < 0.1 and (not self.faulty or self.held_elsewhere(i, each)):
                    self.repaired += 1
                    left = [one for one in damaged.ranges if one != each]
                    self.turn(i, lambda member, left=left: member.node.on_repaired(left))

    def held_elsewhere(self, i: str, damaged: tuple[int, int]) -> bool:
        first, stop = damaged
        entries = self.disks[i].entries[first:stop]
        return any(
            other.disk.entries[first:stop] == entries
            and not any(a < stop and first < b for a, b in other.node.log.damaged.ranges)
            for j, other in self.members.items()
            if j != i
        )


def main() -> None:
    """The runs of these seeds; print those that failed."""
    first = int(sys.argv[1])
    stop = int(sys.argv[2]) if len(sys.argv) > 2 else first + 1
    entries = terms = grants = failed = 0
    for seed in range(first, stop):
        run = RandomRun(seed)
        try:
            run.carry_out()
        except AssertionError as error:
            failed += 1
            where = traceback.extract_tb(error.__traceback__)[-1]
            print(f"seed {seed} at {run.now_ms:.1f} ms, {where.name}:{where.lineno}: {error!s:.300}")
            if stop == first + 1:
                raise
        entries += len(run.committed)
        terms += len(run.leaders)
        grants += run.grants
    print(f"{stop - first} runs, {failed} failed, {entries} entries, {terms} terms, {grants} reads")


if __name__ == "__main__":
    main()
