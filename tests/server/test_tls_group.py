"""A group whose members speak TLS with one another: who is let in, and how a plain group becomes one."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from quorumlog import LocalCluster, connect
from quorumlog.config import MemberAddress, TlsOptions
from quorumlog.errors import OutcomeUnknown
from quorumlog.net.connection import Connection, LoopTurn
from quorumlog.net.encryption import TlsRefused
from quorumlog.net.frame import FrameDecoder, encode_frame
from quorumlog.net.hello import REFUSED, WELCOME, Hello, HelloResponse
from quorumlog.net.tls import Tls
from quorumlog.server.free_ports import free_ports
from quorumlog.server.peers.dialler import Dialler, NameLookup
from tests.certificates import directory, member, options_of, user
from tests.waiting import eventually

IDS = ("n0", "n1", "n2")
CA = directory() / "ca.crt"


def links_of(cluster: LocalCluster) -> list[Any]:
    """Dialled and up."""
    peers = [peer for each in cluster.running for peer in cluster.server(each).drivers[0].peers.values()]
    return [link for peer in peers for link in (peer.control, peer.data) if link.up is not None]


def encrypted(cluster: LocalCluster) -> int:
    return sum(
        link._connection is not None and link._connection.is_encrypted for link in links_of(cluster)
    )


def problems_of(cluster: LocalCluster, member_id: str) -> list[str]:
    return list(cluster.server(member_id).drivers[0].status.problems())


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(store="memory", tls=lambda member_id: options_of(member(member_id))) as made:
        made.leader()
        yield made


def dial(address: Any, pair: Any, hello: Hello) -> Any:
    """What is answered to a greeting; None: the connection was closed without a word."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(CA)
    if pair is not None:
        context.load_cert_chain(*pair)
    with (
        socket.create_connection((address.host, address.port), 20) as plain,
        context.wrap_socket(plain, server_hostname=address.host) as sock,
    ):
        sock.sendall(b"".join(encode_frame("default", hello)))
        decoder = FrameDecoder()
        while True:
            try:
                data = sock.recv(65536)
            except OSError:
                data = b""
            if not data:
                return None
            for frame in decoder.receive_data(data):
                return frame.message


def test_members_form_a_group_over_tls_alone(cluster: LocalCluster) -> None:
    eventually(lambda: encrypted(cluster) == 12)
    eventually(lambda: not [each for member_id in IDS for each in problems_of(cluster, member_id)])


@pytest.mark.parametrize(
    ("pair", "reason"),
    [
        (lambda: member("n2"), "its certificate is that of quorumlog://orders/member/n2, not of"),
        (lambda: user("n1"), "its certificate is that of quorumlog://orders/user/n1, not of"),
        (lambda: None, "it shows no certificate, and that of quorumlog://orders/member/n1 is required"),
    ],
    ids=["wrong member id", "a client's", "none"],
)
@pytest.mark.parametrize("role", ["control", "data"])
def test_who_is_not_the_member_that_it_says_is_refused_by_one_sentence(
    cluster: LocalCluster, caplog: pytest.LogCaptureFixture, pair: Any, reason: str, role: str
) -> None:
    address = cluster.members[0]
    with caplog.at_level(logging.WARNING):
        answer = dial(address, pair(), Hello(role=role, member_id="n1", to_member_id="n0"))
    assert isinstance(answer, HelloResponse)
    assert answer.code == REFUSED
    assert answer.message.startswith("member n0 of group default refuses n1: ")
    assert reason in answer.message
    assert not answer.members
    eventually(lambda: answer.message in problems_of(cluster, "n0"))


def another_clusters_member_is_refused() -> None:
    """Of a CA that both trust."""
    both = directory() / "both.crt"
    both.write_bytes(CA.read_bytes() + (directory("audit") / "ca.crt").read_bytes())
    options = TlsOptions(*map(str, member("n0")), str(both))
    with LocalCluster(1, store="memory", tls=lambda member_id: options) as cluster:
        hello = Hello(role="control", member_id="n1", to_member_id="n0")
        answer = dial(cluster.members[0], member("n1", "audit"), hello)
        assert answer.code == REFUSED
        assert "its certificate is that of quorumlog://audit/member/n1, not of" in answer.message


def test_another_clusters_member_is_refused() -> None:
    another_clusters_member_is_refused()


