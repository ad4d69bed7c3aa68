"""Forming, as one member sees it. (The stories of whole groups are scripts 20 to 22.)"""

from __future__ import annotations

import random

import pytest

from quorumlog.config import ConsensusConfig
from quorumlog.consensus import RaftNode, Role
from quorumlog.consensus.messages import (
    FormRequest,
    FormResponse,
    HeartbeatRequest,
    PushEntryRequest,
    PushResult,
    PushType,
    VoteRequest,
    VoteResult,
)
from quorumlog.consensus.ready import Ready
from quorumlog.entry import NO_ENTRY, Formation, HardState, Replica
from quorumlog.errors import LeaderNotReady

N0, N1, N2 = LIST = tuple(Replica(f"n{i}", f"d{i}") for i in range(3))


class Unformed:
    """n0 of three, not formed; the test plays the others."""

    def __init__(self, ids: tuple[str, ...] = ("n0", "n1", "n2"), formation: Formation | None = None):
        self.node = RaftNode(
            ConsensusConfig(),
            N0,
            ids,
            formation=formation or Formation(),
            hard_state=HardState(0, None),
            term_runs=(),
            before_begin=NO_ENTRY,
            ledger_end_index=-1,
            committed_index=-1,
            async_mode=False,
            random=random.Random(1),
            now_ms=0.0,
        )
        self.requests: dict[Replica, FormRequest] = {}
        self.last: Ready | None = None
        self.formation = formation or Formation()
        self.turn()

    def turn(self) -> None:
        while (ready := self.node.ready()) is not None:
            self.last = ready
            self.formation = ready.formation or self.formation
            for to, message in ready.messages:
                if isinstance(message, FormRequest):
                    self.requests[to] = message
                    if message.pending:
                        assert message.pending == self.formation.pending, "stored before it is told"

    def connect(self, *replicas: Replica) -> None:
        for replica in replicas:
            self.node.on_connected(replica)
            self.turn()

    def answer(self, voter: Replica, pending: tuple[Replica, ...] = LIST, **more: object) -> None:
        number = self.requests[voter].number
        self.hear(FormResponse(sender=voter, term=0, number=number, pending=pending, **more))

    def hear(self, message: object) -> None:
        self.node.step(message)
        self.turn()

    @property
    def waits_for(self) -> str:
        return self.node.status().waits_for


def test_it_forms_when_everybody_has_answered_with_the_same_list() -> None:
    n0 = Unformed()
    n0.connect(N1, N2)
    assert n0.formation == Formation(LIST)
    n0.answer(N1)
    assert n0.node.role is Role.UNFORMED, "a majority is not enough"
    n0.answer(N2)
    assert n0.formation == Formation.formed(LIST, LIST)
    assert n0.node.role is Role.FOLLOWER
    assert n0.requests[N1].founding == LIST, "and it tells the others"


def test_an_answer_to_an_older_number_counts_for_nothing() -> None:
    n0 = Unformed()
    n0.connect(N1, N2)
    old = n0.requests[N1].number
    n0.node.advance(1000)
    n0.turn()
    assert n0.requests[N1].number != old
    n0.answer(N2)
    n0.hear(FormResponse(sender=N1, term=0, number=old, pending=LIST))
    assert n0.node.role is Role.UNFORMED


def test_a_change_of_the_list_discards_all_answers() -> None:
    n0 = Unformed()
    n0.connect(N1, N2)
    n0.answer(N1)
    wiped = Replica("n2", "wiped")
    n0.node.on_connection_lost(N2, is_gone=False)
    n0.connect(wiped)
    changed = (N0, N1, wiped)
    assert n0.formation == Formation(changed)
    n0.answer(wiped, changed)
    assert n0.node.role is Role.UNFORMED, "n1 has answered for another list"
    n0.answer(N1, changed)
    assert n0.formation.founding == changed


def test_an_answer_with_another_list_is_not_an_agreement() -> None:
    n0 = Unformed()
    n0.connect(N1, N2)
    n0.answer(N1)
    n0.answer(N2, (N0, N2))
    assert n0.node.role is Role.UNFORMED
    assert n0.waits_for == "forming: n2 lists members n0,n2; this member lists n0,n1,n2"


def test_it_asks_anew_when_somebody_has_stored_the_list_meanwhile() -> None:
    n0 = Unformed()
    n0.connect(N1, N2)
    n0.answer(N1, ())
    number = n0.requests[N1].number
    n0.hear(FormRequest(sender=N1, term=0, number=77, pending=LIST))
    assert n0.requests[N1].number != number
    n0.answer(N1)
    n0.answer(N2)
    assert n0.node.role is Role.FOLLOWER


