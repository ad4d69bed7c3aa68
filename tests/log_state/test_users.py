from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumlog.log_state.control_entries import USERS_LEVEL
from quorumlog.log_state.log_state import EMPTY, decode_state, folded
from quorumlog.log_state.users import (
    NO_USERS,
    Kind,
    Right,
    Rights,
    RoleGrant,
    User,
    UserRole,
    Users,
    UsersChange,
    Verifier,
)
from tests.log_state import made

NAMES = [bytes(each) for size in range(4) for each in itertools.product(b"ab\xff", repeat=size)]
CHANGES = st.lists(made.USERS_CHANGES, max_size=4)


def allows(grants: list[RoleGrant], right: Right, kind: Kind, name: bytes) -> bool:
    """As it is said in words."""
    for grant in grants:
        if (grant.right, grant.kind) == (Right.ADMIN, Kind.CLUSTER):
            return True
        is_named = grant.prefix == name if grant.is_exact else name.startswith(grant.prefix)
        if grant.kind is kind and grant.right in (right, Right.ADMIN) and is_named:
            return True
    return False


@given(st.lists(made.GRANTS, max_size=5), st.sampled_from(Right), st.sampled_from(Kind), made.PREFIXES)
def test_a_right_is_there_if_a_grant_names_it(
    grants: list[RoleGrant], right: Right, kind: Kind, name: bytes
) -> None:
    assert Rights(grants).may(right, kind, name) == allows(grants, right, kind, name)


@given(st.lists(made.GRANTS, max_size=5), made.PREFIXES, st.none() | made.PREFIXES)
def test_a_range_needs_a_right_on_each_of_its_names(
    grants: list[RoleGrant], first: bytes, stop: bytes | None
) -> None:
    rights = Rights(grants)
    if rights.may_range(Right.READ, Kind.KEY, first, stop):
        within = [name for name in NAMES if first <= name and (stop is None or name < stop)]
        assert all(allows(grants, Right.READ, Kind.KEY, name) for name in within)


def test_a_range_may_lie_in_grants_side_by_side() -> None:
    rights = Rights([RoleGrant(Right.READ, Kind.KEY, each) for each in (b"a", b"b")])
    assert rights.may_range(Right.READ, Kind.KEY, b"a1", b"b9")
    assert rights.may_range(Right.READ, Kind.KEY, b"a", b"c")
    assert not rights.may_range(Right.READ, Kind.KEY, b"a", b"c\0")
    assert not rights.may_range(Right.READ, Kind.KEY, b"a", None)
    assert not rights.may_range(Right.WRITE, Kind.KEY, b"a", b"b")
    assert Rights([RoleGrant(Right.READ, Kind.KEY)]).may_range(Right.READ, Kind.KEY, b"", None)


@given(st.lists(made.GRANTS, max_size=8), made.PREFIXES, st.none() | made.PREFIXES)
def test_grants_side_by_side_are_one(grants: list[RoleGrant], first: bytes, stop: bytes | None) -> None:
    """As if one grant were looked at after the other."""
    rights, covered = Rights(grants), first
    spans = [each.bounds for each in grants if each.kind is Kind.KEY and each.right is not Right.WRITE]
    for low, high in sorted(spans, key=lambda each: each[0]):
        if covered is not None and low <= covered:
            covered = None if high is None else max(covered, high)  # type: ignore[assignment]
    whole = covered is None or (stop is not None and covered >= stop and covered > first)
    if stop is None or first < stop:
        assert rights.may_range(Right.READ, Kind.KEY, first, stop) == (rights.is_admin or whole)
    assert rights._spans(Right.READ, Kind.KEY) is rights._spans(Right.READ, Kind.KEY)


@given(CHANGES)
def test_a_record_of_a_state_with_users_comes_back(changes: list[UsersChange]) -> None:
    state = folded(EMPTY, made.entries_at(0, list(changes)))
    assert decode_state(state.encode()) == state  # type: ignore[union-attr]
    assert state.level == (USERS_LEVEL if changes else 0)  # type: ignore[union-attr]
    assert state.users.is_on == bool(changes)  # type: ignore[union-attr]


@given(CHANGES)
def test_users_are_those_that_were_said_last(changes: list[UsersChange]) -> None:
    users, roles = {}, {}
    found = NO_USERS
    for change in changes:
        found = found.changed(change)
        if change.clears:
            users, roles = {}, {}
        for known, gone, said in (
            (users, change.gone_users, change.users),
            (roles, change.gone_roles, change.roles),
        ):
            for name in gone:
                known.pop(name, None)
            known.update({each.name: each for each in said})
    assert {each.name: each for each in found.users} == users
    assert {each.name: each for each in found.roles} == roles
    assert list(found.users) == sorted(found.users, key=lambda each: each.name)


def test_nobody_may_do_anything_once_all_users_are_left_out() -> None:
    users = NO_USERS.changed(UsersChange((User("alice", ("admin",)),)))
    assert users.has_administrator
    left_out = users.changed(UsersChange(clears=True))
    assert left_out.is_on and not left_out.has_administrator
    assert not left_out.rights_of("alice").may(Right.READ, Kind.LOG, b"default")


def test_a_role_that_is_gone_gives_nothing_and_a_name_counts_as_a_whole() -> None:
    grant = RoleGrant(Right.READ, Kind.TOPIC, b"orders", is_exact=True)
    users = Users(True, b"", (User("alice", ("reads", "gone")),), (UserRole("reads", (grant,)),))
    assert users.rights_of("alice").may(Right.READ, Kind.TOPIC, b"orders")
    assert not users.rights_of("alice").may(Right.READ, Kind.TOPIC, b"orders-private")
    assert not users.rights_of("alic").may(Right.READ, Kind.TOPIC, b"orders")
    assert [each.user for each in users.who_can(Right.READ, Kind.TOPIC, b"orders")] == ["alice"]


def test_a_name_that_nobody_has_has_a_verifier_of_its_own_each_time() -> None:
    real = Verifier(b"0" * 16, 4096, b"1" * 32, b"2" * 32)
    users = Users(True, b"s" * 32, (User("alice", (), real), User("card")))
    assert users.verifier_of("alice") == real
    fakes = [users.verifier_of(name) for name in ("mallory", "card", "mallory", "\ud800")]
    assert fakes[0] == fakes[2] != fakes[1]
    assert msgspec.convert(msgspec.to_builtins(fakes[0]), Verifier) == fakes[0]
    assert fakes[0] != msgspec.structs.replace(users, secret=b"t" * 32).verifier_of("mallory")
    assert "1111" not in repr(real) + repr(users)


@pytest.mark.parametrize("name", ["", "a b", "-a", "a" * 65, "a\n", "ä"])
def test_names_that_no_user_has(name: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert([name], User)
