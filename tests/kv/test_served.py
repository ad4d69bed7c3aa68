"""The store as its clients have it: three members on loopback."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from unittest import mock

import msgspec
import pytest

from harness.proxy import CUT, Network, both_ways
from quorumlog.errors import ConfigError, OutcomeUnknown, ResultUnknown, Unreachable
from quorumlog.kv import (
    Change,
    Compare,
    KeyValueClient,
    KeyValueStore,
    Put,
    Range,
    Relation,
    StoreOptions,
    Target,
    connect,
    connect_async,
)
from quorumlog.kv.client import watching
from quorumlog.kv.client.asking import Asking
from quorumlog.kv.errors import (
    ClusterChanged,
    Compacted,
    InvalidRequest,
    LeaseNotFound,
    LockLost,
    NoSpace,
    ValueUnreadable,
)
from quorumlog.kv.requests import (
    AnswerResponse,
    StatusAnswer,
    StoreStatusRequest,
    WatchRequest,
    done,
)
from quorumlog.kv.store import machine
from quorumlog.kv.testing import LocalStores
from quorumlog.net.rpc.calls import Call, CallState
from quorumlog.node import NodeHandle
from quorumlog.server.free_ports import free_ports
from tests.waiting import eventually


@pytest.fixture(scope="module")
def stores() -> Iterator[LocalStores]:
    with LocalStores() as made:
        yield made


@pytest.fixture
def kv(stores: LocalStores) -> Iterator[KeyValueClient]:
    with connect(stores.servers) as client:
        client.delete_prefix("")
        yield client


def test_it_is_used_like_a_dict(kv: KeyValueClient) -> None:
    kv["a"] = "1"
    kv["b/1"] = b"2"
    assert kv["a"] == b"1"
    assert "a" in kv and "c" not in kv
    assert list(kv) == [b"a", b"b/1"]
    assert len(kv) == 2
    del kv["a"]
    with pytest.raises(KeyError):
        kv["a"]
    with pytest.raises(KeyError):
        del kv["a"]


def test_codecs_make_values_of_what_is_given(stores: LocalStores, kv: KeyValueClient) -> None:
    for codec in ("json", "msgspec"):
        with connect(stores.servers, codec=codec) as other:
            other["config"] = {"size": 3, "names": ["x"]}
            assert other["config"] == {"size": 3, "names": ["x"]}
            only_keys = other.txn(then=[Range(b"config", keys_only=True)]).answers[0]
            assert [item.value for item in only_keys.items] == [None]
    with connect(stores.servers, codec="text") as text:
        text["name"] = "Zoë"
        assert text["name"] == "Zoë" and kv["name"] == "Zoë".encode()
        kv["name"] = b"\xff"
        with pytest.raises(ValueUnreadable):
            text["name"]
    with pytest.raises(InvalidRequest, match="codec='json'"):
        kv["a"] = {"not": "bytes"}
    with pytest.raises(ConfigError, match="codec"):
        connect(stores.servers, codec="yaml")


def test_conditions_hold_for_one_of_many(stores: LocalStores, kv: KeyValueClient) -> None:
    kv["counter"] = "0"

    def count_up() -> None:
        with connect(stores.servers) as own:
            for _ in range(20):
                while True:
                    item = own.get("counter")
                    assert item is not None
                    value = b"%d" % (int(item.value) + 1)
                    if own.compare_and_set("counter", value, expected_revision=item.mod_revision):
                        break

    threads = [threading.Thread(target=count_up) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert kv["counter"] == b"60"


def test_pages_are_of_one_revision(kv: KeyValueClient) -> None:
    kv.txn(then=[Put(b"p/%03d" % number, b"") for number in range(100)])
    pages = kv.scan("p/", page_items=30)
    first = next(pages)
    kv.delete_prefix("p/")
    assert [first.key, *(item.key for item in pages)] == [b"p/%03d" % n for n in range(100)]


def test_concurrent_puts_share_a_batch(stores: LocalStores, kv: KeyValueClient) -> None:
    async def put_all() -> list[int]:
        async with connect_async(stores.servers) as client:

            async def put(key: str) -> int:
                while True:
                    # On a busy machine another member may come to lead meanwhile.
                    with suppress(OutcomeUnknown):
                        return (await client.put(key, b"")).revision

            return await asyncio.gather(*(put(f"c/{n}") for n in range(500)))

    before = kv.status().applied_index
    revisions = asyncio.run(put_all())
    assert len(set(revisions)) == 500, "each put is an entry of its own"
    assert len(kv.prefix("c/").items) == 500
    assert kv.status().applied_index - before >= 500


def test_a_watch_goes_on_behind_what_it_has_seen(kv: KeyValueClient) -> None:
    begun = kv.put("w/a", "1").revision
    kv.put("w/b", "2")
    kv.delete("w/a")
    kv.txn(then=[Put(b"w/c", b"3"), Put(b"w/d", b"4")])
    with kv.watch_prefix("w/", first_revision=begun, prev_kv=True) as watch:
        seen: list[Change] = []
        while len(seen) < 5:
            seen += watch.batch(timeout_ms=10_000)
    assert [(change.item.key, change.is_deletion) for change in seen] == [
        (b"w/a", False),
        (b"w/b", False),
        (b"w/a", True),
        (b"w/c", False),
        (b"w/d", False),
    ]
    assert seen[2].previous is not None and seen[2].previous.value == b"1"
    assert seen[3].revision == seen[4].revision
    with kv.watch_prefix("w/", first_revision=seen[3].revision) as watch:
        assert [change.item.key for change in watch.batch(timeout_ms=10_000)] == [b"w/c", b"w/d"]
    kv.compact(seen[4].revision)
    with pytest.raises(Compacted) as refusal, kv.watch("w/a", first_revision=begun) as watch:
        watch.batch(timeout_ms=10_000)
    assert refusal.value.compacted_revision == seen[4].revision


def test_where_to_go_on_is_behind_what_was_given(kv: KeyValueClient) -> None:
    """Not behind what has come and waits to be given: who keeps it and ends would lose that."""
    first = kv.put("n/a", "").revision
    both = kv.txn(then=[Put(b"n/b", b""), Put(b"n/c", b"")]).revision
    last = kv.put("n/d", "").revision
    with kv.watch_prefix("n/", first_revision=first) as watch:
        given = [(change.revision, watch.next_revision) for change in islice(watch, 4)]
        assert given == [(first, both), (both, both), (both, last), (last, last + 1)]
    with kv.watch_prefix("n/", first_revision=both) as watch:
        assert [change.item.key for change in watch.batch(timeout_ms=10_000)] == [b"n/b", b"n/c", b"n/d"]
        assert watch.next_revision == last + 1


def test_a_client_holds_so_much_for_who_reads_slowly(
    kv: KeyValueClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "MOST_HELD_BYTES", 1_000)
    begun: list[WatchRequest] = []
    watch_of = Asking.watch
    monkeypatch.setattr(Asking, "watch", lambda *asked: begun.append(asked[1]) or watch_of(*asked))
    first = kv.put("slow/", "").revision
    with kv.watch_prefix("slow/", first_revision=first) as watch:
        for number in range(20):
            kv.put(f"slow/{number:02}", bytes(200))
        seen = [change.item.key for change in islice(watch, 21)]
    assert seen == [b"slow/", *(b"slow/%02d" % number for number in range(20))]
    assert len(begun) > 1, "the rest is asked for as history"


def test_what_a_codec_cannot_read_is_told_who_watches(stores: LocalStores, kv: KeyValueClient) -> None:
    with connect(stores.servers, codec="json") as other, other.watch_prefix("j/") as watch:
        kv.put("j/1", "{{{")
        with pytest.raises(ValueUnreadable, match="'raw'") as told:
            watch.batch(timeout_ms=10_000)
        assert (told.value.key, told.value.data) == (b"j/1", b"{{{")
        other["j/2"] = "it goes on"
        assert watch.batch(timeout_ms=10_000)[0].item.value == "it goes on"


def test_one_value_that_is_no_json_spoils_no_prefix(stores: LocalStores, kv: KeyValueClient) -> None:
    for number in range(5):
        kv.put(f"mix/{number}", "" if number in (2, 4) else str(number))
    with connect(stores.servers, codec="json") as strict:
        with pytest.raises(ValueUnreadable) as told:
            strict.prefix("mix/")
        assert told.value.key == b"mix/2" and isinstance(told.value.__cause__, msgspec.DecodeError)
        assert strict.prefix("mix/", keys_only=True).total == 5
    with connect(stores.servers, codec="json", errors="raw") as raw:
        assert [item.value for item in raw.prefix("mix/").items] == [0, 1, b"", 3, b""]
    with connect(stores.servers, codec="json", errors="skip") as skipping:
        assert [item.value for item in skipping.prefix("mix/").items] == [0, 1, 3]
        assert [item.value for item in skipping.scan("mix/", page_items=1)] == [0, 1, 3]
        assert skipping.get("mix/2") is None
        assert skipping.put("mix/2", 2, prev_kv=True).previous is None
        with skipping.watch_prefix("mix/") as watch:
            kv.put("mix/4", "")
            skipping["mix/4"] = 4
            assert [change.item.value for change in watch.batch(timeout_ms=10_000)] == [4]
    with pytest.raises(ConfigError, match="errors is one of raise, raw, skip"):
        connect(stores.servers, codec="json", errors="ignore")  # type: ignore[call-overload]


def test_patience_ends_though_nobody_answers() -> None:
    nobody = f"127.0.0.1:{free_ports(1)[0]}"
    with (
        connect(nobody, timeout_ms=100) as kv,
        pytest.raises(Unreachable, match="no server could be reached"),
        kv.watch("a"),
    ):
        pass


def test_who_gives_up_as_the_answer_comes_has_given_up() -> None:
    """A lock's time-out would be over, and nobody would know."""

    async def story() -> None:
        asking = Asking("127.0.0.1:1", 60.0)
        submitted: list[Call] = []

        def submit(calls: tuple[Call]) -> None:
            calls[0].context = asyncio.get_running_loop().create_future()
            submitted.extend(calls)

        with mock.patch.object(asking._io, "submit", submit):
            call = asyncio.ensure_future(asking.call(StoreStatusRequest(), StatusAnswer))
            await asyncio.sleep(0)
        (asked,) = submitted
        asked.state, asked.response = CallState.DONE, AnswerResponse(answer=done(1, StatusAnswer()))
        asked.context.set_result(None)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    asyncio.run(story())


