"""The quorum arithmetic against a twin that only counts."""

from hypothesis import given
from hypothesis import strategies as st

from quorumlog.consensus.membership import Membership
from quorumlog.consensus.replication import QuorumAckChecker
from quorumlog.entry import Replica

VOTERS = tuple(Replica(f"n{i}", f"d{i}") for i in range(9))


def naive_quorum_value(values: list[int]) -> int:
    """The largest value that more than half have reached, found by trying every one."""
    reached = [v for v in values if sum(other >= v for other in values) * 2 > len(values)]
    return max(reached)


@given(st.integers(1, 9), st.lists(st.tuples(st.integers(0, 11), st.integers(-1, 30)), max_size=60))
def test_marks_never_fall_and_strangers_do_not_count(size: int, answers: list[tuple[int, int]]) -> None:
    voters = VOTERS[:size]
    checker = QuorumAckChecker(3, lambda: Membership.of(voters), first_index=10)
    highest = dict.fromkeys(voters, -1)
    committed = -1
    for number, index in answers:
        stranger = number >= size
        voter = Replica("n0", "another directory") if stranger else voters[number]
        rose = checker.raise_to(voter, index)
        assert rose == (not stranger and index > highest[voter])
        if not stranger:
            highest[voter] = max(highest[voter], index)
            assert checker.mark_of(voter) == highest[voter]
        expected = naive_quorum_value(list(highest.values()))
        assert checker.committed_index() == (expected if expected >= 10 else -1)
        assert checker.committed_index() >= committed
        committed = checker.committed_index()


def test_a_stranger_has_no_mark() -> None:
    marks = QuorumAckChecker(1, lambda: Membership.of(VOTERS[:3]), first_index=0)
    assert not marks.raise_to(Replica("n1", "wiped"), 5)
    assert marks.mark_of(Replica("n1", "wiped")) == -1
    assert marks.quorum_index == -1


def test_marks_are_counted_by_the_membership_that_holds_now() -> None:
    """It changes within a term: who was counted stays where it was, who comes starts at nothing."""
    n0, n1, n2, n3 = VOTERS[:4]
    membership = Membership.of((n0, n1, n2))
    marks = QuorumAckChecker(1, lambda: membership, first_index=0)
    assert marks.raise_to(n0, 5)
    assert marks.raise_to(n1, 5)
    assert not marks.raise_to(n3, 5)
    assert marks.quorum_index == 5
    membership = Membership(old=(n0, n1, n2), new=(n0, n2, n3))
    assert marks.quorum_index == -1
    assert marks.raise_to(n3, 7)
    assert marks.quorum_index == 5
    membership = Membership.of((n0, n2, n3))
    assert marks.quorum_index == 5
    assert not marks.raise_to(n1, 9)
