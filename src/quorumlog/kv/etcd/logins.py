"""Logins: who a client of etcd is. It says its password once, and then the token that it was given.

A token stands for connections to the stores of all members, as that user: what the user may do is
decided by the stores, for each request.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Callable
from typing import Generic, NamedTuple, Protocol, TypeVar

from quorumlog.errors import ConfigError, NotAuthenticated, Overloaded
from quorumlog.kv.errors import InvalidRequest
from quorumlog.net.credentials import ClientUser

KEPT_S = 300.0
"""So long after it was last used, as etcd keeps its own."""
MOST_LOGINS = 256
MOST_OF_USER = 16
MOST_BEGINNING = 16
"""At a time: each costs a store the proof of a password."""
MOST_BEGINNING_OF_ADDRESS = 8


class UserConnections(Protocol):
    """To stores and logs, as one user."""

    async def prove(self) -> None:
        """That the stores know the user. Raises NotAuthenticated."""

    async def close(self) -> None: ...


U = TypeVar("U", bound=UserConnections)


class _Login(NamedTuple, Generic[U]):
    name: str
    connections: U
    used_s: float


class Logins(Generic[U]):
    def __init__(self, connect_as: Callable[[ClientUser], U]) -> None:
        self._connect_as = connect_as
        self._of_token: dict[str, _Login[U]] = {}
        """The one that was used last stands last."""
        self._beginning = Counter[str]()
        """By address."""
        self._closing: set[asyncio.Task[None]] = set()

    def connections_of(self, token: str) -> U:
        """Raises NotAuthenticated."""
        self._forget_unused()
        if token not in self._of_token:
            raise NotAuthenticated(
                "log in again: this token is not known here, or was not used for long"
            )
        login = self._of_token.pop(token)
        self._of_token[token] = login._replace(used_s=time.monotonic())
        return login.connections

    async def begin(self, name: str, password: str, host: str) -> str:
        """The token. `host`: who asks, by its address. Raises LedgerError."""
        if not (name and password):
            raise InvalidRequest("name and password are text, and not empty")
        try:
            user = ClientUser(name, password)
        except ConfigError as error:  # no user has such a name, or such a password
            raise NotAuthenticated(str(error)) from None
        if (
            self._beginning.total() >= MOST_BEGINNING
            or self._beginning[host] >= MOST_BEGINNING_OF_ADDRESS
        ):
            raise Overloaded(f"{self._beginning.total()} passwords are being looked at")
        connections = self._connect_as(user)
        self._beginning[host] += 1
        try:
            await connections.prove()
            self._make_room(name)
        except BaseException:
            self._close(connections)
            raise
        finally:
            self._beginning -= Counter([host])
        token = secrets.token_urlsafe(24)
        self._of_token[token] = _Login(name, connections, time.monotonic())
        return token

    def _make_room(self, name: str) -> None:
        """Nobody is logged out by another user. Raises Overloaded."""
        self._forget_unused()
        own = [token for token, login in self._of_token.items() if login.name == name]
        if len(own) < MOST_OF_USER and len(self._of_token) < MOST_LOGINS:
            return
        if not own:
            raise Overloaded(f"{MOST_LOGINS} other logins are in use")
        self._end(own[0])

    def _forget_unused(self) -> None:
        before_s = time.monotonic() - KEPT_S
        for token, login in list(self._of_token.items()):
            if login.used_s >= before_s:
                break
            self._end(token)

    def _end(self, token: str) -> None:
        self._close(self._of_token.pop(token).connections)

    def _close(self, connections: U) -> None:
        task = asyncio.get_running_loop().create_task(connections.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        for token in list(self._of_token):
            self._end(token)
        await asyncio.gather(*self._closing)
