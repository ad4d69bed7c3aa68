"""Reads: complete, in order, checked, and out of range by name."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest

from quorumlog import LocalCluster, MemberStatusRow, connect, connect_async, leader_of
from quorumlog.append_times import AppendTimes
from quorumlog.batch import EntryBatch
from quorumlog.client import AsyncLedgerClient, LedgerClient
from quorumlog.client.reading import AsyncResults
from quorumlog.client.result_streams import TimedReading
from quorumlog.entry import Entry
from quorumlog.entry_header import HEADER_BYTES
from quorumlog.errors import BadRequest, IndexOutOfRange, ProtocolViolation, RangeDamaged, Unreachable
from quorumlog.net.frame import encode_frame
from quorumlog.wire.client_message import ClientMessage
from quorumlog.wire.client_messages import AppendRequest, ReadRequest, ReadResponse, StatusRequest
from tests.client.both_clients import Client, asyncio_client_of
from tests.client.fake_server import Action, Drop, FakeGroup, FakeServer, Hang
from tests.made_rows import made_row
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


def test_an_index_may_be_an_integer_of_numpy_and_nothing_but_an_integer(
    client: Client, group: FakeGroup
) -> None:
    fill(group, 3)
    assert client.get(np.int64(2)).index == 2
    assert [entry.index for entry in client.read(np.int32(1), np.int64(3))] == [1, 2]
    assert sum(batch.count for batch in client.read_batches(1, 3, batch_bytes=np.int64(1000))) == 2
    for wrong in (1.5, "1", None):
        with pytest.raises(BadRequest, match="index must be a whole number, not"):
            client.get(wrong)
        with pytest.raises(BadRequest, match="first_index must be a whole number, not"):
            list(client.read(wrong))


def test_get_out_of_range_names_both_bounds(client: Client, group: FakeGroup) -> None:
    fill(group, 3)
    with pytest.raises(IndexOutOfRange) as caught:
        client.get(4)
    assert (caught.value.ledger_begin_index, caught.value.committed_index) == (0, 3)
    with pytest.raises(IndexOutOfRange, match="-1"):
        client.get(-1)


def test_get_of_a_no_op_says_so(client: Client) -> None:
    with pytest.raises(IndexOutOfRange, match="the NOOP of term 2"):
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


def test_record_batches_give_the_same_entries(client: Client, group: FakeGroup) -> None:
    fill(group, 30)
    group.elect(group[0])
    group.append([b"", b"of another size"])
    entries = [{"index": e.index, "term": e.term, "body": e.body} for e in client.read(0)]
    assert len(entries) == 32
    batches = list(client.read_arrow(0, batch_bytes=1000))
    assert len(batches) > 2
    assert all(batch.num_rows for batch in batches)
    assert [row for batch in batches for row in batch.to_pylist()] == entries
    (few,) = client.read_arrow(3, 5)
    assert few.to_pylist() == entries[2:4]
    assert list(client.read_arrow(0, 1)) == []  # the no-op alone
    with pytest.raises(IndexOutOfRange):
        list(client.read_arrow(1000))


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
    """Answers reads with true entries, those of [1, 4) changed, in a frame whose checksums are right."""

    def script(server: FakeServer, message: ClientMessage) -> Action:
        if not isinstance(message, ReadRequest):
            return None
        log = server.group.entries
        data = bytearray(b"".join(log[1:4]))
        change(data)
        stops = list(itertools.accumulate(map(len, log[1:4])))
        bad = [bytes(data[a:b]) for a, b in itertools.pairwise([0, *stops])]
        entries = [log[0], *bad, *log[4:]]
        stop = message.stop_index if message.stop_index >= 0 else len(entries)
        picked = entries[message.first_index : stop]
        response = ReadResponse(
            request_id=message.request_id,
            first_index=message.first_index,
            count=len(picked),
            ledger_begin_index=0,
            committed_index=len(entries) - 1,
        )
        if not picked:
            return response
        batch = EntryBatch(b"".join(picked), [len(entry) for entry in picked])
        return b"".join(encode_frame(server.group.group, response, batch))

    return script


def flip(position: int) -> Callable[[bytearray], None]:
    def change(data: bytearray) -> None:
        data[position] ^= 1

    return change


FLIPS = pytest.mark.parametrize(
    ("position", "words", "good"),
    [
        (HEADER_BYTES + 3, r"entry 1 \(body_crc does not match\)", []),
        (58 + HEADER_BYTES + 3, r"entry 2 \(body_crc does not match\)", [1]),
        (116 + HEADER_BYTES + 3, r"entry 3 \(body_crc does not match\)", [1, 2]),
        (58 + 15, r"entry 2 \(index does not follow\)", [1]),
        # Entry 1 is the first of the read: which of the two does not fit is not known.
        (58 + 39, r"entry 2 \(chain_crc does not match\)", []),
        (116 + 39, r"entry 3 \(chain_crc does not match\)", [1, 2]),
        (58 + 23, r"entry 2 \((chain_crc does not match|term falls)\)", []),
        (58 + 3, r"entry 2 \(body_len and size disagree\)", [1]),
        (58 + 7, r"entry 2 \(body_len and size disagree\)", [1]),
    ],
)


@FLIPS
def test_a_flipped_bit_on_one_member_is_made_good_by_another(
    client: Client, group: FakeGroup, position: int, words: str, good: list[int]
) -> None:
    fill(group, 6, 10)
    group[0].script = forged(flip(position))
    assert [entry.body for entry in client.read(1, 7)] == group.bodies()
    assert [entry.body for entry in client.read(1)] == group.bodies()
    batches = list(client.read_batches(1, 7))
    assert b"".join(bytes(batch.buffer) for batch in batches) == b"".join(group.entries[1:7])
    assert client.get(2).body == group.bodies()[1]
    tail = client.tail(1)
    assert [next(tail).body for _ in range(6)] == group.bodies()


@FLIPS
def test_a_flipped_bit_everywhere_is_told_after_the_good_entries(
    client: Client, group: FakeGroup, position: int, words: str, good: list[int]
) -> None:
    fill(group, 6, 10)
    for server in group.servers:
        server.script = forged(flip(position))
    got: list[int] = []
    words = f"^{group[0].address} .n0. sent {words}: its disk is damaged; run: quorumlog verify on its"
    with pytest.raises(RangeDamaged, match=words) as caught:
        got.extend(entry.index for entry in client.read(1, 7))
    assert got[: len(good)] == good
    assert len(got) <= 2
    assert all(name in str(caught.value) for name in ("(n1) sent", "(n2) sent"))
    last = len(group.entries) + 1
    for server in group.servers:
        asked = [call.first_index for call in server.calls_of(ReadRequest)]  # type: ignore[attr-defined]
        assert len(asked) < last, asked


def test_a_member_asked_by_name_is_not_replaced(client: Client, group: FakeGroup) -> None:
    fill(group, 6, 10)
    group[1].script = forged(flip(58 + HEADER_BYTES + 3))
    got: list[int] = []
    with pytest.raises(RangeDamaged, match=rf"{group[1].address} \(n1\) sent entry 2 "):
        got.extend(entry.index for entry in client.read(1, 7, from_member="n1"))
    assert got == [1]
    with pytest.raises(RangeDamaged, match=r"entry 2 \(body_crc does not match\)"):
        client.get(2, from_member="n1")
    assert not group[0].calls_of(ReadRequest)
    assert not group[2].calls_of(ReadRequest)


def test_members_that_lag_or_are_down_are_not_the_end(client: Client, group: FakeGroup) -> None:
    fill(group, 6, 10)
    client.status()
    group[0].script = forged(flip(58 + HEADER_BYTES + 3))
    group[1].script = lambda server, message: (
        IndexOutOfRange("lags", ledger_begin_index=0, committed_index=1)
        if isinstance(message, ReadRequest)
        else None
    )
    assert [entry.body for entry in client.read(1)] == group.bodies()
    group[2].stop()
    with pytest.raises(RangeDamaged, match=r"entry 2 \(body_crc does not match\).*lags"):
        list(client.read(1))


def refusing(bad_index: int) -> Callable[[FakeServer, ClientMessage], Action]:
    """A server that finds the damage itself and refuses every range with the bad entry in it."""

    def script(server: FakeServer, message: ClientMessage) -> Action:
        if isinstance(message, ReadRequest) and message.first_index <= bad_index:
            stop = message.stop_index
            if stop < 0 or stop > bad_index:
                return RangeDamaged("chain_crc is wrong in 00000.log")
        return None

    return script


def test_a_range_that_a_server_refuses_comes_from_another(client: Client, group: FakeGroup) -> None:
    fill(group, 60, 10)
    group[0].script = refusing(30)
    assert [entry.body for entry in client.read(1)] == group.bodies()
    assert [entry.body for entry in client.read(1, 61)] == group.bodies()
    assert client.get(30).body == group.bodies()[29]


@pytest.mark.parametrize("stop_index", [None, 61])
def test_a_range_that_all_refuse_gives_what_lies_before_the_damage(
    client: Client, group: FakeGroup, stop_index: int | None
) -> None:
    fill(group, 60, 10)
    for server in group.servers:
        server.script = refusing(30)
    got: list[int] = []
    with pytest.raises(RangeDamaged, match=r"cannot give the entries from 30 on \(chain_crc is wrong"):
        got.extend(entry.index for entry in client.read(1, stop_index))
    assert got == list(range(1, 30))


def test_batches_that_do_not_link_are_found(client: Client, group: FakeGroup) -> None:
    """Each batch is sound by itself; the second is of another log."""
    fill(group, 40)
    with FakeGroup(1) as stranger:
        stranger.append([b"other" for _ in range(40)])
        entries = stranger.entries

        def script(server: FakeServer, message: ClientMessage) -> Action:
            if not isinstance(message, ReadRequest) or message.first_index == 1:
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
        batches = list(client.read_batches(1, 41, batch_bytes=1000))
        assert b"".join(bytes(b.buffer) for b in batches) == b"".join(group.entries[1:41])
        with pytest.raises(RangeDamaged, match="chain_crc"):
            list(client.read_batches(1, 41, batch_bytes=1000, from_member="n0"))


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
    eventually(lambda: reads(group[0])[-1].wait_ms > 0)
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


# -------------------------------------------------------------------- end_index


def test_the_end_is_the_last_committed_entry_and_the_leader_is_asked_for_it(
    client: Client, group: FakeGroup
) -> None:
    assert client.end_index() == 0
    fill(group, 3)
    assert client.end_index() == 3
    assert all(request.to_end and request.from_leader for request in reads(group[0]))
    assert not reads(group[1]) and not reads(group[2])


def test_an_entry_that_stands_nowhere_is_no_end(client: Client, group: FakeGroup) -> None:
    def on_read(server: FakeServer, message: ClientMessage) -> Action:
        if not isinstance(message, ReadRequest):
            return None
        return ReadResponse(
            request_id=message.request_id,
            first_index=message.first_index,
            count=0,
            ledger_begin_index=0,
            committed_index=0,
        )

    group[0].script = on_read
    with pytest.raises(ProtocolViolation, match="above the end of every log"):
        client.end_index()


# -------------------------------------------------------------------- status, transfer


def row_of(rows: list[MemberStatusRow], member_id: str) -> MemberStatusRow:
    (row,) = [row for row in rows if row.id == member_id]
    return row


def test_status_has_a_row_for_every_member_though_one_is_listed(
    group: FakeGroup, new_client: Callable[..., Client]
) -> None:
    rows = new_client(group[1].address).status()
    assert [(row.id, row.role, row.reachable) for row in rows] == [
        ("n0", "leader", True),
        ("n1", "follower", True),
        ("n2", "follower", True),
    ]
    assert row_of(rows, "n0").committed_index == 0


def test_status_shows_members_that_are_down_or_say_nothing(client: Client, group: FakeGroup) -> None:
    group[1].stop()
    group[2].pause()
    group.releases = {"n1": "0.2.0"}
    rows = client.status(timeout_ms=300)
    assert [row_of(rows, each).version for each in ("n1", "n2")] == ["0.2.0", ""]
    assert [(row.id, row.address, row.reachable) for row in rows] == [
        ("n0", group[0].address, True),
        ("n1", group[1].address, False),
        ("n2", group[2].address, False),
    ]
    assert "refused" in row_of(rows, "n1").problem
    down = row_of(rows, "n2")
    assert (down.role, down.term, down.committed_index, down.damaged_entries) == ("", -1, -1, -1)
    assert down.members == ()


def test_a_row_cannot_be_changed(client: Client) -> None:
    row = client.status()[0]
    with pytest.raises(AttributeError):
        row.term = 7  # type: ignore[misc]


def test_the_leader_of_rows_is_the_one_of_the_highest_term() -> None:
    rows = [made_row("n0", role="leader", term=4), made_row("n1", role="leader", term=6)]
    assert leader_of([*rows, made_row("n2", role="follower", term=7)]) is rows[1]
    assert leader_of([made_row("n0", role="candidate", term=4), made_row("n1", reachable=False)]) is None


def test_status_of_a_group_that_is_all_down(group: FakeGroup, new_client: Callable[..., Client]) -> None:
    addresses = sorted(server.address for server in group.servers)
    for server in group.servers:
        server.stop()
    rows = new_client(",".join(addresses)).status(timeout_ms=500)
    assert sorted(row.address for row in rows) == addresses
    assert not any(row.reachable for row in rows)


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


def test_close_ends_a_read_that_is_in_flight(client: Client, group: FakeGroup) -> None:
    """It could be repeated, so no lost connection decides it; a closed client repeats nothing."""
    for server in group.servers:
        server.script = lambda server, message: Hang() if isinstance(message, ReadRequest) else None
    outcomes: list[Exception] = []

    def caller() -> None:
        try:
            client.get(0)
        except Exception as error:
            outcomes.append(error)

    thread = threading.Thread(target=caller, daemon=True)
    thread.start()
    eventually(lambda: any(reads(server) for server in group.servers))
    client.close()
    thread.join(10)
    assert [str(error) for error in outcomes] == ["the client was closed"]


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
    eventually(lambda: asyncio_client_of(client)._protocol.next_wakeup_ms() == float("inf"))
    before = [len(server.calls_of(StatusRequest)) for server in group.servers]
    client.append(b"y")
    assert [len(server.calls_of(StatusRequest)) for server in group.servers] == before


# -------------------------------------------------------------------- what the document says


def test_a_range_may_begin_at_the_end_and_goes_no_further(client: Client, group: FakeGroup) -> None:
    fill(group, 3)
    assert list(client.read(4)) == []
    with pytest.raises(IndexOutOfRange) as caught:
        list(client.read(5))
    assert caught.value.committed_index == 3
    results = iter(client.read(2, 10))
    assert [next(results).index for _ in range(2)] == [2, 3]
    with pytest.raises(IndexOutOfRange) as caught:
        next(results)
    assert caught.value.committed_index == 3


def test_results_are_for_one_thread_at_a_time(group: FakeGroup) -> None:
    with LedgerClient(group.addresses) as client:
        results = client.tail("latest")
        ends: list[list[Entry]] = []
        reader = threading.Thread(target=lambda: ends.append(list(results)))
        reader.start()
        group[0].wait_for_calls(ReadRequest, 2)
        with pytest.raises(ValueError, match="already executing"):
            next(results)
        results.close()
        reader.join(20)
        assert ends == [[]]
        with pytest.raises(TypeError, match="len"):
            len(results)  # type: ignore[arg-type]


def test_results_are_for_one_task_at_a_time(group: FakeGroup) -> None:
    async def main() -> None:
        async with AsyncLedgerClient(group.addresses) as client:
            results = client.tail("latest")
            reader = asyncio.ensure_future(anext(results))
            await asyncio.sleep(0)
            with pytest.raises(RuntimeError, match="already running"):
                await anext(results)
            await results.aclose()
            with pytest.raises(StopAsyncIteration):
                await reader

    asyncio.run(main())


def kinds(log: AsyncLedgerClient) -> dict[str, AsyncResults[Any]]:
    return {
        "read": log.read(0),
        "read with times": log.read(0, with_time=True),
        "read_batches": log.read_batches(0, batch_bytes=100),
        "tail": log.tail(0, timeout_ms=0),
    }


@pytest.mark.parametrize("kind", ["read", "read with times", "read_batches", "tail"])
def test_an_iteration_goes_on_after_its_task_was_cancelled(kind: str) -> None:
    """As by a time-out of `asyncio.wait_for`: it must not look like the end of the log."""

    async def bodies(servers: str) -> list[bytes]:
        found: list[bytes] = []
        async with connect_async(servers) as log:
            results, turns = kinds(log)[kind], 0
            while True:
                turns = (turns + 1) % 7  # each time cancelled a little later
                waits = asyncio.ensure_future(anext(results))
                for _ in range(turns):
                    await asyncio.sleep(0)
                waits.cancel()
                try:
                    result = await waits
                except asyncio.CancelledError:
                    continue
                except StopAsyncIteration:
                    return found
                found += result.bodies() if isinstance(result, EntryBatch) else [result.body]

    expected = [b"%d" % number for number in range(100)]
    with LocalCluster(members=1, store="memory", time_marks=False) as cluster:
        with connect(cluster.servers) as log:
            log.append_batch(expected)
        found = asyncio.run(bodies(cluster.servers))
    assert [body for body in found if body] == expected


def test_a_read_with_times_that_is_closed_as_its_task_is_cancelled_is_at_its_end() -> None:
    asked: list[int] = []

    async def times_from(index: int) -> AppendTimes:
        asked.append(index)
        if len(asked) == 1:
            await asyncio.get_running_loop().create_future()
        return AppendTimes(-1)

    class Batches:
        sender = None

        async def next_part(self) -> list[EntryBatch]:
            return [EntryBatch.from_bodies([b"body"])]

        def stop(self) -> None:
            pass

    async def run() -> None:
        reading = TimedReading(cast(Any, Batches()), times_from, lambda _, batch: [batch], None)
        results = AsyncResults(reading, "a read")
        waits = asyncio.ensure_future(anext(results))
        while not asked:
            await asyncio.sleep(0)
        waits.cancel()
        await results.aclose()
        with pytest.raises(asyncio.CancelledError):
            await waits
        with pytest.raises(StopAsyncIteration):
            await anext(results)

    asyncio.run(run())
