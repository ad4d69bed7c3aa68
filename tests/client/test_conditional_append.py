"""`expected_last`: who comes too late is told so, and by whom; nothing is ever written twice for it."""

from __future__ import annotations

import asyncio
import threading

import pytest

from quorumlog import LocalCluster, WrongLastIndex, connect, connect_async
from quorumlog.client import LedgerClient
from quorumlog.errors import BadRequest, OutcomeUnknown
from quorumlog.wire.client_message import ClientMessage
from quorumlog.wire.client_messages import AppendRequest
from tests.client.fake_server import Action, CarryOutAndDrop, FakeGroup, FakeServer


def test_writers_on_threads_and_tasks_append_one_after_the_other() -> None:
    """A counter that nobody locks: each reads the last number and appends the next."""
    with LocalCluster(members=3) as cluster, connect(cluster.servers) as log:
        log.append(b"0", expected_last=-1)

        def count(rounds: int) -> None:
            last_index = log.end_index()
            while rounds:
                number = int(log.get(last_index).body)
                try:
                    last_index = log.append(b"%d" % (number + 1), expected_last=last_index).last_index
                    rounds -= 1
                except WrongLastIndex as error:
                    last_index = error.actual

        async def count_beside(rounds: int) -> None:
            async with connect_async(cluster.servers) as beside:
                last_index = await beside.end_index()
                while rounds:
                    number = int((await beside.get(last_index)).body)
                    try:
                        body = [b"%d" % (number + 1)]
                        receipt = await beside.append_batch(body, expected_last=last_index)
                        last_index, rounds = receipt.last_index, rounds - 1
                    except WrongLastIndex as error:
                        assert error.actual > last_index
                        last_index = error.actual

        threads = [threading.Thread(target=count, args=(5,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        asyncio.run(count_beside(5))
        for thread in threads:
            thread.join()
        assert [int(entry.body) for entry in log.read(0)] == list(range(21))


def test_what_follows_an_election_is_no_surprise() -> None:
    with LocalCluster(members=3) as cluster, connect(cluster.servers) as log:
        first = log.append(b"a")
        cluster.kill(cluster.leader())
        log.end_index()  # the client has heard of it: what is on its way at a kill may end unknown
        second = log.append(b"b", expected_last=first.last_index)
        assert second.first_index > first.last_index + 1, "no leader has opened a term: nothing to test"
        with pytest.raises(WrongLastIndex, match=f"expected_last is {first.last_index}") as caught:
            log.append(b"c", expected_last=first.last_index)
        assert (caught.value.expected, caught.value.actual) == (first.last_index, second.last_index)


def test_success_without_an_answer_is_unknown_and_no_refusal(group: FakeGroup) -> None:
    """Sent again, it would be refused for what it has written itself."""
    appends: list[int | None] = []

    def script(server: FakeServer, message: ClientMessage) -> Action:
        if not isinstance(message, AppendRequest):
            return None
        appends.append(message.expected_last)
        return CarryOutAndDrop()

    for server in group.servers:
        server.script = script
    with LedgerClient(group.addresses, timeout_ms=5_000) as log, pytest.raises(OutcomeUnknown):
        log.append(b"once", expected_last=0)
    assert appends == [0]


def test_a_leader_of_an_older_release_is_not_asked(group: FakeGroup) -> None:
    group.knows_conditions = False
    with LedgerClient(group.addresses, timeout_ms=5_000) as log:
        with pytest.raises(BadRequest, match=r"expected_last \(7\)"):
            log.append(b"x", expected_last=7)
        log.append(b"y")
    assert group.bodies() == [b"y"]


@pytest.mark.parametrize("wrong", [-2, 1.5, "3", 1 << 63])
def test_what_is_no_index_is_refused_by_name(group: FakeGroup, wrong: object) -> None:
    with (
        LedgerClient(group.addresses, timeout_ms=5_000) as log,
        pytest.raises(BadRequest, match="expected_last"),
    ):
        log.append(b"x", expected_last=wrong)  # type: ignore[arg-type]
