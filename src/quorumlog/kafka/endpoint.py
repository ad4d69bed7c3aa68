"""KafkaEndpoint: the port of a member for clients of Kafka.

A connection's requests are started in the order of arrival, many of them at once, and answered in that
order, as Kafka's protocol requires. Only a fetch waits until all earlier requests are answered: one
answer of megabytes at a time.
"""

from __future__ import annotations

import asyncio
import logging
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from kio.schema.index import api_key_map

from quorumlog.client_guard import contain, guarded
from quorumlog.config import (
    FRAME_LIMIT_BYTES,
    GroupConfig,
    KafkaOptions,
    parse_address,
    parse_members,
)
from quorumlog.entry_header import Buffer
from quorumlog.errors import ConfigError, ProtocolViolation
from quorumlog.kafka import codec, fetching, group_requests, producing, topics
from quorumlog.kafka.codec import KafkaRequest, Values, decode, encode, header_of, response_head
from quorumlog.kafka.forwarding import LeaderCalls
from quorumlog.kafka.login import Login, Proofs
from quorumlog.kafka.machine import (
    ROOM_BYTES,
    KafkaMachine,
    KafkaMachines,
    Partition,
)
from quorumlog.kafka.places import MACHINE_NAME
from quorumlog.kafka.service import TICK_MS, KafkaCall, KafkaService
from quorumlog.measures import Requests
from quorumlog.net.access import Caller
from quorumlog.net.connection import SMALL_BYTES, Connection, call_soon
from quorumlog.net.frame import Frame
from quorumlog.net.limits import GREETING_BYTES
from quorumlog.net.listener import Listener
from quorumlog.net.quotas import Meter
from quorumlog.net.tls import MEMBER, Tls, principal_of
from quorumlog.node import NodeHandle
from quorumlog.server import Endpoint

log = logging.getLogger("quorumlog.kafka")

BUFFER_BYTES = 16 << 10
OTHER_BYTES = 1 << 20
"""Size of a request without records."""
UNLIMITED = frozenset((codec.HEARTBEAT, codec.LEAVE_GROUP, codec.JOIN_GROUP, codec.SYNC_GROUP))
"""Requests for which no quota is: a group would expel its members, or wait for those that wait for a
place that the others have."""
_LENGTH, _HEAD = struct.Struct(">i"), struct.Struct(">ih")
_LEAST_BYTES = 10
MOST_AHEAD, MOST_AHEAD_BYTES = 1000, 32 << 20
"""Unanswered requests of a connection; later ones stay in its socket."""
MOST_AHEAD_UNKNOWN = 16
"""Unanswered requests of a connection that has to log in and has not."""
ALL_AHEAD, ALL_AHEAD_BYTES = 20_000, 128 << 20
"""Unanswered requests of all connections; beyond the number a connection has one request at a time,
beyond the bytes one small request, and its other requests wait."""
LONG_POLLS = frozenset((codec.FETCH, codec.JOIN_GROUP, codec.SYNC_GROUP))
"""Requests whose answers may wait for a minute: no large request of the same connection begins
meanwhile, or a few connections would have the bytes of all."""
_IN_VAIN = 64
"""Number of waiting connections that are tried whenever room is freed."""
READ_THREADS = 2
NOTHING = memoryview(b"")

HANDLERS: Mapping[int, Callable[[KafkaService, KafkaCall], None]] = {
    codec.PRODUCE: producing.produce,
    codec.FETCH: fetching.fetch,
    codec.LIST_OFFSETS: fetching.list_offsets,
    codec.METADATA: topics.metadata,
    codec.OFFSET_COMMIT: group_requests.offset_commit,
    codec.OFFSET_FETCH: group_requests.offset_fetch,
    codec.FIND_COORDINATOR: group_requests.find_coordinator,
    codec.JOIN_GROUP: group_requests.join_group,
    codec.HEARTBEAT: group_requests.heartbeat,
    codec.LEAVE_GROUP: group_requests.leave_group,
    codec.SYNC_GROUP: group_requests.sync_group,
    codec.DESCRIBE_GROUPS: group_requests.describe_groups,
    codec.LIST_GROUPS: group_requests.list_groups,
    codec.DELETE_GROUPS: group_requests.delete_groups,
    codec.CREATE_TOPICS: topics.create_topics,
    codec.DELETE_TOPICS: topics.delete_topics,
    codec.INIT_PRODUCER_ID: producing.init_producer_id,
    codec.DESCRIBE_CONFIGS: topics.describe_configs,
    codec.CREATE_PARTITIONS: topics.create_partitions,
    codec.DESCRIBE_CLUSTER: topics.describe_cluster,
}


