"""Forming, as one member sees it. (The stories of whole groups are scripts 20 to 22.)"""

from __future__ import annotations

import random

import pytest

from quorumlog.config import ConsensusConfig
from quorumlog.consensus import RaftNode, Role
from quorumlog.consensus.forming import id_of_earlier_release
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
A, B = "aa" * 16, "bb" * 16


class Unformed:
    """One of three, not formed; the test plays the others. n0 is the one that draws the cluster id."""

    def __init__(
        self,
        ids: tuple[str, ...] = ("n0", "n1", "n2"),
        formation: Formation | None = None,
        member: Replica = N0,
        seed: int = 1,
        level: int = 0,
    ):
        self.node = RaftNode(
            ConsensusConfig(),
            member,
            ids,
            formation=formation or Formation(),
            hard_state=HardState(0, None),
            term_runs=(),
            before_begin=NO_ENTRY,
            ledger_end_index=-1,
            committed_index=-1,
            async_mode=False,
            random=random.Random(seed),
            now_ms=0.0,
            level=level,
        )
        self.requests: dict[Replica, FormRequest] = {}
        self.response: FormResponse | None = None
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
                    self.check_stored(message)
                elif isinstance(message, FormResponse):
                    self.response = message
                    self.check_stored(message)

    def check_stored(self, message: FormRequest | FormResponse) -> None:
        """Before it is told."""
        stored = self.formation
        assert message.founding == stored.founding
        assert message.cluster_id == (stored.cluster_id if stored.founding else stored.pending_id)
        if message.pending:
            assert message.pending == self.formation.pending

    def connect(self, *replicas: Replica) -> None:
        for replica in replicas:
            self.node.on_connected(replica)
            self.turn()

    def answer(
        self,
        voter: Replica,
        pending: tuple[Replica, ...] = LIST,
        *,
        told: str | None = None,
        **more: object,
    ) -> None:
        """`told`: the cluster id; if none is given, the one that the question says."""
        asked = self.requests[voter]
        if told is None:
            told = asked.cluster_id
        self.hear(
            FormResponse(
                sender=voter, term=0, number=asked.number, pending=pending, cluster_id=told, **more
            )
        )

    def ask(
        self, voter: Replica, pending: tuple[Replica, ...] = LIST, told: str = "", **more: object
    ) -> None:
        self.hear(FormRequest(sender=voter, term=0, number=77, pending=pending, cluster_id=told, **more))

    def hear(self, message: object) -> None:
        self.node.step(message)
        self.turn()

    @property
    def waits_for(self) -> str:
        return self.node.status().waits_for


def test_it_forms_when_everybody_has_answered_with_the_same_list() -> None:
    n0 = Unformed()
    n0.connect(N1, N2)
    drawn = n0.formation.pending_id
    assert len(drawn) == 32
    assert n0.formation == Formation(LIST, pending_id=drawn)
    n0.answer(N1)
    assert n0.node.role is Role.UNFORMED, "a majority is not enough"
    n0.answer(N2)
    assert n0.formation == Formation(LIST, LIST, drawn)
    assert n0.node.role is Role.FOLLOWER
    told = n0.requests[N1]
    assert (told.founding, told.cluster_id) == (LIST, drawn), "and it tells the others"


def test_an_answer_to_an_older_number_counts_for_nothing() -> None:
    n0 = Unformed()
    n0.connect(N1, N2)
    old = n0.requests[N1].number
    n0.node.advance(1000)
    n0.turn()
    assert n0.requests[N1].number != old
    n0.answer(N2)
    told = n0.formation.pending_id
    n0.hear(FormResponse(sender=N1, term=0, number=old, pending=LIST, cluster_id=told))
    assert n0.node.role is Role.UNFORMED


def test_a_change_of_the_list_discards_all_answers() -> None:
    n0 = Unformed()
    n0.connect(N1, N2)
    n0.answer(N1)
    wiped = Replica("n2", "wiped")
    n0.node.on_connection_lost(N2, is_gone=False)
    n0.connect(wiped)
    changed = (N0, N1, wiped)
    assert n0.formation.pending == changed
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
    n0.ask(N1)
    assert n0.requests[N1].number == number, "without the id it would answer otherwise again"
    n0.ask(N1, told=n0.formation.pending_id)
    assert n0.requests[N1].number != number
    n0.answer(N1)
    n0.answer(N2)
    assert n0.node.role is Role.FOLLOWER


@pytest.mark.parametrize("by_answer", [True, False])
def test_who_is_told_of_a_list_with_its_directory_joins(by_answer: bool) -> None:
    n0 = Unformed()
    n0.connect(N1)
    if by_answer:
        n0.answer(N1, told=A, founding=LIST)
    else:
        n0.ask(N1, told=A, founding=LIST)
    assert n0.formation == Formation((), LIST, A)
    assert n0.node.role is Role.FOLLOWER


def test_who_is_told_of_a_list_without_its_directory_observes() -> None:
    n0 = Unformed()
    n0.connect(N1)
    founding = (Replica("n0", "before the wipe"), N1, N2)
    n0.answer(N1, told=A, founding=founding)
    assert n0.formation == Formation((), founding, A)
    assert n0.node.role is Role.OBSERVER
    assert n0.waits_for == (
        "observer: directory d0 is not among the voters; waits for a membership change"
    )


