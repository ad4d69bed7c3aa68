"""SIGTERM is for every command what Ctrl-C is, also for the first process of a container, which is sent
nothing that it has no handler for."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import Popen

import pytest

from quorumlog.broker import BrokerAdmin, Message, connect
from quorumlog.broker.dledger.dledger_broker import LocalBrokers
from quorumlog.broker.groups.group_service import GroupService
from quorumlog.kv import connect as connect_store
from quorumlog.kv.testing import LocalStores
from tests.waiting import eventually

pytestmark = pytest.mark.processes
TERMINATED = 128 + signal.SIGTERM
Start = Callable[..., Popen[bytes]]


def has_handler(process: Popen[bytes]) -> bool:
    status = Path(f"/proc/{process.pid}/status").read_text()
    (caught,) = (line.split()[1] for line in status.splitlines() if line.startswith("SigCgt"))
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)


@pytest.fixture(scope="module")
def stores() -> Iterator[LocalStores]:
    with LocalStores(members=1) as made:
        yield made


@pytest.mark.parametrize(
    "command",
    [
        "read --follow",
        "status --watch --json",
        "kv watch k",
        "kv lock held",
        "kv elect held me",
        "kv health --timeout 60",
        "broker pull --topic t --follow",
        "broker consume --topic t --group g",
        "broker dev",
        "dev",
    ],
)
def test_it_ends_a_command_from_its_first_moments_on(
    start: Start, free_address: str, command: str
) -> None:
    """Whether it waits for a server that is not there or still loads."""
    runs_its_own = command.endswith("dev")
    process = start(*command.split(), *(() if runs_its_own else ("--servers", free_address)))
    eventually(lambda: has_handler(process) or process.poll() is not None, what="a handler")
    process.send_signal(signal.SIGTERM)
    # A cluster of its own may run by now: then it is stopped in order.
    assert process.wait(60) in ((TERMINATED, 0) if runs_its_own else (TERMINATED,))
    assert process.stderr is not None and b"Traceback" not in process.stderr.read()


def test_a_lock_is_released(start: Start, stores: LocalStores) -> None:
    process = start("kv", "lock", "held", "--servers", stores.servers, "--ttl", "600")
    assert process.stdout is not None and process.stdout.readline().strip().isdigit()
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == TERMINATED
    with connect_store(stores.servers) as kv, kv.lock("held", timeout_ms=30_000) as lock:
        assert lock.is_held


def test_a_consumer_leaves_its_group(start: Start) -> None:
    with (
        LocalBrokers(1, groups=lambda member_id: GroupService()) as brokers,
        BrokerAdmin(brokers.servers) as admin,
        connect(brokers.servers) as broker,
    ):
        admin.create_topic("orders", 2)
        broker.send(Message("orders", b"tea"))
        consume = ("broker", "consume", "--topic", "orders", "--group", "billing")
        process = start(*consume, "--servers", brokers.servers)
        assert process.stdout is not None and b"tea" in process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == TERMINATED
        (billing,) = (row for row in admin.groups() if row.group == "billing")
        assert not billing.members
