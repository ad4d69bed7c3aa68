"""The script over gRPC. Each scenario has keys of its own, and says what each of its steps is about."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harness.etcd.session import NEVER, Session
from quorumlog.kv.etcd import messages_pb2 as rpc

DAY_S = 86_400
LARGE_BYTES = 700_000
"""Two of these are more than a response with fragments may hold."""

Scenario = Callable[[Session], None]
SCENARIOS: dict[str, Scenario] = {}


def scenario(function: Scenario) -> Scenario:
    SCENARIOS[function.__name__] = function
    return function


def _put(s: Session, name: str, value: str = "", **options: Any) -> rpc.PutRequest:
    return rpc.PutRequest(key=s.key(name), value=value.encode(), **options)


def _end(s: Session) -> bytes:
    """Of all keys of the scenario."""
    return s.key()[:-1] + b"0"


def _get(s: Session, name: str = "", **options: Any) -> rpc.RangeRequest:
    """Of one key; without a name, of all."""
    end = b"" if name else _end(s)
    return rpc.RangeRequest(key=s.key(name), range_end=end, **options)


def _five(s: Session) -> None:
    """Five keys whose orders by key, version, creation, change and value differ."""
    for name, value in (
        ("c", "2"),
        ("a", "3"),
        ("e", "1"),
        ("b", "3"),
        ("d", "0"),
        ("c", "4"),
        ("e", "2"),
    ):
        s.call("KV/Put", _put(s, name, value))


@scenario
def ranges(s: Session) -> None:
    s.about("ranges and limits")
    _five(s)
    s.call("KV/Range", _get(s, "a"))
    s.call("KV/Range", _get(s, "nothing"))
    for limit in (0, 1, 4, 5, 6, -1):
        s.call("KV/Range", _get(s, limit=limit, keys_only=True))
    s.call("KV/Range", _get(s, count_only=True))
    s.call("KV/Range", _get(s, count_only=True, limit=2))
    s.call("KV/Range", _get(s, serializable=True, keys_only=True))
    s.call("KV/Range", rpc.RangeRequest(key=s.key("d"), range_end=s.key("b")))
    s.call("KV/Range", rpc.RangeRequest(key=s.key("b"), range_end=s.key("b")))
    s.call("KV/Range", rpc.RangeRequest(key=b"", range_end=s.key("b")))
    s.call("KV/Range", rpc.RangeRequest(key=s.key("e"), range_end=b"\0", limit=1))
    s.about("ranges at a revision")
    s.call("KV/Range", _get(s, revision=s.at(3), keys_only=True))
    s.call("KV/Range", _get(s, "e", revision=s.at(-2)))
    s.call("KV/Range", _get(s, "a", revision=-1))
    s.call("KV/Range", _get(s, "a", revision=NEVER))
    s.call("KV/Range", _get(s, "a", revision=NEVER, serializable=True))


@scenario
def sorts(s: Session) -> None:
    s.about("sorts")
    _five(s)
    for order in ("ASCEND", "DESCEND"):
        for target in ("KEY", "VERSION", "CREATE", "MOD", "VALUE"):
            s.call("KV/Range", _get(s, sort_order=order, sort_target=target, keys_only=True))
    s.call("KV/Range", _get(s, sort_order="DESCEND", sort_target="MOD", limit=2))
    s.about("sorts without an order")
    for target in ("VERSION", "CREATE", "MOD", "VALUE"):
        s.call("KV/Range", _get(s, sort_target=target, limit=3, keys_only=True))
    s.about("a sort order that there is not")
    s.call("KV/Range", _get(s, sort_order=7))


@scenario
def revision_filters(s: Session) -> None:
    s.about("`more` and `count` with filters of revisions")
    _five(s)
    filters: list[dict[str, Any]] = [
        {"min_mod_revision": s.at(4)},
        {"max_mod_revision": s.at(4)},
        {"min_create_revision": s.at(3)},
        {"max_create_revision": s.at(3)},
        {"min_mod_revision": s.at(3), "max_mod_revision": s.at(5)},
        {"min_mod_revision": s.at(5), "max_mod_revision": s.at(3)},
    ]
    for options in filters:
        for limit in (0, 1, 2):
            s.call("KV/Range", _get(s, limit=limit, keys_only=True, **options))
        s.call("KV/Range", _get(s, count_only=True, **options))
    s.about("filters of revisions below 0")
    s.call("KV/Range", _get(s, min_mod_revision=-1, keys_only=True))
    s.call("KV/Range", _get(s, max_mod_revision=-1, keys_only=True))
    s.call("KV/Range", _get(s, min_create_revision=-1, keys_only=True))
    s.call("KV/Range", _get(s, max_create_revision=-1, keys_only=True))


@scenario
def puts(s: Session) -> None:
    s.about("puts")
    s.call("KV/Put", _put(s, "a", "1"))
    s.call("KV/Put", _put(s, "a", "2", prev_kv=True))
    s.call("KV/Put", _put(s, "new", "1", prev_kv=True))
    s.call("KV/Put", _put(s, "a", ignore_value=True, prev_kv=True))
    s.call("KV/Range", _get(s, "a"))
    s.call("KV/Put", _put(s, "a", "3", ignore_value=True))
    s.call("KV/Put", _put(s, "nothing", ignore_value=True))
    s.call("KV/Put", _put(s, "nothing", "1", ignore_lease=True))
    s.call("KV/Put", _put(s, "a", "3", ignore_lease=True, lease=5))
    s.call("KV/Put", _put(s, "a", "3", lease=5))
    s.call("KV/Put", _put(s, "a", "3", lease=-5))
    s.call("KV/Put", rpc.PutRequest(value=b"of no key"))
    s.call("Lease/LeaseGrant", rpc.LeaseGrantRequest(TTL=DAY_S, ID=101))
    s.call("KV/Put", _put(s, "leased", "1", lease=101))
    s.call("KV/Put", _put(s, "leased", "2", ignore_lease=True, prev_kv=True))
    s.call("KV/Put", _put(s, "leased", "3", prev_kv=True))
    s.call("KV/Range", _get(s, "leased"))
    s.call("Lease/LeaseRevoke", rpc.LeaseRevokeRequest(ID=101))
    s.call("KV/Range", _get(s))
    s.about("a put above 1.5 MiB")
    s.call("KV/Put", _put(s, "large", "v" * (1536 << 10)))


@scenario
def deletions(s: Session) -> None:
    s.about("deletions")
    _five(s)
    s.call("KV/DeleteRange", rpc.DeleteRangeRequest(key=s.key("a"), prev_kv=True))
    s.call("KV/DeleteRange", rpc.DeleteRangeRequest(key=s.key("a"), prev_kv=True))
    s.call("KV/Range", _get(s, "a", revision=s.at(-2)))
    s.call("KV/DeleteRange", rpc.DeleteRangeRequest(key=s.key("b"), range_end=s.key("d"), prev_kv=True))
    s.call("KV/DeleteRange", rpc.DeleteRangeRequest(key=s.key("z"), range_end=s.key("d")))
    s.call("KV/DeleteRange", rpc.DeleteRangeRequest(key=b"", range_end=s.key("d")))
    s.call("KV/Put", _put(s, "a", "again"))
    s.call("KV/Range", _get(s, "a"))
    s.call("KV/DeleteRange", rpc.DeleteRangeRequest(key=s.key(), range_end=_end(s)))
    s.call("KV/Range", _get(s))


def _compare(s: Session, name: str, target: Any, result: Any, **union: Any) -> rpc.Compare:
    return rpc.Compare(key=s.key(name), target=target, result=result, **union)


def _holds(s: Session, *compares: rpc.Compare) -> None:
    s.call("KV/Txn", rpc.TxnRequest(compare=compares))


@scenario
def compares(s: Session) -> None:
    s.about("comparisons")
    s.call("Lease/LeaseGrant", rpc.LeaseGrantRequest(TTL=DAY_S, ID=111))
    s.call("KV/Put", _put(s, "a", "m"))
    s.call("KV/Put", _put(s, "a", "m", lease=111))
    created, changed = s.at(1), s.at(2)
    for name in ("a", "nothing"):
        for result in ("EQUAL", "NOT_EQUAL", "GREATER", "LESS"):
            for union in (
                {"target": "VERSION", "version": 2},
                {"target": "VERSION", "version": 0},
                {"target": "CREATE", "create_revision": created},
                {"target": "MOD", "mod_revision": changed},
                {"target": "VALUE", "value": b"m"},
                {"target": "VALUE", "value": b"a"},
                {"target": "LEASE", "lease": 111},
            ):
                _holds(s, rpc.Compare(key=s.key(name), result=result, **union))
    s.about("comparisons of ranges")
    s.call("KV/Put", _put(s, "b", "m"))
    for end in (b"\0", _end(s), s.key("a")):
        for value in (b"m", b"a"):
            _holds(s, rpc.Compare(key=s.key("a"), range_end=end, target="VALUE", value=value))
    _holds(s, rpc.Compare(key=s.key("x"), range_end=s.key("z"), target="VALUE", value=b"m"))
    _holds(s, rpc.Compare(key=s.key("x"), range_end=s.key("z"), target="VERSION", version=0))
    s.about("comparisons whose target and value do not belong together")
    _holds(s, _compare(s, "a", "VERSION", "EQUAL", mod_revision=2))
    _holds(s, _compare(s, "a", "VALUE", "EQUAL"))
    _holds(s, _compare(s, "a", "VALUE", "EQUAL", version=2))
    _holds(s, _compare(s, "nothing", "VERSION", "EQUAL", value=b"m"))
    s.about("comparisons with results and targets that there are not")
    _holds(s, _compare(s, "a", "VERSION", 7, version=2))
    _holds(s, _compare(s, "a", 7, "EQUAL", version=2))
    _holds(s, rpc.Compare(target="VERSION", result="EQUAL"))


def _puts(*requests: rpc.PutRequest) -> list[rpc.RequestOp]:
    return [rpc.RequestOp(request_put=each) for each in requests]


def _deletes(s: Session, name: str, end: bytes = b"") -> rpc.RequestOp:
    return rpc.RequestOp(
        request_delete_range=rpc.DeleteRangeRequest(key=s.key(name), range_end=end, prev_kv=True)
    )


def _gets(s: Session, name: str = "", **options: Any) -> rpc.RequestOp:
    return rpc.RequestOp(request_range=_get(s, name, **options))


def _txn(s: Session, *success: rpc.RequestOp) -> None:
    s.call("KV/Txn", rpc.TxnRequest(success=success))


@scenario
def transactions(s: Session) -> None:
    s.about("transactions")
    never = _compare(s, "a", "VERSION", "GREATER", version=0)
    s.call("KV/Txn", rpc.TxnRequest())
    s.call("KV/Put", _put(s, "a", "0"))
    _txn(s, *_puts(_put(s, "a", "1", prev_kv=True), _put(s, "b", "1")), _gets(s))
    s.about("the header of an operation in a transaction")
    _txn(s, _gets(s, "a"), *_puts(_put(s, "a", "2")), _gets(s, "a"))
    s.about("transactions")
    _txn(s, _gets(s, "a"), _gets(s, count_only=True))
    s.call("KV/Txn", rpc.TxnRequest(compare=[never], success=_puts(_put(s, "then")), failure=[_gets(s)]))
    otherwise = [_deletes(s, "a"), *_puts(_put(s, "else", "1"))]
    absent = _compare(s, "a", "VERSION", "EQUAL", version=0)
    s.call("KV/Txn", rpc.TxnRequest(compare=[absent], success=[_gets(s)], failure=otherwise))
    s.call("KV/Txn", rpc.TxnRequest(compare=[absent, absent], success=_puts(_put(s, "a", "3"))))
    s.about("one key written twice in a transaction")
    _txn(s, *_puts(_put(s, "a", "x"), _put(s, "a", "y")))
    _txn(s, *_puts(_put(s, "a", "x")), _deletes(s, "a"))
    _txn(s, _deletes(s, "a"), *_puts(_put(s, "a", "x")))
    _txn(s, *_puts(_put(s, "b", "x")), _deletes(s, "a", s.key("c")))
    _txn(s, _deletes(s, "a"), _deletes(s, "a"))
    _txn(s, *_puts(_put(s, "a", "back")))
    _txn(s, _deletes(s, "a"), _deletes(s, "", _end(s)))
    s.about("transactions that are refused")
    _txn(s, *_puts(_put(s, "a", "not", lease=7)))
    _txn(s, *_puts(_put(s, "b", "not"), _put(s, "nothing", ignore_value=True)))
    _txn(s, *_puts(_put(s, "a", "not")), _gets(s, revision=NEVER))
    _txn(s, *_puts(rpc.PutRequest(value=b"of no key")))
    _txn(s, rpc.RequestOp())
    s.call("KV/Txn", rpc.TxnRequest(compare=[rpc.Compare()], success=[_gets(s, "a")]))
    _txn(s, *_puts(*(_put(s, f"n{number}") for number in range(129))))
    s.call("KV/Range", _get(s))


@scenario
def txn_from_a_key_on(s: Session) -> None:
    s.about("a key written twice, once by a deletion of all keys from one on")
    _txn(s, *_puts(_put(s, "zz", "x")), _deletes(s, "z", b"\0"))


@scenario
def nested_transactions(s: Session) -> None:
    s.about("nested transactions")
    inner = rpc.TxnRequest(
        compare=[_compare(s, "a", "VALUE", "EQUAL", value=b"1")],
        success=[*_puts(_put(s, "b", "1")), _gets(s)],
        failure=_puts(_put(s, "c", "1")),
    )
    _txn(s, *_puts(_put(s, "a", "1")), rpc.RequestOp(request_txn=inner), _gets(s))
    _txn(s, *_puts(_put(s, "a", "2")), rpc.RequestOp(request_txn=inner))
    _txn(s, rpc.RequestOp(request_txn=inner), *_puts(_put(s, "d", "1")))
    deeper = rpc.TxnRequest(success=[rpc.RequestOp(request_txn=inner), _gets(s, count_only=True)])
    _txn(s, rpc.RequestOp(request_txn=deeper))
    s.about("one key written by a transaction and by a nested one")
    _txn(s, *_puts(_put(s, "b", "x")), rpc.RequestOp(request_txn=inner))
    _txn(s, rpc.RequestOp(request_txn=inner), rpc.RequestOp(request_txn=inner))
    s.call("KV/Range", _get(s))


@scenario
def leases(s: Session) -> None:
    s.about("leases")
    s.call("Lease/LeaseGrant", rpc.LeaseGrantRequest(TTL=DAY_S, ID=121))
    s.call("Lease/LeaseGrant", rpc.LeaseGrantRequest(TTL=DAY_S, ID=121))
    s.call("Lease/LeaseGrant", rpc.LeaseGrantRequest(TTL=DAY_S))
    s.call("KV/Put", _put(s, "a", "1", lease=121))
    s.call("KV/Put", _put(s, "b", "1", lease=121))
    s.call("Lease/LeaseTimeToLive", rpc.LeaseTimeToLiveRequest(ID=121))
    s.call("Lease/LeaseTimeToLive", rpc.LeaseTimeToLiveRequest(ID=121, keys=True))
    s.call("Lease/LeaseTimeToLive", rpc.LeaseTimeToLiveRequest(ID=122, keys=True))
    s.call_stream(
        "Lease/LeaseKeepAlive", *(rpc.LeaseKeepAliveRequest(ID=lease) for lease in (121, 122, 121))
    )
    s.call("Lease/LeaseRevoke", rpc.LeaseRevokeRequest(ID=121))
    s.call("Lease/LeaseRevoke", rpc.LeaseRevokeRequest(ID=121))
    s.call("Lease/LeaseTimeToLive", rpc.LeaseTimeToLiveRequest(ID=121, keys=True))
    s.call_stream("Lease/LeaseKeepAlive", rpc.LeaseKeepAliveRequest(ID=121))
    s.call("KV/Range", _get(s))
    s.about("TTLs of leases")
    for number, ttl in enumerate(
        (0, -1, -NEVER, 1, 2, 3, 4, 9_000_000_000, 9_000_000_001, (1 << 63) - 1)
    ):
        s.call("Lease/LeaseGrant", rpc.LeaseGrantRequest(TTL=ttl, ID=130 + number))
        s.call("Lease/LeaseRevoke", rpc.LeaseRevokeRequest(ID=130 + number))
    s.about("a lease of the id 0")
    s.call("Lease/LeaseRevoke", rpc.LeaseRevokeRequest(ID=0))
    s.call("Lease/LeaseTimeToLive", rpc.LeaseTimeToLiveRequest(ID=0))
    s.call_stream("Lease/LeaseKeepAlive", rpc.LeaseKeepAliveRequest(ID=0))


@scenario
def leases_below_0(s: Session) -> None:
    s.about("ids of leases below 0")
    s.call("Lease/LeaseGrant", rpc.LeaseGrantRequest(TTL=DAY_S, ID=-7))
    s.call("KV/Put", _put(s, "a", "1", lease=-7))
    s.call("Lease/LeaseRevoke", rpc.LeaseRevokeRequest(ID=-7))


@scenario
def watches(s: Session) -> None:
    s.about("watches")
    stream = s.watch()
    stream.create(s.key(), _end(s), prev_kv=True)
    stream.create(s.key("a"))
    stream.create(s.key(), _end(s), filters=["NOPUT"])
    stream.create(s.key(), _end(s), filters=["NODELETE", "NODELETE"])
    for watch_id in range(4):
        stream.wait(watch_id, 1)
    s.call("KV/Put", _put(s, "a", "1"))
    s.call("KV/Put", _put(s, "a", "2"))
    _txn(s, *_puts(_put(s, "b", "1"), _put(s, "c", "1")))
    s.call("KV/DeleteRange", rpc.DeleteRangeRequest(key=s.key("a"), range_end=s.key("c")))
    for watch_id, count in ((0, 7), (1, 4), (2, 3), (3, 5)):
        stream.wait(watch_id, count)
    stream.note()
    s.about("a watch from an earlier revision")
    earlier = s.watch()
    earlier.create(s.key(), _end(s), start_revision=s.at(1), prev_kv=True)
    earlier.create(s.key(), _end(s), start_revision=s.at(3), filters=["NODELETE"])
    earlier.wait(0, 7)
    earlier.wait(1, 3)
    earlier.note()
    s.about("a watch from a later revision")
    later = s.watch()
    later.create(s.key("later"), start_revision=s.at(-1) + 2)
    later.wait(0, 1)
    for value in ("1", "2", "3"):
        s.call("KV/Put", _put(s, "later", value))
    later.wait(0, 2)
    later.cancel(0)
    later.wait(0, later.count(0) + 1)
    s.note("a watch from a later revision", {"was created": later.count(0) > 0})
    s.about("deletions by the end of a lease")
    s.call("Lease/LeaseGrant", rpc.LeaseGrantRequest(TTL=DAY_S, ID=141))
    s.call("KV/Put", _put(s, "leased/a", "1", lease=141))
    s.call("KV/Put", _put(s, "leased/b", "1", lease=141))
    leased = s.watch()
    leased.create(s.key("leased/"), s.key("leased0"), prev_kv=True)
    leased.wait(0, 1)
    s.call("Lease/LeaseRevoke", rpc.LeaseRevokeRequest(ID=141))
    leased.wait(0, 3)
    leased.note()


@scenario
def watch_requests(s: Session) -> None:
    s.about("ids of watches")
    s.call("KV/Put", _put(s, "a", "1"))
    stream = s.watch()
    stream.create(s.key("a"), watch_id=7)
    stream.wait(7, 1)
    stream.create(s.key("b"))
    stream.wait(0, 1)
    stream.note()
    s.about("an id of a watch that there is already")
    stream = s.watch()
    stream.create(s.key("a"), watch_id=7)
    stream.wait(7, 1)
    stream.create(s.key("a"), watch_id=7)
    stream.wait(-1, 1)
    stream.note()
    s.about("an id of a watch below 0")
    stream = s.watch()
    stream.create(s.key("a"), watch_id=-5)
    stream.wait(-5, 1)
    stream.note()
    s.about("the cancellation of a watch")
    stream = s.watch()
    stream.create(s.key("a"))
    stream.wait(0, 1)
    stream.cancel(0)
    stream.wait(0, 2)
    stream.create(s.key("a"), watch_id=9)
    stream.wait(9, 1)
    stream.cancel(4)
    stream.cancel(9)
    stream.wait(9, 2)
    stream.note()
    s.about("requests for progress")
    stream = s.watch()
    stream.create(s.key("a"))
    stream.wait(0, 1)
    stream.ask_progress()
    stream.wait(-1, 1)
    stream.note()
    s.about("watches of nothing")
    stream = s.watch()
    stream.create(s.key("b"), s.key("a"))
    stream.wait(-1, 1)
    stream.note()
    s.about("a watch of the empty key")
    stream = s.watch()
    stream.create(b"")
    stream.wait(0, 1)
    stream.note()
    s.about("a watch from a revision below 0")
    stream = s.watch()
    stream.create(s.key("a"), start_revision=-1)
    stream.wait(-1, 1)
    stream.note()
    s.about("a request to a stream of watches that asks nothing")
    stream = s.watch()
    stream.send(rpc.WatchRequest())
    stream.create(s.key("a"))
    stream.wait(0, 1)
    stream.note()


@scenario
def fragments(s: Session) -> None:
    s.about("fragments of large responses")
    for number in range(4):
        s.call("KV/Put", _put(s, str(number), "v" * LARGE_BYTES))
    stream = s.watch()
    stream.create(s.key(), _end(s), start_revision=s.at(1), fragment=True)
    stream.wait(0, 5)
    sizes = [size < 3 * LARGE_BYTES for size, _ in stream.responses]
    s.note(
        "Watch/Watch with fragments of four changes",
        {
            "changes": stream.count(0) - 1,
            "responses are small": all(sizes),
            "the last is marked as such": bool(stream.responses) and not stream.responses[-1][1],
        },
    )


@scenario
def compactions(s: Session) -> None:
    s.about("compactions")
    for value in range(4):
        s.call("KV/Put", _put(s, "a", str(value)))
    s.call("KV/Put", _put(s, "b", "1"))
    s.compact(s.at(3), physical=True)
    s.call("KV/Compact", rpc.CompactionRequest(revision=s.at(3)))
    s.call("KV/Compact", rpc.CompactionRequest(revision=s.at(2)))
    s.call("KV/Compact", rpc.CompactionRequest(revision=NEVER))
    s.call("KV/Range", _get(s, "a", revision=s.at(2)))
    s.call("KV/Range", _get(s, "a", revision=s.at(3)))
    s.call("KV/Range", _get(s, "a", revision=s.at(4)))
    _txn(s, *_puts(_put(s, "a", "not")), _gets(s, "a", revision=s.at(2)))
    s.about("a compaction at a revision of 0 or below")
    s.call("KV/Compact", rpc.CompactionRequest(revision=0))
    s.call("KV/Compact", rpc.CompactionRequest(revision=-1))
    s.about("watches from a compacted revision")
    stream = s.watch()
    stream.create(s.key("a"), start_revision=s.at(2))
    stream.wait(0, 2)
    stream.create(s.key("a"), start_revision=s.at(3), watch_id=5)
    stream.wait(5, 3)
    stream.note()
    s.about("a previous value that is compacted")
    s.call("KV/Put", _put(s, "a", "9"))
    s.compact(s.at(-1))
    stream = s.watch()
    stream.create(s.key("a"), start_revision=s.at(-1), prev_kv=True)
    stream.wait(0, 2)
    stream.note()


@scenario
def maintenance(s: Session) -> None:
    s.about("status")
    s.call("Maintenance/Status", rpc.StatusRequest())
    s.about("alarms")
    s.call("Maintenance/Alarm", rpc.AlarmRequest(action="GET"))
    s.call("Maintenance/Alarm", rpc.AlarmRequest(action="DEACTIVATE", alarm="NOSPACE"))
    s.about("defragmentation")
    s.call("Maintenance/Defragment", rpc.DefragmentRequest())
    s.about("hashes")
    s.call("KV/Put", _put(s, "a", "1"))
    s.compact(s.at(-1))  # whatever scenarios before have compacted
    s.call("Maintenance/HashKV", rpc.HashKVRequest())
    s.call("Maintenance/HashKV", rpc.HashKVRequest(revision=NEVER))
    s.about("handing over leadership to nobody")
    s.call("Maintenance/MoveLeader", rpc.MoveLeaderRequest(targetID=5))


@scenario
def users(s: Session) -> None:
    s.about("users while there are none")
    s.call("Auth/AuthStatus", rpc.AuthStatusRequest())
    s.call("Auth/Authenticate", rpc.AuthenticateRequest(name="root", password="sesame"))
    s.call("Auth/UserList", rpc.AuthUserListRequest())
    s.call("Auth/RoleList", rpc.AuthRoleListRequest())
    s.call("Auth/UserGet", rpc.AuthUserGetRequest(name="nobody"))
    s.call("Auth/RoleGet", rpc.AuthRoleGetRequest(role="nothing"))
    s.call("Auth/UserDelete", rpc.AuthUserDeleteRequest(name="nobody"))
    s.call("Auth/RoleDelete", rpc.AuthRoleDeleteRequest(role="nothing"))
    s.call("Auth/AuthEnable", rpc.AuthEnableRequest())
