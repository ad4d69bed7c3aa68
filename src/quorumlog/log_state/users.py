"""Authorization: users, roles and the grants of roles, as computed from the log.

A right is read, write or admin on a kind of thing and a name of it; a grant is of one name, or of all
that begin with its prefix. Rights are independent, except that admin includes the other two, and admin
on the cluster is every right on everything. The role `admin` has it and always exists. Anything not
granted is refused.

Once a user existed, authentication stays on: with no user left, every request is refused.
"""

from __future__ import annotations

import hashlib
import hmac
from bisect import bisect_right
from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated, NamedTuple, TypeVar

import msgspec
from msgspec import Meta

from quorumlog.errors import BadRequest

USER_NAME = r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}\Z"
USER_NAMES = (
    "a user or a role has a name of 1 to 64 letters, digits, dots, dashes, @ and underscores, which"
    " begins with a letter or a digit, unlike {!r}"
)
UserName = Annotated[str, Meta(pattern=USER_NAME)]
MOST_PREFIX_BYTES = 1024
MOST_GRANTS = 256
"""Of a role."""
MOST_ROLES = 64
"""Of a user."""
MOST_USERS_BYTES = 1 << 20
"""Of all users and roles, as a record of the log's state has them: a change that would take more is
refused."""
KEY_BYTES = 32
SALT_BYTES = 16
ITERATIONS = 4096
MOST_ITERATIONS = 1_000_000
ADMINISTRATORS = "admin"
"""The role that is always there."""


class Right(StrEnum):
    READ = "read"
    WRITE = "write"
    ADMIN = "admin"


class Kind(StrEnum):
    LOG = "log"
    """A group, by its name."""
    TOPIC = "topic"
    CONSUMER_GROUP = "consumer-group"
    """Of a broker; of a log a reader that it knows by name."""
    KEY = "key"
    CLUSTER = "cluster"
    """Members, users, the log's clock; it has one name, which is empty."""


class _Value(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    def __repr__(self) -> str:
        fields = (
            f"{name}={getattr(self, name)!r}" for name in self.__struct_fields__ if name != "secret"
        )
        return f"{type(self).__name__}({', '.join(fields)})"


class RoleGrant(_Value, frozen=True, order=True):
    right: Right
    kind: Kind
    prefix: Annotated[bytes, Meta(max_length=MOST_PREFIX_BYTES)] = b""
    is_exact: bool = False
    """Of the one name that is `prefix`."""

    def __str__(self) -> str:
        name = self.prefix.decode(errors="backslashreplace") + "*" * (not self.is_exact)
        return f"{self.right} {self.kind}" + f" {name}" * (self.kind is not Kind.CLUSTER)

    @property
    def bounds(self) -> tuple[bytes, bytes | None]:
        """Of the names: from the first one on, to before the second; None: there is no end."""
        if self.is_exact:
            return self.prefix, self.prefix + b"\0"
        stem = self.prefix.rstrip(b"\xff")
        return self.prefix, stem[:-1] + bytes([stem[-1] + 1]) if stem else None


class UserRole(_Value, frozen=True):
    name: UserName
    grants: Annotated[tuple[RoleGrant, ...], Meta(max_length=MOST_GRANTS)] = ()
    """In order."""


Key = Annotated[bytes, Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)]


class Verifier(_Value, frozen=True):
    """The data that SCRAM-SHA-256 checks a password by. It does not reveal the password."""

    salt: Annotated[bytes, Meta(min_length=16, max_length=64)]
    iterations: Annotated[int, Meta(ge=1, le=MOST_ITERATIONS)]
    stored_key: Key
    server_key: Key

    def __repr__(self) -> str:
        return "Verifier(...)"


class User(_Value, frozen=True):
    name: UserName
    roles: Annotated[tuple[UserName, ...], Meta(max_length=MOST_ROLES)] = ()
    """In order."""
    verifier: Verifier | None = None
    """None: known by a certificate alone."""


