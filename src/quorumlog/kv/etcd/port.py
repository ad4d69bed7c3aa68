"""Shared by both ports for clients of etcd: connections, users and logins."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress

from quorumlog.client import AsyncLedgerClient
from quorumlog.config import parse_address
from quorumlog.errors import LeaderNotReady, LedgerError, NotAuthenticated, RequestTimeout
from quorumlog.kv.client.asking import Asking, addresses_of
from quorumlog.kv.client.async_store import AsyncKeyValueClient
from quorumlog.kv.endpoint import KeyValueEndpoint
from quorumlog.kv.etcd import messages_pb2 as pb
from quorumlog.kv.etcd.administration import PLAIN, Administration, ClusterMember
from quorumlog.kv.etcd.calls import TIMEOUT_S, EtcdCarrier, ForwardedCalls, LocalCalls
from quorumlog.kv.etcd.errors import NO_USER, NO_USERS, WRONG_PASSWORD, WRONG_TOKEN, RpcError
from quorumlog.kv.etcd.handlers import Handlers
from quorumlog.kv.etcd.identity import EtcdIdentity
from quorumlog.kv.etcd.logins import Logins
from quorumlog.kv.requests import LoginRequest, StatusAnswer, StoreStatusRequest
from quorumlog.net.access import WRONG_PAUSE_S
from quorumlog.net.connection import Connection, Decoder, FrameHandler, LastWords
from quorumlog.net.credentials import ClientUser
from quorumlog.net.listener import Listener
from quorumlog.net.rpc.calls import RequestTarget, TargetKind
from quorumlog.net.tls import ClientTls, Tls
from quorumlog.node import NodeHandle
from quorumlog.server import Endpoint

log = logging.getLogger("quorumlog.kv")
ASK_TIMEOUT_S = 1.0
ASK_AGAIN_S = 0.05
KNOWN_S = 5.0
"""Seconds that a member's URL is cached."""


class UserClients:
    """Clients of the stores and of the log of all members, as one user."""

    def __init__(
        self, name: str, store: AsyncKeyValueClient, make_log: Callable[[], AsyncLedgerClient]
    ) -> None:
        """`name` empty: no user. `make_log` makes the client of the log on first use."""
        self.name = name
        self.store = store
        self._make_log = make_log
        self._log: AsyncLedgerClient | None = None
        self.calls: set[LocalCalls] = set()
        """Calls of this user's connections."""
        self.is_closed = False

    def log(self) -> AsyncLedgerClient:
        if self._log is None:
            self._log = self._make_log()
        return self._log

    async def tell_leader(self, login: LoginRequest) -> None:
        await self.store.asking.call(login, bool)

    async def tell_members(self, login: LoginRequest) -> None:
        asking = self.store.asking

        async def tell(address: str) -> None:
            """Other members are optional: at one that misses the login, its clients log in again."""
            target = RequestTarget(TargetKind.ADDRESS, address)
            until_s = time.monotonic() + ASK_TIMEOUT_S
            while (left_s := until_s - time.monotonic()) > 0:
                try:
                    await asking.call(login, bool, target=target, timeout_ms=1000 * left_s)
                    return
                except NotAuthenticated:  # it may not have applied the password yet
                    await asyncio.sleep(ASK_AGAIN_S)
                except LedgerError:
                    return

        await asyncio.gather(*map(tell, asking.addresses))

    @property
    def is_in_use(self) -> bool:
        return bool(self.calls)

    def revoke(self) -> None:
        for each in self.calls:
            each.revoke()

    async def close(self) -> None:
        self.is_closed = True
        await self.store.close()
        if self._log is not None:
            await self._log.close()


class MemberUrls:
    """URLs of the members' ports for clients of etcd, as reported by their stores."""

    def __init__(self, asking: Asking, url_of: Callable[[StatusAnswer], str]) -> None:
        self._asking = asking
        self._url_of = url_of
        self._known: dict[str, StatusAnswer] = {}
        self._asked_s = -KNOWN_S

    async def all(self) -> dict[str, str]:
        """URLs by member id; of a member that does not answer, the last known one."""
        if time.monotonic() - self._asked_s >= KNOWN_S:
            await asyncio.gather(*[self._ask(address) for address in self._asking.addresses])
            self._asked_s = time.monotonic()
        return {each.member_id: url for each in self._known.values() if (url := self._url_of(each))}

    async def _ask(self, address: str) -> None:
        target = RequestTarget(TargetKind.ADDRESS, address)
        with suppress(LedgerError):
            _, self._known[address] = await self._asking.call(
                StoreStatusRequest(), StatusAnswer, target=target, timeout_ms=1000 * ASK_TIMEOUT_S
            )