OPERATIONS = {
    each: type("".join(part.capitalize() for part in api_key_map[each].split("_")), (), {})
    for each in codec.VERSIONS
}
"""API names in the metrics."""


class RequestDecoder:
    """`Decoder` of a connection. The message of a frame is a `KafkaRequest`, in memory of its own."""

    def __init__(self) -> None:
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._start = self._end = 0
        self._large: memoryview | None = None
        """The one request that does not fit into the buffer; while it is set, the buffer is empty."""
        self._large_end = 0
        self.most_bytes = GREETING_BYTES
        """Most bytes of a request; fewer while its client is not known."""
        self.is_known: Callable[[], bool] = lambda: False
        """Whether the client has logged in, or need not."""

    @property
    def missing_bytes(self) -> int:
        if self._large is not None:
            return len(self._large) - self._large_end
        begun = self._end - self._start
        return _LENGTH.unpack_from(self._buffer, self._start)[0] + 4 - begun if begun >= 4 else 4 - begun

    @property
    def unfinished_bytes(self) -> int:
        return self._end - self._start if self._large is None else len(self._large)

    def get_buffer(self, sizehint: int = -1) -> memoryview:
        return self._buffer[self._end :] if self._large is None else self._large[self._large_end :]

    def buffer_updated(self, count: int) -> list[Frame]:
        """Raises ProtocolViolation."""
        if self._large is not None:
            self._large_end += count
            if self._large_end < len(self._large):
                return []
            whole, self._large = self._large[ROOM_BYTES:], None
            return [_frame_of(whole)]
        self._end += count
        frames = []
        while self._end - self._start >= _HEAD.size:
            size, api_key = _HEAD.unpack_from(self._buffer, self._start)
            self._check(size, api_key)
            start, stop = self._start + _LENGTH.size, self._start + _LENGTH.size + size
            if stop <= self._end:
                frames.append(_frame_of(memoryview(bytes(self._buffer[start:stop]))))
                self._start = stop
                continue
            if _LENGTH.size + size > len(self._buffer):
                # The batch of a Produce becomes an entry where it lies.
                self._large = memoryview(bytearray(ROOM_BYTES + size))
                self._large_end = ROOM_BYTES + self._end - start
                self._large[ROOM_BYTES : self._large_end] = self._buffer[start : self._end]
                self._start = self._end
            break
        rest = bytes(self._buffer[self._start : self._end])
        self._start, self._end = 0, len(rest)
        self._buffer[: len(rest)] = rest
        return frames

    def _check(self, size: int, api_key: int) -> None:
        if size > self.most_bytes and self.is_known():
            self.most_bytes = FRAME_LIMIT_BYTES
        most = self.most_bytes if api_key == codec.PRODUCE else min(self.most_bytes, OTHER_BYTES)
        if not _LEAST_BYTES <= size <= most:
            raise ProtocolViolation(
                f"a request of {size} bytes in Kafka's protocol; the limit is {most}"
            )


def _frame_of(data: memoryview) -> Frame:
    message: Any = header_of(data)
    return Frame("", message, None, len(data))


class RequestsAhead:
    """Unanswered requests of all connections."""

    def __init__(self) -> None:
        self.requests = self.size_bytes = 0
        self._waiting: dict[_KafkaSession, None] = {}
        """Connections with requests that wait for room, the longest waiting first."""
        self._is_going_on = self._has_freed = False

    def has_room(self, size_bytes: int) -> bool:
        return self.requests < ALL_AHEAD and self.size_bytes + size_bytes <= ALL_AHEAD_BYTES

    def has_room_for_one(self, size_bytes: int) -> bool:
        """Of a connection that has no other."""
        return size_bytes <= BUFFER_BYTES or self.size_bytes + size_bytes <= ALL_AHEAD_BYTES

    def wait(self, session: _KafkaSession) -> None:
        self._waiting[session] = None

    def begin(self, size_bytes: int) -> None:
        self.requests += 1
        self.size_bytes += size_bytes

    def end(self, requests: int, size_bytes: int) -> None:
        self.requests -= requests
        self.size_bytes -= size_bytes
        self._has_freed = True
        if self._is_going_on:
            return
        self._is_going_on = True
        try:
            while self._has_freed:  # also by a request that was answered at once
                self._has_freed = False
                self._go_on()
        finally:
            self._is_going_on = False

    def _go_on(self) -> None:
        in_vain = 0
        for session in list(self._waiting):
            if self.size_bytes > ALL_AHEAD_BYTES or in_vain == _IN_VAIN:
                break
            self._waiting.pop(session, None)
            session.go_on()
            in_vain += session in self._waiting

    def leave(self, session: _KafkaSession) -> None:
        self._waiting.pop(session, None)


