"""The store as clients of etcd's gRPC API see it, with those calls of our client that workers use.

A call is sent once, to one member; after a failure the next one goes to another member.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, Self

import grpc
from google.protobuf.message import Message

from quorumlog.errors import OutcomeUnknown, Unreachable
from quorumlog.kv.client.values import Change, Item
from quorumlog.kv.errors import InvalidRequest, LockLost
from quorumlog.kv.etcd import messages_pb2 as pb

_SURELY_REFUSED = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
)
SILENCE_S = 3.0
"""A watch that is told nothing for so long asks another member, from where it is."""
POLL_S = 0.05


class Done(NamedTuple):
    revision: int
    deleted: int = 0


class EtcdClient:
    """`async with EtcdClient(addresses, timeout_ms)`."""

    def __init__(self, addresses: Sequence[str], timeout_ms: float) -> None:
        """`addresses`: HOST:PORT of each member, in the order in which they are asked."""
        self._addresses = addresses
        self._timeout_s = timeout_ms / 1000
        self._channels: list[Any] = []
        self._place = 0

    async def __aenter__(self) -> Self:
        # A member that was stopped and goes on is asked again at once.
        options = [("grpc.max_reconnect_backoff_ms", 200), ("grpc.initial_reconnect_backoff_ms", 100)]
        self._channels = [grpc.aio.insecure_channel(each, options) for each in self._addresses]
        return self

    async def __aexit__(self, *reason: object) -> None:
        await asyncio.gather(*[channel.close() for channel in self._channels])

    # ---------------------------------------------------------------- keys

    async def get(self, key: bytes) -> Item[bytes] | None:
        found = await self._call("KV/Range", pb.RangeRequest(key=key), pb.RangeResponse)
        return _item(found.kvs[0]) if found.kvs else None

    async def put(self, key: bytes, value: bytes, *, lease: int = 0) -> Done:
        request = pb.PutRequest(key=key, value=value, lease=lease)
        done = await self._call("KV/Put", request, pb.PutResponse)
        return Done(done.header.revision)

    async def compare_and_set(self, key: bytes, value: bytes, *, expected_revision: int) -> Done | None:
        put = pb.RequestOp(request_put=pb.PutRequest(key=key, value=value))
        compare = pb.Compare(key=key, target="MOD", mod_revision=expected_revision)
        done = await self._call(
            "KV/Txn", pb.TxnRequest(compare=[compare], success=[put]), pb.TxnResponse
        )
        return Done(done.header.revision) if done.succeeded else None

    async def delete(self, key: bytes) -> Done:
        done = await self._call("KV/DeleteRange", pb.DeleteRangeRequest(key=key), pb.DeleteRangeResponse)
        return Done(done.header.revision, done.deleted)

    async def _call(self, method: str, request: Message, answer: Any) -> Any:
        channel = self._channels[self._place]
        call = channel.unary_unary(
            f"/etcdserverpb.{method}", type(request).SerializeToString, answer.FromString
        )
        try:
            return await call(request, timeout=self._timeout_s)
        except grpc.aio.AioRpcError as error:
            words = f"{error.code().name}: {error.details()}"
            if error.code() in _SURELY_REFUSED:
                raise InvalidRequest(words) from None
            self._place = (self._place + 1) % len(self._channels)
            raise OutcomeUnknown(words) from None

    # ---------------------------------------------------------------- watches

    @asynccontextmanager
    async def watch_prefix(self, prefix: bytes) -> AsyncIterator[EtcdWatch]:
        watch = EtcdWatch(self._channels, prefix)
        try:
            await watch.begin()
            yield watch
        finally:
            watch.close()

    # ---------------------------------------------------------------- leases and locks

    async def grant(self, ttl_s: float) -> EtcdLease:
        sent_s = time.monotonic()
        told = await self._call(
            "Lease/LeaseGrant", pb.LeaseGrantRequest(TTL=int(ttl_s)), pb.LeaseGrantResponse
        )
        return EtcdLease(self, told.ID, told.TTL * 1000, sent_s)

    async def keep_alive(self, lease: int) -> int:
        """What its TTL is then; 0: it has ended."""
        channel = self._channels[self._place]
        call = channel.stream_stream(
            "/etcdserverpb.Lease/LeaseKeepAlive",
            pb.LeaseKeepAliveRequest.SerializeToString,
            pb.LeaseKeepAliveResponse.FromString,
        )
        try:
            async for told in call([pb.LeaseKeepAliveRequest(ID=lease)], timeout=self._timeout_s):
                return int(told.TTL)
        except grpc.aio.AioRpcError as error:
            self._place = (self._place + 1) % len(self._channels)
            raise OutcomeUnknown(f"{error.code().name}: {error.details()}") from None
        raise OutcomeUnknown("a stream of keep-alives has ended without an answer")

    async def first_below(self, prefix: bytes) -> bytes:
        """The key that was made first."""
        request = pb.RangeRequest(
            key=prefix, range_end=_end(prefix), limit=1, sort_order="ASCEND", sort_target="CREATE"
        )
        found = await self._call("KV/Range", request, pb.RangeResponse)
        return bytes(found.kvs[0].key) if found.kvs else b""

    def lock(self, name: bytes, *, ttl_s: float) -> EtcdLock:
        return EtcdLock(self, name, ttl_s)


class EtcdLease:
    def __init__(self, client: EtcdClient, lease: int, ttl_ms: int, sent_s: float) -> None:
        self._client = client
        self.id = lease
        self.ttl_ms = ttl_ms
        self.until_s = sent_s + ttl_ms / 1000
        """By then it may have ended."""

    async def keep_alive_once(self) -> None:
        sent_s = time.monotonic()
        if not await self._client.keep_alive(self.id):
            raise LockLost(f"lease {self.id} has ended")
        self.until_s = sent_s + self.ttl_ms / 1000


class EtcdLock:
    """As etcd's clients lock: whose key below the name was made first holds it."""

    def __init__(self, client: EtcdClient, name: bytes, ttl_s: float) -> None:
        self._client = client
        self._name = name
        self._ttl_s = ttl_s
        self._lease: EtcdLease | None = None

    @property
    def is_held(self) -> bool:
        return self._lease is not None and time.monotonic() < self._lease.until_s

    async def acquire(self, *, timeout_ms: float) -> int:
        async with asyncio.timeout(timeout_ms / 1000):
            self._lease = lease = await self._client.grant(self._ttl_s)
            key = self._name + b"/%x" % lease.id
            token = (await self._client.put(key, b"", lease=lease.id)).revision
            while await self._client.first_below(self._name + b"/") != key:
                if lease.until_s - time.monotonic() < self._ttl_s / 2:
                    await lease.keep_alive_once()
                await asyncio.sleep(POLL_S)
            return token

    async def release(self) -> None:
        if self._lease is not None:
            lease, self._lease = self._lease, None
            request = pb.LeaseRevokeRequest(ID=lease.id)
            await self._client._call("Lease/LeaseRevoke", request, pb.LeaseRevokeResponse)


