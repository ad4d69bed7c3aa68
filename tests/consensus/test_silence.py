"""What a leader does about a follower that is silent: it asks, sends little, waits longer each time.

Silence is loss only where nothing else explains it: a slow disk answers late, and on a slow link what
was sent is still on its way. tests/sim/test_link_scenarios.py has whole links and disks that are slow.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import replace
from itertools import count, pairwise

import pytest

from quorumlog.config import ConsensusConfig
from quorumlog.consensus.messages import PushEntryRequest, PushEntryResponse, PushResult, PushType
from quorumlog.consensus.ready import Envelope, Role
from quorumlog.entry import EntryId, Formation, HardState, Replica

from .harness import ENTRY_BYTES, FakeDisk, FakeMember, LoneMember, with_sender
from .test_entry_dispatcher import peer_status, pushes, stay_alive
from .test_paper import ack, matched

RESEND_MS = 1000
PUSH_MS_OF_MIB = 1024.0
"""A push of 1 MiB on a link of 1 MiB/s; the defaults are scaled so that an entry is a push."""


# -------------------------------------------------------------------- one follower, by hand


def level(**settings: object) -> LoneMember:
    """A leader that has sent four pushes of an entry each, of which the first is acknowledged."""
    n0 = LoneMember(push_limit_bytes=ENTRY_BYTES, **settings).lead()
    matched(n0, 1, 2)
    n0.hear(1, ack(1, 0))
    n0.act(lambda: n0.propose(*"abcd"))
    n0.hear(1, ack(1, 1))
    n0.hear(2, ack(1, 4))
    assert pushes(n0)[1:] == [(1, 1), (2, 2), (3, 3), (4, 4)]
    return n0


def questions(n0: LoneMember) -> list[PushEntryRequest]:
    """What n1 was asked to have received, so far."""
    sent = n0.to(1, PushEntryRequest)
    return [p for p in sent if p.asks_what_arrived]


def received(
    n0: LoneMember, index: int, *, gap_stop: int | None = None, number: int = -1
) -> list[object]:
    """n1 answers a question, the newest if nothing else is said; it has all from `gap_stop` on."""
    question = questions(n0)[number]
    answer = PushEntryResponse(
        term=1,
        push=PushType.COMMIT,
        result=PushResult.RECEIVED,
        number=question.number,
        index=index,
        first_index=question.first_index if gap_stop is None else gap_stop,
    )
    return n0.hear(1, answer)


def test_silence_is_asked_about_and_a_disk_that_is_slow_gets_nothing_twice() -> None:
    n0 = level()
    stay_alive(n0, 900, 1, 2)
    assert questions(n0) == []
    stay_alive(n0, 150, 1, 2)
    (question,) = questions(n0)
    assert (question.previous.index, question.first_index) == (1, 5)
    for _ in range(10):
        received(n0, 4)
        stay_alive(n0, 3000, 1, 2)
    assert len(pushes(n0)) == 5
    assert len(questions(n0)) <= 5, "less often each time"
    assert peer_status(n0).has_arrived


def test_what_has_not_arrived_goes_again_as_soon_as_that_is_known() -> None:
    n0 = level()
    stay_alive(n0, 1050, 1, 2)
    received(n0, 2)
    assert pushes(n0)[5:] == [(3, 3), (4, 4)]


def test_of_a_window_only_what_was_lost_goes_again() -> None:
    """The others wait there for it."""
    n0 = level()
    stay_alive(n0, 1050, 1, 2)
    received(n0, 1, gap_stop=4)
    assert pushes(n0)[5:] == [(2, 2), (3, 3)]
    n0.hear(1, ack(1, 4))
    stay_alive(n0, 3000, 1, 2)
    assert len(pushes(n0)) == 7


def test_an_answer_counts_unless_something_went_again_since_it_was_asked_for() -> None:
    """Where the way takes longer than the time between questions, the newest has never been answered."""
    n0 = level()
    stay_alive(n0, 3150, 1, 2)
    assert len(questions(n0)) == 2
    received(n0, 2, number=0)
    assert pushes(n0)[5:] == [(3, 3), (4, 4)]
    received(n0, 2, number=1)
    assert len(pushes(n0)) == 7, "it is on its way"
    stay_alive(n0, 4_050, 1, 2)
    received(n0, 2, gap_stop=4)
    assert pushes(n0)[7:] == [(3, 3)], "lost once more"


def test_what_goes_again_takes_no_more_room() -> None:
    n0 = level(push_window_bytes=3 * ENTRY_BYTES)
    n0.act(lambda: n0.propose("e"))
    n0.hear(2, ack(1, 5))
    stay_alive(n0, 64_050, 1, 2)
    again = pushes(n0)[5:]
    assert again == [(2, 2)] * len(again) != []
    n0.hear(1, ack(1, 2))
    assert pushes(n0)[5 + len(again) :] == [(5, 5)]


def test_what_goes_again_and_finds_no_room_on_its_connection_waits_like_anything_else() -> None:
    n0 = level()
    stay_alive(n0, 1050, 1, 2)
    n0.holds_pushes = True
    received(n0, 2, gap_stop=4)
    n0.holds_pushes = False
    n0.act(lambda: n0.node.replication.on_push_failed(n0.peer(1)))
    stay_alive(n0, 900, 1, 2)
    assert len(pushes(n0)) == 5
    stay_alive(n0, 300, 1, 2)
    assert pushes(n0)[5:] == [(3, 3)]


def test_acknowledgements_that_come_slowly_are_answers() -> None:
    """Where something between the two machines acknowledges bytes that it holds for long."""
    n0 = level()
    for index in (2, 3, 4):
        stay_alive(n0, 14_500, 1, 2)
        n0.hear(1, ack(1, index))
    assert len(pushes(n0)) == 5


def test_without_any_answer_the_first_push_goes_again_and_each_time_later() -> None:
    n0 = level()
    began_ms = n0.now_ms
    sent_ms: list[float] = []
    for _ in range(340):
        stay_alive(n0, 150, 1, 2)
        sent_ms += [n0.now_ms - began_ms] * (len(pushes(n0)) - 5 - len(sent_ms))
    assert pushes(n0)[5:] == [(2, 2)] * len(sent_ms)
    waits = [round((b - a) / RESEND_MS) for a, b in pairwise([0.0, *sent_ms])]
    assert waits[:3] == [15, 16, 16], "it was asked three times before: after 1, 3 and 7 seconds"
    assert len(questions(n0)) == 3 + len(sent_ms)


def test_while_bytes_move_nothing_is_sent_again_unasked() -> None:
    """What is asked is on its way as well, behind the pushes."""
    n0 = level()
    for _ in range(100):
        n0.act(lambda: n0.node.on_bytes_moved(n0.peer(1)))
        stay_alive(n0, 900, 1, 2)
    assert len(pushes(n0)) == 5
    assert 1 <= len(questions(n0)) <= 8, "less often each time"
    stay_alive(n0, 64_050, 1, 2)
    assert pushes(n0)[5] == (2, 2), "silence"


def test_bytes_that_move_put_off_no_question() -> None:
    """They may be those of newer pushes, which wait there for one that was dropped."""
    n0 = level()
    for value in "efghijk":
        n0.act(lambda value=value: n0.propose(value))
        n0.act(lambda: n0.node.on_bytes_moved(n0.peer(1)))
        stay_alive(n0, 150, 1, 2)
    sent = len(pushes(n0))
    assert sent == 12
    received(n0, 2, gap_stop=4)
    assert pushes(n0)[sent:] == [(3, 3)], "what is missing, and that at once"


def test_a_wait_stays_as_long_as_it_became_until_a_push_was_timed() -> None:
    n0 = level()
    stay_alive(n0, 16_000, 1, 2)
    assert pushes(n0)[5:] == [(2, 2)]
    n0.hear(1, ack(1, 2))
    n0.hear(1, ack(1, 3))
    asked = len(questions(n0))
    stay_alive(n0, 15_000, 1, 2)
    assert len(questions(n0)) == asked, "the wait stays what it had become"
    n0.hear(1, ack(1, 4))
    n0.act(lambda: n0.propose("e"))
    n0.hear(1, ack(1, 5))
    n0.hear(2, ack(1, 5))
    n0.act(lambda: n0.propose("f"))
    stay_alive(n0, 1050, 1, 2)
    assert len(questions(n0)) == asked + 1, "an answer that took no time: the wait is short again"


def test_an_outage_says_nothing_about_the_time_that_an_answer_takes() -> None:
    n0 = level()
    n0.act(lambda: n0.propose("e"))
    n0.hear(2, ack(1, 5))
    n0.act(lambda: n0.node.on_connection_lost(n0.peer(1), is_gone=False))
    stay_alive(n0, 30_000, 2)
    n0.act(lambda: n0.node.on_connected(n0.peer(1)))
    n0.hear(1, ack(1, 5))
    n0.act(lambda: n0.propose("f"))
    asked = len(questions(n0))
    stay_alive(n0, 1050, 1, 2)
    assert len(questions(n0)) == asked + 1


def test_a_push_that_found_no_room_on_its_connection_is_the_only_one_that_goes_again() -> None:
    n0 = LoneMember(push_limit_bytes=ENTRY_BYTES).lead()
    matched(n0, 1, 2)
    n0.hear(1, ack(1, 0))
    n0.hear(2, ack(1, 0))
    n0.act(lambda: n0.propose(*"ab"))
    n0.hear(2, ack(1, 2))
    assert pushes(n0)[1:] == [(1, 1), (2, 2)]
    n0.holds_pushes = True
    n0.act(lambda: n0.propose("c"))
    order = next(order for order in n0.held_pushes if order.to == n0.peer(1))
    n0.holds_pushes = False
    n0.act(lambda: n0.node.replication.on_push_failed(n0.peer(1)))
    stay_alive(n0, 900, 1, 2)
    assert len(pushes(n0)) == 3
    stay_alive(n0, 300, 1, 2)
    assert pushes(n0)[3:] == [(3, 3)] == [(order.first_index, order.stop_index - 1)]


def test_a_connection_that_is_full_again_and_again_puts_off_no_question() -> None:
    """Of what went before, something may have been dropped there."""
    n0 = level()
    n0.holds_pushes = True
    n0.act(lambda: n0.propose("e"))
    for _ in range(3):
        n0.act(lambda: n0.node.replication.on_push_failed(n0.peer(1)))
        stay_alive(n0, 1050, 1, 2)
    assert questions(n0) != []


def test_a_disk_without_space_is_tried_with_one_push() -> None:
    n0 = level()
    refusal = PushEntryResponse(term=1, push=PushType.APPEND, result=PushResult.DISK_FULL, first_index=2)
    n0.hear(1, refusal)
    stay_alive(n0, 1050, 1, 2)
    assert pushes(n0)[5:] == [(2, 2)]
    n0.hear(1, ack(1, 2))
    assert pushes(n0)[6:] == [(3, 3), (4, 4)]


def test_a_follower_says_at_once_what_has_arrived_and_nothing_to_older_leaders() -> None:
    n1 = LoneMember(terms=(1, 1))
    ask = PushEntryRequest(
        term=1, push=PushType.COMMIT, committed_index=0, number=3, previous=n1.disk.id_at(0)
    )
    assert n1.hear(1, ask) == [], "one that does not say what should come next"
    push = PushEntryRequest(
        term=1,
        push=PushType.APPEND,
        committed_index=0,
        previous=n1.disk.id_at(1),
        first_index=2,
        count=1,
        term_runs=((2, 1),),
        batch=((1, "c"),),
    )
    assert n1.hear(1, push) == [], "the acknowledgement waits for the disk"
    ask = PushEntryRequest(
        term=1,
        push=PushType.COMMIT,
        committed_index=0,
        number=4,
        previous=n1.disk.id_at(0),
        first_index=5,
    )
    (answer,) = n1.hear(1, ask)
    assert (answer.result, answer.index, answer.first_index) == (PushResult.RECEIVED, 2, 5)
    assert answer.number == 4
    acks = n1.sync_now()
    assert [(a.push, a.result, a.index) for a in acks] == [
        (PushType.APPEND, PushResult.SUCCESS, 2),
        (PushType.APPEND, PushResult.SUCCESS, 2),
    ], "and once more when the disk has it: the first may be lost"


def push_of(index: int) -> PushEntryRequest:
    return PushEntryRequest(
        term=1,
        push=PushType.APPEND,
        committed_index=0,
        previous=EntryId(index - 1, 1),
        first_index=index,
        count=1,
        term_runs=((index, 1),),
        batch=((1, index),),
    )


@pytest.mark.parametrize(
    ("arrive", "gap"),
    [
        ((2, 3, 4, 5), (6, 6)),
        ((2, 4, 5), (3, 4)),
        ((2, 3, 4), (5, 6)),
        ((3, 5), (2, 5)),
        ((), (2, 6)),
    ],
)
def test_a_follower_says_which_entries_it_waits_for(
    arrive: tuple[int, ...], gap: tuple[int, int]
) -> None:
    """Entries 2 to 5 were sent. What lies between several that are missing comes again as well."""
    n1 = LoneMember(terms=(1, 1))
    for index in arrive:
        n1.hear(1, push_of(index))
    ask = PushEntryRequest(
        term=1,
        push=PushType.COMMIT,
        committed_index=0,
        number=4,
        previous=n1.disk.id_at(1),
        first_index=6,
    )
    answer = n1.hear(1, ask)[0]
    assert (answer.index + 1, answer.first_index) == gap


def test_the_tail_of_an_older_leader_has_not_arrived() -> None:
    """It is longer than what this leader has sent, and another one."""
    n1 = LoneMember(terms=(1, 1, 2, 2))
    ask = PushEntryRequest(
        term=3,
        push=PushType.COMMIT,
        committed_index=0,
        number=4,
        previous=n1.disk.id_at(1),
        first_index=3,
    )
    assert n1.hear(1, ask)[0].index == 1


# -------------------------------------------------------------------- a mark that is no longer true


def set_back() -> LoneMember:
    """Of five under `flush = async`, n1 has acknowledged entry 5 and then lost power."""
    n0 = LoneMember(5, async_mode=True).lead()
    matched(n0, 1, 2, 3, 4)
    for i in (1, 2, 3, 4):
        n0.hear(i, ack(1, 0))
    n0.act(lambda: n0.propose(*"abcde"))
    n0.act(n0.report_written)
    n0.hear(1, ack(1, 5))
    assert n0.node.committed_index == 0
    n0.act(lambda: n0.node.on_connection_lost(n0.peer(1), is_gone=True))
    n0.act(lambda: n0.node.on_connected(n0.peer(1)))
    return n0


def answer_compare(n0: LoneMember, result: PushResult, ledger_end_index: int) -> None:
    compare = n0.to(1, PushEntryRequest)[-1]
    assert compare.push is PushType.COMPARE
    answer = PushEntryResponse(
        term=1,
        push=PushType.COMPARE,
        result=result,
        number=compare.number,
        ledger_end_index=ledger_end_index,
    )
    n0.hear(1, answer)


def test_a_mark_falls_to_what_compare_shows() -> None:
    """Or a quorum is counted that does not hold the entry."""
    n0 = set_back()
    answer_compare(n0, PushResult.INCONSISTENT_STATE, ledger_end_index=0)
    n0.hear(2, ack(1, 5))
    assert n0.node.committed_index == 0, "n0 and n2 hold it, of five"
    n0.hear(3, ack(1, 5))
    assert n0.node.committed_index == 5


def test_a_mark_that_compare_confirms_stays() -> None:
    n0 = set_back()
    answer_compare(n0, PushResult.SUCCESS, ledger_end_index=5)
    n0.hear(2, ack(1, 5))
    assert n0.node.committed_index == 5


def test_what_was_committed_stays_so_when_a_mark_falls() -> None:
    n0 = set_back()
    n0.hear(2, ack(1, 5))
    assert n0.node.committed_index == 5
    answer_compare(n0, PushResult.INCONSISTENT_STATE, ledger_end_index=0)
    assert n0.node.committed_index == 5
    assert pushes(n0)[-1][1] == 5


# -------------------------------------------------------------------- heartbeats pass and data does not


ELECTION_MS = ConsensusConfig().election_timeout_ms


def unheard(n0: LoneMember) -> float:
    """Heartbeats are answered and pushes are not, until n0 leads no more; how long that took."""
    began_ms = n0.now_ms
    while n0.node.role is Role.LEADER:
        assert n0.now_ms < began_ms + 100 * ELECTION_MS, "leads for ever"
        stay_alive(n0, 150, *range(1, len(n0.voters)))
    return n0.now_ms - began_ms


def test_a_leader_whose_entries_arrive_nowhere_steps_down_and_lets_the_others_try() -> None:
    n0 = LoneMember().lead()
    matched(n0, 1, 2)
    n0.hear(1, ack(1, 0))
    n0.act(lambda: n0.propose("a"))
    after_ms = unheard(n0)
    assert 8 * ELECTION_MS <= after_ms < 9 * ELECTION_MS
    said = n0.pass_ms(2 * ELECTION_MS)
    assert said == [], "who asked for votes at once would be elected again for its long log"
    n0.pass_ms(2 * ELECTION_MS)
    assert n0.pass_ms(2 * ELECTION_MS), "and if nobody else leads, it tries again"


def test_a_follower_is_named_before_its_leader_steps_down() -> None:
    n0 = LoneMember().lead()
    matched(n0, 1, 2)
    n0.hear(1, ack(1, 0))
    n0.hear(2, ack(1, 0))
    n0.act(lambda: n0.propose("a"))
    n0.hear(2, ack(1, 1))
    since_ms = n0.now_ms
    stay_alive(n0, 5 * ELECTION_MS, 1, 2)
    assert peer_status(n0, 1).stalled_since_ms == pytest.approx(since_ms, abs=150)
    assert not peer_status(n0, 1).has_arrived
    assert peer_status(n0, 2).stalled_since_ms is None
    n0.hear(1, ack(1, 1))
    assert peer_status(n0, 1).stalled_since_ms is None


def test_bytes_that_move_are_no_progress_while_entries_wait_there_for_the_disk() -> None:
    """Until the connection is another one: what had arrived may have gone with the old one."""
    n0 = level()

    def bytes_move(duration_ms: int) -> None:
        for _ in range(duration_ms // 150):
            n0.act(lambda: n0.node.on_bytes_moved(n0.peer(1)))
            stay_alive(n0, 150, 1, 2)

    bytes_move(5 * ELECTION_MS)
    assert peer_status(n0, 1).stalled_since_ms is None, "a slow link"
    received(n0, 4)
    since_ms = n0.now_ms
    bytes_move(5 * ELECTION_MS)
    assert peer_status(n0, 1).stalled_since_ms == pytest.approx(since_ms, abs=150)
    n0.act(lambda: n0.node.on_connection_lost(n0.peer(1), is_gone=False))
    n0.act(lambda: n0.node.on_connected(n0.peer(1)))
    bytes_move(150)
    assert peer_status(n0, 1).stalled_since_ms is None


@pytest.mark.parametrize("what", ["nothing to commit", "bytes move", "a mark rises", "no space"])
def test_a_leader_stays_where(what: str) -> None:
    n0 = LoneMember().lead()
    matched(n0, 1, 2)
    n0.hear(1, ack(1, 0))
    if what != "nothing to commit":
        n0.act(lambda: n0.propose(*range(100)))
    if what == "no space":
        for i in (1, 2):
            full = PushEntryResponse(
                term=1, push=PushType.APPEND, result=PushResult.DISK_FULL, first_index=1
            )
            n0.hear(i, full)
    for index in range(1, 100):
        if what == "bytes move":
            n0.act(lambda: n0.node.on_bytes_moved(n0.peer(2)))
        if what == "a mark rises":
            n0.hear(1, ack(1, index))
        stay_alive(n0, ELECTION_MS // 150 * 150, 1, 2)
    assert n0.node.role is Role.LEADER


def test_connections_that_come_and_go_are_no_progress() -> None:
    """A transport gives up a way that swallows data, and dials again, and gives up again."""
    n0 = LoneMember().lead()
    matched(n0, 1, 2)
    n0.hear(1, ack(1, 0))
    n0.act(lambda: n0.propose("a"))
    began_ms = n0.now_ms
    while n0.node.role is Role.LEADER and n0.now_ms < began_ms + 20 * ELECTION_MS:
        for i in (1, 2):
            n0.act(lambda i=i: n0.node.on_connection_lost(n0.peer(i), is_gone=False))
            n0.act(lambda i=i: n0.node.on_connected(n0.peer(i)))
        stay_alive(n0, 3000, 1, 2)
    assert n0.node.role is not Role.LEADER


def test_a_majority_has_to_get_entries_not_just_anybody() -> None:
    """Of five, one that acknowledges all is not enough."""
    n0 = LoneMember(5).lead()
    matched(n0, 1, 2, 3, 4)
    for i in (1, 2, 3, 4):
        n0.hear(i, ack(1, 0))
    for index in range(1, 30):
        n0.act(lambda: n0.propose("x"))
        n0.sync_now()
        n0.hear(1, ack(1, index))
        stay_alive(n0, 750, 1, 2, 3, 4)
        if n0.node.role is not Role.LEADER:
            break
    assert n0.node.role is not Role.LEADER
    assert n0.node.committed_index == 0


def test_where_nobody_can_commit_terms_become_rarer_until_somebody_can() -> None:
    n0 = LoneMember(2).lead()
    matched(n0, 1)
    times = [unheard(n0)]
    for _ in range(4):
        n0.pass_ms(3 * ELECTION_MS)
        n0.lead()
        matched(n0, 1)
        times.append(unheard(n0))
    assert [round(ms / ELECTION_MS) for ms in times] == [8, 16, 32, 64, 64]
    n0.pass_ms(3 * ELECTION_MS)
    n0.lead()
    matched(n0, 1)
    n0.hear(1, ack(n0.node.term, n0.node.ledger_end.index))
    assert n0.node.committed_index == n0.node.ledger_end.index
    n0.act(lambda: n0.propose("a"))
    assert round(unheard(n0) / ELECTION_MS) == 8


# -------------------------------------------------------------------- slow links and disks


class ThinLink:
    """Three members of which n1 has nothing yet: what the leader n0 pushes to it goes through a queue
    that takes `push_ms` for an entry. An entry stands for a push of `push_limit_bytes`."""

    def __init__(
        self, *, backlog: int, push_ms: float, sync_ms: float = 1.0, append_every_ms: float = 0.0
    ) -> None:
        self.ids = ("n0", "n1", "n2")
        voters = tuple(Replica(i, f"{i}-d0") for i in self.ids)
        config = ConsensusConfig(push_limit_bytes=ENTRY_BYTES, push_window_bytes=8 * ENTRY_BYTES)
        self.now_ms = 0.0
        self.push_ms, self.sync_ms = push_ms, sync_ms
        self.pushed: list[int] = []
        """The first index of every push that n1 was sent."""
        self._free_ms = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self.members: dict[str, FakeMember] = {}
        for number, voter in enumerate(voters):
            disk = FakeDisk(voter)
            disk.formation = Formation(voters, voters)
            disk.hard_state = HardState(1, None)
            if voter.member_id != "n1":
                disk.entries = [(1, k) for k in range(backlog)]
            # Only n0 asks for votes soon.
            waits = {} if number == 0 else {"min_vote_interval_ms": 5000, "max_vote_interval_ms": 6000}
            self.members[voter.member_id] = FakeMember(
                disk,
                self.ids,
                config=config if number == 0 else replaced(config, **waits),
                seed=number,
                now_ms=0.0,
                send=lambda envelope, me=voter: self._send(me, envelope),
            )
        for me in self.ids:
            for other in self.ids:
                if me != other:
                    self.members[me].node.on_connected(Replica(other, f"{other}-d0"))
            self._beat(me)
        if append_every_ms:
            self._at(3000, lambda: self._append(append_every_ms))

    @property
    def lag(self) -> int:
        return len(self.members["n0"].disk.entries) - len(self.members["n1"].disk.entries)

    def run_until(self, done: Callable[[], bool], limit_ms: float) -> float:
        """How long it took."""
        began_ms = self.now_ms
        while not done():
            self.now_ms, _, act = heapq.heappop(self._events)
            assert self.now_ms < began_ms + limit_ms, "not in time"
            act()
        return self.now_ms - began_ms

    def _at(self, after_ms: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now_ms + after_ms, next(self._order), act))

    def _turn(self, i: str, act: Callable[[FakeMember], object]) -> None:
        member = self.members[i]
        member.node.advance(self.now_ms)
        act(member)
        member.carry_out()
        if member.can_sync:
            member.begin_sync()
            sync_ms = self.sync_ms if i == "n1" else 1.0
            self._at(sync_ms, lambda: self._turn(i, lambda member: member.finish_sync()))

    def _beat(self, i: str) -> None:
        def tick(member: FakeMember) -> None:
            if i == "n0" and self._free_ms > self.now_ms:
                member.node.on_bytes_moved(Replica("n1", "n1-d0"))

        self._turn(i, tick)
        self._at(50, lambda: self._beat(i))

    def _append(self, every_ms: float) -> None:
        self._turn("n0", lambda member: member.propose("x"))
        self._at(every_ms, lambda: self._append(every_ms))

    def _send(self, sender: Replica, envelope: Envelope) -> None:
        message = envelope.message
        to_n1 = sender.member_id == "n0" and envelope.to.member_id == "n1"
        after_ms = 0.5
        if to_n1 and isinstance(message, PushEntryRequest):
            if message.push is PushType.APPEND:
                self.pushed.append(message.first_index)
                self._free_ms = max(self._free_ms, self.now_ms) + self.push_ms
            if message.push is not PushType.COMMIT or message.asks_what_arrived:
                after_ms += max(0.0, self._free_ms - self.now_ms)
        to = envelope.to.member_id
        self._at(after_ms, lambda: self._turn(to, lambda m: m.node.step(with_sender(envelope, sender))))


def replaced(config: ConsensusConfig, **changes: int) -> ConsensusConfig:
    return replace(config, **changes)


@pytest.mark.parametrize("kib_per_second", [100, 300, 700, 950, 1200, 8192])
def test_a_slow_link_is_used_to_nine_tenths_at_least(kib_per_second: int) -> None:
    push_ms = PUSH_MS_OF_MIB / kib_per_second * 1000
    link = ThinLink(backlog=60, push_ms=push_ms)
    took_ms = link.run_until(lambda: link.lag == 0 and link.pushed != [], 60 * push_ms * 5 + 60_000)
    began_ms = 2_000  # an election comes first
    assert took_ms <= began_ms + 61 * push_ms / 0.9
    assert len(link.pushed) == len(set(link.pushed)) == 61


@pytest.mark.parametrize("sync_ms", [900, 1500, 3000, 6000])
def test_a_slow_disk_gets_no_push_twice(sync_ms: int) -> None:
    link = ThinLink(backlog=60, push_ms=1.0, sync_ms=sync_ms)
    link.run_until(lambda: link.lag == 0 and link.pushed != [], 20 * sync_ms + 10_000)
    assert len(link.pushed) == len(set(link.pushed)) == 61


def test_a_follower_that_gets_four_fifths_of_what_its_link_carries_falls_no_further_behind() -> None:
    link = ThinLink(backlog=1, push_ms=2000.0, append_every_ms=2500.0)
    link.run_until(lambda: link.now_ms > 100_000, 200_000)
    lags = []
    for stop_ms in range(110_000, 600_000, 10_000):
        link.run_until(lambda stop_ms=stop_ms: link.now_ms > stop_ms, 200_000)
        lags.append(link.lag)
    assert max(lags) <= 2
    assert len(link.pushed) == len(set(link.pushed))