class _Slot:
    """A request that is not answered yet, or whose answer waits for an earlier one."""

    __slots__ = ("began_s", "call", "held_bytes", "response", "size_bytes", "start")

    def __init__(self, size_bytes: int) -> None:
        """`size_bytes`: of the request."""
        self.size_bytes = size_bytes
        self.began_s = time.monotonic()
        self.call: KafkaCall
        self.response: list[Buffer] | None = None
        self.held_bytes = 0
        """Bytes of the answer, while it waits."""
        self.start: Callable[[], None] | None = None
        """The request has not started."""


class _KafkaSession:
    """The session of a connection."""

    def __init__(self, endpoint: KafkaEndpoint, connection: Connection) -> None:
        assert isinstance(connection.decoder, RequestDecoder), connection.decoder
        self._endpoint = endpoint
        self._service = endpoint.service
        self._connection = connection
        connection.decoder.is_known = lambda: self._is_known
        self._login = Login(endpoint.access, connection, endpoint.tls, endpoint.proofs, self._logged_in)
        self.caller = Caller(endpoint.access, connection)
        self.is_member = endpoint.shows_member(connection)
        self._slots: deque[_Slot] = deque()
        self._ahead = endpoint.ahead
        self._ahead_bytes = 0
        self._long_polls = 0
        self._answer_bytes = 0
        self._held: deque[KafkaRequest] = deque()
        self._held_bytes = 0
        self._is_sending = self._is_going_on = False
        self._throttle_ms = 0
        """Delay of the last request above a quota."""
        self._timer: asyncio.TimerHandle | None = None
        """Of the first held request, while it is above a quota."""

    def _logged_in(self) -> None:
        self.caller = Caller(self._endpoint.access, self._connection)

    @property
    def _is_known(self) -> bool:
        """It has logged in, or need not."""
        return self.is_member or not self.caller.is_checked or self.caller.is_user

    @property
    def host(self) -> str:
        return self._connection.peer_host

    def frame(self, frame: Frame) -> None:
        request: Any = frame.message
        if self._held or self._is_full(request) or not self._is_within(request):
            self._held.append(request)
            self._connection.is_held = True
            self._connection.pause_reading()
            self._held_bytes += request.size_bytes
            self._connection.hold_requests(self._held_bytes)
        else:
            self._begin(request)

    def _is_within(self, request: KafkaRequest) -> bool:
        """Apply the quotas of its user and its address; a request above them waits."""
        if request.api_key in UNLIMITED:
            return True
        meter = self._connection.meter
        over = meter.begin(request.size_bytes) if isinstance(meter, Meter) else None
        if over is None:
            return True
        self._throttle_ms = over.retry_after_ms or TICK_MS
        if self._timer is None:
            again = guarded(self._again, self)
            self._timer = asyncio.get_running_loop().call_later(self._throttle_ms / 1000, again)
        return False

    def _again(self) -> None:
        self._timer = None
        self.go_on()

    def _is_full(self, request: KafkaRequest) -> bool:
        if len(self._slots) >= MOST_AHEAD or self._ahead_bytes >= MOST_AHEAD_BYTES:
            return True
        if not self._is_known and (self._login.is_proving or len(self._slots) >= MOST_AHEAD_UNKNOWN):
            return True
        if self._long_polls and request.size_bytes > BUFFER_BYTES:
            return True
        if not self._slots and self._ahead.has_room_for_one(request.size_bytes):
            return False
        if self._ahead.has_room(request.size_bytes):
            return False
        self._ahead.wait(self)
        return True

    def _begin(self, request: KafkaRequest) -> None:
        """Raises ProtocolViolation."""
        is_first = request.api_key == codec.API_VERSIONS  # which need not be in a version that is known
        slot = _Slot(request.size_bytes)
        call = slot.call = KafkaCall(request, None, self, partial(self._answered, slot))
        self._slots.append(slot)
        self._ahead_bytes += slot.size_bytes
        self._long_polls += request.api_key in LONG_POLLS
        self._ahead.begin(slot.size_bytes)
        if is_first:
            body = codec.api_versions(request)
            self._respond(slot, [response_head(request, sum(map(len, body))), *body], 0)
            return
        if request.api_key == codec.FETCH:
            slot.start = guarded(partial(self._fetch, call), self)  # many that wait are not decoded
            self._send()
            return
        call.fields = decode(request.api_key, request.version, request.body)
        if request.api_key == codec.SASL_HANDSHAKE:
            self._login.handshake(call)
        elif request.api_key == codec.SASL_AUTHENTICATE:
            self._login.authenticate(call)
        else:
            HANDLERS[request.api_key](self._service, call)

    def _fetch(self, call: KafkaCall) -> None:
        request = call.request
        call.fields = decode(request.api_key, request.version, request.body)
        fetching.fetch(self._service, call)

    def _answered(self, slot: _Slot, values: Values | bytes | None, code: int) -> None:
        """May be called while another connection's request is handled; an error ends only this
        connection."""
        if self._connection.closed:
            return
        if values is None and code:
            self._connection.close()  # acks=0: the client learns of an error in this way
            return
        request = slot.call.request
        try:
            if values is None or isinstance(values, bytes):
                self._respond(slot, [] if values is None else [values], code)
            else:
                if self._throttle_ms:
                    values = {**values, "throttle_time": self._throttle_ms}
                    self._throttle_ms = 0
                body = encode(request.api_key, request.version, values)
                self._respond(slot, [response_head(request, sum(map(len, body))), *body], code)
        except Exception as error:
            contain(error, self)

    def _respond(self, slot: _Slot, response: list[Buffer], code: int) -> None:
        request, slot.response = slot.call.request, response
        size_bytes = sum(map(len, response))
        meter = self._connection.meter
        if isinstance(meter, Meter) and request.api_key not in UNLIMITED:
            meter.finish(size_bytes)
        self._long_polls -= request.api_key in LONG_POLLS
        if slot is not self._slots[0]:
            slot.held_bytes = size_bytes
            self._hold(size_bytes)
        slot.call.fields = None  # it may wait for the answer to another one
        slot.call.request = request._replace(body=NOTHING, data=NOTHING)
        took_s = time.monotonic() - slot.began_s
        self._endpoint.requests.answered(OPERATIONS[request.api_key], code, took_s)
        self._send()
        self._ahead.end(1, slot.size_bytes)

    def _send(self) -> None:
        """Send the answers that are due, in order, and start the next requests."""
        if self._is_sending:
            return
        self._is_sending = True
        try:
            while self._slots:
                slot = self._slots[0]
                if slot.start is not None:
                    start, slot.start = slot.start, None
                    self._connection.when_room(start)
                if slot.response is None:
                    break
                self._slots.popleft()
                self._ahead_bytes -= slot.size_bytes
                if slot.held_bytes:
                    self._hold(-slot.held_bytes)
                if slot.response:
                    self._connection.write(slot.response)
        finally:
            self._is_sending = False
        if self._held:
            self.go_on()

    def go_on(self) -> None:
        """Continue with the held requests."""
        if self._is_going_on:
            return  # one that is answered at once
        self._is_going_on = True
        try:
            while self._held and not self._connection.closed and not self._is_full(self._held[0]):
                if not self._is_within(self._held[0]):
                    break
                request = self._held.popleft()
                self._held_bytes -= request.size_bytes
                self._begin(request)
        except Exception as error:
            contain(error, self)
        finally:
            self._is_going_on = False
        self._connection.hold_requests(self._held_bytes)
        if not self._held:
            self._connection.is_held = False
            self._connection.resume_reading()

    def _hold(self, size_bytes: int) -> None:
        """Count bytes of answers that wait for earlier ones."""
        self._answer_bytes += size_bytes
        if self._answer_bytes > SMALL_BYTES or self._connection.beside_bytes:
            self._connection.hold_beside(self._answer_bytes)

    def lost(self) -> None:
        for slot in self._slots:
            if slot.call.on_lost is not None:
                slot.call.on_lost()
        unanswered = [slot.size_bytes for slot in self._slots if slot.response is None]
        self._slots.clear()
        self._held.clear()
        if self._timer is not None:
            self._timer.cancel()
        self._ahead.leave(self)
        self._ahead.end(len(unanswered), sum(unanswered))

    def writable(self) -> None:
        """Nothing to do: a fetch waits for room by itself."""

    def violate(self, violation: ProtocolViolation) -> None:
        self._connection.violate(violation)


