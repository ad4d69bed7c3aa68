"""Mistakes of a caller: each is named at once, and harms nobody else."""

from __future__ import annotations

import asyncio
import copy
import pickle
import sys
from collections.abc import AsyncIterator, Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from quorumlog import ConfigError, LocalCluster, Refused, connect, connect_async, kv
from quorumlog.errors import BadRequest, LeaderNotReady, TransferFailed


@pytest.mark.parametrize(
    ("servers", "options", "said"),
    [
        (5, {}, "servers must be text"),
        (b"127.0.0.1:1", {}, "servers must be text"),
        ([b"127.0.0.1:1"], {}, "an address must be text"),
        ("127.0.0.1:1", {"group": None}, "group must be the name"),
        ("127.0.0.1:1", {"group": 5}, "group must be the name"),
        ("127.0.0.1:1", {"group": ""}, "group '' must have 1 to 255 bytes"),
        ("127.0.0.1:1", {"group": "\ud800"}, "group .* has no form in UTF-8"),
        ("127.0.0.1:1", {"on_leader_change": 5}, "on_leader_change must be a function"),
        ("127.0.0.1:1", {"on_reconnect": "f"}, "on_reconnect must be a function"),
        ("http://127.0.0.1:1", {}, "'http://127.0.0.1:1' is not an address; write host:port"),
        ("127.0.0.1:1,127.0.0.1:0", {}, "'127.0.0.1:0' is not an address: ports are 1 to 65535"),
        ("127.0.0.1:1", {"timeout_ms": "1"}, "timeout_ms must be positive"),
        ("127.0.0.1:1", {"timeout_ms": 0}, "timeout_ms must be positive"),
        ("127.0.0.1:1", {"timeout_ms": float("nan")}, "timeout_ms must be positive"),
    ],
)
def test_what_no_client_can_be_made_of(servers: Any, options: dict[str, Any], said: str) -> None:
    for make in (connect, connect_async):
        with pytest.raises(ConfigError, match=said):
            make(servers, **options)


def test_what_no_request_can_be_made_of() -> None:
    with connect("127.0.0.1:1") as log:
        with pytest.raises(BadRequest, match=r"encode it first, body.encode\(\)"):
            log.append("text")  # type: ignore[arg-type]
        with pytest.raises(
            BadRequest, match="a body must be bytes, bytearray or memoryview, not NoneType"
        ):
            log.append(None)  # type: ignore[arg-type]
        with pytest.raises(BadRequest, match=r"bytes or a list of them, not str: encode it first"):
            next(log.append_stream(["text"]))
        with pytest.raises(
            BadRequest, match="an item of a stream must be bytes or a list of them, not int"
        ):
            next(log.append_stream([5]))  # type: ignore[list-item]
        with pytest.raises(BadRequest, match="number 1 of the batch is str"):
            log.append_batch([b"bytes", "text"])  # type: ignore[list-item]
        with pytest.raises(BadRequest, match="a batch is a list of bodies, not NoneType"):
            log.append_batch(None)  # type: ignore[arg-type]
        with pytest.raises(BadRequest, match="index must fit in 64 bits"):
            log.get(10**30)
        with pytest.raises(BadRequest, match="the index after it must fit in 64 bits"):
            log.get(2**63 - 1)
        for machine in (None, 0, b"", b"counter"):
            with pytest.raises(BadRequest, match="machine must be the name of a state machine"):
                log.append(b"body", machine=machine)  # type: ignore[arg-type]
        with pytest.raises(BadRequest, match="to must be the id of a member"):
            log.transfer(None)  # type: ignore[arg-type]
        with pytest.raises(BadRequest, match="limit must be a whole number, not '1'"):
            log.read(0, limit="1")  # type: ignore[arg-type]


@pytest.mark.parametrize("member_id", ["a=b", "a,b", " a", ""])
def test_a_member_that_no_list_could_name_is_not_waited_for(member_id: str) -> None:
    with connect("127.0.0.1:1") as log, pytest.raises(BadRequest, match=repr(member_id)):
        log.change_members("add", member_id, "127.0.0.1:2")


