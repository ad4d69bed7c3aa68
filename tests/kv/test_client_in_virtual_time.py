"""The very client of the key-value store, and what a gateway forwards, in virtual time, on members that
lose one another while clients reach them all."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from quorumlog.errors import LeaderNotReady, LedgerError, NotLeader, OutcomeUnknown
from quorumlog.kv.client import leasing
from quorumlog.kv.client.async_store import AsyncKeyValueClient
from quorumlog.kv.etcd import messages_pb2 as pb
from quorumlog.kv.etcd.calls import ForwardedCalls
from quorumlog.kv.etcd.handlers import Handlers
from quorumlog.kv.etcd.identity import EtcdIdentity
from quorumlog.kv.etcd.watching import WatchStream
from quorumlog.kv.requests import (
    GROUP,
    AnswerResponse,
    CancelRequest,
    CommandRequest,
    Event,
    EventsResponse,
    Grant,
    GrantAnswer,
    KeepAliveRequest,
    KeyValue,
    Put,
    PutAnswer,
    Request,
    Response,
    Revoke,
    RevokeAnswer,
    StatusAnswer,
    StoreStatusRequest,
    WatchRequest,
    decode_command_of_client,
    done,
    request_decoder,
)
from quorumlog.kv.service import LEADERLESS_TIMEOUTS
from quorumlog.net import system
from quorumlog.net.errors import error_response
from quorumlog.net.frame import encode_frame
from quorumlog.net.hello import STORE, Hello, HelloResponse

ELECTION_S = 0.3
PATIENCE_S = 10.0
FOUND_S = 5.0
"""Whoever has a leader to find finds it within: two silent members are left after 2.1 s each."""
TTL_S = 3.0
"""Longer than a silent failover takes."""
MEMBERS = ("n0", "n1", "n2")
FIRST_PORT = 1000


class NoWaiting(selectors.SelectSelector):
    """What would be waited for is the clock that moves."""

    waited_s: Callable[[float], None]

    def select(self, timeout: float | None = None) -> list[Any]:
        assert timeout is not None, "nothing would ever happen again"
        self.waited_s(timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self.now_s = 0.0
        selector = NoWaiting()
        selector.waited_s = self._wait
        super().__init__(selector)
        self.set_exception_handler(lambda _, failed: self.failures.append(failed))
        self.failures: list[dict[str, Any]] = []
        self.network: Network

    def time(self) -> float:
        return self.now_s

    def _wait(self, timeout_s: float) -> None:
        self.now_s += max(timeout_s, 0.0)

    async def create_connection(self, factory: Any, host: Any, port: Any, **_: Any) -> Any:  # type: ignore[override]
        return await self.network.dial(int(port) - FIRST_PORT, factory())


class Network:
    """Three members. Of those that reach each other most elect a leader; the others know of none after
    an election time-out."""

    def __init__(self, loop: VirtualLoop, random: Random) -> None:
        self._loop = loop
        self._random = random
        self._connections: list[Connection] = []
        self.apart: set[int] = set()
        """Cut off from the other members, and reached by clients."""
        self.silent: set[int] = set()
        self.down: set[int] = set()
        self.leader: int | None = 0
        self.leads_since_s = 0.0
        self._knows: dict[int, int | None] = dict.fromkeys(range(3), 0)
        self._term = 1
        self._terms = dict.fromkeys(range(3), 1)
        self._strikes = 0
        self._ends_s: dict[int, float] = {}
        """When each lease ends by the leader's clock; those that have ended stay."""
        self.puts_s = [0.0, 0.0]
        """When each revision was made."""

    async def dial(self, place: int, client: Any) -> Any:
        await asyncio.sleep(self._random.uniform(0.0005, 0.005))
        if place in self.down:
            raise ConnectionRefusedError(111, "refused")
        connection = Connection(self._loop, self, place, client)
        self._connections.append(connection)
        client.connection_made(connection)
        return connection, client

    def strike(self) -> None:
        """One member at most is not as it should be."""
        self._strikes += 1
        self._end_leases()
        self.apart, self.silent, self.down = set(), set(), set()
        place = self._random.randrange(3)
        kind = self._random.choice(("apart", "apart", "silent", "down", "none"))
        if kind != "none":
            getattr(self, kind).add(place)
        for connection in [each for each in self._connections if each.place in self.down]:
            connection.lose()
        self.tell_watches()
        self._loop.call_later(ELECTION_S, self._notice)
        self._loop.call_later(self._random.uniform(ELECTION_S, 3 * ELECTION_S), self._elect)

    def _notice(self) -> None:
        for place in range(3):
            if place in self.apart or self.leader in self.apart | self.silent | self.down:
                self._knows[place] = None
                for connection in self._of(place):
                    connection.refuse_held()
        self._end_deaf_later(self._strikes)

    def _end_deaf_later(self, strikes: int) -> None:
        self._loop.call_later(LEADERLESS_TIMEOUTS * ELECTION_S, self._end_deaf, strikes)

    def _end_deaf(self, strikes: int) -> None:
        if strikes != self._strikes:
            return
        for place in [each for each in self.apart if self._knows[each] is None]:
            for connection in self._of(place):
                if connection.watches:
                    connection.lose()
        self._end_deaf_later(strikes)

    def _elect(self) -> None:
        able = [each for each in range(3) if each not in self.apart | self.silent | self.down]
        if self.leader not in able:
            self.leader, self.leads_since_s = self._random.choice(able), self._loop.time()
            self._term += 1
            for lease, end_s in self._ends_s.items():
                if end_s > 0:  # whoever begins to lead counts anew
                    self._ends_s[lease] = self._loop.time() + TTL_S
        for place in able:
            self._knows[place] = self.leader
            self._terms[place] = self._term
        self.tell_watches()

    def _end_leases(self) -> None:
        """Nobody else ends one than a leader."""
        if self.leader in self.apart | self.silent | self.down:
            return
        for lease, end_s in self._ends_s.items():
            if end_s <= self._loop.time():
                self._ends_s[lease] = 0.0

    def _of(self, place: int) -> list[Connection]:
        return [each for each in self._connections if each.place == place]

    def tell_watches(self) -> None:
        for connection in list(self._connections):
            if connection.place not in self.apart:
                connection.tell_watches()

    def answer(self, place: int, request: Hello | Request) -> HelloResponse | Response | None:
        """None: nothing is said yet."""
        number = request.request_id
        if isinstance(request, Hello):
            return HelloResponse(
                request_id=number,
                product=STORE,
                cluster_id="c",
                member_id=MEMBERS[place],
                election_timeout_ms=round(ELECTION_S * 1000),
            )
        known = self._knows[place]
        if isinstance(request, StoreStatusRequest):
            return AnswerResponse(request_id=number, answer=done(1, self._status(place)))
        error: LedgerError
        if known is None:
            error = LeaderNotReady("no leader is known")
        elif known != place:
            error = NotLeader("another one leads", leader_id=MEMBERS[known])
        elif place == self.leader and place not in self.apart:
            return AnswerResponse(request_id=number, answer=self._carried_out(request))
        elif isinstance(request, KeepAliveRequest):
            return None  # it asks the others whether it leads still
        else:
            error = LeaderNotReady("too few members answer")
        return error_response(number, error)

    def _status(self, place: int) -> StatusAnswer:
        known = self._knows[place]
        role = "leader" if known == place else "follower"
        leader_id = "" if known is None else MEMBERS[known]
        return StatusAnswer(MEMBERS[place], "c", role, self._terms[place], leader_id)

    def _carried_out(self, request: Request) -> bytes:
        self._end_leases()
        revision, now_s = len(self.puts_s) - 1, self._loop.time()
        if isinstance(request, KeepAliveRequest):
            (lease,) = request.leases
            is_alive = self._ends_s[lease] > 0
            if is_alive:
                self._ends_s[lease] = now_s + TTL_S
            return done(revision, [round(TTL_S * 1000) if is_alive else 0])
        assert isinstance(request, CommandRequest), request
        command = decode_command_of_client(request.command)
        if isinstance(command, Grant):
            lease = len(self._ends_s) + 1
            self._ends_s[lease] = now_s + TTL_S
            return done(revision, GrantAnswer(lease, round(TTL_S * 1000), 0))
        if isinstance(command, Revoke):
            self._ends_s[command.lease] = 0.0
            return done(revision, RevokeAnswer())
        assert isinstance(command, Put), command
        self.puts_s.append(now_s)
        self._loop.call_later(0.002, self.tell_watches)
        return done(revision + 1, PutAnswer())

    def drop(self, connection: Connection) -> None:
        if connection in self._connections:
            self._connections.remove(connection)


