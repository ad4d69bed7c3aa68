"""Appends: exactly three outcomes, whoever leads and whatever breaks."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable

import pytest

from quorumlog.batch import EntryBatch
from quorumlog.entry import AppendReceipt, Durability
from quorumlog.errors import (
    BadRequest,
    BodyTooLarge,
    ClusterChanged,
    ConfigError,
    DiskFull,
    LeaderNotReady,
    NotLeader,
    OutcomeUnknown,
    PendingFull,
    RequestTimeout,
    UnknownGroup,
    Unreachable,
)
from quorumlog.wire.client_message import ClientMessage
from quorumlog.wire.client_messages import AppendRequest, AppendResponse, StatusRequest
from tests.client.both_clients import Client, asyncio_client_of
from tests.client.fake_server import (
    Action,
    CarryOutAndDrop,
    Drop,
    FakeGroup,
    FakeServer,
    Hang,
    Script,
)
from tests.waiting import eventually


def on_append(*actions: Action) -> Script:
    """The first appends meet these actions, the others are carried out."""
    left = iter(actions)

    def script(server: FakeServer, message: ClientMessage) -> Action:
        return next(left, None) if isinstance(message, AppendRequest) else None

    return script


# -------------------------------------------------------------------- committed


def test_an_append_is_answered_with_its_place(client: Client, group: FakeGroup) -> None:
    assert client.append(b"one") == AppendReceipt(2, 1, 1, Durability.SYNC)
    assert client.append_batch([b"two", b"three"]) == AppendReceipt(2, 2, 2, Durability.SYNC)
    assert client.append_batch(EntryBatch.from_bodies([b"four"])).first_index == 4
    assert group.bodies() == [b"one", b"two", b"three", b"four"]


def test_any_listed_server_leads_to_the_leader(
    group: FakeGroup, new_client: Callable[..., Client]
) -> None:
    group.elect(group[2])
    for server in group.servers:
        receipt = new_client(server.address).append(server.id.encode())
        assert receipt.term == 3
    assert [len(s.calls_of(AppendRequest)) for s in group.servers] == [0, 0, 3]


def test_the_leader_is_found_by_the_hint_of_a_refusal(client: Client, group: FakeGroup) -> None:
    client.append(b"at n0")
    group.elect(group[1])
    assert client.append(b"at n1").term == 3
    assert group.bodies() == [b"at n0", b"at n1"]


def test_the_leader_is_found_without_any_hint(client: Client, group: FakeGroup) -> None:
    client.append(b"at n0")
    group[0].knows_leader = group[1].knows_leader = False
    group.elect(group[2])
    assert client.append(b"at n2").term == 3


@pytest.mark.parametrize(
    "refusal",
    [
        NotLeader("not me"),
        LeaderNotReady("no leader yet"),
        PendingFull("full", retry_after_ms=5),
        DiskFull("no space"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_refused_append_is_sent_again(client: Client, group: FakeGroup, refusal: PendingFull) -> None:
    group[0].script = on_append(refusal, refusal, refusal)
    assert client.append(b"at last").count == 1
    assert len(group[0].calls_of(AppendRequest)) == 4
    assert group.bodies() == [b"at last"]


# -------------------------------------------------------------------- refused


def test_a_refusal_that_lasts_is_what_the_deadline_tells(
    group: FakeGroup, new_client: Callable[..., Client]
) -> None:
    group[0].script = on_append(*itertools.repeat(DiskFull("96 % of the disk is in use"), 1000))
    with pytest.raises(DiskFull) as caught:
        new_client(group.addresses, timeout_ms=300).append(b"x")
    assert "96 % of the disk is in use" in str(caught.value)
    assert group[0].address in str(caught.value)
    assert group.bodies() == []


def test_no_server_at_all_names_every_server(
    group: FakeGroup, new_client: Callable[..., Client]
) -> None:
    for server in group.servers:
        server.stop()
    with pytest.raises(Unreachable) as caught:
        new_client(group.addresses, timeout_ms=300).append(b"x")
    for server in group.servers:
        assert server.address in str(caught.value)
    assert "refused" in str(caught.value)


def test_no_leader_names_every_server_and_what_it_said(
    group: FakeGroup, new_client: Callable[..., Client]
) -> None:
    group.depose()

    def names_all() -> bool:
        with pytest.raises(RequestTimeout) as caught:
            new_client(group.addresses, timeout_ms=400).append(b"x")
        named = [f"{s.address} ({s.id} is follower in term 2" for s in group.servers]
        return all(server in str(caught.value) for server in named)

    eventually(names_all, what="enough time to ask every server")
    assert group.bodies() == []


def test_an_append_waits_for_a_leader_inside_its_deadline(client: Client, group: FakeGroup) -> None:
    group.depose()
    receipts: list[AppendReceipt] = []
    caller = threading.Thread(target=lambda: receipts.append(client.append(b"patient")))
    caller.start()
    for server in group.servers:
        server.wait_for_calls(StatusRequest, 3)
    group.elect(group[2])
    caller.join(10)
    assert [receipt.term for receipt in receipts] == [3]


def test_limits_of_the_server_are_told_before_anything_is_sent(
    group: FakeGroup, new_client: Callable[..., Client]
) -> None:
    group.max_entry_bytes = 1048
    group.max_frame_bytes = 4096
    client = new_client(group.addresses)
    assert client.append(b"x" * 1000).count == 1
    with pytest.raises(BodyTooLarge, match="1001 bytes is above the limit of 1000"):
        client.append(b"x" * 1001)
    with pytest.raises(BodyTooLarge, match="frame limit of 4096"):
        client.append_batch([b"x" * 1000] * 4)
    assert len(group[0].calls_of(AppendRequest)) == 1


def test_arguments_that_make_no_sense_are_refused(client: Client) -> None:
    with pytest.raises(BadRequest, match="at least one body"):
        client.append_batch([])
    with pytest.raises(BadRequest, match="list of bodies"):
        client.append_batch(b"bytes")  # type: ignore[arg-type]
    with pytest.raises(BadRequest, match="body must be"):
        client.append("text")  # type: ignore[arg-type]


@pytest.mark.parametrize("servers", ["", "localhost", "localhost:port", "a:1,,b"])
def test_a_list_that_cannot_be_read(servers: str, new_client: Callable[..., Client]) -> None:
    with pytest.raises(ConfigError):
        new_client(servers)


@pytest.mark.parametrize("welcomes", [False, True])
def test_another_group_is_told_at_once(
    group: FakeGroup, new_client: Callable[..., Client], welcomes: bool
) -> None:
    for server in group.servers:
        server.welcomes_any_group = welcomes
    with pytest.raises(UnknownGroup, match="no group 'other'"):
        new_client(group.addresses, group="other").append(b"x")


# -------------------------------------------------------------------- unknown


def test_an_append_without_an_answer_is_unknown_and_never_sent_again(
    client: Client, group: FakeGroup
) -> None:
    group[0].script = on_append(Drop())
    with pytest.raises(OutcomeUnknown, match="in flight"):
        client.append(b"once")
    assert client.append(b"next").count == 1
    assert [len(s.calls_of(AppendRequest)) for s in group.servers] == [2, 0, 0]
    assert group.bodies() == [b"next"]


def test_an_append_that_was_carried_out_unseen_is_unknown_too(client: Client, group: FakeGroup) -> None:
    group[0].script = on_append(CarryOutAndDrop())
    with pytest.raises(OutcomeUnknown):
        client.append(b"written")
    assert group.bodies() == [b"written"]


def test_the_servers_own_unknown_is_passed_on(client: Client, group: FakeGroup) -> None:
    group[0].script = on_append(OutcomeUnknown("leadership was lost"))
    with pytest.raises(OutcomeUnknown, match="leadership was lost"):
        client.append(b"x")
    assert len(group[0].calls_of(AppendRequest)) == 1


def test_a_deadline_with_the_append_in_flight_is_unknown(
    group: FakeGroup, new_client: Callable[..., Client]
) -> None:
    group[0].script = on_append(Hang())
    client = new_client(group.addresses)
    with pytest.raises(OutcomeUnknown, match=r"did not answer within \d+\.\d s"):
        client.append(b"x", timeout_ms=300)
    (request,) = group[0].calls_of(AppendRequest)
    assert isinstance(request, AppendRequest)
    assert 0 < request.timeout_ms <= 300


def test_nonsense_from_a_server_closes_the_connection(client: Client, group: FakeGroup) -> None:
    group[0].script = on_append(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    with pytest.raises(OutcomeUnknown, match="protocol violation"):
        client.append(b"x")
    wrong = AppendResponse(term=2, first_index=1, count=7, durability="sync")

    def answer(server: FakeServer, message: ClientMessage) -> Action:
        if isinstance(message, AppendRequest) and len(server.calls_of(AppendRequest)) == 2:
            return AppendResponse(
                request_id=message.request_id,
                term=wrong.term,
                first_index=wrong.first_index,
                count=wrong.count,
                durability=wrong.durability,
            )
        return None

    group[0].script = answer
    with pytest.raises(OutcomeUnknown, match="append of 1 entries was answered with"):
        client.append(b"y")
    assert client.append(b"z").count == 1


def test_close_ends_what_is_in_flight_as_unknown(client: Client, group: FakeGroup) -> None:
    group[0].script = on_append(Hang())
    outcomes: list[Exception] = []

    def caller() -> None:
        try:
            client.append(b"x")
        except Exception as error:
            outcomes.append(error)

    thread = threading.Thread(target=caller)
    thread.start()
    group[0].wait_for_calls(AppendRequest, 1)
    client.close()
    thread.join(10)
    assert [type(error) for error in outcomes] == [OutcomeUnknown]


# -------------------------------------------------------------------- fail-over


def test_a_killed_leader_is_replaced(client: Client, group: FakeGroup) -> None:
    client.append(b"before")
    group[0].stop()
    view = asyncio_client_of(client)._protocol.view
    eventually(lambda: view.leader is None, what="the closed connection is noticed")
    group.elect(group[1])
    assert client.append(b"after").term == 3
    group[0].start()
    group.elect(group[0])
    assert client.append(b"back").term == 4
    assert group.bodies() == [b"before", b"after", b"back"]


def test_followers_that_still_name_the_dead_leader_do_not_mislead(
    client: Client, group: FakeGroup
) -> None:
    client.append(b"before")
    group[0].stop()
    view = asyncio_client_of(client)._protocol.view
    eventually(lambda: view.leader is None, what="the closed connection is noticed")
    receipts: list[AppendReceipt] = []
    caller = threading.Thread(target=lambda: receipts.append(client.append(b"after")))
    caller.start()
    group[1].wait_for_calls(StatusRequest, 3)
    group[2].wait_for_calls(StatusRequest, 3)
    group.elect(group[2])
    caller.join(10)
    assert [receipt.term for receipt in receipts] == [3]


def test_a_paused_leader_does_not_stall(client: Client, group: FakeGroup) -> None:
    client.append(b"before")
    group[0].pause()
    outcomes: list[Exception] = []

    def caller() -> None:
        try:
            client.append(b"in flight")
        except Exception as error:
            outcomes.append(error)

    thread = threading.Thread(target=caller)
    thread.start()
    # The others are asked because the leader owes an answer, and nothing happens while they name it.
    group[1].wait_for_calls(StatusRequest, 3)
    assert thread.is_alive()
    group.elect(group[1])
    thread.join(10)
    assert [type(error) for error in outcomes] == [OutcomeUnknown]
    assert group[1].address in str(outcomes[0])
    assert client.append(b"after").term == 3
    group[0].resume()
    assert client.append(b"still at n1").term == 3
    assert b"after" in group.bodies()


def test_a_slow_leader_that_gives_signs_of_life_is_waited_for(client: Client, group: FakeGroup) -> None:
    held: list[tuple[FakeServer, ClientMessage]] = []

    def hold(server: FakeServer, message: ClientMessage) -> Action:
        if isinstance(message, AppendRequest):
            held.append((server, message))
            return Hang()
        if held and len(server.calls_of(StatusRequest)) > 5:
            # By now the client has asked several times; the append is answered at last.
            return AppendResponse(
                request_id=held[0][1].request_id, term=2, first_index=1, count=1, durability="sync"
            )
        return None

    group[0].script = hold
    assert client.append(b"slow").first_index == 1
    assert len(group[0].calls_of(AppendRequest)) == 1


def test_a_paused_server_in_the_list_does_not_hold_up_the_first_append(
    group: FakeGroup, new_client: Callable[..., Client]
) -> None:
    group.elect(group[2])
    group[0].pause()
    group[1].pause()
    assert new_client(group.addresses, timeout_ms=5000).append(b"x").term == 3


def test_a_server_of_another_cluster_is_not_followed(
    group: FakeGroup, new_client: Callable[..., Client]
) -> None:
    client = new_client(group.addresses)
    client.append(b"x")
    asyncio_client_of(client)._protocol._product.cluster_id = "another"
    for server in group.servers:
        server.drop_connections()
    eventually(lambda: asyncio_client_of(client)._protocol.view.leader is None)
    for _ in range(2):
        with pytest.raises(ClusterChanged, match="belongs to another cluster"):
            client.append(b"y", timeout_ms=60_000)
    assert group.bodies() == [b"x"]


# -------------------------------------------------------------------- many callers


def test_many_threads_share_one_connection(client: Client, group: FakeGroup) -> None:
    receipts: list[AppendReceipt] = []
    failures: list[Exception] = []

    def caller(number: int) -> None:
        try:
            receipts.extend(client.append(b"%d-%d" % (number, step)) for step in range(40))
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=caller, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert failures == []
    assert sorted(r.first_index for r in receipts) == list(range(1, 321))
    bodies = group.bodies()
    assert len(bodies) == 320
    for number in range(8):
        own = [body for body in bodies if body.startswith(b"%d-" % number)]
        assert own == [b"%d-%d" % (number, step) for step in range(40)]
    assert sum(len(server.hellos) for server in group.servers) <= 3


def test_large_batches_from_several_threads_arrive_whole(client: Client, group: FakeGroup) -> None:
    """More than a socket buffer at once: partial writes must not mix the frames of two callers."""
    failures: list[Exception] = []

    def caller(number: int) -> None:
        try:
            for _ in range(3):
                client.append_batch([bytes([number]) * 500_000] * 4)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=caller, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert failures == []
    bodies = group.bodies()
    assert len(bodies) == 48
    assert all(body == body[:1] * 500_000 for body in bodies)
