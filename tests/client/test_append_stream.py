"""Streams keep their order through refusals, and end with an account of what is known."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from quorumlog.batch import EntryBatch
from quorumlog.client.protocol.appending import StreamOutcomeUnknown, StreamProgress
from quorumlog.entry import AppendReceipt
from quorumlog.errors import (
    BadRequest,
    BodyTooLarge,
    LedgerError,
    NotLeader,
    OutcomeUnknown,
    PendingFull,
)
from quorumlog.wire.client_message import ClientMessage
from quorumlog.wire.client_messages import AppendRequest
from tests.client.both_clients import Client
from tests.client.fake_server import Action, Drop, FakeGroup, FakeServer, Hang
from tests.waiting import eventually


def bodies(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def numbers(server: FakeServer) -> list[int]:
    return [call.number for call in server.calls_of(AppendRequest) if isinstance(call, AppendRequest)]


def test_a_stream_is_written_in_order_in_batches(client: Client, group: FakeGroup) -> None:
    stream = client.append_stream(bodies(100), batch_records=10, window=4)
    receipts = list(stream)
    assert [(r.first_index, r.count) for r in receipts] == [(1 + 10 * i, 10) for i in range(10)]
    assert group.bodies() == bodies(100)
    assert numbers(group[0]) == list(range(1, 11))
    assert stream.progress == StreamProgress(100, 0, 0)


def test_batches_in_the_source_stay_what_they_are(client: Client, group: FakeGroup) -> None:
    items: list[Any] = [b"a", b"b", [b"c", b"d", b"e"], b"f", EntryBatch.from_bodies([b"g", b"h"])]
    receipts = list(client.append_stream(items, batch_records=10))
    assert [r.count for r in receipts] == [2, 3, 1, 2]
    assert b"".join(group.bodies()) == b"abcdefgh"


def test_a_batch_ends_at_its_bytes_too(client: Client) -> None:
    receipts = list(client.append_stream([b"x" * 600] * 5, batch_records=100, batch_bytes=1000))
    assert [r.count for r in receipts] == [2, 2, 1]


def test_an_empty_stream_has_no_receipts(client: Client) -> None:
    assert list(client.append_stream([])) == []


def test_no_more_than_the_window_is_in_flight(client: Client, group: FakeGroup) -> None:
    taken: list[int] = []
    answered: list[AppendReceipt] = []
    most = 0

    def source() -> Iterator[bytes]:
        nonlocal most
        for number in range(50):
            taken.append(number)
            most = max(most, len(taken) - len(answered))
            yield b"%d" % number

    for receipt in client.append_stream(source(), batch_records=1, window=3):
        answered.append(receipt)  # noqa: PERF402
    assert len(answered) == 50
    # One more may be taken whose receipt is here and not yet handed out.
    assert 2 <= most <= 4


@pytest.mark.parametrize("refused_at", [1, 3, 6])
def test_after_a_refusal_the_client_resends_from_the_first_refused(
    client: Client, group: FakeGroup, refused_at: int
) -> None:
    refusals = itertools.chain([PendingFull("full", retry_after_ms=2)] * 2)

    def script(server: FakeServer, message: ClientMessage) -> Action:
        if isinstance(message, AppendRequest) and message.number == refused_at:
            return next(refusals, None)
        return None

    group[0].script = script
    receipts = list(client.append_stream(bodies(12), batch_records=2, window=6))
    assert [r.count for r in receipts] == [2] * 6
    assert group.bodies() == bodies(12)
    assert numbers(group[0]).count(refused_at) == 3


def test_a_stream_moves_to_the_new_leader_in_order(client: Client, group: FakeGroup) -> None:
    def source() -> Iterator[bytes]:
        for number in range(60):
            if number == 30:
                group.elect(group[1])
            yield b"%d" % number

    assert sum(r.count for r in client.append_stream(source(), batch_records=1, window=4)) == 60
    assert group.bodies() == bodies(60)
    assert numbers(group[1])[0] == 1


def test_a_stream_counts_on_where_leadership_comes_back_to(client: Client, group: FakeGroup) -> None:
    def source() -> Iterator[bytes]:
        for number in range(30):
            if number in (10, 20):
                group.elect(group[number // 10 % 2])
            yield b"%d" % number

    assert sum(r.count for r in client.append_stream(source(), batch_records=1, window=1)) == 30
    assert group.bodies() == bodies(30)
    assert numbers(group[0])[-1] == 20


def test_a_lost_connection_makes_the_stream_unknown_and_says_what_is_known(
    client: Client, group: FakeGroup
) -> None:
    def script(server: FakeServer, message: ClientMessage) -> Action:
        return Drop() if isinstance(message, AppendRequest) and message.number == 5 else None

    group[0].script = script
    stream = client.append_stream(bodies(100), batch_records=10, window=3)
    receipts: list[AppendReceipt] = []
    with pytest.raises(StreamOutcomeUnknown) as caught:
        receipts.extend(stream)
    progress = caught.value.progress
    assert progress.committed_records == 40
    assert progress.unknown_records in (10, 20, 30)
    assert "records committed: 40" in str(caught.value)
    assert stream.progress == progress
    assert group.bodies() == bodies(40)
    assert sorted(numbers(group[0])) == numbers(group[0]), "nothing was sent twice"
    with pytest.raises(OutcomeUnknown):
        next(iter(stream))


def test_receipts_before_an_unknown_outcome_are_handed_out_first(
    client: Client, group: FakeGroup
) -> None:
    def script(server: FakeServer, message: ClientMessage) -> Action:
        if isinstance(message, AppendRequest) and message.number == 3:
            return OutcomeUnknown("leadership was lost")
        return None

    group[0].script = script
    receipts: list[AppendReceipt] = []
    with pytest.raises(OutcomeUnknown, match="leadership was lost"):
        for receipt in client.append_stream(bodies(4), batch_records=1, window=2):
            receipts.append(receipt)  # noqa: PERF402
    assert [r.first_index for r in receipts] == [1, 2]


def test_a_new_stream_on_a_new_connection_names_the_one_before(client: Client, group: FakeGroup) -> None:
    group[0].script = lambda server, message: Drop() if isinstance(message, AppendRequest) else None
    with pytest.raises(OutcomeUnknown):
        list(client.append_stream([b"lost"]))
    group[0].script = lambda server, message: None
    list(client.append_stream(bodies(3), batch_records=1))
    first, second, _ = group[0].calls_of(AppendRequest)[-3:]
    assert isinstance(first, AppendRequest)
    assert isinstance(second, AppendRequest)
    assert first.previous_connection.startswith("n0-")
    assert (first.number, second.number, second.previous_connection) == (1, 2, "")


def test_a_refusal_for_good_ends_the_stream_and_nothing_behind_it_is_written(
    group: FakeGroup, new_client: Callable[..., Client]
) -> None:
    group.max_entry_bytes = 100
    client = new_client(group.addresses)
    stream = client.append_stream([b"a", b"b", b"x" * 200, b"c", b"d"], batch_records=1, window=5)
    receipts: list[AppendReceipt] = []
    with pytest.raises(BodyTooLarge):
        receipts.extend(stream)
    assert group.bodies() == [b"a", b"b"]
    assert stream.progress == StreamProgress(2, 0, 3)


def test_a_refusal_for_good_by_the_server_ends_the_stream(client: Client, group: FakeGroup) -> None:
    def script(server: FakeServer, message: ClientMessage) -> Action:
        refused = isinstance(message, AppendRequest) and message.number == 3
        return BadRequest("no") if refused else None

    group[0].script = script
    stream = client.append_stream(bodies(6), batch_records=1, window=6)
    with pytest.raises(BadRequest, match="no"):
        list(stream)
    assert group.bodies() == bodies(2)
    assert stream.progress == StreamProgress(2, 0, 4)


def test_a_deadline_before_a_leader_is_found_leaves_nothing_unknown(
    client: Client, group: FakeGroup
) -> None:
    group.depose()
    stream = client.append_stream(bodies(6), batch_records=1, window=3, timeout_ms=200)
    with pytest.raises(LedgerError) as caught:
        list(stream)
    assert not isinstance(caught.value, OutcomeUnknown)
    assert stream.progress == StreamProgress(0, 0, 3)
    assert group.bodies() == []


def test_a_deadline_in_flight_is_unknown(client: Client, group: FakeGroup) -> None:
    def script(server: FakeServer, message: ClientMessage) -> Action:
        return Hang() if isinstance(message, AppendRequest) and message.number >= 3 else None

    group[0].script = script
    stream = client.append_stream(bodies(6), batch_records=1, window=3, timeout_ms=400)
    with pytest.raises(StreamOutcomeUnknown):
        list(stream)
    assert stream.progress.committed_records == 2
    assert stream.progress.unknown_records >= 1


def test_a_closed_stream_sends_nothing_more(client: Client, group: FakeGroup) -> None:
    group.depose()
    stream = client.append_stream(bodies(3), batch_records=1, window=3)
    errors: list[LedgerError] = []

    def iterate() -> None:
        try:
            list(stream)
        except LedgerError as error:
            errors.append(error)

    caller = threading.Thread(target=iterate)
    caller.start()
    eventually(lambda: stream.progress.unwritten_records == 3)
    stream.close()
    caller.join(10)
    assert [type(error) for error in errors] == [BadRequest]
    group.elect(group[0])
    assert client.append(b"only this").count == 1
    assert group.bodies() == [b"only this"]


def test_two_streams_do_not_wait_for_each_other(client: Client, group: FakeGroup) -> None:
    refusals = iter([NotLeader("busy", retry_after_ms=1)] * 3)

    def script(server: FakeServer, message: ClientMessage) -> Action:
        refuse = isinstance(message, AppendRequest) and message.stream == 1 and message.number == 2
        return next(refusals, None) if refuse else None

    group[0].script = script
    first = client.append_stream([b"a%d" % n for n in range(20)], batch_records=1, window=4)
    second = client.append_stream([b"b%d" % n for n in range(20)], batch_records=1, window=4)
    for one, other in zip(first, second, strict=True):
        assert (one.count, other.count) == (1, 1)
    written = group.bodies()
    assert [b for b in written if b.startswith(b"a")] == [b"a%d" % n for n in range(20)]
    assert [b for b in written if b.startswith(b"b")] == [b"b%d" % n for n in range(20)]


def test_what_a_source_raises_comes_after_the_receipts_and_loses_no_record(
    client: Client, group: FakeGroup
) -> None:
    def source() -> Iterator[bytes]:
        yield from bodies(25)
        raise OSError("the source is gone")

    stream = client.append_stream(source(), batch_records=10)
    receipts: list[AppendReceipt] = []
    for _ in range(2):  # raised again to whoever asks again
        with pytest.raises(OSError, match="the source is gone"):
            receipts.extend(stream)
    assert [r.count for r in receipts] == [10, 10]
    assert group.bodies() == bodies(20)
    assert stream.progress == StreamProgress(20, 0, 5)


@pytest.mark.parametrize("options", [{"window": 0}, {"batch_records": 0}])
def test_options_that_make_no_sense(client: Client, options: dict[str, int]) -> None:
    with pytest.raises(BadRequest):
        list(client.append_stream([b"x"], **options))
