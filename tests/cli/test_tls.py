"""Commands and clients of all products over TLS, and what they say where something is wrong."""

from __future__ import annotations

import asyncio
import base64
import http.client
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from quorumlog import LocalCluster, broker, connect, connect_async, kv
from quorumlog.cli.main import app
from quorumlog.errors import LedgerError
from quorumlog.kv.testing import LocalStores
from quorumlog.net.tls import ClientTls, tls_of_clients
from quorumlog.server.free_ports import free_ports
from tests.certificates import directory, member, options_of, user
from tests.waiting import eventually

CA = str(directory() / "ca.crt")
BODY = b"over TLS"


def tls_of(pair: Any = None, ca: str = CA) -> ClientTls:
    return ClientTls(ca, *(() if pair is None else map(str, pair)))


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(store="memory", tls=lambda each: options_of(member(each))) as made:
        with connect(made.servers, tls=tls_of()) as log:
            log.append(BODY)
        yield made


def run(*words: object) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words])


def test_both_clients_of_the_log_speak_tls(cluster: LocalCluster) -> None:
    async def appended() -> int:
        async with connect_async(cluster.servers, tls=tls_of(user("alice"))) as log:
            return (await log.append(b"x" * 3_000_000)).first_index

    index = asyncio.run(appended())
    with connect(cluster.servers, tls=tls_of()) as log:
        assert next(iter(log.read(index))).body == b"x" * 3_000_000


def test_a_command_speaks_tls_by_one_option_and_nothing_of_it_stays(cluster: LocalCluster) -> None:
    done = run("status", "--servers", cluster.servers, "--tls-ca", CA, "--check")
    assert done.exit_code == 0, done.output
    assert tls_of_clients() is None


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ((), "speaks TLS"),
        (("--tls-ca", directory("audit") / "ca.crt"), "signed by a CA that is not in --tls-ca"),
        (("--tls-cert", user("alice").cert), "--tls-ca is missing"),
        (("--tls-ca", CA, "--tls-cert", user("alice").cert), "--tls-key is missing"),
        (("--tls-ca", "/nowhere"), "--tls-ca /nowhere: No such file"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(cluster: LocalCluster, options: Any, reason: str) -> None:
    done = run("read", "--servers", cluster.servers, "--timeout", "1", *options)
    assert done.exit_code in (1, 2)
    assert reason in done.output
    assert "Traceback" not in done.output


def test_a_client_without_a_certificate_hears_that_one_may_be_required() -> None:
    options = lambda each: options_of(member(each), client_auth="required")  # noqa: E731
    with LocalCluster(1, store="memory", tls=options) as strict:
        done = run("read", "--servers", strict.servers, "--timeout", "1", "--tls-ca", CA)
    assert done.exit_code == 1
    assert "require another certificate (--tls-cert)?" in " ".join(done.output.split())


def test_a_host_that_the_certificate_does_not_name_is_refused(cluster: LocalCluster) -> None:
    servers = cluster.servers.replace("127.0.0.1", "127.0.0.2")
    with pytest.raises(LedgerError), connect(servers, tls=tls_of(), timeout_ms=500) as log:
        log.append(b"never")


def test_a_tls_client_names_a_plain_port() -> None:
    with LocalCluster(1, store="memory") as plain:
        done = run("read", "--servers", plain.servers, "--timeout", "1", "--tls-ca", CA)
        assert done.exit_code == 1
        assert "TLS" in done.output


def test_a_tls_client_finds_the_leader_beside_a_plain_port() -> None:
    listen = dict(zip(("n0", "n1", "n2"), free_ports(3), strict=True))

    def options(member_id: str) -> Any:
        return options_of(member(member_id), listen=f"127.0.0.1:{listen[member_id]}", peers="prefer")

    with LocalCluster(store="memory", tls=options) as cluster:
        servers = ",".join(f"127.0.0.1:{port}" for port in listen.values())
        with connect(servers, tls=tls_of()) as encrypted, connect(cluster.servers) as plain:
            receipt = encrypted.append(BODY)
            assert next(iter(plain.read(receipt.first_index))).body == BODY


@contextmanager
def serving(*words: object) -> Iterator[str]:
    """What it prints once it serves."""
    line = [sys.executable, "-m", "quorumlog", *map(str, words)]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline()
        finally:
            process.terminate()
            process.wait(30)


def files_of(member_id: str) -> tuple[object, ...]:
    pair = member(member_id)
    return "--tls-cert", pair.cert, "--tls-key", pair.key, "--tls-ca", CA


def test_a_store_and_its_gateway_speak_tls(tmp_path: Path) -> None:
    log_port, port, gateway = free_ports(3)
    servers = f"127.0.0.1:{port}"
    with serving(
        "kv", "serve", "--id", "n0", "--members", f"n0=127.0.0.1:{log_port}", "--data-dir", tmp_path,
        "--listen", servers, "--etcd-gateway", gateway, "--servers", servers, *files_of("n0"),
    ) as said:  # fmt: skip
        assert "with TLS" in said
        with kv.connect(servers, tls=tls_of()) as store:
            store.put("a", b"1")
        assert run("kv", "get", "a", "--servers", servers, "--tls-ca", CA).output.strip() == "1"
        assert "speaks TLS" in run("kv", "get", "a", "--servers", servers, "--timeout", "1").output
        assert _asked_over_https(gateway) == b"1"


def _asked_over_https(port: int) -> bytes:
    context = tls_of().context
    return _asked(http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=60))


