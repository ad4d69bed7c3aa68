"""Users of the gateway: who logs in as with etcd, and whom it asks as for the others."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
from base64 import b64encode
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from quorumlog.client import connect as log_of
from quorumlog.kv.endpoint import KeyValueEndpoint
from quorumlog.kv.etcd import port
from quorumlog.kv.etcd.gateway import EtcdGateway
from quorumlog.kv.service import StoreOptions
from quorumlog.kv.testing import LocalStores
from quorumlog.log_state.users import Kind, Right, RoleGrant, UserOperation, UserOrder
from quorumlog.net import logins
from quorumlog.net.access import WRONG_PAUSE_S
from quorumlog.net.credentials import ClientUser, verifier_for
from quorumlog.server.free_ports import free_ports
from tests.kv.etcd import Etcd, running_etcd
from tests.waiting import eventually

pytestmark = pytest.mark.processes

MINE = tuple(RoleGrant(right, Kind.KEY, b"mine/") for right in (Right.READ, Right.WRITE))
WORDS = ("code", "error", "message")


class Gateways(LocalStores):
    """That of n1 asks as bob for who has not logged in."""

    def __init__(self) -> None:
        super().__init__()
        self.ports = {f"n{number}": port for number, port in enumerate(free_ports(3))}
        self.gateways: dict[str, EtcdGateway] = {}

    def _endpoints(self, member_id: str) -> list[Any]:
        address = f"127.0.0.1:{self.ports[member_id]}"
        (endpoint,) = super()._endpoints(member_id)
        assert isinstance(endpoint, KeyValueEndpoint)
        endpoint._options = replace(StoreOptions(), etcd_gateway=f"http://{address}")
        user = ClientUser("bob", "tahini") if member_id == "n1" else None
        self.gateways[member_id] = EtcdGateway(endpoint, address, self.servers, member_id, user=user)
        return [self.gateways[member_id], endpoint]


@pytest.fixture(scope="module")
def gateways() -> Iterator[Gateways]:
    with Gateways() as made:
        yield made


@pytest.fixture(scope="module")
def etcd() -> Iterator[Etcd]:
    with running_etcd() as running:
        yield running


def asked(port: int, path: str, body: Any, token: str = "") -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        headers = {"authorization": token} if token else {}
        connection.request("POST", path, json.dumps(body), headers)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def put(port: int, key: str, token: str = "") -> tuple[int, Any]:
    words = {name: b64encode(text.encode()).decode() for name, text in (("key", key), ("value", "v"))}
    status, told = asked(port, "/v3/kv/put", words, token)
    return status, {name: told[name] for name in WORDS if name in told}


def log_in(port: int, name: str, password: str) -> tuple[int, Any]:
    status, told = asked(port, "/v3/auth/authenticate", {"name": name, "password": password})
    return status, {name: told[name] for name in (*WORDS, "token") if name in told}


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Those before it is said that a password is wrong; they take no time."""
    asked: list[float] = []

    class Asyncio:
        async def sleep(self, seconds: float) -> None:
            asked.append(seconds)
            await asyncio.sleep(0)

        def __getattr__(self, name: str) -> Any:
            return getattr(asyncio, name)

    monkeypatch.setattr(port, "asyncio", Asyncio())
    return asked


@pytest.mark.usefixtures("users")
def test_a_port_is_healthy_though_its_own_user_may_change_nothing(gateways: Gateways) -> None:
    """A balancer that asks has no user, and would take every member out."""
    for number in gateways.ports.values():
        connection = http.client.HTTPConnection("127.0.0.1", number, timeout=30)
        connection.request("GET", "/health")
        response = connection.getresponse()
        assert (response.status, json.loads(response.read())["health"]) == (200, "true")
        connection.close()


@pytest.mark.usefixtures("users")
def test_a_wrong_password_waits_for_its_answer(gateways: Gateways, pauses: list[float]) -> None:
    port = gateways.ports["n0"]
    assert log_in(port, "bob", "tahini")[0] == 200 and not pauses
    assert log_in(port, "bob", "wrong")[0] == 400 and pauses == [WRONG_PAUSE_S]


@pytest.mark.usefixtures("users")
def test_a_wrong_token_is_refused_before_the_request_is_parsed(gateways: Gateways) -> None:
    assert asked(gateways.ports["n0"], "/v3/kv/put", {"no": "field"}, "wrong")[0] == 401


