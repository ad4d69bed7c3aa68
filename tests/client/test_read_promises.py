"""Reads with a name: what goes over the wire, who is asked next, what an older server is not asked."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from quorumlog.errors import BadRequest, LedgerError, NotCaughtUp, TooStale
from quorumlog.wire.client_message import ClientMessage
from quorumlog.wire.client_messages import ReadRequest
from quorumlog.wire.read_promise import COMMITTED, READ_INDEX, ReadGuarantee
from tests.client.both_clients import Client
from tests.client.fake_server import Action, FakeGroup, FakeServer

NewClient = Callable[..., Client]


def asked_of(group: FakeGroup) -> list[ReadRequest]:
    calls = [call for server in group.servers for call in server.calls_of(ReadRequest)]
    return [call for call in calls if isinstance(call, ReadRequest)]


def refusing(error: LedgerError, *refused: FakeServer) -> Callable[[FakeServer, ClientMessage], Action]:
    def script(server: FakeServer, message: ClientMessage) -> Action:
        return error if server in refused and isinstance(message, ReadRequest) else None

    return script


def test_what_a_read_asks_for_is_what_was_named(group: FakeGroup, new_client: NewClient) -> None:
    client = new_client(group.addresses, max_staleness_ms=250, read_from="leader")
    last_index = client.append(b"a").last_index
    client.get(last_index)
    client.get(last_index, read_consistency="read_index")
    client.get(last_index, read_consistency="committed", max_staleness_ms=10)
    assert [asked.promise for asked in asked_of(group)] == [
        ReadGuarantee(consistency=COMMITTED, max_staleness_ms=250, at_least_index=last_index),
        ReadGuarantee(consistency=READ_INDEX),
        ReadGuarantee(consistency=COMMITTED, max_staleness_ms=10, at_least_index=last_index),
    ]
    assert not any(asked.from_leader for asked in asked_of(group)), "whoever answers keeps the promise"


def test_without_a_name_nothing_is_promised_and_the_leader_answers(
    group: FakeGroup, new_client: NewClient
) -> None:
    group.append([b"a"])
    assert new_client(group.addresses).get(1).body == b"a"
    (asked,) = asked_of(group)
    assert asked.promise is None and asked.from_leader


@pytest.mark.parametrize("error", [TooStale("too old"), NotCaughtUp("behind")])
def test_another_member_is_asked_where_one_is_not_fresh_enough(
    group: FakeGroup, new_client: NewClient, error: LedgerError
) -> None:
    group.append([b"a"])
    fresh = group[2]
    for server in group.servers:
        server.script = refusing(error, group[0], group[1])
    client = new_client(group.addresses, read_consistency="committed")
    for _ in range(3):
        assert client.get(1).body == b"a"
    assert len(fresh.calls_of(ReadRequest)) == 3


def test_when_all_are_too_old_the_last_refusal_is_raised_in_time(
    group: FakeGroup, new_client: NewClient
) -> None:
    for server in group.servers:
        server.script = refusing(TooStale("too old"), *group.servers)
    client = new_client(group.addresses, timeout_ms=400)
    with pytest.raises(TooStale, match=r"too old \(gave up after"):
        client.get(0, max_staleness_ms=5)
    assert all(server.calls_of(ReadRequest) for server in group.servers), "everybody was asked"


def test_a_server_of_an_earlier_release_is_not_asked_for_what_it_would_not_keep(
    group: FakeGroup, new_client: NewClient
) -> None:
    group.knows_promises = False
    client = new_client(group.addresses)
    with pytest.raises(BadRequest, match=r"ignores read_consistency \(read_index\)"):
        client.get(0, read_consistency="read_index")
    assert asked_of(group) == []


def test_a_long_read_is_bound_to_one_end(group: FakeGroup, new_client: NewClient) -> None:
    """Where it ends is promised once; what is asked for later only has to come so far."""
    group.append([b"%d" % number + bytes(1000) for number in range(50)])
    client = new_client(group.addresses, read_consistency="read_index")
    results = client.read_batches(0, batch_bytes=4000)
    assert sum(batch.count for batch in results) == 51
    first, *others = sorted(asked_of(group), key=lambda asked: asked.first_index)
    assert first.promise == ReadGuarantee(consistency=READ_INDEX)
    assert {asked.promise for asked in others} == {ReadGuarantee(at_least_index=50)}
