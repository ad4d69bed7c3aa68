"""PeerLink: one outgoing connection to one other member, dialled again whenever it is lost.

A member has two to each other member, `control` and `data` (node/peer_connections.py), and sends on
these; it receives on those that others dialled.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from contextlib import suppress

from quorumlog.config import KIB, UNSENT_LIMIT_BYTES, MemberAddress
from quorumlog.consensus.messages import AnyPeerMessage, PushEntryRequest
from quorumlog.errors import ProtocolViolation
from quorumlog.net.connection import Connection, Traffic
from quorumlog.net.encryption import TlsRefused
from quorumlog.net.frame import Frame
from quorumlog.net.hello import DUPLICATE, Hello, HelloResponse
from quorumlog.server.peers.dialler import CONNECT_TIMEOUT_S, Dialler

RETRY_FIRST_S = 0.02
RETRY_MOST_S = 1.0
SETTLED_S = 0.1
"""A link that was up for so long is dialled again at once when it is lost, once."""
DUPLICATE_FIRST_S = 0.5
DUPLICATE_MOST_S = 4.0
"""Between tries of a process that another one is already."""
FRESH_S = 0.5
"""A younger dial is left alone: after a reset both sides dial at once, and if each gave its own up for
the other's, neither would ever last."""
_NO_WAY_THERE = (errno.EADDRNOTAVAIL, errno.ENETUNREACH, errno.EAFNOSUPPORT)
"""An address of a kind that this machine has no way to, such as IPv6: it says nothing of the peer."""
MOVING_BYTES = 4 * KIB
"""Less passes even where large frames do not: a greeting, a query."""