@pytest.mark.usefixtures("users")
def test_wrong_passwords_that_wait_for_their_answer_count_for_their_address(
    gateways: Gateways, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(port, "WRONG_PAUSE_S", 3_600.0)  # `pauses`: the answers come at once
    try:
        told = [log_in(gateways.ports["n2"], "bob", "wrong")[0] for _ in range(9)]
        assert told == [400] * 8 + [429]
        assert log_in(gateways.ports["n2"], "bob", "tahini")[0] == 429
    finally:
        gateways.gateways["n2"].logins._wrong.clear()


@pytest.fixture(scope="module")
def users(gateways: Gateways, etcd: Etcd) -> None:
    port = gateways.ports["n0"]
    assert log_in(port, "bob", "tahini") == log_in(etcd._port, "bob", "tahini")  # there are no users yet
    for path, body in (
        ("user/add", {"name": "root", "password": "sesame"}),
        ("user/grant", {"user": "root", "role": "root"}),
        ("user/add", {"name": "bob", "password": "tahini"}),
        ("role/add", {"name": "mine"}),
        ("user/grant", {"user": "bob", "role": "mine"}),
        (
            "role/grant",
            {
                "name": "mine",
                "perm": {"permType": "READWRITE", "key": "bWluZS8=", "range_end": "bWluZTA="},
            },
        ),
        ("enable", {}),
    ):
        asked(etcd._port, f"/v3/auth/{path}", body)
    with log_of(gateways.cluster.servers) as log:
        log.change_users(
            UserOrder(UserOperation.ADD_USER, "root", ("admin",), (), verifier_for("sesame"))
        )
    with log_of(gateways.cluster.servers, user=ClientUser("root", "sesame")) as log:
        log.change_users(UserOrder(UserOperation.ADD_ROLE, "mine", (), MINE))
        log.change_users(UserOrder(UserOperation.ADD_USER, "bob", ("mine",), (), verifier_for("tahini")))
    for each in gateways.ports.values():
        eventually(lambda port=each: log_in(port, "bob", "tahini")[0] == 200)  # type: ignore[misc]


@pytest.mark.usefixtures("users")
def test_who_logs_in_is_that_user_in_the_words_of_etcd(gateways: Gateways, etcd: Etcd) -> None:
    port = gateways.ports["n0"]
    ours, theirs = (log_in(each, "bob", "tahini")[1]["token"] for each in (port, etcd._port))
    eventually(lambda: put(port, "mine/a", ours)[0] == 200)
    everywhere = [(each, ours) for each in gateways.ports.values()]
    for each, token in (*everywhere, (etcd._port, theirs)):
        assert put(each, "mine/a", token) == (200, {})
    for key, mine, other in (("other", ours, theirs), ("mine/a", "wrong", "wrong"), ("mine/a", "", "")):
        assert put(port, key, mine) == put(etcd._port, key, other)
    for name, password in (("bob", "wrong"), ("mallory", "tahini")):
        assert log_in(port, name, password) == log_in(etcd._port, name, password)
    assert put(gateways.ports["n1"], "mine/b") == (200, {})
    assert put(gateways.ports["n1"], "other")[0] == 403
    assert "tahini" not in repr(gateways.gateways["n1"].__dict__)


@pytest.mark.usefixtures("users")
def test_what_is_told_of_a_login_has_no_password(
    gateways: Gateways, caplog: pytest.LogCaptureFixture
) -> None:
    port = gateways.ports["n2"]
    gateways.gateways["n2"].access._wrong.clear()  # it has told of another one a moment ago
    assert log_in(port, "mallory", "wrong-4712")[0] == 400
    body = json.dumps({"name": "bob", "password": "tahini-4711"})
    request = (
        f"POST /v3/auth/authenticate HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n  {body}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(request.encode())
        connection.shutdown(socket.SHUT_WR)
        with suppress(ConnectionResetError):  # it has not read all
            while connection.recv(4096):
                pass
    eventually(lambda: "not an HTTP request" in caplog.text)
    assert "'mallory' at 127.0.0.1" in caplog.text
    assert "4711" not in caplog.text and "4712" not in caplog.text


@pytest.mark.usefixtures("users")
@pytest.mark.parametrize(
    ("name", "password"),
    [("bob", "é" * 1_000_000), ("bob", "\ud800"), ("\ud800", "tahini"), ("n" * 20_000, "tahini")],
    ids=["long password", "password of a surrogate", "name of a surrogate", "long name"],
)
def test_a_login_that_can_be_of_no_user_is_refused_before_anything_is_made_of_it(
    gateways: Gateways, monkeypatch: pytest.MonkeyPatch, name: str, password: str
) -> None:
    """What SCRAM makes of a password would hold the member's loop."""
    monkeypatch.setattr(gateways.gateways["n0"].logins, "_connect_as", None)
    assert log_in(gateways.ports["n0"], name, password)[0] == 400


@pytest.mark.usefixtures("users")
def test_a_token_ends_when_it_is_not_used_and_when_there_are_too_many(
    gateways: Gateways, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = gateways.ports["n0"]
    with monkeypatch.context() as patched:
        patched.setattr(logins, "KEPT_S", 0.0)
        assert put(port, "mine/a", "forgets those of before")[0] == 401
    monkeypatch.setattr(logins, "MOST_OF_USER", 1)
    first, second = (log_in(port, "bob", "tahini")[1]["token"] for _ in range(2))
    assert (put(port, "mine/a", first)[0], put(port, "mine/a", second)[0]) == (401, 200)
    monkeypatch.setattr(logins, "KEPT_S", 0.0)
    assert put(port, "mine/a", second)[0] == 401
