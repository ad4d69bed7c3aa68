"""Dialler: how a member reaches another one: the addresses behind its name, TLS first, and plain only as
far as `[tls] peers` allows.

While plain and TLS exist side by side, a member has a second port for TLS, and says so in its greeting
on the plain one. That is a hint and no more: whoever answers there must show the member's certificate.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from functools import partial

from quorumlog.config import MemberAddress
from quorumlog.net.connection import Connection, LoopTurn
from quorumlog.net.encryption import Refused, dial
from quorumlog.net.frame import Frame
from quorumlog.net.hello import Hello, HelloResponse
from quorumlog.net.tls import Tls, refusal_of
from quorumlog.server.peers.name_lookup import NameLookup

FAILED_S = 60.0
"""So long after TLS has failed at a port a hint of it is not followed again."""


class Dialler:
    def __init__(self, loop_turn: LoopTurn, names: NameLookup, tls: Tls | None = None) -> None:
        self.loop_turn = loop_turn
        self.names = names
        self._tls = tls if tls is not None and tls.options.peers != "plain" else None
        self._ports: dict[MemberAddress, int] = {}
        """Of TLS, where it is not that of the address."""
        self._failed_s: dict[tuple[MemberAddress, int], float] = {}

    async def connect(self, connection: Connection, member: MemberAddress, host: str, group: str) -> str:
        """`host`: one of the addresses behind its name. Returns why the connection is plain although TLS
        was wanted; empty: it is what it should be. Raises OSError; Refused with the reason, if somebody
        is there."""
        if self._tls is None:
            await dial(connection, host, member.port)
            return ""
        hinted = self._ports.get(member)
        if hinted is not None:
            try:
                await self._dial_tls(self._tls, connection, member, host, hinted)
            except Refused:
                self._ports.pop(member, None)
                self._failed_s[member, hinted] = time.monotonic()
            except OSError:
                pass  # it stands for when the member is back
            else:
                return ""
        try:
            await self._dial_tls(self._tls, connection, member, host, member.port)
            self._ports.pop(member, None)
        except Refused as refusal:
            if self._tls.options.peers == "prefer":
                await dial(connection, host, member.port)
                return f"{member.member_id} is reached without TLS ([tls] peers = prefer): {refusal}"
            await self._ask(self._tls, connection, member, host, group, refusal)
        return ""

    async def _dial_tls(
        self, tls: Tls, connection: Connection, member: MemberAddress, host: str, port: int
    ) -> None:
        check = partial(refusal_of, cluster=tls.cluster, member_id=member.member_id)
        await dial(connection, host, port, tls.dialling, check)

    async def _ask(
        self,
        tls: Tls,
        connection: Connection,
        member: MemberAddress,
        host: str,
        group: str,
        refusal: Refused,
    ) -> None:
        """Its plain port, if that is one, for another port. Raises OSError."""
        asking = _Asking(self.loop_turn)
        with suppress(OSError):
            await dial(asking.connection, host, member.port)
        answer = await asking.say(group)
        if answer is None or not self.follows(member, answer):
            raise refusal
        port = self._ports[member]
        try:
            await self._dial_tls(tls, connection, member, host, port)
        except OSError:
            self._ports.pop(member, None)
            raise

    def follows(self, member: MemberAddress, answer: HelloResponse) -> bool:
        """Of what was said on a plain connection: it names a port for TLS, which is dialled next."""
        port = answer.tls_port
        if self._tls is None or not 1 <= port <= 65535:
            return False
        if time.monotonic() - self._failed_s.pop((member, port), -FAILED_S) < FAILED_S:
            return False
        self._ports[member] = port
        return True


class _Asking:
    """A connection for one question."""

    def __init__(self, loop_turn: LoopTurn) -> None:
        self._answer: asyncio.Future[HelloResponse | None] = asyncio.get_running_loop().create_future()
        self.connection = Connection(loop_turn, self._took, self._lost, "probe")

    async def say(self, group: str) -> HelloResponse | None:
        if not self.connection.is_made:
            return None
        try:
            self.connection.send(group, Hello(role="client"))
            return await self._answer
        finally:
            self.connection.abort()

    def _took(self, connection: Connection, frame: Frame) -> None:
        if not self._answer.done() and isinstance(frame.message, HelloResponse):
            self._answer.set_result(frame.message)

    def _lost(self, connection: Connection, closed_by_peer: bool) -> None:
        if not self._answer.done():
            self._answer.set_result(None)
