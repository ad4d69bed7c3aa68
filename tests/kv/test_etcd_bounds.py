"""What a client of etcd's gRPC port may do to a member: little, and the member serves the others."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import grpc
import h2.config
import h2.connection
import h2.events
import h2.settings
import pytest

from quorumlog.kv.etcd import grpc_port, watching
from quorumlog.kv.etcd import messages_pb2 as pb
from quorumlog.net import limits
from quorumlog.net.connection import LoopTurn
from tests.kv.etcd_grpc import EtcdCalls, EtcdPorts
from tests.waiting import eventually

pytestmark = pytest.mark.processes
MIB = 1 << 20


@pytest.fixture(scope="module")
def ports() -> Iterator[EtcdPorts]:
    with EtcdPorts(1) as made:
        yield made


@pytest.fixture
def served(ports: EtcdPorts) -> Iterator[EtcdCalls]:
    """Another client, which is served before and after."""
    with EtcdCalls(ports.addresses["n0"]) as etcd:
        etcd.put("a", "1")
        yield etcd
        etcd.put("a", "2")
        assert ports.cluster.running == ("n0",)


class Http2:
    """A client that says what it likes."""

    def __init__(self, address: str, **settings: int) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=60)
        self.http = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=True, header_encoding="utf-8")
        )
        self.http.initiate_connection()
        codes = {getattr(h2.settings.SettingCodes, name): value for name, value in settings.items()}
        self.http.update_settings(codes)
        self.flush()

    def __enter__(self) -> Http2:
        return self

    def __exit__(self, *exception: object) -> None:
        self.socket.close()

    def flush(self) -> None:
        self.socket.sendall(self.http.data_to_send())

    def begin(self, name: str, *, ends: bool = False, **more: str) -> int:
        stream = self.http.get_next_available_stream_id()
        headers = {
            ":method": "POST",
            ":scheme": "http",
            ":path": f"/etcdserverpb.{name}",
            ":authority": "x",
            "content-type": "application/grpc",
            **more,
        }
        self.http.send_headers(stream, list(headers.items()), end_stream=ends)
        return stream

    def say(self, stream: int, message: Any, *, ends: bool = True) -> None:
        data = message.SerializeToString()
        framed = b"\0" + len(data).to_bytes(4, "big") + data
        self.http.send_data(stream, framed, end_stream=ends)

    def trickle(self, stream: int, data: bytes) -> None:
        """A piece of a message."""
        while data:
            room = self.http.local_flow_control_window(stream)
            size = min(len(data), room, self.http.max_outbound_frame_size)
            if size:
                self.http.send_data(stream, data[:size])
                self.flush()
                data = data[size:]
            else:
                self.http.receive_data(self.socket.recv(1 << 16))
                self.flush()

    def until_closed(self) -> bytes:
        """All that comes."""
        told = b""
        try:
            while data := self.socket.recv(1 << 16):
                told += data
        except ConnectionResetError:
            pass
        return told

    def flood(self, one: Callable[[], None]) -> None:
        """Until the connection is closed, whose last words the port leaves time to read."""
        deadline_s = time.monotonic() + 60
        try:
            while time.monotonic() < deadline_s:
                one()
                self.flush()
        except (ConnectionError, OSError):
            return
        raise AssertionError("it goes on for ever")


def test_who_opens_streams_without_end_is_closed(ports: EtcdPorts, served: EtcdCalls) -> None:
    with Http2(ports.addresses["n0"]) as client:
        client.http.remote_settings.max_concurrent_streams = 1 << 30
        client.flood(lambda: client.begin("KV/Put") and None)


def test_headers_of_open_streams_count_as_what_has_not_come_whole(
    ports: EtcdPorts, served: EtcdCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "UNFINISHED_BYTES", MIB)
    with Http2(ports.addresses["n0"]) as client:
        client.http.remote_settings.max_concurrent_streams = 1 << 30
        with suppress(ConnectionError):
            for number in range(grpc_port.MOST_STREAMS // 2):
                client.begin("KV/Put", token=f"{number:08}" * 1000)
                client.flush()
        client.until_closed()


def test_a_message_that_trickles_in_is_as_old_as_its_beginning(
    ports: EtcdPorts, served: EtcdCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "UNFINISHED_BYTES", MIB)
    loop = ports.cluster.server("n0").loop
    assert loop is not None
    now_s = [0.0]
    monkeypatch.setattr(LoopTurn.of(loop), "clock", lambda: now_s[0])
    connections = ports.ports["n0"]._listener.connections
    before = set(connections)

    def sizes() -> list[int]:
        return [
            each.decoder.unfinished_bytes for key, each in list(connections.items()) if key not in before
        ]

    with Http2(ports.addresses["n0"]) as first, Http2(ports.addresses["n0"]) as second:
        slow = []
        for client in (first, second):
            stream = client.begin("KV/Put")
            slow.append((client, stream))
            client.trickle(stream, b"\0" + (900_000).to_bytes(4, "big") + bytes(600_000))
        eventually(lambda: sum(sizes()) > 1_200_000, what="two halves")
        for _ in range(3):
            now_s[0] += limits.UNFINISHED_S / 2
            expected = sum(sizes()) + 2
            with suppress(ConnectionError):
                for client, stream in slow:
                    client.trickle(stream, b"x")
                    # Another message of the connection is whole meanwhile.
                    client.say(client.begin("KV/Put"), pb.PutRequest(key=b"b"))
                    client.flush()
            while len(sizes()) == 2 and sum(sizes()) < expected:
                time.sleep(0)
        assert len(sizes()) == 1


def test_messages_that_are_refused_take_nothing_off_what_has_not_come_whole(
    ports: EtcdPorts, served: EtcdCalls
) -> None:
    (mine,) = ports.ports["n0"]._listener.connections.values()
    with Http2(ports.addresses["n0"]) as client:
        for _ in range(5):
            stream = client.begin("KV/Put")
            client.http.send_data(stream, b"\1" + bytes(9_000), end_stream=True)
            client.flush()
        put = client.begin("KV/Put")
        client.say(put, pb.PutRequest(key=b"b"))
        client.flush()
        while not any(
            isinstance(each, h2.events.StreamEnded) and each.stream_id == put
            for each in client.http.receive_data(client.socket.recv(1 << 16))
        ):
            pass
        (theirs,) = {*ports.ports["n0"]._listener.connections.values()} - {mine}
        assert theirs.decoder.unfinished_bytes == 0


def test_headers_of_calls_that_go_on_and_of_those_that_are_over_count_no_more(
    ports: EtcdPorts, served: EtcdCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "UNFINISHED_BYTES", 64 << 10)
    create = pb.WatchRequest(create_request=pb.WatchCreateRequest(key=b"watched"))
    with Http2(ports.addresses["n0"]) as client:
        for _ in range(200):
            watches = client.begin("Watch/Watch", padding="x" * 200)
            client.say(watches, create, ends=False)
            put = client.begin("KV/Put")
            client.say(put, pb.PutRequest(key=b"b"))
            client.flush()
            is_answered = False
            while not is_answered:
                data = client.socket.recv(1 << 16)
                assert data, "it is closed"
                events = client.http.receive_data(data)
                is_answered = any(isinstance(each, h2.events.StreamEnded) for each in events)


def test_who_resets_streams_again_and_again_is_closed(ports: EtcdPorts, served: EtcdCalls) -> None:
    with Http2(ports.addresses["n0"]) as client:

        def one() -> None:
            stream = client.begin("KV/Put", ends=False)
            client.http.reset_stream(stream)

        client.flood(one)


def test_headers_without_end_and_headers_that_are_too_large_are_refused(
    ports: EtcdPorts, served: EtcdCalls
) -> None:
    with Http2(ports.addresses["n0"]) as client:
        client.begin("KV/Put", padding="x" * 60_000)
        client.flush()
        assert client.until_closed() != b""
    with Http2(ports.addresses["n0"]) as client:
        client.flush()
        begins = bytes([0, 0, 1, 1, 0, 0, 0, 0, 1, 0x83])  # HEADERS, and no END_HEADERS
        goes_on = bytes([0, 0, 1, 9, 0, 0, 0, 0, 1, 0x84])  # CONTINUATION
        client.socket.sendall(begins)
        client.flood(lambda: client.socket.sendall(goes_on))


def test_what_is_no_http2_is_told_that_it_is_not_and_closed(ports: EtcdPorts, served: EtcdCalls) -> None:
    with Http2(ports.addresses["n0"]) as client:
        client.socket.close()
        host, _, port = ports.addresses["n0"].rpartition(":")
        client.socket = socket.create_connection((host, int(port)), timeout=60)
        client.socket.sendall(b"GET /version HTTP/1.1\r\nhost: x\r\n\r\n")
        assert b"this port speaks gRPC" in client.until_closed()


def test_garbage_is_no_message(ports: EtcdPorts, served: EtcdCalls) -> None:
    def raw(name: str, data: bytes) -> tuple[str, str]:
        try:
            served._channel.unary_unary(f"/etcdserverpb.{name}")(data, timeout=60)
        except grpc.RpcError as error:
            return error.code().name, error.details()
        raise AssertionError

    assert raw("KV/Put", b"\xff" * 20) == ("INTERNAL", "grpc: the message cannot be read")
    assert raw("Watch/Watch", b"\xff" * 20)[0] == "INTERNAL"
    nested = pb.TxnRequest()
    inner = nested
    for _ in range(60):
        inner = inner.success.add().request_txn
    assert raw("KV/Txn", nested.SerializeToString())[0] in ("INVALID_ARGUMENT", "INTERNAL")


def test_watches_of_a_connection_are_bounded(
    ports: EtcdPorts, served: EtcdCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grpc_port, "MOST_WATCHES", 3)
    with EtcdCalls(ports.addresses["n0"]) as etcd, etcd.watches() as stream:
        for _ in range(3):
            stream.create("a")
            assert not stream.next().canceled
        stream.create("a")
        told = stream.next()
        assert told.canceled and told.cancel_reason.startswith("this connection has 3 watches")
        stream.cancel(0)
        assert stream.next().canceled
        stream.create("a")
        assert not stream.next().canceled, "there is room again"


def test_requests_of_a_stream_whose_answers_are_not_read_are_bounded(
    ports: EtcdPorts, served: EtcdCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "MOST_PENDING", 50)
    refused = pb.WatchRequest(create_request=pb.WatchCreateRequest(key=b"b", range_end=b"a"))
    with Http2(ports.addresses["n0"], INITIAL_WINDOW_SIZE=100) as client:
        monkeypatch.setattr(grpc_port, "FULL_BYTES", 100)
        stream = client.begin("Watch/Watch")
        for _ in range(100):
            client.say(stream, refused, ends=False)
        client.http.increment_flow_control_window(1 << 20, stream)
        client.flush()
        said: dict[str, str] = {}
        while "grpc-message" not in said:
            for event in client.http.receive_data(client.socket.recv(1 << 16)):
                said |= dict(getattr(event, "headers", None) or ())
        assert said["grpc-message"] == "etcdserver: too many requests"


def test_a_watch_that_is_not_read_holds_little_and_goes_on_later(
    ports: EtcdPorts, served: EtcdCalls
) -> None:
    """Its client opens no window: changes stay history of the store."""
    with Http2(ports.addresses["n0"], INITIAL_WINDOW_SIZE=1000) as client:
        stream = client.begin("Watch/Watch")
        create = pb.WatchCreateRequest(key=b"big", start_revision=1)
        client.say(stream, pb.WatchRequest(create_request=create), ends=False)
        client.flush()
        eventually(lambda: len(ports.ports["n0"].store.service.watches) == 1)
        for number in range(30):
            served.call("KV/Put", pb.PutRequest(key=b"big", value=bytes([number]) * MIB))
        (session,) = [
            each.session
            for each in ports.ports["n0"]._listener.connections.values()
            if getattr(each.session, "unsent_bytes", 0)
        ]
        assert session.unsent_bytes < 10 * MIB
        versions, body = 0, bytearray()
        client.http.increment_flow_control_window(1 << 30)
        client.http.increment_flow_control_window(1 << 30, stream)
        client.flush()
        while versions < 30:
            for event in client.http.receive_data(client.socket.recv(1 << 16)):
                body += getattr(event, "data", b"") or b""
            while len(body) >= 5 and len(body) >= (stop := 5 + int.from_bytes(body[1:5], "big")):
                told = pb.WatchResponse.FromString(bytes(body[5:stop]))
                del body[:stop]
                for each in told.events:
                    versions += 1
                    assert each.kv.version == versions, "none is lost, none comes twice"
    eventually(lambda: len(ports.ports["n0"].store.service.watches) == 0, what="the end of its watch")


def test_answers_that_are_not_read_end_their_connection(
    ports: EtcdPorts, served: EtcdCalls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quorumlog.net.connection.ALL_UNSENT_BYTES", 8 * MIB)
    served.call("KV/Put", pb.PutRequest(key=b"unread", value=bytes(MIB)))
    with Http2(ports.addresses["n0"], INITIAL_WINDOW_SIZE=0) as client:

        def ask() -> None:
            stream = client.begin("KV/Range")
            client.say(stream, pb.RangeRequest(key=b"unread"))

        client.http.remote_settings.max_concurrent_streams = 1 << 30
        with suppress(ConnectionError):
            for _ in range(grpc_port.MOST_STREAMS - 1):
                ask()
                client.flush()
        client.until_closed()


def test_a_call_that_needs_a_leader_says_that_there_is_none() -> None:
    with EtcdPorts(3) as ports:
        follower = ports.follower()
        with EtcdCalls(ports.addresses[follower]) as etcd:
            etcd.put("a", "1")
            for member in list(ports.cluster.running):
                if member != follower:
                    ports.cluster.kill(member)
            eventually(lambda: not ports.ports[follower].knows_leader, what="that nobody leads")
            stub = etcd._stub("Watch/Watch")
            create = pb.WatchRequest(create_request=pb.WatchCreateRequest(key=b"a"))
            with pytest.raises(grpc.RpcError, match="no leader") as refused:
                list(stub(iter([create]), metadata=[("hasleader", "true")], timeout=60))
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