@pytest.mark.parametrize("make", [connect, connect_async])
def test_what_no_stream_and_no_read_can_be_made_of(make: Any) -> None:
    """Said by the call itself, not by the iteration of what it returns."""
    log = make("127.0.0.1:1")
    for size in ("batch_records", "batch_bytes", "window"):
        for wrong in (0, -1):
            with pytest.raises(BadRequest, match=f"{size} must be at least 1, not {wrong}"):
                log.append_stream([b"body"], **{size: wrong})
        with pytest.raises(BadRequest, match=f"{size} must be a whole number, not 'x'"):
            log.append_stream([b"body"], **{size: "x"})
    for size in ("batch_bytes", "prefetch"):
        for wrong in (0, -1):
            with pytest.raises(BadRequest, match=f"{size} must be at least 1, not {wrong}"):
                log.read_batches(0, **{size: wrong})
    for items in (5, None, b"body", bytearray(b"body"), memoryview(b"body"), "text"):
        with pytest.raises(BadRequest, match=f"of bodies or batches, not {type(items).__name__}"):
            log.append_stream(items)
    for wrong in (5, b"n0", ""):
        with pytest.raises(BadRequest, match='from_member must be "any" or the id of a member'):
            log.read(0, from_member=wrong)
    with pytest.raises(BadRequest, match='first_index, unless "latest", must be a whole number'):
        log.tail("newest")


def test_a_source_that_has_to_be_waited_for_needs_a_loop() -> None:
    async def source() -> AsyncIterator[bytes]:
        yield b"body"

    with (
        connect("127.0.0.1:1") as log,
        pytest.raises(
            BadRequest, match="items is an asynchronous iterable, which needs a client of connect_async"
        ),
    ):
        log.append_stream(source())  # type: ignore[arg-type]


@pytest.mark.parametrize("timeout_ms", ["1", float("nan"), Decimal(1), [1]])
def test_a_time_that_is_none_is_refused_by_every_verb(timeout_ms: Any) -> None:
    async def of_asyncio() -> None:
        async with connect_async("127.0.0.1:1") as log:
            for call in (
                lambda: log.append(b"body", timeout_ms=timeout_ms),
                lambda: log.append_batch([b"body"], timeout_ms=timeout_ms),
                lambda: anext(log.append_stream([b"body"], timeout_ms=timeout_ms)),
                lambda: log.transfer("n0", timeout_ms=timeout_ms),
                lambda: log.status(timeout_ms=timeout_ms),
                lambda: log.end_index(timeout_ms=timeout_ms),
            ):
                with pytest.raises(BadRequest, match="timeout_ms must be a number"):
                    await call()

    with connect("127.0.0.1:1") as log:
        for call in (
            lambda: log.append(b"body", timeout_ms=timeout_ms),
            lambda: log.append_batch([b"body"], timeout_ms=timeout_ms),
            lambda: log.append_stream([b"body"], timeout_ms=timeout_ms),
            lambda: log.transfer("n0", timeout_ms=timeout_ms),
            lambda: log.status(timeout_ms=timeout_ms),
            lambda: log.end_index(timeout_ms=timeout_ms),
        ):
            with pytest.raises(BadRequest, match="timeout_ms must be a number"):
                call()
    asyncio.run(of_asyncio())


def test_a_closed_client_says_so_when_asked_for_the_status() -> None:
    log = connect("127.0.0.1:1")
    log.close()
    with pytest.raises(BadRequest, match="the client is closed"):
        log.status()


@pytest.fixture(scope="module")
def cluster() -> Any:
    with LocalCluster(members=1, store="memory") as running:
        yield running


NO_TIME = (0, -1.5, np.int64(0), -(10**400))


@pytest.mark.parametrize("timeout_ms", NO_TIME)
def test_no_time_left_is_a_refusal_that_may_be_tried_again(cluster: Any, timeout_ms: Any) -> None:
    """What is left of a deadline of the caller's may be nothing."""
    with connect("127.0.0.1:1") as log, pytest.raises(Refused) as refusal:
        log.append(b"body", timeout_ms=timeout_ms)
    assert refusal.value.retriable
    with connect(cluster.servers) as log:
        end = log.append(b"connected").first_index
        assert log.end_index() == end
        for _ in range(2):
            with pytest.raises(Refused, match="the deadline passed") as refusal:
                log.append(b"body", timeout_ms=timeout_ms)
            assert refusal.value.retriable
            assert "IndexOutOfRange" not in str(refusal.value), "what the end was asked with"
        with pytest.raises(Refused, match="the deadline passed"):
            next(log.append_stream([b"body"], timeout_ms=timeout_ms))
        assert log.append(b"the next").first_index == end + 1, "a refused append was written"


