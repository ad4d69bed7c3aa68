"""BlockingLink: one connection of a blocking client; one request at a time."""

from __future__ import annotations

import itertools
import socket
import time
from collections.abc import Callable
from contextlib import suppress

import msgspec

from quorumlog.broker.client.broker_verbs import (
    Encoded,
    check_hello,
    earlier_hello,
    frame_of,
    hello,
    lost_outcome,
    own_host,
    ungreeted,
)
from quorumlog.broker.client.master_route import PROBE_S, SLAVE, role_request
from quorumlog.broker.wire import AnyBrokerMessage, RoleNotice, SendRequest, broker_decoder, message_of
from quorumlog.config import parse_address
from quorumlog.entry_header import Buffer
from quorumlog.errors import OutcomeUnknown, ProtocolViolation, Unreachable
from quorumlog.net.frame import Frame

_ROLE_ID = -1


class BlockingLink:
    def __init__(self, address: str, timeout_s: float) -> None:
        """Raises Unreachable."""
        self.address = address
        self.is_demoted = False
        """The broker is master no more."""
        self.is_superseded: Callable[[], bool] | None = None
        """Asked while an answer is owed: whether another broker is master. None: nobody is asked."""
        self._numbers = itertools.count(1)
        deadline_s = time.monotonic() + timeout_s
        if not any(self._greets(each, deadline_s) for each in (hello(), earlier_hello())):
            raise ungreeted(address)
        self.host = own_host(self._socket.getsockname())

    def _greets(self, greeting: list[Buffer], deadline_s: float) -> bool:
        """False: it closes the connection without a word. Raises Unreachable, OutcomeUnknown."""
        host, port = parse_address(self.address)
        try:
            left_s = max(deadline_s - time.monotonic(), 0.001)
            self._socket = socket.create_connection((host, port), left_s)
        except OSError as error:
            reason = error.strerror or str(error)
            raise Unreachable(f"no broker at {host}:{port}: {reason}") from None
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._decoder = broker_decoder()
        try:
            check_hello(self._exchange(greeting, 0, deadline_s, is_send=False), self.address)
        except BaseException as error:
            self.close()
            if isinstance(error, ProtocolViolation):
                raise ungreeted(self.address, error) from None
            if type(error) is not Unreachable:
                raise
            return False
        return True

    def ask_role(self, timeout_s: float) -> Frame:
        """Raises Unreachable, OutcomeUnknown."""
        return self._exchange(
            role_request(_ROLE_ID), _ROLE_ID, time.monotonic() + timeout_s, is_send=False
        )

    def call(self, message: AnyBrokerMessage, encoded: Encoded | None, deadline_s: float) -> Frame:
        request_id = next(self._numbers)
        message = msgspec.structs.replace(message, request_id=request_id)
        is_send = isinstance(message, SendRequest)
        return self._exchange(frame_of(message, encoded), request_id, deadline_s, is_send=is_send)

    def _exchange(
        self, buffers: list[Buffer], request_id: int, deadline_s: float, *, is_send: bool
    ) -> Frame:
        try:
            self._refuse_closed()
            self._socket.settimeout(max(deadline_s - time.monotonic(), 0.001))
            self._socket.sendall(b"".join(buffers))
            while True:
                count = self._received(deadline_s)
                if not count:
                    raise lost_outcome("the broker closed the connection", is_send=is_send)
                answer = None
                for frame in self._decoder.buffer_updated(count):
                    message = message_of(frame)
                    if isinstance(message, RoleNotice):
                        self.is_demoted = self.is_demoted or message.role == SLAVE
                    elif message.request_id == request_id:
                        answer = frame
                if answer is not None:
                    return answer
        except TimeoutError:
            raise OutcomeUnknown("the broker did not answer in time") from None
        except OSError as error:
            reason = error.strerror or str(error)
            raise lost_outcome(f"the broker is lost: {reason}", is_send=is_send) from None

    def _refuse_closed(self) -> None:
        """A broker that has ended since the last answer certainly gets nothing of this. Raises
        Unreachable."""
        self._socket.setblocking(False)
        try:
            is_closed = not self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            is_closed = False
        except OSError:
            is_closed = True
        if is_closed:
            raise Unreachable("the broker closed the connection")

    def _received(self, deadline_s: float) -> int:
        """How many bytes have come. Raises OSError."""
        while True:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            watches = self.is_superseded is not None
            self._socket.settimeout(min(left_s, PROBE_S) if watches else left_s)
            try:
                return self._socket.recv_into(self._decoder.get_buffer())
            except TimeoutError:
                if self.is_superseded is None or time.monotonic() >= deadline_s:
                    raise
                if self.is_superseded():
                    raise ConnectionError("another broker is master by now") from None

    def close(self) -> None:
        with suppress(OSError):
            self._socket.close()
