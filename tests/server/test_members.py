"""Members that come and go, as real servers over sockets."""

from __future__ import annotations

import json
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
    OutcomeUnknown,
    connect,
)
from quorumlog.client import leader_of
from quorumlog.config import MemberAddress
from quorumlog.server.free_ports import free_ports
from quorumlog.server.local_cluster import _MemberThread
from tests.cli.conftest import Cli, cli  # noqa: F401
from tests.waiting import eventually, row_of


@pytest.fixture
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(3) as cluster:
        yield cluster


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[LedgerClient]:
    """In a session: members end while it asks them, and what a plain client appends is unknown then."""
    with connect(cluster.servers, timeout_ms=20_000, idempotent=True) as client:
        yield client


def change(client: LedgerClient, verb: str, member_id: str, address: str = "") -> tuple[str, ...]:
    """The voters then; asked again as long as that may help. The member that answers may be the one that
    goes: then the members say whether it was done."""
    is_unknown = False

    def made() -> tuple[str, ...]:
        nonlocal is_unknown
        try:
            return client.change_members(verb, member_id, address).voters
        except OutcomeUnknown:
            is_unknown = True
        except MembershipRefused as error:
            if is_unknown and not error.retry_after_ms:
                return tuple(each for each, part in parts(client).items() if part == "voter")
            assert error.retry_after_ms, error
        return ()

    return eventually(made, what=f"{verb} {member_id}")


def parts(client: LedgerClient) -> dict[str, str]:
    leader = eventually(lambda: leader_of(client.status()))
    return {member.id: member.part for member in leader.members}


def test_a_new_member_votes_and_an_old_one_goes(cluster: LocalCluster, client: LedgerClient) -> None:
    receipts = [client.append(f"{number}".encode()) for number in range(50)]
    new = cluster.start_another()
    assert change(client, "add", new.member_id, str(new)) == ("n0", "n1", "n2")
    assert parts(client)["n3"] == "learner"
    assert change(client, "promote", "n3") == ("n0", "n1", "n2", "n3")
    assert parts(client)["n3"] == "voter"
    eventually(lambda: not any(row.problems for row in client.status()))
    assert change(client, "remove", "n0") == ("n1", "n2", "n3")
    assert "n0" not in parts(client) or parts(client)["n0"] == ""
    gone = eventually(lambda: row_of_server(cluster, "n0"))
    assert "n0 is no member of the group since entry" in gone
    cluster.kill("n0")
    cluster.kill("n1")
    receipts.append(client.append(b"without n0 and n1"))
    bodies = [entry.body for entry in client.read(receipts[0].first_index)]
    assert bodies == [*(f"{number}".encode() for number in range(50)), b"without n0 and n1"]


def row_of_server(cluster: LocalCluster, member_id: str) -> str:
    driver = cluster.server(member_id).drivers[0]
    return driver.node.status().waits_for


def test_a_client_that_knows_the_founders_only_follows_the_members(
    cluster: LocalCluster, client: LedgerClient
) -> None:
    new = cluster.start_another()
    change(client, "add", new.member_id, str(new))
    change(client, "promote", "n3")
    client.status()
    for member_id in ("n0", "n1"):
        change(client, "remove", member_id)
        cluster.stop(member_id)
    client.status()
    cluster.stop("n2")
    cluster.restart("n2")
    client.append(b"found again")
    eventually(lambda: leader_of(client.status()))


def test_a_wiped_member_is_replaced_and_counts_again(
    cluster: LocalCluster, client: LedgerClient
) -> None:
    client.append(b"before")
    victim = next(i for i in cluster.running if i != cluster.leader())
    cluster.kill(victim)
    shutil.rmtree(cluster.data_dir(victim))
    cluster.restart(victim)
    eventually(lambda: row_of(client, victim).role == "observer")
    assert change(client, "replace", victim) == ("n0", "n1", "n2")
    eventually(lambda: row_of(client, victim).role == "follower")
    other = next(i for i in cluster.running if i not in (victim, cluster.leader()))
    cluster.kill(other)
    client.append(b"with the directory that is new")


def test_a_member_that_has_moved_is_found_and_led_by(
    cluster: LocalCluster, client: LedgerClient
) -> None:
    """Its old address is on the list of a client that has met it there, and of the other members."""
    client.append(b"before")
    client.status()
    moved = next(i for i in cluster.running if i != cluster.leader())
    place = MemberAddress(moved, "127.0.0.1", free_ports(1)[0])
    change(client, "set-address", moved, f"{place.host}:{place.port}")
    cluster.stop(moved)
    config = cluster._configs[moved]
    members = tuple(place if each.member_id == moved else each for each in config.members)
    cluster._configs[moved] = replace(config, members=members)
    cluster.restart(moved)

    def leads() -> bool:
        with suppress(LedgerError):
            client.transfer(moved)
        return cluster.leader() == moved

    eventually(leads, what="the member that has moved as the leader")
    index = client.append(b"through it").last_index
    assert row_of(client, moved).address == f"{place.host}:{place.port}"
    assert client.get(index, from_member=moved).body == b"through it"


