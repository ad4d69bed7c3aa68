"""Reads with a name, from every member of a real cluster."""

from __future__ import annotations

import asyncio

import pytest

from quorumlog import LocalCluster, connect, connect_async
from quorumlog.client import LedgerClient
from quorumlog.errors import BadRequest, ConfigError, IndexOutOfRange, Refused, TooStale
from tests.node.machines import Chain
from tests.waiting import eventually


def bodies(results) -> list[bytes]:
    return [entry.body for entry in results]


def test_every_member_misses_nothing_of_what_was_acknowledged() -> None:
    with LocalCluster() as cluster, connect(cluster.servers) as log, connect(cluster.servers) as other:
        for number in range(30):
            receipt = log.append(b"%d" % number)
            for member in cluster.members:
                fresh = other.freshness(from_member=member.member_id, read_consistency="read_index")
                assert fresh.index >= receipt.last_index, (member, fresh)
                assert fresh.member_id == member.member_id
                assert fresh.age_ms is not None and fresh.age_ms >= 0
                entry = other.get(
                    receipt.first_index,
                    from_member=member.member_id,
                    read_consistency="read_index",
                )
                assert entry.body == b"%d" % number
        wanted = [b"%d" % number for number in range(30)]
        for member in cluster.members:
            results = other.read(0, from_member=member.member_id, read_consistency="read_index")
            assert bodies(results) == wanted
            assert results.freshness is not None and results.freshness.member_id == member.member_id


def test_a_client_reads_its_own_writes_from_whatever_member() -> None:
    with LocalCluster() as cluster, connect(cluster.servers, read_consistency="committed") as log:
        for number in range(20):
            log.append(b"%d" % number)
            for member in cluster.members:
                assert len(bodies(log.read(0, from_member=member.member_id))) == number + 1


def test_a_member_that_hears_of_no_leader_refuses_what_may_be_old_and_what_must_be_new() -> None:
    with LocalCluster() as cluster, connect(cluster.servers) as log:
        log.append(b"a")
        leader = cluster.leader()
        alone, *others = [m.member_id for m in cluster.members if m.member_id != leader]
        member = {"from_member": alone, "timeout_ms": 300}

        def knows_its_age() -> bool:
            fresh = log.freshness(read_consistency="committed", from_member=alone)
            return fresh.age_ms is not None and fresh.index >= 1

        eventually(knows_its_age)
        with connect(cluster.servers) as reader:
            fresh = reader.freshness(max_staleness_ms=60_000, **member)
            assert fresh.age_ms is not None and 0 <= fresh.age_ms <= 60_000
            for each in (leader, *others):
                cluster.stop(each)
            with pytest.raises(TooStale, match="and 0 ms are allowed"):
                reader.freshness(max_staleness_ms=0, **member)
            with pytest.raises(Refused):
                reader.freshness(read_consistency="read_index", **member)
            before = reader.freshness(read_consistency="committed", **member)
            assert before.index >= 1, "what it knows it still gives"
            later = reader.freshness(read_consistency="committed", **member)
            assert later.age_ms > before.age_ms, "and says that it grows old"


def test_another_member_is_asked_where_one_is_too_old() -> None:
    with LocalCluster() as cluster, connect(cluster.servers) as log:
        log.append(b"a")
        fresh = log.freshness(read_consistency="committed", max_staleness_ms=5000)
        assert fresh.age_ms is not None and fresh.age_ms <= 5000
        entries = log.read(0, max_staleness_ms=5000)
        assert bodies(entries) == [b"a"]


def test_a_state_machine_answers_freshly_on_every_member() -> None:
    async def ask_all(cluster: LocalCluster) -> None:
        async with connect_async(cluster.servers) as log:
            for number in range(10):
                await log.append(b"%d" % number, machine="chain")
                for member in cluster.members:
                    for consistency in ("read_index", "committed"):
                        count = await log.ask(
                            "chain", from_member=member.member_id, read_consistency=consistency
                        )
                        assert int(count) == number + 1, (member, consistency)

    with LocalCluster(state_machines={"chain": Chain}) as cluster:
        asyncio.run(ask_all(cluster))


def test_what_makes_no_sense_is_refused_before_anything_is_asked() -> None:
    with pytest.raises(ConfigError, match="read_index or committed"):
        connect("127.0.0.1:1", read_consistency="fresh")
    with pytest.raises(ConfigError, match="read_from"):
        connect("127.0.0.1:1", read_from="")
    log: LedgerClient
    with connect("127.0.0.1:1") as log:
        with pytest.raises(BadRequest, match="read_index is never stale"):
            log.read(0, read_consistency="read_index", max_staleness_ms=5)
        with pytest.raises(BadRequest, match="number of milliseconds"):
            log.get(0, max_staleness_ms=-1)


def test_the_end_of_the_log_is_told_with_its_age() -> None:
    with LocalCluster(members=1) as cluster, connect(cluster.servers) as log:
        log.append(b"a")
        with pytest.raises(IndexOutOfRange) as beyond:
            log.get(100, read_consistency="read_index")
        assert beyond.value.committed_index == 1
        assert beyond.value.age_ms >= 0
