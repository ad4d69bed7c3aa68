"""Two processes with one member id: one of them is let in and stays, the other is told and leaves."""

from __future__ import annotations

import select
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from quorumlog import GroupConfig, LedgerClient, LedgerServer, LocalCluster, MemberAddress, StoreConfig
from quorumlog import connect as connect_client
from quorumlog.errors import ConfigError
from quorumlog.net.frame import FrameDecoder, encode_frame
from quorumlog.net.hello import DUPLICATE, UNSETTLED, WELCOME, Hello, HelloResponse
from quorumlog.server.free_ports import free_ports
from quorumlog.server.local_cluster import _MemberThread
from tests.waiting import eventually, row_of, wait_until_identical

SMALL = StoreConfig(
    segment_bytes=256 * 1024, index_segment_bytes=32 * 1024, reserve_step_bytes=64 * 1024
)


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(3, storage=SMALL) as cluster:
        yield cluster


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[LedgerClient]:
    with connect_client(cluster.servers) as client:
        client.append(b"before")
        wait_until_identical(client)
        yield client


def a_follower(cluster: LocalCluster) -> str:
    return next(m for m in cluster.running if m != cluster.leader())


def directory_of(client: LedgerClient, member_id: str) -> str:
    return row_of(client, member_id).directory_id


def problems_of(client: LedgerClient, member_id: str) -> str:
    return " ".join(row_of(client, member_id).problems)


class Ghost:
    """A connection that speaks as a member, and behind which nothing else works."""

    def __init__(self, cluster: LocalCluster, member_id: str, to: str, directory_id: str) -> None:
        address = next(m for m in cluster.members if m.member_id == to)
        self._socket = socket.create_connection((address.host, address.port))
        self._socket.settimeout(60)
        hello = Hello(
            role="control",
            member_id=member_id,
            directory_id=directory_id,
            to_member_id=to,
            members=",".join(f"{m.member_id}={m}" for m in cluster.members),
            segment_bytes=SMALL.segment_bytes,
            durability="sync",
            run_id="ghost",
            listens_on="127.0.0.1:9999",
        )
        self._socket.sendall(b"".join(encode_frame("default", hello)))
        decoder = FrameDecoder()
        frames = []
        while not frames:
            frames = decoder.receive_data(self._socket.recv(65536))
        message = frames[0].message
        assert isinstance(message, HelloResponse)
        self.answer = message

    def wait_until_closed(self) -> None:
        """What may still come is the group's talk."""
        try:
            while self._socket.recv(65536):
                pass
        except ConnectionResetError:
            pass

    @property
    def is_closed(self) -> bool:
        poll = select.poll()  # select() takes no descriptor above 1023
        poll.register(self._socket, select.POLLIN)
        if not poll.poll(0):
            return False
        try:
            return self._socket.recv(65536, socket.MSG_PEEK) == b""
        except ConnectionResetError:
            return True

    def close(self) -> None:
        self._socket.close()


@contextmanager
def ghost(*arguments: Any) -> Iterator[Ghost]:
    one = Ghost(*arguments)
    try:
        yield one
    finally:
        one.close()


def started_beside(cluster: LocalCluster, member_id: str, directory: Path) -> _MemberThread:
    """The configuration of a member, copied, with another `--bind` and another directory."""
    config = GroupConfig(member_id, cluster.members, str(directory), storage=SMALL)
    server = LedgerServer([config], bind=f"127.0.0.1:{free_ports(1)[0]}")
    member = _MemberThread(server, f"second-{member_id}")
    member.wait_started()
    return member


@pytest.mark.parametrize(
    "kind", ["a copy of the directory", pytest.param("a new directory", marks=pytest.mark.long)]
)
def test_the_second_process_of_a_member_leaves_and_the_group_does_not_notice(
    cluster: LocalCluster, client: LedgerClient, tmp_path: Path, kind: str
) -> None:
    first = a_follower(cluster)
    before = {row.id: (row.term, row.leader_id) for row in client.status()}
    own_directory = directory_of(client, first)
    if kind == "a copy of the directory":
        shutil.copytree(cluster.data_dir(first), tmp_path / "second")
    second = started_beside(cluster, first, tmp_path / "second")
    try:
        listens_on = second.server._bind
        failure = eventually(lambda: second.server.failure, what="the second process ends")
        assert isinstance(failure, ConfigError)
        at = next(str(m) for m in cluster.members if m.member_id == first)
        for named in (f"two processes are {first}", at, own_directory, "{}:{}".format(*listens_on)):
            assert named in str(failure)
        copied = "the same directory or a copy of it" in str(failure)
        assert copied == (kind == "a copy of the directory")
        for member in [each for each in cluster.running if each != first]:
            eventually(
                lambda member=member: f"two processes are {first}" in problems_of(client, member),
                what=f"the problem in the status of {member}",
            )
        client.append(b"after")
        wait_until_identical(client)
        assert {row.id: (row.term, row.leader_id) for row in client.status()} == before
    finally:
        second.stop()
    eventually(lambda: not any(problems_of(client, m) for m in cluster.running), what="it is forgotten")


def test_a_directory_of_the_group_takes_the_place_of_one_that_is_not(
    cluster: LocalCluster, client: LedgerClient
) -> None:
    """The other one was connected first, and its connection stands."""
    member, asked = a_follower(cluster), cluster.leader()
    cluster.kill(member)
    with ghost(cluster, member, asked, "d" * 32) as stranger:
        assert stranger.answer.code == WELCOME
        cluster.restart(member)
        stranger.wait_until_closed()
        client.append(b"back")
        wait_until_identical(client)
    with ghost(cluster, member, asked, "d" * 32) as stranger:
        assert stranger.answer.code == DUPLICATE
        assert "127.0.0.1:9999" in stranger.answer.message


