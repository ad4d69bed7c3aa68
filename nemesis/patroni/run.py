"""What is killed, and what must follow."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from harness.member_processes import MemberProcesses
from nemesis.patroni.nodes import TTL_S, Nodes
from nemesis.patroni.writing import Writer
from quorumlog import connect, leader_of
from quorumlog.errors import LedgerError
from quorumlog.server.free_ports import free_ports

POLL_S = 0.2
PATIENCE_S = 180.0
SETTLE_S = TTL_S + 5.0
"""So long nothing may follow: by then a lock of PostgreSQL's primary would be over."""

LOOK_S = 10.0
"""So long it is looked whether anybody is primary who must not be."""

Say = Callable[[str], None]


class Proof:
    """Raises AssertionError where Patroni, on our store, does not keep PostgreSQL as it should."""

    def __init__(self, stores: MemberProcesses, nodes: Nodes, writer: Writer, say: Say) -> None:
        self._stores = stores
        self._nodes = nodes
        self._writer = writer
        self._began_s = time.monotonic()
        self._say_line = say

    def _say(self, what: str) -> None:
        self._say_line(f"{time.monotonic() - self._began_s:5.0f} s  {what}")

    def _wait(self, condition: Callable[[], object], what: str) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not condition():
            if time.monotonic() > deadline_s:
                raise AssertionError(f"not within {PATIENCE_S:g} s: {what}")
            time.sleep(POLL_S)

    def store_leader(self) -> str:
        try:
            with connect(self._stores.servers) as client:
                leader = leader_of(client.status(timeout_ms=1_000))
                return leader.id if leader is not None else ""
        except LedgerError:
            return ""

    def _leads_other_than(self, gone: str) -> bool:
        return self.store_leader() not in ("", gone)

    def primary(self) -> str:
        """Once a replica is in step with it, and it takes writes."""
        self._wait(self._nodes.leader, "a primary with a replica in step")
        moment_s = time.monotonic()
        self._wait(lambda: self._writer.since(moment_s), "a write that is taken")
        return self._nodes.leader() or self.primary()

    # ---------------------------------------------------------------- the stories

    def begin(self) -> None:
        primary = self.primary()
        self._say(f"{primary} is the primary, {self._nodes.others(primary)[0].name} follows it in step")

    def leaders_of_the_store_die(self) -> None:
        """Each member once, whichever leads: no failover of PostgreSQL follows."""
        killed: set[str] = set()
        before, moment_s = self._writer.timelines(), time.monotonic()
        while len(killed) < len(self._stores.members):
            self._wait(self.store_leader, "a leader of the store")
            leader = self.store_leader()
            if not leader:
                continue
            if leader in killed:
                fresh = next(m.member_id for m in self._stores.members if m.member_id not in killed)
                with connect(self._stores.servers) as client:
                    client.transfer(fresh)
                leader = fresh
            self._stores[leader].kill()
            killed.add(leader)
            killed_s = time.monotonic()
            self._wait(partial(self._leads_other_than, leader), "another leader")
            time.sleep(max(0.0, SETTLE_S - (time.monotonic() - killed_s)))
            self._stores[leader].start()
            self._say(f"the store's leader {leader} was killed, {self.store_leader()} leads now")
        self.primary()
        assert self._writer.timelines() == before, "PostgreSQL has failed over"
        taken = self._writer.since(moment_s)
        pause_s = self._writer.longest_pause_s(taken)
        self._say(f"no failover; {len(taken)} writes taken meanwhile, at most {pause_s:.1f} s apart")

    def the_primary_dies(self) -> None:
        """Its node loses power: the other one is promoted, once."""
        primary = self.primary()
        before = self._writer.timelines()
        self._nodes[primary].kill()
        killed_s = time.monotonic()
        (other,) = self._nodes.others(primary)
        self._wait(lambda: self._writer.since(killed_s), "a write that the other node takes")
        took_s = self._writer.since(killed_s)[0].ended_s - killed_s
        self._say(f"the primary {primary} was killed; {other.name} took writes after {took_s:.1f} s")
        self._nodes[primary].start()
        assert self.primary() == other.name, "PostgreSQL has failed over again"
        time.sleep(SETTLE_S)
        after = self._writer.timelines()
        assert after == {**before, max(before) + 1: other.name}, (before, after)
        self._say(f"exactly one failover; {primary} is back and follows in step")

    def the_store_is_gone_for_a_while(self) -> None:
        """Without a majority of it nobody may be primary; with it again, one is."""
        down = [member.member_id for member in self._stores.members][:2]
        for member_id in down:
            self._stores[member_id].kill()
        killed_s = time.monotonic()
        time.sleep(SETTLE_S + LOOK_S)
        late = self._writer.since(killed_s + TTL_S)
        assert not late, f"{late[0].node} took writes without a store"
        for member_id in down:
            self._stores[member_id].start()
        primary = self.primary()
        self._writer.timelines()
        self._say(f"two of three members gone: nobody took writes; with them {primary} does again")

    def end(self) -> None:
        timelines = self._writer.timelines()
        primary = self._nodes[self.primary()]
        lost = self._writer.lost(primary)
        assert not lost, f"{len(lost)} rows that were acknowledged are gone: {lost[:5]}"
        self._say(
            f"{len(self._writer.taken)} rows were acknowledged, none is lost; timelines {timelines},"
            " never two primaries"
        )


def run(folder: Path, patroni: Path, bin_dir: Path, say: Say = print) -> None:
    """Raises AssertionError. Needs `patroni`, a program, and PostgreSQL's in `bin_dir`."""
    ports = free_ports(6)
    listen = {f"n{number}": f"127.0.0.1:{port}" for number, port in enumerate(ports[:3])}
    gateways = {f"n{number}": f"127.0.0.1:{port}" for number, port in enumerate(ports[3:])}

    def command_of(member_id: str) -> Sequence[str]:
        return (
            *("kv", "serve", "--listen", listen[member_id]),
            *("--etcd-gateway", gateways[member_id], "--servers", ",".join(listen.values())),
        )

    nodes_folder = folder / "nodes"
    with ExitStack() as stack:
        stores = stack.enter_context(MemberProcesses(folder / "stores", command_of=command_of))
        nodes_folder.mkdir()
        nodes = stack.enter_context(Nodes(nodes_folder, patroni, bin_dir, list(gateways.values())))
        writer = stack.enter_context(Writer(nodes, bin_dir))
        proof = Proof(stores, nodes, writer, say)
        try:
            proof.begin()
            proof.leaders_of_the_store_die()
            proof.the_primary_dies()
            proof.the_store_is_gone_for_a_while()
            proof.end()
        except AssertionError:
            for node in nodes.nodes:
                say(node.last_words())
            raise
