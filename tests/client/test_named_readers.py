"""Readers that the cluster keeps, through both clients and a real cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator, Iterator
from types import coroutine
from typing import Any

import pytest

from quorumlog import (
    BadRequest,
    IndexOutOfRange,
    LedgerClient,
    LedgerError,
    LocalCluster,
    OutcomeUnknown,
    ReaderMoved,
    UnknownReader,
    connect,
    connect_async,
)
from quorumlog.client import reader_operations
from quorumlog.client.handles import AsyncNamedReader
from quorumlog.client.protocol.client_requests import Request
from quorumlog.client.reader_operations import ReaderState
from quorumlog.client.sending import request_of
from quorumlog.net.rpc.calls import LEADER, response_of
from quorumlog.wire.client_message import ClientMessage
from quorumlog.wire.client_messages import (
    MoveReaderRequest,
    MoveReaderResponse,
    ReaderInfo,
    ReadersResponse,
)
from tests.client.both_clients import Client, asyncio_client_of
from tests.client.fake_server import CarryOutAndDrop, FakeGroup


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(3) as cluster:
        with connect(cluster.servers) as log:
            log.append_batch([b"%d" % number for number in range(10)])
        yield cluster


@pytest.fixture
def log(cluster: LocalCluster) -> Iterator[LedgerClient]:
    with connect(cluster.servers) as log:
        yield log


def test_a_consumer_that_takes_over_goes_on_where_the_one_before_has_committed(
    cluster: LocalCluster, log: LedgerClient
) -> None:
    reader = log.reader("billing", hold=True)
    assert (reader.position, reader.hold) == (0, True)
    first, second, *_ = reader
    assert (first.body, second.body) == (b"0", b"1")
    assert reader.commit(second.index + 1) == second.index + 1
    others = [m.member_id for m in cluster.members if m.member_id != cluster.leader()]
    log.transfer(others[0])
    with connect(cluster.servers) as another:
        again = another.reader("billing")
        assert (again.position, again.hold) == (second.index + 1, True)
        assert [entry.body for entry in again.read(limit=2)] == [b"2", b"3"]
        assert [entry.body for batch in again.read_batches() for entry in batch.entries()][:1] == [b"2"]
        assert next(again.tail()).body == b"2"
        assert again.read_arrow(columns=["body"]).__next__()["body"][0].as_py() == b"2"
        assert again.commit(0) == second.index + 1


def test_it_goes_back_only_from_where_it_stands(log: LedgerClient) -> None:
    one, other = log.reader("seeks"), log.reader("seeks")
    one.commit(6)
    with pytest.raises(ReaderMoved, match="is at 6"):
        other.seek(2)
    assert one.seek(2) == 2
    assert log.reader("seeks").position == 2
    with pytest.raises(IndexOutOfRange, match="after the end"):
        one.commit(10**6)


def test_what_has_ended_is_unknown(log: LedgerClient) -> None:
    reader = log.reader("short")
    assert "short" in [row.name for row in log.readers()]
    reader.end()
    assert "short" not in [row.name for row in log.readers()]
    with pytest.raises(UnknownReader):
        reader.commit(3)


def test_all_readers_are_listed_with_how_far_they_are_behind(log: LedgerClient) -> None:
    reader = log.reader("listed", hold="archive", first_index=4)
    late = log.reader("late", first_index="latest")
    rows = {row.name: row for row in log.readers()}
    listed = rows["listed"]
    assert (listed.position, listed.hold, listed.lost_ranges) == (4, "archive", ())
    assert listed.lag_entries > 5
    assert (rows["late"].lag_entries, rows["late"].lag_ms) == (0, 0)
    assert log.reader("listed", hold=False).hold is False
    assert (reader.hold, late.hold) == ("archive", False)


def test_what_a_reader_goes_on_without_is_counted(log: LedgerClient) -> None:
    reader = log.reader("skipping", first_index=8)
    for _ in range(2):
        reader.note_skipped(2, 5)
    (row,) = [row for row in log.readers() if row.name == "skipping"]
    assert (row.position, row.skipped_entries, row.skipped_ranges) == (8, 3, ((2, 5),))
    for first, stop, error, why in [
        (5, 5, BadRequest, "range"),
        (-1, 5, BadRequest, "range"),
        (2, 10**6, IndexOutOfRange, "after the end"),
    ]:
        with pytest.raises(error, match=why):
            reader.note_skipped(first, stop)
    reader.end()
    with pytest.raises(UnknownReader):
        reader.note_skipped(2, 5)


def test_whoever_has_read_everything_is_not_behind(log: LedgerClient) -> None:
    """What leaders write themselves, the entry of the commit too, is nothing to be read."""
    reader = log.reader("idle", first_index=0)
    last = [entry.index for entry in reader][-1]
    for _ in range(3):
        reader.commit(last + 1)
        (row,) = [row for row in log.readers() if row.name == "idle"]
        assert (row.lag_entries, row.lag_ms) == (0, 0)
    reader.seek(last)
    (row,) = [row for row in log.readers() if row.name == "idle"]
    assert row.lag_entries == 1


def test_of_asyncio(cluster: LocalCluster) -> None:
    async def consume() -> list[bytes]:
        async with connect_async(cluster.servers) as log:
            reader = await log.reader("async")
            bodies = [entry.body async for entry in reader]
            await reader.commit(4)
            await reader.seek(3)
            assert [row.position for row in await log.readers() if row.name == "async"] == [3]
            async for entry in reader.tail():
                bodies.append(entry.body)
                break
            await reader.end()
            return bodies

    assert asyncio.run(consume()) == [*(b"%d" % number for number in range(10)), b"2"]


@pytest.mark.parametrize("options", [{"hold": 1}, {"hold": "all"}, {"first_index": "soon"}])
def test_what_makes_no_sense_is_refused(log: LedgerClient, options: dict[str, object]) -> None:
    with pytest.raises(BadRequest):
        log.reader("a", **options)  # type: ignore[arg-type]
    with pytest.raises(BadRequest, match="letters"):
        log.reader("no spaces")


def test_a_commit_whose_answer_is_lost_is_made_again(group: FakeGroup, client: Client) -> None:
    """A second time it changes nothing, so nobody has to hear that its outcome is unknown."""
    moves: list[MoveReaderRequest] = []

    def script(server: object, message: object) -> object:
        if not isinstance(message, MoveReaderRequest):
            return None
        moves.append(message)
        if len(moves) == 2:
            return OutcomeUnknown("leadership was lost")
        if len(moves) == 3:
            return CarryOutAndDrop()
        return MoveReaderResponse(request_id=message.request_id, position=len(moves), hold=0)

    for number in range(3):
        group[number].script = script  # type: ignore[assignment]
    run = client._thread.run if isinstance(client, LedgerClient) else client._run
    reader = AsyncNamedReader(asyncio_client_of(client), "a", ReaderState(0, 0))
    assert run(reader.commit(1)) == 1
    assert run(reader.commit(5)) == 4
    assert [move.position for move in moves] == [1, 5, 5, 5]


class Asked:
    """A sender whose requests a test answers: driving a coroutine gives its next one."""

    timeout_ms_of = staticmethod(float)

    @coroutine
    def call(self, request: Request) -> Generator[Request, None, Request]:
        yield request
        return request

    async def ask(self, message: ClientMessage, kind: type, timeout_ms: float) -> ClientMessage:
        request = request_of(message, LEADER, timeout_ms)  # type: ignore[arg-type]
        return response_of(await self.call(request), kind)  # type: ignore[no-any-return]


def moving(message: MoveReaderRequest) -> Coroutine[Any, Any, Any]:
    return reader_operations.move(Asked(), message, 10_000)  # type: ignore[arg-type]


@pytest.mark.parametrize("refusal", [ReaderMoved("it is at 60"), IndexOutOfRange("it is deleted")])
def test_a_seek_that_may_have_been_done_is_not_called_refused(refusal: LedgerError) -> None:
    """Between the first try, whose answer was lost, and the second somebody has gone on from there."""
    seeking = moving(MoveReaderRequest(reader="r", position=50, seeks_from=100))
    first = seeking.send(None)
    first.error = OutcomeUnknown("the connection was lost")
    second = seeking.send(None)
    second.error = refusal
    with pytest.raises(OutcomeUnknown):
        seeking.send(None)


def test_what_was_meant_for_an_older_log_is_said_once_more() -> None:
    committing = moving(MoveReaderRequest(reader="r", position=50, seen_index=-1))
    first = committing.send(None)
    first.error = ReaderMoved("a reader was ended since", committed_index=70)
    second = committing.send(None)
    assert second.message.seen_index == 70
    second.error = ReaderMoved("of a server that knows no end", committed_index=-1)
    with pytest.raises(ReaderMoved):
        committing.send(None)


def test_an_end_whose_outcome_is_unknown_does_not_end_the_reader_behind_it() -> None:
    ending = moving(MoveReaderRequest(reader="r", ends=True, seen_index=3))
    first = ending.send(None)
    first.error = OutcomeUnknown("the connection was lost")
    second = ending.send(None)
    second.error = ReaderMoved("a reader was ended since", committed_index=70)
    with pytest.raises(OutcomeUnknown):
        ending.send(None)


def test_an_opening_whose_outcome_is_unknown_makes_no_reader_anew_that_was_ended_behind_it() -> None:
    opening = reader_operations.open_reader(
        Asked(),
        MoveReaderRequest(reader="r", opens=True),
        10_000,  # type: ignore[arg-type]
    )
    question = opening.send(None)
    question.response = ReadersResponse(request_id=1, committed_index=40, keep_from_index=0)
    first = opening.send(None)
    assert first.message.seen_index == 40
    first.error = OutcomeUnknown("leadership was lost")
    second = opening.send(None)
    second.error = ReaderMoved("a reader was ended since", committed_index=70)
    with pytest.raises(OutcomeUnknown):
        opening.send(None)


@pytest.mark.parametrize(
    ("position", "last_index", "is_made_again"),
    [(20, 40, True), (20, -1, False), (4, 65, False), (50, 65, True), (90, 65, True)],
)
def test_a_commit_that_may_have_been_done_does_not_undo_a_seek_behind_it(
    position: int, last_index: int, is_made_again: bool
) -> None:
    """Somebody saw it done, and has led the reader back since."""
    committing = moving(MoveReaderRequest(reader="r", position=50, seen_index=40))
    first = committing.send(None)
    first.error = OutcomeUnknown("leadership was lost")
    second = committing.send(None)
    second.error = ReaderMoved("a reader was led back since", committed_index=70)
    question = committing.send(None)
    stands = ReaderInfo(name="r", position=position, hold=0, last_index=last_index)
    question.response = ReadersResponse(
        request_id=1, committed_index=70, keep_from_index=0, readers=(stands,)
    )
    if is_made_again:
        third = committing.send(None)
        assert (third.message.position, third.message.seen_index) == (50, 70)
    else:
        with pytest.raises(OutcomeUnknown):
            committing.send(None)


def test_a_commit_of_a_reader_that_is_gone_stays_unknown() -> None:
    committing = moving(MoveReaderRequest(reader="r", position=50, seen_index=40))
    first = committing.send(None)
    first.error = OutcomeUnknown("leadership was lost")
    second = committing.send(None)
    second.error = ReaderMoved("a reader was ended since", committed_index=70)
    question = committing.send(None)
    question.response = ReadersResponse(request_id=1, committed_index=70, keep_from_index=0)
    with pytest.raises(OutcomeUnknown):
        committing.send(None)