def test_who_answers_in_a_member_s_place_hears_nothing() -> None:
    async def scene() -> None:
        said: list[bytes] = []

        class Stranger(asyncio.Protocol):
            def data_received(self, data: bytes) -> None:
                said.append(data)

        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            Stranger, "127.0.0.1", 0, ssl=Tls(options_of(member("n2"))).server
        )
        host, port = server.sockets[0].getsockname()
        dialler = Dialler(LoopTurn(loop), NameLookup(loop), Tls(options_of(member("n0"))))
        with pytest.raises(TlsRefused, match="orders/member/n2, not of quorumlog://orders/member/n1"):
            connection = Connection(dialler.loop_turn, lambda *_: None, lambda *_: None, "n1")
            await dialler.connect(connection, MemberAddress("n1", host, port), host, "default")
        server.close()
        assert not said

    asyncio.run(asyncio.wait_for(scene(), 30))


def test_a_client_needs_no_certificate_unless_it_is_required(cluster: LocalCluster) -> None:
    for pair in (None, user("alice"), member("n1")):
        answer = dial(cluster.members[0], pair, Hello(role="client"))
        assert answer.code == WELCOME
    with LocalCluster(
        1, store="memory", tls=lambda member_id: options_of(member("n0"), client_auth="required")
    ) as strict:
        assert dial(strict.members[0], None, Hello(role="client")) is None
        assert dial(strict.members[0], user("alice"), Hello(role="client")).code == WELCOME


def test_a_plain_member_finds_no_way_in_and_a_tls_one_none_to_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    given: dict[str, TlsOptions] = {each: options_of(member(each)) for each in IDS}
    with caplog.at_level(logging.WARNING), LocalCluster(store="memory", tls=given.get) as cluster:
        del given["n2"]
        cluster.restart("n2")
        eventually(lambda: any("n2 at" in each for each in problems_of(cluster, "n0")))
        (problem,) = [each for each in problems_of(cluster, "n0") if "n2 at" in each]
        assert "\n" not in problem
        eventually(lambda: any("log speaks TLS only" in each for each in caplog.messages))
        assert encrypted(cluster) == len(links_of(cluster)) == 4


class Load:
    """Appends of one client, one after the other, until it is told to end."""

    def __init__(self, servers: str) -> None:
        self.acknowledged: list[bytes] = []
        self._servers = servers
        self._is_ended = False
        self._thread = threading.Thread(target=self._run)
        self.failure: BaseException | None = None

    def _run(self) -> None:
        try:
            with connect(self._servers) as log:
                number = 0
                while not self._is_ended:
                    body = b"%d" % number
                    number += 1
                    try:
                        log.append(body)
                    except OutcomeUnknown:
                        continue
                    self.acknowledged.append(body)
        except BaseException as error:
            self.failure = error

    @contextmanager
    def running(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._is_ended = True
            self._thread.join()

    def goes_on(self) -> None:
        before = len(self.acknowledged)
        eventually(lambda: self.failure is not None or len(self.acknowledged) > before + 20)
        assert self.failure is None, self.failure


def goes_over(cluster: LocalCluster, encrypted_links: int) -> None:
    eventually(lambda: len(links_of(cluster)) == 12 and encrypted(cluster) == encrypted_links)


def test_a_plain_group_under_load_becomes_tls_member_by_member_and_loses_nothing(tmp_path: Path) -> None:
    listen = dict(zip(IDS, free_ports(3), strict=True))
    given: dict[str, TlsOptions] = {}
    with LocalCluster(directory=tmp_path, tls=given.get) as cluster:
        cluster.leader()
        load = Load(cluster.servers)
        with load.running():
            load.goes_on()
            for peers, encrypted_after in (("prefer", (0, 4, 12)), ("required", (12, 12, 12))):
                for number, member_id in enumerate(IDS):
                    place = f"127.0.0.1:{listen[member_id]}"
                    given[member_id] = options_of(member(member_id), listen=place, peers=peers)
                    cluster.restart(member_id)
                    goes_over(cluster, encrypted_after[number])
                    load.goes_on()
            eventually(lambda: not any(problems_of(cluster, each) for each in IDS))
        with connect(cluster.servers) as log:
            bodies = {entry.body for entry in log.read(0)}
        assert set(load.acknowledged) <= bodies
        assert len(load.acknowledged) > 100
