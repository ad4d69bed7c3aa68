"""One test per claim of the Raft paper ("In Search of an Understandable Consensus Algorithm", extended
version, 2014). The first line of each names the section. Where this project differs (pre-vote before
every vote, for example) the claim is tested in the form that holds here; docs/divergence.md says why.
"""

from __future__ import annotations

import random

import pytest

from quorumlog.consensus import Role
from quorumlog.consensus.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    PushEntryRequest,
    PushEntryResponse,
    PushResult,
    PushType,
    TakeLeadershipRequest,
    VoteRequest,
    VoteResponse,
    VoteResult,
)
from quorumlog.entry import NO_ENTRY, EntryId
from quorumlog.errors import LeaderTransferring

from .harness import NOOP, LoneMember
from .scenario import Scenario


def group(text: str) -> Scenario:
    scenario = Scenario()
    for line in text.strip().splitlines():
        scenario.run(line.strip())
    return scenario


def terms_of(scenario: Scenario, i: str) -> list[int]:
    return [term for term, _ in scenario.disks[i].entries]


def heartbeat(term: int, committed_index: int = -1) -> HeartbeatRequest:
    return HeartbeatRequest(term=term, round=1, committed_index=committed_index)


def vote_request(
    vote_term: int, end: EntryId = NO_ENTRY, *, pre_vote: bool = False, **more: object
) -> VoteRequest:
    term = vote_term - 1 if pre_vote else vote_term
    return VoteRequest(term=term, vote_term=vote_term, pre_vote=pre_vote, ledger_end=end, **more)


def append(
    term: int, previous: EntryId, terms: list[int], committed_index: int = -1
) -> PushEntryRequest:
    first = previous.index + 1
    runs = [(first + k, t) for k, t in enumerate(terms) if k == 0 or terms[k - 1] != t]
    return PushEntryRequest(
        term=term,
        push=PushType.APPEND,
        committed_index=committed_index,
        previous=previous,
        first_index=first,
        count=len(terms),
        term_runs=tuple(runs),
        batch=tuple((t, f"{first + k}@{t}") for k, t in enumerate(terms)),
    )


def ack(term: int, index: int) -> PushEntryResponse:
    return PushEntryResponse(
        term=term, push=PushType.APPEND, result=PushResult.SUCCESS, index=index, first_index=index
    )


def matched(leader: LoneMember, *peers: int) -> LoneMember:
    """Each of these peers has found the last common entry with the new leader."""
    for i in peers:
        compare = leader.to(i, PushEntryRequest)[-1]
        answer = PushEntryResponse(
            term=leader.node.term, push=compare.push, result=PushResult.SUCCESS, number=compare.number
        )
        leader.hear(i, answer)
    return leader


# -------------------------------------------------------------------- 5.1  Raft basics


@pytest.mark.parametrize("role", ["follower", "candidate", "leader"])
def test_5_1_a_smaller_term_is_updated_to_the_larger_value(role: str) -> None:
    """5.1: if one server's current term is smaller than the other's, it updates it to the larger one."""
    n0 = LoneMember(term=2)
    if role == "candidate":
        n0.pass_ms(100)
    if role == "leader":
        n0.lead()
    n0.hear(1, heartbeat(term=9))
    assert (n0.node.term, n0.node.role) == (9, Role.FOLLOWER)
    assert n0.disk.hard_state == (9, None)


@pytest.mark.parametrize("role", ["candidate", "leader"])
def test_5_1_who_discovers_that_its_term_is_out_of_date_gives_up(role: str) -> None:
    """5.1: if a candidate or leader discovers that its term is out of date, it reverts at once."""
    n0 = LoneMember(term=2)
    if role == "leader":
        n0.lead()
        n0.hear(2, HeartbeatResponse(term=7, round=1, accepted=False))
    else:
        n0.pass_ms(100)
        n0.pass_ms(100)
        refusal = VoteResult.REJECT_EXPIRED_VOTE_TERM
        n0.hear(2, VoteResponse(term=7, vote_term=3, pre_vote=True, result=refusal))
    assert (n0.node.term, n0.node.role, n0.node.leader) == (7, Role.CANDIDATE, None)
    assert n0.disk.hard_state == (7, None)


