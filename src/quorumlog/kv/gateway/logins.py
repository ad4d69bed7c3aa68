"""Logins: who a client of etcd is. It says its password once, and then the token that it was given.

A token stands for connections of the gateway to the stores, as that user: what the user may do is
decided there, for each request.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable

from quorumlog.errors import ConfigError, NotAuthenticated, Overloaded
from quorumlog.kv.errors import InvalidRequest
from quorumlog.kv.gateway.etcd_json import Given, known
from quorumlog.kv.gateway.routes import Routes
from quorumlog.net.credentials import ClientUser

KEPT_S = 300.0
"""So long after it was last used, as etcd keeps its own."""
MOST_LOGINS = 256
MOST_BEGINNING = 16
"""At a time: each costs a store the proof of a password."""


class Logins:
    def __init__(self, routes_as: Callable[[ClientUser], Routes]) -> None:
        self._routes_as = routes_as
        self._of_token: dict[str, tuple[Routes, float]] = {}
        """And when it was last used; that one stands last."""
        self._beginning = 0
        self._closing: set[asyncio.Task[None]] = set()

    def routes_of(self, token: str) -> Routes:
        """Raises NotAuthenticated."""
        self._forget(KEPT_S)
        if token not in self._of_token:
            raise NotAuthenticated(
                "log in again: this token is not known here, or was not used for long"
            )
        routes, _ = self._of_token.pop(token)
        self._of_token[token] = routes, time.monotonic()
        return routes

    async def begin(self, given: Given) -> str:
        """The token. Raises LedgerError."""
        given = known(given, "name", "password")
        name, password = given.get("name"), given.get("password")
        if not (isinstance(name, str) and name and isinstance(password, str) and password):
            raise InvalidRequest("name and password are text, and not empty")
        if self._beginning >= MOST_BEGINNING:
            raise Overloaded(f"{MOST_BEGINNING} passwords are being looked at")
        try:
            user = ClientUser(name, password)
        except ConfigError as error:  # no user has such a name, or such a password
            raise NotAuthenticated(str(error)) from None
        routes = self._routes_as(user)
        self._beginning += 1
        try:
            await routes.prove()
        except BaseException:
            self._close(routes)
            raise
        finally:
            self._beginning -= 1
        self._forget(KEPT_S, MOST_LOGINS - 1)
        token = secrets.token_urlsafe(24)
        self._of_token[token] = routes, time.monotonic()
        return token

    def _forget(self, kept_s: float, most: int = MOST_LOGINS) -> None:
        before_s = time.monotonic() - kept_s
        for token, (routes, used_s) in list(self._of_token.items()):
            if used_s >= before_s and len(self._of_token) <= most:
                break
            del self._of_token[token]
            self._close(routes)

    def _close(self, routes: Routes) -> None:
        task = asyncio.get_running_loop().create_task(routes.client.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        self._forget(0.0, 0)
        await asyncio.gather(*self._closing)
