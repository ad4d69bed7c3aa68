"""The port beside a member: what it says while all is well, and while the loop or the disk hangs."""

from __future__ import annotations

import asyncio
import http.client
import os
import socket
import ssl
import sys
import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client.parser import text_string_to_metric_families

from quorumlog import LocalCluster, connect
from quorumlog.admin import AdminPort, LogProcess, looks, page, who
from quorumlog.admin import port as port_module
from quorumlog.admin.looks import Look, Sample, Seen, Table
from quorumlog.admin.metrics import METRICS
from quorumlog.admin.who import MOST_CHECKS, Lookers
from quorumlog.cli import certificates
from quorumlog.config import TlsOptions
from quorumlog.errors import ConfigError
from quorumlog.log_state.users import (
    NO_USERS,
    Kind,
    Right,
    RoleGrant,
    User,
    UserOperation,
    UserOrder,
    UsersChange,
)
from quorumlog.net.credentials import ClientUser, verifier_for
from quorumlog.net.tls import Tls
from quorumlog.server.free_ports import free_ports
from tests.waiting import eventually

FOLLOWS = "group default: it does not lead\n"


def free(host: str) -> str:
    return f"{host}:{free_ports(1)[0]}"


@contextmanager
def looked_at(cluster: LocalCluster, member_id: str = "n0") -> Iterator[AdminPort]:
    with AdminPort(free("127.0.0.1"), LogProcess(cluster.server(member_id))) as port:
        eventually(lambda: port.seen, what="a first look")
        yield port


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as running:
        yield running


def get(port: AdminPort, path: str, method: str = "GET", said: str = "") -> tuple[int, str]:
    """`said`: NAME:PASSWORD."""
    headers = {"Authorization": f"Basic {b64encode(said.encode()).decode()}"} if said else {}
    with closing(http.client.HTTPConnection(port.address, timeout=60)) as connection:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def test_a_member_that_serves_is_healthy_and_ready_and_the_leader_says_that_it_is_one(
    cluster: LocalCluster,
) -> None:
    leader = cluster.leader()
    for member in cluster.members:
        with looked_at(cluster, member.member_id) as port:
            assert get(port, "/healthz") == (200, "ok\n")
            eventually(lambda port=port: get(port, "/readyz") == (200, "ok\n"), what="a ready member")
            for asked in ("/readyz?leader", "/readyz?leader=default"):
                told = (200, "ok\n") if member.member_id == leader else (503, FOLLOWS)
                assert get(port, asked) == told


def test_nothing_on_the_port_changes_anything(cluster: LocalCluster) -> None:
    with looked_at(cluster) as port:
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            for path in ("/healthz", "/readyz", "/metrics"):
                assert get(port, path, method)[0] == 405
        assert get(port, "/nothing")[0] == 404


