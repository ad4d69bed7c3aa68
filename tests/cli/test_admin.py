"""--admin of every command that serves: what it says of each product, as processes."""

from __future__ import annotations

import json
import socket
import struct
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from subprocess import Popen
from urllib.error import URLError

import pytest
from prometheus_client.parser import text_string_to_metric_families

from quorumlog import connect
from quorumlog.admin.metrics import METRICS
from quorumlog.broker import BrokerClient, Message
from quorumlog.kv import connect as connect_store
from quorumlog.server.free_ports import free_ports
from tests.cli.conftest import Cli
from tests.cli.test_serve import first_line
from tests.docs.markdown import DOCS, section, tables
from tests.waiting import eventually

Start = Callable[..., Popen[bytes]]


def scraped(address: str) -> dict[str, float]:
    """The newest value of each metric; empty: nobody answers, or nothing was looked at yet."""
    with suppress(URLError, ConnectionError):
        text = urllib.request.urlopen(f"http://{address}/metrics", timeout=60).read().decode()
        families = text_string_to_metric_families(text)
        return {f"{each.name}": each.value for family in families for each in family.samples}
    return {}


def versions_of(kafka: str) -> bytes:
    """A client's first request, ApiVersions; empty: nobody answers yet."""
    host, _, port = kafka.rpartition(":")
    with suppress(OSError), socket.create_connection((host, int(port)), 60) as bootstrap:
        bootstrap.sendall(struct.pack(">ihhih", 10, 18, 0, 1, -1))
        return bootstrap.recv(4096)
    return b""


def names_of(found: dict[str, float]) -> set[str]:
    """Of metrics of ours, without what is in a histogram's name."""
    names = {name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count") for name in found}
    return {name for name in names if name.startswith("quorumlog_")}


@pytest.mark.processes
def test_each_product_tells_its_metrics_and_all_of_them_are_documented(
    start: Start, tmp_path: Path
) -> None:
    (rows,) = tables(section((DOCS / "operations.md").read_text(), "Metrics"))
    documented = {row["metric"].strip("`") for row in rows}
    log, store, members, broker, kafka, *admins = (f"127.0.0.1:{port}" for port in free_ports(10))
    config = tmp_path / "member.toml"
    config.write_text(
        f'member_id = "n0"\nmembers = "n0={log}"\ndata_dir = "{tmp_path}/log"\n'
        f'[admin]\nlisten = "{admins[0]}"\n'
    )
    start("serve", "--config", config, "--kafka", kafka)
    own = ("--id", "n0", "--data-dir", tmp_path / "store", "--members", f"n0={members}")
    start("kv", "serve", *own, "--listen", store, "--admin", admins[1])
    classic = ("--dir", tmp_path / "broker", "--topics", "orders:1", "--bind", broker)
    listening = start("broker", "serve", *classic, "--admin", admins[2]).stdout
    of_log, of_broker = (f"n0={address}" for address in admins[3:5])
    replicated = ("--role", "dledger", "--id", "n0", "--dir", tmp_path / "replicated")
    started = (*replicated, "--topics", "orders:1", "--members", of_log, "--brokers", of_broker)
    (admin,) = (f"127.0.0.1:{port}" for port in free_ports(1))
    start("broker", "serve", *started, "--admin", admin)
    eventually(lambda: versions_of(kafka), what="an answer of Kafka's port")
    with connect(log) as client:
        client.reader("billing").commit(client.append(b"one").first_index)
    with connect_store(store) as keys:
        keys.put("a", b"1")
    assert listening is not None and listening.readline()
    with BrokerClient(broker) as messages:
        messages.send(Message("orders", b"tea"))
    beyond_one = (
        "snapshot_save",
        "follower",
        "network_peer",
        "slave",
        "consumergroup",
        "tls_certificate",
    )

    def unseen() -> set[str]:
        """Once every port answers, its metrics follow what its process does by a moment."""
        seen = set().union(*(names_of(scraped(each)) for each in (*admins[:3], admin)))
        assert seen <= documented == set(METRICS)
        return {name for name in set(METRICS) - seen if not any(each in name for each in beyond_one)}

    eventually(lambda: not unseen(), what="each metric of what has happened")


def test_dev_has_a_page_of_each_member(start: Start) -> None:
    (port,) = free_ports(1)
    process = start("dev", "--members", "1", "--admin", f"127.0.0.1:{port}", "--json")
    told = json.loads(first_line(process))
    assert told["admin"] == [f"http://127.0.0.1:{port}"]
    eventually(lambda: scraped(f"127.0.0.1:{port}").get("quorumlog_server_ready"), what="a member")


def test_what_cannot_be_listened_on_is_named(cli: Cli, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    own = ("serve", "--id", "n0", "--members", f"n0=127.0.0.1:{port}", "--data-dir", tmp_path)
    result = cli(*own, "--admin", "nowhere")
    assert result.exit_code == 2
    assert "--admin: 'nowhere' is not an address" in result.stderr
    result = cli(*own, "--admin", f"0.0.0.0:{port}")
    assert result.exit_code == 2
    assert "without TLS: bind to the loopback" in result.stderr