class Connection(asyncio.Transport):
    def __init__(self, loop: VirtualLoop, network: Network, place: int, client: Any) -> None:
        super().__init__()
        self.place = place
        self._loop = loop
        self._network = network
        self._client = client
        self._decoder = request_decoder()
        self._is_closing = False
        self.watches: dict[int, int] = {}
        """The next revision of each."""
        self._held: list[int] = []
        """What is asked, and is not answered before it is known who leads."""

    def write(self, data: Any) -> None:
        for frame in self._decoder.receive_data(data):
            self._loop.call_later(0.002, self._serve, frame.message)

    def _serve(self, request: Hello | Request) -> None:
        if self.place in self._network.silent or self._is_closing:
            return
        number = request.request_id
        if isinstance(request, WatchRequest):
            self.watches[number] = first = request.first_revision or len(self._network.puts_s)
            self._say(EventsResponse(request_id=number, next_revision=first, events=[]))
            if self.place not in self._network.apart:
                self.tell_watches()
        elif isinstance(request, CancelRequest):
            self.watches.pop(request.watch, None)
        else:
            answer = self._network.answer(self.place, request)
            if answer is None:
                self._held.append(number)
            else:
                self._say(answer)

    def refuse_held(self) -> None:
        held, self._held = self._held, []
        for number in held:
            self._say(error_response(number, LeaderNotReady("it leads no more")))

    def tell_watches(self) -> None:
        """What has changed since they were told last."""
        if self.place in self._network.silent:
            return
        stop = len(self._network.puts_s)
        for number, first in self.watches.items():
            if first < stop:
                events = [Event(KeyValue(b"k", 1, each, each, b"")) for each in range(first, stop)]
                self._say(EventsResponse(request_id=number, next_revision=stop, events=events))
                self.watches[number] = stop

    def _say(self, message: HelloResponse | Response) -> None:
        self._loop.call_later(0.002, self._tell, b"".join(encode_frame(GROUP, message)))

    def _tell(self, answer: bytes) -> None:
        rest = memoryview(answer)
        while rest and not self._is_closing:
            into = self._client.get_buffer(-1)
            count = min(len(rest), len(into))
            into[:count] = rest[:count]
            self._client.buffer_updated(count)
            rest = rest[count:]

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        self.lose()

    def abort(self) -> None:
        self.lose()

    def lose(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._network.drop(self)
            self._loop.call_soon(self._client.connection_lost, None)


class Run:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.loop, self.random = VirtualLoop(), Random(seed)
        self.loop.network = self.network = Network(self.loop, self.random)
        self.until_s = 60.0
        self._clients: list[AsyncKeyValueClient[bytes]] = []
        self._endless: list[asyncio.Task[None]] = []

    def client(self) -> AsyncKeyValueClient[bytes]:
        order = list(range(3))
        Random(self.seed * 7 + len(self._clients)).shuffle(order)
        servers = ",".join(f"127.0.0.1:{FIRST_PORT + each}" for each in order)
        self._clients.append(AsyncKeyValueClient(servers, timeout_ms=1000 * PATIENCE_S))
        return self._clients[-1]

    def check(self, what: str, since_s: float) -> None:
        """A leader that was there for long enough was found, whoever else knew of none."""
        late_s = self.loop.time() - max(since_s, self.network.leads_since_s)
        assert late_s < FOUND_S, (what, self.seed, late_s, self.network.__dict__)

    async def puts(self, put: Callable[[], Any]) -> int:
        made = 0
        while (began_s := self.loop.time()) < self.until_s:
            try:
                await put()
                made += 1
            except OutcomeUnknown:
                pass
            self.check("put", began_s)
            await asyncio.sleep(0.01)
        return made

    async def lease(self, kv: AsyncKeyValueClient[bytes]) -> None:
        """It is kept alive by its own task."""
        async with await kv.grant(TTL_S) as lease:
            while self.loop.time() < self.until_s:
                await asyncio.sleep(0.1)
                assert lease.is_alive, ("lease", self.seed, self.loop.time(), self.network.__dict__)

    async def watch(self, kv: AsyncKeyValueClient[bytes]) -> None:
        """Every revision, in order and in time."""
        async with kv.watch("k") as changes:
            heard = self.hears(changes.next_revision)
            while True:
                heard += [change.revision for change in await changes.batch()]

    def hears(self, first: int) -> list[int]:
        """What was heard is put there; it is looked at until the end."""
        heard: list[int] = []

        async def look() -> None:
            while True:
                await asyncio.sleep(0.1)
                assert heard == list(range(first, first + len(heard))), (first, heard[-10:])
                next_revision = first + len(heard)
                if next_revision < len(self.network.puts_s):
                    self.check(f"revision {next_revision}", self.network.puts_s[next_revision])

        self.endless(look())
        return heard

    def endless(self, work: Coroutine[Any, Any, None]) -> None:
        """Until all else is over."""
        self._endless.append(self._group.create_task(work))

    async def gateway(self) -> int:
        client = self.client()
        identity = EtcdIdentity("n0", lambda: client.asking.cluster_id)
        handlers = Handlers(ForwardedCalls(client), identity, cast(Any, None))

        async def keep_alive() -> None:
            lease = (await handlers.grant(pb.LeaseGrantRequest(TTL=round(TTL_S)))).ID
            while (began_s := self.loop.time()) < self.until_s:
                told = await handlers.keep_alive(pb.LeaseKeepAliveRequest(ID=lease))
                self.check("keep-alive", began_s)
                left = self.network.leads_since_s > began_s  # as late as the election it lives anew
                assert told.TTL or left, told
                await asyncio.sleep(TTL_S / 3)

        async def watch() -> None:
            told: asyncio.Queue[pb.WatchResponse] = asyncio.Queue()
            stream = WatchStream(handlers, told.put, lambda more: "")
            stream.ask(pb.WatchRequest(create_request=pb.WatchCreateRequest(key=b"k")))
            created = await told.get()
            heard = self.hears(created.header.revision + 1)
            while True:
                heard += [event.kv.mod_revision for event in (await told.get()).events]

        self.endless(watch())
        asked = pb.PutRequest(key=b"k")
        made, _ = await asyncio.gather(self.puts(lambda: handlers.put(asked)), keep_alive())
        return made

    async def all_verbs(self, *, together: bool) -> int:
        """`together`: of one client, on one connection."""
        kv = self.client()
        others = [kv, kv] if together else [self.client(), self.client()]
        self.endless(self.watch(others[0]))
        made, _ = await asyncio.gather(self.puts(lambda: kv.put("k", b"")), self.lease(others[1]))
        return made

    async def faults(self) -> None:
        while True:
            await asyncio.sleep(self.random.uniform(6.0, 12.0))
            self.network.strike()

    async def whole(self) -> int:
        clients = (self.all_verbs(together=True), self.all_verbs(together=False), self.gateway())
        try:
            async with asyncio.TaskGroup() as self._group:
                self.endless(self.faults())
                made = await asyncio.gather(*clients)
                for each in self._endless:
                    each.cancel()
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None
        finally:
            for kv in self._clients:
                await kv.close()
            left = asyncio.all_tasks() - {asyncio.current_task()}
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
        return sum(made)


def run(seed: int) -> int:
    """How many puts were made."""
    running = Run(seed)
    try:
        made = running.loop.run_until_complete(running.whole())
        assert not running.loop.failures, running.loop.failures[0]
        return made
    finally:
        running.loop.close()


@pytest.mark.parametrize("seed", range(5))
def test_puts_leases_watches_and_a_gateway_go_on_wherever_most_members_have_a_leader(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_virtual_time(seed, monkeypatch)


def in_virtual_time(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def now_s(_: object = None) -> float:
        return asyncio.get_running_loop().time()

    clock = SimpleNamespace(monotonic=now_s, clock_gettime=now_s, CLOCK_BOOTTIME=None)
    for module in (leasing, system):
        monkeypatch.setattr(module, "time", clock)
    assert run(seed) > 1500


def test_one_watch_asks_for_all_while_a_member_does_not_know_the_users() -> None:
    """Thousands on its loop would keep it from learning them."""
    loop = VirtualLoop()
    asked_s: list[float] = []

    class Watched:
        next_revision = 8

        async def began(self) -> None:
            asked_s.append(loop.time())
            if loop.time() < 4.0:
                raise LeaderNotReady("the users are not known")

        async def batch(self) -> list[Event]:
            return await loop.create_future()

        async def close(self) -> None:
            pass

    async def told() -> list[pb.WatchResponse]:
        heard: asyncio.Queue[pb.WatchResponse] = asyncio.Queue()
        calls = SimpleNamespace(watch=lambda asked: Watched())
        handlers = Handlers(cast(Any, calls), EtcdIdentity("n0", lambda: "c"), cast(Any, None))
        stream = WatchStream(handlers, heard.put, lambda more: "")
        for _ in range(100):
            stream.ask(pb.WatchRequest(create_request=pb.WatchCreateRequest(key=b"k")))
        created = [await heard.get() for _ in range(100)]
        stream.close()
        return created

    created = loop.run_until_complete(told())
    loop.close()
    assert {each.watch_id for each in created if not each.canceled} == set(range(100))
    assert len(asked_s) < 300


def clients_go_on_wherever_most_members_have_a_leader() -> None:
    for seed in range(5):
        with pytest.MonkeyPatch.context() as patch:
            in_virtual_time(seed, patch)
