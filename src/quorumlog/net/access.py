"""The user of a connection and its rights: one answer for all ports of a process.

User      a certificate's, or one that has proved its password by SCRAM-SHA-256 in the greeting. A
          client announces it in its Hello; without either it is anonymous
Rights    on names (`log_state/users.py`). The rights a request needs are in its product's table,
          `server/clients/needs.py`, `kv/needs.py` and `broker/needs.py`; a request not listed
          there is refused
Known     the users are those of one group of the process, as far as it has committed. While that may
          lag behind other members, they are unknown, and every request is refused
Checked   at the first use, and cached until `generation` moves: with each change of users, and whenever
          they become known or unknown. Listeners (`moved`) end streams that lost their right
Off       until the log first has a user, every request is allowed
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

from quorumlog.errors import Forbidden, LeaderNotReady, LedgerError, NotAuthenticated
from quorumlog.log_state.users import (
    ITERATIONS,
    NO_RIGHTS,
    NO_USERS,
    SALT_BYTES,
    Kind,
    Right,
    Rights,
    Users,
    Verifier,
)
from quorumlog.net.connection import Connection
from quorumlog.net.credentials import MECHANISM
from quorumlog.net.hello import Challenge, Hello
from quorumlog.net.logins import Login, Logins
from quorumlog.net.quotas import Quotas
from quorumlog.net.tls import USER, Tls, principal_of

audit = logging.getLogger("quorumlog.audit")


def _on_one_line(record: logging.LogRecord) -> bool:
    """Whatever names a client gives."""
    text = record.getMessage()
    if not text.isprintable():
        text = "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)
    record.msg, record.args = text, ()
    return True


audit.addFilter(_on_one_line)

RETRY_UNKNOWN_MS = 200
WRONG = "the user or the password is wrong"
"""The same for both: user names are not revealed."""
WRONG_PAUSE_S = 1.0
"""So long a wrong password by HTTP waits for its answer: nobody tries many."""
NAMELESS = (
    "this server has users, and the connection named none: name one (--user and --password-file,"
    " user= in Python, or a certificate)"
)
MOST_KEPT = 1000
"""Names of one connection that it is known for whether it may."""
MOST_KEPT_NEEDS, MOST_KEPT_BYTES = 4, 256
"""Limits of the cache: beyond them rights are checked each time."""
TELL_OF_WRONG_S = 60.0
MOST_WRONG = 1000
"""Addresses of which that is known."""
MOST_SAID_BYTES = 80
"""Of a name, in a refusal and in the audit."""
MOST_SAID = 20
"""Refusals of one connection that the audit writes in words, until rights change."""

Challenging = Generator[Challenge, bytes, None]
"""The challenges after a Hello, one after the other; each is sent the answer. It ends when that
suffices, or raises the LedgerError that refuses."""


class Need(NamedTuple):
    """Of a request; several are all needed."""

    right: Right
    kind: Kind
    name: bytes = b""
    stop: bytes | None = b""
    """Of a range of names: where it ends; None: nowhere. Empty: `name` alone."""
    is_any: bool = False
    """On any name at all."""
    instead: Right | None = None
    """Does as well."""

    def is_met(self, rights: Rights) -> bool:
        if self.instead is not None and self._replace(right=self.instead, instead=None).is_met(rights):
            return True
        if self.is_any:
            return rights.may_some(self.right, self.kind)
        if self.stop == b"":
            return rights.may(self.right, self.kind, self.name)
        return rights.may_range(self.right, self.kind, self.name, self.stop)

    @property
    def size_bytes(self) -> int:
        return len(self.name) + len(self.stop or b"")

    def __str__(self) -> str:
        name = self.name[:MOST_SAID_BYTES].decode(errors="backslashreplace")
        if self.is_any:
            return f"{self.right} any {self.kind}"
        if self.kind is Kind.CLUSTER:
            return f"{self.right} cluster"
        words = f"{self.right} {self.kind} {name!r}"
        if self.stop is None:
            return f"{words} up to the last"
        stop = self.stop[:MOST_SAID_BYTES].decode(errors="backslashreplace")
        return f"{words} up to {stop!r}" if stop else words


CLUSTER_ADMIN = Need(Right.ADMIN, Kind.CLUSTER)
NOTHING: tuple[Need, ...] = ()


class Access:
    """Of a process. Everything is called on its loop."""

    def __init__(self) -> None:
        self.generation = 1
        self.users: Users | None = NO_USERS
        """None: not known."""
        self.last: Users | None = None
        """While they are unknown: the last known ones, for urgent requests (see `Caller.refusal`)."""
        self.is_blank: Callable[[], bool] = lambda: False
        """And nothing is stored here, and no users known: any client may set the master."""
        self._why = ""
        self.moved: list[Callable[[], None]] = []
        self.failures = 0
        """Users and passwords that were wrong."""
        self._unproven: set[Connection] = set()
        """Let in while there were no users, though they say that they are one."""
        self._proven_by_last: dict[Connection, tuple[str, Verifier]] = {}
        """A password that may have been changed since, and by what. Also while they prove it."""
        self.clock = time.monotonic
        self.good_until_s = math.inf
        """By that clock, unless somebody looks before: a process that was stopped has not."""
        self.quotas = Quotas()
        self.logins = Logins(lambda: self.clock())
        self._by_token: dict[Connection, Login] = {}
        """Connections that have proved one."""
        self._wrong: dict[str, tuple[float, int]] = {}
        """By address: when the audit told of a wrong password last, and how many there were since."""

    @property
    def is_on(self) -> bool:
        return self.users is None or self.users.is_on

    def learn(self, users: Users | None, why: str = "", last: Users | None = None) -> None:
        """`why`: they are not known, in a sentence. `last`: as they were then."""
        self._why = why
        if users is self.users and last is self.last:
            return
        self.users, self.last = users, last
        self.generation += 1
        again = self._disproved()
        if users is not None and users.is_on:
            passwords = {user.name: user.verifier for user in users.users}
            self.logins.learn(passwords)
            of = self._by_token.items()
            for each in [each for each, login in of if passwords.get(login.user) != login.password]:
                each.close()  # once it has the answer, if the change was its own
            # It takes 0.1 s: not at somebody's first greeting.
            import scramp  # type: ignore[import-untyped, unused-ignore] # noqa: F401

            again |= self._unproven
            self._unproven = set()
        for connection in again:
            connection.abort()  # it comes again, and proves it
        for tell in list(self.moved):
            tell()

    def _disproved(self) -> set[Connection]:
        """By users that are newer than those by whom they have proved who they are."""
        newest = self.users or self.last
        if newest is None or not newest.users:  # the first one may be who has proved it
            return set()
        of = self._proven_by_last
        found = {each for each, (name, by) in of.items() if newest.verifier_of(name) != by}
        kept = {} if self.users is not None else of
        self._proven_by_last = {each: kept[each] for each in kept.keys() - found}
        return found

    @property
    def is_overdue(self) -> bool:
        return self.clock() > self.good_until_s

    def lost(self, connection: Connection) -> None:
        self._unproven.discard(connection)
        self._proven_by_last.pop(connection, None)
        self._by_token.pop(connection, None)

    def log_in(self, connection: Any, login_id: str, digest: bytes, verifier: Verifier) -> None:
        """The user of the connection, which has proved its password there, has a token from now on.
        Raises NotAuthenticated, LeaderNotReady, Overloaded."""
        if self.users is None or self.is_overdue:
            raise self.unknown
        if (verifier.iterations, len(verifier.salt)) != (ITERATIONS, SALT_BYTES):
            # Members prove tokens to each other, on their loops: a million iterations take a second.
            raise NotAuthenticated(
                f"a token is hashed {ITERATIONS} times, with {SALT_BYTES} bytes of salt"
            )
        user, password = self.users.user(connection.user), connection.password
        if user is None or password is None or user.verifier != password:
            raise NotAuthenticated("a token is for who has proved the password that it has now")
        self.logins.add(Login(login_id, user.name, password, digest, verifier))

    @property
    def unknown(self) -> LedgerError:
        return LeaderNotReady(self._why or "the users are not known", retry_after_ms=RETRY_UNKNOWN_MS)

    def greet(self, connection: Connection, hello: Hello, tls: Tls | None) -> Challenging:
        """Greeting of a client. Sets its user. Raises LeaderNotReady, NotAuthenticated."""
        shown = principal_of(connection.certificate)
        if tls is not None and shown and shown.kind == USER and shown.cluster in ("", tls.cluster):
            connection.user = shown.name
        if not hello.user or (hello.looks and self.users is None):
            return
        connection.user = ""
        users = self.users or self.last
        if users is None:
            raise self.unknown
        if not users.is_on:
            self._unproven.add(connection)
            return
        login = self.logins.find(hello.user) if users.user(hello.user) is None else None
        if login is None:
            name, password = hello.user, users.verifier_of(hello.user)
        else:
            name, password = login.user, login.password
        if self.users is None:
            self._proven_by_last[connection] = name, password
        verifier = password if login is None else login.verifier
        yield from self._prove(users, hello.user, verifier, connection)
        if login is None:
            connection.password = password
        else:
            self.logins.use(login)
            self._by_token[connection] = login
        connection.user = name

    def _prove(self, users: Users, name: str, verifier: Verifier, connection: Connection) -> Challenging:
        """`verifier`: of that name; of others as `users` says."""
        from scramp import ScramMechanism  # type: ignore[import-untyped, unused-ignore]

        def known(claimed: str) -> tuple[bytes, bytes, bytes, int]:
            found = verifier if claimed == name else users.verifier_of(claimed)
            return found.salt, found.stored_key, found.server_key, found.iterations

        server = ScramMechanism(MECHANISM).make_server(known)
        try:
            server.set_client_first((yield Challenge(mechanism=MECHANISM)).decode())
            first = server.get_server_first().encode()
            server.set_client_final((yield Challenge(mechanism=MECHANISM, data=first)).decode())
            if server.user != name:
                raise ValueError("another name than in the Hello")
        except Exception:  # whatever is wrong with it: what a client says is no secret of ours
            self.tell_of_wrong(name, connection.peer_name)
            raise NotAuthenticated(WRONG) from None
        yield Challenge(mechanism=MECHANISM, data=server.get_server_final().encode())

    def tell_of_wrong(self, name: str, peer_name: str) -> None:
        """Once a minute for an address."""
        self.failures += 1
        address, now_s = peer_name.rpartition(":")[0], self.clock()
        since_s, more = self._wrong.get(address, (-math.inf, 0))
        if now_s - since_s < TELL_OF_WRONG_S:
            self._wrong[address] = since_s, more + 1
            return
        if len(self._wrong) >= MOST_WRONG:
            del self._wrong[next(iter(self._wrong))]
        self._wrong[address] = now_s, 0
        since = f" ({more} more from there since the last such line)" if more else ""
        audit.warning("%.80r at %s is not let in: %s%s", name, peer_name, WRONG, since)


EVERYBODY = Access()
"""Of a port that has no users."""


class Caller:
    """Of one connection."""

    __slots__ = (
        *("_access", "_connection", "_kept", "_noted", "_rights", "_unsaid"),
        *("is_user", "open_in"),
    )

    def __init__(self, access: Access, connection: Any) -> None:
        """`connection`: its `user` and `peer_name`."""
        self._access = access
        self._connection = connection
        self._kept: tuple[int, set[Any]] = (0, set())
        """The generation, and what was met in it."""
        self._rights = NO_RIGHTS
        self.is_user = False
        """As of when `is_checked` was asked."""
        self._noted: set[str] = set()
        self._unsaid = 0
        """Refusals in the audit in this generation, and how many more there were."""
        self.open_in = 0
        """The generation in which everybody may do everything. For a hot path: if it is that of the
        access, there is nothing to check."""

    @property
    def is_checked(self) -> bool:
        """False: every request is allowed."""
        access = self._access
        if self._kept[0] != access.generation:
            self._kept = access.generation, set()
            self._noted, self._unsaid = set(), 0
            if access.users is not None and not access.users.is_on:
                self.open_in = access.generation
            else:
                users, name = access.users or access.last or NO_USERS, self._connection.user
                self.is_user = users.user(name) is not None
                self._rights = users.rights_of(name)
        return self.open_in != access.generation

    @property
    def has_name(self) -> bool:
        """It is a user, as far as is known by now."""
        return self.is_checked and self.is_user

    @property
    def is_admin(self) -> bool:
        return self.is_checked and self._rights.is_admin

    @property
    def who(self) -> tuple[str, str]:
        """User and address, for the audit."""
        return self._connection.user, self._connection.peer_name

    def passes(self, key: object) -> bool:
        """Whether `refusal(key, ...)` was None, in this generation."""
        generation, met = self._kept
        if generation != self._access.generation:
            return not self.is_checked
        return self.open_in == generation or (key in met and not self._access.is_overdue)

    def stranger(self) -> LedgerError | None:
        """The refusal of every request of a client that is no user, or not known to be one."""
        if not self.is_checked:
            return None
        access, user = self._access, self._connection.user
        if access.users is None or access.is_overdue:
            return access.unknown
        if self.is_user:
            return None
        name = repr(user)[:MOST_SAID_BYTES]
        self._note(f"user {name}" if user else "nobody", "refused, as no user")
        return NotAuthenticated(f"{name} is no user here" if user else NAMELESS)

    def refusal(
        self, key: object, needs: tuple[Need, ...] | None, *, may_be_old: bool = False
    ) -> LedgerError | None:
        """The refusal, or None. `key`: of the cache. `needs`: None: refused to all. `may_be_old`: while
        the users are unknown, an administrator by the last known ones is allowed."""
        if not self.is_checked:
            return None
        if may_be_old and self.is_admin and self._access.last is not None:
            return None
        stranger, user = self.stranger(), self._connection.user
        if stranger is not None:
            return stranger
        kept, missing = self._kept[1], CLUSTER_ADMIN
        if needs is not None:
            size_bytes = sum(need.size_bytes for need in needs)
            is_small = len(needs) <= MOST_KEPT_NEEDS and size_bytes <= MOST_KEPT_BYTES
            if is_small and key in kept:
                return None
            unmet = next((need for need in needs if not need.is_met(self._rights)), None)
            if unmet is None:
                if len(kept) >= MOST_KEPT:
                    kept.clear()
                if is_small:
                    kept.add(key)
                return None
            missing = unmet
        refused = f"user {user} may not {missing}"
        self._note(refused, "refused")
        return Forbidden(f"{refused}: an administrator may grant it (quorumlog grant)")

    def _note(self, subject: str, what: str) -> None:
        """Once in a generation."""
        if subject in self._noted:
            return
        if len(self._noted) < MOST_SAID:
            self._noted.add(subject)
            audit.warning("%s at %s: %s", subject, self._connection.peer_name, what)
            return
        self._unsaid += 1
        if self._unsaid & (self._unsaid - 1) == 0:  # 1, 2, 4, 8 ...
            user, at = self.who
            audit.warning("user %.80r at %s: %d more were refused", user, at, self._unsaid)
