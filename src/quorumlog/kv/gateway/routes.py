"""Routes: what a request of the gateway does, and the JSON that it is answered with."""

from __future__ import annotations

import asyncio
import time
from base64 import b64encode
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from typing import Any

from quorumlog.errors import LedgerError
from quorumlog.kv.client.asking import Asking
from quorumlog.kv.client.async_store import AsyncKeyValueClient
from quorumlog.kv.client.values import Change
from quorumlog.kv.client.watching import Watching
from quorumlog.kv.errors import Compacted, LeaseNotFound
from quorumlog.kv.gateway.etcd_json import (
    JsonRequest,
    JsonResponse,
    answer,
    delete_of,
    flag_of,
    key_value,
    known,
    number_of,
    number_of_text,
    number_or_none_of,
    put_of,
    range_of,
    txn_of,
    watch_of,
    without_defaults,
)
from quorumlog.kv.requests import (
    MOST,
    Command,
    CommandRequest,
    Compact,
    CompactAnswer,
    DeleteAnswer,
    Grant,
    GrantAnswer,
    KeepAliveRequest,
    KeyValue,
    Leases,
    LeasesAnswer,
    PutAnswer,
    QuestionRequest,
    Range,
    RangeAnswer,
    Revoke,
    RevokeAnswer,
    StatusAnswer,
    StoreStatusRequest,
    TimeToLiveRequest,
    Txn,
    TxnAnswer,
    check,
    checked,
    encode,
    writes,
)
from quorumlog.net.rpc.calls import RequestTarget, TargetKind

ASK_TIMEOUT_S = 1.0
KNOWN_S = 5.0
"""So long nobody is asked again."""


class GatewayMembers:
    def __init__(self, asking: Asking) -> None:
        self._asking = asking
        self._known: dict[str, StatusAnswer] = {}
        self._asked_s = -KNOWN_S

    async def all(self) -> list[tuple[str, str]]:
        """(member id, URL of its gateway); of a member that does not answer, as it was."""
        if time.monotonic() - self._asked_s >= KNOWN_S:
            await asyncio.gather(*[self._ask(address) for address in self._asking.addresses])
            self._asked_s = time.monotonic()
        found = {each.member_id: each.etcd_gateway for each in self._known.values() if each.etcd_gateway}
        return sorted(found.items())

    async def _ask(self, address: str) -> None:
        target = RequestTarget(TargetKind.ADDRESS, address)
        with suppress(LedgerError):
            _, self._known[address] = await self._asking.call(
                StoreStatusRequest(), StatusAnswer, target=target, timeout_ms=1000 * ASK_TIMEOUT_S
            )


# ----------------------------------------------------------------
# Routes: what a request of the gateway does, and the JSON that it is answered with.


VERSION = "3.5.1"
"""Of the etcd whose answers these are compared with."""
HEALTH_TIMEOUT_S = 2.0

MOST_HELD_BYTES = 1 << 20
"""Of what one watch has heard, and its client has not taken."""

Answer = tuple[int, JsonResponse]
"""(HTTP status, body)."""


