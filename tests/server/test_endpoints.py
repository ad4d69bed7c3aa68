"""What endpoints ask of a member that begins anew is done by the one in its place."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from quorumlog.node import NodeHandle
from quorumlog.server.endpoints import Endpoint, Endpoints
from quorumlog.version import IS_COMPILED


class Driver:
    """Of a member: acts wait for its next turn, and are forgotten if it stops before."""

    def __init__(self) -> None:
        self.stopped = False
        self.node = self
        self.inbox: list[Callable[[], None]] = []

    def enter(self, connection: None, act: Callable[[], None]) -> None:
        self.inbox.append(act)

    def enter_now(self, act: Callable[[], None]) -> None:
        act()

    def turn(self) -> None:
        inbox, self.inbox = self.inbox, []
        for act in inbox:
            act()


class Product(Endpoint):
    member: NodeHandle

    async def open(self, member: NodeHandle) -> None:
        self.member = member


class Group:
    def __init__(self) -> None:
        self.driver = Driver()
        product = Product()
        self._endpoints = Endpoints([product], ["default"], {}, product.access)
        asyncio.run(self._endpoints.open(lambda group: cast("Any", self.driver)))
        self.member = product.member

    def begins_anew(self) -> None:
        self.driver = Driver()
        self._endpoints.begins_anew("default")


def test_what_the_old_member_has_forgotten_is_done_by_the_new_one() -> None:
    group, done = Group(), list[str]()
    group.member.enter(lambda: done.append("before"))
    group.driver.turn()
    group.member.enter(lambda: done.append("in its inbox"))
    old, old.stopped = group.driver, True
    group.member.enter(lambda: done.append("in between"))
    group.member.enter_now(lambda: done.append("at once"))
    assert not group.member.is_up
    group.begins_anew()
    group.driver.turn()
    assert done == ["before", "in its inbox", "in between", "at once"]
    old.turn()
    group.driver.turn()
    assert len(done) == 4, "once each"


@pytest.mark.skipif(IS_COMPILED, reason="what is compiled takes no stub, and no other method")
def test_what_is_done_at_once_is_not_done_again() -> None:
    group, done = Group(), list[str]()
    group.member.enter_now(lambda: done.append("now"))
    group.begins_anew()
    group.driver.turn()
    assert done == ["now"]
    assert group.member.is_up
