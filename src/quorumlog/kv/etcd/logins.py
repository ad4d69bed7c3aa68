"""Logins of a port: etcd's clients send their password once, then the token, to any member. Tokens are
verified in `net/logins.py`. A token gives access to connections to the stores of all members as that
user; the stores check the user's rights for each request.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from quorumlog.errors import ConfigError, LeaderNotReady, NotAuthenticated, Overloaded
from quorumlog.kv.errors import InvalidRequest
from quorumlog.kv.requests import LoginRequest
from quorumlog.net.access import Access
from quorumlog.net.credentials import ClientUser, TokenUser, verifier_for
from quorumlog.net.logins import Login, new_token, token_of

MOST_BEGINNING = 16
"""Most logins at a time: each costs the members the check of a password."""
MOST_BEGINNING_OF_ADDRESS = 8
MOST_TELLING = 64
"""Most logins that are sent to the other members at a time: one of these may be silent. Further logins
are sent to the leader only."""


class UserConnections(Protocol):
    """Connections to stores and logs as one user."""

    async def tell_leader(self, login: LoginRequest) -> None:
        """Send the login to the leader. Raises NotAuthenticated, LedgerError."""

    async def tell_members(self, login: LoginRequest) -> None:
        """Send the login to the other members that answer soon."""

    @property
    def is_in_use(self) -> bool:
        """A client's stream uses the connections."""

    def revoke(self) -> None:
        """End all calls: the user has another password, or was removed."""

    async def close(self) -> None: ...


U = TypeVar("U", bound=UserConnections)


class Logins(Generic[U]):
    def __init__(self, connect_as: Callable[[str, ClientUser], U]) -> None:
        """`connect_as` gets a user's name and the credentials of its connections."""
        self._connect_as = connect_as
        self._access = Access()
        self._of_id: dict[str, U] = {}
        """Connections by login id, of the tokens used here."""
        self._beginning = Counter[str]()
        """Logins under way, by address."""
        self._wrong = Counter[str]()
        """Wrong passwords whose answer is delayed, by address."""
        self.telling = 0
        """Number of logins that are being sent to the other members."""
        self._closing: set[asyncio.Task[None]] = set()
        self._outlived: dict[U, Login] = {}
        """Connections of ended logins whose streams continue, until the password changes."""

    def open(self, access: Access) -> None:
        self._access = access
        access.logins.ended.append(self._ended)
        access.moved.append(self._moved)

    def _moved(self) -> None:
        users = self._access.users
        if users is None:
            return
        for connections, login in list(self._outlived.items()):
            user = users.user(login.user)
            if user is None or user.verifier != login.password:
                connections.revoke()
                del self._outlived[connections]

    def connections_of(self, token: str) -> U:
        """Raises NotAuthenticated."""
        said = token_of(token)
        login = self._access.logins.login_of(said)
        connections = self._of_id.get(login.login_id)
        if connections is None:
            try:
                user = TokenUser(said.login_id, said.secret)
            except ConfigError as error:  # what some client has called a secret
                raise NotAuthenticated(str(error)) from None
            connections = self._of_id[login.login_id] = self._connect_as(login.user, user)
        return connections

    async def begin(self, name: str, password: str, host: str) -> str:
        """Log in; returns the token. `host`: the client's address. Raises LedgerError."""
        if not (name and password):
            raise InvalidRequest("name and password must be text, not empty")
        if (
            self._beginning.total() >= MOST_BEGINNING
            or self._beginning[host] + self._wrong[host] >= MOST_BEGINNING_OF_ADDRESS
        ):
            raise Overloaded(f"{self._beginning.total()} passwords are being checked")
        try:
            user = ClientUser(name, password)
        except ConfigError as error:  # no user has such a name, or such a password
            raise NotAuthenticated(str(error)) from None
        connections = self._connect_as(name, user)
        self._beginning[host] += 1
        token = new_token()
        login = LoginRequest(
            login_id=token.login_id, digest=token.digest, verifier=verifier_for(token.secret)
        )
        try:
            try:
                await connections.tell_leader(login)
            finally:
                self._beginning -= Counter([host])
            if self.telling < MOST_TELLING:
                self.telling += 1
                try:
                    await connections.tell_members(login)
                finally:
                    self.telling -= 1
        finally:
            self._close(connections)
        if self._access.logins.find(token.login_id) is None:
            raise LeaderNotReady("this member does not know the login yet")
        return str(token)

    def wrong(self, host: str, pause_s: float) -> None:
        """A password was wrong. It counts for its address until its answer is sent, also if the client
        does not wait for that."""
        self._wrong[host] += 1

        def over() -> None:
            self._wrong -= Counter([host])

        asyncio.get_running_loop().call_later(pause_s, over)

    def _ended(self, login: Login) -> None:
        connections = self._of_id.pop(login.login_id, None)
        if connections is not None:
            outlived = {**self._outlived, connections: login}
            self._outlived = {each: of for each, of in outlived.items() if each.is_in_use}
            self._close(connections)

    def _close(self, connections: U) -> None:
        task = asyncio.get_running_loop().create_task(connections.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        if self._ended in self._access.logins.ended:
            self._access.logins.ended.remove(self._ended)
            self._access.moved.remove(self._moved)
        for connections in self._of_id.values():
            self._close(connections)
        self._of_id.clear()
        await asyncio.gather(*self._closing)