def test_a_loop_that_hangs_fails_health_and_the_port_answers_meanwhile(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs, ends = threading.Event(), threading.Event()

    def hang() -> None:
        hangs.set()
        ends.wait(30)

    with looked_at(cluster) as port:
        loop = cluster.server("n0").loop
        assert loop is not None
        loop.call_soon_threadsafe(hang)
        hangs.wait()
        try:
            said = eventually(
                lambda: said if (said := get(port, "/healthz"))[0] == 503 else None, what="no health"
            )
            assert "its loop has not turned for 2." in said[1]
            assert get(port, "/readyz")[0] == 503
            assert "quorumlog_log_last_index" in get(port, "/metrics")[1]
        finally:
            ends.set()
        eventually(lambda: get(port, "/healthz")[0] == 200, what="health again")


@pytest.mark.parametrize("is_new", [False, True])
def test_a_disk_that_hangs_ends_readiness_and_not_health(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_new: bool
) -> None:
    """Before the first entry of a log its directory notes what kinds it may hold."""
    ends = threading.Event()
    ends.set()
    sync = os.fdatasync

    def hanging(descriptor: int) -> None:
        ends.wait(60)
        sync(descriptor)

    monkeypatch.setattr(os, "fdatasync", hanging)
    with (
        LocalCluster(1, directory=tmp_path, time_marks=is_new) as cluster,
        looked_at(cluster) as port,
        connect(cluster.servers, timeout_ms=30_000) as log,
    ):
        if not is_new:
            log.append(b"one")
        eventually(lambda: get(port, "/readyz")[0] == 200, what="a ready member")
        ends.clear()
        waiting = threading.Thread(target=log.append, args=(b"two",))
        waiting.start()
        try:
            said = eventually(
                lambda: said if (said := get(port, "/readyz"))[0] == 503 else None, what="not ready"
            )
            assert "its disk hangs: a sync does not return" in said[1]
            assert get(port, "/healthz") == (200, "ok\n")
            (row,) = log.status()
            assert row.unready == ("its disk hangs: a sync does not return",)
        finally:
            ends.set()
        waiting.join()
        eventually(lambda: get(port, "/readyz")[0] == 200, what="a ready member again")


def test_a_full_disk_ends_readiness_and_not_health(tmp_path: Path) -> None:
    with LocalCluster(1, directory=tmp_path) as cluster, looked_at(cluster) as port:
        eventually(lambda: get(port, "/readyz")[0] == 200, what="a ready member")
        server = cluster.server("n0")
        assert server.loop is not None
        (config,) = (each for each in server.groups if each.group == "default")
        full = replace(config, storage=replace(config.storage, disk_full_ratio=0.0001))
        server.loop.call_soon_threadsafe(server.reload, [full])
        said = eventually(lambda: said if (said := get(port, "/readyz"))[0] == 503 else None)
        assert "its disk is above disk_full_ratio" in said[1]
        assert get(port, "/healthz") == (200, "ok\n")


def scraped(port: AdminPort) -> dict[str, dict[tuple[str, ...], float]]:
    """By name of a metric; of its samples by the values of their labels."""
    status, text = get(port, "/metrics")
    assert status == 200
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return found


OF_THE_LOG = {
    name
    for name, metric in METRICS.items()
    if not any(
        part in name
        for part in ("mvcc", "quota", "lease", "store", "broker", "topic", "consumergroup", "kafka")
    )
}


def test_the_metrics_of_a_member(cluster: LocalCluster) -> None:
    with connect(cluster.servers) as log, looked_at(cluster, cluster.leader()) as port:
        log.append_batch([b"a"] * 100)
        log.append(b"b")
        log.reader("billing").commit(1)
        committed = log.status()[0].committed_index
        key = ("default",)
        eventually(
            lambda: scraped(port)["quorumlog_log_committed_index"][key] >= committed, what="a newer look"
        )
        found = scraped(port)
        assert found["quorumlog_server_is_leader"]["default",] == 1
        assert found["quorumlog_server_proposals_committed_total"]["default",] == 2
        appends = ("OK", "default", "Append")  # in the order of labels
        assert found["quorumlog_server_requests_total"][appends] == 2
        assert found["quorumlog_server_request_duration_seconds_count"][appends] == 2
        assert found["quorumlog_server_request_duration_seconds_sum"][appends] > 0
        (lag,) = found["quorumlog_reader_lag_seconds"].values()
        assert 0 <= lag < 3600
    names = {name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count") for name in found}
    expected = {
        name for name in OF_THE_LOG if "machine" not in METRICS[name].labels and "tls" not in name
    }
    assert expected - names == set()
    assert {each for each in names if each.startswith("quorumlog_")} <= set(METRICS)
    assert found["process_open_fds"]


def test_a_voter_that_is_connected_and_does_not_answer_its_leader_is_not_reachable(
    cluster: LocalCluster,
) -> None:
    leader = cluster.leader()
    silent = next(each.member_id for each in cluster.members if each.member_id != leader)
    ends = threading.Event()
    loop = cluster.server(silent).loop
    assert loop is not None
    with looked_at(cluster, leader) as port:

        def reachable(count: int) -> bool:
            return scraped(port)["quorumlog_server_voters_reachable"]["default",] == count

        eventually(lambda: reachable(3), what="every voter")
        loop.call_soon_threadsafe(ends.wait, 60)
        try:
            eventually(lambda: reachable(2), what="a voter less")
        finally:
            ends.set()
        eventually(lambda: reachable(3), what="every voter again")


def test_the_page_is_one_document_that_moves_and_asks_nobody_else(cluster: LocalCluster) -> None:
    with connect(cluster.servers) as log:
        log.reader("billing").commit(0)
    with (
        looked_at(cluster, cluster.leader()) as port,
        closing(http.client.HTTPConnection(port.address, timeout=60)) as connection,
    ):
        eventually(lambda: "billing" in get(port, "/")[1], what="a reader on the page")
        status, text = get(port, "/")
        assert status == 200
        assert "://" not in text and "src=" not in text and "<link" not in text
        for shown in ("Members", "Readers", "Leaders", "leads in term", "What keeps old segments"):
            eventually(lambda shown=shown: shown in get(port, "/")[1], what=shown)
        connection.request("GET", "/events")
        answer = connection.getresponse()
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        for _ in range(2):
            line = answer.fp.readline()
            while not line.startswith(b"data: "):
                line = answer.fp.readline()
            assert b"<h1>quorumlog</h1>" in line and b"billing" in line


def test_who_asks_nothing_keeps_no_probe_out(cluster: LocalCluster) -> None:
    with looked_at(cluster) as port, ExitStack() as opened:
        host, _, number = port.address.rpartition(":")
        page_reader = opened.enter_context(closing(http.client.HTTPConnection(port.address, timeout=60)))
        page_reader.request("GET", "/events")
        answer = page_reader.getresponse()
        silent = [
            opened.enter_context(socket.create_connection((host, int(number)), timeout=60))
            for _ in range(3 * port_module.MOST_CONNECTIONS)
        ]
        for _ in range(3):
            assert get(port, "/healthz") == (200, "ok\n")
        with suppress(ConnectionResetError):
            assert silent[0].recv(1) == b"", "the one that was silent longest has gone"
        assert answer.fp.readline() and answer.fp.readline() and answer.fp.readline()
        silent[-1].setblocking(False)
        with pytest.raises(BlockingIOError):
            silent[-1].recv(1)


def test_where_there_are_users_the_page_and_the_metrics_ask_who_looks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(who, "WRONG_PAUSE_S", 0.0)

    def add(name: str, role: str) -> UserOrder:
        return UserOrder(UserOperation.ADD_USER, name, (role,), (), verifier_for(f"of {name}"))

    watches = RoleGrant(Right.READ, Kind.CLUSTER, b"")
    with LocalCluster(1) as cluster, looked_at(cluster) as port:
        assert get(port, "/metrics")[0] == 200
        with connect(cluster.servers) as log:
            log.change_users(add("alice", "admin"))
        with connect(cluster.servers, user=ClientUser("alice", "of alice")) as log:
            log.change_users(UserOrder(UserOperation.ADD_ROLE, "nothing", (), ()))
            log.change_users(UserOrder(UserOperation.ADD_ROLE, "watches", (), (watches,)))
            log.change_users(add("bob", "nothing"))
            log.change_users(add("prometheus", "watches"))
        eventually(lambda: get(port, "/metrics", said="prometheus:of prometheus")[0] == 200)
        for path in ("/metrics", "/", "/events"):
            assert get(port, path)[0] == 401
            assert get(port, path, said="bob:of bob") == (
                403,
                "user bob may not read cluster: an administrator may grant it (quorumlog grant)\n",
            )
        for said in ("bob:wrong", "nobody:of bob", "alice:"):
            assert get(port, "/metrics", said=said) == (401, "the user or the password is wrong\n")
        assert get(port, "/healthz")[0] == 200
        eventually(lambda: get(port, "/readyz")[0] == 200, what="a ready member")
        found = get(port, "/metrics", said="alice:of alice")[1]
        assert "quorumlog_authentication_failures_total 3.0" in found


def test_a_look_without_tls_takes_no_password_and_a_certificate_counts() -> None:
    change = UsersChange(users=(User("alice", ("admin",)),), secret=bytes(32))
    users = NO_USERS.changed(change)
    shown = {"subjectAltName": (("URI", "quorumlog://orders/user/alice"),)}
    said = {"Authorization": "Basic YWxpY2U6eA=="}

    def refused(lookers: Lookers, headers: dict[str, str], certificate: object) -> int | None:
        refusal = asyncio.run(lookers.refusal(users, headers, certificate, ""))
        return None if refusal is None else refusal[0]

    plain = Lookers(None, is_loopback=False, wrong=lambda name, address: None)
    assert [refused(plain, {}, shown), refused(plain, said, None)] == [401, 403]
    for cluster, expected in (("orders", None), ("audit", 401)):
        tls = cast(Tls, SimpleNamespace(cluster=cluster))
        lookers = Lookers(tls, is_loopback=False, wrong=lambda name, address: None)
        assert refused(lookers, {}, shown) == expected


def test_wrong_passwords_count_for_their_address_until_they_are_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(who, "WRONG_PAUSE_S", 3_600.0)
    user = User("alice", ("admin",), verifier_for("sesame"))
    users = NO_USERS.changed(UsersChange(users=(user,), secret=bytes(32)))
    lookers = Lookers(None, is_loopback=True, wrong=lambda name, address: None)

    def attempt(password: str, host: str = "a") -> Any:
        said = b64encode(f"alice:{password}".encode()).decode()
        return lookers.refusal(users, {"Authorization": f"Basic {said}"}, None, f"{host}:1")

    async def scene() -> None:
        assert await attempt("sesame") is None
        guesses = [asyncio.create_task(attempt(f"guess{n}")) for n in range(2 * MOST_CHECKS)]
        answered, waiting = await asyncio.wait(guesses, return_when=asyncio.FIRST_COMPLETED)
        assert len(waiting) == MOST_CHECKS
        assert {each.result()[0] for each in answered} == {429}
        for each in waiting:
            each.cancel()
        await asyncio.wait(waiting)
        assert (await attempt("another guess"))[0] == 429
        assert await attempt("sesame") is None, "it was proved before"
        assert await attempt("sesame", "b") is None

    asyncio.run(scene())


def test_the_page_shows_what_names_say_as_text() -> None:
    table = Table("t", ("<i>",), [("<script>alert(1)</script>\n\ndata: x",)])
    look = Look("<g>", "log", unready=("<u>\n",), tables=lambda: [table])
    shown = page.body(Seen(0.0, (look,)), ["<p>\n\n"], page.Throughput())
    assert "\n" not in shown
    assert not any(tag in shown for tag in ("<script", "<i>", "<g>", "<u>"))


def test_a_process_that_starts_is_healthy_and_one_that_has_stopped_is_not_ready() -> None:
    assert looks.unhealthy(None, 0.0, 2.0) == []
    assert looks.unready(None, 0.0, 2.0) == ["it starts"]
    assert looks.unready(Seen(0.0, ()), 1.0, 2.0) == ["it has stopped"]
    failed = Seen(0.0, (Look("g", "log", failure="the disk is gone"),))
    assert looks.unhealthy(failed, 1.0, 2.0) == ["group g: the disk is gone"]


def test_the_throughput_of_the_last_hour() -> None:
    throughput = page.Throughput()
    for number in range(500):
        sample = Sample("quorumlog_log_appended_records_total", 60.0 * number)
        look = Look("g", "log", samples=(sample,))
        throughput.add(Seen(30.0 * number, (look,)))
    per_second = throughput.per_second(look)
    assert len(per_second) == 120 and set(per_second) == {2.0}
    assert "now 2, at most 2" in page.body(Seen(0.0, (look,)), [], throughput)


def test_too_many_connections_are_closed(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port_module, "MOST_CONNECTIONS", 2)
    monkeypatch.setattr(port_module, "SILENT_S", 1000.0)
    with looked_at(cluster) as port:
        host, _, number = port.address.partition(":")
        with (
            socket.create_connection((host, int(number)), timeout=60) as first,
            socket.create_connection((host, int(number)), timeout=60),
        ):
            for _ in range(3):  # those that come together are counted by the next
                assert get(port, "/healthz") == (200, "ok\n")
            with suppress(ConnectionResetError):
                assert first.recv(1) == b""


def test_other_machines_reach_it_with_tls_only(cluster: LocalCluster, tmp_path: Path) -> None:
    process = LogProcess(cluster.server("n0"))
    with pytest.raises(ConfigError, match="reachable from other machines without TLS"):
        AdminPort(free("0.0.0.0"), process)
    AdminPort(free("0.0.0.0"), process, insecure=True).close()
    certificates.init(tmp_path, "orders")
    certificates.member(tmp_path, "n0", ("127.0.0.1",))
    files = [str(tmp_path / name) for name in ("member-n0.crt", "member-n0.key", "ca.crt")]
    with AdminPort(free("0.0.0.0"), process, tls=Tls(TlsOptions(*files))) as port:
        number = int(port.address.rpartition(":")[2])
        context = ssl.create_default_context(cafile=files[2])
        eventually(lambda: port.seen, what="a first look")
        with closing(http.client.HTTPSConnection("127.0.0.1", number, context=context)) as connection:
            connection.request("GET", "/metrics")
            text = connection.getresponse().read().decode()
    assert "quorumlog_tls_certificate_expiry_timestamp_seconds 1" in text


@pytest.mark.parametrize("missing", ["aiohttp.web", "prometheus_client"])
def test_without_the_extra_the_error_names_it(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ConfigError, match=r"--admin needs .*the extra `admin`: pip install"):
        AdminPort(free("127.0.0.1"), LogProcess(cluster.server("n0")))


def test_a_port_that_is_taken_is_an_error_that_names_it(cluster: LocalCluster) -> None:
    with looked_at(cluster) as port, pytest.raises(ConfigError, match=f"--admin {port.address}"):
        AdminPort(port.address, LogProcess(cluster.server("n0")))
