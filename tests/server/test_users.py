"""Users of a group: who is let in, who may do what, and what comes of it when that changes."""

from __future__ import annotations

import asyncio
import logging
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest

from quorumlog.batch import EntryBatch
from quorumlog.client import LedgerClient, connect
from quorumlog.config import ConsensusConfig, GroupConfig, UsersOptions, parse_address, parse_members
from quorumlog.consensus.ready import Role, RoleChange
from quorumlog.errors import BadRequest, Forbidden, LeaderNotReady, LedgerError, NotAuthenticated
from quorumlog.log_state.users import (
    Kind,
    Right,
    RoleGrant,
    User,
    UserOperation,
    UserOrder,
    UserRole,
    Users,
)
from quorumlog.net.access import Access, Caller
from quorumlog.net.credentials import ClientUser, Proof, verifier_for
from quorumlog.net.errors import ErrorResponse
from quorumlog.net.frame import FrameDecoder, encode_frame
from quorumlog.net.hello import ChallengeResponse, Hello, HelloResponse
from quorumlog.server.clients.client_reads import ClientReads
from quorumlog.server.clients.needs import NEEDS, key_of, needs_of
from quorumlog.server.free_ports import free_ports
from quorumlog.server.ledger_server import LedgerServer
from quorumlog.server.local_cluster import LocalCluster
from quorumlog.server.users_of_server import UsersOfServer
from quorumlog.staging import (
    Batch,
    BatchRules,
    RowDigest,
    SinkCommits,
    client_logs,
    open_sink_logs,
    stage,
)
from quorumlog.version import IS_COMPILED
from quorumlog.wire.client_messages import RESPONSE_OF, AppendRequest, ReadRequest, TransferRequest
from tests.server.test_members import change
from tests.waiting import eventually

ALICE, BOB = ClientUser("alice", "sesame"), ClientUser("bob", "tahini")
PASSWORDS = {"alice": verifier_for("sesame"), "bob": verifier_for("tahini")}
READS = RoleGrant(Right.READ, Kind.LOG, b"default", is_exact=True)
WRITES = RoleGrant(Right.WRITE, Kind.LOG, b"def")


def order(verb: UserOperation, name: str, *roles: str, grants: tuple[RoleGrant, ...] = ()) -> UserOrder:
    has_password = verb in (UserOperation.ADD_USER, UserOperation.SET_PASSWORD)
    return UserOrder(verb, name, roles, grants, PASSWORDS.get(name) if has_password else None)


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(3) as found:
        yield found


@pytest.fixture
def admin(cluster: LocalCluster) -> Iterator[LedgerClient]:
    with connect(cluster.servers) as log:
        log.change_users(order(UserOperation.ADD_USER, "alice", "admin"))
    with connect(cluster.servers, user=ALICE) as log:
        log.change_users(order(UserOperation.ADD_ROLE, "r", grants=(READS,)))
        log.change_users(order(UserOperation.ADD_USER, "bob", "r"))
        yield log


def refusal_of(act: Callable[[], Any]) -> LedgerError | None:
    try:
        act()
    except LedgerError as refusal:
        return refusal
    return None


def test_every_request_has_its_needs() -> None:
    assert set(NEEDS) == set(RESPONSE_OF)


def test_without_users_everybody_may_do_everything_and_status_says_so(cluster: LocalCluster) -> None:
    with connect(cluster.servers, user=BOB) as log:
        log.append(b"x")
        eventually(lambda: {row.users for row in log.status()} == {"off"})
        assert not log.users().is_on
        with pytest.raises(BadRequest, match="there would be no administrator"):
            log.change_users(order(UserOperation.ADD_USER, "bob"))


