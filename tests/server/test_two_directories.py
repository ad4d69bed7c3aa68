"""Two directories of one name, both alive, as real servers: each is connected as what it is."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import pytest

from quorumlog import (
    LedgerClient,
    LedgerError,
    LedgerServer,
    LocalCluster,
    MembershipRefused,
    connect,
    leader_of,
)
from quorumlog.config import MemberAddress
from quorumlog.consensus.ready import Role
from quorumlog.entry import Replica
from quorumlog.server.clients.client_session import ClientSession
from quorumlog.server.free_ports import free_ports
from quorumlog.server.local_cluster import _MemberThread
from tests.waiting import eventually


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(3) as cluster:
        yield cluster


def directories(cluster: LocalCluster, seen_by: str, member_id: str) -> set[Replica]:
    """Of that name, which this member is connected with."""
    connected = cluster.server(seen_by).drivers[0].node.raft.connected
    return {replica for replica in connected if replica.member_id == member_id}


def asked_to_lead(log: LedgerClient, server: LedgerServer) -> bool:
    """Whether it does by now."""
    node = server.drivers[0].node
    if node.raft.role is not Role.LEADER:
        with suppress(LedgerError):
            log.transfer(node.config.member_id)
    return node.raft.role is Role.LEADER


def serves(log: LedgerClient, server: LedgerServer, as_who: Replica) -> bool:
    """This client appends through it. A busy machine may elect somebody else meanwhile."""
    if not asked_to_lead(log, server):
        return False
    with suppress(LedgerError):
        log.append(b"through the directory that was back", timeout_ms=5_000)
        found = leader_of(log.status())
        return found is not None and found.directory_id == as_who.directory_id
    return False


def lose_clients(process: _MemberThread) -> None:
    """Their connections break; the member notices nothing else."""
    server = process.server

    def lose() -> None:
        for connection in [
            c for c in server._connections.values() if isinstance(c.session, ClientSession)
        ]:
            connection.abort()

    process._loop.call_soon_threadsafe(lose)


def test_a_directory_that_is_back_at_another_address_is_seen_beside_the_one_that_is_new(
    cluster: LocalCluster,
) -> None:
    """It votes until it is replaced, which somebody has to ask for while it is there; then it goes."""
    victim = next(i for i in cluster.running if i != cluster.leader())
    first_data = cluster.data_dir(victim)
    config = cluster._configs[victim]
    with connect(cluster.servers, timeout_ms=20_000) as log:
        log.append(b"before")
        cluster.kill(victim)
        elsewhere = first_data.with_name("elsewhere")
        shutil.move(first_data, elsewhere)
        cluster.restart(victim)
        leader = cluster.leader()
        (new,) = eventually(lambda: directories(cluster, leader, victim))
        port = free_ports(1)[0]
        members = tuple(
            MemberAddress(victim, "127.0.0.1", port) if each.member_id == victim else each
            for each in config.members
        )
        old_server = LedgerServer([replace(config, members=members, data_dir=str(elsewhere))])
        old_process = _MemberThread(old_server, "old")
        old_process.wait_started()
        try:
            both = functools.partial(directories, cluster, leader, victim)
            eventually(lambda: len(both()) == 2, what="both directories")
            (old,) = both() - {new}
            assert directories(cluster, leader, victim) == {old, new}
            # The old one counts: with its vote and the leader's an append is acknowledged.
            third = next(i for i in cluster.running if i not in (leader, victim))
            cluster.kill(third)
            log.append(b"with the directory that was back")
            cluster.restart(third)
            # It may lead, too, and clients find it where no membership says that it is. This one is
            # connected with everybody else, and the new directory still takes the other for the leader.
            log.status()
            eventually(functools.partial(serves, log, old_server, old), what="another leader")
            # Also after the way there was lost, in the same term.
            lose_clients(old_process)
            eventually(functools.partial(serves, log, old_server, old), what="the way back")
            with connect(cluster.servers, timeout_ms=5_000) as other:
                eventually(functools.partial(serves, other, old_server, old), what="the same")

            def told_to_hand_over() -> bool:
                """Nothing is changed: on a busy machine somebody else may lead by then."""
                asked_to_lead(log, old_server)
                try:
                    log.change_members("replace", victim, dry_run=True)
                except MembershipRefused as error:
                    return "hand over first" in str(error)
                return False

            eventually(told_to_hand_over, what="the refusal of the one that leads")

            def replaced() -> bool:
                if not asked_to_lead(log, cluster.server(leader)):
                    return False
                try:
                    log.change_members("replace", victim)
                except MembershipRefused as error:
                    assert error.retry_after_ms or "hand over first" in str(error), error
                    return False
                return True

            eventually(replaced, what="replacement")
            membership = cluster.server(leader).drivers[0].node.status().membership
            assert new in membership.new and old not in membership.members()
            old_node = old_server.drivers[0].node
            eventually(lambda: "is not among the voters" in old_node.status().waits_for)
            eventually(lambda: both() == {new}, what="the end of the old one's connections")
            log.append(b"after")
        finally:
            old_process.kill()
