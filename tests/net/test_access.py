"""Who may do what on a connection, and what is kept of that."""

from __future__ import annotations

import sys
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

import pytest

from quorumlog.errors import Forbidden, LeaderNotReady, NotAuthenticated
from quorumlog.log_state.users import (
    ADMINISTRATORS,
    NO_USERS,
    Kind,
    Right,
    RoleGrant,
    User,
    UserRole,
    Users,
    UsersChange,
)
from quorumlog.net.access import (
    CLUSTER_ADMIN,
    MOST_WRONG,
    NOTHING,
    Access,
    Caller,
    Challenging,
    Need,
    audit,
)
from quorumlog.net.credentials import ClientUser, Proof, verifier_for

READS = Need(Right.READ, Kind.LOG, b"a")


def users(*grants: RoleGrant) -> Users:
    return Users(True, b"s" * 32, (User("bob", ("r",)),), (UserRole("r", grants),))


def caller_of(access: Access, user: str = "bob") -> Caller:
    return Caller(access, SimpleNamespace(user=user, peer_name="here:1"))


def test_without_users_nothing_is_checked() -> None:
    access = Access()
    caller = caller_of(access, "")
    assert caller.refusal("k", None) is None
    assert caller.open_in == access.generation


def test_a_right_that_was_taken_is_gone_where_it_was_used_before() -> None:
    access = Access()
    caller = caller_of(access)
    access.learn(users(RoleGrant(Right.READ, Kind.LOG)))
    assert caller.refusal("k", (READS,)) is None and caller.passes("k")
    access.learn(users())
    assert not caller.passes("k")
    assert isinstance(caller.refusal("k", (READS,)), Forbidden)


def test_what_is_kept_of_a_connection_is_small(caplog: pytest.LogCaptureFixture) -> None:
    access = Access()
    caller = caller_of(access)
    access.learn(users(RoleGrant(Right.READ, Kind.KEY, b"a")))
    for size in (1, 300, 1 << 20):
        needs = (Need(Right.READ, Kind.KEY, b"a" * size),)
        assert caller.refusal(needs, needs) is None
        assert caller.passes(needs) == (size == 1)
    many = tuple(Need(Right.READ, Kind.KEY, b"a%d" % number) for number in range(1000))
    assert caller.refusal(many, many) is None and not caller.passes(many)
    for number in range(1000):
        needs = (Need(Right.READ, Kind.KEY, b"b%d" % number + bytes(1 << 16), b"c" * (1 << 16)),)
        assert len(str(caller.refusal(needs, needs))) < 1000
    assert len(caplog.records) < 50 and "512 more were refused" in caplog.text
    assert max(len(record.getMessage()) for record in caplog.records) < 1000


def test_what_was_met_is_not_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    access = Access()
    caller = caller_of(access)
    access.learn(users(RoleGrant(Right.READ, Kind.LOG)))
    assert caller.refusal("k", (READS,)) is None
    monkeypatch.setattr(Need, "is_met", lambda need, rights: False)
    monkeypatch.setattr(Users, "user", lambda users, name: None)
    assert caller.refusal("k", (READS,)) is None
    assert caller.has_name and caller.stranger() is None


def test_a_name_forges_no_line_of_the_audit(caplog: pytest.LogCaptureFixture) -> None:
    access = Access()
    access.learn(users())
    name = "eve\nuser alice at here:2: group default: grant\x1b[2J" + "e" * 1000
    assert "\n" not in str(caller_of(access, name).refusal("k", ()))
    audit.warning("user %s: %s", "alice", "delete group a\nb")
    assert len(caplog.records) == 2
    for record in caplog.records:
        assert record.getMessage().isprintable() and len(record.getMessage()) < 200


def test_wrong_passwords_are_told_once_a_minute_for_an_address(
    caplog: pytest.LogCaptureFixture,
) -> None:
    access = Access()
    access.learn(users())
    now_s = 0.0
    access.clock = lambda: now_s

    def tries(address: str) -> None:
        connection = SimpleNamespace(user="", peer_name=f"{address}:1", certificate=None)
        asking = access.greet(connection, SimpleNamespace(user="bob", looks=False), None)  # type: ignore[arg-type]
        next(asking)
        with pytest.raises(NotAuthenticated):
            asking.send(b"no such thing")

    for _ in range(100):
        tries("here")
    tries("there")
    assert len(caplog.records) == 2
    now_s = 61.0
    tries("here")
    assert "99 more from there" in caplog.records[2].getMessage()
    for number in range(2000):
        tries(f"place {number}")
    assert len(access._wrong) <= MOST_WRONG


def test_what_proves_passwords_is_there_before_somebody_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    access = Access()
    monkeypatch.delitem(sys.modules, "scramp", raising=False)
    access.learn(NO_USERS)
    assert "scramp" not in sys.modules
    access.learn(users())
    assert "scramp" in sys.modules


def test_nobody_is_let_in_while_users_are_not_known() -> None:
    access = Access()
    caller = caller_of(access)
    access.learn(users(RoleGrant(Right.READ, Kind.LOG)))
    assert caller.refusal("k", (READS,)) is None
    access.learn(None, "n0 does not know")
    refusal = caller.refusal("k", (READS,))
    assert isinstance(refusal, LeaderNotReady) and "n0 does not know" in str(refusal)
    assert not caller.passes("k") and not caller.is_admin and caller.is_checked
    assert caller.open_in != access.generation