class Rights:
    """Of one user, at one time."""

    def __init__(self, grants: Iterable[RoleGrant]) -> None:
        self._grants = tuple(grants)
        self.is_admin = any(g.right is Right.ADMIN and g.kind is Kind.CLUSTER for g in self._grants)
        self._known: dict[tuple[Right, Kind], tuple[list[bytes], list[bytes | None]]] = {}

    def _spans(self, right: Right, kind: Kind) -> tuple[list[bytes], list[bytes | None]]:
        """Where they begin, in order, and where they end; none touches another."""
        known = self._known.get((right, kind))
        if known is None:
            rights = (right, Right.ADMIN)
            begins, ends = known = self._known[right, kind] = [], []
            bounds = [each.bounds for each in self._grants if each.kind is kind and each.right in rights]
            for low, high in sorted(bounds, key=lambda each: each[0]):
                if not ends or (ends[-1] is not None and low > ends[-1]):
                    begins.append(low)
                    ends.append(high)
                elif ends[-1] is not None:
                    ends[-1] = None if high is None else max(ends[-1], high)
        return known

    def may(self, right: Right, kind: Kind, name: bytes) -> bool:
        return self.may_range(right, kind, name, name + b"\0")

    def may_range(self, right: Right, kind: Kind, first: bytes, stop: bytes | None) -> bool:
        """Of all names from `first` on to before `stop` (None: there is no end), which may lie in
        grants side by side."""
        if self.is_admin:
            return True
        begins, ends = self._spans(right, kind)
        place = bisect_right(begins, first) - 1
        if place < 0:
            return False
        end = ends[place]
        return end is None or (stop is not None and end >= stop)

    def may_some(self, right: Right, kind: Kind) -> bool:
        """Of any name at all."""
        return self.is_admin or bool(self._spans(right, kind)[0])


NO_RIGHTS = Rights(())
_ADMINISTRATORS = UserRole(ADMINISTRATORS, (RoleGrant(Right.ADMIN, Kind.CLUSTER),))


N = TypeVar("N", User, UserRole)


class Reach(NamedTuple):
    """One way in which a user has a right."""

    user: str
    role: str
    grant: RoleGrant


class Users(_Value, frozen=True):
    is_on: bool = False
    secret: Annotated[bytes, Meta(max_length=KEY_BYTES)] = b""
    """Drawn with the first user: makes answers for unknown names look like a user's."""
    users: tuple[User, ...] = ()
    roles: tuple[UserRole, ...] = ()
    """Both by name."""

    def user(self, name: str) -> User | None:
        return next((user for user in self.users if user.name == name), None)

    def role(self, name: str) -> UserRole | None:
        if name == ADMINISTRATORS:
            return _ADMINISTRATORS
        return next((role for role in self.roles if role.name == name), None)

    def rights_of(self, name: str) -> Rights:
        """None of them where there is no such user."""
        user = self.user(name)
        if user is None:
            return NO_RIGHTS
        roles = [role for each in user.roles if (role := self.role(each)) is not None]
        return Rights(grant for role in roles for grant in role.grants)

    def who_can(self, right: Right, kind: Kind, name: bytes) -> list[Reach]:
        return [
            Reach(user.name, role.name, grant)
            for user in self.users
            for each in user.roles
            if (role := self.role(each)) is not None
            for grant in role.grants
            if Rights((grant,)).may(right, kind, name)
        ]

    @property
    def has_administrator(self) -> bool:
        return any(self.rights_of(user.name).is_admin for user in self.users)

    def verifier_of(self, name: str) -> Verifier:
        """Without a verifier, a constant one that no password fits."""
        user = self.user(name)
        salt, *keys = (
            hmac.digest(self.secret, f"{use} of {name}".encode(errors="replace"), hashlib.sha256)
            for use in ("salt", "stored key", "server key")
        )
        none = Verifier(salt[:SALT_BYTES], ITERATIONS, *keys)  # made of each, so that it takes as long
        return none if user is None or user.verifier is None else user.verifier

    def changed(self, change: UsersChange) -> Users:
        gone_users = {user.name for user in change.users} | set(change.gone_users)
        gone_roles = {role.name for role in change.roles} | set(change.gone_roles)
        users, roles = ((), ()) if change.clears else (self.users, self.roles)
        return Users(
            True,
            self.secret or change.secret,
            _by_name((*(each for each in users if each.name not in gone_users), *change.users)),
            _by_name((*(each for each in roles if each.name not in gone_roles), *change.roles)),
        )

    @property
    def size_bytes(self) -> int:
        return len(_encode(self))


