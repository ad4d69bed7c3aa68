"""What a client tells of the group: callbacks, the log, warnings and reprs."""

from __future__ import annotations

import asyncio
import gc
import logging
import queue
import threading
from typing import Any

import pytest

from quorumlog import EntryBatch, LedgerClient, OutcomeUnknown, connect, connect_async
from quorumlog.client.protocol.appending import StreamProgress
from tests.client.both_clients import Client
from tests.client.fake_server import FakeGroup
from tests.waiting import eventually


def append_through_a_stop(log: LedgerClient, body: bytes) -> None:
    """The client may not have heard yet that its leader has stopped: the outcome is unknown then."""
    try:
        log.append(body)
    except OutcomeUnknown:
        log.append(body)


def test_callbacks_run_beside_the_client_and_may_use_it(group: FakeGroup) -> None:
    told: queue.Queue[tuple[str, str, Any]] = queue.Queue()

    def leads(address: str) -> None:
        told.put(("leads", address, log.append(b"seen").first_index))
        assert threading.current_thread().name == "quorumlog-callbacks"

    def is_back(address: str) -> None:
        told.put(("back", address, None))

    with connect(group.addresses, on_leader_change=leads, on_reconnect=is_back) as log:
        log.append(b"a")
        assert told.get(timeout=10)[:2] == ("leads", group[0].address)
        group[0].stop()
        group.elect(group[1])
        append_through_a_stop(log, b"b")
        assert told.get(timeout=10)[:2] == ("leads", group[1].address)
        group[0].start()
        group[1].stop()
        group.elect(group[0])
        append_through_a_stop(log, b"c")
        seen = {told.get(timeout=10)[:2] for _ in range(2)}
        assert seen == {("leads", group[0].address), ("back", group[0].address)}


def test_callbacks_of_an_asyncio_client_run_in_its_loop(group: FakeGroup) -> None:
    async def main() -> None:
        loop, told = asyncio.get_running_loop(), asyncio.Event()

        def leads(address: str) -> None:
            assert asyncio.get_running_loop() is loop
            told.set()

        async with connect_async(group.addresses, on_leader_change=leads) as log:
            await log.append(b"a")
            await asyncio.wait_for(told.wait(), 10)

    asyncio.run(main())


def test_what_a_callback_raises_is_logged_and_changes_nothing(
    group: FakeGroup, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(address: str) -> None:
        raise ValueError("a bug of the owner's")

    async def main() -> None:
        async with connect_async(group.addresses, on_leader_change=fails) as log:
            await log.append(b"a")

    with caplog.at_level(logging.INFO, "quorumlog.client"):
        with connect(group.addresses, on_leader_change=fails) as log:
            log.append(b"a")
            eventually(lambda: "a bug of the owner's" in caplog.text)
            log.append(b"b")
        asyncio.run(main())
    assert {record.name for record in caplog.records} == {"quorumlog.client"}
    assert f"{group[0].address}: is the leader now" in caplog.text
    assert sum(record.exc_info is not None for record in caplog.records) == 2


def test_a_stream_that_nobody_iterates_is_warned_of(client: Client) -> None:
    with pytest.warns(ResourceWarning, match="never iterated"):
        client.append_stream([b"a"])
        gc.collect()


def test_a_stream_is_left_in_the_middle(group: FakeGroup) -> None:
    bodies = [b"%d" % number for number in range(100)]
    with connect(group.addresses) as log:
        with log.append_stream(bodies, batch_records=1, window=1) as stream:
            assert next(stream).first_index == 1
        assert stream.progress == StreamProgress(1, 0, 0)
        assert repr(stream).startswith("<AppendStream: records committed: 1, unknown: 0")

    async def main() -> None:
        async with (
            connect_async(group.addresses) as beside,
            beside.append_stream(bodies, batch_records=1, window=1) as stream,
        ):
            assert (await anext(stream)).first_index == 2

    asyncio.run(main())
    assert len(group.bodies()) == 2


def test_clients_and_batches_say_what_they_are(group: FakeGroup) -> None:
    with connect(group.addresses) as log:
        about = f"<LedgerClient of group 'default' at {group.addresses}: "
        assert repr(log) == f"{about}no leader known yet>"
        log.append(b"a")
        assert repr(log) == f"{about}leader {group[0].address}>"
    assert repr(log) == f"{about}closed>"
    assert repr(EntryBatch.from_bodies([b"a", b"bc"])) == "<EntryBatch of 2 entries, 99 bytes>"