def test_what_no_table_has_is_refused() -> None:
    access = Access()
    access.learn(Users(True, b"", (User("bob", ("admin",)),)))
    assert isinstance(caller_of(access).refusal("k", None), Forbidden)
    assert caller_of(access).refusal("k", ()) is None
    assert isinstance(caller_of(access, "eve").refusal("k", ()), NotAuthenticated)
    assert isinstance(caller_of(access, "").refusal("k", ()), NotAuthenticated)


def test_who_listens_is_told_and_who_was_not_asked_comes_again() -> None:
    access, told, aborted = Access(), [], []
    access.moved.append(lambda: told.append(access.generation))

    class Asking:
        user, peer_name, certificate = "", "here:1", None

        def abort(self) -> None:
            aborted.append(True)

    connection = Asking()
    hello = SimpleNamespace(user="bob", looks=False)
    assert list(access.greet(connection, hello, None)) == []  # type: ignore[arg-type]
    access.learn(NO_USERS)
    assert not told and not aborted
    access.learn(users())
    assert told == [2] and aborted
    access.learn(None, "unknown")
    with pytest.raises(LeaderNotReady):
        list(access.greet(connection, hello, None))  # type: ignore[arg-type]


def test_while_users_are_not_known_an_administrator_of_before_may_do_what_cannot_wait() -> None:
    access = Access()
    before = users().changed(UsersChange((User("alice", (ADMINISTRATORS,)),)))
    access.learn(None, "not caught up", before)
    alice, bob = caller_of(access, "alice"), caller_of(access, "bob")
    assert alice.refusal("switch", (CLUSTER_ADMIN,), may_be_old=True) is None
    for refused in (
        alice.refusal("switch", (CLUSTER_ADMIN,)),
        alice.refusal("topic", NOTHING),
        bob.refusal("switch", (CLUSTER_ADMIN,), may_be_old=True),
    ):
        assert isinstance(refused, LeaderNotReady)
    access.learn(before)
    assert alice.refusal("topic", NOTHING) is None
    access.good_until_s = -1.0
    assert isinstance(alice.refusal("switch", (CLUSTER_ADMIN,), may_be_old=True), LeaderNotReady)


class Asking:
    """A connection, and the Hello of who says that it is bob."""

    peer_name, certificate = "here:1", None

    def __init__(self) -> None:
        self.user = ""
        self.is_aborted = False

    def abort(self) -> None:
        self.is_aborted = True

    def greets(self, access: Access) -> Challenging:
        return access.greet(self, SimpleNamespace(user="bob", looks=False), None)  # type: ignore[arg-type]

    def proves(self, access: Access, password: str) -> None:
        asking, proof = self.greets(access), Proof(ClientUser("bob", password))
        challenge = next(asking)
        with suppress(StopIteration):
            while True:
                challenge = asking.send(proof.answer(challenge))


def who_proved_a_password_of_before_comes_again_once_the_users_are_known() -> None:
    """Also who is about to prove it, and where bob was removed meanwhile and is another one now."""
    access = Access()
    old = Users(True, b"s" * 32, (User("bob", ("admin",), verifier_for("leaked")),))
    new = Users(True, b"s" * 32, (User("bob", ("admin",), verifier_for("sesame")),))
    access.learn(old)
    before = Asking()
    before.proves(access, "leaked")
    assert before.user == "bob"
    access.learn(None, "not caught up", old)
    late, proving, gone, alike = Asking(), Asking(), Asking(), Asking()
    for each in (late, gone):
        each.proves(access, "leaked")
        assert each.user == "bob" and not each.is_aborted
    next(proving.greets(access))
    access.lost(cast(Any, gone))
    access.learn(None, "not caught up", None)
    assert not late.is_aborted, "nothing newer is known"
    access.learn(new)
    assert late.is_aborted and proving.is_aborted
    assert not gone.is_aborted
    assert not before.is_aborted, "a connection keeps its user"
    with pytest.raises(NotAuthenticated):
        Asking().proves(access, "leaked")
    access.learn(None, "not caught up", old)
    late = Asking()
    late.proves(access, "leaked")
    access.learn(None, "not caught up", new)
    assert late.is_aborted, "it is an administrator by others"
    alike.proves(access, "sesame")
    access.learn(new.changed(UsersChange((User("carl"),))))
    assert not alike.is_aborted, "its password is the one that it has proved"


def test_who_proved_a_password_of_before_comes_again_once_the_users_are_known() -> None:
    who_proved_a_password_of_before_comes_again_once_the_users_are_known()


def test_the_administrator_of_a_broker_that_has_lost_its_users_goes_on_once_it_is_the_first() -> None:
    """It has switched to that broker, as whom a file named."""
    access = Access()
    named, other = (
        Users(True, b"s" * 32, (User("bob", ("admin",), verifier_for(password)),))
        for password in ("sesame", "tahini")
    )
    for users, is_the_same in ((named, True), (other, False)):
        access.learn(None, "its master is lost", named)
        asking = Asking()
        asking.proves(access, "sesame")
        access.learn(Users(is_on=True))
        assert not asking.is_aborted, "it waits for an answer"
        access.learn(users)
        assert asking.is_aborted is not is_the_same