def test_a_closed_client_says_so(stores: LocalStores) -> None:
    kv = connect(stores.servers)
    told: list[str] = []
    follows = threading.Event()

    def iterate() -> None:
        with pytest.raises(Unreachable, match="closed"), kv.watch("nothing") as watch:
            follows.set()
            told.extend(str(change) for change in watch)

    thread = threading.Thread(target=iterate)
    thread.start()
    follows.wait()
    kv.close()
    thread.join()
    kv.close()
    with pytest.raises(Unreachable, match="closed"):
        kv.get("a")
    assert not told


def test_a_lease_takes_its_keys_along(kv: KeyValueClient) -> None:
    lease = kv.grant(0.01, keeps_alive=False)
    assert lease.ttl_ms == 3000, "three election time-outs at least"
    kv.put("of a lease", "x", lease=lease)
    ttl_ms, left_ms, keys = kv.time_to_live(lease)
    assert (ttl_ms, keys) == (3000, [b"of a lease"])
    assert 0 < left_ms <= 3000
    assert kv.keep_alive(lease) == kv.keep_alive(lease.id) == 3000
    with kv.watch("of a lease") as watch:
        assert watch.batch(timeout_ms=20_000)[0].is_deletion
    assert lease.lost.is_set() and not lease.is_alive, "before the store ends it, though nobody kept it"
    with pytest.raises(LeaseNotFound):
        kv.keep_alive(lease)
    kept = kv.grant(3)
    kv.put("kept", "y", lease=kept)
    assert kv.revoke(kept) == 1
    assert "kept" not in kv