def test_a_directory_of_the_group_is_let_in_beside_a_new_one_at_its_address(
    cluster: LocalCluster, client: LedgerClient
) -> None:
    """Its process is somewhere else: it is parted from, and comes again."""
    member, asked = a_follower(cluster), cluster.leader()
    directory_id = directory_of(client, member)
    cluster.kill(member)
    with ghost(cluster, member, asked, directory_id) as founding:
        assert founding.answer.code == WELCOME
        shutil.rmtree(cluster.data_dir(member))
        cluster.restart(member)
        founding.wait_until_closed()
    with ghost(cluster, member, asked, directory_id) as founding:
        assert founding.answer.code == WELCOME
        client.append(b"with both")
        assert not founding.is_closed


def test_a_restart_is_let_in_although_the_connection_of_the_process_before_still_stands(
    cluster: LocalCluster, client: LedgerClient
) -> None:
    """As when a machine goes down without a word: its peers do not know it yet."""
    member, asked = a_follower(cluster), cluster.leader()
    directory_id = directory_of(client, member)
    cluster.kill(member)
    with ghost(cluster, member, asked, directory_id) as half_open:
        assert half_open.answer.code == WELCOME
        cluster.restart(member)
        half_open.wait_until_closed()
        client.append(b"back")
        wait_until_identical(client)
        eventually(lambda: not any(problems_of(client, m) for m in cluster.running))


def test_who_is_refused_for_a_process_that_does_not_answer_is_not_told_to_leave(
    cluster: LocalCluster, client: LedgerClient
) -> None:
    member, asked = a_follower(cluster), cluster.leader()
    directory_id = directory_of(client, member)
    cluster.kill(member)
    with ghost(cluster, member, asked, directory_id), ghost(cluster, member, asked, "d" * 32) as second:
        assert second.answer.code == UNSETTLED


def test_members_whose_addresses_for_one_another_differ_say_so_as_long_as_they_do(
    tmp_path: Path,
) -> None:
    """Also while a second process with a third list comes and goes."""
    with LocalCluster(3, storage=SMALL) as ports:  # three addresses that are free again
        members = ports.members
    elsewhere = MemberAddress("n2", "localhost", members[2].port)
    lists = {"n0": members, "n1": members, "n2": (*members[:2], elsewhere)}
    running = {
        member_id: _MemberThread(
            LedgerServer([GroupConfig(member_id, known, str(tmp_path / member_id), storage=SMALL)]),
            member_id,
        )
        for member_id, known in lists.items()
    }
    try:
        for member in running.values():
            member.wait_started()
        with connect_client(",".join(map(str, members))) as client:
            client.append(b"formed")
            sentence = "n2 has other addresses: "
            eventually(lambda: sentence in problems_of(client, "n0"))
            config = GroupConfig("n2", members, str(tmp_path / "second"), storage=SMALL)
            server = LedgerServer([config], bind=f"127.0.0.1:{free_ports(1)[0]}")
            running["second"] = _MemberThread(server, "second")
            running["second"].wait_started()

            def seen_until_it_has_left() -> bool:
                assert sentence in problems_of(client, "n0")
                return server.failure is not None

            eventually(seen_until_it_has_left)
            running.pop("n2").stop()
            eventually(lambda: sentence not in problems_of(client, "n0"), what="the end of it")
    finally:
        for member in running.values():
            member.stop()


def test_where_a_name_leads_elsewhere_by_now_the_process_there_is_the_member(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its machine hangs, and another one has got its disk and its name: the connections of the process
    before stand as long as their kernel lives."""
    places = {"n2.example": "127.0.0.1"}
    look_up = socket.getaddrinfo

    def named(host: str, *arguments: Any, **options: Any) -> Any:
        return look_up(places.get(host, host), *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", named)
    one, two, three = free_ports(3)
    members = (
        MemberAddress("n0", "127.0.0.1", one),
        MemberAddress("n1", "127.0.0.1", two),
        MemberAddress("n2", "n2.example", three),
    )

    def started(member_id: str, directory: Path, bind: str | None = None) -> _MemberThread:
        config = GroupConfig(member_id, members, str(directory), storage=SMALL)
        member = _MemberThread(LedgerServer([config], bind=bind), directory.name)
        member.wait_started()
        return member

    running = {each: started(each, tmp_path / each) for each in ("n0", "n1")}
    running["n2"] = started("n2", tmp_path / "n2", f"127.0.0.1:{three}")
    try:
        with connect_client(f"127.0.0.1:{one},127.0.0.1:{two}") as client:
            client.append(b"before")
            wait_until_identical(client)
            shutil.copytree(tmp_path / "n2", tmp_path / "moved")
            places["n2.example"] = "127.0.0.2"
            running["moved"] = started("n2", tmp_path / "moved", f"127.0.0.2:{three}")
            left = running["n2"].server
            failure = eventually(lambda: left.failure, what="the process before is refused, and ends")
            assert f"the one at 127.0.0.2:{three} with" in str(failure)
            client.append(b"after")
            wait_until_identical(client)
            assert running["moved"].server.failure is None
    finally:
        for member in running.values():
            member.stop()