@pytest.mark.parametrize(
    "timeout_ms", [sys.maxsize, 1e300, float("inf"), 10**400, np.float16(5000), np.float32(5000)]
)
def test_a_time_may_be_as_long_as_one_likes_and_of_any_type(cluster: Any, timeout_ms: Any) -> None:
    with connect(cluster.servers, timeout_ms=timeout_ms) as log:
        receipt = log.append(b"body")
        assert log.append(b"body", timeout_ms=timeout_ms).first_index == receipt.first_index + 1
        assert log.get(receipt.first_index).body == b"body"
        assert len(log.status(timeout_ms=timeout_ms)) == 1


def test_an_asyncio_client_in_a_second_loop_says_so_at_once(cluster: LocalCluster) -> None:
    """Its connections are the first loop's: an answer would wake nobody."""
    log = connect_async(cluster.servers)
    asyncio.run(log.append(b"one"))
    for verb in (log.append(b"two"), log.append_batch([b"two"]), log.get(1), log.status()):
        with pytest.raises(RuntimeError, match="the event loop that it was first used in"):
            asyncio.run(verb)
    asyncio.run(log.close())


def test_names_that_are_more_than_text_are_text(cluster: LocalCluster) -> None:
    """No message can carry numpy's strings; they come from the tables that people work with."""
    with connect(np.str_(cluster.servers), group=np.str_("default")) as log:
        log.append(b"one")
        with pytest.raises(TransferFailed):
            log.transfer(np.str_("n0"))


@pytest.mark.parametrize("copied", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_client_that_is_sent_to_another_process_says_what_to_do(copied: Callable[[Any], Any]) -> None:
    with connect("127.0.0.1:1") as log, kv.connect("127.0.0.1:1") as store:
        for client in (log, store, log.read(0), log.append_stream([])):
            with pytest.raises(TypeError, match=r"cannot be pickled or copied.* connect there"):
                copied(client)


def test_what_is_true_or_false_need_be_no_bool(cluster: LocalCluster) -> None:
    """Else the member would end the connection, and others' appends on it with an unknown outcome."""
    with connect(cluster.servers) as log:
        log.append(b"one")
        (batch,) = log.read_batches(0, heads=np.True_)
        assert batch.count == log.end_index() + 1


def test_a_text_that_no_message_can_carry_is_refused(cluster: LocalCluster) -> None:
    text = "x" * 70_000
    with connect(cluster.servers) as log:
        for name, ask in (
            ("reader", lambda: log.reader(text).position),
            ("member_id", lambda: log.change_members("promote", text)),
            ("address", lambda: log.change_members("set-address", "n0", f"{text}:1")),
            ("to_member_id", lambda: log.transfer(text)),
            ("machine", lambda: log.append(b"x", machine=text)),
        ):
            with pytest.raises(BadRequest, match=f"{name} has at most 65536 characters, not 7"):
                ask()


def test_a_cluster_that_was_not_started_has_no_leader() -> None:
    with pytest.raises(LeaderNotReady, match="no member runs"):
        LocalCluster(members=1, store="memory").leader()


@pytest.mark.parametrize(("make", "kind"), [(connect, "Results"), (connect_async, "AsyncResults")])
def test_results_that_were_not_iterated_say_what_they_are(make: Any, kind: str) -> None:
    log = make("127.0.0.1:1", group="orders")
    assert repr(log.read(3, 10)) == f"<{kind} of read from 3 to 10, group 'orders'>"
    assert repr(log.read_batches(3)) == f"<{kind} of read_batches from 3, group 'orders'>"
    assert repr(log.read_arrow(0)) == f"<{kind} of read_arrow from 0, group 'orders'>"
    assert repr(log.tail("latest")) == f"<{kind} of tail from latest, group 'orders'>"