class EtcdWatch:
    """Goes on at `next_revision` after each failure, at another member."""

    def __init__(self, channels: Sequence[Any], prefix: bytes) -> None:
        self._channels = channels
        self._prefix = prefix
        self._place = 0
        self._call: Any = None
        self.next_revision = 0

    async def begin(self) -> None:
        """Until a member has said that it watches."""
        while not await self._opened():
            await asyncio.sleep(POLL_S)

    async def _opened(self) -> bool:
        self.close()
        self._call = self._channels[self._place % len(self._channels)].stream_stream(
            "/etcdserverpb.Watch/Watch",
            pb.WatchRequest.SerializeToString,
            pb.WatchResponse.FromString,
        )()
        create = pb.WatchCreateRequest(
            key=self._prefix, range_end=_end(self._prefix), start_revision=self.next_revision
        )
        try:
            async with asyncio.timeout(SILENCE_S):
                await self._call.write(pb.WatchRequest(create_request=create))
                told = await self._call.read()
        except (TimeoutError, grpc.aio.AioRpcError, asyncio.InvalidStateError):
            self._place += 1
            return False
        if told is grpc.aio.EOF:
            self._place += 1
            return False
        if told.canceled:
            raise Unreachable(f"a watch was refused: {told.cancel_reason}")
        self.next_revision = self.next_revision or told.header.revision + 1
        return True

    async def batch(self) -> list[Change]:
        while True:
            try:
                async with asyncio.timeout(SILENCE_S):
                    told = await self._call.read()
            except (TimeoutError, grpc.aio.AioRpcError):
                told = grpc.aio.EOF
            if told is grpc.aio.EOF:
                self._place += 1
                await self.begin()
                continue
            if told.canceled:
                raise Unreachable(f"a watch has ended: {told.cancel_reason}")
            if told.events:
                changes = [
                    Change(_item(event.kv), None, event.type == pb.Event.DELETE) for event in told.events
                ]
                self.next_revision = changes[-1].revision + 1
                return changes

    async def __aiter__(self) -> AsyncIterator[Change]:
        while True:
            for change in await self.batch():
                yield change

    def close(self) -> None:
        if self._call is not None:
            self._call.cancel()
            self._call = None


def _end(prefix: bytes) -> bytes:
    """Of all keys that begin with it; its last byte is no 255."""
    return prefix[:-1] + bytes([prefix[-1] + 1])


def _item(kv: Any) -> Item[bytes]:
    return Item(kv.key, kv.value, kv.create_revision, kv.mod_revision, kv.version, kv.lease)
