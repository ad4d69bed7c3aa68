"""State machines on real members: served, asked over the network, through failures of their leader."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from pathlib import Path

import pytest

from quorumlog import (
    CommandError,
    ConfigError,
    GroupConfig,
    LedgerServer,
    LocalCluster,
    MemberAddress,
    StoreConfig,
    UnknownMachine,
    connect,
    connect_async,
)
from quorumlog.client import LedgerClient
from quorumlog.errors import OutcomeUnknown
from quorumlog.server.free_ports import free_ports
from quorumlog.state_machine import SnapshotWriter
from tests.node.machines import Chain
from tests.waiting import eventually

ALONE = partial(LocalCluster, members=1, state_machines={"chain": Chain})
SNAPSHOTS = StoreConfig(segment_bytes=1 << 20, snapshot_entries=50)


def count_of(log: LedgerClient) -> int:
    return int(log.ask("chain"))


def test_commands_of_threads_and_tasks_each_have_their_own_result() -> None:
    with LocalCluster(state_machines={"chain": Chain}) as cluster, connect(cluster.servers) as log:
        chain = log.machine("chain")

        def work(name: int) -> None:
            for number in range(20):
                body = b"%d.%d" % (name, number)
                receipt = chain.append(body)
                assert receipt.result == b"%d:" % receipt.first_index + body
                log.append(b"plain")

        async def work_beside() -> None:
            async with connect_async(cluster.servers) as beside:
                bodies = [b"task %d" % number for number in range(50)]
                receipts = await asyncio.gather(*(beside.append(b, machine="chain") for b in bodies))
                for body, receipt in zip(bodies, receipts, strict=True):
                    assert receipt.result == b"%d:" % receipt.first_index + body
                assert int(await beside.ask("chain")) >= 50

        threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        asyncio.run(work_beside())
        for thread in threads:
            thread.join()
        assert count_of(log) == 130
        batch = chain.append_batch([b"a", b"no b", b"c"])
        assert [result is None for result in batch.results] == [False, True, False]
        assert batch.failures == ((1, "b'no b' is refused"),)
        assert sum(1 for _ in log.read(0)) == 4 * 20 + 133, "the log is read as ever"


def test_commands_of_a_producer_take_effect_once_and_keep_their_results() -> None:
    with (
        LocalCluster(state_machines={"chain": Chain}) as cluster,
        connect(cluster.servers, producer_id="orders") as log,
    ):
        chain = log.machine("chain")
        receipts = [chain.append(b"%d" % number) for number in range(3)]
        assert [r.result for r in receipts] == [
            b"%d:%d" % (r.first_index, i) for i, r in enumerate(receipts)
        ]
        cluster.kill(cluster.leader())
        again = log.append(b"1", machine="chain", sequence=1)
        assert again.result == receipts[1].result
        assert count_of(log) == 3


def test_refusals_reach_whom_they_concern() -> None:
    with ALONE() as cluster, connect(cluster.servers) as log:
        with pytest.raises(CommandError, match="'no' is refused"):
            log.append(b"no", machine="chain")
        with pytest.raises(CommandError, match="not a question"):
            log.ask("chain", b"bad")
        for call in (log.append, log.machine("other").append):
            with pytest.raises(UnknownMachine, match="it runs: chain"):
                call(b"a", **({"machine": "other"} if call == log.append else {}))  # type: ignore[arg-type]
        with pytest.raises(UnknownMachine):
            log.ask("other")
        assert log.append(b"a", machine="chain").result


def test_nothing_is_lost_or_applied_twice_through_kills_and_restarts() -> None:
    with (
        LocalCluster(state_machines={"chain": Chain}, storage=SNAPSHOTS) as cluster,
        connect(cluster.servers) as log,
    ):
        answered: list[bytes] = []
        for round_number in range(3):
            for number in range(40):
                try:
                    receipt = log.append(b"%d.%d" % (round_number, number), machine="chain")
                    answered.append(receipt.result or b"")
                except OutcomeUnknown:
                    pass
            leader = cluster.leader()
            cluster.kill(leader)
            cluster.restart(leader)
        assert len(set(answered)) == len(answered) <= count_of(log)
        digest = log.ask("chain", b"digest")
        for member_id in cluster.running:
            if cluster.leader() != member_id:
                cluster.stop(cluster.leader())
                eventually(lambda: cluster.leader() and log.ask("chain", b"digest") == digest)
                break


def test_status_tells_of_each_machine() -> None:
    with ALONE() as cluster, connect(cluster.servers) as log:
        receipt = log.append(b"a", machine="chain")
        (row,) = log.status()
        (machine,) = row.machines
        assert (machine.name, machine.channel, machine.version) == ("chain", 1, 1)
        assert machine.applied_index >= receipt.first_index


class Endless(Chain):
    """It saves, and loads, until it is told that this is over."""

    saving = threading.Event()

    def save(self, writer: SnapshotWriter) -> None:
        while True:
            writer.write(b"x")
            self.saving.set()


def test_a_member_that_ends_waits_for_no_save(tmp_path: Path) -> None:
    storage = StoreConfig(segment_bytes=1 << 20, snapshot_entries=1)
    cluster = LocalCluster(1, state_machines={"chain": Endless}, storage=storage, directory=tmp_path)
    with cluster, connect(cluster.servers) as log:
        log.append(b"a", machine="chain")
        assert Endless.saving.wait(30)
    assert not list(tmp_path.rglob("*.tmp"))


def test_an_embedded_server_answers_in_its_own_loop() -> None:
    async def run() -> None:
        (port,) = free_ports(1)
        config = GroupConfig("n0", (MemberAddress("n0", "127.0.0.1", port),), store="memory")
        server = LedgerServer([config], state_machines={"chain": Chain})
        async with server, connect_async(f"127.0.0.1:{port}") as log:
            await log.append(b"a", machine="chain")
            assert await server.read("chain", b"count") == b"1"
            with pytest.raises(UnknownMachine):
                await server.read("other", b"")

    asyncio.run(run())


@pytest.mark.parametrize("machines", [{"Bad Name": Chain}, {"x": 3}, {"../x": Chain}])
def test_what_no_log_could_bind_is_refused_before_anything_is_opened(machines: dict) -> None:  # type: ignore[type-arg]
    config = GroupConfig("n0", (MemberAddress("n0", "127.0.0.1", 1),), store="memory")
    with pytest.raises(ConfigError, match="state machine"):
        LedgerServer([config], state_machines=machines)


def test_commands_and_plain_appends_share_the_numbers_of_a_producer() -> None:
    with ALONE() as cluster, connect(cluster.servers, producer_id="shop") as log:
        assert log.append(b"a").results == ()
        assert log.append(b"b", machine="chain").result is not None
        assert log.append_batch([b"c", b"d"], machine="chain").results[1] is not None
        assert log.append(b"e", sequence=4).count == 1
        assert log.append(b"f", sequence=5, machine="chain").result is not None
