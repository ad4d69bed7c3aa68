"""Membership against a naive twin that looks at every subset."""

from __future__ import annotations

from itertools import chain, combinations

from hypothesis import given
from hypothesis import strategies as st

from quorumlog.consensus.membership import Membership
from quorumlog.entry import Replica

REPLICAS = tuple(Replica(f"n{i}", f"d{i}") for i in range(6))

halves = st.lists(st.sampled_from(REPLICAS), min_size=1, unique=True).map(tuple)
memberships = st.one_of(halves.map(Membership.of), st.builds(Membership, old=halves, new=halves))
groups = st.sets(st.sampled_from(REPLICAS))


def is_majority(half: tuple[Replica, ...], group: set[Replica]) -> bool:
    return len(set(half) & group) > len(half) / 2


@given(memberships, groups)
def test_a_quorum_is_a_majority_of_each_half(membership: Membership, group: set[Replica]) -> None:
    naive = is_majority(membership.old, group) and is_majority(membership.new, group)
    assert membership.has_quorum(group) == naive


@given(memberships)
def test_fewer_voters_than_the_quorum_size_are_no_quorum(membership: Membership) -> None:
    subsets = chain.from_iterable(combinations(REPLICAS, n) for n in range(7))
    sizes = [len(group) for group in subsets if membership.has_quorum(group)]
    assert min(sizes) >= membership.quorum_size
    if membership.old == membership.new:
        assert min(sizes) == membership.quorum_size


@given(memberships, groups, groups)
def test_two_quorums_share_a_voter(
    membership: Membership, one: set[Replica], other: set[Replica]
) -> None:
    if membership.has_quorum(one) and membership.has_quorum(other):
        assert any(membership.is_voter(replica) for replica in one & other)


@given(memberships, st.lists(st.integers(-1, 9), min_size=6, max_size=6))
def test_the_quorum_value_is_the_largest_that_some_quorum_has_reached(
    membership: Membership, drawn: list[int]
) -> None:
    values = dict(zip(REPLICAS, drawn, strict=True))
    subsets = chain.from_iterable(combinations(REPLICAS, n) for n in range(1, 7))
    reached = [min(values[r] for r in group) for group in subsets if membership.has_quorum(group)]
    assert membership.quorum_value(values) == max(reached)


@given(memberships)
def test_every_voter_is_named_once_and_a_replica_is_not_among_its_others(membership: Membership) -> None:
    voters = membership.voters()
    assert sorted(voters) == sorted({*membership.old, *membership.new})
    for replica in REPLICAS:
        assert membership.is_voter(replica) == (replica in voters)
        assert set(membership.others(replica)) == set(voters) - {replica}


def test_another_directory_of_the_same_member_is_another_voter() -> None:
    """A wiped member cannot answer for what it has forgotten; while it is replaced both are named."""
    old, new = Replica("n0", "d0"), Replica("n0", "wiped")
    rest = (Replica("n1", "d1"), Replica("n2", "d2"))
    joint = Membership((old, *rest), (new, *rest))
    assert joint.voters() == (old, *rest, new)
    assert not Membership.of((old, *rest)).is_voter(new)
    assert joint.has_quorum(rest)
    assert not joint.has_quorum({old, rest[0]})


def test_before_a_group_has_formed_nobody_is_a_quorum() -> None:
    assert not Membership().has_quorum(REPLICAS)
    assert not Membership().voters()