def _by_name(values: tuple[N, ...]) -> tuple[N, ...]:
    """Of two of one name the last."""
    named = {each.name: each for each in values}
    return tuple(named[name] for name in sorted(named))


class UsersChange(_Value, frozen=True):
    """A USERS entry: users and roles that are changed from here on, and those that are removed."""

    users: Annotated[tuple[User, ...], Meta(max_length=MOST_ROLES)] = ()
    roles: Annotated[tuple[UserRole, ...], Meta(max_length=MOST_ROLES)] = ()
    gone_users: Annotated[tuple[UserName, ...], Meta(max_length=MOST_ROLES)] = ()
    gone_roles: Annotated[tuple[UserName, ...], Meta(max_length=MOST_ROLES)] = ()
    secret: Annotated[bytes, Meta(max_length=KEY_BYTES)] = b""
    """Counts in the first one."""
    clears: bool = False
    """All that were there are gone first, as a restore leaves them out: nobody may do anything then."""


class UserOperation(StrEnum):
    ADD_USER = "add-user"
    SET_PASSWORD = "set-password"
    REMOVE_USER = "remove-user"
    GIVE_ROLES = "give-roles"
    TAKE_ROLES = "take-roles"
    ADD_ROLE = "add-role"
    REMOVE_ROLE = "remove-role"
    GRANT = "grant"
    REVOKE = "revoke"
    INIT_ADMIN = "init-admin"
    """The first administrator, regardless of existing users."""
    RESET_ADMIN = "reset-admin"
    """An administrator beside those that there are, or with a new password."""


class UserOrder(_Value, frozen=True):
    """A change that an administrator requests."""

    verb: UserOperation
    name: UserName
    """Of the user, or of the role."""
    roles: Annotated[tuple[UserName, ...], Meta(max_length=MOST_ROLES)] = ()
    grants: Annotated[tuple[RoleGrant, ...], Meta(max_length=MOST_GRANTS)] = ()
    verifier: Verifier | None = None

    @property
    def words(self) -> str:
        """Without a secret."""
        return " ".join(map(str, (self.verb, self.name, *self.roles, *self.grants)))


def checked_order(order: UserOrder) -> UserOrder:
    """As a log can say it. Raises BadRequest."""
    try:
        return msgspec.msgpack.decode(_encode(order), type=UserOrder)
    except (msgspec.ValidationError, TypeError) as error:
        raise BadRequest(f"{USER_NAMES.format(order.name)} ({error})") from None


def has_become_admin(users: Users, order: UserOrder) -> bool:
    user = users.user(order.name)
    return user is not None and user.verifier == order.verifier and users.rights_of(user.name).is_admin


def change_of(users: Users, order: UserOrder, secret: bytes) -> UsersChange:
    """`secret`: drawn for this. Raises BadRequest."""
    verifier = order.verifier
    if verifier is not None and (verifier.iterations, len(verifier.salt)) != (ITERATIONS, SALT_BYTES):
        # Else it could be told from what names that nobody has are answered with.
        raise BadRequest(f"a password is hashed {ITERATIONS} times, with a salt of {SALT_BYTES} bytes")
    change = msgspec.structs.replace(_change_of(users, order), secret=b"" if users.secret else secret)
    after = users.changed(change)
    if not after.has_administrator:
        raise BadRequest(
            "there would be no administrator: the first user needs the role"
            f" {ADMINISTRATORS}, and the last one keeps it"
        )
    if after.size_bytes > MOST_USERS_BYTES:
        raise BadRequest(f"all users and roles take {MOST_USERS_BYTES} bytes at most: remove some")
    return change


