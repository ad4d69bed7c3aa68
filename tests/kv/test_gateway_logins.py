"""Who has logged in at a port for clients of etcd: how many may at a time, and what a token leads to."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable

import pytest

from quorumlog.errors import LeaderNotReady, NotAuthenticated, Overloaded, Unreachable
from quorumlog.kv.etcd.logins import MOST_BEGINNING, MOST_BEGINNING_OF_ADDRESS, Logins
from quorumlog.kv.requests import LoginRequest
from quorumlog.log_state.users import User, Users
from quorumlog.net.access import Access
from quorumlog.net.credentials import ClientUser, verifier_for
from quorumlog.net.logins import KEPT_S, Login

HERE, THERE = "10.0.0.9", "10.0.0.8"
SESAME, TAHINI = verifier_for("sesame"), verifier_for("tahini")


class Member:
    """It tells itself, and the others once `go` is set."""

    def __init__(self) -> None:
        self.access = Access()
        self.now_s = 0.0
        self.learn(SESAME)
        self.go = asyncio.Event()
        self.go.set()
        self.hears = True
        self.others_hear = asyncio.Event()
        self.others_hear.set()
        self.refusal: Exception | None = None
        self.made: list[Connections] = []
        self.logins = Logins(self.connect_as)
        self.logins.open(self.access)

    def learn(self, password: object) -> None:
        names = ("a", "b", "bob")
        self.access.learn(Users(True, b"s" * 32, tuple(User(name, (), password) for name in names)))  # type: ignore[arg-type]

    def connect_as(self, name: str, user: ClientUser) -> Connections:
        self.made.append(Connections(self, name, user))
        return self.made[-1]

    async def log_in(self, name: str, host: str = HERE) -> str:
        return await self.logins.begin(name, "sesame", host)


class Connections:
    def __init__(self, member: Member, name: str, user: ClientUser) -> None:
        self.member, self.name, self.user = member, name, user
        self.is_closed = self.is_revoked = False
        self.is_in_use = True

    async def tell_members(self, login: LoginRequest) -> None:
        await self.member.others_hear.wait()

    async def tell_leader(self, login: LoginRequest) -> None:
        await self.member.go.wait()
        if self.member.refusal is not None:
            raise self.member.refusal
        if self.member.hears:
            self.member.access.logins.add(
                Login(login.login_id, self.name, SESAME, login.digest, login.verifier)
            )

    def revoke(self) -> None:
        self.is_revoked = True

    async def close(self) -> None:
        self.is_closed = True


def test_a_token_leads_to_connections_that_have_no_password() -> None:
    async def scene() -> None:
        member = Member()
        token = await member.log_in("bob")
        connections = member.logins.connections_of(token)
        assert connections is member.logins.connections_of(token)
        assert connections.name == "bob" and connections.user.is_token
        assert connections.user.password() in token
        with pytest.raises(NotAuthenticated):
            member.logins.connections_of(token + "x")
        await member.logins.close()
        assert all(each.is_closed for each in member.made)
        assert not connections.is_revoked

    asyncio.run(scene())


def connections_end_with_the_password() -> None:
    async def scene() -> None:
        member = Member()
        token = await member.log_in("bob")
        connections = member.logins.connections_of(token)
        member.learn(TAHINI)
        assert connections.is_revoked
        with pytest.raises(NotAuthenticated):
            member.logins.connections_of(token)
        await member.logins.close()
        assert connections.is_closed

    asyncio.run(scene())


def test_connections_end_with_the_password() -> None:
    connections_end_with_the_password()


def streams_that_have_outlived_their_token_end_with_the_password() -> None:
    async def scene() -> None:
        member = Member()
        member.access.clock = lambda: member.now_s
        in_use, idle = [await member.log_in(name) for name in ("bob", "a")]
        watched, unused = (member.logins.connections_of(each) for each in (in_use, idle))
        unused.is_in_use = False
        member.now_s += KEPT_S + 1
        with pytest.raises(NotAuthenticated):
            member.logins.connections_of(in_use)
        assert not watched.is_revoked
        member.learn(TAHINI)
        assert watched.is_revoked and not unused.is_revoked
        await member.logins.close()

    asyncio.run(scene())


def test_streams_that_have_outlived_their_token_end_with_the_password() -> None:
    streams_that_have_outlived_their_token_end_with_the_password()


def test_a_secret_that_no_login_makes_is_no_token() -> None:
    async def scene() -> None:
        member = Member()
        login_id, digest = "login-" + "0" * 32, hashlib.sha256(b"").digest()
        member.access.logins.add(Login(login_id, "bob", SESAME, digest, SESAME))
        with pytest.raises(NotAuthenticated):
            member.logins.connections_of(f"{login_id}.")
        await member.logins.close()

    asyncio.run(scene())


def test_a_member_that_is_silent_keeps_nobody_from_logging_in() -> None:
    async def scene() -> None:
        member = Member()
        member.others_hear.clear()
        waiting = [asyncio.create_task(member.log_in("a")) for _ in range(MOST_BEGINNING_OF_ADDRESS)]
        while member.logins.telling < len(waiting):
            await asyncio.sleep(0)
        more = [asyncio.create_task(member.log_in("b")) for _ in range(MOST_BEGINNING_OF_ADDRESS)]
        while member.logins.telling < len(waiting) + len(more):
            await asyncio.sleep(0)
        member.others_hear.set()
        assert all(await asyncio.gather(*waiting, *more))
        await member.logins.close()

    asyncio.run(scene())


def test_a_login_that_the_leader_refuses_or_that_is_not_known_here_gives_no_token() -> None:
    async def scene() -> None:
        member = Member()
        for refusal in (NotAuthenticated("wrong"), Unreachable("nobody is there")):
            member.refusal = refusal
            with pytest.raises(type(refusal)):
                await member.log_in("bob")
        member.refusal, member.hears = None, False
        with pytest.raises(LeaderNotReady):
            await member.log_in("bob")
        await member.logins.close()
        assert all(each.is_closed for each in member.made)

    asyncio.run(scene())


def test_one_address_does_not_take_all_the_places_of_who_logs_in() -> None:
    async def scene() -> None:
        member = Member()
        member.go.clear()
        tasks = [asyncio.create_task(member.log_in("a")) for _ in range(MOST_BEGINNING)]
        others = [asyncio.create_task(member.log_in("b", THERE)) for _ in range(MOST_BEGINNING)]
        await asyncio.sleep(0)
        assert sum(not task.done() for task in tasks) == MOST_BEGINNING_OF_ADDRESS
        assert sum(not task.done() for task in others) == MOST_BEGINNING - MOST_BEGINNING_OF_ADDRESS
        member.go.set()
        told = await asyncio.gather(*tasks, *others, return_exceptions=True)
        refused = [each for each in told if not isinstance(each, str)]
        assert len(refused) == MOST_BEGINNING and all(isinstance(e, Overloaded) for e in refused)
        assert await member.log_in("a"), "places are given back"
        await member.logins.close()

    asyncio.run(scene())


def test_wrong_passwords_count_for_their_address_until_they_are_answered() -> None:
    async def scene() -> None:
        member, loop = Member(), asyncio.get_running_loop()
        overs: list[Callable[[], None]] = []
        loop.call_later = lambda delay, over, *args, **more: overs.append(over)  # type: ignore[assignment,misc,return-value]
        member.refusal = NotAuthenticated("wrong")
        for _ in range(MOST_BEGINNING_OF_ADDRESS):
            with pytest.raises(NotAuthenticated):
                await member.log_in("bob")
            member.logins.wrong(HERE, 1.0)
        with pytest.raises(Overloaded):
            await member.log_in("bob")
        with pytest.raises(Overloaded):
            await member.logins.begin("bob", "x" * 100_000, HERE)  # which is nobody's password
        member.refusal = None
        assert await member.log_in("bob", THERE)
        overs.pop()()
        assert await member.log_in("bob")
        await member.logins.close()

    asyncio.run(scene())
