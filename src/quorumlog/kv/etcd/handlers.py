"""The calls of etcd's API: a message of protobuf in, one out, or an RpcError.

gRPC and the JSON gateway share them. A call is named as gRPC names it, `KV/Range`; `METHODS` has the
unary calls; `watching` and `Handlers.keep_alive` have the streams.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from google.protobuf.message import Message

from quorumlog.kv.errors import FutureRevision, LeaseNotFound
from quorumlog.kv.etcd import messages_pb2 as pb
from quorumlog.kv.etcd.administration import Administration
from quorumlog.kv.etcd.calls import Calls
from quorumlog.kv.etcd.conversions import (
    compact_of,
    delete_of,
    delete_response,
    put_of,
    put_response,
    range_of,
    range_response,
    txn_of,
    txn_response,
)
from quorumlog.kv.etcd.identity import EtcdIdentity
from quorumlog.kv.requests import (
    MOST,
    Command,
    CommandRequest,
    CompactAnswer,
    DeleteAnswer,
    Grant,
    GrantAnswer,
    KeepAliveRequest,
    Leases,
    LeasesAnswer,
    PutAnswer,
    QuestionRequest,
    Range,
    RangeAnswer,
    Revoke,
    RevokeAnswer,
    StoreStats,
    StoreStatsAnswer,
    TimeToLiveRequest,
    Txn,
    TxnAnswer,
    check,
    checked,
    encode,
    writes,
)


class Handlers:
    """The calls of one user of one connection."""

    def __init__(self, calls: Calls, identity: EtcdIdentity, administration: Administration) -> None:
        self.calls = calls
        self.identity = identity
        self.administration = administration

    # ---------------------------------------------------------------- keys

    async def range(self, asked: pb.RangeRequest) -> pb.RangeResponse:
        wanted, here = range_of(asked), asked.serializable
        try:
            revision, found = await self._read(wanted, RangeAnswer, here=here)
        except FutureRevision:
            if asked.revision != 1:
                raise
            # An empty store is at revision 1, as its headers say. It may not be empty any more.
            revision, _ = await self._read(Range(b"\0", count_only=True), RangeAnswer, here=here)
            found = RangeAnswer()
        return range_response(self.identity.header(revision), found)

    async def put(self, asked: pb.PutRequest) -> pb.PutResponse:
        revision, found = await self._write(put_of(asked), PutAnswer)
        return put_response(self.identity.header(revision), found)

    async def delete_range(self, asked: pb.DeleteRangeRequest) -> pb.DeleteRangeResponse:
        revision, found = await self._write(delete_of(asked), DeleteAnswer)
        return delete_response(self.identity.header(revision), found)

    async def txn(self, asked: pb.TxnRequest) -> pb.TxnResponse:
        wanted = txn_of(asked)
        do = self._write if writes(wanted) else self._read
        revision, found = await do(wanted, TxnAnswer)
        return txn_response(self.identity.header(revision), found)

    async def compact(self, asked: pb.CompactionRequest) -> pb.CompactionResponse:
        """`physical` changes nothing: space is freed incrementally."""
        revision, _ = await self._write(compact_of(asked), CompactAnswer)
        await self.calls.reach_compaction(asked.revision)
        return pb.CompactionResponse(header=self.identity.header(revision))

    async def _write(self, asked: Command, answer: type[Any]) -> tuple[int, Any]:
        body = encode(asked)
        check(asked, len(body))
        return await self.calls.call(CommandRequest(command=body), answer)

    async def _read(
        self, asked: Range | Txn, answer: type[Any], *, here: bool = False
    ) -> tuple[int, Any]:
        body = encode(asked)
        check(asked, len(body))
        return await self.calls.call(QuestionRequest(question=body, here=here), answer, here=here)

    async def revision_here(self) -> int:
        """Revision of this member's store."""
        asked = QuestionRequest(question=encode(StoreStats()), here=True)
        return (await self.calls.call(asked, StoreStatsAnswer, here=True))[0]

    # ---------------------------------------------------------------- leases

    async def grant(self, asked: pb.LeaseGrantRequest) -> pb.LeaseGrantResponse:
        """A TTL that was raised to the minimum, also one of 0 and below, is answered in whole
        seconds, rounded down, so that keep-alives come early."""
        ttl_ms = min(max(0, asked.TTL) * 1000, MOST)  # one far above is refused as such
        if asked.ID < 0:
            raise LeaseNotFound(f"{asked.ID} is not a valid lease id")
        revision, found = await self._write(Grant(ttl_ms or 1, asked.ID), GrantAnswer)
        header = self.identity.header(revision)
        return pb.LeaseGrantResponse(header=header, ID=found.lease, TTL=found.ttl_ms // 1000)

    async def revoke(self, asked: pb.LeaseRevokeRequest) -> pb.LeaseRevokeResponse:
        revision, _ = await self._write(Revoke(_lease_of(asked.ID)), RevokeAnswer)
        return pb.LeaseRevokeResponse(header=self.identity.header(revision))

    async def keep_alive(self, asked: pb.LeaseKeepAliveRequest) -> pb.LeaseKeepAliveResponse:
        """A TTL of 0 means that there is no such lease."""
        wanted = checked(KeepAliveRequest(leases=(max(0, asked.ID),)))
        revision, (ttl_ms,) = await self.calls.call(wanted, list[int])
        header = self.identity.header(revision)
        return pb.LeaseKeepAliveResponse(header=header, ID=asked.ID, TTL=ttl_ms // 1000)

    async def time_to_live(self, asked: pb.LeaseTimeToLiveRequest) -> pb.LeaseTimeToLiveResponse:
        """The remaining time is in whole seconds, rounded down; -1: there is no such lease."""
        try:
            revision, (ttl_ms, left_ms, keys) = await self.calls.call(
                TimeToLiveRequest(lease=_lease_of(asked.ID)), tuple[int, int, list[bytes]]
            )
        except LeaseNotFound:  # a refusal here, which has no revision, and none in etcd
            revision, _ = await self._read(Range(b"\0", count_only=True), RangeAnswer)
            header = self.identity.header(revision)
            return pb.LeaseTimeToLiveResponse(header=header, ID=asked.ID, TTL=-1)
        return pb.LeaseTimeToLiveResponse(
            header=self.identity.header(revision),
            ID=asked.ID,
            TTL=left_ms // 1000,
            grantedTTL=ttl_ms // 1000,
            keys=keys if asked.keys else (),
        )

    async def leases(self, asked: pb.LeaseLeasesRequest) -> pb.LeaseLeasesResponse:
        wanted = QuestionRequest(question=encode(Leases()))
        revision, found = await self.calls.call(wanted, LeasesAnswer)
        leases = [pb.LeaseStatus(ID=lease) for lease, _, _ in found.leases]
        return pb.LeaseLeasesResponse(header=self.identity.header(revision), leases=leases)


def _lease_of(number: int) -> int:
    """Raises LeaseNotFound."""
    if number < 0:
        raise LeaseNotFound(f"there is no lease {number}")
    return number


# ---------------------------------------------------------------- all calls that are answered once

Handler = Callable[[Handlers, Any], Awaitable[Message]]


class Method(NamedTuple):
    request: type[Message]
    handle: Handler
    paths: tuple[str, ...]
    """Path at the JSON gateway."""


def _administered(name: str) -> Handler:
    return lambda handlers, asked: getattr(handlers.administration, name)(asked)


_HANDLERS: dict[str, tuple[Handler, str]] = {
    "KV/Range": (Handlers.range, "kv/range"),
    "KV/Put": (Handlers.put, "kv/put"),
    "KV/DeleteRange": (Handlers.delete_range, "kv/deleterange"),
    "KV/Txn": (Handlers.txn, "kv/txn"),
    "KV/Compact": (Handlers.compact, "kv/compaction"),
    "Lease/LeaseGrant": (Handlers.grant, "lease/grant"),
    "Lease/LeaseRevoke": (Handlers.revoke, "lease/revoke kv/lease/revoke"),
    "Lease/LeaseTimeToLive": (Handlers.time_to_live, "lease/timetolive kv/lease/timetolive"),
    "Lease/LeaseLeases": (Handlers.leases, "lease/leases kv/lease/leases"),
    "Cluster/MemberAdd": (_administered("member_add"), "cluster/member/add"),
    "Cluster/MemberRemove": (_administered("member_remove"), "cluster/member/remove"),
    "Cluster/MemberUpdate": (_administered("member_update"), "cluster/member/update"),
    "Cluster/MemberList": (_administered("member_list"), "cluster/member/list"),
    "Cluster/MemberPromote": (_administered("member_promote"), "cluster/member/promote"),
    "Maintenance/Alarm": (_administered("alarm"), "maintenance/alarm"),
    "Maintenance/Status": (_administered("status"), "maintenance/status"),
    "Maintenance/Defragment": (_administered("defragment"), "maintenance/defragment"),
    "Maintenance/Hash": (_administered("hash"), ""),
    "Maintenance/HashKV": (_administered("hash_kv"), "maintenance/hash"),
    "Maintenance/MoveLeader": (_administered("move_leader"), "maintenance/transfer-leadership"),
    "Maintenance/Downgrade": (_administered("downgrade"), "maintenance/downgrade"),
    "Maintenance/Snapshot": (_administered("snapshot"), "maintenance/snapshot"),
    "Auth/AuthEnable": (_administered("auth_enable"), "auth/enable"),
    "Auth/AuthDisable": (_administered("auth_disable"), "auth/disable"),
    "Auth/AuthStatus": (_administered("auth_status"), "auth/status"),
    "Auth/UserAdd": (_administered("user_add"), "auth/user/add"),
    "Auth/UserGet": (_administered("user_get"), "auth/user/get"),
    "Auth/UserList": (_administered("user_list"), "auth/user/list"),
    "Auth/UserDelete": (_administered("user_delete"), "auth/user/delete"),
    "Auth/UserChangePassword": (_administered("user_change_password"), "auth/user/changepw"),
    "Auth/UserGrantRole": (_administered("user_grant_role"), "auth/user/grant"),
    "Auth/UserRevokeRole": (_administered("user_revoke_role"), "auth/user/revoke"),
    "Auth/RoleAdd": (_administered("role_add"), "auth/role/add"),
    "Auth/RoleGet": (_administered("role_get"), "auth/role/get"),
    "Auth/RoleList": (_administered("role_list"), "auth/role/list"),
    "Auth/RoleDelete": (_administered("role_delete"), "auth/role/delete"),
    "Auth/RoleGrantPermission": (_administered("role_grant_permission"), "auth/role/grant"),
    "Auth/RoleRevokePermission": (_administered("role_revoke_permission"), "auth/role/revoke"),
}
_SERVICES = pb.DESCRIPTOR.services_by_name


def _request_of(name: str) -> type[Message]:
    service, _, method = name.partition("/")
    kind: type[Message] = getattr(pb, _SERVICES[service].methods_by_name[method].input_type.name)
    return kind


METHODS = {
    name: Method(_request_of(name), handle, tuple(f"/v3/{path}" for path in paths.split()))
    for name, (handle, paths) in _HANDLERS.items()
}
WATCH, KEEP_ALIVE, AUTHENTICATE = "Watch/Watch", "Lease/LeaseKeepAlive", "Auth/Authenticate"
"""Calls that are not in `METHODS`: the first two are streams; the ports handle logins themselves."""
