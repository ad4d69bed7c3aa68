"""A broker as a real process: killed under load, damaged, used from the command line."""

from __future__ import annotations

import json
import re
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from harness.broker_process import BrokerProcess
from quorumlog.broker import Message, connect
from quorumlog.broker.client.blocking import BrokerClient
from quorumlog.broker.errors import QueueOffsetOutOfRange, UnknownTopic
from quorumlog.errors import BadRequest, BodyTooLarge, DiskFull, OutcomeUnknown, Unreachable
from tests.cli.conftest import Cli
from tests.waiting import eventually

pytestmark = [pytest.mark.processes]
SIZES = ("mapped_file_size_commit_log=65536", "max_index_num=1000", "max_hash_slot_num=500")
SMALL_FILES = [word for size in SIZES for word in ("--option", size)]
KILLS = 2
DISK_BYTES = 4 << 20
SENDERS = 3


def send_until_lost(address: str, name: str, sent: list[str], acknowledged: list[str]) -> None:
    with suppress(Unreachable, OutcomeUnknown), connect(address) as broker:
        while True:
            messages = [
                Message(
                    "t", f"{name}-{len(sent) + i}".encode().ljust(300), keys=(f"{name}-{len(sent) + i}",)
                )
                for i in range(1 + len(sent) % 7)
            ]
            names = [message.body.decode().strip() for message in messages]
            sent += names
            broker.send_batch(messages)
            acknowledged += names


