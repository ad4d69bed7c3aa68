"""Listener: one port of a process. It binds, lets in, waits for the greeting, refuses, and ends.

What is behind a port sees a connection with its first frame, and never one that was refused.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import logging
import os
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import suppress
from secrets import token_hex

from quorumlog.errors import ConfigError, LedgerError, Overloaded, ProtocolViolation
from quorumlog.net.connection import Connection, Decoder, LastWords, LoopTurn
from quorumlog.net.errors import error_response
from quorumlog.net.frame import Frame, FrameDecoder
from quorumlog.net.hello import PEER_ROLES, Challenge, ChallengeResponse, Hello
from quorumlog.net.limits import GREETING_BYTES, GREETING_MS, ProcessLimits, process_limits
from quorumlog.store.disk import kept_descriptors

log = logging.getLogger("quorumlog.server")

BACKLOG = 1024
RETRY_REFUSED_MS = 1000


def log_decoder() -> Decoder:
    return FrameDecoder(greeting_bytes=GREETING_BYTES)


Challenging = Generator[Challenge, bytes, None]
"""What somebody who has said a Hello is asked, one after the other, and each time is told the answer. It
ends where that is enough, or raises the LedgerError that refuses."""


class Listener:
    def __init__(
        self,
        name: str,
        connect: Callable[[Connection], None],
        *,
        decoder: Callable[[], Decoder] = log_decoder,
        limits: ProcessLimits | None = None,
        challenge: Callable[[Hello], Challenging] | None = None,
        last_words: LastWords | None = None,
        has_peers: bool = False,
        has_peers_only: bool = False,
        option: str = "it",
        run_id: str = "",
    ) -> None:
        """`name`: of the port, in errors and in the log: "the key-value store". `connect` gives a
        connection its `on_frame` or its `session`, which gets the first frame right behind.
        `has_peers`: members come here, too, and say so in their Hello; elsewhere everybody is a client,
        whatever role it says. `has_peers_only`: no client comes here, and whoever comes is a member once
        its session says `Connection.greeted`. `option`: what to change where the port is taken.
        `run_id`: in front of the names of connections."""
        self._name = name
        self._connect = connect
        self._decoder = decoder
        self._limits = limits or process_limits()
        self.challenge = challenge
        self._last_words = last_words
        self._has_peers = has_peers
        self._has_peers_only = has_peers_only
        self._option = option
        self._run_id = run_id
        self._number = 0
        self.connections: dict[str, Connection] = {}
        """Those with a session, by connection_id."""
        self._silent: dict[Connection, _Waiting] = {}
        """Those that have not greeted, in the order in which they came."""
        self._deadline: asyncio.TimerHandle | None = None
        self._server: asyncio.Server | None = None

    async def open(
        self,
        host: str,
        port: int,
        addresses_of: Callable[[str], Awaitable[Sequence[str]]] | None = None,
    ) -> None:
        """`addresses_of`: looks up `host`; the loop does where it is None. Raises ConfigError."""
        self._loop = asyncio.get_running_loop()
        self._turn = LoopTurn.of(self._loop)
        try:
            hosts = host if addresses_of is None else await addresses_of(host)
            self._server = await self._loop.create_server(self._accept, hosts, port, backlog=BACKLOG)
        except (OSError, UnicodeError) as error:
            # An event loop adds its own words to those of the system, and the address once more; what is
            # wrong with a name has a negative number, and no words of the system.
            number = (isinstance(error, OSError) and error.errno) or 0
            reason = os.strerror(number) if number > 0 else getattr(error, "strerror", "") or str(error)
            hint = f"change {self._option}"
            if number == errno.EADDRINUSE:
                hint = f"another process uses the port: stop it, or {hint}"
            raise ConfigError(
                f"{self._name} cannot listen on {host}:{port}: {reason}; {hint}"
            ) from error
        kept_descriptors.keep(self._give_up)

    @property
    def address(self) -> str:
        assert self._server is not None, "the port is not open"
        host, port = self._server.sockets[0].getsockname()[:2]
        return f"{host}:{port}"

    def close(self) -> None:
        """Nobody is let in any more, and whoever has not greeted goes."""
        kept_descriptors.let_go(self._give_up)
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        for connection in list(self._silent):
            connection.abort()

    def close_connections(self) -> None:
        """What they were answered leaves first."""
        for connection in list(self.connections.values()):
            connection.close()

    def abort_connections(self) -> None:
        for connection in {**self._silent, **dict.fromkeys(self.connections.values())}:
            connection.abort()

    # ---------------------------------------------------------------- who comes in

    def _accept(self) -> Connection:
        self._number += 1
        # Whoever names it may have it closed: nobody else can.
        connection_id = f"{self._run_id}/{self._number}/{token_hex(8)}"
        connection = Connection(self._turn, self._greeted, self._lost, connection_id, self._decoder())
        connection.on_made = self._made
        connection.last_words = self._last_words
        return connection

    def _made(self, connection: Connection) -> None:
        connection.limits = self._limits

        def close(reason: str) -> None:
            self._from_any_thread(functools.partial(connection.give_up, reason))

        is_within = self._limits.enter(connection, close)
        self._silent[connection] = _Waiting(self._loop.time() + GREETING_MS / 1000, is_within)
        if self._deadline is None:
            self._watch()
        if self._limits.is_beyond_all:
            self._refused()
            self._limits.close_silent()

    def _from_any_thread(self, act: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(act)

    def _watch(self) -> None:
        first = next(iter(self._silent.values()), None)
        self._deadline = None if first is None else self._loop.call_at(first.until_s, self._overdue)

    def _overdue(self) -> None:
        now_s = self._loop.time()
        for connection, waiting in list(self._silent.items()):
            if waiting.until_s > now_s:
                break
            del self._silent[connection]
            connection.abort()
        self._watch()

    def _greeted(self, connection: Connection, frame: Frame) -> None:
        """The first frame."""
        if self._has_peers_only:
            connection.is_client = True
            connection.on_greeted = self._known
            self._let_in(connection, frame)
            return
        self._limits.greeted(connection)
        hello = frame.message
        is_peer = self._has_peers and isinstance(hello, Hello) and hello.role in PEER_ROLES
        connection.is_client = not is_peer
        if self._has_peers and not is_peer and isinstance(connection.decoder, FrameDecoder):
            connection.decoder.hears_client()
        if not self._silent[connection].is_within and not is_peer:
            reason = self._refused()
            self._turn_away(connection, frame, Overloaded(reason, retry_after_ms=RETRY_REFUSED_MS))
        elif self.challenge is not None and isinstance(hello, Hello):
            self._ask(connection, frame, self.challenge(hello), None)
        else:
            del self._silent[connection]
            self._let_in(connection, frame)

    def _known(self, connection: Connection) -> None:
        """It is a member."""
        self._limits.greeted(connection)
        self._silent.pop(connection, None)
        connection.is_client = False

    def _ask(
        self, connection: Connection, first: Frame, asking: Challenging, answer: bytes | None
    ) -> None:
        try:
            challenge = next(asking) if answer is None else asking.send(answer)
        except StopIteration:
            del self._silent[connection]
            self._let_in(connection, first)
        except LedgerError as refusal:
            self._turn_away(connection, first, refusal)
        else:
            connection.on_frame = functools.partial(self._answered, first, asking)
            connection.greets_again()
            connection.send(first.group, challenge)

    def _answered(self, first: Frame, asking: Challenging, connection: Connection, frame: Frame) -> None:
        message = frame.message
        if not isinstance(message, ChallengeResponse):
            raise ProtocolViolation(f"{type(message).__name__} instead of an answer to a challenge")
        self._ask(connection, first, asking, message.data)

    def _turn_away(self, connection: Connection, first: Frame, refusal: LedgerError) -> None:
        self._silent.pop(connection, None)
        words = None if self._last_words is None else self._last_words(refusal)
        if words is None:
            connection.send(first.group, error_response(0, refusal))
        else:
            connection.write([words])
        connection.close()

    def _let_in(self, connection: Connection, first: Frame) -> None:
        self.connections[connection.connection_id] = connection
        self._connect(connection)
        if connection.session is not None:
            connection.session.frame(first)
        else:
            connection.on_frame(connection, first)

    def _refused(self) -> str:
        reason = (
            f"{self._limits.open_connections} connections are open, more than the"
            f" {self._limits.most_connections} that the limit of open files allows (ulimit -n)"
        )
        if self._limits.refuse():
            log.warning("%s refuses connections: %s", self._name, reason)
        return reason

    def _lost(self, connection: Connection, closed_by_peer: bool) -> None:
        self._limits.leave(connection)
        self._silent.pop(connection, None)
        self.connections.pop(connection.connection_id, None)
        self._loop.call_soon(kept_descriptors.refill)

    def _give_up(self) -> None:
        """A file has got one of the descriptors that are kept back. Any thread."""
        self._from_any_thread(self._close_one)

    def _close_one(self) -> None:
        clients = [each for each in self.connections.values() if each.is_client]
        connection = next((each for each in [*self._silent, *clients] if not each.closed), None)
        if connection is not None:
            if self._limits.refuse():
                log.warning("%s closes connections: files of this process need descriptors", self._name)
            connection.abort()


class _Waiting:
    __slots__ = ("is_within", "until_s")

    def __init__(self, until_s: float, is_within: bool) -> None:
        self.until_s = until_s
        self.is_within = is_within
        """False: more than anybody may have were open when it came."""
