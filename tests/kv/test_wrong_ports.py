"""Who looks for a key-value store, and finds something else, is told what it is, at once; and so is who
finds a store and looks for something else, or is of an earlier release."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from quorumlog import connect as connect_log
from quorumlog.broker.dledger.dledger_broker import LocalBrokers
from quorumlog.cli.main import app
from quorumlog.config import GroupConfig, parse_members
from quorumlog.errors import LeaderNotReady, RequestTimeout, Unreachable, WrongPort
from quorumlog.kv import KeyValueStore, connect
from quorumlog.kv.endpoint import KeyValueEndpoint
from quorumlog.kv.errors import KeyValueError
from quorumlog.kv.etcd.gateway import EtcdGateway
from quorumlog.kv.requests import (
    UPGRADE,
    answer_to_old_greeting,
    request_decoder,
    words_to_old_client,
)
from quorumlog.kv.testing import LocalStores
from quorumlog.net.frame import encode_frame
from quorumlog.net.hello import STORE, client_hello
from quorumlog.net.limits import ProcessLimits
from quorumlog.net.strangers import OtherSoftware
from quorumlog.server.free_ports import free_ports

FOREVER_S = 3600.0
"""Who is not told at once ends no test."""
RELEASED = Path(__file__).parent.parent / "fixtures" / "wire" / "0.1.0-fd35d4aa"


class Stores(LocalStores):
    """One member, with a gateway for clients of etcd, which speaks HTTP."""

    def __init__(self) -> None:
        super().__init__(1)
        self.gateway = f"127.0.0.1:{free_ports(1)[0]}"

    def _endpoints(self, member_id: str) -> list[KeyValueEndpoint]:
        (self.endpoint,) = super()._endpoints(member_id)
        gateway = EtcdGateway(self.endpoint, self.gateway, self.servers, member_id)
        return [self.endpoint, gateway]  # type: ignore[list-item]


@pytest.fixture(scope="module")
def stores() -> Iterator[Stores]:
    with Stores() as made, connect(made.servers) as kv:
        kv.put("a", "1")
        yield made


def said_by_kv(servers: str) -> str:
    with connect(servers, timeout_ms=1000 * FOREVER_S) as kv, pytest.raises(WrongPort) as raised:
        kv.get("a")
    return str(raised.value)


def said_by_log(servers: str) -> str:
    with connect_log(servers, timeout_ms=FOREVER_S * 1000) as log, pytest.raises(WrongPort) as raised:
        log.append(b"x")
    return str(raised.value)


def test_a_client_of_stores_at_the_port_of_a_log(stores: Stores) -> None:
    log = stores.cluster.servers
    said = said_by_kv(log)
    assert said == (f"{log}: this port serves a log; its key-value store listens at {stores.servers}")
    with connect(log, timeout_ms=1000 * FOREVER_S) as kv, pytest.raises(WrongPort), kv.watch("a"):
        pass


def test_a_client_of_logs_at_the_port_of_a_store(stores: Stores) -> None:
    said = said_by_log(stores.servers)
    assert said == (
        f"{stores.servers}: this port serves a key-value store; its log listens at"
        f" {stores.cluster.servers}"
    )


def test_clients_at_a_port_that_speaks_http(stores: Stores) -> None:
    for said in (said_by_kv(stores.gateway), said_by_log(stores.gateway)):
        assert said == f"{stores.gateway} answers with HTTP, not quorumlog"


def test_a_client_of_stores_at_the_port_of_a_broker(tmp_path: Path) -> None:
    with LocalBrokers(1, directory=tmp_path / "log") as brokers:
        said = said_by_kv(brokers.servers)
    assert said == f"{brokers.servers}: this port serves a broker, not a key-value store"


def test_one_address_of_several_may_be_wrong(stores: Stores) -> None:
    with connect(f"{stores.cluster.servers},{stores.gateway},{stores.servers}") as kv:
        assert kv["a"] == b"1"


@pytest.mark.parametrize(
    "line", [("get", "a"), ("put", "a", "1"), ("status",), ("watch", "a"), ("lease", "list")]
)
def test_a_command_of_stores_at_another_port(stores: Stores, line: tuple[str, ...]) -> None:
    for servers, words in (
        (stores.cluster.servers, f"its key-value store listens at {stores.servers}"),
        (stores.gateway, "answers with HTTP, not quorumlog"),
    ):
        options = ("--timeout", "3600", "--servers", servers)
        result = CliRunner().invoke(app, ["kv", *line, *options])
        assert result.exit_code == 1, result.output
        assert words in " ".join(result.stderr.split())


@pytest.mark.parametrize("port", ["store", "gateway"])
def test_above_the_limit_of_connections_clients_are_told_so(
    stores: Stores, port: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In what they speak."""
    monkeypatch.setattr(ProcessLimits, "most_connections", 0)
    if port == "gateway":
        host, _, number = stores.gateway.rpartition(":")
        with closing(http.client.HTTPConnection(host, int(number), timeout=60)) as client:
            client.request("GET", "/version")
            assert client.getresponse().status == 429
    else:
        with connect(stores.servers, timeout_ms=500) as kv, pytest.raises(Unreachable) as raised:
            kv.get("a")
        assert "connections are open, more than the 0 that the limit of open files allows" in str(
            raised.value
        )


