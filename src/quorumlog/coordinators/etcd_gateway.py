"""EtcdGateway: requests to a cluster of etcd through its JSON gateway, which is plain HTTP.

A call blocks; whoever has an event loop gives it a thread.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import msgspec

from quorumlog.broker.errors import CoordinatorUnreachable
from quorumlog.config import parse_address
from quorumlog.errors import ConfigError

LEASE_NOT_FOUND = "requested lease not found"


class EtcdRefusal(CoordinatorUnreachable):
    """etcd has answered with an error."""


class EtcdGateway:
    """Any number of threads; a connection for each."""

    def __init__(self, servers: str, timeout_s: float) -> None:
        """`servers`: HOST:PORT or http(s)://HOST:PORT, comma separated. Raises ConfigError."""
        self._servers = [_server_of(part.strip()) for part in servers.split(",") if part.strip()]
        if not self._servers:
            raise ConfigError("the coordinator's list is empty; give HOST:PORT,HOST:PORT,... of etcd")
        self._timeout_s = timeout_s
        self._place = 0
        self._local = threading.local()
        self._streams: dict[http.client.HTTPConnection, None] = {}
        self._is_closed = False

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The answer. Raises EtcdRefusal; CoordinatorUnreachable: it may have been done or not."""
        place = self._place
        connection: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        if connection is None or self._local.place != place:
            connection = self._local.connection = self._connect(place, self._timeout_s)
            self._local.place = place
        try:
            connection.request("POST", f"/v3/{path}", msgspec.json.encode(body))
            data = connection.getresponse().read()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            self._local.connection = None
            self._turn(place)
            raise CoordinatorUnreachable(
                f"etcd at {self._name(place)}: {error or type(error).__name__}"
            ) from None
        return self._answer(place, data)

    def stream(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Results as they come, until the connection ends. Raises CoordinatorUnreachable."""
        place = self._place
        connection = self._connect(place, self._timeout_s)
        self._streams[connection] = None
        try:
            connection.connect()
            connection.sock.settimeout(None)  # it says nothing where nothing happens
            if self._is_closed:
                return
            connection.request("POST", f"/v3/{path}", msgspec.json.encode(body))
            response = connection.getresponse()
            while line := response.readline():
                yield self._answer(place, line)
        except (OSError, http.client.HTTPException, ValueError) as error:
            self._turn(place)
            raise CoordinatorUnreachable(f"etcd at {self._name(place)}: {error}") from None
        finally:
            self._streams.pop(connection, None)
            connection.close()

    def _connect(self, place: int, timeout_s: float) -> http.client.HTTPConnection:
        is_safe, host, port = self._servers[place]
        if is_safe:
            context = ssl.create_default_context()
            return http.client.HTTPSConnection(host, port, timeout=timeout_s, context=context)
        return http.client.HTTPConnection(host, port, timeout=timeout_s)

    def _turn(self, place: int) -> None:
        """The next one is asked from now on, unless another thread has turned already."""
        if self._place == place:
            self._place = (place + 1) % len(self._servers)

    def _name(self, place: int) -> str:
        _, host, port = self._servers[place]
        return f"{host}:{port}"

    def _answer(self, place: int, data: bytes) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = msgspec.json.decode(data, type=dict[str, Any])
        except msgspec.DecodeError as error:
            self._turn(place)
            raise CoordinatorUnreachable(
                f"{self._name(place)} does not answer as etcd: {error}"
            ) from None
        if "error" in answer:
            told = answer["error"]
            words = told.get("message", told) if isinstance(told, dict) else told
            if LEASE_NOT_FOUND not in str(words):
                self._turn(place)  # this member may have no leader
            raise EtcdRefusal(f"etcd at {self._name(place)}: {words}")
        result: dict[str, Any] = answer.get("result", answer)
        return result

    def close(self) -> None:
        """Nothing is asked any more."""
        self._is_closed = True
        self.close_streams()

    def close_streams(self) -> None:
        """Whoever reads one gets its end."""
        for connection in list(self._streams):
            if connection.sock is not None:
                with suppress(OSError):
                    connection.sock.shutdown(socket.SHUT_RDWR)


def _server_of(text: str) -> tuple[bool, str, int]:
    if "://" not in text:
        return False, *parse_address(text)
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https"):
        raise ConfigError(f"{text}: write HOST:PORT, http://HOST:PORT or https://HOST:PORT")
    return parts.scheme == "https", *parse_address(parts.netloc)
