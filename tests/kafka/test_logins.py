"""Passwords of clients of Kafka, which are looked at one after the other."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from harness.kafka.wire import KafkaWire
from quorumlog import LocalCluster, connect
from quorumlog.config import KafkaOptions, LimitOptions, TlsOptions
from quorumlog.kafka import login
from quorumlog.kafka.endpoint import KafkaEndpoint
from quorumlog.kafka.login import MOST_PROOFS, MOST_PROOFS_OF_ADDRESS, Proofs
from quorumlog.log_state.users import UserOperation, UserOrder
from quorumlog.net.credentials import ClientUser, Proof, verifier_for
from quorumlog.net.limits import process_limits
from quorumlog.net.tls import ClientTls, Tls
from quorumlog.server.free_ports import free_ports
from tests import certificates
from tests.kafka.batches import made_batch
from tests.kafka.cluster import KafkaCluster, log_in
from tests.kafka.test_served import create, fetch_values, produced
from tests.waiting import eventually

CA = certificates.directory() / "ca.crt"


def options_of(member_id: str) -> TlsOptions:
    return certificates.options_of(certificates.member(member_id))


class TlsWire(KafkaWire):
    def __init__(self, address: str, ca: Path) -> None:
        super().__init__(address)
        context = ssl.create_default_context(cafile=str(ca))
        self._received.close()
        self._socket = context.wrap_socket(self._socket, server_hostname="127.0.0.1")
        self._received = self._socket.makefile("rb")


def test_a_connection_has_one_password_looked_at_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []

    class Counted(Proof):
        def __init__(self, user: Any) -> None:
            super().__init__(user)
            looked.append(user.password())

    monkeypatch.setattr(login, "Proof", Counted)
    at = f"127.0.0.1:{free_ports(1)[0]}"

    def endpoints(member_id: str) -> list[Any]:
        tls = Tls(options_of(member_id))
        return [KafkaEndpoint(KafkaOptions(at), member_id, {member_id: at}, tls=tls)]

    with LocalCluster(members=1, endpoints=endpoints, tls=options_of) as cluster:
        with connect(cluster.servers, tls=ClientTls(str(CA))) as log:
            order = UserOrder(UserOperation.ADD_USER, "root", ("admin",), (), verifier_for("sesame"))
            log.change_users(order)

        def is_let_in() -> bool:
            with TlsWire(at, CA) as wire:
                wire.ask("sasl_handshake", 1, mechanism="PLAIN")
                asked = wire.ask("sasl_authenticate", 0, auth_bytes=b"\0root\0sesame")
                return not asked.error_code

        eventually(is_let_in, what="a login")
        looked.clear()
        with TlsWire(at, CA) as wire:
            wire.ask("sasl_handshake", 1, mechanism="PLAIN")
            for number in range(20):
                wire.send("sasl_authenticate", 0, auth_bytes=f"\0root\0guess{number}".encode())
            with pytest.raises((EOFError, ConnectionError)):
                for _ in range(3):
                    wire.receive_bytes()  # the answer to the first one at most
        assert looked == ["guess0"]


@pytest.fixture(scope="module")
def encrypted() -> Iterator[KafkaCluster]:
    with KafkaCluster(tls=options_of) as cluster:
        with connect(cluster.cluster.servers, tls=ClientTls(str(CA))) as log:
            order = UserOrder(UserOperation.ADD_USER, "root", ("admin",), (), verifier_for("sesame"))
            log.change_users(order)

        def knows_root() -> bool:
            users = cluster.endpoints["n0"].access.users
            return users is not None and users.user("root") is not None

        eventually(knows_root, what="a user")
        yield cluster


def tls_wire(kafka: KafkaCluster) -> TlsWire:
    return TlsWire(kafka.addresses["n0"], CA)


def lose_while_proving(kafka: KafkaCluster, password: str) -> None:
    """A connection that is lost while this password of root is checked."""
    may_go_on = Event()
    endpoint = kafka.endpoints["n0"]
    endpoint.proofs.thread.submit(may_go_on.wait)
    try:
        with tls_wire(kafka) as wire:
            wire.ask("sasl_handshake", 1, mechanism="PLAIN")
            before = process_limits().open_connections
            wire.send("sasl_authenticate", 0, auth_bytes=f"\0root\0{password}".encode())
            eventually(lambda: endpoint.proofs.under_way == 1, what="a check")
            wire.shut_down()
        eventually(lambda: process_limits().open_connections < before, what="a lost connection")
    finally:
        may_go_on.set()
    eventually(lambda: not endpoint.proofs.under_way, what="the end of the check")


def test_a_connection_lost_while_its_password_is_checked_is_not_counted(
    encrypted: KafkaCluster,
) -> None:
    server = encrypted.cluster.server("n0")
    assert server.loop is not None
    server.loop.call_soon_threadsafe(server.set_limits, LimitOptions(user_connections=1))
    try:
        lose_while_proving(encrypted, "sesame")
        with tls_wire(encrypted) as wire:
            wire.ask("sasl_handshake", 1, mechanism="PLAIN")
            told = wire.ask("sasl_authenticate", 0, auth_bytes=b"\0root\0sesame")
            assert told.error_code == ErrorCode.none, told.error_message
    finally:
        server.loop.call_soon_threadsafe(server.set_limits, LimitOptions())


def test_a_wrong_password_counts_for_its_address_though_its_connection_is_lost(
    encrypted: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts: list[str] = []
    wrong = Proofs.wrong

    def noted(proofs: Proofs, host: str, answer: Callable[[], None]) -> bool:
        hosts.append(host)
        return wrong(proofs, host, answer)

    monkeypatch.setattr(Proofs, "wrong", noted)
    lose_while_proving(encrypted, "guess")
    eventually(lambda: hosts, what="a wrong password")
    assert hosts == ["127.0.0.1"]


def test_one_address_does_not_have_all_the_places() -> None:
    proofs = Proofs()
    assert [proofs.begin("a") for _ in range(MOST_PROOFS)].count(True) == MOST_PROOFS_OF_ADDRESS
    more = [proofs.begin("b") for _ in range(MOST_PROOFS)].count(True)
    assert more == MOST_PROOFS - MOST_PROOFS_OF_ADDRESS
    proofs.end("a")
    assert proofs.begin("b") is False and proofs.begin("a")
    proofs.thread.shutdown()


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaCluster]:
    with KafkaCluster() as cluster:
        with connect(cluster.cluster.servers) as log:
            order = UserOrder(UserOperation.ADD_USER, "root", ("admin",), (), verifier_for("sesame"))
            log.change_users(order)
        with connect(cluster.cluster.servers, user=ClientUser("root", "sesame")) as log:
            log.change_users(UserOrder(UserOperation.ADD_USER, "eve", (), (), verifier_for("tahini")))
        eventually(lambda: knows_eve(cluster))
        yield cluster


def knows_eve(kafka: KafkaCluster) -> bool:
    users = kafka.endpoints["n0"].access.users
    return users is not None and users.user("eve") is not None


def test_a_wrong_proof_is_told_so_and_ends_the_connection(kafka: KafkaCluster) -> None:
    with kafka.wire() as wire:
        told = log_in(wire, "root", "guess")
        assert told.error_code == ErrorCode.sasl_authentication_failed
        with pytest.raises(EOFError):
            wire.receive_bytes()
    with kafka.wire() as wire:
        assert not log_in(wire, "root", "sesame").error_code


def test_a_client_that_has_not_logged_in_has_few_requests_under_way(
    kafka: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Proofs, "wrong", lambda proofs, host, answer: True)  # it is never answered
    ahead = kafka.endpoints["n0"].ahead
    with kafka.wire() as wire, kafka.wire() as other:
        wire.ask("sasl_handshake", 1, mechanism="SCRAM-SHA-256")
        wire.send("sasl_authenticate", 0, auth_bytes=b"garbage")
        for _ in range(100):
            wire.send("fetch", 11, **fetch_values("t", 0))
        assert not log_in(other, "root", "sesame").error_code
        assert ahead.requests == 1, "the wrong password alone"


def test_malformed_attempts_count_for_their_address(
    encrypted: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encrypted.endpoints["n0"], "proofs", Proofs())
    monkeypatch.setattr(login, "WRONG_PAUSE_S", 3_600.0)

    def attempt(wire: KafkaWire, number: int) -> None:
        mechanism = ("SCRAM-SHA-256", "PLAIN")[number % 2]
        wire.ask("sasl_handshake", 1, mechanism=mechanism)
        wire.send("sasl_authenticate", 0, auth_bytes=b"garbage")

    with ExitStack() as stack:
        # Eight wait for their answers; the connections of the others end.
        wires = [stack.enter_context(tls_wire(encrypted)) for _ in range(MOST_PROOFS_OF_ADDRESS + 4)]
        for number, wire in enumerate(wires):
            attempt(wire, number)
        for wire in wires[MOST_PROOFS_OF_ADDRESS:]:
            with pytest.raises((EOFError, ConnectionError)):
                wire.receive_bytes()


def test_the_first_request_after_a_login_may_be_large(kafka: KafkaCluster) -> None:
    with kafka.wire() as wire:
        assert not log_in(wire, "root", "sesame").error_code
        create(wire, "large")
    with kafka.wire() as wire:
        assert not log_in(wire, "root", "sesame").error_code
        told = produced(wire, "large", made_batch([bytes(100_000)]))
        assert told.error_code == ErrorCode.none


def test_attempts_that_were_wrong_count_for_their_address_until_they_are_answered(
    kafka: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(login, "WRONG_PAUSE_S", 3_600.0)
    wires = [kafka.wire() for _ in range(MOST_PROOFS_OF_ADDRESS)]
    with ThreadPoolExecutor(len(wires)) as pool:
        try:
            guesses = [pool.submit(log_in, wire, "root", "guess") for wire in wires]

            def is_refused() -> bool:
                with kafka.wire() as wire:
                    try:
                        assert not log_in(wire, "eve", "tahini").error_code
                    except EOFError:
                        return True
                return False

            eventually(is_refused, what="the end of a connection whose address guesses too much")
            assert not any(each.done() for each in guesses)
        finally:
            for wire in wires:
                wire.shut_down()