def test_who_knows_nobody_that_is_a_member_by_now_is_found(
    cluster: LocalCluster,
    client: LedgerClient,
    cli: Cli,  # noqa: F811
) -> None:
    """All that its log, or its list of members, names have gone while it was away."""
    client.append(b"before")
    cluster.kill("n2")
    for _ in range(3):
        new = cluster.start_another()
        change(client, "add", new.member_id, str(new))
        change(client, "promote", new.member_id)
    for member_id in ("n0", "n1"):
        change(client, "remove", member_id)
        cluster.stop(member_id)
    last = client.append(b"while it was away").last_index
    cluster.restart("n2")
    eventually(lambda: row_of(client, "n2").committed_index >= last)
    change(client, "remove", "n2")
    cluster.stop("n2")
    victim = next(i for i in ("n3", "n4", "n5") if i != cluster.leader())
    cluster.kill(victim)
    shutil.rmtree(cluster.data_dir(victim))
    cluster.restart(victim)
    eventually(lambda: row_of(client, victim).role == "observer")
    servers = ",".join(row.address for row in client.status() if row.reachable)
    shown = cli("member", "list", "--json", "--servers", servers).stdout
    (row,) = (row for row in map(json.loads, shown.splitlines()) if row["id"] == victim)
    assert row["role"] == "observer" and "not among the voters" in row["waits_for"], "as status says"
    assert change(client, "replace", victim) == ("n3", "n4", "n5")
    eventually(lambda: row_of(client, victim).role == "follower")


def test_the_members_are_known_after_a_restart_of_all(
    cluster: LocalCluster, client: LedgerClient
) -> None:
    new = cluster.start_another()
    change(client, "add", new.member_id, str(new))
    change(client, "promote", "n3")
    change(client, "remove", "n0")
    for member_id in cluster.running:
        cluster.kill(member_id)
    for member_id in ("n1", "n2", "n3"):
        cluster.restart(member_id)
    client.append(b"after")
    assert {i for i, part in parts(client).items() if part == "voter"} == {"n1", "n2", "n3"}


def test_who_is_there_and_does_not_let_the_others_in_is_told_of(
    cluster: LocalCluster, client: LedgerClient
) -> None:
    """It is a group of its own."""
    place = MemberAddress("n3", "127.0.0.1", free_ports(1)[0])
    data_dir = str(cluster.directory / "n3")
    config = replace(cluster._configs["n0"], member_id="n3", members=(place,), data_dir=data_dir)
    stranger = _MemberThread(LedgerServer([config]), "n3")
    stranger.wait_started()
    try:
        with connect(f"{place.host}:{place.port}") as own_group:
            own_group.append(b"formed")  # before that it would join whoever greets it

        def reason() -> str:
            with pytest.raises(MembershipRefused, match="does not answer") as refused:
                client.change_members("add", "n3", f"{place.host}:{place.port}")
            assert refused.value.retry_after_ms
            return str(refused.value)

        eventually(lambda: "is not among the members of member n3" in reason())
    finally:
        stranger.kill()


def test_the_command_line_adds_lists_and_removes(cluster: LocalCluster, cli: Cli) -> None:  # noqa: F811
    new = cluster.start_another()
    options = ("--servers", cluster.servers)
    dry = cli("member", "remove", "n0", "--dry-run", *options)
    assert dry.stdout == "voters would be n1, n2\n", dry.output
    dry = cli("member", "add", "n3", str(new), "--dry-run", *options)
    assert dry.stdout == "voters would be n0, n1, n2; learners: n3\n", dry.output
    added = cli("member", "add", "n3", str(new), *options)
    assert added.stdout == "voters are n0, n1, n2, n3\n", added.output
    assert "default.staging: voters are n0, n1, n2, n3\n" in added.stderr, added.output
    listed = cli("member", "list", "--json", *options)
    rows = {row["id"]: row for row in map(json.loads, listed.stdout.splitlines())}
    assert {i: row["part"] for i, row in rows.items() if row["part"] != "leader"} == {
        i: "voter" for i in rows if i != cluster.leader()
    }
    assert rows["n3"]["address"] == str(new)
    assert all(row["answered_ms_ago"] is not None for row in rows.values())
    cluster.kill("n3")

    def told() -> str:
        return cli("status", *options).stderr

    eventually(lambda: "n3 has last answered the leader " in told(), what="silence of n3")
    assert "answered the leader" in cli("member", "list", *options).stdout
    cluster.restart("n3")
    assert "n3" in cli("member", "list", *options).stdout
    for wrong, reason in (
        (("add", "n3", str(new)), "n3 is a member already"),
        (("remove", "n9"), "n9 is not among the members: n0, n1, n2, n3"),
        (("set-address", "n3", "nowhere"), "'nowhere' is not an address"),
        (("add", "n4", str(new)), f"{new} is the address of n3"),
        (("add", "n4,n5", "127.0.0.1:1"), "'n4,n5' is not the id of a member"),
        (("list", "--group", "nope", "--timeout", "0.2"), "group 'nope' is not served here"),
    ):
        result = cli("member", *wrong, *options)
        assert result.exit_code != 0
        assert reason in result.output, result.output
    # What the staging group has done before is done.
    beside = cli("member", "remove", cluster.leader(), "--group", "default.staging", *options)
    assert beside.exit_code == 0, beside.output
    removed = cli("member", "remove", cluster.leader(), *options)
    assert removed.exit_code == 0, removed.output
    assert removed.stdout.startswith("voters are ")
    assert f"default.staging: {removed.stdout}" in removed.stderr


def test_options_that_name_other_members_than_the_log_are_told(
    cluster: LocalCluster, client: LedgerClient
) -> None:
    """A member that is started with the list of the founders goes by the log, and says so."""
    new = cluster.start_another()
    change(client, "add", new.member_id, str(new))
    stale = next(i for i in cluster.running if i != cluster.leader() and i != "n3")
    assert not [each for each in row_of(client, stale).problems if "by the log" in each]
    cluster.restart(stale)

    def problems() -> str:
        return " ".join(row_of(client, stale).problems)

    eventually(lambda: "the log counts, and `quorumlog member` changes it" in problems())
    client.append(b"it goes by the log")