class EtcdEndpoint(Endpoint):
    """A port for clients of etcd, on a member with a store."""

    name = ""
    """The port's name in the log and in errors."""
    second = ""
    """The option in `[tls]` of the second address."""
    is_http2 = False

    def __init__(
        self,
        store: KeyValueEndpoint,
        listen: str,
        servers: str,
        member_id: str,
        tls: Tls | None = None,
        user: ClientUser | None = None,
    ) -> None:
        """`store`: of the same member. `servers`: the stores of all members, HOST:PORT,... `tls`
        None: the port is plain. `user`: credentials for clients that have not logged in. Raises
        ConfigError."""
        self._listen = parse_address(listen)
        addresses_of(servers)
        self.store = store
        self._servers = servers
        self._member_id = member_id
        self._tls = tls
        self._user = user
        self.group = store.group
        self.logins = Logins(self._clients_as)
        self.nobody: UserClients
        """For clients that have not logged in. Set while the port is open, like those below."""
        self.urls: MemberUrls
        self.identity: EtcdIdentity
        self._member: NodeHandle | None = None
        self._listener = Listener(
            self.name,
            self._connect,
            decoder=self._decoder,
            begin=self._begin,
            last_words=self._last_words(),
            option=f"the address of {self.name}",
            tls=tls,
            second=self.second,
            is_http2=self.is_http2,
        )

    _begin: Callable[[Connection, FrameHandler], None] | None = None
    """See `Listener`."""

    def _decoder(self) -> Decoder:
        raise NotImplementedError

    def _connect(self, connection: Connection) -> None:
        raise NotImplementedError

    def _last_words(self) -> LastWords:
        raise NotImplementedError

    def _url_of(self, status: StatusAnswer) -> str:
        raise NotImplementedError

    async def open(self, member: NodeHandle) -> None:
        """Raises ConfigError."""
        self._member = member
        self.nobody = self._clients_as("" if self._user is None else self._user.name, self._user)
        self.urls = MemberUrls(self.nobody.store.asking, self._url_of)
        self.identity = EtcdIdentity(
            self._member_id,
            # A member that has just been wiped may know it from those that it forwards to.
            lambda: (member.cluster_id if member.is_up else "") or self.nobody.store.asking.cluster_id,
            lambda: member.node().raft.term if member.is_up else 0,
        )
        self._listener.access = self.access
        self.logins.open(self.access)
        host, port = self._listen
        await self._listener.open(host, port)
        log.info(
            "%s listens on %s:%s%s",
            self.name,
            host,
            port,
            self._listener.speaks,
            extra={"event": "listens"},
        )

    def _clients_as(self, name: str, user: ClientUser | None) -> UserClients:
        def make_log() -> AsyncLedgerClient:
            servers = [each.address for each in self.members()]
            return AsyncLedgerClient(
                servers,
                group=self.group or self._group_name,
                timeout_ms=int(1000 * TIMEOUT_S),
                tls=self._tls_to("listen"),
                user=user,
            )

        timeout_ms, tls = 1000 * TIMEOUT_S, self._tls_to("store_listen")
        store = AsyncKeyValueClient(self._servers, timeout_ms=timeout_ms, tls=tls, user=user)
        return UserClients(name, store, make_log)

    @property
    def _group_name(self) -> str:
        assert self._member is not None, "the port is not open"
        return self._member.node().config.group

    def _tls_to(self, second: str) -> ClientTls | None:
        """TLS to a port of the members; None if the port may still be plain at its first address."""
        if self._tls is None:
            return None
        options = self._tls.options
        is_plain = getattr(options, second) and options.peers != "required"
        return None if is_plain else self._tls.as_client()

    @property
    def knows_leader(self) -> bool:
        return self._member is not None and self._member.knows_leader

    async def close(self) -> None:
        self._listener.close()
        self._listener.close_connections()
        await self.logins.close()
        if self._member is not None:
            await self.nobody.close()
        await asyncio.sleep(0)

    def abandon(self) -> None:
        self._listener.close()
        self._listener.abort_connections()

    # ---------------------------------------------------------------- Cluster

    def members(self) -> list[ClusterMember]:
        if self._member is None or not self._member.is_up:
            return []
        node = self._member.node()
        membership = node.status().membership
        addresses = {each.member_id: str(each) for each in node.config.members}
        addresses |= dict(membership.addresses)
        learners = {each.member_id for each in membership.learners}
        ids = sorted({each.member_id for each in membership.members()})
        return [ClusterMember(each, addresses.get(each, ""), each in learners) for each in ids]

    async def confirm(self) -> None:
        member = self._member
        if member is None or not member.is_up:
            raise LeaderNotReady("the member has not started")
        answer: asyncio.Future[LedgerError | None] = asyncio.get_running_loop().create_future()

        def done(refusal: LedgerError | None) -> None:
            if not answer.done():
                answer.set_result(refusal)

        member.enter(lambda: member.confirm_read(done, answer))
        try:
            async with asyncio.timeout(TIMEOUT_S):
                refusal = await answer
        except TimeoutError:
            raise RequestTimeout("no leader has confirmed the members in time") from None
        if refusal is not None:
            raise refusal

    async def client_urls(self) -> dict[str, str]:
        return await self.urls.all()

    def indexes(self) -> tuple[int, int]:
        if self._member is None or not self._member.is_up:
            return 0, 0
        status = self._member.node().status()
        return status.committed_index, status.committed_index


