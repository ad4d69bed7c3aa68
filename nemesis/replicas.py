"""Master and slaves of the message store under kills, pauses and switches by hand.

    python -m nemesis.replicas --seconds 60 [--seed 1] [--role async-master] [--users] [--keep DIR]

Three brokers with sync flush. Senders send to whoever takes it; an operator switches, and lets brokers
that come back follow, and changes the list and the number of copies. At the end every broker has the
same log, and every message that was acknowledged stands in it once. With `--role async-master` one copy
is enough, and the operator switches with --unsafe, without those that do not answer, whose directories
are emptied then: what lies in a range that the switch has named may be gone, and nothing else. With
`--users` nobody gets in without a right (`nemesis.users`). Exit status 1 otherwise.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, closing, suppress
from pathlib import Path

from harness.broker_process import BrokerProcess
from harness.proxy import CUT, Network, both_ways
from nemesis import users
from nemesis.failover.group import SLAVES
from quorumlog.broker import Message, connect
from quorumlog.broker.client.switching import ClusterProbe, Lost, Switch, SwitchReport, change_list
from quorumlog.broker.epochs import named_by
from quorumlog.broker.errors import SwitchRefused
from quorumlog.broker.wire import ReplicaRequest
from quorumlog.errors import LedgerError
from quorumlog.server.free_ports import free_ports

NAMES = "abc"
SENDERS = 3
END_S = 90.0
OPTIONS = ("--flush", "sync", "--option", "mapped_file_size_commit_log=4194304")


class Replicas:
    def __init__(
        self, folder: Path, seed: int, role: str, network: Network, *, has_users: bool = False
    ) -> None:
        """`network`: of the ports for slaves, and of `SLAVES`, who dial them."""
        self.random = random.Random(seed)
        self.is_async = role == "async-master"
        self.network = network
        self.folder = folder
        self.sender = users.APP if has_users else None
        self._options = (*OPTIONS, *(users.options_of(folder) if has_users else ()))
        self.brokers: dict[str, BrokerProcess] = {}
        for name in NAMES:
            self.brokers[name] = self.made(name, "" if name != NAMES[0] else role)
        self.down: set[str] = set(self.brokers)
        self.acknowledged: dict[str, tuple[int, int]] = {}
        """Where each lies in the log, and how many losses had been named before."""
        self.lost: list[Lost] = []
        """As switches have said it."""
        self.sent = 0
        self.stopping = threading.Event()
        self.counts = {"kill": 0, "pause": 0, "cut": 0, "switch": 0, "switch refused": 0, "list": 0}

    def made(self, name: str, role: str, master: str = NAMES[0]) -> BrokerProcess:
        """`role`: empty for a slave of `master`."""
        as_what = [role] if role else ["slave", "--master", self.network.address(SLAVES, master)]
        port = self.network.target(name).rpartition(":")[2]
        told = ("--ha-port", port, "--ha-advertise", self.network.address(SLAVES, name))
        return BrokerProcess(self.folder / name, "--role", *as_what, "--id", name, *told, *self._options)

    def start(self, name: str) -> None:
        self.brokers[name].start()
        self.down.discard(name)

    def end(self) -> None:
        for broker in self.brokers.values():
            if broker.is_running:
                broker.kill()

    # ---------------------------------------------------------------- load

    def send(self, sender: int) -> None:
        number, at = 0, 0
        addresses = [broker.address for broker in self.brokers.values()]
        while not self.stopping.is_set():
            with (
                suppress(LedgerError),
                connect(addresses[at], timeout_ms=4_000, user=self.sender) as broker,
            ):
                while not self.stopping.is_set():
                    name = f"{sender}-{number}"
                    number += 1
                    message = Message("t", name.encode().ljust(200))
                    receipt = broker.send(message, queue_id=sender % 2)
                    self.acknowledged[name] = (receipt.physical_offset, len(self.lost))
            at = (at + 1) % len(addresses)
            self.stopping.wait(0.05)

    # ---------------------------------------------------------------- faults and the operator

    def fault(self) -> None:
        name = self.random.choice(list(self.brokers))
        if name in self.down:
            self.start(name)
            return
        kind = self.random.choice(("kill", "pause", "cut", "switch", "switch", "list"))
        if kind == "kill" and len(self.down) < 1:
            self.counts[kind] += 1
            self.down.add(name)
            self.brokers[name].kill()
        elif kind == "pause":
            self.counts[kind] += 1
            pid = self.brokers[name].pid
            os.kill(pid, signal.SIGSTOP)
            time.sleep(self.random.uniform(0.1, 4))
            os.kill(pid, signal.SIGCONT)
        elif kind == "cut":
            self.counts[kind] += 1
            number = self.network.impose(both_ways([(SLAVES, name)]), CUT)
            time.sleep(self.random.uniform(0.1, 4))
            self.network.lift(number)
        elif kind == "switch":
            self.operate(name)
        elif kind == "list":
            self.change(name)

    def form(self) -> None:
        """The first two go onto the list by themselves."""
        stop_at = time.monotonic() + END_S
        with connect(self.brokers[NAMES[0]].address) as broker:
            while time.monotonic() < stop_at:
                listed = broker.replica().copy_list
                for name in set(NAMES) - set(listed.ids if listed is not None else NAMES):
                    with suppress(LedgerError):
                        broker.replica(ReplicaRequest(verb="add", broker_id=name))
                if listed is not None and len(listed.ids) == len(NAMES):
                    return
                time.sleep(0.1)
        raise SystemExit("the group is not formed")

    def change(self, name: str) -> None:
        verb = self.random.choice(("add", "add", "remove", "copies"))
        request = ReplicaRequest(verb=verb, broker_id=name, copies=self.random.choice((1, 2, 2, 2, 3)))
        if verb == "copies" and not self.is_async and request.copies < 2:
            return
        living = [each for each in self.brokers if each not in self.down]
        with suppress(LedgerError):
            change_list(self.brokers[living[0]].address, request, timeout_ms=3_000)
            self.counts["list"] += 1

    def operate(self, to: str) -> None:
        """Everybody follows the newest master; then another one is tried."""
        with suppress(LedgerError):
            self.gather()
        try:
            report = self.switch(to)
            self.counts["switch"] += 1
            assert report.lost is None, report
        except LedgerError as refused:
            self.counts["switch refused"] += 1
            print(f"  no switch to {to}: {refused}", flush=True)
            if self.is_async and self.random.random() < 0.3:
                self.force(to)

    def switch(self, to: str) -> SwitchReport:
        with closing(ClusterProbe(self.brokers[to].address)) as probe:
            return Switch(probe, to, timeout_ms=3_000).run()

    def force(self, to: str) -> None:
        """Without whoever does not answer: its directory is emptied."""
        with suppress(LedgerError):
            with closing(ClusterProbe(self.brokers[to].address)) as probe:
                there = {answer.directory_id for answer in probe.answers.values()}
                gone = {peer.id for one, peer in named_by(probe.shown()).items() if one not in there}
                if not gone or not gone <= self.down:
                    return
                report = Switch(probe, to, without=gone, unsafe=True).run()
            self.counts["switch"] += 1
            if report.lost is not None:
                self.lost.append(report.lost)
            for name in gone:
                shutil.rmtree(self.folder / name)
                self.brokers[name] = self.made(name, "", to)

    def gather(self) -> str:
        """Who missed a switch is told of the newest master; returns its id, or nothing."""
        living = [name for name in self.brokers if name not in self.down]
        with closing(ClusterProbe(self.brokers[living[0]].address)) as probe:
            master = probe.master()
            if master is not None:
                with suppress(SwitchRefused):  # all of them follow
                    Switch(probe, master.id).run()
            return "" if master is None else master.id

    # ---------------------------------------------------------------- the end

    def settle(self) -> str:
        """The master that all of them follow."""
        for name in list(self.down):
            self.start(name)
        stop_at = time.monotonic() + END_S
        while time.monotonic() < stop_at:
            with suppress(LedgerError):
                master = self.gather()
                if not master:
                    for name in self.brokers:
                        with suppress(SwitchRefused):
                            report = self.switch(name)
                            if report.lost is not None:
                                self.lost.append(report.lost)
                            break
                    continue
                with connect(self.brokers[master].address) as broker:
                    state = broker.replica()
                    end = state.max_offset
                    held = [s for s in state.slaves if s.is_connected and s.flushed_offset == end]
                    if len(held) == len(self.brokers) - 1 and state.confirm_offset == end:
                        return master
            time.sleep(0.1)
        raise SystemExit("the brokers do not become the same")

    def stored(self, name: str) -> list[str]:
        found: list[str] = []
        with connect(self.brokers[name].address) as broker:
            for queue in broker.queues("t"):
                at = queue.min_offset
                while True:
                    pulled = broker.pull("t", queue.queue_id, at)
                    if pulled.next_offset == at:
                        break
                    found += [message.body.decode().strip() for message in pulled.messages]
                    at = pulled.next_offset
        return found

    def comes_to_store(self, name: str, messages: list[str]) -> bool:
        """A slave shows what is confirmed a moment after its master does."""
        stop_at = time.monotonic() + END_S
        while self.stored(name) != messages:
            if time.monotonic() >= stop_at:
                return False
            time.sleep(0.1)
        return True

    def was_named(self, name: str) -> bool:
        """A switch has said that it may be lost."""
        at, before = self.acknowledged[name]
        return any(first <= at and (at < stop or stop < 0) for first, stop in self.lost[before:])


def run(folder: Path, seed: int, seconds: float, role: str, *, has_users: bool = False) -> int:
    ports = {name: f"127.0.0.1:{port}" for name, port in zip(NAMES, free_ports(3), strict=True)}
    with ExitStack() as stack:
        network = stack.enter_context(Network({**ports, SLAVES: "127.0.0.1:1"}))
        replicas = Replicas(folder, seed, role, network, has_users=has_users)
        stack.callback(replicas.end)
        for name in replicas.brokers:
            replicas.start(name)
        replicas.form()
        watched = None
        if has_users:
            addresses = {name: broker.address for name, broker in replicas.brokers.items()}
            watched = stack.enter_context(users.Users(addresses, "t"))
        senders = [threading.Thread(target=replicas.send, args=(n,)) for n in range(SENDERS)]
        for sender in senders:
            sender.start()
        stop_at = time.monotonic() + seconds
        while time.monotonic() < stop_at:
            time.sleep(replicas.random.uniform(0.5, 3))
            replicas.fault()
        replicas.stopping.set()
        for sender in senders:
            sender.join()
        master = replicas.settle()
        if watched is not None:
            watched.stop()
            watched.check()
        stored = replicas.stored(master)
        gone = set(replicas.acknowledged) - set(stored)
        lost = {name for name in gone if not (replicas.is_async and replicas.was_named(name))}
        twice = len(stored) - len(set(stored))
        differing = [name for name in replicas.brokers if not replicas.comes_to_store(name, stored)]
    faults = ", ".join(f"{count} {name}" for name, count in replicas.counts.items())
    print(
        f"seed {seed}: {len(replicas.acknowledged)} acknowledged, {len(lost)} lost,"
        f" {len(gone - lost)} lost as switches had said, {twice} twice,"
        f" {len(stored)} stored; {faults}; brokers that differ: {differing or 'none'}"
    )
    if watched is not None:
        print(watched)
    return 1 if lost or twice or differing or (watched is not None and watched.violations) else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="leave the stores in this folder")
    parser.add_argument("--role", choices=("sync-master", "async-master"), default="sync-master")
    parser.add_argument(
        "--users", action="store_true", help="brokers have users: no --role async-master"
    )
    options = parser.parse_args()
    if options.users and options.role == "async-master":
        parser.error("with --role async-master the operator loses users like messages")
    with tempfile.TemporaryDirectory(prefix="nemesis-replicas-") as made:
        folder = options.keep or Path(made)
        sys.exit(run(folder, options.seed, options.seconds, options.role, has_users=options.users))


if __name__ == "__main__":
    main()
