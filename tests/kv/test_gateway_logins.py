"""Who has logged in at a gateway: how many may, and whom that costs its place."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from quorumlog.errors import NotAuthenticated, Overloaded
from quorumlog.kv.etcd import logins as logins_module
from quorumlog.kv.etcd.logins import (
    MOST_BEGINNING,
    MOST_BEGINNING_OF_ADDRESS,
    MOST_OF_USER,
    Logins,
)
from quorumlog.net.credentials import ClientUser

HERE, THERE = "10.0.0.9", "10.0.0.8"


class Proving:
    """Connections of one user; its password is proved once `go` is set."""

    def __init__(self, user: ClientUser, go: asyncio.Event) -> None:
        self.user = user
        self._go = go
        self.is_closed = False

    async def prove(self) -> None:
        await self._go.wait()

    async def close(self) -> None:
        self.is_closed = True


class Gateway:
    def __init__(self, *, proves: bool = True) -> None:
        self.go = asyncio.Event()
        if proves:
            self.go.set()
        made: Any = lambda user: Proving(user, self.go)  # noqa: E731
        self.logins = Logins(made)

    def log_in(self, name: str, host: str = HERE) -> Any:
        return self.logins.begin(name, "p", host)

    def knows(self, token: str) -> bool:
        try:
            self.logins.connections_of(token)
        except NotAuthenticated:
            return False
        return True


def test_a_user_with_too_many_logins_loses_its_own_and_no_other() -> None:
    async def scene() -> None:
        gateway = Gateway()
        bob = await gateway.log_in("bob")
        of_eve = [await gateway.log_in("eve") for _ in range(300)]
        assert gateway.knows(bob)
        assert [token for token in of_eve if gateway.knows(token)] == of_eve[-MOST_OF_USER:]
        await gateway.logins.close()
        assert not gateway.knows(bob)

    asyncio.run(scene())


def test_where_all_places_are_of_others_nobody_loses_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logins_module, "MOST_LOGINS", 3)

    async def scene() -> None:
        gateway = Gateway()
        tokens = [await gateway.log_in(name) for name in ("a", "b", "c")]
        with pytest.raises(Overloaded, match="3 other logins"):
            await gateway.log_in("d")
        again = await gateway.log_in("b")
        assert [gateway.knows(each) for each in (*tokens, again)] == [True, False, True, True]
        monkeypatch.setattr(logins_module, "KEPT_S", 0.0)
        assert await gateway.log_in("d")
        await gateway.logins.close()

    asyncio.run(scene())


def test_one_address_does_not_take_all_the_places_of_who_logs_in() -> None:
    async def scene() -> None:
        gateway = Gateway(proves=False)
        tasks = [asyncio.create_task(gateway.log_in("a")) for _ in range(MOST_BEGINNING)]
        others = [asyncio.create_task(gateway.log_in("b", THERE)) for _ in range(MOST_BEGINNING)]
        await asyncio.sleep(0)
        assert sum(not task.done() for task in tasks) == MOST_BEGINNING_OF_ADDRESS
        assert sum(not task.done() for task in others) == MOST_BEGINNING - MOST_BEGINNING_OF_ADDRESS
        gateway.go.set()
        told = await asyncio.gather(*tasks, *others, return_exceptions=True)
        refused = [each for each in told if not isinstance(each, str)]
        assert len(refused) == MOST_BEGINNING and all(isinstance(e, Overloaded) for e in refused)
        assert await gateway.log_in("a"), "places are given back"
        assert not gateway.logins._beginning
        await gateway.logins.close()

    asyncio.run(scene())
