"""Values of a client are of its codec's type; a misspelt option is an error of types, and when it runs.

mypy checks this folder, and refuses a `type: ignore` that is not needed: each is a line that is wrong.
"""

from __future__ import annotations

import struct
from contextlib import AbstractContextManager
from typing import Any, assert_type

import pytest

from quorumlog import ConfigError
from quorumlog.kv import AsyncKeyValueClient, KeyValueClient, KeyValueStore, connect, connect_async
from quorumlog.kv.client.leasing import Election
from quorumlog.kv.client.values import DeleteResult, Item, PutResult, RangeResult, TxnResult
from quorumlog.kv.errors import InvalidRequest

NOBODY = "127.0.0.1:1"


class Temperatures:
    """A codec of an application's own."""

    def encode(self, value: float) -> bytes:
        return struct.pack(">d", value)

    def decode(self, data: bytes) -> float:
        number: float
        (number,) = struct.unpack(">d", data)
        return number


def test_of_connect() -> None:
    with pytest.raises(TypeError, match="codecc"):
        connect(NOBODY, codecc="json")  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match="jsno"):
        connect(NOBODY, codec="jsno")  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match="encode"):
        connect(NOBODY, codec=3)  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match="jsno"):
        connect_async(NOBODY, codec="jsno")  # type: ignore[call-overload]


def test_of_reading_and_watching() -> None:
    with connect(NOBODY) as kv:
        with pytest.raises(TypeError, match="lmit"):
            kv.range("a", "b", lmit=3)  # type: ignore[call-overload]
        with pytest.raises(TypeError, match="lmit"):
            kv.prefix("a", lmit=3)  # type: ignore[call-overload]
        with pytest.raises(TypeError, match="page_item"):
            next(kv.scan(page_item=3))  # type: ignore[call-overload]
        with pytest.raises(TypeError, match="leese"):
            kv.put("a", "b", leese=3)  # type: ignore[call-overload]
        with pytest.raises(TypeError, match="prev"):
            kv.watch("a", prev=True)  # type: ignore[call-arg]
        with pytest.raises(TypeError, match="prev"):
            kv.watch_prefix("a", prev=True)  # type: ignore[call-arg]


def test_a_value_that_the_codec_does_not_take_is_refused() -> None:
    with connect(NOBODY) as kv, pytest.raises(InvalidRequest, match="bytes or text"):
        kv["a"] = 3  # type: ignore[call-overload]
    with connect(NOBODY, codec="text") as kv_text, pytest.raises(InvalidRequest, match="is text"):
        kv_text["a"] = b"3"  # type: ignore[assignment]
    with connect(NOBODY, codec=Temperatures()) as kv_own, pytest.raises(struct.error):
        kv_own.put("a", "warm")  # type: ignore[arg-type]


def test_the_codec_says_of_which_type_values_are() -> None:
    """Nothing is sent: what is asserted here, mypy holds."""
    with (
        connect(NOBODY) as as_bytes,
        connect(NOBODY, codec="text") as as_text,
        connect(NOBODY, codec="json", timeout_ms=1000) as as_json,
        connect(NOBODY, codec="msgspec") as as_messages,
        connect(NOBODY, codec=Temperatures(), cluster_id="c") as as_numbers,
    ):
        assert_type(as_bytes, KeyValueClient[bytes])
        assert_type(as_text, KeyValueClient[str])
        assert_type(as_json, KeyValueClient[Any])
        assert_type(as_messages, KeyValueClient[Any])
        assert_type(as_numbers, KeyValueClient[float])
    takes_any(as_bytes)
    takes_any(as_text)  # type: ignore[arg-type]


def takes_any(kv: KeyValueClient) -> None:
    """One that says nothing of its values has bytes."""
    assert_type(kv, KeyValueClient[bytes])


def results_of_verbs(kv: KeyValueClient[float], kv_bytes: KeyValueClient) -> None:
    assert_type(kv["a"], float)
    kv["a"] = 1.0
    kv_bytes["a"] = "text"
    kv_bytes.put("a", b"bytes")
    assert_type(kv.put("a", 1.0, lease=3), PutResult[float])
    assert_type(kv_bytes.put("a", "text", prev_kv=True), PutResult[bytes])
    assert_type(kv.get("a"), Item[float] | None)
    assert_type(kv.delete("a"), DeleteResult[float])
    assert_type(kv.compare_and_set("a", 1.0, expected_revision=0), PutResult[float] | None)
    assert_type(kv_bytes.compare_and_set("a", "b", expected_revision=0), PutResult[bytes] | None)
    assert_type(kv.range("a", "b", limit=3), RangeResult[float])
    assert_type(kv.range("a", "b", keys_only=True), RangeResult[float | None])
    assert_type(kv.prefix("a", keys_only=False).items[0].value, float)
    assert_type(next(iter(kv.scan())).value, float)
    assert_type(next(iter(kv.scan(keys_only=True))).value, float | None)
    assert_type(kv.txn(), TxnResult[float])
    with kv.watch("a") as changes:
        for change in changes:
            assert_type(change.item.value, float | None)  # None of a deletion
            assert_type(change.previous, Item[float] | None)
    assert_type(kv.leadership("a", 1.0), AbstractContextManager[Election[float]])
    assert_type(kv_bytes.leadership("a", "me"), AbstractContextManager[Election[bytes]])
    assert_type(kv.leader("a"), Item[float | None] | None)


async def results_for_asyncio(kv: AsyncKeyValueClient[str], kv_bytes: AsyncKeyValueClient) -> None:
    assert_type(connect_async(NOBODY), AsyncKeyValueClient[bytes])
    assert_type(connect_async(NOBODY, codec="text"), AsyncKeyValueClient[str])
    assert_type(connect_async(NOBODY, codec="json"), AsyncKeyValueClient[Any])
    assert_type(connect_async(NOBODY, codec=Temperatures()), AsyncKeyValueClient[float])
    assert_type(await kv.put("a", "b"), PutResult[str])
    assert_type(await kv_bytes.put("a", "b"), PutResult[bytes])
    assert_type(await kv.get("a"), Item[str] | None)
    assert_type(await kv.prefix("a", count_only=True), RangeResult[str])
    assert_type(await kv.prefix("a", keys_only=True), RangeResult[str | None])
    async for item in kv.scan():
        assert_type(item.value, str)
    async with kv.watch_prefix("a") as watch:
        async for change in watch:
            assert_type(change.item.value, str | None)
    election = kv.election("a")
    await election.campaign("me")
    await election.campaign(b"me")  # type: ignore[arg-type]
    await kv_bytes.election("a").proclaim("me")


def clients_of_an_embedded_store(store: KeyValueStore) -> None:
    assert_type(store.client(), KeyValueClient[bytes])
    assert_type(store.client(codec="text"), KeyValueClient[str])
    assert_type(store.client(codec="json", timeout_ms=1000), KeyValueClient[Any])
    assert_type(store.client(codec=Temperatures()), KeyValueClient[float])
    assert_type(store.async_client(), AsyncKeyValueClient[bytes])
    assert_type(store.async_client(codec=Temperatures()), AsyncKeyValueClient[float])
    store.client(codecc="json")  # type: ignore[call-overload]
