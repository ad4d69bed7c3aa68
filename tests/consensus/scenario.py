"""Scenario: a group whose every message, sync and millisecond is moved by a line of a script.

Entries are written (index,term), links n0->n1. Nothing moves by itself, except in `elect` and `settle`.
Vote waits are 100 ms, always, unless `members` says otherwise.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec

from quorumlog.config import ConsensusConfig
from quorumlog.consensus import Ready, Role
from quorumlog.consensus.messages import (
    FormRequest,
    FormResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    PushEntryRequest,
    PushEntryResponse,
    PushResult,
    PushType,
    TakeLeadershipRequest,
    VoteRequest,
    VoteResponse,
)
from quorumlog.consensus.ready import Envelope
from quorumlog.entry import EntryId, Formation, HardState, Replica
from quorumlog.errors import LedgerError

from .harness import FakeDisk, FakeMember, with_sender


def run_script(text: str) -> str:
    """The script with the outputs that its commands have now."""
    scenario = Scenario()
    blocks = []
    for block in text.strip().split("\n\n"):
        lines = block.split("\n")
        stop = lines.index("----") if "----" in lines else len(lines)
        commands = lines[:stop]
        output: list[str] = []
        for line in commands:
            if line and not line.startswith("#"):
                output += scenario.run(line)
        if stop < len(lines) or output:
            blocks.append("\n".join([*commands, "----", *output]))
        else:
            blocks.append("\n".join(commands))
    return "\n\n".join(blocks) + "\n"


class Scenario:
    def __init__(self) -> None:
        self.now_ms = 0.0
        self.ids: tuple[str, ...] = ()
        self.lists: dict[str, tuple[str, ...]] = {}
        self.config = ConsensusConfig()
        self.async_mode = False
        self.disks: dict[str, FakeDisk] = {}
        self.members: dict[str, FakeMember] = {}
        self.links: dict[tuple[str, str], deque[tuple[Replica, Envelope]]] = {}
        self.cut: set[tuple[str, str]] = set()
        self.told_connected: dict[tuple[str, str], Replica] = {}
        self.wipes = 0
        self.spare = 0
        self.out: list[str] = []
        self.quiet = False
        self.full: frozenset[str] = frozenset()

    def run(self, line: str) -> list[str]:
        self.out = []
        command, *words = line.split()
        getattr(self, f"do_{command}")(*words)
        return self.out

    # ---------------------------------------------------------------- the group

    def do_members(self, size: str, *options: str) -> None:
        """members 3 [unformed] [async] [spare=2] [option=value ...]: a connected group, formed unless
        said. Spare ones run beside it, on directories that the group was not founded with."""
        settings: dict[str, Any] = {
            "min_vote_interval_ms": 100,
            "max_vote_interval_ms": 100,
            "commit_delay_ms": 0,
        }
        for option in options:
            name, equals, value = option.partition("=")
            if name == "spare":
                self.spare = int(value)
            elif equals:
                settings[name] = tuple(value.split(",")) if name.endswith("_ids") else int(value)
        self.config = ConsensusConfig(**settings)
        self.async_mode = "async" in options
        self.ids = tuple(f"n{i}" for i in range(int(size) + self.spare))
        replicas = tuple(Replica(i, f"{i}-d0") for i in self.ids)
        voters = replicas[: int(size)]
        for voter in replicas:
            self.disks[voter.member_id] = FakeDisk(voter)
            self.lists.setdefault(voter.member_id, self.ids)
            if "unformed" not in options:
                self.disks[voter.member_id].formation = Formation(voters, voters)
        if "unformed" in options:
            self.out.append(f"{' '.join(self.ids)} have not started")
            return
        self.quiet = True
        for i in self.ids:
            self._start(i)
        for a in self.ids:
            for b in self.ids:
                if a < b:
                    self.do_connect(a, b)
        self.quiet = False
        self.out = [f"{' '.join(self.ids)} at term 0, ledger empty"]

    def do_lists(self, i: str, ids: str) -> None:
        """lists n0 n0,n1: the member list that n0 is configured with."""
        self.lists[i] = tuple(ids.split(","))

    def do_disk(self, i: str, *words: str) -> None:
        """disk n0 term 3 vote n1 committed 2 log 1 1 2 2: n0 (re)starts on such a disk; `log` last."""
        self._stop(i)
        disk = self.disks[i]
        given = list(words)
        if "log" in given:
            at = given.index("log")
            disk.entries = [(int(term), f"{k}@{term}") for k, term in enumerate(given[at + 1 :])]
            disk.synced_count = len(disk.entries)
            del given[at:]
        facts = dict(zip(given[::2], given[1::2], strict=True))
        vote = self.disks[facts["vote"]].replica if "vote" in facts else None
        disk.hard_state = HardState(int(facts.get("term", disk.hard_state.term)), vote)
        disk.checkpoint_index = int(facts.get("committed", -1))
        self.do_start(i)
        for peer in self.ids:
            if peer != i and peer in self.members:
                self.do_connect(i, peer)

    def do_start(self, *ids: str) -> None:
        """start n0: the process begins on its disk; no member is connected to it yet."""
        for i in ids:
            self._start(i)

    def do_crash(self, i: str, *options: str) -> None:
        """crash n0 [silently]: power loss; the peers see the connection close unless silently."""
        self.disks[i].lose_power()
        self._stop(i)
        for peer in self.ids:
            if peer in self.members and (peer, i) in self.told_connected and "silently" not in options:
                self._tell_lost(peer, i)

    def do_wipe(self, i: str) -> None:
        """wipe n0: a crashed member's directory is replaced by an empty one."""
        assert i not in self.members
        self.wipes += 1
        self.disks[i] = FakeDisk(Replica(i, f"{i}-d{self.wipes}"))

    def do_connect(self, a: str, b: str) -> None:
        """connect n0 n1: the connection opens, both are told."""
        for me, peer in ((a, b), (b, a)):
            self.links[me, peer] = deque()
        for me, peer in ((a, b), (b, a)):
            replica = self.disks[peer].replica
            if self.told_connected.get((me, peer), replica) != replica:
                self._tell_lost(me, peer)
            self.told_connected[me, peer] = replica
            self._turn(
                me, lambda m, replica=replica: m.node.on_connected(replica, syncs=not self.async_mode)
            )

    def do_disconnect(self, a: str, b: str) -> None:
        """disconnect n0 n1: the connection is closed, both are told; what was under way is lost."""
        for me, peer in ((a, b), (b, a)):
            self.links[me, peer] = deque()
        for me, peer in ((a, b), (b, a)):
            self._tell_lost(me, peer)

    def _tell_lost(self, me: str, peer: str) -> None:
        """Also of a loss that was told before: then it is news that nobody is there."""
        replica = self.told_connected.pop((me, peer), self.disks[peer].replica)
        self._turn(me, lambda member: member.node.on_connection_lost(replica, is_gone=True))

    def _start(self, i: str) -> None:
        assert i not in self.members, f"{i} runs"
        self.members[i] = FakeMember(
            self.disks[i],
            self.lists[i],
            config=self.config,
            seed=int(i[1:]),
            now_ms=self.now_ms,
            send=lambda envelope: self._send(i, envelope),
            async_mode=self.async_mode,
            on_ready=self._show,
        )
        self._turn(i, lambda member: None)

    def _stop(self, i: str) -> None:
        self.members.pop(i, None)
        for link in self.links:
            if i in link:
                self.links[link] = deque()
        self.told_connected = {pair: r for pair, r in self.told_connected.items() if pair[0] != i}

    # ---------------------------------------------------------------- time, messages, disks

    def do_advance(self, milliseconds: str, *ids: str) -> None:
        """advance 150 [n0 ...]: time passes for all; only the named ones (default all) get a turn."""
        self.now_ms += float(milliseconds)
        for i in ids or self.ids:
            if i in self.members:
                self._turn(i, lambda member: None)

    def do_deliver(self, *links: str) -> None:
        """deliver n0->n1 ...: everything under way there arrives, in order."""
        for link in links:
            a, b = link.split("->")
            for _ in range(len(self.links[a, b])):
                self._arrive(a, b)

    def do_drop(self, link: str) -> None:
        """drop n0->n1: everything under way there is lost."""
        a, b = link.split("->")
        self.links[a, b].clear()

    def do_drop_first(self, link: str) -> None:
        """drop_first n0->n1: the first message under way there is lost."""
        a, b = link.split("->")
        self.links[a, b].popleft()

    def do_repeat(self, link: str) -> None:
        """repeat n0->n1: everything under way there will arrive twice."""
        a, b = link.split("->")
        self.links[a, b].extend(list(self.links[a, b]))

    def do_reverse(self, link: str) -> None:
        """reverse n0->n1: what is under way there will arrive in the opposite order."""
        a, b = link.split("->")
        self.links[a, b].reverse()

    def do_cut(self, *ways: str) -> None:
        """cut n0->n1 n2: messages that way, or from and to that member, are lost silently."""
        for way in ways:
            if "->" in way:
                a, b = way.split("->")
                self.cut.add((a, b))
            else:
                self.cut |= {(way, j) for j in self.ids} | {(j, way) for j in self.ids}

    def do_heal(self) -> None:
        """heal: nothing is cut any more."""
        self.cut.clear()

    def do_durable(self, *ids: str) -> None:
        """durable n0: everything that n0 has written is on its disk."""
        for i in ids:
            self._sync(i)

    def _send(self, sender: str, envelope: Envelope) -> None:
        to = envelope.to.member_id
        if (sender, to) not in self.cut:
            self.links.setdefault((sender, to), deque()).append((envelope.to, envelope))

    def _arrive(self, a: str, b: str) -> None:
        to, envelope = self.links[a, b].popleft()
        member = self.members.get(b)
        if member is None or member.replica != to or (a, b) in self.cut:
            return
        message = with_sender(envelope, self.disks[a].replica)
        refuse = None
        if isinstance(message, PushEntryRequest) and message.push is PushType.APPEND and b in self.full:
            refuse = PushResult.DISK_FULL
        self._turn(b, lambda m: m.node.step(message, refuse=refuse))

    def do_full(self, *ids: str) -> None:
        """full n1: the disk of n1 (and of nobody else) has no room for entries."""
        self.full = frozenset(ids)

    def _sync(self, i: str) -> None:
        member = self.members[i]
        while member.can_sync or member.syncing:
            if member.syncing is None:
                member.begin_sync()
            self._turn(i, lambda m: m.finish_sync())

    def _turn(self, i: str, act: Any) -> None:
        if i in self.members:
            member = self.members[i]
            member.node.advance(self.now_ms)
            act(member)
            member.carry_out()

    # ---------------------------------------------------------------- several steps at once

    def do_settle(self) -> None:
        """settle: deliver and sync everything until nothing moves; time stands still."""
        self.quiet = True
        self._settle()
        self.quiet = False
        self._summary()

    def do_live(self, milliseconds: str) -> None:
        """live 2000: let time pass in steps of 10 ms, deliver and sync everything."""
        self.quiet = True
        for _ in range(int(milliseconds) // 10):
            self.now_ms += 10
            for i in sorted(self.members):
                self._turn(i, lambda member: None)
            self._settle()
        self.quiet = False
        self._summary()

    def _settle(self) -> None:
        moved = True
        while moved:
            moved = False
            for a, b in sorted(self.links):
                while self.links[a, b]:
                    self._arrive(a, b)
                    moved = True
            for i in sorted(self.members):
                if self.members[i].can_sync:
                    self._sync(i)
                    moved = True

    def do_elect(self, i: str) -> None:
        """elect n0: time passes for n0 alone until it leads; the others only answer."""
        self.quiet = True
        member = self.members[i]
        while member.node.role is not Role.LEADER:
            assert self.now_ms < 100_000, f"{i} cannot win: {member.node.status()}"
            # The voters must have missed their leader for long enough, or they stick to it.
            self.now_ms += 50
            self._turn(i, lambda m: None)
            for _ in range(4):
                for j in self.ids:
                    for link in ((i, j), (j, i)):
                        while self.links.get(link) and member.node.role is not Role.LEADER:
                            self._arrive(*link)
        self.quiet = False
        self.out.append(_one_line(member))

    def _summary(self) -> None:
        for i in sorted(self.members):
            self.out.append(_one_line(self.members[i]))

    # ---------------------------------------------------------------- requests

    def do_append(self, i: str, *values: str) -> None:
        """append n0 a b: n0 is asked to append one batch of two entries."""
        self._request(i, lambda member: member.propose(*values))

    def do_read(self, i: str) -> None:
        """read n0: n0 is asked for a linearizable read."""
        self._request(i, lambda member: member.node.request_read())

    def do_transfer(self, i: str, to: str) -> None:
        """transfer n0 n1: n0 is asked to hand its leadership over."""
        self._request(i, lambda member: member.node.transfer_leadership(to))

    def _request(self, i: str, act: Any) -> None:
        def refused_or_done(member: FakeMember) -> None:
            try:
                act(member)
            except LedgerError as error:
                self.out.append(f"{i} refuses: {type(error).__name__}: {error}")

        self._turn(i, refused_or_done)

    # ---------------------------------------------------------------- looking

    def do_show(self, *ids: str) -> None:
        """show n0: role, term and log; what it waits for, what its dispatchers do."""
        for i in ids or self.ids:
            if i not in self.members:
                self.out.append(f"{i} is down")
                continue
            member = self.members[i]
            status = member.node.status()
            self.out.append(_one_line(member))
            terms = " ".join(str(term) for term, _ in self.disks[i].entries)
            self.out.append(f"    terms {terms or '-'}; durable up to {status.durable_index}")
            for peer in status.peers:
                self.out.append(
                    f"    {_name(peer.replica)}{'' if peer.is_voter else ' (observer)'} {peer.state},"
                    f" compared {peer.compare_index}, match {peer.match_index}"
                )
            if status.transferring_to:
                self.out.append(f"    hands over to {status.transferring_to}")
            if status.waits_for:
                self.out.append(f"    {status.waits_for}")
            self.out += [f"    {problem}" for problem in status.problems]

    def _show(self, member: FakeMember, ready: Ready) -> None:
        if self.quiet:
            member.shown_committed = ready.committed_index  # type: ignore[attr-defined]
            return
        parts = []
        if ready.role_change is not None:
            role, term, leader_id, _ = ready.role_change
            of = f" of {leader_id}" if leader_id and role is not Role.LEADER else ""
            parts.append(f"{role.value}{of} at term {term}")
        if ready.hard_state is not None:
            vote = ready.hard_state.voted_for
            parts.append(
                f"store term {ready.hard_state.term}" + (f" vote {_name(vote)}" if vote else "")
            )
        if ready.formation is not None:
            voters = ready.formation.founding or ready.formation.pending
            kind = "founding" if ready.formation.founding else "pending"
            cluster_id = ready.formation.cluster_id or ready.formation.pending_id
            parts.append(f"store {kind} {_list(voters, cluster_id)}")
        if ready.truncate_from is not None:
            lost = " LOSING COMMITTED ENTRIES" if ready.loses_committed else ""
            parts.append(f"truncate from {ready.truncate_from}{lost}")
        if ready.append:
            stop = len(member.disk.entries)
            first = ready.append[0].first_index
            ids = [f"({k},{member.disk.entries[k][0]})" for k in range(first, stop)]
            shown = " ".join(ids) if len(ids) < 7 else f"{ids[0]} .. {ids[-1]}"
            parts.append(f"append {shown}")
        parts += [f"{_name(e.to)}: {_say(e.message)}" for e in ready.messages]
        parts += [f"push {_name(p.to)} [{p.first_index},{p.stop_index})" for p in ready.pushes]
        if ready.messages_after_durable:
            answers = [f"{_name(e.to)}: {_say(e.message)}" for e in ready.messages_after_durable]
            parts.append(f"after durable: {', '.join(answers)}")
        if ready.committed_index != getattr(member, "shown_committed", -1):
            parts.append(f"committed_index {ready.committed_index}")
        parts += [f"grant read {g.number} at {g.index}" for g in ready.read_grants]
        if parts:
            self.out.append(f"{_name(member.replica)}: {'; '.join(parts)}")
        member.shown_committed = ready.committed_index  # type: ignore[attr-defined]


def _one_line(member: FakeMember) -> str:
    status = member.node.status()
    leader = f" of {status.leader.member_id}" if status.leader and status.role is not Role.LEADER else ""
    return (
        f"{_name(member.replica)} {status.role.value}{leader} at term {status.term},"
        f" end {_id(status.ledger_end)}, committed_index {status.committed_index}"
    )


def _name(replica: Replica | None) -> str:
    """n0 for the founding directory, n0/n0-d1 for a later one."""
    if replica is None:
        return "nobody"
    plain = replica.directory_id == f"{replica.member_id}-d0"
    return replica.member_id if plain else f"{replica.member_id}/{replica.directory_id}"


def _id(entry: EntryId) -> str:
    return f"({entry.index},{entry.term})"


def _say(message: msgspec.Struct) -> str:
    if isinstance(message, VoteRequest):
        kind = "pre-vote" if message.pre_vote else "vote"
        mark = message.transfer_mark
        by = f" marked by {_name(mark[0])} of term {mark[1]}" if mark else ""
        return f"{kind} for term {message.vote_term}? my end is {_id(message.ledger_end)}{by}"
    if isinstance(message, VoteResponse):
        kind = "pre-vote" if message.pre_vote else "vote"
        return f"{kind} for term {message.vote_term}: {message.result.name} (my term {message.term})"
    if isinstance(message, HeartbeatRequest):
        return f"heartbeat {message.round} of term {message.term}, committed {message.committed_index}"
    if isinstance(message, HeartbeatResponse):
        word = "heard" if message.accepted else "refused"
        return f"heartbeat {message.round} {word} (my term {message.term})"
    if isinstance(message, PushEntryRequest):
        if message.push is PushType.COMMIT:
            return f"COMMIT {message.committed_index}"
        said = f"{message.push.name} at {_id(message.previous)}"
        if message.push is PushType.TRUNCATE:
            said += f", mine above is {_id(EntryId(*message.term_runs[0]))}"
        return said
    if isinstance(message, PushEntryResponse):
        if message.result is PushResult.SUCCESS:
            if message.push is PushType.APPEND:
                return f"ack up to {message.index}"
            return f"{message.push.name} done at {message.index}"
        if message.result is PushResult.RECEIVED:
            return f"arrived up to {message.index}"
        why = ""
        if message.result is PushResult.INCONSISTENT_STATE:
            why = f" (my end is {message.ledger_end_index})"
            if message.conflict_term >= 0:
                why = f" (term {message.conflict_term} from {message.conflict_first_index})"
        return f"{message.push.name} refused: {message.result.name}{why}"
    if isinstance(message, TakeLeadershipRequest):
        return f"take over at {_id(message.ledger_end)}"
    if isinstance(message, FormRequest):
        if message.founding:
            return f"we were founded by {_list(message.founding, message.cluster_id)}"
        return f"is your list {_list(message.pending, message.cluster_id) or 'complete'}?"
    assert isinstance(message, FormResponse), message
    if message.founding:
        return f"we were founded by {_list(message.founding, message.cluster_id)}"
    return f"my list is {_list(message.pending, message.cluster_id) or 'not complete'}"


def _list(voters: tuple[Replica, ...], cluster_id: str) -> str:
    """Four digits of an id that was drawn tell it from every other one."""
    names = " ".join(_name(voter) for voter in voters)
    return f"{names} as {cluster_id[:4]}" if cluster_id else names
