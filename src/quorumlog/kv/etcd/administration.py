"""etcd's Cluster, Maintenance and Auth services. Members and users are those of the log, and are
changed through a client of the log with the rights of the requesting user."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple, NoReturn, Protocol
from urllib.parse import urlsplit

from quorumlog.client import AsyncLedgerClient
from quorumlog.errors import ConfigError, LedgerError
from quorumlog.kv.etcd import messages_pb2 as pb
from quorumlog.kv.etcd.calls import Calls
from quorumlog.kv.etcd.conversions import number_of
from quorumlog.kv.etcd.errors import Code, RpcError, etcd_error
from quorumlog.kv.etcd.identity import EtcdIdentity
from quorumlog.kv.requests import (
    FROM_KEY,
    QuestionRequest,
    Range,
    RangeAnswer,
    StatusAnswer,
    StoreStatusRequest,
    encode,
)
from quorumlog.log_state.users import (
    ADMINISTRATORS,
    Kind,
    Right,
    RoleGrant,
    UserOperation,
    UserOrder,
    UserRole,
)
from quorumlog.net.credentials import verifier_for

VERSION = "3.5.1"
"""Version of etcd that answers are compared with."""
HASH_PAGE = 1000
"""Keys per read."""
ROOT = "root"
"""etcd's name for the administrators' role and for the first user."""


class ClusterMember(NamedTuple):
    member_id: str
    address: str
    """HOST:PORT of the member's log."""
    is_learner: bool


class Cluster(Protocol):
    """A member's view of its cluster."""

    def members(self) -> list[ClusterMember]:
        """The members in this member's state, which may be stale."""

    async def confirm(self) -> None:
        """Wait until `members` has all changes acknowledged before the call. Raises LedgerError."""

    async def client_urls(self) -> dict[str, str]:
        """URLs of the members' ports for clients of etcd, by member id, as far as known."""

    def indexes(self) -> tuple[int, int]:
        """(committed, applied) index of the log."""


