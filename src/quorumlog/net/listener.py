"""Listener: one port of a process. It binds, accepts, reads greetings, and refuses or admits
connections.

A port's service receives a connection with its first frame, and never a refused one.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from secrets import token_hex

from quorumlog.config import parse_address
from quorumlog.errors import ConfigError, LedgerError, Overloaded, ProtocolViolation
from quorumlog.net.access import EVERYBODY, Access, Challenging
from quorumlog.net.connection import Connection, Decoder, FrameHandler, LastWords, LoopTurn
from quorumlog.net.encryption import Encryption, TlsRefused
from quorumlog.net.errors import error_response
from quorumlog.net.frame import Frame, FrameDecoder
from quorumlog.net.hello import PEER_ROLES, ChallengeResponse, Hello
from quorumlog.net.limits import GREETING_BYTES, GREETING_MS, ProcessLimits, process_limits
from quorumlog.net.quotas import OnlyLooks
from quorumlog.net.system import system_reason_of
from quorumlog.net.tls import MEMBER, Tls, principal_of
from quorumlog.store.disk import kept_descriptors
from quorumlog.stray_log import is_loopback

log = logging.getLogger("quorumlog.server")

BACKLOG = 1024
RETRY_REFUSED_MS = 1000
NO_TLS = "this is not TLS"


class Listener:
    def __init__(
        self,
        name: str,
        connect: Callable[[Connection], None],
        *,
        decoder: Callable[[], Decoder] = lambda: FrameDecoder(greeting_bytes=GREETING_BYTES),
        begin: Callable[[Connection, FrameHandler], None] | None = None,
        limits: ProcessLimits | None = None,
        access: Access = EVERYBODY,
        last_words: LastWords | None = None,
        has_peers: bool = False,
        has_peers_only: bool = False,
        option: str = "it",
        run_id: str = "",
        tls: Tls | None = None,
        second: str = "",
        is_http2: bool = False,
        is_of_member: Callable[[str], bool] = lambda address: False,
    ) -> None:
        """`name`: the port's name in errors and in the log: "the key-value store". `connect` gives a
        connection its `on_frame` or its `session`, which gets the first frame right after. `begin`:
        gives a connection its session with the first bytes, for protocols where only the session can
        tell the end of the greeting. The session then calls the second argument, which admits or
        refuses the connection. `has_peers`: members connect here, too, and say so in their Hello;
        otherwise every connection is a client's, whatever role it states. `has_peers_only`: only
        members connect here; a connection is a member's once its session calls `Connection.greeted`.
        `option`: the option to change if the port is taken, named in errors. `access`: users and
        rights of its clients. `run_id`: prefix of the names of connections. `tls`: TLS of the port;
        None: it is plain. `second`: the option in `[tls]` of a second address with TLS; the first is
        plain then. `is_http2`: announce HTTP/2 in TLS handshakes (ALPN). `is_of_member`: whether an
        address is a member's, for handshakes."""
        self._name = name
        self._connect = connect
        self._decoder = decoder
        self._begin = begin
        self._limits = limits or process_limits()
        self.access = access
        self._last_words = last_words
        self._has_peers = has_peers
        self._has_peers_only = has_peers_only
        self._option = option
        self._run_id = run_id
        self.tls = tls
        self._second = second
        self._is_http2 = is_http2
        self._is_of_member = is_of_member
        self._number = 0
        self.connections: dict[str, Connection] = {}
        """Connections with a session, by connection_id."""
        self._silent: dict[Connection, _WaitingConnection] = {}
        """Connections without a complete greeting, in the order of their deadlines."""
        self._in_line: dict[Connection, _WaitingConnection] = {}
        """Connections that wait to begin a handshake."""
        self._encrypting: set[asyncio.Task[None]] = set()
        self._deadline: asyncio.TimerHandle | None = None
        self._servers: list[asyncio.Server] = []

    async def open(
        self,
        host: str,
        port: int,
        addresses_of: Callable[[str], Awaitable[Sequence[str]]] | None = None,
    ) -> None:
        """`addresses_of` resolves `host`; None: the loop does. Raises ConfigError."""
        self._loop = asyncio.get_running_loop()
        self._turn = LoopTurn.of(self._loop)
        tls_at = self.tls_at
        is_plain = self.tls is None or tls_at is not None
        if tls_at == (host, port):
            raise ConfigError(
                f"{self._name} listens on {host}:{port} already: give [tls] {self._second} another port,"
                " or leave it out, and the first speaks TLS"
            )
        if tls_at is not None:  # first: a client of the plain one must find it
            await self._bind(*tls_at, addresses_of, self._accept_tls, f"[tls] {self._second}")
        accept = functools.partial(self._connection, self._made) if is_plain else self._accept_tls
        try:
            await self._bind(host, port, addresses_of, accept, self._option)
        except ConfigError:
            self.close()
            raise
        _OPEN[self] = ""
        if is_plain and not is_loopback(host):
            _OPEN[self] = f"{self._name} at {self.address}"
            log.warning("%s %s", _OPEN[self], PLAIN_WORDS, extra={"event": "listens"})
        kept_descriptors.keep(self._give_up)

    async def _bind(
        self,
        host: str,
        port: int,
        addresses_of: Callable[[str], Awaitable[Sequence[str]]] | None,
        accept: Callable[[], asyncio.BaseProtocol],
        option: str,
    ) -> None:
        try:
            hosts = host if addresses_of is None else await addresses_of(host)
            server = await self._loop.create_server(accept, hosts, port, backlog=BACKLOG)
            self._servers.append(server)
        except (OSError, UnicodeError) as error:
            hint = f"change {option}"
            if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
                hint = f"another process uses the port: stop it, or {hint}"
            reason = f"{system_reason_of(error)}; {hint}"
            raise ConfigError(f"{self._name} cannot listen on {host}:{port}: {reason}") from error

    @property
    def address(self) -> str:
        return self._address_of(-1)

    @property
    def tls_at(self) -> tuple[str, int] | None:
        """The second address, with TLS; the first is plain."""
        if self.tls is None or not self._second:
            return None
        address = getattr(self.tls.options, self._second)
        return parse_address(address) if address else None

    @property
    def speaks(self) -> str:
        """Text after the address in a line of the log."""
        if self.tls is None:
            return ""
        return f" and with TLS on {self._address_of(0)}" if self.tls_at else " with TLS"

    def _address_of(self, number: int) -> str:
        assert self._servers, "the port is not open"
        host, port = self._servers[number].sockets[0].getsockname()[:2]
        return f"{host}:{port}"

    def close(self) -> None:
        """Accept no more connections, and close those without a greeting."""
        kept_descriptors.let_go(self._give_up)
        _OPEN.pop(self, None)
        while self._servers:
            self._servers.pop().close()
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        self._abort_silent()

    def _abort_silent(self) -> None:
        for waiting in [*self._silent.values(), *self._in_line.values()]:
            waiting.close()

    def close_connections(self) -> None:
        """Close all connections after sending their responses."""
        for connection in list(self.connections.values()):
            connection.close()

    def abort_connections(self) -> None:
        self._abort_silent()
        for connection in list(self.connections.values()):
            connection.abort()

    # ---------------------------------------------------------------- who comes in

    def _connection(self, *made: Callable[[Connection], None]) -> Connection:
        self._number += 1
        # Only a client that knows its id can have it closed.
        connection_id = f"{self._run_id}/{self._number}/{token_hex(8)}"
        on_frame = self._greeted if self._begin is None else self._begun
        connection = Connection(self._turn, on_frame, self._lost, connection_id, self._decoder(), *made)
        connection.last_words = self._last_words
        connection.is_in_pieces = self._begin is not None
        return connection

    def _made(self, connection: Connection, close: Callable[[], None] | None = None) -> None:
        close = close or connection.abort
        connection.limits = self._limits

        def give_up(reason: str) -> None:
            self._from_any_thread(functools.partial(connection.give_up, reason))
            self._from_any_thread(close)

        is_within = self._limits.enter(connection, give_up)
        self._expect(connection, _WaitingConnection(is_within, close))
        if self._limits.is_beyond_all:
            self._refused()
            self._limits.close_silent()

    def _expect(self, connection: Connection, waiting: _WaitingConnection) -> None:
        waiting.until_s = self._loop.time() + GREETING_MS / 1000
        self._silent[connection] = waiting
        if self._deadline is None:
            self._watch()

    # ---------------------------------------------------------------- TLS

    def _accept_tls(self) -> Encryption:
        def dialled(encryption: Encryption) -> None:
            self._made(encryption.connection, encryption.abort)

        def went(encryption: Encryption) -> None:
            self._lost(encryption.connection, True)

        return Encryption(self._connection(), dialled, self._handshake, went)

    def _handshake(self, encryption: Encryption) -> None:
        """The connection has sent the beginning of a TLS handshake."""
        connection = encryption.connection
        waiting = self._silent.pop(connection, None)
        if waiting is None:
            return
        if not encryption.is_tls:
            self._silent[connection] = waiting
            self._turn.strays.closing(encryption.peer_name, f"{self._name} speaks TLS only; {NO_TLS}")
            encryption.refuse()
            return
        self._in_line[connection] = waiting
        is_member = self._has_peers_only or self._is_of_member(encryption.peer_host)
        begin = functools.partial(self._encrypt, encryption)
        if not self._turn.handshakes.come(connection, begin, is_member=is_member):
            self._turn.strays.closing(encryption.peer_name, "too many wait for a TLS handshake")
            encryption.abort()

    def _encrypt(self, encryption: Encryption) -> None:
        # A client that has waited longer than it would for an answer comes again, and waits again.
        self._expect(encryption.connection, self._in_line.pop(encryption.connection))
        task = self._loop.create_task(self._encrypted(encryption))
        self._encrypting.add(task)
        task.add_done_callback(self._encrypting.discard)

    async def _encrypted(self, encryption: Encryption) -> None:
        assert self.tls is not None
        peer_name = encryption.peer_name
        try:
            context = self.tls.http2_server if self._is_http2 else self.tls.server
            await encryption.begin(context, server_side=True)
        except TlsRefused as refusal:
            self._turn.strays.closing(peer_name, refusal)
            self._lost(encryption.connection, True)
        except BaseException:
            self._lost(encryption.connection, True)
            raise
        finally:
            self._turn.handshakes.leave(encryption.connection)

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
            waiting.close()
        self._watch()

    def _begun(self, connection: Connection, frame: Frame) -> None:
        """The first bytes of a connection, at a port with `begin`."""
        assert self._begin is not None, self._name
        self._begin(connection, self._greeted)
        assert connection.session is not None, self._name
        connection.session.frame(frame)

    def _greeted(self, connection: Connection, frame: Frame) -> None:
        """The first frame of a connection."""
        if self._has_peers_only:
            connection.is_client = True
            self._let_in(connection, frame)
            return
        self._limits.greeted(connection)
        hello = frame.message
        is_peer = self._has_peers and isinstance(hello, Hello) and hello.role in PEER_ROLES
        connection.is_client = not is_peer
        if self._has_peers and not is_peer and isinstance(connection.decoder, FrameDecoder):
            connection.decoder.hears_client()
        connection.is_counted = not is_peer and not self._shows_member(connection)
        over = self.access.quotas.refusal_of_connection(connection) if connection.is_counted else None
        is_let_in = (self._silent[connection].is_within and over is None) or is_peer
        if not is_let_in and not self._lets_look(connection, hello):
            refusal = over or Overloaded(self._refused(), retry_after_ms=RETRY_REFUSED_MS)
            self._turn_away(connection, frame, refusal)
        elif isinstance(hello, Hello) and not is_peer:
            self._ask(connection, frame, self.access.greet(connection, hello, self.tls), None)
        else:
            del self._silent[connection]
            self._let_in(connection, frame)

    def _lets_look(self, connection: Connection, hello: object) -> bool:
        """Admit briefly a client that only requests a member's status."""
        if not (isinstance(hello, Hello) and hello.looks):
            return False
        if not self._limits.lets_look(connection, connection.peer_host):
            return False
        connection.is_counted = False
        connection.meter = OnlyLooks()
        self._loop.call_later(GREETING_MS / 1000, connection.close)
        return True

    def greeted(self, connection: Connection) -> None:
        """Called by a session that parses the greeting itself: it is complete, and the other side is
        a member."""
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

    def _shows_member(self, connection: Connection) -> bool:
        if self.tls is None:
            return False
        shown = principal_of(connection.certificate)
        return shown is not None and (shown.cluster, shown.kind) == (self.tls.cluster, MEMBER)

    def _let_in(self, connection: Connection, first: Frame) -> None:
        if connection.is_counted:
            refusal = self.access.quotas.refusal_of_connection(connection)  # its user is known by now
            if refusal is None:
                self.access.quotas.enter(connection)
            elif not self._lets_look(connection, first.message):
                self._turn_away(connection, first, refusal)
                return
        self.connections[connection.connection_id] = connection
        log.debug(
            "%s accepts %s", self._name, connection.peer_name, extra={"event": "connection_begins"}
        )
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
        self._tell_of_refusal(f"{self._name} refuses connections: {reason}")
        return reason

    def _tell_of_refusal(self, words: str) -> None:
        """Once in a row of them."""
        if self._limits.refuse():
            log.warning(words, extra={"event": "connection_refused"})

    def _lost(self, connection: Connection, closed_by_peer: bool) -> None:
        self._limits.leave(connection)
        self.access.lost(connection)
        self.access.quotas.leave(connection)
        self._silent.pop(connection, None)
        if self._in_line.pop(connection, None) is not None:
            self._turn.handshakes.leave(connection)
        if self.connections.pop(connection.connection_id, None) is not None:
            log.debug(
                "%s has lost %s", self._name, connection.peer_name, extra={"event": "connection_ends"}
            )
        self._loop.call_soon(kept_descriptors.refill)

    def _give_up(self) -> None:
        """Close connections, since a file needed one of the reserved descriptors. Any thread."""
        self._from_any_thread(self._close_one)

    def _close_one(self) -> None:
        closes = [waiting.close for waiting in self._silent.values()]
        closes += [
            each.abort for each in self.connections.values() if each.is_client and not each.closed
        ]
        if closes:
            words = "closes connections: files of this process need descriptors"
            self._tell_of_refusal(f"{self._name} {words}")
            closes[0]()


class _WaitingConnection:
    __slots__ = ("close", "is_within", "until_s")

    def __init__(self, is_within: bool, close: Callable[[], None]) -> None:
        self.is_within = is_within
        """False: its address had its maximum of connections when it connected."""
        self.close = close
        self.until_s = 0.0


PLAIN_WORDS = (
    "is reachable from other machines without TLS: anyone there can read, change and delete everything;"
    " the next release refuses to start so (docs/security.md)"
)
_OPEN: dict[Listener, str] = {}
"""The ports of this process; the value: its name if other machines reach it without TLS."""


def tls_problems() -> list[str]:
    """Problems for `status`, as sentences."""
    problems = [f"{plain} {PLAIN_WORDS}" for plain in list(_OPEN.values()) if plain]
    return problems + [each.tls.problem for each in list(_OPEN) if each.tls and each.tls.problem]
