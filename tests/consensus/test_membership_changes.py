"""Changes of the members, a story each: who votes, who campaigns, by which list is counted, who leaves.

Messages, syncs and time are moved by hand (`scenario.py`).
"""

from __future__ import annotations

from quorumlog.consensus import Role
from quorumlog.consensus.membership import Membership
from quorumlog.consensus.messages import VoteRequest, VoteResponse, VoteResult
from quorumlog.entry import Replica
from quorumlog.errors import LedgerError

from .harness import FakeMember, with_sender
from .scenario import Scenario


class Group(Scenario):
    """Of members n0, n1, ..., the first of which leads; `spare` ones are fed and count for nothing."""

    def __init__(self, size: int, spare: int = 0) -> None:
        super().__init__()
        self.do_members(str(size), f"spare={spare}", "max_vote_interval_ms=300")
        self.do_elect("n0")
        self.do_live("2000")
        assert self.lead == "n0"

    def replicas(self, *ids: str) -> tuple[Replica, ...]:
        return tuple(self.disks[i].replica for i in ids)

    def __getitem__(self, i: str) -> FakeMember:
        return self.members[i]

    @property
    def lead(self) -> str:
        leading = [i for i, member in self.members.items() if member.node.role is Role.LEADER]
        return max(leading, key=lambda i: self.members[i].node.term, default="nobody")

    def change(self, i: str, *voters: str, finishes: bool = True) -> None:
        """Member `i`, which leads, begins a change to these voters. What it says is on its way."""
        member = self[i]
        member.finishes_changes = finishes
        present = member.node.status().membership
        wanted = Membership(present.new, self.replicas(*voters))
        self._turn(i, lambda m: m.propose_membership(wanted))

    def live(self, milliseconds: int) -> None:
        self.do_live(str(milliseconds))

    def voters_of(self, i: str) -> tuple[str, ...]:
        membership = self[i].node.status().membership
        assert not membership.is_joint
        return tuple(voter.member_id for voter in membership.new)

    def index_of_change(self, i: str) -> int:
        return self[i].node.status().membership_index


def refusal(member: FakeMember, wanted: Membership) -> str:
    """Why it is not proposed; empty if it is."""
    try:
        member.propose_membership(wanted)
    except LedgerError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def test_a_change_of_members_adds_a_voter_and_takes_another_away() -> None:
    group = Group(3, spare=1)
    group.change("n0", "n0", "n1", "n3")
    assert group["n0"].node.status().membership.is_joint
    group.live(2000)
    for i in ("n0", "n1", "n3"):
        assert group.voters_of(i) == ("n0", "n1", "n3")
        assert group[i].node.committed_index == group["n0"].node.ledger_end.index
    assert group["n3"].node.role is Role.FOLLOWER
    assert group["n2"].node.role is Role.OBSERVER
    assert "no member of the group since entry 2" in group["n2"].node.status().waits_for
    group.do_crash("n0")
    group.live(3000)
    assert group.lead in ("n1", "n3")


def test_while_a_change_runs_a_majority_of_each_half_commits() -> None:
    for away in (("n1", "n2"), ("n3", "n4")):
        group = Group(3, spare=2)
        group.change("n0", "n0", "n3", "n4")
        index = group.index_of_change("n0")
        group.do_cut(*away)
        group.do_settle()
        held = [i for i in group.ids if group[i].node.ledger_end.index >= index]
        assert len(held) == 3, held
        assert group["n0"].node.committed_index < index
        group.do_heal()
        group.live(2000)
        assert group.voters_of("n0") == ("n0", "n3", "n4")
        assert group["n0"].node.committed_index > index


def test_while_a_change_runs_a_majority_of_each_half_elects() -> None:
    """The first half alone would elect n1, and the second one might elect another."""
    group = Group(3, spare=2)
    group.change("n0", "n0", "n3", "n4", finishes=False)
    group.do_settle()
    group.do_cut("n3", "n4")
    group.do_crash("n0")
    group.live(10_000)
    assert group.lead == "nobody"
    group.do_heal()
    group.live(3000)
    assert group.lead != "nobody"


