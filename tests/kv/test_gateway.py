"""The gateway for clients of etcd, sent the same requests of HTTP as a real etcd: answers are equal,
where the revisions of one are those of the other, in the same order."""

from __future__ import annotations

import http.client
import json
from base64 import b64decode, b64encode
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quorumlog.kv.endpoint import KeyValueEndpoint
from quorumlog.kv.etcd.gateway import EtcdGateway
from quorumlog.kv.service import StoreOptions
from quorumlog.kv.testing import LocalStores
from quorumlog.node import LedgerNode
from quorumlog.server.free_ports import free_ports
from tests.kv.etcd import EXAMPLES, Etcd, running_etcd
from tests.net.test_quotas import limit

pytestmark = pytest.mark.processes


class Gateways(LocalStores):
    def __init__(self) -> None:
        super().__init__()
        self.ports = {f"n{number}": port for number, port in enumerate(free_ports(3))}

    def _endpoints(self, member_id: str) -> list[Any]:
        address = f"127.0.0.1:{self.ports[member_id]}"
        (endpoint,) = super()._endpoints(member_id)
        assert isinstance(endpoint, KeyValueEndpoint)
        endpoint._options = replace(StoreOptions(), etcd_gateway=f"http://{address}")
        return [EtcdGateway(endpoint, address, self.servers, member_id), endpoint]


@pytest.fixture(scope="module")
def gateways() -> Iterator[Gateways]:
    with Gateways() as made:
        yield made


@pytest.fixture(scope="module")
def etcd() -> Iterator[Etcd]:
    with running_etcd() as running:
        yield running


def asked(port: int, path: str, body: Any = None) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        data = body if body is None or isinstance(body, bytes) else json.dumps(body)
        connection.request("GET" if body is None else "POST", path, data)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def b(text: str) -> str:
    return b64encode(text.encode()).decode()


def key(name: str, **options: Any) -> dict[str, Any]:
    return {"key": b(name), **options}


def put(name: str, value: str = "", **options: Any) -> tuple[str, Any]:
    return "/v3/kv/put", key(name, value=b(value), **options)


def test_an_address_has_so_many_connections_and_no_more(gateways: Gateways) -> None:
    """With those of the gateways themselves, which ask the stores from there."""
    limit(gateways.cluster, address_connections=20)
    kept, status = [], 200
    try:
        while status == 200 and len(kept) < 30:
            kept.append(http.client.HTTPConnection("127.0.0.1", gateways.ports["n0"], timeout=30))
            kept[-1].request("GET", "/version")
            response = kept[-1].getresponse()
            status, told = response.status, response.read()
        assert status == 429 and b"too many requests" in told and len(kept) <= 21
    finally:
        limit(gateways.cluster)
        for each in kept:
            each.close()


OF_REVISIONS = {"revision", "create_revision", "mod_revision", "compact_revision"}


class Side:
    """Either of the two; the n-th revision that it came to is told as n."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.revisions: list[int] = []

    def ask(self, path: str, body: Any) -> tuple[int, Any]:
        status, told = asked(self.port, path, self.with_revisions(body))
        revision = int(told.get("header", {}).get("revision", 0))
        if revision and (not self.revisions or revision > self.revisions[-1]):
            self.revisions.append(revision)
        return status, self.told(told)

    def with_revisions(self, body: Any) -> Any:
        """Requests name the n-th revision as [n]."""
        if isinstance(body, dict):
            return {name: self.with_revisions(value) for name, value in body.items()}
        if isinstance(body, list) and len(body) == 1 and isinstance(body[0], int):
            return self.revisions[body[0]] if body[0] < len(self.revisions) else 10**9
        return [self.with_revisions(each) for each in body] if isinstance(body, list) else body

    def told(self, answer: Any) -> Any:
        if isinstance(answer, list):
            return [self.told(each) for each in answer]
        if not isinstance(answer, dict):
            return answer
        found = {}
        for name, value in answer.items():
            if name in OF_REVISIONS:
                found[name] = self.revisions.index(int(value))
            elif name not in ("cluster_id", "member_id", "raft_term"):
                found[name] = self.told(value)
        return found

    def watch(self, create: Any, count: int, compacted: int | None = None) -> list[Any]:
        """`compacted`: as of which revision it is told that it was cancelled."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            body = json.dumps({"create_request": self.with_revisions(create)})
            connection.request("POST", "/v3/watch", body)
            response = connection.getresponse()
            events: list[Any] = []
            first = json.loads(response.readline())["result"]
            assert first["created"], first
            while len(events) < count:
                result = json.loads(response.readline())["result"]
                if result.get("canceled"):
                    assert compacted is not None
                    return [int(result["compact_revision"]) == self.revisions[compacted]]
                events += result["events"]
            return [self.told(each) for each in events]
        finally:
            connection.close()