# ---------------------------------------------------------------- an earlier release


def old_greeting() -> bytes:
    (line,) = (line for line in RELEASED.read_text().splitlines() if " StoreHello " in line)
    return bytes.fromhex(line.split()[2])


def raised_by_old_client(answer: bytes) -> tuple[int, int, str]:
    """(number, code, message) as the earlier release reads them: a refusal, which it raises."""
    assert int.from_bytes(answer[:4], "big") == len(answer) - 4
    number, kind, body = msgspec.msgpack.decode(answer[4:], type=tuple[int, int, bytes])
    assert kind == 17, "an answer"
    code, message, _ = msgspec.msgpack.decode(body, type=tuple[int, str, int])
    return number, code, message


def test_a_client_of_an_earlier_release_is_told_to_be_upgraded(stores: Stores) -> None:
    host, _, port = stores.servers.rpartition(":")
    with closing(socket.create_connection((host, int(port)))) as client:
        client.sendall(old_greeting())
        received = b""
        while data := client.recv(1 << 16):
            received += data
    assert raised_by_old_client(received) == (5, KeyValueError.code, UPGRADE)


@pytest.mark.parametrize("cut", [1, 4, 5, -1])
@pytest.mark.parametrize("padding", [0, 100])
def test_an_old_greeting_is_waited_for_until_it_is_whole(cut: int, padding: int) -> None:
    number, kind, body = msgspec.msgpack.decode(old_greeting()[4:])
    said = msgspec.msgpack.encode((number, kind, body + bytes(padding)))
    greeting = len(said).to_bytes(4, "big") + said
    decoder = request_decoder()
    assert decoder.receive_data(greeting[:cut]) == []
    assert decoder.missing_bytes > 0
    with pytest.raises(OtherSoftware) as raised:
        decoder.receive_data(greeting[cut:])
    assert words_to_old_client(raised.value)


@pytest.mark.parametrize("begun", [b"GET ", b"\x16\x03\x01\x02", b"\0\0\0\0", (1025).to_bytes(4, "big")])
def test_who_greets_otherwise_is_known_by_four_bytes(begun: bytes) -> None:
    with pytest.raises(OtherSoftware):
        request_decoder().receive_data(begun)


def test_behind_its_first_frame_nobody_is_waited_for() -> None:
    decoder = request_decoder()
    decoder.receive_data(b"".join(encode_frame("kv", client_hello(STORE))))
    with pytest.raises(OtherSoftware):
        decoder.receive_data(old_greeting()[:4])


def test_what_is_no_old_greeting_gets_no_such_answer() -> None:
    greeting = old_greeting()
    assert answer_to_old_greeting(greeting)
    assert answer_to_old_greeting(greeting + b"more")
    for size in range(len(greeting)):
        assert answer_to_old_greeting(greeting[:size]) is None
    for other in (b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\1\xff", b"\0\0\0\0", bytes(64), b"\xff" * 64):
        assert answer_to_old_greeting(other) is None
    request = msgspec.msgpack.encode((5, 2, b""))
    assert answer_to_old_greeting(len(request).to_bytes(4, "big") + request) is None


@contextmanager
def closes_at_greetings() -> Iterator[str]:
    """As a store of the earlier release does, for which the first four bytes are a length."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with suppress(OSError):
            while True:
                sock, _ = listener.accept()
                with sock:
                    sock.recv(1 << 16)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def test_a_store_of_an_earlier_release_is_named() -> None:
    with (
        closes_at_greetings() as address,
        connect(address, timeout_ms=500) as kv,
        pytest.raises(Unreachable, match=f"{address} .closed .* as by a member of an earlier release"),
    ):
        kv.get("a")


def test_a_store_whose_group_has_not_formed_says_once_what_it_waits_for(tmp_path: Path) -> None:
    ports = free_ports(4)
    members = parse_members(",".join(f"n{each}=127.0.0.1:{ports[each]}" for each in range(3)))
    config = GroupConfig(member_id="n0", members=members, data_dir=str(tmp_path))
    reason = "n0: forming: waits for n1, n2 (not connected)"
    address = f"127.0.0.1:{ports[3]}"
    with KeyValueStore(config, listen=address), connect(address, timeout_ms=500) as kv:
        with pytest.raises(RequestTimeout) as put:
            kv.put("a", "1")
        assert str(put.value).endswith(f"tried: {address} ({reason})")
        with pytest.raises(LeaderNotReady) as stale:
            kv.get("a", stale=True)
        assert str(stale.value).startswith(f"{reason} (gave up after ")
        assert str(stale.value).count(reason) == 1
