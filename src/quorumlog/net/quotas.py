"""Quotas: limits of one user and of one address, over all ports of a process.

Requests beyond them are refused unread with `Overloaded`, which says when to retry. They apply to
clients only, never to members.

Bytes are taken from a bucket that holds those of one second. A request is taken while the bucket is not
empty, and then it and its answer are taken from it, however large they are: the next request waits until
that is made good.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from quorumlog.config import LimitOptions, changes
from quorumlog.errors import Overloaded, ProtocolViolation
from quorumlog.net.errors import error_response
from quorumlog.net.frame import Frame, encode_frame
from quorumlog.net.limits import process_limits
from quorumlog.wire.client_message import ClientMessage

log = logging.getLogger("quorumlog.server")

USER, ADDRESS = "user", "address"
RETRY_CONNECTION_MS = 1000
RETRY_REQUEST_MS = 100
TELL_AGAIN_S = 60.0
MOST_IDLE = 1000


class _Share:
    """Of one user, or of one address."""

    def __init__(self, kind: str, name: str) -> None:
        self.kind = kind
        self.name = name
        self.connections = 0
        self.requests = 0
        self._left_bytes = math.inf
        """Of the bucket; below 0: it is to be made good."""
        self._at_s = -math.inf
        self._noted_s = -math.inf

    def missing_s(self, rate: int, now_s: float) -> float:
        """Until its bucket is not empty; 0: it is not. `rate`: bytes a second."""
        grown_bytes = (now_s - self._at_s) * rate
        self._left_bytes = min(self._left_bytes + grown_bytes, rate)
        self._at_s = now_s
        return max(0.0, -self._left_bytes / rate)

    def take(self, size_bytes: int) -> None:
        self._left_bytes -= size_bytes

    def owe_nothing(self) -> None:
        """Without a rate nothing is made good: what was taken then is forgotten."""
        self._left_bytes = math.inf

    def tells(self, now_s: float) -> bool:
        """Once a minute."""
        if now_s - self._noted_s < TELL_AGAIN_S:
            return False
        self._noted_s = now_s
        return True


class Meter:
    """Of one connection of a client, while requests or bytes have a limit."""

    def __init__(self, quotas: Quotas, shares: tuple[_Share, ...]) -> None:
        self._quotas = quotas
        self._shares = shares
        self._open: dict[int, _OpenRequest] = {}
        """Requests that wait for their answers, by their ids."""
        self._begun = 0
        """Of a port whose messages are its own."""

    def begin(self, size_bytes: int) -> Overloaded | None:
        """A request of a port with its own messages. None: it is admitted, and `finish` follows."""
        refusal = self._quotas.refusal_of_request(self._shares)
        if refusal is None:
            self._begun += 1
            self._count(1, size_bytes)
        return refusal

    def _count(self, requests: int, size_bytes: int) -> None:
        for share in self._shares:
            share.requests += requests
            share.take(size_bytes)

    def finish(self, size_bytes: int) -> None:
        """`size_bytes`: of its answer."""
        if self._begun:  # or it began before there was a limit
            self._begun -= 1
            self._count(-1, size_bytes)

    def admitted(self, frames: list[Frame], connection: Any) -> list[Frame]:
        """The admitted ones; the others are answered. Raises ProtocolViolation."""
        admitted = []
        for frame in frames:
            message = frame.message
            if not isinstance(message, ClientMessage) or not message.is_answered:
                admitted.append(frame)
                continue
            number, is_counted = message.request_id, not message.passes_limits
            if number in self._open:
                # It would not be known which of them an answer is for.
                raise ProtocolViolation(f"two requests with the id {number} wait for answers")
            refusal = self._quotas.refusal_of_request(self._shares) if is_counted else None
            if refusal is not None:
                connection.send(frame.group, error_response(number, refusal))
                continue
            self._open[number] = _OpenRequest(is_counted, message.of_watch)
            if is_counted:
                self._count(1, frame.size_bytes)
            admitted.append(frame)
        return admitted

    def answered(self, answer: ClientMessage, size_bytes: int) -> None:
        """Messages of a watch after its first answer are not counted."""
        request = self._open.get(answer.request_id)
        if request is None or (answer.of_watch and not request.of_watch):
            return
        del self._open[answer.request_id]
        if request.is_counted:
            self._count(-1, size_bytes)

    def end(self) -> None:
        count = sum(request.is_counted for request in self._open.values()) + self._begun
        self._open.clear()
        self._begun = 0
        for share in self._shares:
            share.requests -= count


class OnlyLooks:
    """In place of a meter: of a connection accepted beyond a limit for status requests."""

    def admitted(self, frames: list[Frame], connection: Any) -> list[Frame]:
        admitted = []
        for frame in frames:
            message = frame.message
            if not isinstance(message, ClientMessage) or message.only_looks:
                admitted.append(frame)
            else:
                refused = Overloaded(
                    "this connection was let in beyond a limit, to ask how a member is and nothing else",
                    retry_after_ms=RETRY_CONNECTION_MS,
                )
                answer = error_response(message.request_id, refused)
                connection.write(encode_frame(frame.group, answer))
        return admitted

    def answered(self, answer: ClientMessage, size_bytes: int) -> None:
        """Nothing is counted."""

    def end(self) -> None:
        pass


class _OpenRequest(NamedTuple):
    is_counted: bool
    """False: no limit is for it, and its answer gives no place back."""
    of_watch: bool


class _Limits(NamedTuple):
    """Of users, or of addresses; 0: none."""

    connections: int
    requests: int
    bytes_per_second: int


class Quotas:
    """Everything is called on the loop of the process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: seconds."""
        self._clock = clock
        self._shares: dict[tuple[str, str], _Share] = {}
        self._looks_at = MOST_IDLE
        """So many shares: those that owe nothing by now are forgotten."""
        self._connections: dict[Any, tuple[_Share, ...]] = {}
        self.set(LimitOptions())

    def set(self, options: LimitOptions) -> None:
        """Also for open connections, except their waiting requests."""
        self.options = options
        self._limits = {
            kind: _Limits(*(getattr(options, f"{kind}_{name}") for name in _Limits._fields))
            for kind in (USER, ADDRESS)
        }
        for share in self._shares.values():
            if not self._limits[share.kind].bytes_per_second:
                share.owe_nothing()
        for connection, shares in self._connections.items():
            self._measure(connection, shares)

    def reload(self, options: LimitOptions) -> list[str]:
        """As `set`; logs and returns the changes."""
        changed = changes(self.options, options)
        self.set(options)
        if changed:
            log.warning("[limits]: reloaded: %s", ", ".join(changed), extra={"event": "reload"})
        return [f"[limits] {each}" for each in changed]

    def _measure(self, connection: Any, shares: tuple[_Share, ...]) -> None:
        is_measured = any(any(self._limits[share.kind][1:]) for share in shares)
        if not is_measured and connection.meter is not None:
            connection.meter.end()
            connection.meter = None
        elif is_measured and connection.meter is None:
            connection.meter = Meter(self, shares)

    def refusal_of_connection(self, connection: Any) -> Overloaded | None:
        """Of its address, and its user as far as that is known by now."""
        for share in self._shares_of(connection):
            limit = self._limits[share.kind].connections
            if limit and share.connections >= limit:
                has = f"has {share.connections} connections"
                return self._refused(share, "connections", has, limit, RETRY_CONNECTION_MS)
        return None

    def enter(self, connection: Any) -> None:
        """It was accepted."""
        if len(self._shares) > self._looks_at:
            for share in list(self._shares.values()):
                self._forget_idle(share)
            self._looks_at = max(MOST_IDLE, 2 * len(self._shares))
        shares = self._connections[connection] = self._shares_of(connection)
        for share in shares:
            self._shares[share.kind, share.name] = share
            share.connections += 1
        self._measure(connection, shares)

    def leave(self, connection: Any) -> None:
        if connection.meter is not None:
            connection.meter.end()
            connection.meter = None
        for share in self._connections.pop(connection, ()):
            share.connections -= 1
            self._forget_idle(share)

    def _forget_idle(self, share: _Share) -> None:
        """Who comes back owes what it did."""
        rate = self._limits[share.kind].bytes_per_second
        if not share.connections and not (rate and share.missing_s(rate, self._clock())):
            self._shares.pop((share.kind, share.name), None)

    def _shares_of(self, connection: Any) -> tuple[_Share, ...]:
        """`peer_host` is empty of what another connection carries, which is counted by itself."""
        keys = [(ADDRESS, connection.peer_host)] if connection.peer_host else []
        if connection.user:
            keys.append((USER, connection.user))
        return tuple(self._shares.get(key) or _Share(*key) for key in keys)

    def refusal_of_request(self, shares: tuple[_Share, ...]) -> Overloaded | None:
        now_s = self._clock()
        for share in shares:
            _, limit, rate = self._limits[share.kind]
            if limit and share.requests >= limit:
                has = f"has {share.requests} requests that wait for their answers"
                return self._refused(share, "requests", has, limit, RETRY_REQUEST_MS)
            if rate and (missing_s := share.missing_s(rate, now_s)):
                wait_ms = math.ceil(missing_s * 1000)
                return self._refused(share, "bytes_per_second", "sends and requests much", rate, wait_ms)
        return None

    def _refused(self, share: _Share, name: str, has: str, limit: int, retry_ms: int) -> Overloaded:
        option = f"{share.kind}_{name}"
        process_limits().over[option] += 1
        words = f"{share.kind} {share.name!r:.80} {has}: [limits] {option} is {limit}"
        if share.tells(self._clock()):
            log.warning("refused: %s", words, extra={"event": "over_limit"})
        return Overloaded(words, retry_after_ms=retry_ms)