class Administration:
    """The services for one user of one connection."""

    def __init__(
        self,
        calls: Calls,
        identity: EtcdIdentity,
        cluster: Cluster,
        log: Callable[[], AsyncLedgerClient],
        *,
        is_private: bool,
    ) -> None:
        """`log`: a client of the log as this user. `is_private`: the connection is encrypted or local,
        as passwords require."""
        self._calls = calls
        self._identity = identity
        self._cluster = cluster
        self._log = log
        self._is_private = is_private

    async def _status(self) -> StatusAnswer:
        return (await self._calls.call(StoreStatusRequest(), StatusAnswer, here=True))[1]

    async def _header(self) -> pb.ResponseHeader:
        return self._identity.header((await self._status()).revision)

    # ---------------------------------------------------------------- Cluster

    async def _changed_members(self) -> list[pb.Member]:
        """The members after a change; a failure of the confirmation is ignored, since the change is
        done."""
        with suppress(LedgerError):
            await self._cluster.confirm()
        return await self._members()

    async def _members(self) -> list[pb.Member]:
        urls = await self._cluster.client_urls()
        return [
            pb.Member(
                ID=number_of(each.member_id),
                name=each.member_id,
                peerURLs=[f"http://{each.address}"],
                clientURLs=[urls[each.member_id]] if each.member_id in urls else (),
                isLearner=each.is_learner,
            )
            for each in self._cluster.members()
        ]

    def _member(self, number: int) -> str:
        """Raises RpcError."""
        for each in self._cluster.members():
            if number_of(each.member_id) == number:
                return each.member_id
        raise etcd_error(Code.NOT_FOUND, "member not found")

    async def member_list(self, asked: pb.MemberListRequest) -> pb.MemberListResponse:
        if asked.linearizable:
            await self._cluster.confirm()
        return pb.MemberListResponse(header=self._identity.header(0), members=await self._members())

    async def member_add(self, asked: pb.MemberAddRequest) -> pb.MemberAddResponse:
        """A member's id is needed to add it: give it in the URL, http://ID@HOST:PORT."""
        if not asked.isLearner:
            raise RpcError(
                Code.FAILED_PRECONDITION,
                "quorumlog: a member is added as a learner (isLearner), and promoted"
                " once it has caught up",
            )
        url = urlsplit(asked.peerURLs[0]) if len(asked.peerURLs) == 1 else None
        if url is None or not url.username or not url.hostname:
            raise RpcError(
                Code.INVALID_ARGUMENT,
                "quorumlog: give one URL with the id of the member: http://ID@HOST:PORT",
            )
        member_id, address = url.username, url.netloc.rpartition("@")[2]
        await self._log().change_members("add", member_id, address)
        added = pb.Member(ID=number_of(member_id), peerURLs=[f"http://{address}"], isLearner=True)
        return pb.MemberAddResponse(
            header=await self._header(), member=added, members=await self._changed_members()
        )

    async def member_remove(self, asked: pb.MemberRemoveRequest) -> pb.MemberRemoveResponse:
        await self._log().change_members("remove", self._member(asked.ID))
        members = await self._changed_members()
        return pb.MemberRemoveResponse(header=await self._header(), members=members)

    async def member_update(self, asked: pb.MemberUpdateRequest) -> pb.MemberUpdateResponse:
        member_id = self._member(asked.ID)
        addresses = [urlsplit(url).netloc.rpartition("@")[2] for url in asked.peerURLs]
        if len(addresses) != 1 or not addresses[0]:
            raise RpcError(Code.INVALID_ARGUMENT, "quorumlog: give one URL: http://HOST:PORT")
        await self._log().change_members("set-address", member_id, addresses[0])
        members = await self._changed_members()
        return pb.MemberUpdateResponse(header=await self._header(), members=members)

    async def member_promote(self, asked: pb.MemberPromoteRequest) -> pb.MemberPromoteResponse:
        await self._log().change_members("promote", self._member(asked.ID))
        members = await self._changed_members()
        return pb.MemberPromoteResponse(header=await self._header(), members=members)

    # ---------------------------------------------------------------- Maintenance

    async def status(self, asked: pb.StatusRequest) -> pb.StatusResponse:
        status = await self._status()
        committed, applied = self._cluster.indexes()
        learners = [each.member_id for each in self._cluster.members() if each.is_learner]
        return pb.StatusResponse(
            header=self._identity.header(status.revision),
            version=VERSION,
            dbSize=status.size_bytes,
            dbSizeInUse=status.size_bytes,
            dbSizeQuota=status.quota_bytes,
            leader=number_of(status.leader_id) if status.leader_id else 0,
            raftIndex=committed,
            raftAppliedIndex=applied,
            raftTerm=status.term,
            errors=[status.refuses] if status.refuses else _alarm_words(status),
            isLearner=status.member_id in learners,
        )

    async def alarm(self, asked: pb.AlarmRequest) -> pb.AlarmResponse:
        """NOSPACE ends by itself once there is space; deactivating it only returns the present
        alarms."""
        if asked.action == pb.AlarmRequest.ACTIVATE:
            raise RpcError(Code.UNIMPLEMENTED, "quorumlog: only the store raises alarms")
        status = await self._status()
        alarms = [
            pb.AlarmMember(memberID=number_of(status.member_id), alarm=pb.NOSPACE)
            for _ in _alarm_words(status)
        ]
        return pb.AlarmResponse(header=self._identity.header(status.revision), alarms=alarms)

    async def defragment(self, asked: pb.DefragmentRequest) -> pb.DefragmentResponse:
        """Changes nothing: compaction frees space incrementally. The answer has no header, as in
        etcd."""
        return pb.DefragmentResponse()

    async def hash(self, asked: pb.HashRequest) -> pb.HashResponse:
        found = await self.hash_kv(pb.HashKVRequest())
        return pb.HashResponse(header=found.header, hash=found.hash)

    async def hash_kv(self, asked: pb.HashKVRequest) -> pb.HashKVResponse:
        """The hash of all keys at a revision: equal on all members, but different from etcd's."""
        status = await self._status()
        revision = asked.revision if asked.revision > 0 else status.revision
        checksum, start, more = 0, b"\0", True
        while more:
            page = Range(start, FROM_KEY, HASH_PAGE, revision, without_count=True)
            request = QuestionRequest(question=encode(page), here=True)
            _, found = await self._calls.call(request, RangeAnswer, here=True)
            for kv in found.kvs:
                checksum = zlib.crc32(encode(kv), checksum)
            more, start = found.more, found.kvs[-1].key + b"\0" if found.kvs else b""
        return pb.HashKVResponse(
            header=self._identity.header(status.revision),
            hash=checksum,
            compact_revision=status.compacted_revision,
            hash_revision=revision,
        )

    async def move_leader(self, asked: pb.MoveLeaderRequest) -> pb.MoveLeaderResponse:
        if asked.targetID not in {number_of(each.member_id) for each in self._cluster.members()}:
            raise etcd_error(Code.FAILED_PRECONDITION, "bad leader transferee")
        await self._log().transfer(self._member(asked.targetID))
        return pb.MoveLeaderResponse(header=await self._header())

    async def downgrade(self, asked: pb.DowngradeRequest) -> NoReturn:
        raise RpcError(
            Code.UNIMPLEMENTED, "quorumlog: no downgrade by request; see Upgrades in docs/operations.md"
        )

    async def snapshot(self, asked: pb.SnapshotRequest) -> NoReturn:
        raise RpcError(
            Code.UNIMPLEMENTED,
            "quorumlog: a snapshot of etcd cannot be made here: use `quorumlog backup`, or `quorumlog kv"
            " snapshot`",
        )

    # ---------------------------------------------------------------- Auth

    async def auth_enable(self, asked: pb.AuthEnableRequest) -> pb.AuthEnableResponse:
        """Users are in force once there is one; changes nothing."""
        if not (await self._log().users()).is_on:
            raise etcd_error(Code.FAILED_PRECONDITION, "root user does not exist")
        return pb.AuthEnableResponse(header=await self._header())

    async def auth_disable(self, asked: pb.AuthDisableRequest) -> NoReturn:
        raise RpcError(
            Code.FAILED_PRECONDITION, "quorumlog: authentication cannot be disabled once there are users"
        )

    async def auth_status(self, asked: pb.AuthStatusRequest) -> pb.AuthStatusResponse:
        users = await self._log().users()
        return pb.AuthStatusResponse(header=await self._header(), enabled=users.is_on, authRevision=1)

    async def _order(
        self,
        operation: UserOperation,
        name: str,
        roles: tuple[str, ...] = (),
        grants: tuple[RoleGrant, ...] = (),
        password: str | None = None,
    ) -> None:
        verifier = None if password is None else self._verifier(password)
        await self._log().change_users(UserOrder(operation, name, roles, grants, verifier))

    def _verifier(self, password: str) -> Any:
        """Raises RpcError."""
        if not self._is_private:
            raise PLAIN
        try:
            return verifier_for(password)
        except ConfigError as error:
            raise RpcError(Code.INVALID_ARGUMENT, f"quorumlog: {error}") from None

    async def user_add(self, asked: pb.AuthUserAddRequest) -> pb.AuthUserAddResponse:
        """The first user must be root: it becomes the administrator."""
        if not asked.name:
            raise etcd_error(Code.INVALID_ARGUMENT, "user name is empty")
        if asked.hashedPassword:
            raise RpcError(
                Code.INVALID_ARGUMENT, "quorumlog: hashedPassword is not supported: send the password"
            )
        users = await self._log().users()
        if any(user.name == asked.name for user in users.users):
            raise etcd_error(Code.FAILED_PRECONDITION, "user name already exists")
        roles = (ADMINISTRATORS,) if asked.name == ROOT and not users.is_on else ()
        password = None if asked.options.no_password else asked.password
        header = await self._header()  # behind the first user, who asks is nobody
        await self._order(UserOperation.ADD_USER, asked.name, roles, password=password)
        return pb.AuthUserAddResponse(header=header)

    async def _roles_of(self, name: str) -> tuple[str, ...]:
        """Roles of a user. Raises RpcError."""
        for user in (await self._log().users()).users:
            if user.name == name:
                return user.roles
        raise etcd_error(Code.FAILED_PRECONDITION, "user name not found")

    async def user_get(self, asked: pb.AuthUserGetRequest) -> pb.AuthUserGetResponse:
        roles = [_name_of(role) for role in await self._roles_of(asked.name)]
        return pb.AuthUserGetResponse(header=await self._header(), roles=roles)

    async def user_list(self, asked: pb.AuthUserListRequest) -> pb.AuthUserListResponse:
        names = [user.name for user in (await self._log().users()).users]
        return pb.AuthUserListResponse(header=await self._header(), users=names)

    async def user_delete(self, asked: pb.AuthUserDeleteRequest) -> pb.AuthUserDeleteResponse:
        await self._roles_of(asked.name)
        header = await self._header()  # after it, the client may be no user any more
        await self._order(UserOperation.REMOVE_USER, asked.name)
        return pb.AuthUserDeleteResponse(header=header)

    async def user_change_password(
        self, asked: pb.AuthUserChangePasswordRequest
    ) -> pb.AuthUserChangePasswordResponse:
        await self._roles_of(asked.name)
        header = await self._header()  # after it, its own token may have ended
        await self._order(UserOperation.SET_PASSWORD, asked.name, password=asked.password)
        return pb.AuthUserChangePasswordResponse(header=header)

    async def user_grant_role(self, asked: pb.AuthUserGrantRoleRequest) -> pb.AuthUserGrantRoleResponse:
        await self._roles_of(asked.user)
        await self._role(asked.role)
        await self._order(UserOperation.GIVE_ROLES, asked.user, (_role_of(asked.role),))
        return pb.AuthUserGrantRoleResponse(header=await self._header())

    async def user_revoke_role(
        self, asked: pb.AuthUserRevokeRoleRequest
    ) -> pb.AuthUserRevokeRoleResponse:
        if _role_of(asked.role) not in await self._roles_of(asked.name):
            raise etcd_error(Code.FAILED_PRECONDITION, "role is not granted to the user")
        await self._order(UserOperation.TAKE_ROLES, asked.name, (_role_of(asked.role),))
        return pb.AuthUserRevokeRoleResponse(header=await self._header())

    async def _role(self, name: str) -> UserRole:
        """Raises RpcError."""
        if _role_of(name) == ADMINISTRATORS:
            return UserRole(ADMINISTRATORS)
        for role in (await self._log().users()).roles:
            if role.name == name:
                return role
        raise etcd_error(Code.FAILED_PRECONDITION, "role name not found")

    async def role_add(self, asked: pb.AuthRoleAddRequest) -> pb.AuthRoleAddResponse:
        """The role root exists already: it is `admin`."""
        if not asked.name:
            raise etcd_error(Code.INVALID_ARGUMENT, "role name is empty")
        known = {role.name for role in (await self._log().users()).roles}
        if asked.name in {*known, ADMINISTRATORS}:
            raise etcd_error(Code.FAILED_PRECONDITION, "role name already exists")
        if asked.name != ROOT:
            await self._order(UserOperation.ADD_ROLE, asked.name)
        return pb.AuthRoleAddResponse(header=await self._header())

    async def role_get(self, asked: pb.AuthRoleGetRequest) -> pb.AuthRoleGetResponse:
        role = await self._role(asked.role)
        if role.name == ADMINISTRATORS:
            everything = pb.Permission(permType=pb.Permission.READWRITE, range_end=FROM_KEY)
            return pb.AuthRoleGetResponse(header=await self._header(), perm=[everything])
        return pb.AuthRoleGetResponse(header=await self._header(), perm=_permissions(role.grants))

    async def role_list(self, asked: pb.AuthRoleListRequest) -> pb.AuthRoleListResponse:
        users = await self._log().users()
        names = {role.name for role in users.roles} | ({ROOT} if users.is_on else set())
        return pb.AuthRoleListResponse(header=await self._header(), roles=sorted(names))

    async def role_delete(self, asked: pb.AuthRoleDeleteRequest) -> pb.AuthRoleDeleteResponse:
        """Also revokes it from users that have it, as in etcd."""
        role = await self._role(asked.role)
        if role.name == ADMINISTRATORS:
            raise RpcError(
                Code.FAILED_PRECONDITION, "quorumlog: the administrators' role cannot be deleted"
            )
        for user in (await self._log().users()).users:
            if role.name in user.roles:
                await self._order(UserOperation.TAKE_ROLES, user.name, (role.name,))
        await self._order(UserOperation.REMOVE_ROLE, role.name)
        return pb.AuthRoleDeleteResponse(header=await self._header())

    async def role_grant_permission(
        self, asked: pb.AuthRoleGrantPermissionRequest
    ) -> pb.AuthRoleGrantPermissionResponse:
        """A grant of the same range replaces the former one, as in etcd."""
        role = await self._role(asked.name)
        rights = _RIGHTS.get(asked.perm.permType)
        if rights is None:
            raise RpcError(Code.INVALID_ARGUMENT, f"there is no permission {asked.perm.permType}")
        wanted = {_grant(right, asked.perm.key, asked.perm.range_end) for right in rights}
        spans = {(grant.prefix, grant.is_exact) for grant in wanted}
        had = {each for each in _of_keys(role.grants) if (each.prefix, each.is_exact) in spans}
        await self._order(UserOperation.GRANT, role.name, grants=tuple(sorted(wanted)))
        if gone := tuple(sorted(had - wanted)):
            await self._order(UserOperation.REVOKE, role.name, grants=gone)
        return pb.AuthRoleGrantPermissionResponse(header=await self._header())

    async def role_revoke_permission(
        self, asked: pb.AuthRoleRevokePermissionRequest
    ) -> pb.AuthRoleRevokePermissionResponse:
        role = await self._role(asked.role)
        span = _grant(Right.READ, asked.key, asked.range_end)
        gone = [
            each
            for each in _of_keys(role.grants)
            if (each.prefix, each.is_exact) == (span.prefix, span.is_exact)
        ]
        if not gone:
            raise etcd_error(Code.FAILED_PRECONDITION, "permission is not granted to the role")
        await self._order(UserOperation.REVOKE, role.name, grants=tuple(gone))
        return pb.AuthRoleRevokePermissionResponse(header=await self._header())


