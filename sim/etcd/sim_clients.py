"""SimEtcdClient: it reads and writes a few keys, compacts, holds a lease, and watches."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from quorumlog.kv.etcd import messages_pb2 as pb
from quorumlog.kv.etcd.conversions import number_of
from quorumlog.kv.etcd.errors import Code, RpcError
from quorumlog.kv.etcd.handlers import KEEP_ALIVE, WATCH
from quorumlog.testing.promises import Violation
from sim.etcd.grpc_client import GrpcConnection, GrpcStream, Lost
from sim.etcd.loops import SimLoop
from sim.etcd.sim_members import ETCD_PORT, SimEtcd
from sim.etcd.truth import Item, Truth, item_of
from sim.kv.histories import MISSING, Deleted, Histories, Looked, SeenLease, Wrote
from sim.kv.linearizability import UNKNOWN, TimedOperation

KEYS = (b"k/1", b"k/2", b"k/3")
LEASED = b"l/"
RANGES = ((KEYS[0], b""), (b"k/", b"k0"), (b"\0", b"\0"), (LEASED, b"l0"))
"""What is watched."""
BETWEEN_S, AGAIN_S = 0.05, 0.05
TIMEOUT_S = 4.0
TTL_S = 2
BREAKS = 0.03
"""How often a client closes its connection before it asks for something."""
COMPACTED = (Code.OUT_OF_RANGE, "etcdserver: mvcc: required revision has been compacted")


class Answer(NamedTuple):
    """A call of keys and its answer."""

    called_ms: float
    returned_ms: float
    request: Any
    response: Any


@dataclass
class EtcdWatch:
    key: bytes
    end: bytes
    prev_kv: bool
    next_revision: int
    """0: it has not begun. All before it, from the first on, is told."""
    first_revision: int = 0
    events: list[tuple[Item, Item | None]] = field(default_factory=list)
    """(after, before)."""
    compacted: list[tuple[int, int]] = field(default_factory=list)
    """(from, to): it was told that they are compacted."""
    is_over: bool = False


@dataclass
class EtcdHistory(Histories):
    truth: Truth = field(default_factory=Truth)
    answers: list[Answer] = field(default_factory=list)
    seen: list[EtcdWatch] = field(default_factory=list)
    refused: set[bytes] = field(default_factory=set)
    """Values that were certainly not written."""
    compactions: set[int] = field(default_factory=set)
    """What was asked for."""
    cluster_ids: set[int] = field(default_factory=set)


class SimEtcdClient:
    def __init__(self, etcd: SimEtcd, history: EtcdHistory, name: str) -> None:
        self._etcd = etcd
        self._cluster = etcd.cluster
        self._history = history
        self._name = name
        self._random = etcd.cluster.stream(f"etcd client {name}")
        self._loop = SimLoop(etcd, etcd.cluster.at)
        self._connection: GrpcConnection | None = None
        self._connecting = asyncio.Lock()
        self._revision = 1
        """The newest that it was told of."""
        self._writes = 0
        self._lease: SeenLease | None = None
        self.is_ending = False

    def begin(self) -> None:
        for work in (self._work(), self._watch()):
            self._loop.create_task(self._guarded(work))

    async def _guarded(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception:
            self._etcd.failures.append(traceback.format_exc())

    # ---------------------------------------------------------------- calls

    async def _connected(self) -> GrpcConnection:
        """Raises Lost."""
        async with self._connecting:
            if self._connection is None or self._connection.is_lost:
                members = self._cluster.member_ids
                number = self._random.randrange(len(members))
                try:
                    _, self._connection = await self._loop.create_connection(
                        GrpcConnection, "127.0.0.1", ETCD_PORT + number
                    )
                except ConnectionRefusedError:
                    raise Lost from None
                self._connection.member_id = members[number]
            assert self._connection is not None
            return self._connection

    async def _call(self, name: str, request: Any, kind: Any) -> Any:
        """Raises Lost, RpcError."""
        connection, called_ms = await self._connected(), self._cluster.now_ms
        term, revision = connection.term, connection.revision
        stream = connection.begin(name)
        stream.send(request, is_last=True)
        try:
            async with asyncio.timeout(TIMEOUT_S):
                response = kind.FromString(await stream.next())
        except TimeoutError:
            stream.reset()
            connection.close()
            raise Lost from None
        self._heard(connection, response.header, term)
        self._revision = max(self._revision, response.header.revision)
        if name.startswith("KV/"):
            if response.header.revision < revision:  # at one member, `serializable` or not
                raise Violation(f"after {revision} {request!s} is answered at {response.header!s}")
            self._history.answers.append(Answer(called_ms, self._cluster.now_ms, request, response))
        self._count(name)
        return response

    def _heard(self, connection: GrpcConnection, header: pb.ResponseHeader, term: int) -> None:
        """`term`: the newest that its member has told before it was asked, or on this stream."""
        if header.cluster_id:  # else its member does not know yet
            self._history.cluster_ids.add(header.cluster_id)
        if header.member_id != number_of(connection.member_id) or header.raft_term < term:
            raise Violation(f"{connection.member_id} answers in term {term} with {header!s}")
        connection.term = max(connection.term, header.raft_term)
        connection.revision = max(connection.revision, header.revision)

    def _count(self, what: str) -> None:
        self._cluster.trace.count(f"etcd: {what}")

    # ---------------------------------------------------------------- keys

    async def _work(self) -> None:
        while not self.is_ending:
            await asyncio.sleep(self._random.expovariate(1 / BETWEEN_S))
            try:
                connection = await self._connected()
                if self._random.random() < BREAKS:
                    connection.close()
                    continue
                (act,) = self._random.choices(*zip(*self._ACTS, strict=True))
                await act(self)
            except Lost:
                self._count("lost")
                await asyncio.sleep(AGAIN_S)
            except RpcError as refusal:
                self._count(f"refused: {refusal.code.name}")

    def _value(self) -> bytes:
        self._writes += 1
        return f"{self._name}.{self._writes}".encode()

    async def _change(self, key: bytes, operation: Wrote | Deleted, request: Any) -> Any:
        """Raises as `_call`, once it is noted."""
        keys = KEYS if key == RANGES[1][0] else (key,)
        kind = type(request).__name__.removesuffix("Request")
        called_ms, of_key = self._cluster.now_ms, self._history.of_key
        try:
            response = await self._call(f"KV/{kind}", request, getattr(pb, f"{kind}Response"))
        except (Lost, RpcError) as error:
            if isinstance(error, Lost) or error.code is Code.UNAVAILABLE:
                for each in keys:
                    of_key[each].append(TimedOperation(called_ms, float("inf"), operation, UNKNOWN))
            elif isinstance(operation, Wrote):
                self._history.refused.add(operation.value)
            raise
        for each in keys:
            outcome: Any = response.header.revision
            done: Any = operation
            if kind == "DeleteRange" and each not in {kv.key for kv in response.prev_kvs}:
                outcome = 0
            elif kind == "Txn" and not response.succeeded:
                done, outcome = Looked(), _found(response.responses[0].response_range)
            of_key[each].append(TimedOperation(called_ms, self._cluster.now_ms, done, outcome))
        return response

    async def _put(self) -> None:
        key, value = self._random.choice(KEYS), self._value()
        request = pb.PutRequest(key=key, value=value, prev_kv=self._random.random() < 0.5)
        await self._change(key, Wrote(value, None), request)

    async def _delete(self) -> None:
        key, end = self._random.choice((*((key, b"") for key in KEYS), RANGES[1]))
        request = pb.DeleteRangeRequest(key=key, range_end=end, prev_kv=True)
        await self._change(key, Deleted(), request)

    async def _txn(self) -> None:
        key = self._random.choice(KEYS)
        found = await self._look(key)
        value = self._value()
        compare = pb.Compare(key=key, result=pb.Compare.EQUAL, target=pb.Compare.MOD)
        compare.mod_revision = expected = found.kvs[0].mod_revision if found.kvs else 0
        operation = Wrote(value, expected)
        if self._random.random() < 0.4:
            compare, operation = self._other_compare(key, found), Wrote(value, None)
        put = pb.RequestOp(request_put=pb.PutRequest(key=key, value=value))
        look = pb.RequestOp(request_range=pb.RangeRequest(key=key))
        request = pb.TxnRequest(compare=[compare], success=[put, look], failure=[look])
        await self._change(key, operation, request)

    def _other_compare(self, key: bytes, found: pb.RangeResponse) -> pb.Compare:
        result = self._random.choice(
            (pb.Compare.EQUAL, pb.Compare.NOT_EQUAL, pb.Compare.GREATER, pb.Compare.LESS)
        )
        kv = found.kvs[0] if found.kvs else pb.KeyValue()
        target, than = self._random.choice(
            (
                (pb.Compare.VERSION, {"version": kv.version}),
                (pb.Compare.CREATE, {"create_revision": kv.create_revision}),
                (pb.Compare.VALUE, {"value": kv.value}),
            )
        )
        return pb.Compare(key=key, result=result, target=target, **than)

    async def _look(self, key: bytes) -> pb.RangeResponse:
        called_ms = self._cluster.now_ms
        found = await self._range(pb.RangeRequest(key=key))
        operation = TimedOperation(called_ms, self._cluster.now_ms, Looked(), _found(found))
        self._history.of_key[key].append(operation)
        return found

    async def _get(self) -> None:
        await self._look(self._random.choice(KEYS))

    async def _range(self, request: pb.RangeRequest) -> pb.RangeResponse:
        response: pb.RangeResponse = await self._call("KV/Range", request, pb.RangeResponse)
        return response

    async def _range_any(self) -> None:
        key, end = self._random.choice(RANGES)
        request = pb.RangeRequest(key=key, range_end=end, limit=self._random.choice((0, 0, 1, 2)))
        request.serializable = self._random.random() < 0.6
        if self._random.random() < 0.3:
            request.revision = max(1, self._revision - self._random.randrange(40))
        try:
            await self._range(request)
        except RpcError as refusal:
            is_future = "future" in refusal.words and not request.serializable
            is_compacted = "compacted" in refusal.words
            if is_future or (
                is_compacted and request.revision >= max(self._history.compactions, default=0)
            ):
                raise Violation(f"{refusal.words} for {request!s} after {self._revision}") from None
            raise

    async def _compact(self) -> None:
        revision = max(2, self._revision - self._random.randrange(60))
        self._history.compactions.add(revision)
        began_ms, connection = self._cluster.now_ms, await self._connected()
        await self._call("KV/Compact", pb.CompactionRequest(revision=revision), pb.CompactionResponse)
        if self._cluster.now_ms - began_ms > 1000 * TIMEOUT_S or connection is not self._connection:
            return
        old = pb.RangeRequest(key=KEYS[0], revision=revision - 1, serializable=True)
        try:
            found = await self._range(old)
        except RpcError as refusal:
            if (refusal.code, refusal.words) == COMPACTED or refusal.code is Code.UNAVAILABLE:
                return
            raise
        if connection is self._connection:
            raise Violation(f"{connection.member_id} has compacted {revision}, and tells {found!s}")

    # ---------------------------------------------------------------- a lease

    async def _keep(self) -> None:
        lease, sent_ms = self._lease, self._cluster.now_ms
        if lease is None:
            granted = await self._call(
                "Lease/LeaseGrant", pb.LeaseGrantRequest(TTL=TTL_S), pb.LeaseGrantResponse
            )
            self._lease = SeenLease(granted.ID, granted.TTL * 1000, [sent_ms])
            self._history.leases.append(self._lease)
            return
        kept = await self._call(
            KEEP_ALIVE, pb.LeaseKeepAliveRequest(ID=lease.lease), pb.LeaseKeepAliveResponse
        )
        if kept.TTL:
            lease.sent_ms.append(sent_ms)
            if self._history.truth.ended_ms.get(lease.lease, sent_ms) < sent_ms:
                raise Violation(f"lease {lease.lease} is told to live for {kept.TTL} s, and has ended")
        else:
            self._has_ended(lease, is_due=self._cluster.now_ms >= max(lease.sent_ms) + lease.ttl_ms)

    def _has_ended(self, lease: SeenLease, *, is_due: bool = False) -> None:
        """`is_due`: its time is up, and so it may be about to end."""
        self._lease = None
        if not is_due and lease.lease not in self._history.truth.ended_ms:
            raise Violation(f"lease {lease.lease} is told to have ended, and has not")

    async def _put_leased(self) -> None:
        lease = self._lease
        if lease is None:
            return
        request = pb.PutRequest(key=LEASED + self._name.encode(), value=self._value(), lease=lease.lease)
        try:
            await self._call("KV/Put", request, pb.PutResponse)
        except RpcError as refusal:
            if refusal.code is not Code.NOT_FOUND:
                raise
            self._history.refused.add(request.value)
            self._has_ended(lease)

    async def _revoke(self) -> None:
        lease = self._lease
        if lease is None:
            return
        lease.revoked_by_client = True
        self._lease = None
        await self._call(
            "Lease/LeaseRevoke", pb.LeaseRevokeRequest(ID=lease.lease), pb.LeaseRevokeResponse
        )
        self._lease = lease
        self._has_ended(lease)

    _ACTS = (
        (_put, 8),
        (_txn, 6),
        (_delete, 3),
        (_get, 4),
        (_range_any, 7),
        (_keep, 6),
        (_put_leased, 3),
        (_revoke, 0.4),
        (_compact, 0.8),
    )

    # ---------------------------------------------------------------- a watch

    async def _watch(self) -> None:
        """One after the other, each until it is over; the last one to the end of the run."""
        while True:
            key, end = self._random.choice(RANGES)
            first = self._random.choice((0, max(1, self._revision - self._random.randrange(30))))
            watch = EtcdWatch(key, end, self._random.random() < 0.5, first, first)
            self._history.seen.append(watch)
            until_s = self._loop.time() + self._random.uniform(0.5, 3.0)
            while self.is_ending or self._loop.time() < until_s:
                try:
                    await self._follow(watch, until_s)
                except Lost:
                    self._count("watch lost")
                except RpcError as refusal:
                    self._count(f"watch refused: {refusal.code.name}")
                await asyncio.sleep(AGAIN_S)
            watch.is_over = True

    async def _follow(self, watch: EtcdWatch, until_s: float) -> None:
        """On one stream. Raises Lost, RpcError."""
        connection = await self._connected()
        stream, term, revision = connection.begin(WATCH), connection.term, connection.revision
        asked = pb.WatchCreateRequest(key=watch.key, range_end=watch.end, prev_kv=watch.prev_kv)
        asked.start_revision = watch.next_revision
        asked.fragment = self._random.random() < 0.5
        stream.send(pb.WatchRequest(create_request=asked))
        parts: list[pb.Event] = []
        while self.is_ending or self._loop.time() < until_s:
            response = await self._next(stream)
            if response is None:
                continue
            self._heard(connection, response.header, term)
            term = response.header.raft_term
            if response.canceled:
                self._cancelled(watch, response)
                break
            if response.created:
                if not watch.next_revision and response.header.revision < revision:
                    raise Violation(f"a watch from now on begins at {response.header!s}, not {revision}")
                watch.first_revision = watch.first_revision or response.header.revision + 1
                watch.next_revision = watch.next_revision or watch.first_revision
                continue
            if response.fragment and not asked.fragment:
                raise Violation("a part of a response that was not to come in parts")
            parts += response.events
            if not response.fragment:
                self._told(watch, parts, response.header.revision)
                parts = []
            self._count("fragment" if response.fragment else "watched")
        stream.reset()

    async def _next(self, stream: GrpcStream) -> pb.WatchResponse | None:
        """None: nothing comes, and so it asks for the progress."""
        try:
            async with asyncio.timeout(self._random.uniform(0.1, 0.6)):
                return pb.WatchResponse.FromString(await stream.next())
        except TimeoutError:
            stream.send(pb.WatchRequest(progress_request=pb.WatchProgressRequest()))
            return None

    def _told(self, watch: EtcdWatch, events: list[pb.Event], revision: int) -> None:
        for event in events:
            now = item_of(event.kv)
            before = item_of(event.prev_kv) if event.HasField("prev_kv") else None
            if now[2] < watch.next_revision or bool(now[3]) == (event.type == pb.Event.DELETE):
                raise Violation(f"{now} is told by a watch from {watch.next_revision} on")
            watch.events.append((now, before))
        # As clientv3: all events of a revision come together, and progress is told for all before it.
        last = events[-1].kv.mod_revision if events else revision
        watch.next_revision = max(watch.next_revision, last + 1)

    def _cancelled(self, watch: EtcdWatch, response: pb.WatchResponse) -> None:
        compacted = response.compact_revision
        self._count("watch compacted" if compacted else "watch cancelled")
        if compacted:
            if compacted not in self._history.compactions or compacted <= watch.next_revision:
                raise Violation(f"{compacted} is compacted for a watch at {watch.next_revision}")
            watch.compacted.append((watch.next_revision, compacted))
            watch.next_revision = compacted


def _found(response: pb.RangeResponse) -> tuple[bytes, int]:
    return (response.kvs[0].value, response.kvs[0].mod_revision) if response.kvs else MISSING
