"""Authentication of the admin port: by HTTP's basic authentication, or a certificate."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import secrets
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from quorumlog.log_state.users import Kind, Right, Users, Verifier
from quorumlog.net.access import NAMELESS, WRONG, WRONG_PAUSE_S, Need
from quorumlog.net.credentials import MOST_PASSWORD_BYTES, fits
from quorumlog.net.tls import USER, Tls, principal_of

NEED = Need(Right.READ, Kind.CLUSTER)
ASKING = {"WWW-Authenticate": 'Basic realm="quorumlog", charset="UTF-8"'}
MOST_CHECKS = 8
"""Passwords of one address that are being checked, or were wrong in the last second."""
Refusal = tuple[int, str]
"""Status of HTTP, and why."""


class Lookers:
    def __init__(self, tls: Tls | None, *, is_loopback: bool, wrong: Callable[[str, str], None]) -> None:
        """`wrong`: called with the user's name and address after a wrong password."""
        self._tls = tls
        self._takes_passwords = tls is not None or is_loopback
        self._wrong = wrong
        self._proven: dict[str, tuple[Verifier, bytes]] = {}
        """By user: what a password was checked by, and a hash of that password."""
        self._salt = secrets.token_bytes(16)
        self._checks = Counter[str]()
        """By address."""

    async def refusal(
        self, users: Users | None, headers: Mapping[str, str], certificate: Any, peer_name: str
    ) -> Refusal | None:
        """None: it may look."""
        if users is None:
            return 503, "the users of this cluster are not known here yet"
        if not users.is_on:
            return None
        shown = principal_of(certificate)
        name: str | None = None
        if self._tls is not None and shown and shown.kind == USER:
            name = shown.name if shown.cluster in ("", self._tls.cluster) else None
        credentials = _said(headers.get("Authorization", ""))
        if credentials is not None and not self._takes_passwords:
            return 403, "passwords are taken with TLS or on the loopback interface alone"
        if credentials is not None:
            host = peer_name.rpartition(":")[0]
            is_right = await self._proves(users, *credentials, host)
            if is_right is None:
                return 429, "too many passwords are being checked, or were wrong a moment ago"
            if not is_right:
                self._wrong(credentials[0], peer_name)
                await asyncio.sleep(WRONG_PAUSE_S)
                return 401, WRONG
            name = credentials[0]
        if name is None or users.user(name) is None:
            return 401, NAMELESS
        if not NEED.is_met(users.rights_of(name)):
            return 403, f"user {name} may not {NEED}: an administrator may grant it (quorumlog grant)"
        return None

    async def _proves(self, users: Users, name: str, password: str, host: str) -> bool | None:
        """None: too many passwords of this address are being checked."""
        verifier = users.verifier_of(name)
        proof = verifier, hashlib.sha256(self._salt + password.encode()).digest()
        if self._proven.get(name) == proof:
            return True
        if self._checks[host] >= MOST_CHECKS:
            return None
        self._checks[host] += 1
        is_right = False
        try:
            is_right = await asyncio.to_thread(fits, password, verifier)
        finally:  # also if the client does not wait for the answer
            if is_right:
                self._over(host)
            else:
                asyncio.get_running_loop().call_later(WRONG_PAUSE_S, self._over, host)
        if is_right:
            self._proven[name] = proof
        return is_right

    def _over(self, host: str) -> None:
        self._checks -= Counter([host])


def _said(header: str) -> tuple[str, str] | None:
    """User and password."""
    scheme, _, encoded = header.partition(" ")
    if scheme.lower() != "basic" or len(encoded) > 2 * MOST_PASSWORD_BYTES:
        return None
    try:
        name, colon, password = base64.b64decode(encoded).decode().partition(":")
    except ValueError:
        return None
    return (name, password) if colon else None
