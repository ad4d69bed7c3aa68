"""A group that has lost entries which this client has seen committed: it says so, and skips nothing."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from quorumlog.errors import IndexOutOfRange, SequenceGap
from quorumlog.log_state.control_entries import ProducerEpoch
from quorumlog.wire.client_messages import (
    AppendRequest,
    AppendResponse,
    ConnectProducer,
    ConnectProducerResponse,
    ReadRequest,
    ReadResponse,
)
from tests.client.both_clients import Client
from tests.client.fake_server import Action, FakeGroup, FakeServer
from tests.client.test_tail import in_thread
from tests.waiting import eventually


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]


def test_a_tail_does_not_wait_for_a_log_that_grows_again_to_pass_over_it(
    client: Client, group: FakeGroup
) -> None:
    group.append([b"a", b"b", b"c"])
    tail = client.tail(0)
    assert [next(tail).body for _ in range(3)] == [b"a", b"b", b"c"]
    group.lose(2)
    with pytest.raises(IndexOutOfRange, match="entry 3 was read, but the log now ends at 1") as error:
        next(tail)
    assert error.value.committed_index == 1


def test_a_tail_of_a_member_that_lags_waits(client: Client, group: FakeGroup) -> None:
    """It asks the leader where the log ends."""
    group.append([b"a", b"b"])

    def lag(server: FakeServer, message: object) -> Action:
        if isinstance(message, ReadRequest) and message.wait_ms and message.first_index == 3:
            group[2].script = lambda server, message: None
            group.append([b"c"])
            return ReadResponse(
                request_id=message.request_id,
                first_index=3,
                count=0,
                ledger_begin_index=0,
                committed_index=1,
            )
        return None

    group[2].script = lag
    tail = client.tail(0, from_member="n2")
    assert [next(tail).body for _ in range(3)] == [b"a", b"b", b"c"]


def test_a_tail_that_begins_behind_the_end_waits_for_it(client: Client, group: FakeGroup) -> None:
    group.append([b"a"])
    assert list(client.tail(5, wait=True, timeout_ms=50)) == []


def test_an_append_in_the_place_of_an_entry_that_was_seen_is_told(
    client: Client, group: FakeGroup, caplog: pytest.LogCaptureFixture
) -> None:
    for body in (b"a", b"b", b"c"):
        client.append(body)
    assert not told(caplog)
    group.lose(2)
    assert client.append(b"other").first_index == 2
    eventually(lambda: told(caplog))
    (line,) = told(caplog)
    assert "has lost entries that were committed" in line
    assert "entry 3 was committed, and now only entry 1 is" in line
    client.append(b"more")
    assert len(told(caplog)) == 1, "once a loss"


def opening(last_sequence: Callable[[], int]) -> Callable[[FakeServer, object], Action]:
    """A leader that opens an epoch for whoever connects."""

    def script(server: FakeServer, message: object) -> Action:
        if not isinstance(message, ConnectProducer):
            return None
        return ConnectProducerResponse(
            request_id=message.request_id,
            opened=True,
            epoch=ProducerEpoch(len(server.group.entries), server.group.term),
            last_sequence=last_sequence(),
        )

    return script


@pytest.mark.parametrize("options", [{"producer_id": "p"}, {"idempotent": True}], ids=["named", "own"])
def test_so_is_one_of_a_producer(
    new_client: Callable[..., Client],
    group: FakeGroup,
    caplog: pytest.LogCaptureFixture,
    options: dict[str, Any],
) -> None:
    group[0].script = opening(lambda: -1)
    producer = new_client(group.addresses, **options)
    for body in (b"a", b"b", b"c"):
        producer.append(body)
    assert not told(caplog)
    group.lose(2)
    assert producer.append(b"other").first_index == 2
    eventually(lambda: told(caplog))
    (line,) = told(caplog)
    assert "has lost entries that were committed" in line
    assert "entry 3 was committed, and now only entry 1 is" in line
    producer.append(b"more")
    assert len(told(caplog)) == 1, "once a loss"


def test_so_is_one_that_the_log_has_given_another_number(
    new_client: Callable[..., Client], group: FakeGroup, caplog: pytest.LogCaptureFixture
) -> None:
    """The numbers of the entries that are gone are missing in front of it: an epoch begins, and it gets
    the first of those."""
    last_sequence = -1
    group[0].script = opening(lambda: last_sequence)
    producer = new_client(group.addresses, producer_id="p")
    for body in (b"a", b"b", b"c"):
        producer.append(body)
    group.lose(2)
    last_sequence = 0

    def gap_once(server: FakeServer, message: object) -> Action:
        if not isinstance(message, AppendRequest):
            return None
        group[0].script = opening(lambda: last_sequence)
        return SequenceGap("3 came where 1 was expected", expected_sequence=1)

    group[0].script = gap_once
    assert producer.append(b"other").first_index == 2
    eventually(lambda: told(caplog))
    appends = [call for call in group[0].calls if isinstance(call, AppendRequest)]
    assert appends[-1].session is not None
    assert appends[-1].session.sequence == 1


def test_a_receipt_of_what_stood_under_the_number_of_the_caller_is_none(
    new_client: Callable[..., Client], group: FakeGroup, caplog: pytest.LogCaptureFixture
) -> None:
    """It lies in the log for long, and other entries behind it."""
    producer = new_client(group.addresses, producer_id="p")
    own_index = group.append([b"mine", b"another's"])

    def as_remembered(server: FakeServer, message: object) -> Action:
        if not isinstance(message, AppendRequest):
            return opening(lambda: 0)(server, message)
        return AppendResponse(
            request_id=message.request_id, term=2, first_index=own_index, count=1, durability="sync"
        )

    group[0].script = as_remembered
    assert producer.end_index() == 2
    assert producer.append(b"mine", sequence=0).first_index == own_index
    group[0].script = opening(lambda: 0)
    assert producer.end_index() == 2
    assert not told(caplog)


def test_the_end_of_a_log_that_is_shorter_than_it_was_is_told(
    client: Client, group: FakeGroup, caplog: pytest.LogCaptureFixture
) -> None:
    group.append([b"a", b"b", b"c"])
    assert [entry.body for entry in client.read(0)] == [b"a", b"b", b"c"]
    group.lose(1)
    assert client.end_index() == 2
    eventually(lambda: told(caplog))
    assert client.end_index() == 2
    client.append(b"d")
    assert len(told(caplog)) == 1


def test_another_member_that_has_less_is_none(
    client: Client, group: FakeGroup, caplog: pytest.LogCaptureFixture
) -> None:
    group.append([b"a", b"b", b"c"])
    assert client.end_index() == 3
    group.lose(1)
    assert len(list(client.read(0, from_member="n1"))) == 2
    assert not told(caplog)


def test_an_append_that_was_under_way_before_is_none(
    client: Client, group: FakeGroup, caplog: pytest.LogCaptureFixture
) -> None:
    """Its answer comes after entries behind it were read elsewhere."""
    client.append(b"a")
    has_read = threading.Event()

    def answer_late(server: FakeServer, message: object) -> Action:
        if not isinstance(message, AppendRequest):
            return None
        (index, _) = group.append([b"mine"]), group.append([b"other"])
        assert has_read.wait(10)
        return AppendResponse(
            request_id=message.request_id, term=2, first_index=index, count=1, durability="sync"
        )

    group[0].script = answer_late
    thread, got = in_thread(lambda: client.append(b"mine").first_index)
    eventually(lambda: len(group.bodies()) == 3)
    assert len(list(client.read(0, from_member="n1"))) == 3
    has_read.set()
    thread.join(10)
    assert got == [2]
    group[0].script = lambda server, message: None
    client.append(b"last")
    assert not told(caplog)
