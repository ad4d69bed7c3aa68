"""Logins: tokens for users of etcd clients that have proved their password once.

A token is an id and a secret. The member that accepts a login draws both at random and sends every
member, as that user, a verifier of the secret, which is kept in memory only. Neither the verifier, nor
the log, nor a backup suffices to use the token. At the ports of the log and the store a token is a name
and a password, proved by SCRAM as any other; the connection has the rights of its user.

A login ends after `KEPT_S` without use, when newer ones of its user need its place, with the process,
and at every member once the password changes or the user is removed.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from quorumlog.errors import NotAuthenticated, Overloaded
from quorumlog.log_state.users import Verifier

KEPT_S = 300.0
"""Seconds that a login is kept after its last use at a member; as in etcd."""
MOST_LOGINS = 2_048
MOST_OF_USER = 128
LOGIN_ID = r"^login-[0-9a-f]{32}\Z"
DIGEST_BYTES = 32
MOST_TOKEN_CHARACTERS = 256
"""Longer text is not a token."""
UNKNOWN = "log in again: this token is not known here, or was not used for long"


class Token(NamedTuple):
    login_id: str
    secret: str

    def __str__(self) -> str:
        return f"{self.login_id}.{self.secret}"

    def __repr__(self) -> str:
        return f"Token({self.login_id!r})"

    @property
    def digest(self) -> bytes:
        return hashlib.sha256(self.secret.encode(errors="replace")).digest()


def new_token() -> Token:
    return Token(f"login-{secrets.token_hex(16)}", secrets.token_urlsafe(32))


def token_of(text: str) -> Token:
    """The token in a client's text, unchecked."""
    login_id, _, secret = text[:MOST_TOKEN_CHARACTERS].partition(".")
    return Token(login_id, secret)


@dataclass(slots=True, eq=False)
class Login:
    login_id: str
    user: str
    password: Verifier
    """Verifier of the user's password, as it was proved."""
    digest: bytes
    """SHA-256 of the secret."""
    verifier: Verifier
    """Verifier of the secret, for SCRAM."""
    used_s: float = 0.0


class Logins:
    """The logins of a process. All methods are called on its loop."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock`: seconds."""
        self._clock = clock
        self._of_id: dict[str, Login] = {}
        """By id, the least recently used first."""
        self.ended: list[Callable[[Login], None]] = []
        """Called with each login that ends."""

    def add(self, login: Login) -> None:
        """Raises NotAuthenticated, Overloaded."""
        self._forget_unused()
        known = self._of_id.get(login.login_id)
        if known is None:
            self._make_room(login.user)
            login.used_s = self._clock()
            self._of_id[login.login_id] = login
        elif (known.user, known.digest) != (login.user, login.digest):
            raise NotAuthenticated("there is another login with this id")

    def _make_room(self, user: str) -> None:
        """Remove the user's own oldest login; logins of other users stay. Raises Overloaded."""
        own = [each for each in self._of_id.values() if each.user == user]
        if len(own) < MOST_OF_USER and len(self._of_id) < MOST_LOGINS:
            return
        if not own:
            raise Overloaded(f"{MOST_LOGINS} other logins are in use")
        self._end(own[0])

    def find(self, login_id: str) -> Login | None:
        self._forget_unused()
        return self._of_id.get(login_id)

    def use(self, login: Login) -> None:
        """Record a use: the secret was proved. Raises NotAuthenticated."""
        if self.find(login.login_id) is not login:
            raise NotAuthenticated(UNKNOWN)
        del self._of_id[login.login_id]
        login.used_s = self._clock()
        self._of_id[login.login_id] = login

    def login_of(self, token: Token) -> Login:
        """Raises NotAuthenticated."""
        login = self.find(token.login_id)
        if login is None or not hmac.compare_digest(login.digest, token.digest):
            raise NotAuthenticated(UNKNOWN)
        self.use(login)
        return login

    def learn(self, passwords: Mapping[str, Verifier | None]) -> None:
        """Set the present users and the verifiers of their passwords."""
        for login in list(self._of_id.values()):
            if passwords.get(login.user) != login.password:
                self._end(login)

    def _forget_unused(self) -> None:
        before_s = self._clock() - KEPT_S
        while self._of_id:
            login = next(iter(self._of_id.values()))
            if login.used_s > before_s:
                return
            self._end(login)

    def _end(self, login: Login) -> None:
        del self._of_id[login.login_id]
        for tell in list(self.ended):
            tell(login)
