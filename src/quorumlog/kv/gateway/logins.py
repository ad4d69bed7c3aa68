"""Logins: who a client of etcd is. It says its password once, and then the token that it was given.

A token stands for connections of the gateway to the stores, as that user: what the user may do is
decided there, for each request.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from quorumlog.errors import ConfigError, NotAuthenticated, Overloaded
from quorumlog.kv.errors import InvalidRequest
from quorumlog.kv.gateway.etcd_json import JsonRequest, known
from quorumlog.kv.gateway.routes import Routes
from quorumlog.net.credentials import ClientUser

KEPT_S = 300.0
"""So long after it was last used, as etcd keeps its own."""
MOST_LOGINS = 256
MOST_OF_USER = 16
MOST_BEGINNING = 16
"""At a time: each costs a store the proof of a password."""
MOST_BEGINNING_OF_ADDRESS = 8


class _Login(NamedTuple):
    name: str
    routes: Routes
    used_s: float


class Logins:
    def __init__(self, routes_as: Callable[[ClientUser], Routes]) -> None:
        self._routes_as = routes_as
        self._of_token: dict[str, _Login] = {}
        """The one that was used last stands last."""
        self._beginning = Counter[str]()
        """By address."""
        self._closing: set[asyncio.Task[None]] = set()

    def routes_of(self, token: str) -> Routes:
        """Raises NotAuthenticated."""
        self._forget_unused()
        if token not in self._of_token:
            raise NotAuthenticated(
                "log in again: this token is not known here, or was not used for long"
            )
        login = self._of_token.pop(token)
        self._of_token[token] = login._replace(used_s=time.monotonic())
        return login.routes

    async def begin(self, given: JsonRequest, host: str) -> str:
        """The token. `host`: who asks, by its address. Raises LedgerError."""
        given = known(given, "name", "password")
        name, password = given.get("name"), given.get("password")
        if not (isinstance(name, str) and name and isinstance(password, str) and password):
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
        routes = self._routes_as(user)
        self._beginning[host] += 1
        try:
            await routes.prove()
            self._make_room(name)
        except BaseException:
            self._close(routes)
            raise
        finally:
            self._beginning -= Counter([host])
        token = secrets.token_urlsafe(24)
        self._of_token[token] = _Login(name, routes, time.monotonic())
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
        self._close(self._of_token.pop(token).routes)

    def _close(self, routes: Routes) -> None:
        task = asyncio.get_running_loop().create_task(routes.client.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        for token in list(self._of_token):
            self._end(token)
        await asyncio.gather(*self._closing)