FREE = {"target": "CREATE", "key": b("lock"), "create_revision": "0"}
TAKE = {"request_put": key("lock", value=b("me"), lease="71")}
REQUESTS: list[tuple[str, Any]] = [
    put("a", "1"),
    put("a", "2", prev_kv=True),
    put("b", "3"),
    ("/v3/kv/range", key("a")),
    ("/v3/kv/range", key("a", revision=[0])),
    ("/v3/kv/range", key("a", range_end=b("z"), limit="1", serializable=True)),
    ("/v3/kv/range", key("a", range_end=b("z"), sort_order="DESCEND", sort_target=2, keys_only=True)),
    ("/v3/kv/range", key("nothing")),
    ("/v3/kv/range", key("a", revision=[99])),
    ("/v3/kv/range", {}),
    ("/v3/lease/grant", {"TTL": "60", "ID": "71"}),
    ("/v3/lease/grant", {"TTL": 60, "ID": 71}),
    ("/v3/lease/keepalive", {"ID": "71"}),
    ("/v3/lease/keepalive", {"ID": "72"}),
    ("/v3/kv/txn", {"compare": [FREE], "success": [TAKE]}),
    ("/v3/kv/txn", {"compare": [FREE], "success": [TAKE]}),
    (
        "/v3/kv/txn",
        {
            "compare": [{"target": "MOD", "key": b("lock"), "mod_revision": [3], "result": "EQUAL"}],
            "success": [
                {"request_txn": {"success": [{"request_put": key("c", value=b("4"))}]}},
                {"request_range": key("c")},
                {"request_delete_range": key("b", prev_kv=True)},
            ],
        },
    ),
    ("/v3/kv/txn", {"success": [{"request_put": key("c")}, {"request_put": key("c")}]}),
    put("camel", "1", prevKv=True),
    put("camel", "2", prevKv=True),
    ("/v3/kv/put", key("camel", ignoreValue=True)),
    ("/v3/kv/range", key("camel")),
    ("/v3/kv/range", key("a", rangeEnd=b("z"), sortOrder="DESCEND", keysOnly=True)),
    ("/v3/kv/range", key("a", rangeEnd=b("z"), maxModRevision=[1])),
    ("/v3/kv/range", key("a", range_end=b("z"), limit=-1, revision="-1")),
    (
        "/v3/kv/txn",
        {
            "compare": [{"target": "CREATE", "key": b("camel"), "createRevision": "123"}],
            "success": [{"requestPut": key("camel", value=b("3"))}],
            "failure": [{"requestDeleteRange": key("camel", rangeEnd=b("d"), prevKv=True)}],
        },
    ),
    put("d", lease="73"),
    put("nothing", ignore_value=True),
    put("a", "x", ignore_value=True),
    ("/v3/kv/deleterange", key("a", prev_kv=True)),
    ("/v3/kv/deleterange", key("a", range_end=b("b"))),
    ("/v3/lease/revoke", {"ID": "71"}),
    ("/v3/lease/revoke", {"ID": "71"}),
    ("/v3/kv/compaction", {"revision": [2]}),
    ("/v3/kv/compaction", {"revision": [1]}),
    ("/v3/kv/range", key("a", revision=[0])),
]


