"""Each alert by its real cause: `python -m harness.alerts promtool`. What members tell before and
meanwhile is given to promtool as a series of each, as if half a minute lay between two looks, so that
what an alert waits for takes no time. Needs the right to mount."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import resource
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from harness.page import free_address
from quorumlog import LocalCluster, connect
from quorumlog.admin import AdminPort, LogProcess
from quorumlog.admin.broker import look_at_member
from quorumlog.batch import EntryBatch
from quorumlog.broker import BrokerAdmin, Consumer, Message, Producer
from quorumlog.broker.dledger.dledger_broker import LocalBrokers
from quorumlog.broker.groups.group_service import GroupOptions, GroupService
from quorumlog.cli import certificates
from quorumlog.config import ConsensusConfig, TlsOptions
from quorumlog.errors import LedgerError
from quorumlog.net.tls import Tls
from quorumlog.state_machine import SnapshotWriter, StateMachine

RULES = Path(__file__).parents[1] / "ops" / "prometheus" / "alerts.yml"
STEP_S, LAST_STEP = 30, 240
"""Two hours: the longest that an alert waits, and what it looks back."""
Ports = Mapping[str, AdminPort]
Cause = Callable[[], Iterator[Ports]]
"""Yields whom to look at: before, with the cause, and once more; what changes between those two goes on
so."""
Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]
CAUSES: dict[str, Cause] = {}


def provokes(*alerts: str) -> Callable[[Cause], Cause]:
    def register(cause: Cause) -> Cause:
        CAUSES.update(dict.fromkeys(alerts, cause))
        return cause

    return register


@contextmanager
def watched(members: int = 1, **options: Any) -> Iterator[tuple[LocalCluster, dict[str, AdminPort]]]:
    with LocalCluster(members, **options) as cluster, ExitStack() as stack:
        yield cluster, ports_of(cluster, stack)


def ports_of(cluster: LocalCluster, stack: ExitStack) -> dict[str, AdminPort]:
    ports = {
        each: AdminPort(free_address(), LogProcess(cluster.server(each))) for each in cluster.running
    }
    return {each: stack.enter_context(port) for each, port in ports.items()}


def until(condition: Callable[[], Any], what: str) -> Any:
    deadline_s = time.monotonic() + 60
    while not (found := condition()):
        assert time.monotonic() < deadline_s, f"not within a minute: {what}"
        time.sleep(0.02)
    return found


def told(port: AdminPort, name: str) -> list[float]:
    looks = () if port.seen is None else port.seen.looks
    return [float(s.value) for look in looks for s in look.samples if s.name == name]  # type: ignore[arg-type]


# ---------------------------------------------------------------- causes


@provokes("QuorumlogNoLeader", "QuorumlogNotReady")
def two_of_three_are_gone() -> Iterator[Ports]:
    with watched(3) as (cluster, ports):
        yield ports
        leader = cluster.leader()
        for member in cluster.running:
            if member != leader:
                cluster.kill(member)
        left = {leader: ports[leader]}
        until(lambda: told(left[leader], "quorumlog_server_has_leader") == [0, 0], "no leader")
        yield left
        yield left


@provokes("QuorumlogLeaderChanges")
def leaders_are_paused() -> Iterator[Ports]:
    with watched(3, consensus=ConsensusConfig()) as (cluster, ports):
        yield ports
        for _ in range(2):
            leader = cluster.leader()
            loop = cluster.server(leader).loop
            assert loop is not None
            is_back = threading.Event()
            loop.call_soon_threadsafe(time.sleep, 2.5)
            loop.call_soon_threadsafe(is_back.set)
            until(lambda: cluster.leader() != leader, "another leader")  # noqa: B023
            assert is_back.wait(60)
            yield ports


@provokes("QuorumlogQuorumAtRisk", "QuorumlogFollowerBehind")
def one_of_three_is_gone() -> Iterator[Ports]:
    with watched(3, flush="async") as (cluster, ports):
        yield ports
        leader = cluster.leader()
        gone = next(each for each in cluster.running if each != leader)
        cluster.kill(gone)
        left = {each: port for each, port in ports.items() if each != gone}
        with connect(cluster.servers) as log:
            for _ in range(12):
                log.append_batch([b"x"] * 10_000)
        lag = partial(told, ports[leader], "quorumlog_follower_lag_entries")
        until(lambda: max(lag()) > 100_000, "a follower that lacks entries")
        yield left
        yield left


@contextmanager
def syncing(instead: Callable[[], object]) -> Iterator[None]:
    """Before each sync of a file."""
    sync = os.fdatasync

    def slow(descriptor: Any) -> None:
        instead()
        sync(descriptor)

    os.fdatasync = slow  # type: ignore[assignment]
    try:
        yield
    finally:
        os.fdatasync = sync


@provokes("QuorumlogSyncSlow")
def a_slow_disk() -> Iterator[Ports]:
    with watched() as (cluster, ports), connect(cluster.servers) as log:
        yield ports
        with syncing(lambda: time.sleep(0.8)):
            for _ in range(2):
                log.append(b"x")
                yield ports


@provokes("QuorumlogDiskHangs")
def a_disk_that_hangs() -> Iterator[Ports]:
    ends = threading.Event()
    with watched() as (cluster, ports), connect(cluster.servers, timeout_ms=60_000) as log:
        log.append(b"x")
        yield ports
        with syncing(lambda: ends.wait(60)):
            writer = threading.Thread(target=log.append, args=(b"x",))
            writer.start()
            try:
                waits = partial(told, ports["n0"], "quorumlog_disk_sync_waits_seconds")
                until(lambda: max(waits()) > 5.5, "a sync that waits")
                yield ports
                yield ports
            finally:
                ends.set()
                writer.join()


@provokes("QuorumlogDiskFills")
def a_disk_that_fills() -> Iterator[Ports]:
    with tempfile.TemporaryDirectory() as folder:
        mount = ["mount", "-t", "tmpfs", "-o", "size=256m", "quorumlog-alerts", folder]
        subprocess.run(mount, check=True)
        try:
            with watched(directory=Path(folder) / "data") as (_, ports):
                yield ports
                (Path(folder) / "another").write_bytes(
                    bytes(shutil.disk_usage(folder).free - (20 << 20))
                )
                ratio = partial(told, ports["n0"], "quorumlog_disk_used_ratio")
                until(lambda: max(ratio()) > 0.86, "a full disk")
                yield ports
                yield ports
        finally:
            subprocess.run(["umount", "-l", folder], check=True)


@provokes("QuorumlogDamage")
def a_flipped_bit() -> Iterator[Ports]:
    with LocalCluster(1) as cluster:
        with connect(cluster.servers) as log:
            index = log.append_batch([b"x" * 100] * 10_000).first_index + 5_000
        with ExitStack() as stack:
            yield ports_of(cluster, stack)
        cluster.stop("n0")
        (data, *_) = sorted((cluster.data_dir("n0") / "data").iterdir())
        with data.open("r+b") as file:
            file.seek(5_000 * 150)
            flipped = bytes(each ^ 1 for each in file.read(1))
            file.seek(5_000 * 150)
            file.write(flipped)
        cluster.restart("n0")
        with ExitStack() as stack, connect(cluster.servers, timeout_ms=2_000) as log:
            ports = ports_of(cluster, stack)
            with suppress(LedgerError):
                list(log.read_batches(index - 5_000, index + 5_000))
            damaged = partial(told, ports["n0"], "quorumlog_log_damaged_entries")
            until(lambda: max(damaged(), default=0) > 0, "damage")
            yield ports
            yield ports


class Unsaved(StateMachine):
    def apply(self, batch: EntryBatch, first_index: int) -> None:
        return None

    def save(self, writer: SnapshotWriter) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@provokes("QuorumlogSnapshotOld")
def a_snapshot_that_finds_no_space() -> Iterator[Ports]:
    with watched(flush="async", state_machines={"unsaved": Unsaved}) as (cluster, ports):
        yield ports
        with connect(cluster.servers) as log:
            for _ in range(102):
                log.append_batch([b"x"] * 50_000, machine="unsaved")
        lag = partial(told, ports["n0"], "quorumlog_snapshot_lag_entries")
        until(lambda: max(lag()) > 5_000_000, "an old snapshot")
        yield ports
        yield ports


@provokes("QuorumlogCertificateExpires")
def a_certificate_of_a_week() -> Iterator[Ports]:
    for days in (30, 7):
        with tempfile.TemporaryDirectory() as folder:
            certificates.init(Path(folder), "alerts")
            certificates.member(Path(folder), "n0", ("127.0.0.1",), days)
            files = [str(Path(folder) / name) for name in ("member-n0.crt", "member-n0.key", "ca.crt")]
            with LocalCluster(1, tls=lambda member_id: TlsOptions(*files)) as cluster:  # noqa: B023
                process = LogProcess(cluster.server("n0"))
                with AdminPort(free_address(), process, tls=Tls(TlsOptions(*files))) as port:
                    yield {"n0": port}
                    if days == 7:
                        yield {"n0": port}


@provokes("QuorumlogDescriptors")
def many_connections() -> Iterator[Ports]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with watched() as (cluster, ports), ExitStack() as stack:
        yield ports
        resource.setrlimit(resource.RLIMIT_NOFILE, (300, hard))
        try:
            host, _, port = cluster.servers.partition(":")
            for _ in range(125):
                stack.enter_context(socket.create_connection((host, int(port))))
            yield ports
            yield ports
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@provokes("QuorumlogLoopLag")
def a_loop_that_is_held() -> Iterator[Ports]:
    with watched() as (cluster, ports):
        yield ports
        loop = cluster.server("n0").loop
        assert loop is not None
        for _ in range(2):
            for _ in range(4):
                is_back = threading.Event()
                loop.call_soon_threadsafe(time.sleep, 0.6)
                loop.call_soon_threadsafe(is_back.set)
                assert is_back.wait(60)
            yield ports


@provokes("QuorumlogReaderStalled")
def a_reader_that_stalls() -> Iterator[Ports]:
    with watched(flush="async") as (cluster, ports), connect(cluster.servers) as log:
        log.reader("billing", hold=True).commit(0)
        yield ports
        for _ in range(2):
            log.append_batch([b"x"] * 12_000)
            yield ports


@provokes("QuorumlogConsumerLag")
def a_consumer_that_stalls() -> Iterator[Ports]:
    with LocalBrokers(1, groups=lambda member_id: GroupService(GroupOptions())) as brokers:
        look = partial(look_at_member, brokers.brokers["n0"], "default")
        process = LogProcess(brokers.cluster.server("n0"), [look])
        with AdminPort(free_address(), process) as port, BrokerAdmin(brokers.servers) as admin:
            admin.create_topic("orders", 1)
            with Producer(brokers.servers) as producer:
                producer.send(Message("orders", b"x"))
                with Consumer(brokers.servers, "billing", "orders") as consumer:
                    assert consumer.poll(wait_ms=20_000)
                    consumer.commit()
                yield {"n0": port}
                for _ in range(101):
                    producer.send_batch([Message("orders", b"x")] * 1_000)
            yield {"n0": port}
            yield {"n0": port}


# ---------------------------------------------------------------- promtool


def scraped(ports: Ports, since_s: float) -> Series:
    """Of a look that was taken from now on. Times are told since `since_s`: promtool begins in 1970."""
    now_s = time.monotonic()
    found: Series = {}
    for instance, port in ports.items():
        until(partial(is_newer, port, now_s), "a newer look")
        context = None if port.url.startswith("http:") else unchecked()
        text = urllib.request.urlopen(f"{port.url}/metrics", context=context).read().decode()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels = tuple(sorted({**sample.labels, "instance": instance}.items()))
                is_time = sample.name.endswith("_timestamp_seconds")
                found[sample.name, labels] = sample.value - (since_s if is_time else 0.0)
    return found


def is_newer(port: AdminPort, than_s: float) -> bool:
    return port.seen is not None and port.seen.at_s > than_s


def unchecked() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def series(looks: list[Series]) -> list[dict[str, str]]:
    before, one, two = looks
    found = []
    for key in sorted(two):
        values = [each.get(key, 0.0) for each in (before, one, two)]
        if any(math.isnan(each) for each in values):
            continue
        name, labels = key
        text = ",".join(f'{label}="{value}"' for label, value in labels)
        step = values[2] - values[1]
        first = " ".join(f"{each:.17g}" for each in values[:2])
        found.append(
            {
                "series": f"{name}{{{text}}}",
                "values": f"{first} {values[2]:.17g}{step:+.17g}x{LAST_STEP}",
            }
        )
    return found


def test_of(alerts: list[str], looks: list[Series]) -> dict[str, object]:
    def fires(alert: str, at: str, fires: bool) -> dict[str, object]:
        firing = f'min(ALERTS{{alertname="{alert}",alertstate="firing"}})'
        samples = [{"labels": "{}", "value": 1}] if fires else []
        return {"expr": firing, "eval_time": at, "exp_samples": samples}

    last = f"{STEP_S * LAST_STEP}s"
    asked = [fires(each, at, does) for each in alerts for at, does in (("0s", False), (last, True))]
    return {"interval": f"{STEP_S}s", "input_series": series(looks), "promql_expr_test": asked}


def main(promtool: str, *wanted: str) -> None:
    rules = re.findall(r"- alert: (\w+)", RULES.read_text())
    assert set(CAUSES) == set(rules), f"without a cause: {set(rules) - set(CAUSES)}"
    tests = []
    for cause in dict.fromkeys(CAUSES.values()):
        alerts = [each for each, of in CAUSES.items() if of is cause]
        if wanted and not set(alerts) & set(wanted):
            continue
        since_s = time.time()
        looks = [scraped(ports, since_s) for ports in cause()]
        tests.append(test_of(alerts, looks))
        print(f"{cause.__name__.replace('_', ' ')}: {', '.join(alerts)}", flush=True)
    with tempfile.NamedTemporaryFile("w", suffix=".yml") as file:
        whole = {"rule_files": [str(RULES)], "evaluation_interval": f"{STEP_S}s", "tests": tests}
        json.dump(whole, file)  # which is YAML, too
        file.flush()
        raise SystemExit(subprocess.run([promtool, "test", "rules", file.name]).returncode)


if __name__ == "__main__":
    main(*sys.argv[1:])