PLAIN = RpcError(
    Code.FAILED_PRECONDITION,
    "quorumlog: passwords are refused without TLS: configure it (docs/security.md)",
)
_RIGHTS: dict[pb.Permission.Type, tuple[Right, ...]] = {
    pb.Permission.READ: (Right.READ,),
    pb.Permission.WRITE: (Right.WRITE,),
    pb.Permission.READWRITE: (Right.READ, Right.WRITE),
}


def _alarm_words(status: StatusAnswer) -> list[str]:
    return ["NOSPACE"] if status.size_bytes >= status.quota_bytes else []


def _role_of(name: str) -> str:
    return ADMINISTRATORS if name == ROOT else name


def _name_of(role: str) -> str:
    return ROOT if role == ADMINISTRATORS else role


def _of_keys(grants: tuple[RoleGrant, ...]) -> list[RoleGrant]:
    return [each for each in grants if each.kind is Kind.KEY]


def _grant(right: Right, key: bytes, range_end: bytes) -> RoleGrant:
    """Raises RpcError for a range that is neither a key nor a prefix."""
    if not range_end:
        return RoleGrant(right, Kind.KEY, key, is_exact=True)
    if range_end == FROM_KEY and key in (b"", FROM_KEY):
        return RoleGrant(right, Kind.KEY)
    prefix = RoleGrant(right, Kind.KEY, key)
    if prefix.bounds != (key, None if range_end == FROM_KEY else range_end):
        raise RpcError(
            Code.INVALID_ARGUMENT, "quorumlog: rights are granted on one key, or on all with a prefix"
        )
    return prefix


def _permissions(grants: tuple[RoleGrant, ...]) -> list[pb.Permission]:
    rights: dict[tuple[bytes, bytes], set[Right]] = defaultdict(set)
    for each in _of_keys(grants):
        end = b"" if each.is_exact else (each.bounds[1] or FROM_KEY)
        has = (Right.READ, Right.WRITE) if each.right is Right.ADMIN else (each.right,)
        rights[each.prefix, end] |= {*has}
    kinds = {each: kind for kind, each in ((kind, frozenset(has)) for kind, has in _RIGHTS.items())}
    return [
        pb.Permission(permType=kinds[frozenset(has)], key=key, range_end=end)
        for (key, end), has in sorted(rights.items())
    ]