def test_a_request_that_waited_for_its_client_to_read_is_judged_by_the_rights_of_then() -> None:
    """Everybody might do everything when it came."""
    asked = 40
    with LocalCluster(1, store="memory") as cluster, connect(cluster.servers) as nobody:
        nobody.append_batch([bytes(1 << 20), b"end"])
        with socket.socket() as greedy:
            greedy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
            greedy.connect(parse_address(cluster.servers))
            greedy.sendall(b"".join(encode_frame("default", Hello(role="client"))))
            for number in range(asked):
                read = ReadRequest(request_id=number, first_index=1, stop_index=3, limit_bytes=8 << 20)
                greedy.sendall(b"".join(encode_frame("default", read)))
            append, entries = AppendRequest(request_id=asked), EntryBatch.from_bodies([b"nobody's"])
            greedy.sendall(b"".join(encode_frame("default", append, entries)))
            decoder = FrameDecoder()
            frames = decoder.receive_data(greedy.recv(4096))
            for _ in range(3):
                nobody.append(b"whoever asks later is answered")
            nobody.change_users(order(UserOperation.ADD_USER, "alice", "admin"))
            with connect(cluster.servers, user=ALICE) as admin:
                eventually(lambda: {row.users for row in admin.status()} == {"on"})
                while len(frames) < 2 + asked:
                    frames += decoder.receive_data(greedy.recv(1 << 20))
                answers = {frame.message.request_id: frame.message for frame in frames[1:]}
                answer = answers[asked]
                assert isinstance(answer, ErrorResponse), answer
                assert "the connection named none" in answer.message


def test_nobody_is_let_in_without_a_name(cluster: LocalCluster, admin: LedgerClient) -> None:
    receipt = admin.append(b"x")
    eventually(lambda: {row.users for row in admin.status()} == {"on"})
    with connect(cluster.servers) as nobody:
        for act in (lambda: nobody.append(b"x"), lambda: nobody.get(receipt.last_index), nobody.users):
            with pytest.raises(NotAuthenticated, match="the connection named none"):
                act()
        rows = nobody.status()
    assert {row.users for row in rows} == {"on"} and any(row.role == "leader" for row in rows)
    assert all(row.version == "" and row.problems == () for row in rows)
    assert any("without TLS" in problem for row in admin.status() for problem in row.problems)


def test_a_wrong_password_and_an_unknown_user_are_refused_alike(
    cluster: LocalCluster, admin: LedgerClient
) -> None:
    told = set()
    for user in (ClientUser("alice", "wrong"), ClientUser("mallory", "sesame")):
        with pytest.raises(NotAuthenticated) as refused, connect(cluster.servers, user=user) as log:
            log.append(b"x")
        told.add(str(refused.value).replace("127.0.0.1", "").rpartition(": ")[2])
    assert told == {"the user or the password is wrong"}


def test_a_user_may_do_what_is_granted_and_no_more(
    cluster: LocalCluster, admin: LedgerClient, caplog: pytest.LogCaptureFixture
) -> None:
    admin.append(b"x")
    with connect(cluster.servers, user=BOB) as bob, caplog.at_level(logging.WARNING):
        eventually(lambda: refusal_of(lambda: list(bob.read(0))) is None)
        assert [entry.body for entry in bob.read(0)] == [b"x"]
        with pytest.raises(Forbidden, match="user bob may not write log 'default'"):
            bob.append(b"y")
        with pytest.raises(Forbidden, match="user bob may not admin cluster"):
            bob.change_users(order(UserOperation.GIVE_ROLES, "bob", "admin"))
        admin.change_users(order(UserOperation.GRANT, "r", grants=(WRITES,)))
        eventually(lambda: refusal_of(lambda: bob.append(b"y")) is None)
        admin.change_users(order(UserOperation.REVOKE, "r", grants=(WRITES,)))
        eventually(lambda: isinstance(refusal_of(lambda: bob.append(b"z")), Forbidden))
        admin.change_users(order(UserOperation.REMOVE_USER, "bob"))
        eventually(lambda: isinstance(refusal_of(lambda: list(bob.read(0))), NotAuthenticated))
    said = caplog.text
    assert "user bob may not write log 'default' at 127.0.0.1" in said
    assert "user alice at 127.0.0.1" in said and "grant r write log def*" in said
    assert "sesame" not in said and "tahini" not in said
    assert [each.name for each in admin.users().users] == ["alice"]