def _change_of(users: Users, order: UserOrder) -> UsersChange:
    operation, name = order.verb, order.name
    user, role = users.user(name), users.role(name)
    if operation in (UserOperation.INIT_ADMIN, UserOperation.RESET_ADMIN):
        if users.has_administrator and operation is UserOperation.INIT_ADMIN:
            raise BadRequest("there is an administrator, which adds users; a reset makes another one")
        roles = {ADMINISTRATORS, *(() if user is None else user.roles)}
        return UsersChange((User(name, tuple(sorted(roles)), order.verifier),))
    if operation is UserOperation.ADD_USER:
        if user is not None:
            raise BadRequest(f"there is a user {name}: remove that one, or set its password")
        return UsersChange((User(name, _known_roles(users, order.roles), order.verifier),))
    if operation is UserOperation.REMOVE_ROLE:
        return _without_role(users, name)
    if operation in (UserOperation.ADD_ROLE, UserOperation.GRANT, UserOperation.REVOKE):
        return UsersChange(roles=_roles_of(order, role))
    if user is None:
        raise BadRequest(f"there is no user {name}")
    if operation is UserOperation.REMOVE_USER:
        return UsersChange(gone_users=(name,))
    if operation is UserOperation.SET_PASSWORD:
        return UsersChange((msgspec.structs.replace(user, verifier=order.verifier),))
    if operation is UserOperation.GIVE_ROLES:
        roles = {*user.roles, *_known_roles(users, order.roles)}
    else:
        _check_all(order.roles, user.roles, f"{name} does not have the role")
        roles = {*user.roles} - {*order.roles}
    return UsersChange((msgspec.structs.replace(user, roles=tuple(sorted(roles))),))


def _known_roles(users: Users, names: tuple[str, ...]) -> tuple[str, ...]:
    _check_all(names, [ADMINISTRATORS, *(role.name for role in users.roles)], "there is no role")
    return tuple(sorted({*names}))


def _check_all(named: Iterable[object], known: Iterable[object], problem: str) -> None:
    missing = [each for each in named if each not in {*known}]
    if missing:
        raise BadRequest(f"{problem} {missing[0]}")


def _roles_of(order: UserOrder, role: UserRole | None) -> tuple[UserRole, ...]:
    if order.name == ADMINISTRATORS:
        raise BadRequest(f"the role {ADMINISTRATORS} is always there, and is every right on everything")
    if order.verb is UserOperation.ADD_ROLE:
        if role is not None:
            raise BadRequest(f"there is a role {order.name}: grant it more, or revoke something")
        return (UserRole(order.name, tuple(sorted({*order.grants}))),)
    if role is None:
        raise BadRequest(f"there is no role {order.name}: add it first (quorumlog role add)")
    if order.verb is UserOperation.GRANT:
        return (UserRole(role.name, tuple(sorted({*role.grants, *order.grants}))),)
    _check_all(order.grants, role.grants, f"not granted to {role.name} in these words:")
    return (UserRole(role.name, tuple(sorted({*role.grants} - {*order.grants}))),)


def _without_role(users: Users, name: str) -> UsersChange:
    """A role of that name that is made later must not be somebody's already."""
    if users.role(name) is None or name == ADMINISTRATORS:
        raise BadRequest(f"there is no role {name} that could be removed")
    having = [user.name for user in users.users if name in user.roles]
    if having:
        raise BadRequest(f"{', '.join(having)} has the role {name}: take it away first")
    return UsersChange(gone_roles=(name,))


NO_USERS = Users()
_encode = msgspec.msgpack.Encoder().encode