def test_an_observer_votes_and_is_fed_but_never_campaigns() -> None:
    """It may be a voter by an entry that it lacks; whoever counts its vote knows."""
    n0 = Unformed(formation=Formation((), (Replica("n0", "old"), N1, N2)))
    n0.connect(N1, N2)
    n0.node.advance(100_000)
    n0.turn()
    assert n0.node.role is Role.OBSERVER
    assert n0.node.next_wakeup_ms() == float("inf")
    ask = VoteRequest(sender=N1, term=3, vote_term=3, pre_vote=False, ledger_end=NO_ENTRY)
    n0.hear(ask)
    assert [e.message.result for e in n0.last.messages] == [VoteResult.ACCEPT]
    assert (n0.node.role, n0.node.term) == (Role.OBSERVER, 3)
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


def an_observer_forgets_a_leader_that_is_silent() -> None:
    """It was removed, most likely: whoever asks it is sent to nobody, and looks elsewhere."""
    n0 = Unformed(formation=Formation((), (Replica("n0", "old"), N1, N2)))
    n0.connect(N1, N2)
    n0.hear(HeartbeatRequest(sender=N1, term=3, round=1, committed_index=-1))
    assert n0.node.leader == N1
    silent_from_ms = n0.node.next_wakeup_ms()
    n0.node.advance(silent_from_ms - 1)
    assert n0.node.leader == N1
    n0.node.advance(silent_from_ms)
    n0.turn()
    assert n0.node.leader is None
    assert (n0.node.role, n0.node.term) == (Role.OBSERVER, 3)
    assert n0.node.next_wakeup_ms() == float("inf")
    n0.hear(HeartbeatRequest(sender=N1, term=3, round=2, committed_index=-1))
    assert n0.node.leader == N1


def test_an_observer_forgets_a_leader_that_is_silent() -> None:
    an_observer_forgets_a_leader_that_is_silent()


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
    n0 = Unformed(formation=Formation((), LIST, A))
    n0.connect(N1)
    n0.hear(FormRequest(sender=N1, term=0, number=0, pending=(), founding=(N1,)))
    assert n0.formation == Formation((), LIST, A)
    (problem,) = n0.node.status().problems
    assert "n1 belongs to another cluster" in problem


def test_a_pending_list_is_not_stored_twice_and_keeps_its_id() -> None:
    n0 = Unformed(formation=Formation(LIST, pending_id=A))
    n0.connect(N1, N2)
    assert n0.last is not None
    assert n0.last.formation is None
    n0.answer(N1)
    n0.answer(N2)
    assert n0.formation == Formation(LIST, LIST, A)


# ---------------------------------------------------------------- the cluster id


def test_the_others_adopt_the_id_of_the_first_on_the_list() -> None:
    n1 = Unformed(member=N1)
    n1.connect(N0, N2)
    assert n1.formation == Formation(LIST)
    n1.answer(N2)
    n1.answer(N0, told=A)
    assert n1.formation == Formation(LIST, pending_id=A)
    assert n1.node.role is Role.UNFORMED, "it asks anew"
    n1.answer(N2)
    assert n1.node.role is Role.UNFORMED
    n1.answer(N0)
    assert n1.formation == Formation(LIST, LIST, A)


def test_what_is_answered_is_adopted_before() -> None:
    n1 = Unformed(member=N1)
    n1.connect(N0, N2)
    n1.ask(N0, told=A)
    assert n1.response is not None
    assert (n1.response.pending, n1.response.cluster_id) == (LIST, A)
    assert n1.formation == Formation(LIST, pending_id=A)


def test_nobody_forms_without_an_id() -> None:
    n1 = Unformed(member=N1)
    n1.connect(N0, N2)
    n1.answer(N0)
    n1.answer(N2)
    assert n1.formation == Formation(LIST)
    assert n1.node.role is Role.UNFORMED


def test_an_id_is_adopted_only_from_the_first_and_only_with_the_list_held_here() -> None:
    n1 = Unformed(member=N1)
    n1.connect(N0, N2)
    n1.answer(N2, told=B)
    n1.ask(N2, told=B)
    n1.answer(N0, (Replica("n0", "before"), N1, N2), told=B)
    n1.ask(N0, (N0, N1), told=B)
    assert n1.formation == Formation(LIST)
    n0 = Unformed()
    n0.connect(N1, N2)
    drawn = n0.formation
    n0.ask(N1, told=B)
    assert n0.formation == drawn, "whoever draws keeps what it drew"


def test_an_answer_with_another_id_is_not_an_agreement() -> None:
    n0 = Unformed()
    n0.connect(N1, N2)
    n0.answer(N1)
    n0.answer(N2, told=B)
    assert n0.node.role is Role.UNFORMED
    n0.ask(N2, told=n0.formation.pending_id)  # it has adopted ours
    n0.answer(N1)
    n0.answer(N2)
    assert n0.node.role is Role.FOLLOWER