def test_a_membership_holds_from_its_append_on() -> None:
    """A leader that was alone commits nothing more alone."""
    group = Group(1, spare=1)
    group.do_cut("n1")
    group.change("n0", "n0", "n1")
    index = group.index_of_change("n0")
    group.do_settle()
    assert group["n0"].node.committed_index < index
    group.do_heal()
    group.live(1000)
    assert group["n0"].node.committed_index == group["n0"].node.ledger_end.index


def test_what_is_cut_holds_no_more() -> None:
    group = Group(3, spare=1)
    group.do_cut("n0")
    group.change("n0", "n0", "n1", "n3")
    assert group["n0"].node.status().membership.is_joint
    group.live(3000)
    new = group.lead
    assert new in ("n1", "n2")
    group.do_heal()
    group.live(3000)
    for i in group.ids:
        assert (group.voters_of(i), group.index_of_change(i)) == (("n0", "n1", "n2"), -1)
    assert group["n0"].node.role is Role.FOLLOWER
    assert group["n3"].node.role is Role.OBSERVER


def test_a_voter_votes_although_its_own_list_is_old() -> None:
    """n4 lacks the entry that made it a voter, and n3 needs its vote."""
    group = Group(3, spare=2)
    group.do_cut("n4")
    group.change("n0", "n0", "n3", "n4")
    group.live(300)
    group.do_heal()
    group.do_cut("n4->n0", "n0->n4")
    assert group.voters_of("n3") == ("n0", "n3", "n4")
    assert group.voters_of("n4") == ("n0", "n1", "n2")
    group.do_crash("n0")
    group.do_crash("n1")
    group.do_crash("n2")
    group.live(4000)
    assert group.lead == "n3"
    group.live(2000)
    assert group.voters_of("n4") == ("n0", "n3", "n4")


def test_the_longest_log_may_be_campaigned_with_by_whom_only_an_older_list_names() -> None:
    """n1 is being removed and alone has the last entry. Were it not to ask, nobody could lead."""
    group = Group(4)
    group.change("n0", "n0", "n2", "n3", finishes=False)
    group.live(500)
    group.do_cut("n0->n2", "n0->n3")
    group["n0"].finishes_changes = True
    group._turn("n0", lambda m: m.propose_membership(m.node.members.due()))  # type: ignore[arg-type]
    group.do_settle()
    assert group.voters_of("n1") == ("n0", "n2", "n3")
    assert group["n2"].node.status().membership.is_joint
    group.do_crash("n0")
    group.do_heal()
    final = group["n1"].node.ledger_end
    group.live(5000)
    assert group.lead in ("n2", "n3")
    assert group["n2"].disk.id_at(final.index) == final  # n1 has led, and gone
    assert group["n1"].node.role is Role.OBSERVER
    group.do_append(group.lead, "x")
    group.live(500)
    assert group["n2"].node.committed_index == group["n3"].node.ledger_end.index


def test_a_leader_that_is_removed_leads_until_that_is_committed_and_then_leaves() -> None:
    group = Group(3)
    group.do_cut("n1->n0", "n2->n0")
    group.change("n0", "n1", "n2")
    group.do_settle()
    assert group["n0"].node.role is Role.LEADER
    term = group["n0"].node.term
    group.do_heal()
    for _ in range(300):
        group.live(10)
        if group["n0"].node.role is not Role.LEADER:
            break
    status = group["n0"].node.status()
    assert status.role is Role.OBSERVER
    assert status.membership_index <= status.committed_index
    assert "n0 is no member of the group since entry" in status.waits_for
    group.live(300)  # less than an election time-out: it has asked for a successor
    assert group.lead in ("n1", "n2")
    assert group[group.lead].node.term == term + 1
    assert group.voters_of("n1") == ("n1", "n2")


def test_who_is_removed_counts_for_nothing_from_the_append_on() -> None:
    """n0 leads and is outside: the two that stay have to hold the entry both."""
    group = Group(3)
    group.do_cut("n2->n0")
    group.change("n0", "n1", "n2", finishes=False)
    group.do_settle()
    assert group["n0"].node.committed_index < group.index_of_change("n0")