class KafkaEndpoint(Endpoint):
    def __init__(
        self,
        options: KafkaOptions,
        member_id: str,
        servers: Mapping[str, str],
        *,
        group: str | None = None,
        tls: Tls | None = None,
    ) -> None:
        """`servers`: HOST:PORT at which clients reach the port of each member, by member id. `tls`
        None: the port is plain. Raises ConfigError."""
        self.group = group
        self.tls = tls
        codec.load()
        machines = KafkaMachines(self._machine)
        self.machines = {MACHINE_NAME: machines}
        self._reads = ThreadPoolExecutor(READ_THREADS, "quorumlog-kafka-reads")
        self.service = KafkaService(member_id, servers, options, machines, self._reads, LeaderCalls(tls))
        self.requests = Requests()
        self.ahead = RequestsAhead()
        self.proofs = Proofs()
        self._listen = parse_address(options.listen)
        self._listener = Listener(
            "Kafka's port",
            self._connect,
            decoder=RequestDecoder,
            last_words=lambda problem: None,
            option="--kafka",
            tls=tls,
        )
        self._timer: asyncio.TimerHandle | None = None
        self._grown: Callable[[set[Partition]], None] = lambda partitions: None

    def _machine(self) -> KafkaMachine:
        return KafkaMachine(lambda grown: self._grown(grown), lambda: self.service.log_begin)

    @property
    def is_open(self) -> bool:
        return self._timer is not None

    @property
    def address(self) -> str:
        """HOST:PORT on which the port listens."""
        return self._listener.address

    async def open(self, member: NodeHandle) -> None:
        """Raises ConfigError if it cannot listen."""
        loop = asyncio.get_running_loop()
        self.service.member = member
        self.service.access = self.access
        self.access.moved.append(self.service.rights_moved)
        self._grown = partial(call_soon, loop, threading.get_ident(), self.service.grown)
        self._listener.access = self.access
        await self._listener.open(*self._listen)
        member.ports["kafka"] = self.address
        log.info(
            "Kafka's clients are served on %s%s",
            self.address,
            self._listener.speaks,
            extra={"event": "listens"},
        )
        self._tick()

    def shows_member(self, connection: Connection) -> bool:
        shown = None if self.tls is None else principal_of(connection.certificate)
        if self.tls is None or shown is None:
            return False
        return (shown.cluster, shown.kind) == (self.tls.cluster, MEMBER)

    def _connect(self, connection: Connection) -> None:
        connection.session = _KafkaSession(self, connection)

    def _tick(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(TICK_MS / 1000, self._tick)
        self.service.tick(int(time.monotonic() * 1000))

    def role_changed(self) -> None:
        if self._timer is not None:
            self.service.member.enter(self.service.look)

    async def close(self) -> None:
        self._end()
        self._listener.close_connections()
        await asyncio.sleep(0)

    def abandon(self) -> None:
        self._end()
        self._listener.abort_connections()

    def _end(self) -> None:
        self._grown = lambda partitions: None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.service.rights_moved in self.access.moved:
            self.access.moved.remove(self.service.rights_moved)
        self.service.close()
        self._reads.shutdown(wait=False, cancel_futures=True)
        self.proofs.thread.shutdown(wait=False, cancel_futures=True)
        self._listener.close()


def endpoint_of(config: GroupConfig, options: KafkaOptions, tls: Tls | None = None) -> KafkaEndpoint:
    """Raises ConfigError."""
    _, port = parse_address(options.listen)
    servers = {each.member_id: f"{each.host}:{port}" for each in config.members}
    lacking = len(set(servers.values())) < len(servers)
    if options.servers:
        given = {each.member_id: str(each) for each in parse_members(options.servers)}
        lacking = not servers.keys() <= given.keys()
        servers = given
    if lacking:
        ids = ",".join(f"{each.member_id}=HOST:PORT" for each in config.members)
        raise ConfigError(
            "--kafka needs --kafka-servers, the addresses at which clients reach that port of every"
            f" member: {ids}"
        )
    return KafkaEndpoint(options, config.member_id, servers, group=config.group, tls=tls)