def test_locks_are_held_one_after_the_other_with_rising_tokens(
    stores: LocalStores, kv: KeyValueClient
) -> None:
    tokens: list[int] = []
    inside = 0

    def hold() -> None:
        nonlocal inside
        with connect(stores.servers) as own, own.lock("endpoint", ttl_s=5) as lock:
            inside += 1
            assert inside == 1
            own.put("last token", str(lock.token))
            tokens.append(lock.token)
            inside -= 1

    threads = [threading.Thread(target=hold) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert tokens == sorted(set(tokens)) and len(tokens) == 4
    with kv.lock("endpoint") as lock:
        with pytest.raises(TimeoutError), kv.lock("endpoint", timeout_ms=300):
            pass
        kv.revoke(lock.lease.id if lock.lease else 0)
        while lock.is_held:
            lock.lease and lock.lease.lost.set()
        with pytest.raises(LockLost):
            lock.check()


def test_a_lock_that_is_held_or_awaited_is_not_acquired_by_its_object_again(stores: LocalStores) -> None:
    """Its first lease would be kept alive as long as the client, and nobody could end it."""

    async def run() -> None:
        async with connect_async(stores.servers) as kv:
            lock = kv.lock("twice", ttl_s=5)
            attempts = await asyncio.gather(lock.acquire(), lock.acquire(), return_exceptions=True)
            assert isinstance(attempts[0], int)
            assert isinstance(attempts[1], InvalidRequest)
            with pytest.raises(InvalidRequest, match="release it first"):
                await lock.acquire()
            assert (lock.is_held, lock.token) == (True, attempts[0])
            await lock.release()
            assert await kv.lock("twice", ttl_s=5).acquire(timeout_ms=30_000) > attempts[0]

    asyncio.run(run())


def test_locks_whose_names_look_like_a_path_do_not_wait_for_each_other(stores: LocalStores) -> None:
    with (
        connect(stores.servers) as kv,
        kv.lock("jobs/nightly"),
        kv.lock("jobs/", timeout_ms=5000),
        kv.lock("jobs", timeout_ms=5000) as lock,
    ):
        assert lock.is_held


@pytest.mark.parametrize("codec", ["json", "msgspec"])
def test_a_lock_is_held_whatever_the_codec(stores: LocalStores, codec: str) -> None:
    with connect(stores.servers, codec=codec) as kv, connect(stores.servers) as other:
        with other.leadership("mixed", "{{{"), pytest.raises(TimeoutError):
            kv.lock("mixed", timeout_ms=200).__enter__()
        with kv.lock("mixed") as lock, kv.leadership("led", {"by": "me"}) as election:
            assert 0 < lock.token < election.token
            leader = kv.leader("led")
            assert leader is not None and leader.value == {"by": "me"}
            held = kv.leader("mixed")
            assert held is not None and (held.value, held.create_revision) == (None, lock.token)
        with other.leadership("mixed", "{{{") as foreign:
            leader = kv.leader("mixed")
            assert leader is not None and (leader.value, leader.create_revision) == (None, foreign.token)


def test_somebody_leads_until_it_resigns(kv: KeyValueClient) -> None:
    with kv.leadership("cron", "one") as election:
        leader = kv.leader("cron")
        assert leader is not None
        assert (leader.value, leader.create_revision) == (b"one", election.token)
        election.check()
    assert kv.leader("cron") is None


def test_bad_requests_say_what_is_wrong(kv: KeyValueClient) -> None:
    with pytest.raises(InvalidRequest, match="at least one byte"):
        kv.put("", "x")
    with pytest.raises(InvalidRequest, match="128"):
        kv.txn(then=[Put(b"%d" % number, b"") for number in range(129)])
    with pytest.raises(InvalidRequest, match="twice"):
        kv.txn(then=[Put(b"a", b""), Put(b"a", b"")])
    with pytest.raises(InvalidRequest, match="above"):
        kv.put("a", bytes(2 << 20))
    with pytest.raises(InvalidRequest, match="compared"):
        kv.txn([Compare(b"a", Target.VALUE, Relation.EQUAL, 3)])
    with pytest.raises(InvalidRequest, match="first_revision: expected `int` >= 0"):
        kv.watch("a", first_revision=-1)
    with pytest.raises(InvalidRequest, match="cannot be sent"):
        kv.put("a", "x", lease=2**64)
    with pytest.raises(InvalidRequest, match="<= 9223372036854775807"):
        kv.grant(3, lease_id=2**63)
    for ttl_s in (0, -1, float("nan"), float("inf")):
        with pytest.raises(InvalidRequest, match="TTL"):
            kv.grant(ttl_s)
    with pytest.raises(InvalidRequest, match="Unicode"):
        kv.put("\ud800", "x")
    with pytest.raises(InvalidRequest, match="Unicode"):
        kv.put("a", "\ud800")


def test_an_answer_has_a_limit(kv: KeyValueClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "MAX_ANSWER_BYTES", 1_000)
    monkeypatch.setattr(machine, "MOST_ANSWER_BYTES", {2: 1_000})
    for number in range(3):
        kv.put(f"l/{number}", bytes(400))
    with pytest.raises(InvalidRequest, match="above 1000 bytes: give a limit"):
        kv.prefix("l/")
    assert len(kv.prefix("l/", limit=2).items) == 2
    assert len(list(kv.scan("l/", page_items=1))) == 3
    with pytest.raises(ResultUnknown, match="carried out"):
        kv.delete_prefix("l/", prev_kv=True)
    assert not kv.prefix("l/").items
    with pytest.raises(InvalidRequest, match="at most 8 ranges with no limit"):
        kv.txn([], [Put(b"a", b"1"), *[Range(b"l/", b"l0")] * 9])


def test_a_revision_of_another_cluster_is_refused(stores: LocalStores, kv: KeyValueClient) -> None:
    cluster_id = kv.status().cluster_id
    with connect(stores.servers, cluster_id=cluster_id) as same:
        same["a"] = "1"
    with connect(stores.servers, cluster_id="f00") as other, pytest.raises(ClusterChanged):
        other.get("a")


def test_who_belongs_to_no_cluster_yet_is_not_asked_about_one(
    stores: LocalStores, kv: KeyValueClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may form another one, where revisions mean something else."""
    cluster_id = kv.status().cluster_id
    monkeypatch.setattr(NodeHandle, "cluster_id", "")
    with (
        connect(stores.servers, cluster_id=cluster_id, timeout_ms=300) as other,
        pytest.raises(Unreachable, match="no cluster yet"),
    ):
        other.get("a")


def test_a_lease_that_another_client_was_granted_is_known_by_its_id(stores: LocalStores) -> None:
    with connect(stores.servers) as owner, connect(stores.servers) as other:
        lease = owner.grant(30)
        assert other.keep_alive(lease) == 30_000
        assert other.time_to_live(lease)[0] == 30_000
        assert other.revoke(lease) == 0
        with pytest.raises(LeaseNotFound):
            owner.time_to_live(lease)


@pytest.mark.processes
def test_watches_leases_and_locks_outlive_a_leader() -> None:
    with LocalStores() as stores, connect(stores.servers) as kv:
        kv["w/0"] = "0"
        lease = kv.grant(3)
        kv.put("of a lease", "x", lease=lease)
        with kv.watch_prefix("w/") as watch, kv.lock("endpoint", ttl_s=3) as lock:
            token = lock.token
            waits = threading.Event()
            tokens: list[int] = []

            def wait_for_it() -> None:
                with connect(stores.servers) as own:
                    waits.set()
                    with own.lock("endpoint", ttl_s=3) as mine:
                        tokens.append(mine.token)

            waiter = threading.Thread(target=wait_for_it)
            waiter.start()
            waits.wait()
            for number in range(1, 50):
                if number == 25:
                    stores.cluster.kill(stores.cluster.leader())
                kv.put(f"w/{number}", str(number))
            seen: list[bytes] = []
            while len(seen) < 49:
                seen += [change.item.value for change in watch.batch(timeout_ms=20_000)]
            assert seen == [b"%d" % number for number in range(1, 50)]
            assert kv["of a lease"] == b"x"
            lock.check()
            assert not tokens
        waiter.join()
        assert tokens and tokens[0] > token
        assert kv["of a lease"] == b"x"


@pytest.mark.processes
def test_a_member_that_falls_silent_is_left_for_another(stores: LocalStores, kv: KeyValueClient) -> None:
    """Nothing closes the connection: a machine that has gone says nothing."""
    addresses = {f"s{number}": address for number, address in enumerate(stores.servers.split(","))}
    with Network({**addresses, "client": addresses["s0"]}) as network:
        seen = ",".join(network.address("client", name) for name in addresses)
        with connect(seen) as client, client.watch("silent") as watch:
            network.impose(both_ways([("client", "s0")]), CUT)
            kv.put("silent", "1")
            assert watch.batch(timeout_ms=30_000)[0].item.value == b"1"


@pytest.mark.processes
def test_a_lock_is_awaited_across_a_compaction_of_what_its_watch_has_missed() -> None:
    tokens: list[int] = []
    with (
        LocalStores(1) as alone,
        connect(alone.servers) as own,
        Network({"s0": alone.servers, "client": alone.servers}) as network,
        connect(network.address("client", "s0")) as client,
    ):

        def wait() -> None:
            with client.lock("compacted", ttl_s=60) as lock:
                tokens.append(lock.token)

        waiter = threading.Thread(target=wait)
        with own.lock("compacted", ttl_s=60) as held:
            waiter.start()
            eventually(lambda: own.status().watches == 1, what="the waiter's watch")
            cut = network.impose(both_ways([("client", "s0")]), CUT)
            network.reset([("client", "s0")])
            own.put("other", "1")
            own.compact(own.put("other", "2").revision)
            network.lift(cut)
        waiter.join()
    assert len(tokens) == 1 and tokens[0] > held.token


@pytest.mark.processes
def test_an_embedded_member_with_rocksdb_goes_on_where_it_was(tmp_path: Path) -> None:
    from quorumlog.config import GroupConfig, MemberAddress
    from quorumlog.server.free_ports import free_ports

    port, listen = free_ports(2)
    config = GroupConfig(
        member_id="n0",
        members=(MemberAddress("n0", "127.0.0.1", port),),
        data_dir=str(tmp_path / "n0"),
    )
    for turn in range(3):
        with (
            KeyValueStore(config, listen=f"127.0.0.1:{listen}", engine="rocksdb") as store,
            store.client(codec="json") as kv,
        ):
            assert list(kv) == [b"turn %d" % before for before in range(turn)]
            kv[f"turn {turn}"] = turn
    with pytest.raises(ConfigError, match="engine"):
        KeyValueStore(config, listen=f"127.0.0.1:{listen}", engine="sqlite")


@pytest.mark.processes
def test_an_embedded_member_that_could_not_listen_starts_once_it_can(tmp_path: Path) -> None:
    from quorumlog.config import GroupConfig, MemberAddress

    port, listen = free_ports(2)
    config = GroupConfig("n0", (MemberAddress("n0", "127.0.0.1", port),), str(tmp_path / "n0"))
    store = KeyValueStore(config, listen=f"127.0.0.1:{listen}")
    with socket.create_server(("127.0.0.1", listen)), pytest.raises(ConfigError, match="listen"):
        store.start()
    for _ in range(2):
        with store, store.client() as kv:
            with pytest.raises(ConfigError, match="this store runs already"):
                store.start()
            kv["a"] = "1"


@pytest.mark.processes
def test_a_full_store_takes_deletions_until_there_is_space() -> None:
    options = StoreOptions(quota_bytes=200_000)
    with LocalStores(1, options=options) as stores, connect(stores.servers) as kv:
        with pytest.raises(NoSpace, match="its quota is"):
            for number in range(100):
                kv.put(f"k{number}", bytes(10_000))
        kv.delete_prefix("k")
        kv.compact(kv.status().revision)
        while True:
            try:
                kv.put("k", "fits")
                break
            except NoSpace:
                kv.delete("nothing")
