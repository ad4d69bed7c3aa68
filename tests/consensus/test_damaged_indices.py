"""What a member with damaged entries may say and do: it compares and votes as if whole, and otherwise
leaves the word to those who are (store/DESIGN.md, damaged ranges)."""

from __future__ import annotations

from random import Random

import pytest

from quorumlog.consensus import Role
from quorumlog.consensus.log import DamagedIndices
from quorumlog.consensus.messages import (
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
from quorumlog.entry import EntryId
from quorumlog.errors import TransferFailed

from .harness import LoneMember
from .test_entry_dispatcher import stay_alive
from .test_entry_handler import terms_of, truncate
from .test_paper import ack, append, heartbeat, matched, vote_request

TIMEOUT_MS = 750


def member_with(*ranges: tuple[int, int], committed: int = -1, **more: object) -> LoneMember:
    """A follower with entries 0 .. 4 of terms 1 1 2 2 2, of which these are damaged."""
    return LoneMember(terms=(1, 1, 2, 2, 2), committed=committed, damaged=ranges, **more)


def results(answers: list[object]) -> list[tuple[PushType, PushResult, int]]:
    return [(a.push, a.result, a.index) for a in answers if isinstance(a, PushEntryResponse)]


def acknowledged(n0: LoneMember) -> list[int]:
    return [index for push, _, index in results(n0.sync_now()) if push is PushType.APPEND]


def quiet(n0: LoneMember, milliseconds: int) -> bool:
    """No vote was asked for in this time."""
    said = [message for _ in range(milliseconds // 10) for message in n0.pass_ms(10)]
    return not any(isinstance(message, VoteRequest) for message in said)


# ---------------------------------------------------------------- voting and comparing as if whole


@pytest.mark.parametrize("damaged", [(), ((1, 3),), ((0, 5),), ((4, 5),)])
@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (EntryId(3, 2), VoteResult.REJECT_SMALL_LEDGER_END_INDEX),
        (EntryId(9, 1), VoteResult.REJECT_EXPIRED_LEDGER_TERM),
        (EntryId(4, 2), VoteResult.ACCEPT),
    ],
)
def test_it_votes_by_its_full_log_end(
    damaged: tuple[tuple[int, int], ...], end: EntryId, expected: VoteResult
) -> None:
    n0 = member_with(*damaged)
    (answer,) = n0.hear(1, vote_request(5, end))
    assert answer.result is expected


def test_it_compares_by_the_terms_that_it_knows() -> None:
    n0 = member_with((1, 4))
    compare = PushEntryRequest(
        term=3, push=PushType.COMPARE, committed_index=-1, number=1, previous=EntryId(3, 2)
    )
    n0.hear(1, compare)
    assert results(n0.sync_now()) == [(PushType.COMPARE, PushResult.SUCCESS, 3)]


# ---------------------------------------------------------------- acknowledging


def test_nothing_above_a_damaged_entry_that_may_be_uncommitted_is_acknowledged() -> None:
    n0 = member_with((2, 3))
    n0.hear(1, append(3, EntryId(4, 2), [3]))
    n0.hear(1, append(3, EntryId(5, 3), [3]))
    assert acknowledged(n0) == []
    assert n0.disk.entries[-1][0] == 3, "it takes and keeps them all the same"
    assert acknowledged(n0) == []


def test_the_newest_acknowledgement_leaves_once_the_range_is_repaired() -> None:
    n0 = member_with((2, 3))
    n0.hear(1, append(3, EntryId(4, 2), [3]))
    n0.hear(1, append(3, EntryId(5, 3), [3]))
    assert acknowledged(n0) == []
    n0.act(lambda: n0.node.on_repaired(()))
    assert acknowledged(n0) == [6]
    n0.hear(1, append(3, EntryId(6, 3), [3]))
    assert acknowledged(n0) == [7]


def test_the_newest_acknowledgement_leaves_once_the_group_has_committed_without_it() -> None:
    n0 = member_with((2, 3))
    n0.hear(1, append(3, EntryId(4, 2), [3]))
    n0.hear(1, heartbeat(3, committed_index=1))
    assert acknowledged(n0) == []
    n0.hear(1, heartbeat(3, committed_index=2))
    assert acknowledged(n0) == [5]


def test_damage_found_while_the_acknowledgement_waits_for_the_disk_keeps_it_back() -> None:
    n0 = member_with()
    n0.hear(1, append(3, EntryId(4, 2), [3]))
    n0.act(lambda: n0.node.on_damaged(2, 3))
    assert acknowledged(n0) == []
    n0.act(lambda: n0.node.on_repaired(()))
    assert acknowledged(n0) == [5]


def test_damage_below_the_committed_index_withholds_nothing() -> None:
    n0 = member_with((0, 2), committed=1)
    n0.hear(1, append(3, EntryId(4, 2), [3]))
    assert acknowledged(n0) == [5]


def test_a_promise_to_an_earlier_leader_is_forgotten() -> None:
    n0 = member_with((2, 3))
    n0.hear(1, append(3, EntryId(4, 2), [3]))
    assert acknowledged(n0) == []
    n0.hear(1, append(3, EntryId(5, 3), [3]))
    n0.hear(2, heartbeat(4))
    n0.act(lambda: n0.node.on_repaired(()))
    assert acknowledged(n0) == []


# ---------------------------------------------------------------- cutting


def test_a_conflict_that_takes_the_range_away_ends_the_damage() -> None:
    n0 = member_with((2, 5))
    n0.hear(1, append(3, EntryId(1, 1), [3, 3]))
    assert terms_of(n0) == [1, 1, 3, 3]
    assert acknowledged(n0) == [3]


def test_a_cut_behind_a_damaged_entry_is_left_to_the_push_that_tells_where_that_one_ends() -> None:
    n0 = member_with((2, 5), committed=1)
    n0.hear(1, truncate(3, EntryId(3, 2), 3))
    assert results(n0.sync_now()) == [(PushType.TRUNCATE, PushResult.SUCCESS, 3)]
    assert terms_of(n0) == [1, 1, 2, 2, 2]
    n0.hear(1, append(3, EntryId(3, 2), [3]))
    assert terms_of(n0) == [1, 1, 2, 2, 3], "and not one entry below the conflict"
    assert acknowledged(n0) == [], "2 and 3 are still damaged"
    n0.act(lambda: n0.node.on_repaired(()))
    assert acknowledged(n0) == [4]


def test_what_a_cut_left_of_a_range_that_was_repaired_meanwhile_is_repaired_too() -> None:
    """The last piece was written while the cut was on its way: the report of it comes behind the cut."""
    n0 = member_with((2, 5), committed=1)
    n0.hear(1, append(3, EntryId(3, 2), [3]))
    assert acknowledged(n0) == []
    n0.act(lambda: n0.node.on_repaired(()))
    assert acknowledged(n0) == [4]


def test_a_cut_inside_a_range_takes_nothing_that_this_member_has_acknowledged() -> None:
    """n1 and n2 have committed 2 and 3 with n1's word; n1 never heard of it and lost their bytes. Was
    n1 to cut them because 4 differs, n0 and n1 could elect each other without them."""
    n1 = member_with((2, 5), committed=-1)
    n1.hear(1, append(3, EntryId(3, 2), [3]))
    n1.sync_now()
    (answer,) = n1.hear(2, vote_request(4, EntryId(1, 1)))
    assert answer.result is not VoteResult.ACCEPT


# ---------------------------------------------------------------- campaigning


def test_it_campaigns_only_after_three_election_time_outs_without_a_leader() -> None:
    whole, n0 = member_with(), member_with((2, 3), committed=4)
    assert not quiet(whole, 300)
    assert quiet(n0, 3 * TIMEOUT_MS - 10)
    n0.hear(1, heartbeat(3))
    assert quiet(n0, 3 * TIMEOUT_MS - 10)
    assert not quiet(n0, 200)


def test_a_lost_connection_to_the_leader_does_not_make_it_campaign_sooner() -> None:
    n0 = member_with((2, 3), committed=4)
    n0.hear(1, heartbeat(3))
    n0.act(lambda: n0.node.on_connection_lost(n0.peer(1), is_gone=True))
    assert quiet(n0, 3 * TIMEOUT_MS - 10)


def test_once_repaired_it_campaigns_like_any_other() -> None:
    n0 = member_with((2, 3), committed=4)
    assert quiet(n0, 1000)
    n0.act(lambda: n0.node.on_repaired(()))
    assert not quiet(n0, 300)


def test_it_does_not_take_over_leadership_when_asked() -> None:
    n0 = member_with((2, 3), committed=4)
    n0.hear(1, heartbeat(3))
    assert n0.hear(1, TakeLeadershipRequest(term=3, ledger_end=EntryId(4, 2))) == []


def test_alone_in_its_group_it_leads_at_once_and_commits_what_follows() -> None:
    n0 = LoneMember(1, terms=(1, 1, 2), damaged=((1, 2),))
    n0.pass_ms(100)
    n0.pass_ms(100)
    n0.sync_now()
    assert (n0.node.role, n0.node.committed_index) == (Role.LEADER, 3)


# ---------------------------------------------------------------- leading


def leading(count: int, *peers: int) -> LoneMember:
    """n0 leads term 1 with a no-op and COUNT entries on its disk, which these peers have, too."""
    n0 = matched(LoneMember().lead(), 1, 2)
    n0.act(lambda: n0.propose(*range(count)))
    n0.sync_now()
    for i in peers:
        n0.hear(i, ack(1, count))
    return n0


def test_a_leader_that_finds_damage_hands_over_to_the_member_that_is_furthest() -> None:
    n0 = leading(4, 1, 2)
    n0.act(lambda: n0.propose("more"))
    n0.sync_now()
    n0.hear(2, ack(1, 5))
    n0.act(lambda: n0.node.on_damaged(1, 3))
    assert n0.node.status().transferring_to == "n2"
    assert len(n0.to(2, TakeLeadershipRequest)) == 1


def test_it_hands_over_to_nobody_who_has_said_that_he_is_damaged_too() -> None:
    n0 = leading(4, 1, 2)
    beat = n0.node._elector.round
    n0.hear(1, HeartbeatResponse(term=1, round=beat, accepted=True, takes_over=False))
    with pytest.raises(TransferFailed, match="damaged"):
        n0.node.transfer_leadership("n1")
    n0.act(lambda: n0.node.on_damaged(1, 3))
    assert n0.node.status().transferring_to == "n2"
    n0.hear(1, HeartbeatResponse(term=1, round=beat, accepted=True))
    n0.pass_ms(TIMEOUT_MS)
    assert n0.node._elector.answers.takes_over(n0.voters[1])


def test_a_damaged_member_says_that_it_would_not_take_over() -> None:
    n0 = member_with((2, 3), committed=4)
    answers = n0.hear(1, heartbeat(3))
    assert [a.takes_over for a in answers if isinstance(a, HeartbeatResponse)] == [False]


def test_a_leader_with_damage_and_nobody_to_hand_over_to_goes_on() -> None:
    n0 = leading(4, 1)
    n0.node.on_connection_lost(n0.peer(1), is_gone=True)
    n0.node.on_connection_lost(n0.peer(2), is_gone=True)
    n0.act(lambda: n0.node.on_damaged(1, 3))
    assert (n0.node.role, n0.node.status().transferring_to) == (Role.LEADER, None)


def test_a_leaders_own_disk_does_not_count_from_a_damaged_uncommitted_entry_on() -> None:
    n0 = leading(4)
    n0.act(lambda: n0.node.on_damaged(2, 3))
    n0.hear(1, ack(1, 4))
    assert n0.node.committed_index == 1, "n1, and this disk as far as it is good"
    n0.hear(2, ack(1, 4))
    assert n0.node.committed_index == 4, "n1 and n2"


def test_a_leader_counts_its_disk_again_once_it_is_repaired() -> None:
    n0 = leading(4)
    n0.act(lambda: n0.node.on_damaged(2, 3))
    n0.hear(1, ack(1, 4))
    n0.act(lambda: n0.node.on_repaired(()))
    assert n0.node.committed_index == 4


def test_a_leader_that_cannot_commit_for_its_damage_steps_down_and_waits_three_time_outs() -> None:
    n0 = leading(4)
    n0.act(lambda: n0.node.on_damaged(2, 3))
    stay_alive(n0, TIMEOUT_MS - 150, 1, 2)
    assert n0.node.role is Role.LEADER
    stay_alive(n0, 300, 1, 2)
    assert n0.node.role is Role.CANDIDATE
    assert quiet(n0, 3 * TIMEOUT_MS - 300)
    assert not quiet(n0, 600)


def test_where_nobody_can_commit_the_terms_become_rarer() -> None:
    """The same entry is damaged at a quorum: each attempt to lead costs a term and a no-op."""
    n0 = leading(4)
    n0.act(lambda: n0.node.on_damaged(2, 3))
    waits = []
    for _ in range(3):
        while n0.node.role is Role.LEADER:
            stay_alive(n0, 150, 1, 2)
        began_ms, term = n0.now_ms, n0.node.term
        while n0.node.role is not Role.LEADER and n0.now_ms < began_ms + 30_000:
            for message in n0.pass_ms(10):
                if isinstance(message, VoteRequest):
                    answer = VoteResponse(
                        term=n0.node.term,
                        vote_term=message.vote_term,
                        pre_vote=message.pre_vote,
                        result=VoteResult.ACCEPT,
                    )
                    n0.hear(1, answer)
        assert n0.node.term == term + 1
        waits.append(n0.now_ms - began_ms)
        n0.sync_now()
    assert [round(wait / TIMEOUT_MS) for wait in waits] == [3, 6, 12]


# ---------------------------------------------------------------- the ranges


def test_the_ranges_against_a_set_of_indices() -> None:
    random = Random(7)
    for _ in range(300):
        ranges = DamagedIndices()
        held: dict[tuple[int, int], set[int]] = {}
        for first in range(0, 30, 5):
            if random.random() < 0.5:
                each = (first, first + random.randint(1, 5))
                ranges.add(*each)
                held[each] = set(range(*each))
        if held and random.random() < 0.5:
            gone = random.choice(sorted(held))
            del held[gone]
            ranges.replace(list(held))
        cut = random.randint(0, 31)
        assert ranges.holds(cut) == any(cut in each for each in held.values())
        ranges.truncate_from(cut)
        indices = {i for each in held.values() for i in each if i < cut}
        committed = random.randint(-1, 30)
        assert ranges.first_unproven(committed) == min(
            (i for i in indices if i > committed), default=None
        )
        assert bool(ranges) == bool(indices)


@pytest.mark.parametrize(
    ("added", "ranges"),
    [
        ([(4, 9), (7, 12)], [(4, 12)]),
        ([(7, 12), (1, 2), (4, 9)], [(1, 2), (4, 12)]),
        ([(4, 6), (8, 10), (5, 9)], [(4, 10)]),
        ([(6, 9), (4, 6)], [(4, 6), (6, 9)]),
    ],
)
def test_ranges_that_overlap_become_one(
    added: list[tuple[int, int]], ranges: list[tuple[int, int]]
) -> None:
    damaged = DamagedIndices()
    for first, stop in added:
        damaged.add(first, stop)
    assert damaged.ranges == ranges
