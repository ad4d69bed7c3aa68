"""A group of scriptable servers in threads: real sockets and frames, no consensus.

`FakeGroup` holds the one log and says who leads. Each `FakeServer` behaves well by default; its
`script` may decide otherwise for single requests, and `pause`, `stop` and `start` do to it what signals
do to a process. Everything received is in `calls`, and `wait_for_calls` waits for it.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from quorumlog.batch import EntryBatch
from quorumlog.entry_header import HEADER_BYTES
from quorumlog.errors import (
    BadRequest,
    IndexOutOfRange,
    LedgerError,
    NotLeader,
    OutOfSequence,
    TransferFailed,
    UnknownGroup,
)
from quorumlog.log_state.control_entries import LEVEL
from quorumlog.net.errors import error_response
from quorumlog.net.frame import FrameDecoder, encode_frame
from quorumlog.net.hello import Hello, HelloResponse
from quorumlog.wire.client_message import ClientMessage
from quorumlog.wire.client_messages import (
    AppendRequest,
    AppendResponse,
    MemberInfo,
    ReadRequest,
    ReadResponse,
    StatusRequest,
    StatusResponse,
    TransferRequest,
    TransferResponse,
)

WAIT_S = 10.0
"""A test that waits for longer has failed."""


class Hang:
    """Script: take the request and never answer."""


class Drop:
    """Script: take the request and close the connection without an answer."""


class CarryOutAndDrop:
    """Script: carry the request out and close the connection without an answer."""


Action = Hang | Drop | CarryOutAndDrop | LedgerError | ClientMessage | bytes | None
Script = Callable[["FakeServer", ClientMessage], Action]


class FakeGroup:
    """The log that all servers share, and who leads it in which term."""

    def __init__(self, members: int = 3, *, group: str = "default") -> None:
        self.group = group
        self.changed = threading.Condition()
        self.term = 1
        self.entries: list[bytes] = []
        """Encoded and stamped, each as it lies on disk."""
        self.chain = 0
        self.position = 0
        self.max_entry_bytes = 4 * 1024 * 1024
        self.max_frame_bytes = 16 * 1024 * 1024
        self.knows_conditions = self.knows_promises = True
        self.releases: dict[str, str] = {}
        self.servers = [FakeServer(self, f"n{number}") for number in range(members)]
        self.leader: FakeServer | None = None
        self.elect(self.servers[0])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for server in self.servers:
            server.stop()

    def __getitem__(self, number: int) -> FakeServer:
        return self.servers[number]

    @property
    def addresses(self) -> str:
        return ",".join(server.address for server in self.servers)

    def elect(self, server: FakeServer) -> None:
        """The next term begins, with its no-op."""
        with self.changed:
            self.term += 1
            self.leader = server
            self._append(EntryBatch.noop())

    def depose(self) -> None:
        """Nobody leads."""
        with self.changed:
            self.leader = None

    def lose(self, count: int) -> None:
        """The newest entries are gone, as from a group of which most directories were put back."""
        with self.changed:
            del self.entries[-count:]

    def append(self, bodies: list[bytes]) -> int:
        with self.changed:
            return self._append(EntryBatch.from_bodies(bodies))

    def _append(self, batch: EntryBatch) -> int:
        first_index = len(self.entries)
        self.chain = batch.stamp(first_index, self.term, batch.starts + self.position, self.chain)
        self.position += batch.total_bytes
        for start, size in zip(batch.starts.tolist(), batch.sizes.tolist(), strict=True):
            self.entries.append(bytes(batch.buffer[start : start + size]))
        self.changed.notify_all()
        return first_index

    def bodies(self) -> list[bytes]:
        """Of everything that was appended, no-ops left out."""
        with self.changed:
            return [entry[HEADER_BYTES:] for entry in self.entries if entry[3] == 1]


class FakeServer:
    """One member; its port stays the same over `stop` and `start`."""

    def __init__(self, group: FakeGroup, member_id: str) -> None:
        self.group = group
        self.id = member_id
        self.script: Script = lambda server, message: None
        self.calls: list[ClientMessage] = []
        self.hellos: list[Hello] = []
        self.called = threading.Condition()
        self.knows_leader = True
        self.welcomes_any_group = False
        """Then an unknown group is told with the first request only."""
        self._running = threading.Event()
        self._running.set()
        self._connections: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._listener: socket.socket | None = None
        self._connection_number = 0
        self._stopping = False
        self._sending = threading.Lock()
        self.port = 0
        self.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    # ---------------------------------------------------------------- what signals do

    def start(self) -> None:
        assert self._listener is None
        self._stopping = False
        self._listener = socket.create_server(("127.0.0.1", self.port), backlog=64)
        self.port = self._listener.getsockname()[1]
        self._spawn(self._accept, self._listener)

    def stop(self) -> None:
        """As SIGKILL: every socket is closed."""
        self._stopping = True
        self.resume()
        if self._listener is not None:
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            self._listener = None
        self.drop_connections()
        with self.group.changed:
            self.group.changed.notify_all()
        for thread in self._threads:
            thread.join(WAIT_S)
            assert not thread.is_alive(), thread
        self._threads.clear()

    def pause(self) -> None:
        """As SIGSTOP: connections are accepted by the kernel, and nothing is answered."""
        self._running.clear()

    def resume(self) -> None:
        self._running.set()

    def drop_connections(self) -> None:
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    # ---------------------------------------------------------------- what tests look at

    def calls_of(self, kind: type[ClientMessage]) -> list[ClientMessage]:
        with self.called:
            return [call for call in self.calls if isinstance(call, kind)]

    def wait_for_calls(self, kind: type[ClientMessage], count: int) -> None:
        with self.called:
            reached = self.called.wait_for(
                lambda: sum(isinstance(call, kind) for call in self.calls) >= count, WAIT_S
            )
        assert reached, f"{self.id} got {len(self.calls_of(kind))} {kind.__name__}, not {count}"

    # ---------------------------------------------------------------- serving

    def _spawn(self, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            if self._stopping:
                connection.close()
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._connections.add(connection)
            self._connection_number += 1
            self._spawn(self._serve, connection, f"{self.id}-{self._connection_number}")

    def _serve(self, connection: socket.socket, connection_id: str) -> None:
        decoder = FrameDecoder()
        streams: dict[int, int] = {}
        try:
            while data := connection.recv(1 << 18):
                self._running.wait()
                for group, message, batch, _ in decoder.receive_data(data):
                    assert isinstance(message, ClientMessage), message
                    if isinstance(message, Hello):
                        self._greet(connection, group, message, connection_id)
                    elif group != self.group.group:
                        refusal = UnknownGroup(f"there is no group {group!r} here")
                        answer = error_response(message.request_id, refusal)
                        self._send(connection, answer, None, group)
                    elif not self._handle(connection, message, batch, streams):
                        return
        except OSError:
            pass
        finally:
            self._connections.discard(connection)
            connection.close()

    def _greet(self, connection: socket.socket, group: str, hello: Hello, connection_id: str) -> None:
        self.hellos.append(hello)
        if group != self.group.group and not self.welcomes_any_group:
            response = HelloResponse(code=400, message=f"there is no group {group!r} here")
        else:
            response = HelloResponse(
                member_id=self.id,
                directory_id=f"d-{self.id}",
                cluster_id="c1",
                connection_id=connection_id,
                max_entry_bytes=self.group.max_entry_bytes,
                max_frame_bytes=self.group.max_frame_bytes,
                knows_conditions=self.group.knows_conditions,
                knows_promises=self.group.knows_promises,
                level=LEVEL,
            )
        self._send(connection, response, None, group)

    def _send(
        self,
        connection: socket.socket,
        message: ClientMessage,
        batch: EntryBatch | None = None,
        group: str | None = None,
    ) -> None:
        self._running.wait()
        data = b"".join(encode_frame(group or self.group.group, message, batch))  # type: ignore[arg-type]
        with self._sending:
            connection.sendall(data)

    def _handle(
        self,
        connection: socket.socket,
        message: ClientMessage,
        batch: EntryBatch | None,
        streams: dict[int, int],
    ) -> bool:
        with self.called:
            self.calls.append(message)
            action = self.script(self, message)
            self.called.notify_all()
        if isinstance(action, Hang):
            return True
        if isinstance(action, Drop):
            return False
        if isinstance(action, bytes):
            connection.sendall(action)
            return True
        if isinstance(action, LedgerError):
            self._send(connection, error_response(message.request_id, action))
            return True
        if isinstance(action, ClientMessage):
            self._send(connection, action)
            return True
        if isinstance(message, ReadRequest):
            # Beside the others: a long poll must not hold up what comes behind it.
            self._spawn(self._read, connection, message)
            return True
        try:
            response = self._carry_out(message, batch, streams)
        except LedgerError as error:
            response = error_response(message.request_id, error)
        if isinstance(action, CarryOutAndDrop):
            return False
        self._send(connection, response)
        return True

    def _carry_out(
        self, message: ClientMessage, batch: EntryBatch | None, streams: dict[int, int]
    ) -> ClientMessage:
        group = self.group
        with group.changed:
            if isinstance(message, StatusRequest):
                return self._status(message)
            leader = group.leader
            if leader is not self:
                hint = leader if self.knows_leader else None
                raise NotLeader(
                    f"{self.id} does not lead",
                    leader_id=hint.id if hint else None,
                    leader_address=hint.address if hint else None,
                )
            if isinstance(message, AppendRequest):
                assert batch is not None
                expected = streams.get(message.stream, 1)
                if message.stream and message.number != expected:
                    raise OutOfSequence(f"number {message.number} came, {expected} is next")
                streams[message.stream] = expected + 1
                first_index = group._append(batch)
                return AppendResponse(
                    request_id=message.request_id,
                    term=group.term,
                    first_index=first_index,
                    count=batch.count,
                    durability="sync",
                )
            if isinstance(message, TransferRequest):
                target = next((s for s in group.servers if s.id == message.to_member_id), None)
                if target is None:
                    raise TransferFailed(f"there is no member {message.to_member_id}")
                group.elect(target)
                return TransferResponse(
                    request_id=message.request_id, leader_id=target.id, term=group.term
                )
        raise BadRequest(type(message).__name__)

    def _status(self, message: StatusRequest) -> StatusResponse:
        group = self.group
        leader = group.leader if self.knows_leader else None
        end = len(group.entries) - 1
        return StatusResponse(
            request_id=message.request_id,
            group=group.group,
            id=self.id,
            address=self.address,
            directory_id=f"d-{self.id}",
            cluster_id="c1",
            role="leader" if leader is self else "follower",
            term=group.term,
            leader_id=leader.id if leader else "",
            leader_address=leader.address if leader else "",
            ledger_begin_index=0,
            ledger_end_index=end,
            durable_index=end,
            committed_index=end,
            flush="sync",
            members=tuple(
                MemberInfo(id=s.id, address=s.address, release=group.releases.get(s.id, ""))
                for s in group.servers
            ),
        )

    def _read(self, connection: socket.socket, message: ReadRequest) -> None:
        group = self.group
        with group.changed:
            first = message.first_index
            if message.wait_ms:
                group.changed.wait_for(
                    lambda: len(group.entries) > first or self._stopping, message.wait_ms / 1000
                )
            committed = len(group.entries) - 1
            stop = committed + 1 if message.stop_index < 0 else min(message.stop_index, committed + 1)
            picked: list[bytes] = []
            size = 0
            for entry in group.entries[first:stop] if first >= 0 else []:
                if picked and size + len(entry) > message.limit_bytes:
                    break
                picked.append(entry)
                size += len(entry)
        with contextlib.suppress(OSError):
            if not picked and not message.wait_ms:
                error = IndexOutOfRange(
                    f"index {first} is not in 0 .. {committed}",
                    ledger_begin_index=0,
                    committed_index=committed,
                )
                self._send(connection, error_response(message.request_id, error))
                return
            response = ReadResponse(
                request_id=message.request_id,
                first_index=first,
                count=len(picked),
                ledger_begin_index=0,
                committed_index=committed,
            )
            batch = EntryBatch(b"".join(picked), [len(entry) for entry in picked])
            self._send(connection, response, batch)
