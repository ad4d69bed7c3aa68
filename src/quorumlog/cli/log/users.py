"""quorumlog user, role, grant, revoke, who-can: users and rights."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quorumlog.cli.options import App, UsersServers, argument, check_directory, option
from quorumlog.cli.output import note, tell, tell_rows
from quorumlog.errors import ConfigError, DirectoryDamaged

if TYPE_CHECKING:
    from quorumlog.log_state.users import RoleGrant, Verifier
    from quorumlog.store.disk import Disk
    from quorumlog.wire.client_messages import UsersResponse

NEW_PASSWORD = "QUORUMLOG_NEW_PASSWORD"
user_app = App(
    "Users of the cluster: list, add, remove, password, give, take.",
    "quorumlog user list --servers 127.0.0.1:20911",
)
role_app = App(
    "Roles, which have the rights of users: list, add, remove. The role admin always exists.",
    "quorumlog role list --servers 127.0.0.1:20911",
)

Name = Annotated[str, argument("Name of the user.", "USER")]
RoleName = Annotated[str, argument("Name of the role.", "ROLE")]
Roles = Annotated[list[str], argument("Roles; admin always exists.", "ROLE...")]
NewPassword = Annotated[
    Path | None,
    option(f"Its first line is the password of the user; else {NEW_PASSWORD}, or a question.", "FILE"),
]
ByCertificate = Annotated[
    bool, option("Identify the user by a certificate instead of a password.", name="--certificate")
]
RightName = Annotated[str, argument("read, write or admin.", "RIGHT")]
KindName = Annotated[str, argument("log, topic, consumer-group, key or cluster.", "KIND")]
Names = Annotated[
    str, argument("A name, or a prefix followed by *: orders*.", "NAME", show_default=False)
]


def grant_of(right: str, kind: str, names: str) -> RoleGrant:
    """`names`: one, or a prefix and `*`. Raises ConfigError."""
    from quorumlog.log_state.users import Kind, Right, RoleGrant

    if right not in tuple(Right):
        raise ConfigError(f"{right!r} is not a right; rights are {', '.join(Right)}")
    if kind not in tuple(Kind):
        raise ConfigError(f"{kind!r} is not a kind of resource; there are {', '.join(Kind)}")
    if kind == Kind.CLUSTER:
        if names:
            raise ConfigError("a right on the cluster takes no name: leave it out")
        return RoleGrant(Right(right), Kind.CLUSTER)
    if not names:
        raise ConfigError(
            f"the name of the {kind} is missing: give one, a prefix as in orders*, or * for all"
        )
    is_exact = not names.endswith("*")
    prefix = names.removesuffix("*").encode(errors="surrogateescape")
    return RoleGrant(Right(right), Kind(kind), prefix, is_exact)


def _table(rows: list[dict[str, str]], names: tuple[str, ...]) -> None:
    tell_rows(rows, ", ".join(names), [tuple(row.values()) for row in rows])


def _change(at: UsersServers, sentence: str, operation: str, name: str, **more: Any) -> None:
    from quorumlog.log_state.users import UserOperation, UserOrder

    with at.changing() as log:
        index = log.change_users(UserOrder(UserOperation(operation), name, **more))
    tell({"index": index}, sentence)


def new_verifier(name: str, file: Path | None) -> Verifier:
    """Raises ConfigError."""
    from quorumlog.net.credentials import password_of, verifier_for

    if file is not None:
        return verifier_for(password_of(str(file)))
    if NEW_PASSWORD in os.environ:
        return verifier_for(os.environ[NEW_PASSWORD])
    if not sys.stdin.isatty():
        raise ConfigError(f"{name} needs a password: --new-password-file FILE, or {NEW_PASSWORD}")
    return verifier_for(
        typer.prompt(f"New password of {name}", hide_input=True, confirmation_prompt=True, err=True)
    )


@user_app.command("list")
def list_users(at: UsersServers) -> None:
    """Show the users, their roles, and how they authenticate.

    Example: quorumlog user list --servers 127.0.0.1:20911
    """
    with at.changing() as log:
        found = log.users()
    if not found.is_on:
        note(
            "there are no users: every client that reaches a port may do everything (quorumlog user add)"
        )
    rows = [
        {
            "user": each.name,
            "roles": " ".join(each.roles),
            "proves": "password" if each.has_password else "certificate",
        }
        for each in found.users
    ]
    _table(rows, ("user", "roles", "proves"))


@user_app.command("add")
def add_user(
    at: UsersServers,
    name: Name,
    role: Annotated[list[str] | None, option("A role of the user; may be repeated.", "ROLE")] = None,
    new_password_file: NewPassword = None,
    certificate: ByCertificate = False,
) -> None:
    """Add a user. The first one needs --role admin; from then on all access requires a user.

    Example: quorumlog user add alice --role admin --servers 127.0.0.1:20911
    """
    verifier = None if certificate else new_verifier(name, new_password_file)
    roles = tuple(sorted({*(role or ())}))
    _change(at, f"{name} is a user", "add-user", name, roles=roles, verifier=verifier)


@user_app.command("password")
def set_password(at: UsersServers, name: Name, new_password_file: NewPassword = None) -> None:
    """Change a user's password. Open connections stay.

    Example: quorumlog user password alice --servers 127.0.0.1:20911
    """
    verifier = new_verifier(name, new_password_file)
    _change(at, f"{name} has another password", "set-password", name, verifier=verifier)


@user_app.command("remove")
def remove_user(at: UsersServers, name: Name) -> None:
    """Remove a user; its connections may do nothing any more.

    Example: quorumlog user remove bob --servers 127.0.0.1:20911
    """
    _change(at, f"{name} is no longer a user", "remove-user", name)


@user_app.command("give")
def give_roles(at: UsersServers, name: Name, roles: Roles) -> None:
    """Give a user roles.

    Example: quorumlog user give bob orders-reader --servers 127.0.0.1:20911
    """
    granted = tuple(sorted({*roles}))
    _change(at, f"{name} has {', '.join(granted)}", "give-roles", name, roles=granted)


@user_app.command("take")
def take_roles(at: UsersServers, name: Name, roles: Roles) -> None:
    """Take roles from a user.

    Example: quorumlog user take bob orders-reader --servers 127.0.0.1:20911
    """
    taken = tuple(sorted({*roles}))
    _change(at, f"{name} has {', '.join(taken)} no more", "take-roles", name, roles=taken)


@role_app.command("list")
def list_roles(at: UsersServers) -> None:
    """Show the roles and their grants.

    Example: quorumlog role list --servers 127.0.0.1:20911
    """
    with at.changing() as log:
        found = log.users()
    rows = [{"role": "admin", "grant": "everything"}]
    rows += [
        {"role": each.name, "grant": str(grant)}
        for each in found.roles
        for grant in each.grants or ("",)
    ]
    _table(rows, ("role", "grant"))


@role_app.command("add")
def add_role(at: UsersServers, name: RoleName) -> None:
    """Add a role without grants.

    Example: quorumlog role add orders-reader --servers 127.0.0.1:20911
    """
    _change(at, f"{name} is a role: quorumlog grant {name} ...", "add-role", name)


@role_app.command("remove")
def remove_role(at: UsersServers, name: RoleName) -> None:
    """Remove a role that no user has.

    Example: quorumlog role remove orders-reader --servers 127.0.0.1:20911
    """
    _change(at, f"{name} is no longer a role", "remove-role", name)


def grant(at: UsersServers, to: RoleName, right: RightName, kind: KindName, names: Names = "") -> None:
    """Grant a right to a role, on a name or a prefix.

    Example: quorumlog grant orders-reader read topic 'orders*'
    """
    granted = grant_of(right, kind, names)
    _change(at, f"{to} may {granted}", "grant", to, grants=(granted,))


def revoke(at: UsersServers, to: RoleName, right: RightName, kind: KindName, names: Names = "") -> None:
    """Revoke a right from a role; the arguments are those of the grant.

    Example: quorumlog revoke orders-reader read topic 'orders*'
    """
    taken = grant_of(right, kind, names)
    _change(at, f"{to} may no longer {taken}", "revoke", to, grants=(taken,))


def who_can(at: UsersServers, right: RightName, kind: KindName, name: Names = "") -> None:
    """Show the users that have a right on a name, and by which role and grant.

    Example: quorumlog who-can write topic orders.eu --servers 127.0.0.1:20911
    """
    from quorumlog.log_state.users import User, Users

    requested = grant_of(right, kind, name)
    if not requested.is_exact and requested.prefix:
        raise ConfigError(f"{name!r} matches several names: give one")
    with at.changing() as log:
        found: UsersResponse = log.users()
    if not found.is_on:
        note("there are no users: everybody can")
    users = Users(True, b"", tuple(User(each.name, each.roles) for each in found.users), found.roles)
    reaches = users.who_can(requested.right, requested.kind, requested.prefix)
    rows = [{"user": each.user, "role": each.role, "grant": str(each.grant)} for each in reaches]
    _table(rows, ("user", "role", "grant"))


def init_admin(
    directory: Annotated[Path, argument("Data directory of a stopped member or broker.", "DIR")],
    name: Name,
    new_password_file: NewPassword = None,
    certificate: ByCertificate = False,
    reset: Annotated[
        bool,
        option(
            "Also if there already is an administrator, or this user. If the log of a classic"
            " broker lacks the entries that define its users: as the only user."
        ),
    ] = False,
) -> None:
    """Record an administrator in the directory of a stopped member or broker, for its next start.

    For a group whose port should refuse clients before it has users, or whose administrators have lost
    their passwords. The directory must be of the group that holds the users; of classic brokers, the
    master's. If the master is lost and a slave does not know its users, the slave's: the administrator
    may then switch to it.

    Example: quorumlog init-admin /var/lib/quorumlog/n0 alice
    """
    from quorumlog.log_state.users import UserOperation, UserOrder, checked_order
    from quorumlog.store.disk import OsDisk
    from quorumlog.store.member_directory import lock_directory, refusals_named
    from quorumlog.store.state_files import load_first_admin, load_member, save_first_admin

    verifier = None if certificate else new_verifier(name, new_password_file)
    operation = UserOperation.RESET_ADMIN if reset else UserOperation.INIT_ADMIN
    order = checked_order(UserOrder(operation, name, verifier=verifier))
    path, disk = check_directory(directory), OsDisk()
    with refusals_named(path):
        lock = lock_directory(disk, path)
        try:
            record = load_member(disk, path)
            if record is None:
                _refuse_unless_master(disk, path, reset=reset)
            waiting = None
            with suppress(DirectoryDamaged):  # it is written again then
                waiting = load_first_admin(disk, path)
            before = os.umask(0o077)
            try:
                save_first_admin(disk, path, order)
            finally:
                os.umask(before)
        finally:
            lock.release()
    if waiting is not None and waiting.name != name:
        note(f"{waiting.name}, who was to become an administrator at the next start, no longer is")
    if record is None:
        tell({"user": name}, f"{name} becomes an administrator once the broker of {path} is the master")
        return
    tell(
        {"group": record.group, "member_id": record.member_id, "user": name},
        f"{name} becomes an administrator of group {record.group} once {record.member_id} has started",
    )


def _refuse_unless_master(disk: Disk, path: str, *, reset: bool) -> None:
    """Of a classic broker that has slaves, or is one. Of a slave that has heard of users only who says
    whom to follow while it does not know them."""
    from quorumlog.broker.epochs import Peer
    from quorumlog.broker.replication.replica_file import ReplicaFile
    from quorumlog.broker.store.log_files import BrokerRole
    from quorumlog.broker.store.message_store import USERS_NAME
    from quorumlog.store.directory_kind import DirectoryKind, kind_of

    if kind_of(disk, path) is not DirectoryKind.BROKER:
        raise ConfigError(f"{path} is not the data directory of a member, or of a broker")
    held = ReplicaFile(disk, path).load(Peer(id=""))
    is_slave = held is not None and held.role is BrokerRole.SLAVE
    if held is not None and is_slave and (reset or not disk.exists(f"{path}/{USERS_NAME}")):
        master = "" if held.master is None else f", {held.master.id or held.master.ha_address}"
        raise ConfigError(f"{path} is that of a slave: do it in the directory of its master{master}")
