"""The very router of the key-value store's clients, in virtual time, on members that lose one another
while clients reach them all."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from quorumlog.errors import LeaderNotReady, LedgerError, NotLeader, OutcomeUnknown
from quorumlog.kv.client import router as routing
from quorumlog.kv.client.router import Router
from quorumlog.kv.requests.answers import PutAnswer, done
from quorumlog.kv.requests.frames import FROM_CLIENT_BYTES, FrameReader, Kind, Welcome, frame
from quorumlog.wire.wire_errors import error_response

ELECTION_S = 0.3
PATIENCE_S = 10.0
FOUND_S = 5.0
"""Whoever has a leader to find finds it within: two silent members are left after 2.1 s each."""
MEMBERS = ("n0", "n1", "n2")
FIRST_PORT = 1000
encode = msgspec.msgpack.encode


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
        self.apart, self.silent, self.down = set(), set(), set()
        place = self._random.randrange(3)
        kind = self._random.choice(("apart", "apart", "silent", "down", "none"))
        if kind != "none":
            getattr(self, kind).add(place)
        for connection in [each for each in self._connections if each.place in self.down]:
            connection.lose()
        self._loop.call_later(ELECTION_S, self._notice)
        self._loop.call_later(self._random.uniform(ELECTION_S, 3 * ELECTION_S), self._elect)

    def _notice(self) -> None:
        for place in range(3):
            if place in self.apart or self.leader in self.apart | self.silent | self.down:
                self._knows[place] = None

    def _elect(self) -> None:
        able = [each for each in range(3) if each not in self.apart | self.silent | self.down]
        if self.leader not in able:
            self.leader, self.leads_since_s = self._random.choice(able), self._loop.time()
        for place in able:
            self._knows[place] = self.leader

    def answer(self, place: int, kind: int) -> tuple[Kind, bytes]:
        if kind == Kind.HELLO:
            return Kind.WELCOME, encode(Welcome(1, "c", MEMBERS[place], round(ELECTION_S * 1000)))
        known = self._knows[place]
        error: LedgerError
        if known is None:
            error = LeaderNotReady("no leader is known")
        elif known != place:
            error = NotLeader("another one leads", leader_id=MEMBERS[known])
        elif place == self.leader and place not in self.apart:
            return Kind.ANSWER, done(7, PutAnswer())
        else:
            error = LeaderNotReady("too few members answer")
        return Kind.ERROR, encode(error_response(0, error))

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
        self._reader = FrameReader(FROM_CLIENT_BYTES)
        self._is_closing = False

    def write(self, data: Any) -> None:
        for number, kind, _ in self._reader.receive(bytes(data)):
            self._loop.call_later(0.002, self._serve, number, kind)

    def _serve(self, number: int, kind: int) -> None:
        if self.place not in self._network.silent and not self._is_closing:
            answer = frame(number, *self._network.answer(self.place, kind))
            self._loop.call_later(0.002, self._tell, answer)

    def _tell(self, answer: bytes) -> None:
        if not self._is_closing:
            self._client.data_received(answer)

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


def run(seed: int) -> int:
    """How many puts were made."""
    loop, random = VirtualLoop(), Random(seed)
    loop.network = network = Network(loop, random)

    async def client(number: int, until_s: float) -> int:
        order = list(range(3))
        Random(seed * 7 + number).shuffle(order)
        router, made = (
            Router(",".join(f"127.0.0.1:{FIRST_PORT + each}" for each in order), PATIENCE_S),
            0,
        )
        while (began_s := loop.time()) < until_s:
            try:
                await router.call(Kind.COMMAND, b"put", PutAnswer, changes=True)
                made += 1
            except OutcomeUnknown:
                pass
            # A leader that was there for long enough was found, whoever else knew of none.
            found_s = loop.time() - max(began_s, network.leads_since_s)
            assert found_s < FOUND_S, (seed, number, found_s, network.__dict__)
            await asyncio.sleep(0.01)
        await router.close()
        return made

    async def faults(until_s: float) -> None:
        while loop.time() < until_s:
            await asyncio.sleep(random.uniform(6.0, 12.0))
            network.strike()

    async def whole() -> int:
        until_s = 120.0
        made = await asyncio.gather(*(client(number, until_s) for number in range(3)), faults(until_s))
        return sum(each for each in made if each is not None)

    try:
        return loop.run_until_complete(whole())
    finally:
        loop.close()


@pytest.mark.parametrize("seed", range(5))
def test_puts_go_on_wherever_most_members_have_a_leader(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_virtual_time(seed, monkeypatch)


def in_virtual_time(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(monotonic=lambda: asyncio.get_running_loop().time())
    monkeypatch.setattr(routing, "time", clock)
    assert run(seed) > 3000


def puts_go_on_wherever_most_members_have_a_leader() -> None:
    for seed in range(5):
        with pytest.MonkeyPatch.context() as patch:
            in_virtual_time(seed, patch)