def test_a_hold_is_let_go_by_who_may_take_it(cluster: LocalCluster, admin: LedgerClient) -> None:
    admin.reader("archive", hold="archive")
    uses = RoleGrant(Right.READ, Kind.CONSUMER_GROUP, b"archive", is_exact=True)
    admin.change_users(order(UserOperation.GRANT, "r", grants=(uses,)))
    with connect(cluster.servers, user=BOB) as bob:
        eventually(lambda: refusal_of(lambda: bob.reader("archive")) is None)
        reader = bob.reader("archive")
        for act in (
            reader.end,
            lambda: bob.reader("archive", hold=False),
            lambda: bob.reader("archive", hold=True),
        ):
            with pytest.raises(Forbidden, match="may not admin consumer-group 'archive'"):
                act()
        assert [each.hold for each in bob.readers()] == ["archive"]
        administers = RoleGrant(Right.ADMIN, Kind.CONSUMER_GROUP, b"archive", is_exact=True)
        admin.change_users(order(UserOperation.GRANT, "r", grants=(administers,)))
        eventually(lambda: refusal_of(reader.end) is None)
    assert not admin.readers()


def test_a_sink_needs_its_staging_group_and_its_hold(cluster: LocalCluster, admin: LedgerClient) -> None:
    """The rights are those of docs/security.md; without any one of them it is refused."""
    staging = b"default.staging"
    needed = (
        RoleGrant(Right.WRITE, Kind.LOG, b"default", is_exact=True),
        RoleGrant(Right.WRITE, Kind.LOG, staging, is_exact=True),
        RoleGrant(Right.READ, Kind.LOG, staging, is_exact=True),
        RoleGrant(Right.ADMIN, Kind.CONSUMER_GROUP, b"sink.shop", is_exact=True),
    )

    written: list[bytes] = []

    def write() -> None:
        """The next batch: one that is in the log already is no write."""
        batch_id = len(written)
        bodies = EntryBatch.from_bodies([b"%d" % batch_id])
        with open_sink_logs(cluster.servers, "default", 10_000, user=BOB) as logs:
            commits = SinkCommits(logs, "shop")
            commits.begin()
            assert isinstance(logs.staging, client_logs.ClientLog)
            ranges = stage(logs.staging.client, [bodies])
            batch = Batch("q", batch_id, 1, RowDigest.of_entries(bodies), ranges)
            commits.commit(batch, BatchRules())
        written.append(b"%d" % batch_id)

    admin.change_users(order(UserOperation.REVOKE, "r", grants=(READS,)))
    admin.change_users(order(UserOperation.GRANT, "r", grants=needed))
    eventually(lambda: refusal_of(write) is None)
    for grant in needed:
        admin.change_users(order(UserOperation.REVOKE, "r", grants=(grant,)))
        eventually(lambda: isinstance(refusal_of(write), Forbidden))
        admin.change_users(order(UserOperation.GRANT, "r", grants=(grant,)))
        eventually(lambda: refusal_of(write) is None)
    assert [entry.body for entry in admin.read(0)] == written


def test_a_tail_that_loses_its_right_ends(cluster: LocalCluster, admin: LedgerClient) -> None:
    with connect(cluster.servers, user=BOB) as bob:
        eventually(lambda: refusal_of(lambda: list(bob.read(0))) is None)
        tail = bob.tail(0)
        admin.append(b"x")
        assert next(tail).body == b"x"
        admin.change_users(order(UserOperation.REVOKE, "r", grants=(READS,)))
        with pytest.raises(Forbidden, match="may not read log"):
            next(tail)


@pytest.mark.skipif(IS_COMPILED, reason="what is compiled takes no stub, and no other method")
def test_a_read_that_waits_for_its_client_is_refused_once_the_right_is_gone() -> None:
    access, answers = Access(), []
    access.learn(Users(True, b"", (User("bob", ("r",)),), (UserRole("r", (READS,)),)))
    connection: Any = SimpleNamespace(user="bob", peer_name="here:1", is_full=True, closed=False)
    caller = Caller(access, connection)
    reads = ClientReads(
        connection,
        lambda driver, request, outcome, batch: answers.append(outcome),
        lambda request, group: caller.refusal(key_of(request, group), needs_of(request, group)),
        caller,
    )
    driver = MagicMock()
    driver.config.group, driver.node.committed_index = "default", 10
    driver.reads.read = lambda first, stop, limit_bytes, done: done(None)
    driver.node.raft.reads.fresh_since_ms = lambda: 0.0
    for number in (1, 2):
        reads.ask(driver, ReadRequest(request_id=number, first_index=0))
    access.learn(Users(True, b"", (User("bob"),)))
    connection.is_full = False
    reads.next_read()
    assert [type(answer) for answer in answers] == [Forbidden, Forbidden]


