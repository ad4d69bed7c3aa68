"""EtcdGateway: requests to a cluster of etcd through its JSON gateway, which is plain HTTP.

A connection for each: there are few a second. By HTTP/1.0 an answer ends with its connection, and comes
in lines, not in chunks.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from quorumlog.broker.errors import CoordinatorUnreachable
from quorumlog.config import parse_address
from quorumlog.errors import ConfigError
from quorumlog.wire.field_names import UNREADABLE

TIMEOUT_S = 1.0
"""Of a request: another member is asked next time."""
MOST_BYTES = 1 << 20
"""Of an answer."""
T = TypeVar("T")


class LeaseNotFound(CoordinatorUnreachable):
    """etcd has answered that there is none."""


class EtcdGateway:
    def __init__(self, servers: str) -> None:
        """`servers`: HOST:PORT or http(s)://HOST:PORT, comma separated. Raises ConfigError."""
        self._servers = [_server_of(part.strip()) for part in servers.split(",") if part.strip()]
        if not self._servers:
            raise ConfigError("the coordinator's list is empty; give HOST:PORT,HOST:PORT,... of etcd")
        self._place = 0

    async def post(self, path: str, body: dict[str, Any], kind: type[T]) -> T:
        """The answer. Raises LeaseNotFound; CoordinatorUnreachable: it may have been done or not."""
        place = self._place
        try:
            async with asyncio.timeout(TIMEOUT_S), aclosing(self.stream(path, body, kind)) as answers:
                return await anext(answers)
        except TimeoutError:
            raise self._failed(place, "no answer in time") from None
        except asyncio.CancelledError:
            self._failed(place, "")  # whoever asked has waited long enough
            raise

    async def stream(self, path: str, body: dict[str, Any], kind: type[T]) -> AsyncGenerator[T, None]:
        """Results as they come. Ends by CoordinatorUnreachable, at the latest with the connection."""
        place = self._place
        is_safe, host, port = self._servers[place]
        data = msgspec.json.encode(body)
        name = f"[{host}]" if ":" in host else host
        head = f"POST /v3/{path} HTTP/1.0\r\nHost: {name}:{port}\r\nContent-Length: {len(data)}\r\n\r\n"
        writer = None
        try:
            async with asyncio.timeout(TIMEOUT_S):
                reader, writer = await asyncio.open_connection(
                    host, port, ssl=is_safe or None, limit=MOST_BYTES
                )
            writer.write(head.encode() + data)
            await reader.readuntil(b"\r\n\r\n")
            while line := await reader.readline():
                yield self._answer(place, line, kind)
            raise self._failed(place, "the connection has ended")
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
            raise self._failed(place, str(error) or type(error).__name__) from None
        finally:
            if writer is not None:
                writer.close()

    def _failed(self, place: int, why: str) -> CoordinatorUnreachable:
        """The next one is asked from now on, unless another request has turned to it already."""
        if self._place == place:
            self._place = (place + 1) % len(self._servers)
        _, host, port = self._servers[place]
        return CoordinatorUnreachable(f"etcd at {host}:{port}: {why}")

    def _answer(self, place: int, data: bytes, kind: type[T]) -> T:
        try:
            answer = msgspec.json.decode(data, type=dict[str, Any])
            told = answer.get("error") or answer.get("message")  # the latter alone from etcd 3.6 on
            if told is None:
                return msgspec.convert(answer.get("result", answer), kind, strict=False)
        except UNREADABLE as error:
            raise self._failed(place, f"this is no answer of etcd: {error}") from None
        words = str(told.get("message", told) if isinstance(told, dict) else told)
        if "requested lease not found" in words:
            raise LeaseNotFound(words)
        raise self._failed(place, words)  # it may have no leader


def _server_of(text: str) -> tuple[bool, str, int]:
    if "://" not in text:
        return False, *parse_address(text)
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https"):
        raise ConfigError(f"{text}: write HOST:PORT, http://HOST:PORT or https://HOST:PORT")
    return parts.scheme == "https", *parse_address(parts.netloc)