def _asked(connection: http.client.HTTPConnection) -> bytes:
    asked = json.dumps({"key": base64.b64encode(b"a").decode()})
    connection.request("POST", "/v3/kv/range", asked)
    answer = json.loads(connection.getresponse().read())
    return base64.b64decode(answer["kvs"][0]["value"])


def test_a_store_and_its_gateway_speak_tls_beside_plain(tmp_path: Path) -> None:
    log_port, log_tls, port, port_tls, gateway, gateway_tls = free_ports(6)
    pair = member("n0")
    config = tmp_path / "n0.toml"
    config.write_text(f"""
member_id = "n0"
members = "n0=127.0.0.1:{log_port}"
data_dir = "{tmp_path / "n0"}"
[tls]
cert = "{pair.cert}"
key = "{pair.key}"
ca = "{CA}"
listen = "127.0.0.1:{log_tls}"
store_listen = "127.0.0.1:{port_tls}"
gateway_listen = "127.0.0.1:{gateway_tls}"
peers = "prefer"
""")
    plain, encrypted = f"127.0.0.1:{port}", f"127.0.0.1:{port_tls}"
    with serving(
        "kv", "serve", "--config", config, "--listen", plain, "--etcd-gateway", gateway, "--servers",
        plain,
    ) as said:  # fmt: skip
        assert f"and with TLS on 127.0.0.1:{log_tls}" in said
        with kv.connect(plain) as store:
            store.put("a", b"1")
        with kv.connect(encrypted, tls=tls_of()) as store:
            assert store["a"] == b"1"
        assert _asked_over_https(gateway_tls) == b"1"
        assert _asked(http.client.HTTPConnection("127.0.0.1", gateway, timeout=60)) == b"1"


def test_a_broker_speaks_tls_beside_plain(tmp_path: Path) -> None:
    port, port_tls = free_ports(2)
    plain, encrypted = f"127.0.0.1:{port}", f"127.0.0.1:{port_tls}"
    with serving(
        "broker", "serve", "--dir", tmp_path, "--topics", "orders:1", "--bind", plain,
        "--tls-listen", encrypted, *files_of("n0"),
    ) as said:  # fmt: skip
        assert f"{plain} and with TLS on {encrypted}" in said
        with broker.connect(plain) as client:
            assert client.send(broker.Message("orders", BODY)).queue_offset == 0
        with broker.connect(encrypted, tls=tls_of()) as client:
            assert client.send(broker.Message("orders", BODY)).queue_offset == 1