def test_a_broker_that_is_killed_under_load_loses_nothing_it_has_acknowledged(tmp_path: Path) -> None:
    process = BrokerProcess(tmp_path / "store", *SMALL_FILES, "--flush", "sync")
    sent: list[list[str]] = []
    acknowledged: list[list[str]] = []
    for life in range(KILLS):
        process.start()
        threads = []
        for number in range(SENDERS):
            sent.append([])
            acknowledged.append([])
            arguments = (process.address, f"{life}-{number}", sent[-1], acknowledged[-1])
            threads.append(threading.Thread(target=send_until_lost, args=arguments))
        for thread in threads:
            thread.start()
        with connect(process.address) as watcher:
            while sum(len(each) for each in acknowledged[-SENDERS:]) < 60 * (life + 1):
                watcher.status()
        process.kill()
        for thread in threads:
            thread.join()
    with process.start(), connect(process.address) as broker:
        stored: list[str] = []
        for queue in broker.queues("t"):
            at = queue.min_offset
            while at < queue.max_offset:
                pulled = broker.pull("t", queue.queue_id, at)
                assert [m.queue_offset for m in pulled.messages] == list(range(at, pulled.next_offset))
                stored += [m.body.decode().strip() for m in pulled.messages]
                at = pulled.next_offset
        flat = [name for each in acknowledged for name in each]
        assert len(flat) > 150
        assert set(flat) <= set(stored), "an acknowledged message is lost"
        assert len(stored) == len(set(stored)), "a message is there twice"
        assert set(stored) <= {name for each in sent for name in each}
        for name in flat[::97]:
            assert [m.body.decode().strip() for m in broker.query("t", name)] == [name]
        assert process.stop() == 0
    assert not (tmp_path / "store" / "abort").exists()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own that is soon full."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip(f"only root may mount: {mounted.stderr.decode().strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(path: Path) -> None:
    with suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def test_a_full_disk_refuses_loses_nothing_and_is_got_over(small_disk: Path, cli: Cli) -> None:
    options = ("reserve_step_bytes=65536", "clean_resource_interval=86400000")
    more = [word for option in options for word in ("--option", option)]
    process = BrokerProcess(small_disk / "store", *SMALL_FILES, *more, "--flush", "sync")
    sent: list[bytes] = []

    def send(broker: BrokerClient) -> None:
        body = b"%d" % len(sent)
        broker.send(Message("t", body.ljust(20_000)), queue_id=0)
        sent.append(body)

    with process.start(), connect(process.address) as broker:
        for _ in range(2):
            send(broker)
            fill(small_disk / "of a neighbour")
            with pytest.raises(DiskFull):
                while True:
                    send(broker)
            seen = broker.pull("t", 0, 0).messages
            assert [message.body.strip() for message in seen] == sent[: len(seen)]
            (small_disk / "of a neighbour").unlink()
        send(broker)
        got: list[bytes] = []
        while len(got) < len(sent):
            got += [m.body.strip() for m in broker.pull("t", 0, len(got), wait_ms=5000).messages]
        assert got == sent
        assert process.stop() == 0
    verified = cli("broker", "verify", str(small_disk / "store"))
    assert verified.exit_code == 0, verified.output


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("served")
    with BrokerProcess(folder / "store", *SMALL_FILES, topics="t:2,large") as process:
        yield process


@pytest.fixture
def broker(served: BrokerProcess) -> Iterator[BrokerClient]:
    with connect(served.address) as client:
        yield client


def test_messages_by_offset_key_time_and_id(broker: BrokerClient) -> None:
    receipt = broker.send_batch(
        [
            Message("t", b"%d" % n, tags="A", keys=("both", f"n{n}"), properties={"p": "v"})
            for n in range(5)
        ],
        queue_id=1,
    )
    first = receipt.queue_offset
    pulled = broker.pull("t", 1, first, wait_ms=5000)
    assert [m.body for m in pulled.messages] == [b"0", b"1", b"2", b"3", b"4"]
    assert broker.max_offset("t", 1) == pulled.next_offset == first + 5
    # A message is in the index a moment after it is in its queue.
    assert [m.body for m in eventually(lambda: broker.query("t", "n3"))] == [b"3"]
    assert [m.body for m in broker.query("t", "both")] == [b"4", b"3", b"2", b"1", b"0"]
    assert broker.query("t", "both", time=(receipt.store_time_ms + 60_000, None)) == []
    assert broker.offset_at("t", 1, receipt.store_time_ms + 60_000) == first + 5
    assert broker.offset_at("t", 1, receipt.store_time_ms) <= first
    found = broker.message(receipt.message_id)
    assert (found.body, found.tags, found.keys, found.properties["p"]) == (
        b"0",
        "A",
        ("both", "n0"),
        "v",
    )


def test_what_is_refused_says_why_and_writes_nothing(broker: BrokerClient) -> None:
    before = broker.status().max_offset
    with pytest.raises(UnknownTopic, match="no topic nope"):
        broker.send(Message("nope", b""))
    with pytest.raises(UnknownTopic, match="the broker has no topic nope; quorumlog broker status"):
        broker.pull("nope", 0, 0)
    with pytest.raises(UnknownTopic, match="topic t has no queue 9; quorumlog broker status shows"):
        broker.pull("t", 9, 0)
    with pytest.raises(UnknownTopic, match="no topic t with a queue 9; quorumlog broker status shows"):
        broker.send(Message("t", b""), queue_id=9)
    with pytest.raises(BodyTooLarge, match="limit of 4128768"):
        broker.send(Message("t", bytes(4 << 20)))
    with pytest.raises(BodyTooLarge, match="does not fit into a file of 65536"):
        broker.send(Message("t", bytes(70_000)))
    with pytest.raises(BadRequest, match="words without spaces"):
        broker.send(Message("t", b"", keys=("two words",)))
    with pytest.raises(BadRequest, match="characters other than"):
        broker.send(Message("../t", b""), queue_id=0)
    with pytest.raises(QueueOffsetOutOfRange) as caught:
        broker.pull("t", 0, 10**9)
    assert caught.value.max_offset < 10**9
    assert broker.status().max_offset == before


def test_the_command_line_sends_and_finds(served: BrokerProcess, cli: Cli) -> None:
    at = ("--servers", served.address)
    sent = json.loads(
        cli(
            "broker", "send", *at, "--topic", "t", "--key", "cli", "--queue", "0", "one", "two", "--json"
        ).stdout
    )
    assert sent["messages"] == 2
    offset = str(sent["queue_offset"])
    pull = ("broker", "pull", *at, "--topic", "t", "--queue", "0", "--offset", offset, "--json")
    # A message is in its queue soon after it was acknowledged.
    lines = eventually(lambda: cli(*pull).stdout)
    assert [json.loads(line)["body"] for line in lines.splitlines()][:2] == ["one", "two"]
    query = ("broker", "query", *at, "--topic", "t", "--key", "cli", "--json")
    found = eventually(lambda: cli(*query).stdout)  # the index comes behind the queues
    assert [json.loads(line)["body"] for line in found.splitlines()] == ["two", "one"]
    status = json.loads(cli("broker", "status", *at, "--json").stdout)
    assert status["flush"] == "SYNC_FLUSH"
    shown = cli("broker", "status", *at).stdout
    assert re.search(r"^topic +queues +messages *$", shown, re.MULTILINE), shown
    assert re.search(r"^t +\d+ +\d+ *$", shown, re.MULTILINE), shown
    shown = cli("broker", "status", *at, "--topics").stdout
    assert re.search(r"^topic +queue +messages +from +to *$", shown, re.MULTILINE), shown
    assert re.search(r"^t +0 +\d+ +0 +\d+ *$", shown, re.MULTILINE), shown
    refused = cli("broker", "inspect", str(served.folder))
    assert refused.exit_code == 2
    assert "in use by a running broker" in refused.output


def test_damage_is_found_refused_and_given_up_when_asked(tmp_path: Path, cli: Cli) -> None:
    folder = tmp_path / "store"
    process = BrokerProcess(folder, *SMALL_FILES)
    with process.start(), connect(process.address) as broker:
        receipts = [broker.send(Message("t", b"%d" % n * 500), queue_id=0) for n in range(30)]
        broker.pull("t", 0, 29, wait_ms=5000)
        assert process.stop() == 0
    where = receipts[20].physical_offset
    log = folder / "commitlog" / ("0" * 20)
    data = bytearray(log.read_bytes())
    data[where + 100] ^= 1
    log.write_bytes(data)
    verified = cli("broker", "verify", str(folder))
    assert verified.exit_code == 1
    assert f"the record at {where} has a body that its CRC does not match" in verified.output
    refused = cli(
        "broker", "serve", "--dir", str(folder), "--topics", "t", "--bind", process.address, *SMALL_FILES
    )
    assert refused.exit_code != 0
    assert "broker recover" in refused.output
    given_up = json.loads(cli("broker", "recover", str(folder), "--cut", str(where), "--json").stdout)
    assert given_up["given_up_bytes"] > 0
    with process.start(), connect(process.address) as broker:
        assert broker.max_offset("t", 0) == 20
        assert broker.status().set_aside_files > 0
        assert process.stop() == 0
    assert cli("broker", "verify", str(folder)).exit_code == 0
    assert len(cli("broker", "dump", str(folder), "--json").stdout.splitlines()) == 20