def test_5_1_a_request_with_a_stale_term_is_rejected() -> None:
    """5.1: if a server receives a request with a stale term number, it rejects the request."""
    n0 = LoneMember(term=5)
    (beat,) = n0.hear(1, heartbeat(term=4))
    (push,) = n0.hear(1, append(4, NO_ENTRY, [4]))
    (vote,) = n0.hear(1, vote_request(4))
    assert (beat.accepted, beat.term) == (False, 5)
    assert (push.result, push.term) == (PushResult.EXPIRED_TERM, 5)
    assert (vote.result, vote.term) == (VoteResult.REJECT_EXPIRED_VOTE_TERM, 5)
    assert n0.disk.entries == []


# -------------------------------------------------------------------- 5.2  Leader election


def test_5_2_servers_start_as_followers() -> None:
    """5.2: when servers start up, they begin as followers."""
    assert LoneMember(term=4, vote="n0").node.role is Role.FOLLOWER


def test_5_2_a_follower_that_hears_its_leader_stays_follower() -> None:
    """5.2: a server remains in follower state as long as it receives valid messages from a leader."""
    n0 = LoneMember()
    for _ in range(30):
        n0.hear(1, heartbeat(term=1))
        n0.pass_ms(n0.node._config.election_timeout_ms - 1)
    assert n0.node.role is Role.FOLLOWER


def test_5_2_silence_begins_an_election() -> None:
    """5.2: a follower that receives no communication over the election timeout begins an election."""
    n0 = LoneMember()
    n0.hear(1, heartbeat(term=1))
    n0.pass_ms(749)
    assert n0.node.role is Role.FOLLOWER
    n0.pass_ms(1)
    assert n0.node.role is Role.CANDIDATE
    assert n0.node.term == 1, "the term rises only through a passed pre-vote"


def test_5_2_a_candidate_votes_for_itself_and_asks_everybody() -> None:
    """5.2: it increments its term, votes for itself and issues RequestVote in parallel to each."""
    n0 = LoneMember(5)
    n0.pass_ms(100)
    asked = n0.pass_ms(100)
    assert [(r.pre_vote, r.vote_term) for r in asked] == [(True, 1)] * 4
    n0.hear(1, VoteResponse(term=0, vote_term=1, pre_vote=True, result=VoteResult.ACCEPT))
    asked = n0.hear(2, VoteResponse(term=0, vote_term=1, pre_vote=True, result=VoteResult.ACCEPT))
    assert [(r.pre_vote, r.vote_term) for r in asked] == [(False, 1)] * 4
    assert n0.disk.hard_state == (1, n0.replica), "stored before anybody is asked"