def test_a_member_that_missed_its_removal_learns_of_it_and_disturbs_nobody() -> None:
    group = Group(3)
    group.do_cut("n2")
    group.change("n0", "n0", "n1")
    group.live(5000)
    assert group.voters_of("n0") == ("n0", "n1")
    assert group["n2"].node.role is Role.CANDIDATE
    term = group["n0"].node.term
    group.do_heal()
    group.do_cut("n0->n2")  # nobody brings it the entry
    group.live(5000)
    assert (group.lead, group["n0"].node.term) == ("n0", term)
    assert group["n2"].node.role is Role.OBSERVER
    index = group.index_of_change("n0")
    assert f"n2 is no member of the group since entry {index}" in group["n2"].node.status().waits_for
    assert group["n2"].node.next_wakeup_ms() == float("inf")
    assert group.voters_of("n2") == ("n0", "n1", "n2"), "what its log says is what it would count by"


def test_who_was_removed_and_starts_without_knowing_what_is_committed_leaves_again() -> None:
    """By its log alone the change may still be cut, so it may campaign; from its commit on not."""
    group = Group(3)
    group.change("n0", "n0", "n1")
    group.live(1000)
    assert group["n2"].node.role is Role.OBSERVER
    group.do_crash("n2")
    group.do_start("n2")
    assert (group["n2"].node.role, group["n2"].node.committed_index) == (Role.FOLLOWER, -1)
    group.do_connect("n0", "n2")
    group.live(100)
    assert group["n2"].node.committed_index == group["n0"].node.committed_index
    assert group["n2"].node.role is Role.OBSERVER
    group.do_cut("n2")
    group.live(5000)
    assert group["n2"].node.role is Role.OBSERVER


def test_an_inherited_change_ends_once_an_entry_of_the_own_term_is_committed() -> None:
    """The heir knows that the joint membership is committed. Were it to end the change at once, its
    entry could be replaced by a leader who does not know of it."""
    group = Group(4)
    group.change("n0", "n0", "n1", "n2", finishes=False)
    group.live(500)
    assert group["n1"].node.committed_index == group.index_of_change("n0")
    group.do_crash("n0")
    group.do_elect("n1")
    heir = group["n1"]
    assert heir.node.committed_index == heir.node.ledger_end.index - 1
    assert heir.node.members.due() is None
    group.live(500)
    assert group.voters_of("n1") == ("n0", "n1", "n2")
    assert group["n3"].node.role is Role.OBSERVER


def test_the_directory_that_was_replaced_neither_votes_nor_acknowledges() -> None:
    group = Group(3)
    old = group.disks["n1"]
    group.do_crash("n1")
    group.do_wipe("n1")
    group.do_start("n1")
    group.do_connect("n0", "n1")
    group.do_connect("n1", "n2")
    group.live(3000)
    group.change("n0", "n0", "n1", "n2")
    group.live(1000)
    assert group["n2"].node.status().membership.new[1] == Replica("n1", "n1-d1")
    group.do_crash("n1")
    group.disks["n1"] = old
    group.do_start("n1")
    group.do_connect("n0", "n1")
    group.do_connect("n1", "n2")
    group.live(1000)
    # It is fed, and what it has counts for nothing.
    assert group["n1"].node.role is Role.OBSERVER
    group.do_cut("n2")
    committed = group["n0"].node.committed_index
    group.do_append("n0", "x")
    group.do_settle()
    assert group["n1"].node.ledger_end.index > committed == group["n0"].node.committed_index
    group.do_heal()
    group.live(4000)
    assert group["n1"].node.ledger_end == group["n2"].node.ledger_end
    group.do_crash("n0")
    group.live(10_000)
    assert group.lead == "nobody"


def test_one_change_at_a_time() -> None:
    group = Group(3, spare=1)
    group.change("n0", "n0", "n1", finishes=False)
    for voters in (("n0", "n1", "n3"), ("n0", "n1", "n2")):
        wanted = Membership(group.replicas("n0", "n1"), group.replicas(*voters))
        assert "another change" in refusal(group["n0"], wanted)


