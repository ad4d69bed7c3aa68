"""Dialler: how a member reaches another one: the addresses of its name, TLS first, and plain only as far
as `[tls] peers` allows.

While plain and TLS exist side by side, a member has a second port for TLS, and announces it in its
greeting on the plain one. That is only a hint: the server there must show the member's certificate.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import threading
import time
from contextlib import suppress
from functools import partial
from typing import Any

from quorumlog.config import GroupConfig, MemberAddress
from quorumlog.log_state.control_entries import LEVEL
from quorumlog.net.connection import Connection, LoopTurn
from quorumlog.net.encryption import TlsRefused, dial
from quorumlog.net.frame import Frame
from quorumlog.net.hello import WELCOME, Hello, HelloResponse
from quorumlog.net.peer_hello import member_list_of
from quorumlog.net.tls import Tls, refusal_of
from quorumlog.store.member_directory import MemberDirectory
from quorumlog.version import VERSION


class NameLookup:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._under_way: dict[str, asyncio.Future[list[str] | Exception]] = {}
        """By name: concurrent requests for it share the outcome."""
        self.known: set[str] = set()
        """Addresses that were found, of members and of this machine."""

    async def addresses_of(self, host: str) -> list[str]:
        """Raises OSError, or UnicodeError for an invalid name."""
        with suppress(ValueError):
            address = str(ipaddress.ip_address(host))
            self.known.add(address)
            return [address]
        answer = self._under_way.get(host)
        if answer is None:
            answer = self._under_way[host] = self._loop.create_future()
            threading.Thread(target=self._ask, args=(host,), name="quorumlog-name", daemon=True).start()
        found = await asyncio.shield(answer)
        if isinstance(found, Exception):
            raise found
        self.known.update(found)
        return found

    def _ask(self, host: str) -> None:
        found: list[str] | Exception
        try:
            answers = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            found = [str(address[0]) for _, _, _, _, address in answers]
        except (OSError, UnicodeError) as error:
            found = error
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._resolved, host, found)

    def _resolved(self, host: str, found: list[str] | Exception) -> None:
        self._under_way.pop(host).set_result(found)


class Handshake:
    """What this member says of itself in the first frame of a connection."""

    def __init__(
        self,
        config: GroupConfig,
        directory: MemberDirectory,
        run_id: str,
        listens_on: str,
        tls_port: int = 0,
    ) -> None:
        """`tls_port`: beside a plain one."""
        self._directory = directory
        self._listens_on = listens_on
        self._same: dict[str, Any] = {
            "member_id": config.member_id,
            "directory_id": directory.directory_id,
            "members": member_list_of(config.members),
            "segment_bytes": config.storage.segment_bytes,
            "durability": directory.durability.value,
            "run_id": run_id,
            "level": LEVEL,
            "tls_port": tls_port,
            "release": VERSION,
        }
        """Said by both sides; it stays as long as the member runs."""

    @property
    def cluster_id(self) -> str:
        """Empty until the cluster has formed."""
        return self._directory.formation.cluster_id

    def hello(self, role: str, to_member_id: str) -> Hello:
        return Hello(
            role=role,
            to_member_id=to_member_id,
            cluster_id=self.cluster_id,
            listens_on=self._listens_on,
            **self._same,
        )

    def response(self, code: int = WELCOME, message: str = "", connection_id: str = "") -> HelloResponse:
        return HelloResponse(
            code=code,
            message=message,
            cluster_id=self.cluster_id,
            connection_id=connection_id,
            **self._same,
        )


CONNECT_TIMEOUT_S = 2.0
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
        """`host`: one of the addresses of its name. Returns why the connection is plain although TLS was
        wanted; empty: it is as wanted. Raises OSError; Refused with the reason, if a server answered."""
        if self._tls is None:
            await dial(connection, host, member.port)
            return ""
        hinted = self._ports.get(member)
        if hinted is not None:
            try:
                await self._dial_tls(self._tls, connection, member, host, hinted)
            except TlsRefused:
                self._ports.pop(member, None)
                self._failed_s[member, hinted] = time.monotonic()
            except OSError:
                pass  # it stands for when the member is back
            else:
                return ""
        try:
            await self._dial_tls(self._tls, connection, member, host, member.port)
            self._ports.pop(member, None)
        except TlsRefused as refusal:
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
        refusal: TlsRefused,
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

    async def who_answers(self, member: MemberAddress, group: str) -> HelloResponse | None:
        """On a connection of its own, at the addresses that its name has by now; None: no answer."""
        with suppress(OSError, UnicodeError):
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                addresses = await self.names.addresses_of(member.host)
            for host in addresses:
                with suppress(OSError):
                    async with asyncio.timeout(CONNECT_TIMEOUT_S):
                        asking = _Asking(self.loop_turn)
                        await self.connect(asking.connection, member, host, group)
                        if (answer := await asking.say(group)) is not None:
                            return answer
        return None

    def follows(self, member: MemberAddress, answer: HelloResponse) -> bool:
        """True if the greeting on a plain connection names a port for TLS, which is dialled next."""
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
            self.connection.send(group, Hello(role="client", looks=True))
            return await self._answer
        finally:
            self.connection.abort()

    def _took(self, connection: Connection, frame: Frame) -> None:
        if not self._answer.done() and isinstance(frame.message, HelloResponse):
            self._answer.set_result(frame.message)

    def _lost(self, connection: Connection, closed_by_peer: bool) -> None:
        if not self._answer.done():
            self._answer.set_result(None)