def test_requests_are_answered_as_etcd_does(gateways: Gateways, etcd: Etcd) -> None:
    theirs, ours = Side(etcd._port), Side(gateways.ports["n1"])
    for side in (theirs, ours):
        empty = asked(side.port, "/v3/kv/range", key("a"))[1]
        assert empty["header"]["revision"] == "1", "a store that is new is at a revision, too"
    for path, body in REQUESTS:
        assert ours.ask(path, body) == theirs.ask(path, body), (path, body)
    everything = {"key": b("\0"), "range_end": b("\0")}
    for create, count, compacted in (
        ({**everything, "start_revision": [2], "prev_kv": True}, 5, None),
        ({"key": b("lock"), "start_revision": [2], "filters": ["NOPUT"]}, 1, None),
        ({**everything, "startRevision": [1]}, 1, 2),
    ):
        expected = theirs.watch(create, count, compacted)
        assert expected == ours.watch(create, count, compacted), create


KEYS = ("a", "a/", "b")
names = st.sampled_from(KEYS)
# A range that ends where it begins is none; no other ends than those that all keys lie before or behind.
spans = st.sampled_from([{}, {}, {"range_end": b("b")}, {"range_end": b("\0")}])
numbers = st.sampled_from(["0", "71", "72"])
flags = st.booleans()
puts = st.builds(
    lambda k, v, lease, p: key(k, value=b(v), lease=lease, prev_kv=p), names, names, numbers, flags
)
deletes = st.builds(lambda k, span, p: key(k, prev_kv=p, **span), names, spans, flags)
compares = st.builds(
    lambda k, version, result: key(k, target="VERSION", version=version, result=result),
    names,
    st.sampled_from(["0", "1", "2"]),
    st.sampled_from(["EQUAL", "GREATER", "LESS", "NOT_EQUAL"]),
)
operations = st.one_of(
    puts.map(lambda put: {"request_put": put}),
    st.builds(lambda k: {"request_delete_range": key(k)}, names),
    st.builds(lambda k, span: {"request_range": key(k, **span)}, names, spans),
)
txns = st.builds(
    lambda *lists: dict(zip(("compare", "success", "failure"), lists, strict=True)),
    st.lists(compares, max_size=1),
    st.lists(operations, max_size=3),
    st.lists(operations, max_size=2),
)
leases = st.sampled_from([{"ID": "71"}, {"ID": "72"}])
watches = st.builds(
    lambda k, span, p, filters, back: key(k, prev_kv=p, filters=filters, start_revision=back, **span),
    names,
    spans,
    flags,
    st.sampled_from([[], [], ["NOPUT"], ["NODELETE"]]),
    st.sampled_from([0, 0, [0]]),
)
live = st.one_of(
    puts.map(lambda put: ("/v3/kv/put", put)),
    deletes.map(lambda delete: ("/v3/kv/deleterange", delete)),
    txns.map(lambda txn: ("/v3/kv/txn", txn)),
    leases.map(lambda lease: ("/v3/lease/grant", {**lease, "TTL": "60"})),
    leases.map(lambda lease: ("/v3/lease/keepalive", lease)),
    leases.map(lambda lease: ("/v3/lease/revoke", lease)),
    leases.map(lambda lease: ("/v3/lease/timetolive", {**lease, "keys": True})),
    watches.map(lambda watch: ("/v3/watch", watch)),
)


class LiveWatch:
    """Made while changes go on, and read when they are over."""

    def __init__(self, side: Side, create: Any) -> None:
        self._side = side
        self._connection = http.client.HTTPConnection("127.0.0.1", side.port, timeout=30)
        body = json.dumps({"create_request": side.with_revisions(create)})
        self._connection.request("POST", "/v3/watch", body)
        self._response = self._connection.getresponse()
        assert json.loads(self._response.readline())["result"]["created"]

    def until(self, revision: int) -> list[Any]:
        """All that it tells, up to the `revision`-th."""
        events: list[Any] = []
        while not events or events[-1]["kv"]["mod_revision"] < revision:
            result = json.loads(self._response.readline())["result"]
            events += [self._side.told(each) for each in result["events"]]
        self._connection.close()
        return events