def test_no_change_before_the_leader_has_committed_an_entry_of_its_term() -> None:
    group = Group(3)
    group.do_crash("n0")
    group.do_elect("n1")
    wanted = Membership(group.replicas("n0", "n1", "n2"), group.replicas("n1", "n2"))
    assert "LeaderNotReady: " in refusal(group["n1"], wanted)
    group.live(1000)
    group["n1"].propose_membership(wanted)


def test_no_change_that_too_few_would_answer() -> None:
    group = Group(3, spare=1)
    group.do_cut("n1")
    group.live(400)
    wanted = Membership(group.replicas("n0", "n1", "n2"), group.replicas("n0", "n1"))
    assert "1 of 2 voters would answer" in refusal(group["n0"], wanted)
    group.do_heal()
    group.live(1000)
    group["n0"].propose_membership(wanted)


def test_who_has_not_caught_up_does_not_vote() -> None:
    group = Group(3, spare=1)
    group.do_cut("n0->n3")
    for _ in range(10):
        group.do_append("n0", "x")
    group.live(2000)
    wanted = Membership(group.replicas("n0", "n1", "n2"), group.replicas("n0", "n1", "n2", "n3"))
    assert "n3 has not caught up" in refusal(group["n0"], wanted)
    group.do_heal()
    group.live(4000)
    group["n0"].propose_membership(wanted)


def test_a_name_stands_in_a_membership_once() -> None:
    group = Group(3)
    n0, n1, n2 = group.replicas("n0", "n1", "n2")
    assert "there would be no voter" in refusal(group["n0"], Membership((n0, n1, n2), ()))
    group.do_crash("n2")
    group.do_wipe("n2")
    group.do_start("n2")
    group.do_connect("n0", "n2")
    group.live(2000)
    twice = Membership((n0, n1, n2), (n0, n1, n2, *group.replicas("n2")))
    assert "twice: n0, n1, n2, n2" in refusal(group["n0"], twice)


def test_a_candidate_that_hears_of_its_removal_is_not_elected_by_answers_that_came_along() -> None:
    """One turn of a process takes them all."""
    group = Group(6)
    group.change("n0", "n0", "n1", "n2", "n3", "n4", finishes=False)
    group.live(500)
    group._turn("n0", lambda m: m.propose_membership(m.node.members.due()))  # type: ignore[arg-type]
    group.do_deliver("n0->n5")
    group.do_cut("n0->n5")
    group.live(300)
    group.do_cut("n0->n2", "n0->n3", "n0->n4")
    group.do_append("n0", "x")
    group.do_settle()
    group.do_crash("n0")
    n5 = group["n5"]
    while not any(isinstance(e.message, VoteRequest) for _, e in group.links["n5", "n1"]):
        group.do_advance("100", "n5")
    for i in ("n1", "n2", "n3", "n4"):
        group.do_deliver(f"n5->{i}")
    answers = [
        with_sender(envelope, group.disks[i].replica)
        for i in ("n1", "n2", "n3", "n4")
        for _, envelope in group.links[i, "n5"]
        if isinstance(envelope.message, VoteResponse)
    ]
    results = [answer.result for answer in answers if isinstance(answer, VoteResponse)]
    assert results == [VoteResult.REJECT_SMALL_LEDGER_END_INDEX, *[VoteResult.ACCEPT] * 3]
    term = n5.node.term
    group._turn("n5", lambda m: [m.node.step(answer) for answer in answers])
    assert (n5.node.role, n5.node.term) == (Role.OBSERVER, term)


def test_a_learner_that_acknowledges_all_the_time_progresses() -> None:
    """It never holds the newest entry when it is looked. As a voter it would count as silent for long,
    and the leader would step down before its first answer."""
    group = Group(1, spare=1)
    group.do_disconnect("n0", "n1")
    group.do_connect("n0", "n1")
    for _ in range(1000):
        group.do_append("n0", "x")
        group.live(10)
    (peer,) = group["n0"].node.status().peers
    assert peer.stalled_since_ms is None
    group.change("n0", "n0", "n1")
    group.do_append("n0", "y")
    for _ in range(50):
        group.do_advance("10", "n0")
    assert group["n0"].node.role is Role.LEADER
