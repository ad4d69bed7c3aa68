"""etcd's gRPC API as clients of gRPC call it: keys, watches, leases, and what there is around them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import grpc
import pytest

from quorumlog.kv.client.blocking_store import KeyValueClient
from quorumlog.kv.etcd import administration
from quorumlog.kv.etcd import messages_pb2 as pb
from quorumlog.kv.etcd.conversions import number_of
from quorumlog.kv.service import StoreOptions
from tests.kv.etcd_grpc import EtcdCalls, EtcdPorts
from tests.net.test_quotas import limit
from tests.waiting import eventually

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def ports() -> Iterator[EtcdPorts]:
    with EtcdPorts() as made:
        yield made


@pytest.fixture(params=["leader", "follower"])
def etcd(ports: EtcdPorts, request: pytest.FixtureRequest) -> Iterator[EtcdCalls]:
    member_id = ports.cluster.leader() if request.param == "leader" else ports.follower()
    with EtcdCalls(ports.addresses[member_id]) as made:
        made.call("KV/DeleteRange", pb.DeleteRangeRequest(key=b"\0", range_end=b"\0"))
        yield made


# ---------------------------------------------------------------- keys


def test_keys_are_put_read_and_deleted(etcd: EtcdCalls) -> None:
    first = etcd.put("a", "1")
    assert first.header.cluster_id and first.header.member_id and first.header.raft_term
    second = etcd.put("a", "2", prev_kv=True)
    assert second.prev_kv.value == b"1" and second.prev_kv.version == 1
    etcd.put("b", "3")
    found = etcd.range("a", "c")
    assert [(kv.key, kv.value, kv.version) for kv in found.kvs] == [(b"a", b"2", 2), (b"b", b"3", 1)]
    assert found.kvs[0].create_revision == first.header.revision
    assert found.kvs[0].mod_revision == second.header.revision
    assert (found.count, found.more) == (2, False)
    (past,) = etcd.range("a", revision=first.header.revision).kvs
    assert past.value == b"1"
    etcd.put("a", ignore_value=True)
    assert etcd.range("a").kvs[0].value == b"2"
    asked = pb.DeleteRangeRequest(key=b"a", range_end=b"z", prev_kv=True)
    deleted = etcd.call("KV/DeleteRange", asked)
    assert deleted.deleted == 2 and [kv.key for kv in deleted.prev_kvs] == [b"a", b"b"]
    assert etcd.range("a", "z").count == 0


def test_ranges_are_sorted_limited_and_filtered_as_in_etcd(etcd: EtcdCalls) -> None:
    for key, value in (("a", "3"), ("b", "1"), ("c", "2")):
        last = etcd.put(key, value).header.revision

    def keys(**options: Any) -> str:
        return "".join(kv.key.decode() for kv in etcd.range("a", "z", **options).kvs)

    assert keys(sort_target=pb.RangeRequest.VALUE) == "bca", "without an order it ascends"
    assert keys(sort_order=pb.RangeRequest.DESCEND) == "cba"
    assert keys(sort_target=pb.RangeRequest.MOD, sort_order=pb.RangeRequest.DESCEND) == "cba"
    assert keys(limit=-1) == "abc" and keys(limit=2) == "ab"
    limited = etcd.range("a", "z", limit=2)
    assert (limited.more, limited.count) == (True, 3)
    filtered = etcd.range("a", "z", min_mod_revision=last)
    assert ([kv.key for kv in filtered.kvs], filtered.count) == ([b"c"], 3)
    assert etcd.range("a", "z", max_mod_revision=-1).kvs == []
    counted = etcd.range("a", "z", count_only=True)
    assert (len(counted.kvs), counted.count) == (0, 3)
    assert etcd.range("a", "z", keys_only=True).kvs[0].value == b""


def test_transactions_compare_nest_and_answer_in_their_order(etcd: EtcdCalls) -> None:
    absent = pb.Compare(target=pb.Compare.CREATE, key=b"lock", create_revision=0)
    take = pb.RequestOp(request_put=pb.PutRequest(key=b"lock", value=b"me"))
    look = pb.RequestOp(request_range=pb.RangeRequest(key=b"lock"))
    asked = pb.TxnRequest(compare=[absent], success=[take, look], failure=[look])
    first, second = (etcd.call("KV/Txn", asked) for _ in range(2))
    assert first.succeeded and first.responses[1].response_range.kvs[0].value == b"me"
    assert not second.succeeded and second.responses[0].response_range.count == 1
    inner = pb.RequestOp(request_txn=pb.TxnRequest(success=[look]))
    nested = etcd.call("KV/Txn", pb.TxnRequest(success=[inner]))
    assert nested.responses[0].response_txn.responses[0].response_range.count == 1
    drop = pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=b"lock"))
    twice = etcd.call("KV/Txn", pb.TxnRequest(success=[drop, drop]))
    assert [each.response_delete_range.deleted for each in twice.responses] == [1, 0]


@pytest.mark.parametrize(
    ("name", "asked", "refusal"),
    [
        ("KV/Put", pb.PutRequest(), ("INVALID_ARGUMENT", "key is not provided")),
        ("KV/Range", pb.RangeRequest(), ("INVALID_ARGUMENT", "key is not provided")),
        (
            "KV/Range",
            pb.RangeRequest(key=b"a", revision=1 << 40),
            ("OUT_OF_RANGE", "mvcc: required revision is a future revision"),
        ),
        (
            "KV/Range",
            pb.RangeRequest(key=b"a", sort_target=9),  # type: ignore[arg-type]
            ("INVALID_ARGUMENT", "invalid sort option"),
        ),
        ("KV/Put", pb.PutRequest(key=b"a", lease=77), ("NOT_FOUND", "requested lease not found")),
        ("KV/Put", pb.PutRequest(key=b"a", lease=-7), ("NOT_FOUND", "requested lease not found")),
        (
            "KV/Put",
            pb.PutRequest(key=b"a", value=b"1", ignore_value=True),
            ("INVALID_ARGUMENT", "value is provided"),
        ),
        (
            "KV/Put",
            pb.PutRequest(key=b"absent", ignore_value=True),
            ("INVALID_ARGUMENT", "key not found"),
        ),
        (
            "KV/Txn",
            pb.TxnRequest(success=[pb.RequestOp(request_put=pb.PutRequest(key=b"a"))] * 2),
            ("INVALID_ARGUMENT", "duplicate key given in txn request"),
        ),
        ("KV/Txn", pb.TxnRequest(success=[pb.RequestOp()]), ("INVALID_ARGUMENT", "key not found")),
        (
            "KV/Put",
            pb.PutRequest(key=b"a", value=bytes(1_600_000)),
            ("INVALID_ARGUMENT", "request is too large"),
        ),
        (
            "KV/Put",
            pb.PutRequest(key=b"a", value=bytes(3_000_000)),
            ("INVALID_ARGUMENT", "request is too large"),
        ),
        (
            "KV/Compact",
            pb.CompactionRequest(revision=1 << 40),
            ("OUT_OF_RANGE", "mvcc: required revision is a future revision"),
        ),
        ("Lease/LeaseRevoke", pb.LeaseRevokeRequest(ID=77), ("NOT_FOUND", "requested lease not found")),
        (
            "Lease/LeaseGrant",
            pb.LeaseGrantRequest(TTL=9_000_000_001),
            ("OUT_OF_RANGE", "too large lease TTL"),
        ),
        ("Cluster/MemberRemove", pb.MemberRemoveRequest(ID=7), ("NOT_FOUND", "member not found")),
        (
            "Auth/Authenticate",
            pb.AuthenticateRequest(name="a", password="b"),
            ("FAILED_PRECONDITION", "authentication is not enabled"),
        ),
        ("Auth/AuthEnable", pb.AuthEnableRequest(), ("FAILED_PRECONDITION", "root user does not exist")),
    ],
)
def test_refusals_are_in_etcds_codes_and_words(
    etcd: EtcdCalls, name: str, asked: Any, refusal: tuple[str, str]
) -> None:
    assert etcd.refusal(name, asked) == (refusal[0], f"etcdserver: {refusal[1]}")


def test_what_there_is_not_is_refused_in_words(etcd: EtcdCalls) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        list(etcd._stub("Maintenance/Snapshot")(pb.SnapshotRequest(), timeout=60))
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert "quorumlog backup" in refused.value.details()
    code, words = etcd.refusal("Maintenance/Downgrade", pb.DowngradeRequest())
    assert code == "UNIMPLEMENTED" and "operations.md" in words
    with pytest.raises(grpc.RpcError, match="unknown method Nothing"):
        etcd._channel.unary_unary("/etcdserverpb.KV/Nothing")(b"", timeout=60)


def test_who_reads_what_it_has_put_sees_it_at_a_follower_too(etcd: EtcdCalls) -> None:
    for number in range(50):
        etcd.put("mine", str(number))
        (found,) = etcd.range("mine", serializable=True).kvs
        assert found.value == str(number).encode()


def test_an_answer_larger_than_the_windows_of_http2_comes_whole(etcd: EtcdCalls) -> None:
    value = bytes(range(256)) * 4000
    for number in range(6):
        asked = pb.PutRequest(key=b"large/%d" % number, value=value)
        etcd.call("KV/Put", asked)
    channel = etcd._channel
    etcd._channel = grpc.insecure_channel(
        _target(channel), options=[("grpc.max_receive_message_length", -1)]
    )
    try:
        found = etcd.range("large/", "large0")
    finally:
        etcd._channel.close()
        etcd._channel = channel
    assert [kv.value == value for kv in found.kvs] == [True] * 6


def _target(channel: Any) -> str:
    return str(channel._channel.target().decode())


# ---------------------------------------------------------------- watches


def test_watches_have_the_ids_that_clients_choose_or_the_next_ones(etcd: EtcdCalls) -> None:
    with etcd.watches() as stream:
        stream.create("a")
        assert (told := stream.next()).created and told.watch_id == 0
        stream.create("b", watch_id=7)
        assert (told := stream.next()).created and told.watch_id == 7
        stream.create("c", watch_id=7)
        told = stream.next()
        assert (told.watch_id, told.created, told.canceled) == (-1, True, True)
        assert told.cancel_reason == "mvcc: duplicate watch ID provided on the WatchStream"
        stream.create("z", "a")
        assert (told := stream.next()).cancel_reason == "mvcc: watcher range is empty"
        etcd.put("b", "1")
        assert stream.events(1) == [(7, "b", "1", False)]
        stream.cancel(7)
        assert (told := stream.next()).canceled and told.watch_id == 7
        etcd.put("b", "2")
        etcd.put("a", "3")
        assert stream.events(1) == [(0, "a", "3", False)], "and nothing of the other"


def test_watches_tell_history_filters_and_what_was_before(etcd: EtcdCalls) -> None:
    start = etcd.put("w/a", "1").header.revision
    etcd.put("w/a", "2")
    etcd.call("KV/DeleteRange", pb.DeleteRangeRequest(key=b"w/a"))
    with etcd.watches() as stream:
        stream.create("w/", "w0", start_revision=start, prev_kv=True)
        assert stream.next().created
        told: list[Any] = []
        while len(told) < 3:
            told += stream.next().events
        assert [(each.type, each.kv.value) for each in told] == [(0, b"1"), (0, b"2"), (1, b"")]
        assert [each.prev_kv.value for each in told] == [b"", b"1", b"2"]
        stream.create("w/", "w0", start_revision=start, filters=[pb.WatchCreateRequest.NOPUT])
        assert stream.next().created
        assert stream.events(1) == [(1, "w/a", "", True)]


def test_a_watch_below_what_is_compacted_says_so_and_ends(etcd: EtcdCalls) -> None:
    start = etcd.put("a", "1").header.revision
    last = etcd.put("a", "2").header.revision
    etcd.call("KV/Compact", pb.CompactionRequest(revision=last))
    with etcd.watches() as stream:
        stream.create("a", start_revision=start)
        assert stream.next().created
        told = stream.next()
        assert told.canceled and told.compact_revision == last
        stream.create("a")
        assert stream.next().created, "the stream goes on"
    code, words = etcd.refusal("KV/Range", pb.RangeRequest(key=b"a", revision=start))
    assert (code, words) == ("OUT_OF_RANGE", "etcdserver: mvcc: required revision has been compacted")


def test_progress_is_told_on_demand_behind_all_changes(etcd: EtcdCalls) -> None:
    with etcd.watches() as stream:
        stream.create("p/", "p0")
        stream.create("other", start_revision=1)
        assert stream.next().created
        told = stream.next()
        while not told.created:
            told = stream.next()
        for number in range(20):
            last = etcd.put(f"p/{number}").header.revision
        stream.ask_progress()
        seen = 0
        while (told := stream.next()).watch_id != -1 or told.header.revision < last:
            seen += len(told.events)
            if told.watch_id == -1:
                stream.ask_progress()  # this member had not come so far
        assert seen == 20 and not told.events


def test_a_response_that_is_too_large_comes_in_fragments_where_that_is_asked_for(
    etcd: EtcdCalls,
) -> None:
    def put(key: str, size: int) -> pb.RequestOp:
        return pb.RequestOp(request_put=pb.PutRequest(key=key.encode(), value=bytes(size)))

    for key in "ab":
        etcd.call("KV/Put", pb.PutRequest(key=f"f/{key}".encode(), value=bytes(1_500_000)))
    with etcd.watches() as stream:
        stream.create("f/", "f0", prev_kv=True, fragment=True)
        assert stream.next().created
        etcd.call("KV/Txn", pb.TxnRequest(success=[put("f/a", 1), put("f/b", 1)]))
        first, second = stream.next(), stream.next()
        assert (first.fragment, second.fragment) == (True, False)
        assert [len(each.events) for each in (first, second)] == [1, 1]
        assert first.header.revision == second.header.revision


def test_a_watch_at_a_follower_goes_on_when_another_one_leads() -> None:
    with EtcdPorts() as ports:
        follower = ports.follower()
        with EtcdCalls(ports.addresses[follower]) as etcd, etcd.watches() as stream:
            stream.create("a")
            assert stream.next().created
            etcd.put("a", "before")
            ports.cluster.kill(ports.cluster.leader())

            def put() -> bool:
                try:
                    etcd.put("a", "after")
                except grpc.RpcError:
                    return False
                return True

            eventually(put, what="a leader")
            values = []
            while "after" not in values:
                values += [value for _, _, value, _ in stream.events(1)]
            assert values[0] == "before"


# ---------------------------------------------------------------- leases


def test_leases_are_kept_alive_on_a_stream_until_they_end(etcd: EtcdCalls) -> None:
    granted = etcd.call("Lease/LeaseGrant", pb.LeaseGrantRequest(TTL=60, ID=4711))
    assert (granted.ID, granted.TTL, granted.error) == (4711, 60, "")
    refused = etcd.refusal("Lease/LeaseGrant", pb.LeaseGrantRequest(TTL=60, ID=4711))
    assert refused == ("FAILED_PRECONDITION", "etcdserver: lease already exists")
    etcd.put("mortal", lease=4711)
    asked = [pb.LeaseKeepAliveRequest(ID=each) for each in (4711, 4712, 4711)]
    stub = etcd._stub("Lease/LeaseKeepAlive")
    told = [(each.ID, each.TTL) for each in stub(iter(asked), timeout=60)]
    assert told == [(4711, 60), (4712, 0), (4711, 60)]
    left = etcd.call("Lease/LeaseTimeToLive", pb.LeaseTimeToLiveRequest(ID=4711, keys=True))
    assert (left.grantedTTL, list(left.keys)) == (60, [b"mortal"]) and 50 <= left.TTL <= 60
    assert 4711 in [each.ID for each in etcd.call("Lease/LeaseLeases", pb.LeaseLeasesRequest()).leases]
    etcd.call("Lease/LeaseRevoke", pb.LeaseRevokeRequest(ID=4711))
    assert etcd.range("mortal").count == 0
    left = etcd.call("Lease/LeaseTimeToLive", pb.LeaseTimeToLiveRequest(ID=4711))
    assert (left.TTL, left.header.revision > 1) == (-1, True)


@pytest.mark.parametrize("ttl", [0, -5, 1])
def test_the_least_ttl_is_granted_where_less_is_asked_for(etcd: EtcdCalls, ttl: int) -> None:
    assert etcd.call("Lease/LeaseGrant", pb.LeaseGrantRequest(TTL=ttl)).TTL == 3


# ---------------------------------------------------------------- the cluster


def test_members_and_their_state_are_told_in_etcds_words(ports: EtcdPorts, etcd: EtcdCalls) -> None:
    listed = etcd.call("Cluster/MemberList", pb.MemberListRequest()).members
    assert [each.name for each in listed] == ["n0", "n1", "n2"]
    assert [each.clientURLs for each in listed] == [[f"http://{a}"] for a in ports.addresses.values()]
    peers = [each.peerURLs[0].removeprefix("http://") for each in listed]
    assert peers == ports.cluster.servers.split(",")
    status = etcd.call("Maintenance/Status", pb.StatusRequest())
    assert status.leader == number_of(ports.cluster.leader())
    assert status.raftTerm and status.raftIndex and status.dbSizeQuota == 8 << 30
    assert not etcd.call("Maintenance/Alarm", pb.AlarmRequest()).alarms
    etcd.call("Maintenance/Defragment", pb.DefragmentRequest())
    assert not etcd.call("Auth/AuthStatus", pb.AuthStatusRequest()).enabled


def test_members_are_told_linearizably_where_that_is_asked_for() -> None:
    """Then by no member that may have missed a change."""
    asked = pb.MemberListRequest(linearizable=True)
    with EtcdPorts() as ports:
        follower = ports.follower()
        with EtcdCalls(ports.addresses[follower]) as etcd:
            etcd.put("a")
            assert len(etcd.call("Cluster/MemberList", asked).members) == 3
            for each in set(ports.cluster.running) - {follower}:
                ports.cluster.kill(each)
            assert etcd.refusal("Cluster/MemberList", asked) == (
                "UNAVAILABLE",
                "etcdserver: request timed out",
            )
            assert len(etcd.call("Cluster/MemberList", pb.MemberListRequest()).members) == 3


def test_members_have_the_same_hash_and_another_one_of_other_keys(
    ports: EtcdPorts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(administration, "HASH_PAGE", 3)
    with ExitStack() as stack:
        members = [stack.enter_context(EtcdCalls(each)) for each in ports.addresses.values()]
        for number in range(10):
            revision = members[0].put(f"hash/{number}").header.revision

        def hashes(revision: int) -> set[int]:
            asked = pb.HashKVRequest(revision=revision)
            for each in members:
                eventually(
                    lambda each=each: each.range("a", serializable=True).header.revision >= revision
                )  # type: ignore[misc]
            return {each.call("Maintenance/HashKV", asked).hash for each in members}

        (before,) = hashes(revision)
        assert before not in hashes(members[0].put("hash/more").header.revision)


def test_leadership_moves_to_the_member_that_is_named(ports: EtcdPorts) -> None:
    to = ports.follower()
    with EtcdCalls(ports.addresses[to]) as etcd:
        etcd.call("Maintenance/MoveLeader", pb.MoveLeaderRequest(targetID=number_of(to)))
        eventually(lambda: ports.cluster.leader() == to)


def test_a_full_store_raises_an_alarm_until_there_is_space() -> None:
    with (
        EtcdPorts(1, options=StoreOptions(quota_bytes=20_000)) as ports,
        EtcdCalls(ports.addresses["n0"]) as etcd,
    ):
        for number in range(4):
            etcd.put(f"k{number}", "v" * 6000)
        assert etcd.refusal("KV/Put", pb.PutRequest(key=b"more")) == (
            "RESOURCE_EXHAUSTED",
            "etcdserver: mvcc: database space exceeded",
        )
        (alarm,) = etcd.call("Maintenance/Alarm", pb.AlarmRequest()).alarms
        assert (alarm.memberID, alarm.alarm) == (number_of("n0"), pb.NOSPACE)
        assert etcd.call("Maintenance/Status", pb.StatusRequest()).errors == ["NOSPACE"]
        asked = pb.DeleteRangeRequest(key=b"k", range_end=b"l")
        last = etcd.call("KV/DeleteRange", asked).header.revision
        etcd.call("KV/Compact", pb.CompactionRequest(revision=last))
        disarm = pb.AlarmRequest(action=pb.AlarmRequest.DEACTIVATE, alarm=pb.NOSPACE)
        eventually(lambda: not etcd.call("Maintenance/Alarm", disarm).alarms)
        etcd.put("more")


def test_limits_of_an_address_hold_for_calls_of_etcd(ports: EtcdPorts) -> None:
    leader = ports.cluster.leader()
    with EtcdCalls(ports.addresses[leader]) as etcd:
        etcd.put("a", "1")
        limit(ports.cluster, address_bytes_per_second=1000)
        try:
            etcd.put("a", "2" * 4000)
            refused = etcd.refusal("KV/Put", pb.PutRequest(key=b"a", value=b"3"))
            assert refused == ("RESOURCE_EXHAUSTED", "etcdserver: too many requests")
        finally:
            limit(ports.cluster)
        etcd.put("a", "4")


def test_both_apis_see_the_same_keys(ports: EtcdPorts, etcd: EtcdCalls) -> None:
    with KeyValueClient(ports.servers) as kv:
        kv.put("shared", b"of the store")
        assert etcd.range("shared").kvs[0].value == b"of the store"
        etcd.put("shared", "of etcd")
        assert kv["shared"] == b"of etcd"