def within(create: Any, name: str) -> bool:
    if "range_end" not in create:
        return bool(create["key"] == b(name))
    end = create["range_end"]
    return b64decode(create["key"]) <= name.encode() and (
        end == b("\0") or name.encode() < b64decode(end)
    )


@settings(
    max_examples=max(12, EXAMPLES // 4),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(requests=st.lists(live, min_size=5, max_size=25))
def test_what_is_told_while_it_changes_is_what_etcd_tells(
    gateways: Gateways, etcd: Etcd, requests: list[tuple[str, Any]]
) -> None:
    """Watches that follow changes as they come, and leases that are kept alive meanwhile."""
    sides = Side(etcd._port), Side(gateways.ports["n2"])
    for side in sides:  # what lies there is of the example before
        for lease in ("71", "72"):
            asked(side.port, "/v3/lease/revoke", {"ID": lease})
        asked(side.port, "/v3/kv/deleterange", {"key": b("\0"), "range_end": b("\0")})
    followed: list[tuple[Any, list[LiveWatch]]] = []

    def ask(path: str, body: Any) -> Any:
        theirs, ours = (side.ask(path, body) for side in sides)
        for told in (theirs[1], ours[1]):
            for response in told.get("responses", ()):
                for inner in response.values():
                    # etcd tells how far the transaction was by then; ours tells its revision in all.
                    inner.pop("header")
            if path == "/v3/lease/timetolive" and "grantedTTL" in told:
                assert 50 <= int(told.pop("TTL")) <= 60  # they were granted one after the other
            if "keys" in told:
                told["keys"].sort()  # etcd keeps those of a lease in no order
        assert ours == theirs, (path, body)
        return ours[1]

    ask(*put("b", "first"))
    for path, body in requests:
        if path == "/v3/watch":
            followed.append((body, [LiveWatch(side, body) for side in sides]))
        else:
            ask(path, body)
    words = [(name, "NOPUT", *put(name, "last")) for name in KEYS]
    words += [(name, "NODELETE", "/v3/kv/deleterange", key(name)) for name in KEYS]
    last = [(name, no, ask(path, body)["header"]["revision"]) for name, no, path, body in words]
    for create, (theirs, ours) in followed:
        wanted = [at for name, no, at in last if within(create, name) and no not in create["filters"]]
        if wanted:
            assert ours.until(max(wanted)) == theirs.until(max(wanted)), create


def test_bytes_come_in_either_alphabet(gateways: Gateways) -> None:
    port, value = gateways.ports["n0"], b"\xfb\xef\xff\xfe"
    for spelt in ("++///g==", "--___g==", "++///g", "--___g"):
        assert asked(port, "/v3/kv/put", {"key": spelt, "value": spelt})[0] == 200
        (found,) = asked(port, "/v3/kv/range", {"key": "++///g=="})[1]["kvs"]
        assert b64decode(found["value"]) == value, spelt
        assert asked(port, "/v3/kv/deleterange", {"key": spelt})[1]["deleted"] == "1"


def test_the_least_ttl_is_told_where_less_is_asked_for(gateways: Gateways) -> None:
    for ttl in (0, "-5", 1):
        status, told = asked(gateways.ports["n0"], "/v3/lease/grant", {"TTL": ttl})
        assert (status, told["TTL"]) == (200, "3")
    for ttl in (9_000_000_001, "9223372036854775807"):
        status, told = asked(gateways.ports["n0"], "/v3/lease/grant", {"TTL": ttl})
        assert (status, told["code"], told["error"]) == (400, 11, "etcdserver: too large lease TTL")


@pytest.mark.parametrize(
    ("path", "body", "what"),
    [
        ("/v3/kv/put", key("m", prev_kv=True, prevKv=True), "prev_kv is given in both spellings"),
        ("/v3/kv/put", key("m", ignoreLeases=True), "there is no field 'ignoreLeases'"),
        (
            "/v3/kv/put",
            key("m", prev_kv="false"),
            "Failed to parse prev_kv field: Expected true or false",
        ),
        (
            "/v3/kv/range",
            key("m", keys_only="false"),
            "Failed to parse keys_only field: Expected true or false",
        ),
        ("/v3/kv/range", key("m", limit=True), "Failed to parse limit field"),
        ("/v3/kv/range", key("m", limit="1_0"), "limit is '1_0'"),
        ("/v3/kv/range", key("m", limit="9" * 5000), "limit is '999"),
        (
            "/v3/kv/range",
            key("m", limit=1.5),
            "Failed to parse limit field: Couldn't parse integer: 1.5",
        ),
        ("/v3/kv/deleterange", key("m", end=b("n")), "there is no field 'end'"),
        ("/v3/kv/txn", {"compares": []}, "there is no field 'compares'"),
        ("/v3/kv/txn", {"compare": [{"createdRevision": 1, "key": b("m")}]}, "'createdRevision'"),
        ("/v3/kv/txn", {"success": [{"request_putt": key("m")}]}, "'request_putt'"),
        (
            "/v3/kv/txn",
            {"success": [{"request_put": key("m"), "requestRange": key("m")}]},
            'should not have multiple "request" oneof',
        ),
        (
            "/v3/kv/compaction",
            {"revision": 1, "physical": "no"},
            "Failed to parse physical field",
        ),
        (
            "/v3/kv/txn",
            {"compare": [{"target": "VERSIONS", "key": b("m")}], "success": [{"requestPut": key("m")}]},
            "Invalid enum value VERSIONS",
        ),
        ("/v3/kv/put", {"key": "bQ==!"}, "key is 'bQ==!', which is not base64"),
        ("/v3/kv/put", {"key": 5}, "key is 5, which is not text in base64"),
        ("/v3/lease/grant", {"ttl": 5}, "there is no field 'ttl'"),
        ("/v3/lease/revoke", {"id": 5}, "there is no field 'id'"),
        ("/v3/lease/timetolive", {"ID": 5, "keys": 1}, "Failed to parse keys field"),
        ("/v3/lease/leases", {"ID": 5}, "there is no field 'ID'"),
        ("/v3/cluster/member/list", {"id": 5}, "there is no field 'id'"),
        ("/v3/watch", {"create_request": key("m", startRevisions=1)}, "'startRevisions'"),
        (
            "/v3/watch",
            {"createRequest": key("m", progress_notify="no")},
            "Failed to parse progress_notify field",
        ),
    ],
)
def test_what_it_does_not_know_is_refused_by_name(
    gateways: Gateways, path: str, body: dict[str, Any], what: str
) -> None:
    status, told = asked(gateways.ports["n0"], path, body)
    assert (status, told["code"]) == (400, 3)
    assert what in told["message"]
    assert "count" not in asked(gateways.ports["n0"], "/v3/kv/range", key("m"))[1], "nothing is done"


def test_it_is_not_healthy_while_puts_are_refused(
    gateways: Gateways, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LedgerNode, "lacks_space", "the disk is full")
    status, told = asked(gateways.ports["n0"], "/health")
    assert (status, told) == (503, {"health": "false", "reason": "the disk is full"})


def test_it_says_what_it_is_and_who_else_there_is(gateways: Gateways) -> None:
    port = gateways.ports["n0"]
    assert asked(port, "/version") == (200, {"etcdserver": "3.5.1", "etcdcluster": "3.5.1"})
    assert asked(port, "/health")[1]["health"] == "true"
    _, told = asked(port, "/v3/cluster/member/list", {})
    urls = [url for member in told["members"] for url in member["clientURLs"]]
    assert urls == [f"http://127.0.0.1:{each}" for each in gateways.ports.values()]
    assert asked(port, "/v3/nothing", {})[0] == 404
    assert asked(port, "/v3/kv/range", b"{")[0] == 400
    nested = b'{"success": [{"request_txn": ' * 20_000 + b"{}" + b"}]}" * 20_000
    for path, body in (
        ("/v3/kv/range", {"key": "%"}),
        ("/v3/kv/range", b'{"key": "YQ==", "limit": 1e999}'),
        ("/v3/kv/range", {"key": "YQ==", "limit": str(2**64)}),
        ("/v3/kv/txn", nested),
    ):
        status, told = asked(port, path, body)
        assert (status, told["code"]) == (400, 3)