def test_a_store_that_asks_for_certificates_is_a_coordinator(tmp_path: Path) -> None:
    port, ha_port = free_ports(2)
    alice = user("alice")
    with (
        LocalStores(1, tls=lambda each: options_of(member(each), client_auth="required")) as stores,
        serving(
            "broker", "serve", "--failover", "kv", "--coordinator", stores.servers,
            "--coordinator-ca", CA, "--coordinator-cert", alice.cert, "--coordinator-key", alice.key,
            "--id", "b0", "--dir", tmp_path, "--topics", "orders:1", "--bind", f"127.0.0.1:{port}",
            "--ha-port", ha_port, "--in-sync-replicas", 1,
        ),
        broker.connect(f"127.0.0.1:{port}") as client,
    ):  # fmt: skip
        eventually(lambda: client.status().role != "SLAVE")
        assert client.send(broker.Message("orders", BODY)).queue_offset == 0


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--coordinator-cert", CA), "--coordinator-ca is missing"),
        (("--coordinator-ca", "/nowhere"), "--coordinator-ca /nowhere: No such file"),
        (("--coordinator-ca", CA, "--failover", "etcd"), "--coordinator-ca is for --failover kv"),
        (("--coordinator-ca", CA, "--failover", None), "need --failover etcd, kv or zookeeper"),
    ],
)
def test_what_is_wrong_with_a_coordinator_s_files_is_said_first(
    tmp_path: Path, options: Any, reason: str
) -> None:
    given = {"--failover": "kv", "--coordinator": "127.0.0.1:1"}
    given |= dict(zip(options[::2], options[1::2], strict=True))
    words = [word for name, value in given.items() if value is not None for word in (name, value)]
    done = run("broker", "serve", "--dir", tmp_path / "b", "--topics", "a:1", "--id", "b0", *words)
    assert done.exit_code == 2
    assert reason in " ".join(done.output.split())
    assert not (tmp_path / "b").exists()


def test_brokers_and_their_slaves_speak_tls(tmp_path: Path) -> None:
    first, first_ha, second, second_ha = free_ports(4)
    master = (
        "broker", "serve", "--role", "async-master", "--dir", tmp_path / "a", "--id", "n0", "--topics",
        "orders:1", "--bind", f"127.0.0.1:{first}", "--ha-port", first_ha, *files_of("n0"),
    )  # fmt: skip
    slave = (
        "broker", "serve", "--role", "slave", "--dir", tmp_path / "b", "--id", "n1", "--master",
        f"127.0.0.1:{first_ha}", "--bind", f"127.0.0.1:{second}", "--ha-port", second_ha,
    )  # fmt: skip
    with serving(*master) as said, serving(*slave, *files_of("n1")):
        assert "with TLS" in said
        with broker.connect(f"127.0.0.1:{first}", tls=tls_of()) as client:
            receipt = client.send(broker.Message("orders", BODY))
            for _ in range(3):
                client.send(broker.Message("orders", BODY))
        with broker.connect(f"127.0.0.1:{second}", tls=tls_of()) as client:
            eventually(lambda: client.max_offset("orders", 0) == 4)
        assert receipt.queue_offset == 0

        async def sent() -> int:
            async with broker.connect_async(f"127.0.0.1:{first}", tls=tls_of()) as client:
                return (await client.send(broker.Message("orders", BODY))).queue_offset

        assert asyncio.run(sent()) == 4


def test_a_broker_with_another_certificate_follows_nobody(tmp_path: Path) -> None:
    first, first_ha, second, second_ha = free_ports(4)
    line = (
        "broker", "serve", "--role", "slave", "--dir", tmp_path / "b", "--id", "n1", "--master",
        f"127.0.0.1:{first_ha}", "--bind", f"127.0.0.1:{second}", "--ha-port", second_ha,
    )  # fmt: skip
    assert first
    done = run(*line, *files_of("n0"))
    assert done.exit_code == 2
    assert "quorumlog://orders/member/n0, and --id is n1" in done.output


@pytest.mark.parametrize("bind", ["127.0.0.1", "10.255.255.1"])
def test_rocketmq_s_dialect_beside_tls_is_for_this_machine(tmp_path: Path, bind: str) -> None:
    port, ha_port = free_ports(2)
    line = (
        "broker", "serve", "--role", "async-master", "--dir", tmp_path, "--topics", "a:1", "--bind",
        f"{bind}:{port}", "--ha-port", ha_port, "--ha-dialect", "rocketmq", *files_of("n0"),
    )  # fmt: skip
    if bind == "127.0.0.1":
        with serving(*line) as said:
            assert "with TLS" in said
    else:
        done = run(*line)
        assert done.exit_code == 2
        assert "--insecure" in done.output


def test_dev_makes_what_it_needs_and_prints_how_to_reach_it(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    with serving("dev", "--tls", "--members", "1", "--dir", folder, "--json") as said:
        told = json.loads(said)
        assert told["tls_ca"] == str(folder / "tls" / "ca.crt")
        with connect(told["servers"], tls=ClientTls(told["tls_ca"])) as log:
            log.append(BODY)
    assert (folder / "tls" / "ca.key").stat().st_mode & 0o777 == 0o600