@pytest.mark.parametrize(
    ("size", "votes", "wins"),
    [
        (1, 0, True),
        (2, 0, False),
        (2, 1, True),
        (3, 0, False),
        (3, 1, True),
        (5, 1, False),
        (5, 2, True),
        (7, 2, False),
        (7, 3, True),
    ],
)
def test_5_2_votes_of_a_majority_win(size: int, votes: int, wins: bool) -> None:
    """5.2: a candidate wins with votes from a majority of the servers for the same term."""
    n0 = LoneMember(size)
    n0.pass_ms(100)
    n0.pass_ms(100)
    for i in range(1, size // 2 + 1):
        n0.hear(i, VoteResponse(term=0, vote_term=1, pre_vote=True, result=VoteResult.ACCEPT))
    for i in range(1, votes + 1):
        n0.hear(i, VoteResponse(term=1, vote_term=1, pre_vote=False, result=VoteResult.ACCEPT))
    assert n0.node.term == 1
    assert (n0.node.role is Role.LEADER) == wins


def test_5_2_a_vote_counts_once_and_only_for_its_term() -> None:
    """5.2: ... a majority of the servers, for the same term: no answer twice, none of another term."""
    n0 = LoneMember(5)
    n0.pass_ms(100)
    n0.pass_ms(100)
    yes = VoteResponse(term=0, vote_term=1, pre_vote=True, result=VoteResult.ACCEPT)
    for _ in range(3):
        n0.hear(1, yes)
    n0.hear(2, VoteResponse(term=0, vote_term=7, pre_vote=True, result=VoteResult.ACCEPT))
    n0.hear(3, VoteResponse(term=0, vote_term=1, pre_vote=False, result=VoteResult.ACCEPT))
    assert n0.node.term == 0
    n0.hear(4, yes)
    assert n0.node.term == 1


def test_5_2_at_most_one_vote_per_term_first_come_first_served() -> None:
    """5.2: each server votes for at most one candidate in a given term, first-come-first-served."""
    n0 = LoneMember()
    answers = [n0.hear(i, vote_request(1))[0].result for i in (1, 2, 1)]
    assert answers == [VoteResult.ACCEPT, VoteResult.REJECT_ALREADY_VOTED, VoteResult.ACCEPT]
    assert n0.disk.hard_state == (1, n0.peer(1))


def test_5_2_a_vote_survives_a_restart() -> None:
    """Figure 2: votedFor is updated on stable storage before responding."""
    n0 = LoneMember(term=1, vote="n1")
    assert n0.hear(2, vote_request(1))[0].result is VoteResult.REJECT_ALREADY_VOTED
    assert n0.hear(1, vote_request(1))[0].result is VoteResult.ACCEPT


def test_5_2_the_vote_is_in_the_ready_that_answers() -> None:
    """Figure 2: term and vote are stored in step 1 of the Ready whose messages speak of them."""
    n0 = LoneMember()
    n0.hear(1, vote_request(1))
    ready = n0.readys[-1]
    assert ready.hard_state == (1, n0.peer(1))
    assert [e.message.result for e in ready.messages] == [VoteResult.ACCEPT]


@pytest.mark.parametrize(("term", "follows"), [(0, False), (1, True), (2, True)])
def test_5_2_a_candidate_recognises_a_leader_of_its_term_or_a_higher_one(
    term: int, follows: bool
) -> None:
    """5.2: if the leader's term is at least as large, the candidate returns to follower state."""
    n0 = LoneMember(term=1)
    n0.pass_ms(100)
    (answer,) = n0.hear(1, heartbeat(term))
    assert answer.accepted == follows
    assert (n0.node.role is Role.FOLLOWER) == follows


def test_5_2_a_split_vote_is_followed_by_a_new_term() -> None:
    """5.2: each candidate will time out and start a new election by incrementing its term."""
    n0 = LoneMember(3)
    n0.pass_ms(100)
    n0.pass_ms(100)
    n0.hear(1, VoteResponse(term=0, vote_term=1, pre_vote=True, result=VoteResult.ACCEPT))
    taken = VoteResult.REJECT_ALREADY_VOTED
    n0.hear(1, VoteResponse(term=1, vote_term=1, pre_vote=False, result=taken))
    n0.hear(2, VoteResponse(term=1, vote_term=1, pre_vote=False, result=taken))
    asked = n0.pass_ms(100)
    assert [(r.pre_vote, r.vote_term) for r in asked] == [(True, 2), (True, 2)]


def test_5_2_a_leader_sends_heartbeats_at_once_and_periodically() -> None:
    """5.2: it sends heartbeats to all to establish its authority, and periodically after."""
    n0 = LoneMember().lead()
    assert [len(n0.to(i, HeartbeatRequest)) for i in (1, 2)] == [1, 1]
    n0.pass_ms(150)
    n0.pass_ms(150)
    assert [len(n0.to(i, HeartbeatRequest)) for i in (1, 2)] == [3, 3]


def test_5_2_waits_are_random() -> None:
    """5.2: randomized election timeouts ensure that split votes are rare."""
    waits = []
    for seed in range(20):
        n0 = LoneMember(min_vote_interval_ms=50, max_vote_interval_ms=300)
        n0.node._elector._random = random.Random(seed)
        n0.node._elector.start()
        waits.append(n0.node.next_wakeup_ms())
    assert all(50 <= wait <= 300 for wait in waits)
    assert len(set(waits)) == 20


# -------------------------------------------------------------------- 5.3  Log replication


def test_5_3_entries_are_replicated_in_parallel() -> None:
    """5.3: the leader appends the command and issues AppendEntries in parallel to each other server."""
    n0 = matched(LoneMember().lead(), 1, 2)
    n0.act(lambda: n0.propose("a", "b"))
    pushes = [n0.to(i, PushEntryRequest)[-1] for i in (1, 2)]
    assert [(p.first_index, p.count, p.previous) for p in pushes] == [(1, 2, EntryId(0, 1))] * 2


@pytest.mark.parametrize(("size", "acks"), [(2, 1), (3, 1), (5, 2), (7, 3)])
def test_5_3_an_entry_is_committed_once_a_majority_has_it(size: int, acks: int) -> None:
    """5.3: a log entry is committed once the leader has replicated it on a majority of the servers."""
    n0 = matched(LoneMember(size).lead(), *range(1, size))
    n0.act(lambda: n0.propose("a"))
    n0.sync_now()
    for i in range(1, acks + 1):
        assert n0.node.committed_index == -1
        n0.hear(i, ack(1, 1))
    assert n0.node.committed_index == 1


def test_5_3_the_leader_counts_its_own_disk_only() -> None:
    """5.3: ... replicated: the leader's own copy counts when its own disk has it."""
    n0 = matched(LoneMember().lead(), 1, 2)
    n0.act(lambda: n0.propose("a"))
    n0.hear(1, ack(1, 1))
    assert n0.node.committed_index == 0
    n0.sync_now()
    assert n0.node.committed_index == 1


def test_5_3_preceding_entries_are_committed_too() -> None:
    """5.3: this also commits all preceding entries, including those of previous leaders."""
    n0 = matched(LoneMember(terms=(1, 1, 2)).lead(), 1)
    assert n0.node.committed_index == -1
    n0.hear(1, ack(3, 3))
    assert n0.node.committed_index == 3


def test_5_3_the_leader_retries_until_all_followers_have_stored_everything() -> None:
    """5.3: it retries AppendEntries indefinitely until all followers eventually store all entries."""
    n0 = matched(LoneMember().lead(), 1, 2)
    n0.hear(1, ack(1, 0))
    for _ in range(110):
        n0.hear(1, HeartbeatResponse(term=1, round=1, accepted=True))
        n0.pass_ms(500)
    sent = [p.first_index for p in n0.to(2, PushEntryRequest) if p.push is PushType.APPEND]
    assert len(sent) >= 4
    assert set(sent) == {0}


def test_5_3_a_follower_learns_what_is_committed() -> None:
    """5.3: the leader includes the committed index in future messages, including heartbeats."""
    n0 = LoneMember()
    n0.hear(1, append(1, NO_ENTRY, [1, 1, 1]))
    assert n0.node.committed_index == -1
    n0.hear(1, heartbeat(1, committed_index=1))
    assert n0.node.committed_index == 1
    n0.hear(1, PushEntryRequest(term=1, push=PushType.COMMIT, committed_index=2))
    assert n0.node.committed_index == 2


def test_5_3_a_follower_commits_only_what_this_leader_has_verified() -> None:
    """5.3, Figure 2: commitIndex = min(leaderCommit, index of last *new* entry), not the log end."""
    n0 = LoneMember(terms=(1, 1, 1, 1))
    n0.hear(1, append(2, EntryId(1, 1), [1], committed_index=3))
    assert n0.node.committed_index == 2


@pytest.mark.parametrize(
    ("previous", "conflict"),
    [
        (EntryId(3, 2), (-1, -1, 2)),  # the log is shorter
        (EntryId(2, 3), (2, 1, 2)),  # another term there: its first index is named
        (EntryId(1, 1), (2, 1, 2)),
    ],
)
def test_5_3_the_consistency_check_rejects(previous: EntryId, conflict: tuple[int, int, int]) -> None:
    """5.3: if the follower does not find the previous entry in its log, it refuses the new entries."""
    n0 = LoneMember(terms=(1, 2, 2))
    request = PushEntryRequest(
        term=4, push=PushType.COMPARE, committed_index=-1, previous=previous, number=1
    )
    (answer,) = n0.hear(1, request)
    assert answer.result is PushResult.INCONSISTENT_STATE
    assert (answer.conflict_term, answer.conflict_first_index, answer.ledger_end_index) == conflict


def test_5_3_a_conflicting_entry_and_all_that_follow_it_are_deleted() -> None:
    """5.3: conflicting entries in follower logs are overwritten with entries from the leader's log."""
    n0 = LoneMember(terms=(1, 1, 2, 2, 2))
    n0.hear(1, append(3, EntryId(1, 1), [3]))
    assert [term for term, _ in n0.disk.entries] == [1, 1, 3]
    assert n0.readys[-1].truncate_from == 2


def test_5_3_a_leader_never_overwrites_its_own_log() -> None:
    """5.3, Leader Append-Only: a leader never overwrites or deletes entries in its log."""
    n0 = LoneMember(terms=(1, 1, 2)).lead()
    before = list(n0.disk.entries)
    n0.hear(1, append(3, EntryId(0, 1), [3, 3]))
    assert n0.node.role is Role.LEADER
    assert n0.disk.entries[: len(before)] == before


FIGURE_7 = {
    "a": [1, 1, 1, 4, 4, 5, 5, 6, 6],
    "b": [1, 1, 1, 4],
    "c": [1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 6],
    "d": [1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 7, 7],
    "e": [1, 1, 1, 4, 4, 4, 4],
    "f": [1, 1, 1, 2, 2, 2, 3, 3, 3, 3, 3],
}


@pytest.mark.parametrize("follower", FIGURE_7)
def test_5_3_figure_7_the_leader_brings_any_log_to_its_own(follower: str) -> None:
    """5.3, Figure 7: the leader forces the followers' logs to duplicate its own, in few rounds."""
    terms = FIGURE_7[follower]
    scenario = group(
        f"""
        members 3
        disk n0 term 7 log 1 1 1 4 4 5 5 6 6 6
        disk n1 term {max(terms)} log {" ".join(map(str, terms))}
        disk n2 term 7
        cut n1
        elect n0
        settle
        heal
        live 1200
        """
    )
    assert terms_of(scenario, "n0") == [1, 1, 1, 4, 4, 5, 5, 6, 6, 6, 8]
    assert terms_of(scenario, "n1") == terms_of(scenario, "n0")
    assert scenario.members["n1"].node.committed_index == 10


def test_5_3_rounds_of_comparison_are_bounded_by_the_number_of_terms() -> None:
    """5.3: one round for each conflicting term, rather than one for each entry."""
    leader_terms = tuple(t for t in range(1, 12, 2) for _ in range(50))
    follower_terms = [t for t in (1, 2, 4, 6, 8) for _ in range(50)]
    n0 = LoneMember(2, terms=leader_terms, term=11).lead()
    follower = LoneMember(2, terms=tuple(follower_terms))
    rounds = 0
    while (question := n0.to(1, PushEntryRequest)[-1]).push is PushType.COMPARE:
        rounds += 1
        follower.hear(1, question)
        (answer,) = follower.to(1, PushEntryResponse)[-1:] or follower.sync_now()
        if answer.result is not PushResult.SUCCESS and answer.number != question.number:
            (answer,) = follower.sync_now()
        n0.hear(1, answer)
    assert rounds <= 11
    assert n0.node.status().peers[0].compare_index == 49


# -------------------------------------------------------------------- 5.4  Safety


@pytest.mark.parametrize(
    ("voter_terms", "end", "granted"),
    [
        ((1, 1), EntryId(1, 1), True),  # the same log
        ((1, 1), EntryId(2, 1), True),  # longer
        ((1, 1), EntryId(0, 2), True),  # a later term, though shorter
        ((1, 1), EntryId(0, 1), False),  # shorter
        ((1, 2), EntryId(5, 1), False),  # an earlier term, though longer
        ((), NO_ENTRY, True),
    ],
)
@pytest.mark.parametrize("pre_vote", [True, False])
def test_5_4_1_the_voter_denies_its_vote_if_its_own_log_is_more_up_to_date(
    voter_terms: tuple[int, ...], end: EntryId, granted: bool, pre_vote: bool
) -> None:
    """5.4.1: the last terms decide; if the logs end with the same term, the longer one does."""
    n0 = LoneMember(terms=voter_terms, term=3)
    (answer,) = n0.hear(1, vote_request(4, end, pre_vote=pre_vote))
    assert (answer.result is VoteResult.ACCEPT) == granted
    if pre_vote:
        assert n0.disk.hard_state == (3, None), "a pre-vote stores nothing"
    else:
        assert n0.disk.hard_state == (4, n0.peer(1) if granted else None)


def test_5_4_1_votes_count_entries_that_are_not_on_the_disk_yet() -> None:
    """5.4.1: the log is what was taken, synced or not; an acknowledgement may be on its way."""
    n0 = LoneMember()
    n0.hear(1, append(1, NO_ENTRY, [1, 1]))
    assert n0.node.log.durable_index == -1
    n0.node.on_connection_lost(n0.peer(1), is_gone=True)
    (answer,) = n0.hear(2, vote_request(2, EntryId(0, 1)))
    assert answer.result is VoteResult.REJECT_SMALL_LEDGER_END_INDEX


def test_5_4_2_only_entries_of_the_current_term_are_committed_by_counting() -> None:
    """5.4.2, Figure 8: (1,2) is on a majority, but the leader of term 4 does not commit it by that."""
    n0 = matched(LoneMember(5, terms=(1, 2), term=3).lead(), 1, 2)
    for i in (1, 2):
        n0.hear(i, ack(4, 1))
    assert n0.node.committed_index == -1
    for i in (1, 2):
        n0.hear(i, ack(4, 2))
    assert n0.node.committed_index == 2


def test_5_4_3_a_new_leader_has_every_committed_entry() -> None:
    """5.4.3, Leader Completeness (the random runs check it in every election)."""
    scenario = group(
        """
        members 5
        cut n3 n4
        elect n0
        append n0 a b c
        settle
        crash n0
        heal
        live 3000
        """
    )
    leaders = [i for i, m in scenario.members.items() if m.node.role is Role.LEADER]
    assert leaders[0] in ("n1", "n2")
    assert [value for _, value in scenario.disks[leaders[0]].entries][:4] == [NOOP, "a", "b", "c"]


# -------------------------------------------------------------------- 5.5  Crashes


def test_5_5_a_repeated_request_does_no_harm() -> None:
    """5.5: a follower that receives entries already present in its log ignores them."""
    n0 = LoneMember()
    request = append(1, NO_ENTRY, [1, 1])
    n0.hear(1, request)
    n0.hear(1, append(1, EntryId(1, 1), [1]))
    before = list(n0.disk.entries)
    n0.hear(1, request)
    assert n0.disk.entries == before
    assert n0.readys[-1].truncate_from is None
    assert [a.index for a in n0.sync_now()] == [1, 2, 1], "and it is acknowledged again"


def test_5_5_a_repeated_vote_is_granted_again() -> None:
    """5.5: if a server crashes after completing an RPC but before responding, the RPC is repeated."""
    n0 = LoneMember(term=4, vote="n2")
    assert n0.hear(2, vote_request(4))[0].result is VoteResult.ACCEPT


def test_5_5_every_positive_answer_waits_for_the_disk() -> None:
    """5.5, Figure 2: persistent state is updated before responding; a repeated answer waits too."""
    n0 = LoneMember(terms=(1,))
    compare = PushEntryRequest(
        term=2, push=PushType.COMPARE, committed_index=-1, previous=EntryId(0, 1), number=1
    )
    assert n0.hear(1, compare) == []
    assert n0.hear(1, append(2, EntryId(0, 1), [2])) == []
    assert n0.hear(1, append(2, EntryId(0, 1), [2])) == []
    assert [answer.result for answer in n0.sync_now()] == [PushResult.SUCCESS] * 3


# -------------------------------------------------------------------- 6  Who may disturb


@pytest.mark.parametrize("pre_vote", [True, False])
def test_6_votes_are_disregarded_while_a_leader_is_heard(pre_vote: bool) -> None:
    """6: a request within the minimum election timeout of hearing a leader changes neither the term
    nor the vote."""
    n0 = LoneMember()
    n0.hear(1, heartbeat(term=1))
    n0.pass_ms(749)
    (answer,) = n0.hear(2, vote_request(9, pre_vote=pre_vote))
    assert answer.result is VoteResult.REJECT_ALREADY_HAS_LEADER
    assert n0.node.term == 1
    n0.pass_ms(1)
    assert n0.hear(2, vote_request(9, pre_vote=pre_vote))[0].result is VoteResult.ACCEPT


def test_6_a_leader_with_a_live_quorum_keeps_its_term() -> None:
    """6, thesis 4.2.3: a leader that hears a majority is not deposed by a higher term in a request."""
    n0 = LoneMember().lead()
    (answer,) = n0.hear(2, vote_request(9, EntryId(5, 5)))
    assert answer.result is VoteResult.REJECT_ALREADY_HAS_LEADER
    assert (n0.node.role, n0.node.term) == (Role.LEADER, 1)


def test_thesis_6_2_a_leader_without_a_quorum_steps_down() -> None:
    """Thesis 6.2: a leader steps down if an election timeout elapses without a successful round."""
    n0 = LoneMember(5).lead()
    for _ in range(10):
        n0.pass_ms(150)
        for i in (1, 2):
            n0.hear(i, HeartbeatResponse(term=1, round=n0.node._elector.round, accepted=True))
    assert n0.node.role is Role.LEADER
    for _ in range(5):
        n0.pass_ms(150)
        n0.hear(1, HeartbeatResponse(term=1, round=n0.node._elector.round, accepted=True))
    assert n0.node.role is Role.CANDIDATE


def test_thesis_9_6_a_pre_vote_changes_nothing() -> None:
    """Thesis 9.6: a member that cannot win never raises its term."""
    n0 = LoneMember(3)
    for _ in range(50):
        n0.pass_ms(100)
    assert n0.node.role is Role.CANDIDATE
    assert n0.disk.hard_state == (0, None)


# -------------------------------------------------------------------- thesis 3.10  Transfer


def test_thesis_3_10_transfer_stops_appends_and_waits_for_the_target() -> None:
    """Thesis 3.10: the prior leader stops accepting requests and brings the target's log up to date."""
    n0 = matched(LoneMember().lead(), 1, 2)
    n0.act(lambda: n0.node.transfer_leadership("n1"))
    with pytest.raises(LeaderTransferring):
        n0.propose("a")
    assert n0.to(1, TakeLeadershipRequest) == []
    n0.hear(1, ack(1, 0))
    assert [r.ledger_end for r in n0.to(1, TakeLeadershipRequest)] == [EntryId(0, 1)]


def test_thesis_3_10_a_transfer_ends_after_an_election_timeout() -> None:
    """Thesis 3.10: if it does not complete in about an election timeout, requests are accepted again."""
    n0 = matched(LoneMember().lead(), 1, 2)
    n0.hear(2, ack(1, 0))
    n0.act(lambda: n0.node.transfer_leadership("n1"))
    for _ in range(5):
        n0.hear(2, HeartbeatResponse(term=1, round=n0.node._elector.round, accepted=True))
        n0.pass_ms(150)
    assert n0.propose("a") == EntryId(1, 1)


def test_thesis_3_10_the_mark_overrides_stickiness_towards_the_leader_that_gave_it() -> None:
    """Thesis 3.10, 4.2.3: servers that follow the old leader answer a candidate that it has asked."""
    for mark, granted in [((1, 1), True), ((1, 0), False), ((2, 1), False)]:
        n0 = LoneMember()
        n0.hear(1, heartbeat(term=1))
        transfer_mark = (n0.peer(mark[0]), mark[1])
        (answer,) = n0.hear(2, vote_request(2, transfer_mark=transfer_mark))
        assert (answer.result is VoteResult.ACCEPT) == granted, (mark, answer)


# -------------------------------------------------------------------- 8  Client interaction


def test_8_a_leader_opens_its_term_with_a_no_op() -> None:
    """8: each leader commits a blank no-op entry into the log at the start of its term."""
    n0 = LoneMember(terms=(1,)).lead()
    assert n0.disk.entries[-1] == (2, NOOP)


def test_8_a_read_waits_for_an_entry_of_the_term_and_for_a_round() -> None:
    """8: it needs the latest committed entries, and must exchange heartbeats with a majority first."""
    n0 = matched(LoneMember(terms=(1,)).lead(), 1)
    numbers: list[int] = []
    n0.act(lambda: numbers.append(n0.node.request_read()))
    beat = n0.to(1, HeartbeatRequest)[-1]
    n0.hear(1, HeartbeatResponse(term=2, round=beat.round - 1, accepted=True))
    n0.hear(1, HeartbeatResponse(term=2, round=beat.round, accepted=True))
    assert not any(ready.read_grants for ready in n0.readys), "nothing of term 2 is committed"
    n0.hear(1, ack(2, 1))
    grants = [grant for ready in n0.readys for grant in ready.read_grants]
    assert [(grant.number, grant.index) for grant in grants] == [(numbers[0], 1)]


def test_8_an_answer_to_an_earlier_round_grants_no_read() -> None:
    """8: the heartbeats must be exchanged after the read was asked for."""
    n0 = matched(LoneMember().lead(), 1)
    n0.hear(1, ack(1, 0))
    n0.act(lambda: n0.node.request_read())
    n0.hear(1, HeartbeatResponse(term=1, round=1, accepted=True))
    assert not any(ready.read_grants for ready in n0.readys)
    n0.hear(1, HeartbeatResponse(term=1, round=2, accepted=True))
    assert any(ready.read_grants for ready in n0.readys)
