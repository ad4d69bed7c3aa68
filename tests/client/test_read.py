"""Reads: complete, in order, checked, and out of range by name."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any

import pytest

from quorumlog.batch import Entry, EntryBatch
from quorumlog.errors import BadRequest, IndexOutOfRange, ProtocolViolation, Unreachable
from quorumlog.wire.client_messages import (
    AppendRequest,
    ClientMessage,
    ReadRequest,
    ReadResponse,
    StatusRequest,
)
from quorumlog.wire.framing import encode_frame
from tests.client.both_clients import Client
from tests.client.fake_server import Action, Drop, FakeGroup, FakeServer
from tests.waiting import eventually


def fill(group: FakeGroup, count: int, size: int = 100) -> list[bytes]:
    """Entries 1 .. count of known bodies behind the no-op at 0."""
    bodies = [(b"%d." % number).ljust(size, b"-") for number in range(1, count + 1)]
    group.append(bodies)
    return bodies


def reads(server: FakeServer) -> list[ReadRequest]:
    return [call for call in server.calls_of(ReadRequest) if isinstance(call, ReadRequest)]


# -------------------------------------------------------------------- get


def test_get(client: Client, group: FakeGroup) -> None:
    fill(group, 3, 10)
    assert client.get(2) == Entry(2, 2, b"2.--------")


def test_get_out_of_range_names_both_bounds(client: Client, group: FakeGroup) -> None:
    fill(group, 3)
    with pytest.raises(IndexOutOfRange) as caught:
        client.get(4)
    assert (caught.value.ledger_begin_index, caught.value.committed_index) == (0, 3)
    with pytest.raises(IndexOutOfRange, match="-1"):
        client.get(-1)


def test_get_of_a_no_op_says_so(client: Client) -> None:
    with pytest.raises(IndexOutOfRange, match="no-op that opened term 2"):
        client.get(0)


# -------------------------------------------------------------------- read


def test_read_gives_every_entry_in_order_without_no_ops(client: Client, group: FakeGroup) -> None:
    bodies = fill(group, 5)
    group.elect(group[0])
    bodies += [b"six", b"seven"]
    group.append([b"six", b"seven"])
    entries = list(client.read(0))
    assert [entry.body for entry in entries] == bodies
    assert [entry.index for entry in entries] == [1, 2, 3, 4, 5, 7, 8]
    assert [entry.term for entry in entries] == [2, 2, 2, 2, 2, 3, 3]


def test_read_bounds(client: Client, group: FakeGroup) -> None:
    bodies = fill(group, 20)
    assert [e.body for e in client.read(3, 8)] == bodies[2:7]
    assert [e.body for e in client.read(3, limit=2)] == bodies[2:4]
    assert [e.body for e in client.read(0, limit=3)] == bodies[:3]
    assert [e.body for e in client.read(19, limit=100)] == bodies[18:]
    assert list(client.read(3, 3)) == []
    assert list(client.read(3, limit=0)) == []
    assert list(client.read(21)) == []
    with pytest.raises(BadRequest, match="limit"):
        client.read(0, limit=-1)


def test_reading_outside_of_the_log_names_both_bounds(client: Client, group: FakeGroup) -> None:
    fill(group, 20)
    for first, stop in ((22, None), (22, 30), (-1, None)):
        with pytest.raises(IndexOutOfRange):
            list(client.read(first, stop))
    got: list[Entry] = []
    with pytest.raises(IndexOutOfRange) as caught:
        got.extend(client.read(10, 30))
    assert (caught.value.ledger_begin_index, caught.value.committed_index) == (0, 20)


@pytest.mark.parametrize(("batch_bytes", "prefetch"), [(1, 1), (500, 1), (1000, 4), (3000, 8)])
def test_batches_are_contiguous_whatever_the_sizes(
    client: Client, group: FakeGroup, batch_bytes: int, prefetch: int
) -> None:
    sizes = [10, 10, 10, 900, 5, 5, 2000, 1, 1, 1, 1, 1, 1, 1, 1, 3000, 0, 0, 40] * 10
    bodies = [bytes([n % 251]) * size for n, size in enumerate(sizes)]
    group.append(bodies)
    batches = list(client.read_batches(0, batch_bytes=batch_bytes, prefetch=prefetch))
    assert all(isinstance(batch, EntryBatch) for batch in batches)
    assert [b.first_index for b in batches[1:]] == [b.last_index + 1 for b in batches[:-1]]
    assert [bytes(body) for batch in batches for body in batch.bodies()] == [b"", *bodies]


def test_requests_are_pipelined(client: Client, group: FakeGroup) -> None:
    """The second request is answered only when a third is here: one at a time would hang."""
    fill(group, 1000, 1000)
    arrived = threading.Semaphore(0)
    answered_first = threading.Event()

    def script(server: FakeServer, message: ClientMessage) -> Action:
        if isinstance(message, ReadRequest):
            if answered_first.is_set():
                arrived.release()
            answered_first.set()
        return None

    group[0].script = script
    batches = client.read_batches(0, batch_bytes=100_000, prefetch=3)
    next(batches)
    next(batches)
    for _ in range(2):
        assert arrived.acquire(timeout=10)
    assert sum(batch.count for batch in batches) > 0


def test_a_read_goes_on_after_a_lost_connection(client: Client, group: FakeGroup) -> None:
    bodies = fill(group, 200)
    seen = itertools.count(1)

    def script(server: FakeServer, message: ClientMessage) -> Action:
        dropped = isinstance(message, ReadRequest) and next(seen) in (2, 5, 9)
        return Drop() if dropped else None

    group[0].script = script
    batches = client.read_batches(1, batch_bytes=2000)
    assert [bytes(b) for batch in batches for b in batch.bodies()] == bodies


def test_a_read_goes_on_at_the_new_leader(client: Client, group: FakeGroup) -> None:
    bodies = fill(group, 200)
    batches = client.read_batches(1, batch_bytes=2000, prefetch=2)
    got = [bytes(b) for b in next(batches).bodies()]
    group[0].stop()
    group.elect(group[2])
    got += [bytes(b) for batch in batches for b in batch.bodies()]
    assert got == bodies


def test_a_read_leaves_a_paused_leader(client: Client, group: FakeGroup) -> None:
    bodies = fill(group, 100)
    batches = client.read_batches(1, batch_bytes=2000, prefetch=2)
    got = [bytes(b) for b in next(batches).bodies()]
    group[0].pause()
    group.elect(group[2])
    got += [bytes(b) for batch in batches for b in batch.bodies()]
    assert got == bodies
    assert len(reads(group[2])) > 0


def test_from_a_member_by_id_and_from_any(group: FakeGroup, new_client: Callable[..., Client]) -> None:
    bodies = fill(group, 10)
    client = new_client(group[0].address)
    assert [e.body for e in client.read(1, 6, from_member="n2")] == bodies[:5]
    assert client.get(3, from_member="n1").body == bodies[2]
    assert [len(reads(server)) > 0 for server in group.servers] == [False, True, True]
    assert [e.body for e in client.read(1, from_member="any")] == bodies
    with pytest.raises(BadRequest, match="no member 'n9'; the members are n0, n1, n2"):
        client.get(1, from_member="n9")


def test_any_member_is_replaced_when_it_is_down(
    group: FakeGroup, new_client: Callable[..., Client]
) -> None:
    bodies = fill(group, 10)
    group[0].stop()
    group[1].stop()
    for _ in range(4):
        client = new_client(group.addresses)
        assert [e.body for e in client.read(1, from_member="any")] == bodies


def test_any_member_is_replaced_when_it_is_paused(
    group: FakeGroup, new_client: Callable[..., Client]
) -> None:
    bodies = fill(group, 100)
    client = new_client(group.addresses)
    batches = client.read_batches(1, from_member="any", batch_bytes=1000, prefetch=1)
    got = [bytes(b) for b in next(batches).bodies()]
    (serving,) = [server for server in group.servers if reads(server)]
    serving.pause()
    got += [bytes(b) for batch in batches for b in batch.bodies()]
    assert got == bodies


def test_a_lagging_member_is_given_time(client: Client, group: FakeGroup) -> None:
    fill(group, 5)
    got: list[bytes] = []

    def reader() -> None:
        got.extend(entry.body for entry in client.read(6, 8, from_member="n1"))

    thread = threading.Thread(target=reader)
    thread.start()
    group[1].wait_for_calls(ReadRequest, 1)
    group.append([b"six", b"seven"])
    thread.join(10)
    assert got == [b"six", b"seven"]


# -------------------------------------------------------------------- nothing is believed


def forged(change: Callable[[bytearray], None]) -> Callable[[FakeServer, ClientMessage], Action]:
    """Answers reads of [1, 4) with true entries, changed, in a frame whose checksums are right."""

    def script(server: FakeServer, message: ClientMessage) -> Action:
        if not isinstance(message, ReadRequest):
            return None
        entries = server.group.entries[1:4]
        data = bytearray(b"".join(entries))
        change(data)
        response = ReadResponse(
            request_id=message.request_id,
            first_index=1,
            count=3,
            ledger_begin_index=0,
            committed_index=3,
        )
        batch = EntryBatch(data, [len(entry) for entry in entries])
        return b"".join(encode_frame(server.group.group, response, batch))

    return script


def flip(position: int) -> Callable[[bytearray], None]:
    def change(data: bytearray) -> None:
        data[position] ^= 1

    return change


@pytest.mark.parametrize(
    ("position", "words"),
    [
        (48 + 3, "body_crc does not match at index 1"),
        (58 + 48 + 3, "body_crc does not match at index 2"),
        (58 + 15, "not contiguous"),
        (58 + 39, "chain_crc does not match at index 2"),
        (58 + 23, "chain_crc|terms fall"),
        (58 + 3, "of a kind"),
        (58 + 7, "disagrees with the sizes"),
    ],
)
def test_a_flipped_bit_in_an_entry_is_found(
    client: Client, group: FakeGroup, position: int, words: str
) -> None:
    fill(group, 3, 10)
    group[0].script = forged(flip(position))
    with pytest.raises(ProtocolViolation, match=words):
        list(client.read(1, 4))


def test_batches_that_do_not_link_are_found(client: Client, group: FakeGroup) -> None:
    """Each batch is sound by itself; the second is of another log."""
    fill(group, 40)
    with FakeGroup(1) as stranger:
        stranger.append([b"other" for _ in range(40)])
        entries = stranger.entries
        seen = itertools.count()

        def script(server: FakeServer, message: ClientMessage) -> Action:
            if not isinstance(message, ReadRequest) or next(seen) == 0:
                return None
            picked = entries[message.first_index : message.stop_index]
            response = ReadResponse(
                request_id=message.request_id,
                first_index=message.first_index,
                count=len(picked),
                ledger_begin_index=0,
                committed_index=40,
            )
            batch = EntryBatch(b"".join(picked), [len(entry) for entry in picked])
            return b"".join(encode_frame(server.group.group, response, batch))

        group[0].script = script
        with pytest.raises(ProtocolViolation, match="chain_crc"):
            list(client.read_batches(1, 41, batch_bytes=1000))


# -------------------------------------------------------------------- tail


def test_tail_is_woken_by_every_append(client: Client, group: FakeGroup) -> None:
    bodies = fill(group, 3)
    tail = client.tail(0)
    assert [next(tail).body for _ in range(3)] == bodies
    group.append([b"late"])
    assert next(tail).body == b"late"
    group.elect(group[1])
    client.append(b"later")
    assert next(tail).body == b"later"


def test_tail_catches_up_with_pipelined_reads(client: Client, group: FakeGroup) -> None:
    bodies = fill(group, 3000, 1000)
    tail = client.tail(1)
    assert [next(tail).body for _ in range(3000)] == bodies
    assert any(request.stop_index > 0 for request in reads(group[0]))


def test_tail_waits_for_entries_to_come(client: Client, group: FakeGroup) -> None:
    tail = client.tail(1)
    got: list[Entry] = []
    thread = threading.Thread(target=lambda: got.append(next(tail)))
    thread.start()
    group[0].wait_for_calls(ReadRequest, 1)
    assert reads(group[0])[0].wait_ms > 0
    group.append([b"first"])
    thread.join(10)
    assert [entry.body for entry in got] == [b"first"]


def test_tail_goes_over_the_death_of_the_leader(client: Client, group: FakeGroup) -> None:
    fill(group, 2)
    tail = client.tail(1)
    next(tail)
    next(tail)
    got: list[Entry] = []
    thread = threading.Thread(target=lambda: got.append(next(tail)))
    thread.start()
    eventually(lambda: reads(group[0])[-1].first_index == 3)
    group[0].stop()
    group.elect(group[2])
    group.append([b"at last"])
    thread.join(10)
    assert [entry.body for entry in got] == [b"at last"]


def test_tail_does_not_hold_up_appends_of_the_same_client(client: Client, group: FakeGroup) -> None:
    tail = client.tail(1)
    thread = threading.Thread(target=lambda: next(tail))
    thread.start()
    group[0].wait_for_calls(ReadRequest, 1)
    assert client.append(b"x").first_index == 1
    thread.join(10)
    assert not thread.is_alive()


# -------------------------------------------------------------------- status, transfer


def row_of(rows: list[dict[str, Any]], member_id: str) -> dict[str, Any]:
    (row,) = [row for row in rows if row["id"] == member_id]
    return row


def test_status_has_a_row_for_every_member_though_one_is_listed(
    group: FakeGroup, new_client: Callable[..., Client]
) -> None:
    rows = new_client(group[1].address).status()
    assert [(row["id"], row["role"], row["reachable"]) for row in rows] == [
        ("n0", "leader", True),
        ("n1", "follower", True),
        ("n2", "follower", True),
    ]
    assert row_of(rows, "n0")["committed_index"] == 0


def test_status_shows_members_that_are_down_or_say_nothing(client: Client, group: FakeGroup) -> None:
    group[1].stop()
    group[2].pause()
    rows = client.status(timeout_ms=300)
    assert [(row["id"], row["address"], row["reachable"]) for row in rows] == [
        ("n0", group[0].address, True),
        ("n1", group[1].address, False),
        ("n2", group[2].address, False),
    ]
    assert "refused" in row_of(rows, "n1")["problem"]
    assert row_of(rows, "n2")["role"] is None


def test_status_of_a_group_that_is_all_down(group: FakeGroup, new_client: Callable[..., Client]) -> None:
    addresses = sorted(server.address for server in group.servers)
    for server in group.servers:
        server.stop()
    rows = new_client(",".join(addresses)).status(timeout_ms=500)
    assert sorted(row["address"] for row in rows) == addresses
    assert not any(row["reachable"] for row in rows)


def test_transfer(client: Client, group: FakeGroup) -> None:
    assert client.transfer("n2") == "n2"
    assert client.append(b"x").term == 3
    assert len(group[2].calls_of(AppendRequest)) == 1
    with pytest.raises(Exception, match="no member n7"):
        client.transfer("n7")


def test_a_client_that_was_closed_says_so(client: Client, group: FakeGroup) -> None:
    client.append(b"x")
    client.close()
    client.close()


def test_reads_give_up_at_the_deadline_naming_the_servers(
    group: FakeGroup, new_client: Callable[..., Client]
) -> None:
    for server in group.servers:
        server.stop()
    with pytest.raises(Unreachable) as caught:
        list(new_client(group.addresses, timeout_ms=300).read(0))
    assert all(server.address in str(caught.value) for server in group.servers)


def test_an_idle_client_asks_nobody(client: Client, group: FakeGroup) -> None:
    client.append(b"x")
    eventually(lambda: client._protocol.next_wakeup_ms() == float("inf"))
    before = [len(server.calls_of(StatusRequest)) for server in group.servers]
    client.append(b"y")
    assert [len(server.calls_of(StatusRequest)) for server in group.servers] == before
