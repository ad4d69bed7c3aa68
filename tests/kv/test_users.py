"""Rights on keys, as clients of the store meet them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, get_args

import pytest

from quorumlog.client import connect as log_of
from quorumlog.errors import Forbidden, LedgerError, NotAuthenticated
from quorumlog.kv import (
    AsyncKeyValueClient,
    Compare,
    KeyValueClient,
    Put,
    Range,
    Relation,
    Target,
    connect,
    requests,
)
from quorumlog.kv.endpoint import _Client
from quorumlog.kv.errors import InvalidRequest
from quorumlog.kv.needs import NEEDS, OPERATIONS
from quorumlog.kv.requests import AnswerResponse, CommandRequest, QuestionRequest, done, encode
from quorumlog.kv.testing import LocalStores
from quorumlog.log_state.users import (
    Kind,
    Right,
    RoleGrant,
    User,
    UserOperation,
    UserOrder,
    UserRole,
    Users,
)
from quorumlog.measures import Requests
from quorumlog.net.access import Access
from quorumlog.net.credentials import ClientUser, verifier_for
from quorumlog.net.frame import Frame

ALICE, BOB = ClientUser("alice", "sesame"), ClientUser("bob", "tahini")


def key(right: Right, prefix: bytes, *, is_exact: bool = False) -> RoleGrant:
    return RoleGrant(right, Kind.KEY, prefix, is_exact)


MINE = (key(Right.READ, b"mine/"), key(Right.WRITE, b"mine/"), key(Right.READ, b"one", is_exact=True))


@pytest.fixture(scope="module")
def stores() -> Iterator[LocalStores]:
    with LocalStores() as made:
        with log_of(made.cluster.servers) as log:
            admin = UserOrder(UserOperation.ADD_USER, "alice", ("admin",), (), verifier_for("sesame"))
            log.change_users(admin)
        with log_of(made.cluster.servers, user=ALICE) as log:
            log.change_users(UserOrder(UserOperation.ADD_ROLE, "mine", (), MINE))
            log.change_users(
                UserOrder(UserOperation.ADD_USER, "bob", ("mine",), (), verifier_for("tahini"))
            )
        yield made


@pytest.fixture
def alice(stores: LocalStores) -> Iterator[KeyValueClient]:
    with connect(stores.servers, user=ALICE) as client:
        client.delete_prefix("")
        yield client


@pytest.fixture
def bob(stores: LocalStores) -> Iterator[KeyValueClient]:
    with connect(stores.servers, user=BOB) as client:
        # Each member learns within a moment what was granted last.
        for _ in range(1000):
            try:
                client.put("mine/there", b"")
                break
            except (Forbidden, NotAuthenticated):
                continue
        yield client


def test_every_request_and_every_operation_has_its_needs() -> None:
    assert set(NEEDS) == set(get_args(requests.Request))
    parts = {*get_args(requests.Command), *get_args(requests.Question), requests.Compare}
    assert set(OPERATIONS) == parts


def test_nobody_is_let_in_without_a_name(stores: LocalStores, alice: KeyValueClient) -> None:
    with connect(stores.servers) as nobody:
        for act in (lambda: nobody.get("a"), lambda: nobody.put("a", b""), nobody.status):
            with pytest.raises(NotAuthenticated):
                act()


def test_keys_are_read_and_written_where_it_is_granted(
    alice: KeyValueClient, bob: KeyValueClient
) -> None:
    alice.put("one", b"1")
    alice.put("one more", b"2")
    assert bob.get("one") is not None
    bob.put("mine/a", b"3")
    assert [item.key for item in bob.prefix("mine/").items] == [b"mine/a", b"mine/there"]
    compares = [Compare(b"one more", Target.VERSION, Relation.EQUAL, 0)]
    refused: list[Callable[[], Any]] = [
        lambda: bob.get("one more"),
        lambda: bob.put("one", b""),
        lambda: bob.put("mine", b""),
        lambda: bob.prefix("min"),
        lambda: bob.range("mine/", "mine1"),
        lambda: bob.delete_prefix(""),
        lambda: bob.txn(compares, [Put(b"mine/b", b"")], []),
        lambda: bob.txn([], [Put(b"mine/b", b""), Range(b"one more")], []),
        lambda: bob.txn([], [], [Put(b"other", b"")]),
        lambda: bob.leases(),
        lambda: bob.compact(1),
        lambda: next(iter(bob.watch("one more"))),
        lambda: next(iter(bob.watch_prefix(""))),
    ]
    for act in refused:
        with pytest.raises(Forbidden, match="user bob may not"):
            act()
    assert bob.txn([], [Put(b"mine/b", b"4")], [Range(b"one")]).succeeded
    assert bob.get("mine/b") is not None


def test_a_watch_that_loses_its_right_ends(
    stores: LocalStores, alice: KeyValueClient, bob: KeyValueClient
) -> None:
    more = (key(Right.READ, b"news/"),)
    with log_of(stores.cluster.servers, user=ALICE) as log:
        log.change_users(UserOrder(UserOperation.GRANT, "mine", (), more))
        for _ in range(1000):
            try:
                bob.get("news/1")
                break
            except Forbidden:
                continue
        with bob.watch_prefix("news/", first_revision=alice.put("news/1", b"x").revision) as watch:
            assert next(iter(watch)).item.key == b"news/1"
            log.change_users(UserOrder(UserOperation.REVOKE, "mine", (), more))
            with pytest.raises(Forbidden):
                next(iter(watch))


class Served:
    """A client of an endpoint whose service answers when it is told to."""

    def __init__(self, *grants: RoleGrant) -> None:
        self.access, self.asked, self.answers = Access(), [], []  # type: ignore[var-annotated]
        self.access.learn(Users(True, b"", (User("bob", ("r",)),), (UserRole("r", grants),)))
        service = SimpleNamespace(request=lambda client, request: self.asked.append(request))
        connection = SimpleNamespace(
            user="bob",
            peer_name="here:1",
            is_full=False,
            send=lambda group, message: self.answers.append(message),
        )
        endpoint: Any = SimpleNamespace(access=self.access, service=service, requests=Requests())
        self.client = _Client(endpoint, connection)  # type: ignore[arg-type]
        self.client._is_greeted = True

    def ask(self, request: requests.Request) -> None:
        self.client.frame(Frame("", request, None))


def test_an_answer_that_comes_once_the_right_is_gone_is_a_refusal() -> None:
    served = Served(*MINE)
    for number in (1, 2):
        question = encode(Range(b"mine/a"))
        served.ask(QuestionRequest(request_id=number, question=question))
    assert len(served.asked) == 2
    served.client.send(AnswerResponse(request_id=1, answer=done(1, b"secret")))
    served.access.learn(Users(True, b"", (User("bob"),)))
    served.client.send(AnswerResponse(request_id=2, answer=done(1, b"secret")))
    assert [getattr(each, "code", 0) for each in served.answers] == [0, Forbidden.code]


def test_what_is_too_large_or_of_a_stranger_is_refused_before_it_is_looked_at() -> None:
    served = Served(*MINE)
    many = encode(requests.Txn(success=tuple(Put(b"mine/%d" % n, b"") for n in range(129))))
    served.ask(CommandRequest(request_id=1, command=many))
    served.access.learn(Users(True, b"", (User("eve"),)))
    served.ask(CommandRequest(request_id=2, command=b"no command at all"))
    assert [each.code for each in served.answers] == [InvalidRequest.code, NotAuthenticated.code]
    assert not served.asked


def test_what_hangs_on_a_lease_is_not_deleted_by_who_may_not_write_it(
    stores: LocalStores, alice: KeyValueClient, bob: KeyValueClient
) -> None:
    async def scene() -> None:
        async with (
            AsyncKeyValueClient(stores.servers, user=ALICE) as admin,
            AsyncKeyValueClient(stores.servers, user=BOB) as client,
        ):
            lease = await admin.grant(60)
            await admin.put("held", b"x", lease=lease)
            theirs = client.lease(lease.id)
            with pytest.raises(Forbidden, match="may not write all keys of this lease") as refused:
                await theirs.revoke()
            assert "held" not in str(refused.value)
            own = await client.grant(60)
            await client.put("mine/held", b"x", lease=own)
            assert (await own.time_to_live())[2] == [b"mine/held"]
            assert await own.revoke() == 1
            await lease.close()

    asyncio.run(scene())


def test_what_is_left_of_a_lease_is_told_to_who_may_read_all_that_hangs_on_it(
    stores: LocalStores, alice: KeyValueClient, bob: KeyValueClient
) -> None:
    async def scene() -> None:
        async with (
            AsyncKeyValueClient(stores.servers, user=ALICE) as admin,
            AsyncKeyValueClient(stores.servers, user=BOB) as client,
        ):
            lease = await admin.grant(60)
            theirs = client.lease(lease.id)
            for number, key in enumerate(("one", "mine/held", "secret")):
                await admin.put(key, b"x", lease=lease)
                if number < 2:
                    assert len((await theirs.time_to_live())[2]) == number + 1
            with pytest.raises(Forbidden) as refused:
                await theirs.time_to_live()
            assert str(refused.value) == "user bob may not read all keys of this lease"
            assert refused.value.args == (str(refused.value),)
            await admin.delete("secret")
            assert len((await theirs.time_to_live())[2]) == 2
            await lease.close()

    asyncio.run(scene())


def test_a_key_that_is_attached_while_it_is_asked_is_not_told() -> None:
    """The keys that are looked at are those of the answer."""
    served = Served(*MINE)
    assert served.client.refusal_to_read([b"mine/a", b"one"]) is None
    refusal = served.client.refusal_to_read([b"mine/a", b"secret"])
    assert isinstance(refusal, Forbidden) and "secret" not in str(refusal)
    served.ask(requests.TimeToLiveRequest(request_id=1, lease=5))
    assert len(served.asked) == 1, "nothing is asked of its keys beside that"


def test_a_wrong_password_is_told(stores: LocalStores) -> None:
    with (
        connect(stores.servers, user=ClientUser("bob", "wrong")) as client,
        pytest.raises(LedgerError, match="the user or the password is wrong"),
    ):
        client.get("one")
