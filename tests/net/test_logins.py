"""Tokens: who has one, how long it counts, and what ends it."""

from __future__ import annotations

from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from quorumlog.errors import LeaderNotReady, NotAuthenticated, Overloaded
from quorumlog.log_state.users import User, Users, UsersChange
from quorumlog.net import logins as logins_module
from quorumlog.net.access import Access
from quorumlog.net.credentials import ClientUser, Proof, TokenUser, verifier_for
from quorumlog.net.logins import MOST_OF_USER, Login, Token, new_token, token_of

SESAME, TAHINI = verifier_for("sesame"), verifier_for("tahini")


def users(*named: User) -> Users:
    return Users(True, b"s" * 32, (User("root", ("admin",)), *named))


class Member:
    """Whose users are bob and eve, unless it learns otherwise."""

    def __init__(self) -> None:
        self.access = Access()
        self.now_s = 0.0
        self.access.clock = lambda: self.now_s
        self.ended: list[str] = []
        self.access.logins.ended.append(lambda login: self.ended.append(login.user))
        self.learn(User("bob", (), SESAME), User("eve", (), TAHINI))

    def learn(self, *named: User) -> None:
        self.access.learn(users(*named))

    def log_in(self, name: str, password: str, token: Token | None = None) -> Token:
        connection = Caller()
        connection.proves(self.access, ClientUser(name, password))
        return self.log_in_on(connection, token)

    def log_in_on(self, connection: Any, token: Token | None = None) -> Token:
        token = token or new_token()
        verifier = verifier_for(token.secret)
        self.access.log_in(connection, token.login_id, token.digest, verifier)
        return token

    def user_of(self, token: Token) -> str | None:
        """Who says it; None: nobody that is known."""
        try:
            return self.access.logins.login_of(token_of(str(token))).user
        except NotAuthenticated:
            return None


class Caller:
    """A connection."""

    certificate, peer_name = None, "here:1"

    def __init__(self) -> None:
        self.user, self.password = "", None
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True

    def greets(self, access: Access, name: str) -> Any:
        return access.greet(self, SimpleNamespace(user=name, looks=False), None)  # type: ignore[arg-type]

    def proves(self, access: Access, user: ClientUser) -> None:
        asking, proof = self.greets(access, user.name), Proof(user)
        challenge = next(asking)
        with suppress(StopIteration):
            while True:
                challenge = asking.send(proof.answer(challenge))


def a_token_is_of_its_user_until_the_password_is_another_one() -> None:
    member = Member()
    bob, eve = member.log_in("bob", "sesame"), member.log_in("eve", "tahini")
    assert (member.user_of(bob), member.user_of(eve)) == ("bob", "eve")
    by_token = Caller()
    by_token.proves(member.access, TokenUser(*bob))
    assert by_token.user == "bob" and by_token.password is None
    member.learn(User("bob", (), TAHINI), User("eve", (), TAHINI))
    assert (member.user_of(bob), member.user_of(eve)) == (None, "eve")
    assert member.ended == ["bob"]
    assert by_token.is_closed, "what it has begun does not go on"
    again = Caller()
    with suppress(NotAuthenticated):
        again.proves(member.access, TokenUser(*bob))
    assert again.user == ""
    member.learn(User("bob", (), TAHINI))
    assert member.user_of(eve) is None, "it was removed"


def test_a_token_is_of_its_user_until_the_password_is_another_one() -> None:
    a_token_is_of_its_user_until_the_password_is_another_one()


def a_password_of_before_gives_no_token() -> None:
    """Its connection keeps its user; a token would outlive it."""
    member = Member()
    connection = Caller()
    connection.proves(member.access, ClientUser("bob", "sesame"))
    member.learn(User("bob", (), TAHINI))
    assert connection.user == "bob"
    token = new_token()
    with suppress(NotAuthenticated):
        member.log_in_on(connection, token)
    assert member.user_of(token) is None


def test_a_password_of_before_gives_no_token() -> None:
    a_password_of_before_gives_no_token()


def a_token_costs_members_no_more_to_prove_than_a_password() -> None:
    member = Member()
    connection, token = Caller(), new_token()
    connection.proves(member.access, ClientUser("bob", "sesame"))
    for verifier in (
        msgspec.structs.replace(verifier_for(token.secret), iterations=1_000_000),
        msgspec.structs.replace(verifier_for(token.secret), salt=b"s"),
    ):
        with suppress(NotAuthenticated):
            member.access.log_in(connection, token.login_id, token.digest, verifier)
        assert member.user_of(token) is None