class EtcdClient:
    """The calls of one etcd client's connection, by user: one for each token that it sends."""

    def __init__(self, port: EtcdEndpoint, connection: Connection, carrier: EtcdCarrier) -> None:
        self._port = port
        self._connection = connection
        self._carrier = carrier
        self._of_user: dict[UserClients, tuple[LocalCalls, Handlers]] = {}

    def handlers(self, token: str) -> Handlers:
        """The handlers of a token's user. `token` empty: the client has not logged in. Raises
        RpcError, Overloaded, LeaderNotReady."""
        clients = self._port.nobody
        if token:
            try:
                clients = self._port.logins.connections_of(token)
            except NotAuthenticated:
                raise WRONG_TOKEN from None
        known = self._of_user.get(clients)
        if known is not None:
            return known[1]
        for ended in [each for each in self._of_user if each.is_closed]:
            if self._of_user[ended][0].is_idle:
                self._end(ended)
        forwarded = ForwardedCalls(clients.store)
        calls = LocalCalls(self._port.store, forwarded, self._carrier, clients.name)
        administration = Administration(
            calls, self._port.identity, self._port, clients.log, is_private=self.is_private
        )
        handlers = Handlers(calls, self._port.identity, administration)
        self._of_user[clients] = calls, handlers
        clients.calls.add(calls)
        return handlers

    def _end(self, clients: UserClients) -> None:
        calls, _ = self._of_user.pop(clients)
        clients.calls.discard(calls)
        calls.lost()

    @property
    def is_private(self) -> bool:
        return self._connection.is_encrypted

    async def log_in(self, asked: pb.AuthenticateRequest) -> pb.AuthenticateResponse:
        """The answer to a wrong password is delayed. Raises RpcError, LedgerError."""
        access = self._port.access
        if not access.is_on:
            raise NO_USERS
        if not self.is_private:
            raise PLAIN
        logins, host = self._port.logins, self._connection.peer_host
        try:
            token = await logins.begin(asked.name, asked.password, host)
        except NotAuthenticated:
            logins.wrong(host, WRONG_PAUSE_S)
            access.tell_of_wrong(asked.name, self._connection.peer_name)
            await asyncio.sleep(WRONG_PAUSE_S)
            raise WRONG_PASSWORD from None
        return pb.AuthenticateResponse(header=self._port.identity.header(0), token=token)

    def refusal_of_nobody(self, token: str) -> RpcError:
        """etcd's error for NotAuthenticated."""
        return WRONG_TOKEN if token else NO_USER

    def close(self) -> None:
        for clients in list(self._of_user):
            self._end(clients)