class PeerLink:
    def __init__(
        self,
        dialler: Dialler,
        group: str,
        peer: MemberAddress,
        role: str,
        hello: Callable[[str, str], Hello],
        on_up: Callable[[PeerLink], None],
        on_down: Callable[[PeerLink], None],
        on_gone: Callable[[PeerLink], None],
        on_bug: Callable[[BaseException], None],
        on_refused: Callable[[PeerLink], None] = lambda link: None,
    ) -> None:
        """`hello(role, to_member_id)` makes the first frame. `on_gone` follows `on_down` when dialling
        again was refused: a live process answers, however the link broke."""
        self._dialler = dialler
        self.group = group
        self.peer = peer
        self.role = role
        self._hello = hello
        self._on_up = on_up
        self._on_down = on_down
        self._on_gone = on_gone
        self._on_bug = on_bug
        self._on_refused = on_refused
        self._connection: Connection | None = None
        self.up: HelloResponse | None = None
        """The peer's greeting; None while the link is down."""
        self.problem = ""
        """Why the peer refused the link, or there is no TLS on it, for `status`."""
        self._without_tls = ""
        """Why the newest connection is none, or plain although TLS was wanted."""
        self.refused_as_duplicate = 0
        """How often in a row, because another process is the member that this one says it is."""
        self._is_refused = False
        """The newest connection was refused, or closed by the other side before it said a word."""
        self._has_answered = asyncio.Event()
        """The peer has greeted or refused, or the connection is gone."""
        self._lost = asyncio.Event()
        self._kick = asyncio.Event()
        self._not_the_peer = ""
        """Address behind the name at which something answered that was not the peer: tried last."""
        self._dialled_s = 0.0
        self._moved_bytes = 0
        """Acknowledged by the peer's machine when `has_moved` was true last."""
        self._pushed_bytes = 0
        """Sent up to the end of the newest push; what is after it, such as a repair, is none."""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Only `close` ends a link; anything else is a bug that must not pass for a lost peer."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_bug(error)

    def kick(self) -> None:
        """The peer was just heard of: dial now rather than after the back-off."""
        self._kick.set()
        is_stale = asyncio.get_running_loop().time() - self._dialled_s > FRESH_S
        if self.up is None and self._connection is not None and is_stale:
            self._connection.abort()  # dialled before the peer was there, and not greeted yet

    def redial(self) -> None:
        """It leads to a process that is not the peer any more."""
        if self._connection is not None:
            self._connection.abort()

    def send(self, message: AnyPeerMessage) -> bool:
        """Lost if the link is down. False: it is clogged, and the message dropped."""
        connection = self._connection
        if self.up is None or connection is None:
            return True
        if connection.unsent_bytes > UNSENT_LIMIT_BYTES:
            return False
        connection.send(self.group, message)
        if isinstance(message, PushEntryRequest) and message.batch is not None:
            self._pushed_bytes = connection.sent_bytes
        return True

    @property
    def traffic(self) -> list[Traffic]:
        return [] if self._connection is None else [self._connection.traffic]

    def has_moved(self) -> bool:
        """The peer's machine has acknowledged `MOVING_BYTES` before the end of the newest push
        since this was true last."""
        acknowledged_bytes = self._connection.acknowledged_bytes if self._connection is not None else 0
        moved_bytes = min(acknowledged_bytes, self._pushed_bytes)
        if moved_bytes - self._moved_bytes < MOVING_BYTES:
            return False
        self._moved_bytes = moved_bytes
        return True

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        wait_s = RETRY_FIRST_S
        was_up = False
        while True:
            self._kick.clear()
            connection = await self._dial(loop)
            if connection is None:
                self.problem = self._without_tls  # or nobody is there that could refuse
            greeted = connection is not None and await self._greeted()
            if was_up and not greeted and self._is_refused:
                self._on_gone(self)
            was_up = greeted
            if connection is not None:
                settles_s = loop.time() + SETTLED_S
                if greeted:
                    wait_s = RETRY_FIRST_S
                else:
                    connection.abort()
                await self._lost.wait()
                self._connection = self.up = None
                if greeted and loop.time() >= settles_s:
                    continue  # it worked, so it may work again, and if not we want to know at once
            with suppress(TimeoutError):
                async with asyncio.timeout(max(wait_s, self._duplicate_wait_s)):
                    await self._kick.wait()
            wait_s = min(wait_s * 2, RETRY_MOST_S)

    @property
    def _duplicate_wait_s(self) -> float:
        tries = self.refused_as_duplicate
        return float(min(DUPLICATE_FIRST_S * 2 ** (tries - 1), DUPLICATE_MOST_S)) if tries else 0.0

    async def _dial(self, loop: asyncio.AbstractEventLoop) -> Connection | None:
        self._lost.clear()
        self._has_answered.clear()
        self._is_refused = False
        connection = Connection(
            self._dialler.loop_turn, self._frame, self._connection_lost, f"{self.role}->{self.peer}"
        )
        if not await self._connect(connection):
            return None
        self._connection = connection
        self._moved_bytes = self._pushed_bytes = 0
        self._dialled_s = loop.time()
        connection.send(self.group, self._hello(self.role, self.peer.member_id))
        return connection

    async def _connect(self, connection: Connection) -> bool:
        """To one of the addresses behind the name."""
        peer = self.peer
        self._without_tls = ""
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                addresses = await self._dialler.names.addresses_of(peer.host)
        except (OSError, UnicodeError):
            return False  # a name that cannot be looked up, now or ever
        refusals = unroutable = 0
        for address in sorted(addresses, key=lambda address: address == self._not_the_peer):
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    self._without_tls = await self._dialler.connect(
                        connection, peer, address, self.group
                    )
            except TlsRefused as refusal:
                self._without_tls = f"{peer.member_id} at {peer}: {refusal}"
            except ConnectionError:
                refusals += 1
            except OSError as error:
                unroutable += error.errno in _NO_WAY_THERE
            else:
                self._not_the_peer = address  # until it greets
                return True
        self._is_refused = refusals > 0 and refusals + unroutable == len(addresses)
        return False

    async def _greeted(self) -> bool:
        """A process that accepts and says nothing (stopped, or another program) is dialled again."""
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await self._has_answered.wait()
        except TimeoutError:
            return False
        return self.up is not None

    def _frame(self, connection: Connection, frame: Frame) -> None:
        message = frame.message
        if self.up is not None or not isinstance(message, HelloResponse):
            raise ProtocolViolation(f"{self.peer.member_id} speaks on a link that it only listens to")
        self._has_answered.set()
        if not connection.is_encrypted and self._dialler.follows(self.peer, message):
            connection.close()  # to come again with TLS
            return
        if message.code != 200:
            self.problem = message.message
            self.refused_as_duplicate += message.code == DUPLICATE
            connection.close()
            self._on_refused(self)
            return
        self.problem, self._not_the_peer = self._without_tls, ""
        self.refused_as_duplicate = 0
        self.up = message
        self._on_up(self)

    def _connection_lost(self, connection: Connection, closed_by_peer: bool) -> None:
        was_up = self.up is not None
        self._has_answered.set()
        self._lost.set()
        if was_up:
            self.up = None
            self._on_down(self)
        else:
            self._is_refused = closed_by_peer

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
        if self._connection is not None:
            self._connection.abort()

    async def ended(self) -> None:
        """After `close`: until nothing of it is left in the loop."""
        if self._task is not None:
            await asyncio.wait((self._task,))
