"""Passwords of clients of Kafka, which are looked at one after the other."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import pytest

from harness.kafka.wire import KafkaWire
from quorumlog import LocalCluster, connect
from quorumlog.config import KafkaOptions, TlsOptions
from quorumlog.kafka import login
from quorumlog.kafka.endpoint import KafkaEndpoint
from quorumlog.kafka.login import MOST_PROOFS, MOST_PROOFS_OF_ADDRESS, Proofs
from quorumlog.log_state.users import UserOperation, UserOrder
from quorumlog.net.credentials import Proof, verifier_for
from quorumlog.net.tls import ClientTls, Tls
from quorumlog.server.free_ports import free_ports
from tests import certificates
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
            with pytest.raises(EOFError):
                wire.receive_bytes()
        assert looked == ["guess0"]


def test_one_address_does_not_have_all_the_places() -> None:
    proofs = Proofs()
    assert [proofs.begin("a") for _ in range(MOST_PROOFS)].count(True) == MOST_PROOFS_OF_ADDRESS
    more = [proofs.begin("b") for _ in range(MOST_PROOFS)].count(True)
    assert more == MOST_PROOFS - MOST_PROOFS_OF_ADDRESS
    proofs.end("a")
    assert proofs.begin("b") is False and proofs.begin("a")
    proofs.thread.shutdown()