class Routes:
    def __init__(self, client: AsyncKeyValueClient, member_id: str, members: GatewayMembers) -> None:
        """`client`: of all members' stores, with the codec `bytes`."""
        self.waiting_bytes = 0
        """Of requests that are being answered."""
        self.client = client
        self._member_id = member_id
        self._members = members
        self._of_path: dict[str, Callable[[JsonRequest], Awaitable[JsonResponse]]] = {
            "/v3/kv/range": self._range,
            "/v3/kv/put": self._put,
            "/v3/kv/deleterange": self._delete,
            "/v3/kv/txn": self._txn,
            "/v3/kv/compaction": self._compact,
            "/v3/lease/grant": self._grant,
            "/v3/lease/keepalive": self._keep_alive,
            "/v3/lease/revoke": self._revoke,
            "/v3/kv/lease/revoke": self._revoke,
            "/v3/lease/timetolive": self._time_to_live,
            "/v3/kv/lease/timetolive": self._time_to_live,
            "/v3/lease/leases": self._leases,
            "/v3/kv/lease/leases": self._leases,
            "/v3/cluster/member/list": self._member_list,
        }

    async def answer(self, method: str, path: str, given: JsonRequest) -> Answer:
        """Raises LedgerError."""
        if method == "GET" and path == "/version":
            return 200, {"etcdserver": VERSION, "etcdcluster": VERSION}
        if method == "GET" and path == "/health":
            return await self._health()
        act = self._of_path.get(path) if method == "POST" else None
        if act is None:
            return 404, {"error": "Not Found", "code": 5, "message": "Not Found"}
        return 200, await act(given)

    async def prove(self) -> None:
        """That the stores know this user. Raises NotAuthenticated."""
        await self.client.asking.call(StoreStatusRequest(), StatusAnswer)

    def header(self, revision: int) -> JsonResponse:
        """An empty store is at revision 1 in etcd, and clients rely on being told one."""
        return without_defaults(
            {
                "cluster_id": str(number_of_text(self.client.asking.cluster_id)),
                "member_id": str(number_of_text(self._member_id)),
                "revision": str(max(1, revision)),
            }
        )

    async def _tell(self, asked: Any, expected: type[Any]) -> JsonResponse:
        revision, found = await self._ask(asked, expected)
        return {"header": self.header(revision), **answer(found, revision)}

    # ---------------------------------------------------------------- keys

    async def _range(self, given: JsonRequest) -> JsonResponse:
        return await self._tell(range_of(given), RangeAnswer)

    async def _put(self, given: JsonRequest) -> JsonResponse:
        return await self._tell(put_of(given), PutAnswer)

    async def _delete(self, given: JsonRequest) -> JsonResponse:
        return await self._tell(delete_of(given), DeleteAnswer)

    async def _txn(self, given: JsonRequest) -> JsonResponse:
        return await self._tell(txn_of(given), TxnAnswer)

    async def _ask(self, asked: Command | Range, expected: type[Any]) -> tuple[int, Any]:
        body = encode(asked)
        check(asked, len(body))
        changes = writes(asked) if isinstance(asked, Range | Txn) else True
        request = CommandRequest(command=body) if changes else QuestionRequest(question=body)
        return await self.client.asking.call(request, expected)

    async def _compact(self, given: JsonRequest) -> JsonResponse:
        given = known(given, "revision", "physical")
        flag_of(given, "physical")
        compact = Compact(number_of(given, "revision"))
        revision, _ = await self._ask(compact, CompactAnswer)
        return {"header": self.header(revision)}

    # ---------------------------------------------------------------- leases

    async def _grant(self, given: JsonRequest) -> JsonResponse:
        """A TTL that is raised, as one of 0 and below is, is told in whole seconds, rounded down: who
        counts on it comes early."""
        given = known(given, "TTL", "ID")
        ttl_ms = min(number_or_none_of(given, "TTL") * 1000, MOST)  # one far above is refused as such
        grant = Grant(ttl_ms or 1, number_of(given, "ID"))
        revision, found = await self._ask(grant, GrantAnswer)
        response = {"ID": str(found.lease), "TTL": str(found.ttl_ms // 1000)}
        return {"header": self.header(revision), **response}

    async def _keep_alive(self, given: JsonRequest) -> JsonResponse:
        lease = number_of(known(given, "ID"), "ID")
        asked = checked(KeepAliveRequest(leases=(lease,)))
        revision, (ttl_ms,) = await self.client.asking.call(asked, list[int])
        response = without_defaults({"ID": str(lease), "TTL": str(ttl_ms // 1000)})
        return {"result": {"header": self.header(revision), **response}}

    async def _revoke(self, given: JsonRequest) -> JsonResponse:
        revision, _ = await self._ask(Revoke(number_of(known(given, "ID"), "ID")), RevokeAnswer)
        return {"header": self.header(revision)}

    async def _time_to_live(self, given: JsonRequest) -> JsonResponse:
        """What is left is told in whole seconds, rounded down; -1: there is no such lease."""
        given = known(given, "ID", "keys")
        lease = number_of(given, "ID")
        wants_keys = flag_of(given, "keys")
        asked = checked(TimeToLiveRequest(lease=lease))
        try:
            revision, (ttl_ms, left_ms, keys) = await self.client.asking.call(
                asked, tuple[int, int, list[bytes]]
            )
        except LeaseNotFound:
            return {"header": await self._newest_header(), "ID": str(lease), "TTL": "-1"}
        times = {"TTL": str(left_ms // 1000), "grantedTTL": str(ttl_ms // 1000)}
        named = [b64encode(key).decode() for key in keys] if wants_keys else []
        response = without_defaults({"ID": str(lease), **times, "keys": named})
        return {"header": self.header(revision), **response}

    async def _newest_header(self) -> JsonResponse:
        """Where the answer is a refusal of ours, which has no revision, and none of etcd's."""
        revision, _ = await self._ask(Range(b"\0", count_only=True), RangeAnswer)
        return self.header(revision)

    async def _leases(self, given: JsonRequest) -> JsonResponse:
        known(given)
        asked = QuestionRequest(question=encode(Leases()))
        revision, found = await self.client.asking.call(asked, LeasesAnswer)
        leases = [{"ID": str(lease)} for lease, _, _ in found.leases]
        return {"header": self.header(revision), **without_defaults({"leases": leases})}

    # ---------------------------------------------------------------- the cluster

    async def _member_list(self, given: JsonRequest) -> JsonResponse:
        flag_of(known(given, "linearizable"), "linearizable")
        members = [
            {"ID": str(number_of_text(name)), "name": name, "clientURLs": [url]}
            for name, url in await self._members.all()
        ]
        return {"header": self.header(0), "members": members}

    async def _health(self) -> Answer:
        """Whether a majority stores what is changed."""
        try:
            await self.client.health(timeout_ms=1000 * HEALTH_TIMEOUT_S)
        except LedgerError as error:
            return 503, {"health": "false", "reason": str(error)}
        return 200, {"health": "true", "reason": ""}

    # ---------------------------------------------------------------- watches

    async def watch(
        self, given: JsonRequest, holds: Callable[[int], None]
    ) -> AsyncGenerator[JsonResponse, None]:
        """What a watch tells, until it is closed or cancelled. `holds` is told how many bytes wait until
        its client takes them. Raises InvalidRequest."""
        watching = Watching(
            self.client.asking, self.client.values, watch_of(given), MOST_HELD_BYTES, holds
        )
        try:
            # etcd creates a watch below the compacted revision too, and then cancels it: the member's
            # refusal may come before or after its first word, and a client waits for both.
            with suppress(Compacted):
                await watching.began()
            yield self._result({"created": True}, max(0, watching.next_revision - 1))
            while True:
                changes = await watching.batch()
                events = [_event(change) for change in changes]
                yield self._result({"events": events}, changes[-1].revision)
        except Compacted as error:
            cancelled = {"canceled": True, "compact_revision": str(error.compacted_revision)}
            yield self._result(cancelled, 0)
        finally:
            await watching.close()

    def _result(self, response: JsonResponse, revision: int) -> JsonResponse:
        return {"result": {"header": self.header(revision), **response}}


def _event(change: Change) -> JsonResponse:
    item = change.item
    kv = KeyValue(
        item.key, item.create_revision, item.mod_revision, item.version, item.value or b"", item.lease
    )
    response: JsonResponse = {"kv": key_value(kv)}
    if change.is_deletion:
        response["type"] = "DELETE"
    if change.previous is not None:
        was = change.previous
        previous = KeyValue(
            was.key, was.create_revision, was.mod_revision, was.version, was.value, was.lease
        )
        response["prev_kv"] = key_value(previous)
    return response
