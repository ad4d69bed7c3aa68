"""ClientUser: a client's user and password, proved without sending the password."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from operator import xor

from quorumlog.errors import ConfigError, NotAuthenticated
from quorumlog.log_state.users import (
    ITERATIONS,
    MOST_ITERATIONS,
    SALT_BYTES,
    USER_NAME,
    USER_NAMES,
    Verifier,
)
from quorumlog.net.hello import Challenge

PASSWORD_VARIABLE = "QUORUMLOG_PASSWORD"
MECHANISM = "SCRAM-SHA-256"
MOST_PASSWORD_BYTES = 1024
"""SCRAM's time grows with the password, on the client's loop."""


class ClientUser:
    """`connect(servers, user=ClientUser("alice", password_file="/run/secrets/alice"))`. The password is
    the file's first line, read again for each connection; or `password`, or else that of the environment
    variable QUORUMLOG_PASSWORD. Raises ConfigError."""

    __slots__ = ("_password", "name", "password_file")
    is_token = False

    def __init__(self, name: str, password: str | None = None, *, password_file: str = "") -> None:
        if not name:
            raise ConfigError("the name of the user is missing: --user NAME")
        if not re.match(USER_NAME, name):
            raise ConfigError(USER_NAMES.format(name[:80]))
        if password is not None and password_file:
            raise ConfigError("give a password or a file that has it, not both")
        self.name = name
        self.password_file = str(password_file)
        self._password = None if password is None else checked_password(password)
        if password is None and not password_file and PASSWORD_VARIABLE not in os.environ:
            raise ConfigError(
                f"user {name} has no password: name a file (--password-file), or set {PASSWORD_VARIABLE}"
            )

    def __repr__(self) -> str:
        return f"ClientUser({self.name!r})"

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return _from_file, (self.name, self.sent_file)

    @property
    def sent_file(self) -> str:
        """For another process; "": it has QUORUMLOG_PASSWORD. Raises ConfigError."""
        if self._password is not None:
            raise ConfigError("a password is not pickled for another process: use password_file")
        return self.password_file

    def password(self) -> str:
        """Raises ConfigError."""
        if self._password is not None:
            return self._password
        if self.password_file:
            return password_of(self.password_file)
        if PASSWORD_VARIABLE not in os.environ:
            raise ConfigError(f"{PASSWORD_VARIABLE} is not set any more")
        return checked_password(os.environ[PASSWORD_VARIABLE])


class TokenUser(ClientUser):
    """A user with a token (`net/logins.py`). A server that does not know it, as after a restart, never
    will: waiting calls end with NotAuthenticated, and the user logs in again."""

    __slots__ = ()
    is_token = True


def _from_file(name: str, password_file: str) -> ClientUser:
    return ClientUser(name, password_file=password_file)


def checked_password(password: str) -> str:
    """Raises ConfigError."""
    try:
        size_bytes = len(password.encode())
    except UnicodeEncodeError:
        raise ConfigError("a password is text, without lone surrogates") from None
    if not 0 < size_bytes <= MOST_PASSWORD_BYTES:
        raise ConfigError(f"a password has 1 to {MOST_PASSWORD_BYTES} bytes")
    return password


def password_of(path: str) -> str:
    """The first line of a file. Raises ConfigError."""
    try:
        with open(path, encoding="utf-8") as file:
            line = file.readline(MOST_PASSWORD_BYTES + 2)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise ConfigError(f"the password file {path} cannot be read: {reason}") from None
    password = line.rstrip("\r\n")
    if not password:
        raise ConfigError(f"the password file {path} has no password in its first line")
    return checked_password(password)


class Proof:
    """Of one connection: the response to each challenge."""

    def __init__(self, user: ClientUser) -> None:
        self._user = user
        self._steps = iter((self._first, self._final, self._checked))
        self.is_whole = False
        """The server has proved that it knows the user, too."""

    def answer(self, challenge: Challenge) -> bytes:
        """Raises NotAuthenticated, ConfigError."""
        from scramp import ScramException  # type: ignore[import-untyped, unused-ignore]

        step = next(self._steps, None)
        if challenge.mechanism != MECHANISM or step is None:
            raise NotAuthenticated(
                f"the server asks for {challenge.mechanism:.40}, which is not known here"
            )
        try:
            return step(challenge.data.decode())
        except (ScramException, ValueError, KeyError, IndexError, AssertionError):
            raise NotAuthenticated("the server does not prove that it knows the user") from None

    def _first(self, challenge: str) -> bytes:
        from scramp import ScramClient  # type: ignore[import-untyped, unused-ignore]

        self._client = ScramClient([MECHANISM], self._user.name, self._user.password())
        first: str = self._client.get_client_first()
        return first.encode()

    def _final(self, challenge: str) -> bytes:
        self._client.set_server_first(challenge)
        if not ITERATIONS <= self._client.iterations <= MOST_ITERATIONS:
            raise ValueError("so few make the password easy to guess, so many keep the client busy")
        # RFC 5802. That of scramp hashes in Python, which would hold the loop of who dials for ten times
        # as long.
        client = self._client
        salted = _salted(client.password, b64decode(client.salt), client.iterations)
        final = f"c=biws,r={client.nonce}"
        said = f"{client.client_first_bare},{client.server_first},{final}".encode()
        signature = hmac.digest(_stored_key(salted), said, "sha256")
        proof = bytes(map(xor, hmac.digest(salted, b"Client Key", "sha256"), signature))
        self._expected = hmac.digest(_server_key(salted), said, "sha256")
        return f"{final},p={b64encode(proof).decode()}".encode()

    def _checked(self, challenge: str) -> bytes:
        if not hmac.compare_digest(challenge.encode(), b"v=" + b64encode(self._expected)):
            raise ValueError("another signature")
        self.is_whole = True
        del self._client
        return b""


def verifier_for(password: str) -> Verifier:
    """The verifier that servers store. Raises ConfigError."""
    from scramp import ScramException  # type: ignore[import-untyped, unused-ignore]

    salt = os.urandom(SALT_BYTES)
    try:
        salted = _salted(password, salt, ITERATIONS)
    except ScramException:
        raise ConfigError("the password has characters that SCRAM does not allow (RFC 4013)") from None
    return Verifier(salt, ITERATIONS, _stored_key(salted), _server_key(salted))


def fits(password: str, verifier: Verifier) -> bool:
    """Takes a millisecond or two, in which other threads run."""
    from scramp import ScramException  # type: ignore[import-untyped, unused-ignore]

    try:
        salted = _salted(password, verifier.salt, verifier.iterations)
    except (ConfigError, ScramException):
        return False
    return hmac.compare_digest(_stored_key(salted), verifier.stored_key)


def _salted(password: str, salt: bytes, iterations: int) -> bytes:
    """Raises ConfigError, ScramException."""
    from scramp.core import saslprep  # type: ignore[import-untyped, unused-ignore]

    prepared = saslprep(checked_password(password)).encode()
    return hashlib.pbkdf2_hmac("sha256", prepared, salt, iterations)


def _stored_key(salted: bytes) -> bytes:
    return hashlib.sha256(hmac.digest(salted, b"Client Key", "sha256")).digest()


def _server_key(salted: bytes) -> bytes:
    return hmac.digest(salted, b"Server Key", "sha256")


_of_clients: list[ClientUser] = []


@contextmanager
def clients_are(user: ClientUser | None) -> Iterator[None]:
    """Those that are made meanwhile, in any thread, and are given none. None: they stay as they are."""
    if user is None:
        yield
        return
    _of_clients.append(user)
    try:
        yield
    finally:
        _of_clients.remove(user)


def user_of_clients() -> ClientUser | None:
    return _of_clients[-1] if _of_clients else None