def test_a_token_costs_members_no_more_to_prove_than_a_password() -> None:
    a_token_costs_members_no_more_to_prove_than_a_password()


def test_a_token_says_no_secret_where_it_is_shown() -> None:
    token = new_token()
    assert token.secret not in repr(token) and token.login_id in repr(token)


def test_who_has_proved_no_password_gets_no_token() -> None:
    member = Member()
    by_token = Caller()
    by_token.proves(member.access, TokenUser(*member.log_in("bob", "sesame")))
    by_certificate = Caller()
    by_certificate.user = "bob"
    for connection in (by_token, by_certificate, Caller()):
        with pytest.raises(NotAuthenticated, match="the password that it has now"):
            member.log_in_on(connection)
    proved = Caller()
    proved.proves(member.access, ClientUser("bob", "sesame"))
    member.access.learn(None, "not caught up")
    with pytest.raises(LeaderNotReady):
        member.log_in_on(proved)


def test_nobody_takes_the_login_of_another_user() -> None:
    member = Member()
    bob = member.log_in("bob", "sesame")
    with pytest.raises(NotAuthenticated, match="another login with this id"):
        member.log_in("eve", "tahini", Token(bob.login_id, "mine"))
    assert member.log_in("bob", "sesame", bob) == bob, "told once more"
    assert member.user_of(bob) == "bob"


@pytest.mark.parametrize("said", ["", ".", "login", "\ud800", "x" * 100_000])
def test_what_is_no_token_is_of_nobody(said: str) -> None:
    member = Member()
    bob = member.log_in("bob", "sesame")
    for token in (said, f"{bob.login_id}.{said}", f"{said}.{bob.secret}", bob.login_id, f"{bob}x"):
        with pytest.raises(NotAuthenticated):
            member.access.logins.login_of(token_of(token))


def test_a_real_user_whose_name_is_that_of_a_login_proves_its_password() -> None:
    member = Member()
    token = new_token()
    member.learn(User("bob", (), SESAME), User(token.login_id, (), TAHINI))
    member.log_in("bob", "sesame", token)
    connection = Caller()
    connection.proves(member.access, ClientUser(token.login_id, "tahini"))
    assert connection.user == token.login_id


def test_a_token_ends_when_it_is_not_used() -> None:
    member = Member()
    used, unused = member.log_in("bob", "sesame"), member.log_in("bob", "sesame")
    member.now_s = 299.0
    assert member.user_of(used) == "bob"
    member.now_s = 301.0
    assert member.user_of(unused) is None and member.user_of(used) == "bob"
    assert member.ended == ["bob"]
    with pytest.raises(NotAuthenticated):
        Caller().proves(member.access, TokenUser(*unused))
    asking = Caller().greets(member.access, used.login_id)
    next(asking)
    member.now_s = 700.0
    assert member.user_of(used) is None, "who only says its id has not used it"


def test_a_user_with_too_many_logins_loses_its_own_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    logins = Member().access.logins

    def add(user: str) -> Token:
        token = new_token()
        logins.add(Login(token.login_id, user, SESAME, token.digest, SESAME))
        return token

    def knows(token: Token) -> bool:
        return logins.find(token.login_id) is not None

    bob, of_eve = add("bob"), [add("eve") for _ in range(MOST_OF_USER + 5)]
    assert knows(bob) and [knows(each) for each in of_eve] == 5 * [False] + MOST_OF_USER * [True]
    monkeypatch.setattr(logins_module, "MOST_LOGINS", MOST_OF_USER + 1)
    with pytest.raises(Overloaded, match="other logins"):
        add("carl")
    again = add("bob")
    assert knows(again) and not knows(bob)


def test_who_proves_a_token_while_its_password_changes_is_not_let_in() -> None:
    member = Member()
    bob = TokenUser(*member.log_in("bob", "sesame"))
    connection, proof = Caller(), Proof(bob)
    asking = connection.greets(member.access, bob.name)
    challenge = next(asking)
    for _ in range(2):
        challenge = asking.send(proof.answer(challenge))
    member.learn(User("bob", (), TAHINI))
    with pytest.raises(NotAuthenticated):
        asking.send(proof.answer(challenge))
    assert connection.user == ""


def test_users_of_a_change_that_touches_no_password_keep_their_tokens() -> None:
    member = Member()
    bob = member.log_in("bob", "sesame")
    known = member.access.users
    assert known is not None
    member.access.learn(known.changed(UsersChange((User("carl"),))))
    member.access.learn(None, "not caught up")
    assert member.user_of(bob) == "bob"