def test_users_are_looked_at_again_whatever_comes_of_it_and_for_all_groups() -> None:
    async def scene() -> None:
        driver = MagicMock()
        driver.stopped = False
        driver.config = GroupConfig("n0", parse_members("n0=127.0.0.1:1"), "data")
        driver.node.users.look = MagicMock(return_value=Users(True))
        other = MagicMock()
        other.stopped, other.node.users.has_heard = False, True
        users = UsersOfServer(
            "a",
            lambda: {"a": driver, "b": other},
            is_plain=False,
            options=UsersOptions(may_be_old_ms=3000),
        )
        users.access.moved.append(MagicMock(side_effect=ValueError))
        with pytest.raises(ValueError):
            users.look()
        assert users._timer is not None and not users._timer.cancelled()
        assert driver.node.users.look.call_args.kwargs["for_others"]
        assert driver.node.users.look.call_args.kwargs["may_be_old_ms"] == 3000
        other.node.users.has_heard = False
        users.look()
        assert not driver.node.users.look.call_args.kwargs["for_others"]
        users.close()

    asyncio.run(scene())


def test_an_order_that_waited_for_its_client_to_read_is_audited_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is judged again each time there is room for answers."""
    asked = 40
    with LocalCluster(1, store="memory") as cluster, connect(cluster.servers) as nobody:
        nobody.append_batch([bytes(1 << 20), b"end"])
        nobody.change_users(order(UserOperation.ADD_USER, "alice", "admin"))
        with socket.socket() as greedy:
            greedy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
            greedy.connect(parse_address(cluster.servers))
            decoder, proof = FrameDecoder(), Proof(ALICE)
            answer: Any = Hello(role="client", user="alice")
            while not proof.is_whole:
                greedy.sendall(b"".join(encode_frame("default", answer)))
                (frame,) = decoder.receive_data(greedy.recv(4096))
                answer = ChallengeResponse(data=proof.answer(cast(Any, frame.message)))
            greedy.sendall(b"".join(encode_frame("default", answer)))
            for number in range(asked):
                read = ReadRequest(request_id=number, first_index=1, stop_index=3, limit_bytes=8 << 20)
                greedy.sendall(b"".join(encode_frame("default", read)))
            transfer = TransferRequest(request_id=asked, to_member_id="n9")
            greedy.sendall(b"".join(encode_frame("default", transfer)))
            answers = 0
            while answers < 2 + asked:  # the first is that to the greeting
                answers += len(decoder.receive_data(greedy.recv(1 << 20)))
    assert sum("user alice" in said and "Transfer" in said for said in caplog.messages) == 1


def test_they_count_for_three_heartbeats_at_least() -> None:
    """Between two of which nobody is refused who may."""

    async def scene() -> None:
        driver = MagicMock()
        driver.stopped = False
        slow = ConsensusConfig(heartbeat_interval_ms=10_000)
        members = parse_members("n0=127.0.0.1:1")
        driver.config = GroupConfig("n0", members, "data", consensus=slow)
        driver.node.users.look = MagicMock(return_value=Users(True))
        driver.node.users.good_until_ms = lambda may_be_old_ms: 5_000 + may_be_old_ms
        users = UsersOfServer("a", lambda: {"a": driver}, is_plain=False)
        users.look()
        assert driver.node.users.look.call_args.kwargs["may_be_old_ms"] == 30_000
        assert users.access.good_until_s == 35
        users.close()

    asyncio.run(scene())


def test_a_server_that_has_handed_over_and_stopped_looks_at_them_no_more(tmp_path: Path) -> None:
    """The process may go on for years."""

    async def scene() -> None:
        members = parse_members(",".join(f"n{i}=127.0.0.1:{at}" for i, at in enumerate(free_ports(3))))
        leads = asyncio.get_running_loop().create_future()
        roles: list[RoleChange] = []

        def server(member_id: str) -> LedgerServer:
            def changed(group: str, change: RoleChange) -> None:
                if change.role is Role.LEADER and not leads.done():
                    leads.set_result(servers[member_id])
                if leads.done() and leads.result() is servers[member_id]:
                    roles.append(change)

            config = GroupConfig(member_id, members, str(tmp_path / member_id))
            return LedgerServer([config], on_role_change=changed)

        servers = {member_id: server(member_id) for member_id in ("n0", "n1", "n2")}
        try:
            for each in servers.values():
                await each.start()
            first = await leads
            await first.stop()
            assert roles[-1].role is not Role.LEADER, "it has handed over"
            assert first.users._timer is None
        finally:
            for each in servers.values():
                each.abandon()

    asyncio.run(scene())


def test_what_the_log_says_of_users_is_for_administrators(
    cluster: LocalCluster, admin: LedgerClient
) -> None:
    secret = PASSWORDS["alice"].stored_key

    def everything(user: ClientUser) -> bytes:
        with connect(cluster.servers, user=user) as log:
            eventually(lambda: refusal_of(lambda: list(log.read(0))) is None)
            return b"".join(bytes(batch.buffer) for batch in log.read_batches(0))

    admin.append(b"x")
    assert secret in everything(ALICE) and secret not in everything(BOB)


def test_it_stays_so_over_restarts(cluster: LocalCluster, admin: LedgerClient) -> None:
    admin.append(b"x")
    for member in ("n0", "n1", "n2"):
        cluster.kill(member)
        cluster.restart(member)
        with connect(cluster.servers) as nobody, pytest.raises(NotAuthenticated):
            nobody.append(b"y")
    with connect(cluster.servers, user=ALICE) as log:
        assert [entry.body for entry in log.read(0)] == [b"x"]


def test_a_wiped_member_and_a_new_learner_never_let_everybody_in(
    cluster: LocalCluster, admin: LedgerClient
) -> None:
    """From when they listen until they serve those who may read."""
    index = admin.append(b"secret").last_index
    wiped = next(each for each in cluster.running if each != cluster.leader())
    cluster.kill(wiped)
    shutil.rmtree(cluster.data_dir(wiped))
    cluster.restart(wiped)
    never_open(cluster, wiped, lambda: change(admin, "replace", wiped), index)
    learner = cluster.start_another()
    adding = partial(change, admin, "add", learner.member_id, str(learner))
    never_open(cluster, learner.member_id, adding, index)


def never_open(cluster: LocalCluster, member: str, let_in: Callable[[], object], index: int) -> None:
    (address,) = (str(each.own_address) for each in cluster.server(member).groups[:1])
    codes: list[int] = []
    is_over = threading.Event()

    def ask() -> None:
        while not is_over.is_set():
            if (said := said_at(address, index)) is not None:
                codes.append(said.code if isinstance(said, ErrorResponse) else 0)

    with ThreadPoolExecutor() as threads, connect(cluster.servers, user=ALICE) as alice:
        asking = threads.submit(ask)
        try:
            eventually(lambda: bool(codes))
            let_in()
            alice.add_servers((address,))
            eventually(lambda: refusal_of(lambda: alice.get(index, from_member=member)) is None)
            count = len(codes)
            eventually(lambda: len(codes) > count + 1)
        finally:
            is_over.set()
        asking.result()
    assert set(codes) <= {LeaderNotReady.code, NotAuthenticated.code}
    assert codes[-1] == NotAuthenticated.code


def said_at(address: str, index: int) -> Any:
    """To somebody without a name, by whoever listens there; None: it says nothing."""
    said = (Hello(role="client"), ReadRequest(request_id=1, first_index=index))
    decoder = FrameDecoder()
    with suppress(OSError), socket.create_connection(parse_address(address), 10) as sock:
        sock.sendall(b"".join(bytes(part) for each in said for part in encode_frame("default", each)))
        while data := sock.recv(1 << 16):
            for frame in decoder.receive_data(data):
                if not isinstance(frame.message, HelloResponse):
                    return frame.message
    return None