@pytest.mark.parametrize("by_answer", [True, False])
def test_who_is_told_of_a_list_with_its_directory_joins(by_answer: bool) -> None:
    n0 = Unformed()
    n0.connect(N1)
    if by_answer:
        n0.answer(N1, founding=LIST)
    else:
        n0.hear(FormRequest(sender=N1, term=0, number=0, pending=LIST, founding=LIST))
    assert n0.formation.founding == LIST
    assert n0.node.role is Role.FOLLOWER


def test_who_is_told_of_a_list_without_its_directory_observes() -> None:
    n0 = Unformed()
    n0.connect(N1)
    founding = (Replica("n0", "before the wipe"), N1, N2)
    n0.answer(N1, founding=founding)
    assert n0.formation.founding == founding
    assert n0.node.role is Role.OBSERVER
    assert n0.waits_for == (
        "observer: directory d0 is not among the voters; waits for a membership change"
    )


def test_an_observer_neither_votes_nor_campaigns_but_is_fed() -> None:
    n0 = Unformed(formation=Formation((), (Replica("n0", "old"), N1, N2)))
    n0.connect(N1, N2)
    n0.node.advance(100_000)
    n0.turn()
    assert n0.node.role is Role.OBSERVER
    assert n0.node.next_wakeup_ms() == float("inf")
    ask = VoteRequest(sender=N1, term=3, vote_term=3, pre_vote=False, ledger_end=NO_ENTRY)
    n0.hear(ask)
    assert [e.message.result for e in n0.last.messages] == [VoteResult.REJECT_NOT_A_VOTER]
    assert n0.node.term == 0
    n0.hear(
        PushEntryRequest(
            sender=N1,
            term=3,
            push=PushType.APPEND,
            committed_index=0,
            first_index=0,
            count=1,
            term_runs=((0, 3),),
        )
    )
    assert (n0.node.role, n0.node.term, n0.node.committed_index) == (Role.OBSERVER, 3, 0)
    assert [e.message.result for e in n0.last.messages_after_durable] == [PushResult.SUCCESS]


def test_an_unformed_member_neither_votes_nor_acknowledges_nor_campaigns() -> None:
    n0 = Unformed()
    n0.connect(N1)
    n0.hear(VoteRequest(sender=N1, term=1, vote_term=1, pre_vote=False, ledger_end=NO_ENTRY))
    assert [e.message.result for e in n0.last.messages] == [VoteResult.REJECT_NOT_A_VOTER]
    n0.hear(HeartbeatRequest(sender=N1, term=1, round=1, committed_index=-1))
    assert [e.message.accepted for e in n0.last.messages] == [False]
    n0.hear(PushEntryRequest(sender=N1, term=1, push=PushType.COMPARE, committed_index=-1))
    assert [e.message.result for e in n0.last.messages] == [PushResult.NOT_FORMED]
    n0.node.advance(100_000)
    n0.turn()
    assert (n0.node.role, n0.node.term) == (Role.UNFORMED, 0)
    with pytest.raises(LeaderNotReady):
        n0.node.propose(1)


def test_the_founding_list_is_never_changed() -> None:
    n0 = Unformed(formation=Formation((), LIST))
    n0.connect(N1)
    n0.hear(FormRequest(sender=N1, term=0, number=0, pending=(), founding=(N1,)))
    assert n0.formation.founding == LIST
    (problem,) = n0.node.status().problems
    assert "n1 belongs to another cluster" in problem


def test_a_pending_list_is_not_stored_twice() -> None:
    n0 = Unformed(formation=Formation(LIST))
    n0.connect(N1, N2)
    assert n0.last is not None
    assert n0.last.formation is None
    n0.answer(N1)
    n0.answer(N2)
    assert n0.formation.founding == LIST


def test_status_says_who_is_missing() -> None:
    n0 = Unformed()
    assert n0.waits_for == "forming: waits for n1, n2 (not connected)"
    n0.connect(N2)
    assert n0.waits_for == "forming: waits for n1 (not connected)"
    n0.connect(N1)
    assert n0.waits_for == "forming: waits for the same list of directories at every one of n0,n1,n2"


def test_questions_are_repeated_ever_more_rarely() -> None:
    n0 = Unformed()
    waits = []
    for _ in range(7):
        now_ms = n0.node.next_wakeup_ms()
        waits.append(now_ms - n0.node._state.now_ms)
        n0.node.advance(now_ms)
        n0.turn()
    assert waits == [300, 600, 1200, 2400, 2400, 2400, 2400]


def test_the_order_of_the_configured_list_does_not_matter() -> None:
    n0 = Unformed(ids=("n2", "n0", "n1"))
    n0.connect(N2, N1)
    assert n0.formation.pending == LIST


def test_a_group_of_one_forms_at_once() -> None:
    n0 = Unformed(ids=("n0",))
    assert n0.formation == Formation.formed((N0,), (N0,))
    assert n0.node.role is Role.FOLLOWER