def test_a_list_that_changes_and_changes_back_has_another_id_each_time() -> None:
    n0 = Unformed()
    n0.connect(N1, N2)
    wiped = Replica("n2", "wiped")
    ids = [n0.formation.pending_id]
    for lost, back in ((N2, wiped), (wiped, N2)):
        n0.node.on_connection_lost(lost, is_gone=False)
        n0.connect(back)
        ids.append(n0.formation.pending_id)
    assert n0.formation.pending == LIST
    assert len(set(ids)) == 3
    n1 = Unformed(formation=Formation(LIST, pending_id=ids[0]), member=N1)
    n1.connect(N0, N2)
    n1.answer(N2)
    n1.answer(N0, told=ids[2])
    assert n1.formation == Formation(LIST, pending_id=ids[2])
    assert n1.node.role is Role.UNFORMED


def test_a_changed_list_has_no_id_until_the_first_tells_it() -> None:
    n1 = Unformed(formation=Formation(LIST, pending_id=A), member=N1)
    wiped = Replica("n2", "wiped")
    n1.connect(N0, wiped)
    assert n1.formation == Formation((N0, N1, wiped))


def test_two_groups_of_the_same_directories_never_share_an_id() -> None:
    """Nothing of the list goes into it: what was drawn elsewhere is another id."""
    groups = []
    for seed in (1, 2):
        n0 = Unformed(ids=("n0",), seed=seed)
        assert n0.node.role is Role.FOLLOWER
        groups.append(n0.formation)
    assert groups[0].founding == groups[1].founding
    assert groups[0].cluster_id != groups[1].cluster_id


# ---------------------------------------------------------------- members of an earlier release


def test_what_an_earlier_release_computes() -> None:
    founding = (Replica("n0", "aa"), Replica("n1", "bb"), Replica("n2", "cc"))
    for order in (founding, founding[::-1]):
        assert id_of_earlier_release(order) == "09e35ebf43865a41f2f9f2baffb0565e"


def test_with_a_member_that_says_no_id_nobody_forms_until_it_does() -> None:
    n0 = Unformed()
    n0.connect(N1, N2)
    n0.answer(N1)
    n0.answer(N2, told="")
    assert n0.node.role is Role.UNFORMED
    n0.ask(N2, told="", founding=LIST)
    assert n0.formation == Formation(LIST, LIST, id_of_earlier_release(LIST))


def test_an_observer_that_says_no_id_is_not_believed() -> None:
    """It may have computed one for a group that drew its own."""
    observer = Replica("n2", "wiped")
    n1 = Unformed(formation=Formation(LIST, pending_id=A), member=N1)
    n1.connect(observer)
    n1.answer(observer, told="", founding=LIST)
    assert n1.node.role is Role.UNFORMED
    n1.connect(N0)
    n1.answer(N0, told=A, founding=LIST)
    assert n1.formation.cluster_id == A


def test_a_list_that_an_earlier_release_has_stored_is_drawn_for() -> None:
    n0 = Unformed(formation=Formation(LIST))
    assert n0.formation == Formation(LIST)
    n0.connect(N1, N2)
    assert n0.formation.pending == LIST
    assert n0.formation.pending_id


# ---------------------------------------------------------------- status


def test_status_says_who_is_missing() -> None:
    n0 = Unformed()
    assert n0.waits_for == "forming: waits for n1, n2 (not connected)"
    n0.connect(N2)
    assert n0.waits_for == "forming: waits for n1 (not connected)"
    n0.connect(N1)
    assert n0.waits_for == "forming: waits for the same list of directories at every one of n0,n1,n2"


def test_status_says_who_is_there_twice() -> None:
    n0 = Unformed()
    n0.connect(N1)
    n0.connect(N2)
    n0.connect(Replica("n2", "of a machine that was thought to be lost"))
    assert n0.waits_for == (
        "forming: 2 members call themselves n2, each with a directory of its own: stop all but one"
    )


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
    assert n0.formation == Formation((N0,), (N0,), n0.formation.cluster_id)
    assert n0.node.role is Role.FOLLOWER


@pytest.mark.parametrize("told", [(6, 6), (6, 7), (7, 6), (6, 0), (0, 6), (7, 7)])
def test_a_group_forms_at_the_least_level_of_the_format_that_a_founder_knows(
    told: tuple[int, int],
) -> None:
    """An earlier release says none: it may be one that a member is to go back to."""
    group = Unformed(level=6)
    group.connect(N1, N2)
    assert group.requests[N1].level == 6
    group.answer(N1, level=told[0])
    group.answer(N2, level=told[1])
    assert group.formation.founding == LIST
    assert group.formation.level == min(6, *told)
    assert group.requests[N1].level == group.formation.level


@pytest.mark.parametrize("level", [0, 6])
def test_whoever_is_told_of_a_group_takes_the_level_at_which_it_has_formed(level: int) -> None:
    told = Unformed(("n0", "n1", "n2", "n3"), level=7)
    told.connect(N1, N2)
    told.ask(N1, founding=LIST, told=A, level=level)
    assert told.formation == Formation((), LIST, A, level=level)
    told.ask(N2)
    assert told.response is not None
    assert told.response.level == level
