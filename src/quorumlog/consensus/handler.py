"""EntryHandler: the follower's answers to the four kinds of push, in the order they come.

    COMPARE   does this member hold the entry?
    TRUNCATE  cut entries known to differ
    APPEND    the entry before the first one must be held; then write the new ones
    COMMIT    commit verified entries; a query asks for the last entry received

A message that gets here has passed the term check of `Inbox`: the sender leads this member's current
term. Four invariants:

1. Cutting happens only at an index where the leader's term and ours differ. An older or repeated
   message names entries that this log already holds, so it cuts nothing.
2. A cut at or below the committed index is refused with DIVERGED_BELOW_COMMIT, and `status` says so.
3. No acknowledgement leaves for the first entry on that is damaged and not known to be committed;
   the newest one is kept until it may leave.
4. The committed index moves only up to `_verified_index`, the last entry that this leader has shown to
   be the same as its own. The own log end may be a tail that no other member has.
"""

from __future__ import annotations

from bisect import insort
from itertools import pairwise

import msgspec

from quorumlog.consensus.member_state import MemberState, Outbox
from quorumlog.consensus.messages import (
    InstallResult,
    PushEntryRequest,
    PushEntryResponse,
    PushResult,
    PushType,
)
from quorumlog.consensus.ready import AppendOrder, Envelope
from quorumlog.entry import NO_ENTRY, EntryId, EntryKind, Replica
from quorumlog.figures import now


class EntryHandler:
    def __init__(
        self, state: MemberState, outbox: Outbox, *, max_waiting_pushes: int, async_mode: bool
    ) -> None:
        self._state = state
        self._outbox = outbox
        self._async_mode = async_mode
        self._max_waiting = max_waiting_pushes
        self._waiting: list[tuple[int, int, PushEntryRequest]] = []
        """(first index, -last index, push) of pushes ahead of the log, ordered, the longest first."""
        self._verified_index = -1
        self.leader_committed_index = -1
        """This leader's committed index, which may be beyond the verified index."""
        self._withheld: tuple[Replica, PushEntryResponse] | None = None
        """The acknowledgement that reaches farthest of those that may not leave yet."""
        self.problem = ""

    def begin(self) -> None:
        """Another term has begun, with another leader."""
        self._waiting.clear()
        self._withheld = None
        self._verified_index = -1
        self.leader_committed_index = -1

    @property
    def waiting_pushes(self) -> tuple[PushEntryRequest, ...]:
        """Pushes ahead of the log, in order: taking the one before them takes these as well."""
        return tuple(request for _, _, request in self._waiting)

    def drop_waiting_pushes(self) -> None:
        """As if they had been lost on the way."""
        self._waiting.clear()

    def on_push(self, request: PushEntryRequest, refuse: PushResult | None = None) -> None:
        """`refuse`: the entries of this APPEND cannot be taken (its bytes found no room)."""
        push = request.push
        if push is PushType.APPEND:
            if refuse is not None:
                # What waits behind it will be sent again with it, and takes no promise of space along.
                self._waiting.clear()
                self._answer(request, refuse)
            elif _is_well_formed(request):
                self._append(request)
        elif push is PushType.COMPARE:
            self._compare(request)
        elif push is PushType.TRUNCATE:
            self._truncate(request)
        elif self._state.runs.holds(request.previous):
            # After a restart there may be nothing left to push, and this is what verifies the log then.
            self._verify_up_to(request.previous.index)
            if request.asks_what_arrived:
                # What waits for the disk has arrived, and so has what waits for a push before it.
                gap_stop = self._gap_stop(request.first_index)
                self._answer(
                    request, PushResult.RECEIVED, index=self._verified_index, first_index=gap_stop
                )
                if self._verified_index > request.previous.index:
                    # The acknowledgement may have been lost: it goes once more when the disk has that.
                    again = msgspec.structs.replace(request, push=PushType.APPEND)
                    self._answer(again, PushResult.SUCCESS, index=self._verified_index)
        else:
            # A disk has forgotten what it had synced. Pushes would wait here for ever.
            self._answer_inconsistent(request)
        self.on_committed(request.committed_index)

    def refuse(self, request: PushEntryRequest, result: PushResult) -> None:
        """The request did not pass the term gate."""
        self._answer(request, result)

    def on_committed(self, committed_index: int) -> None:
        """The leader's committed index, from a push or a heartbeat."""
        self.leader_committed_index = max(self.leader_committed_index, committed_index)
        self._commit()

    def conflict_of(self, request: PushEntryRequest) -> int | None:
        """Where an APPEND or TRUNCATE would have the log cut, if anywhere. Changes nothing."""
        runs = self._state.runs
        if request.term != self._state.term or not runs.holds(request.previous):
            return None
        if request.push is PushType.APPEND and _is_well_formed(request):
            return runs.first_difference(request.first_index, request.last_index + 1, request.term_runs)
        if request.push is PushType.TRUNCATE and request.term_runs:
            cut_index, term = request.term_runs[0]
            if cut_index <= runs.end_index and runs.term_at(cut_index) != term:
                return cut_index
        return None

    def last_shared_index(self, push: PushEntryRequest) -> int | None:
        """The last entry of a push, or the one before it, that this log holds by index and term; None
        if it does not even hold the one before."""
        runs = self._state.runs
        if not runs.holds(push.previous):
            return None
        differs = runs.first_difference(push.first_index, push.last_index + 1, push.term_runs)
        return min(push.last_index, runs.end_index) if differs is None else differs - 1

    def judge_install(self, begin: EntryId, leader: Replica) -> InstallResult | None:
        """May this log be replaced by the leader's, which begins after `begin`? None: yes. Committed
        entries may be replaced in async mode only, and only by the leader of a higher term."""
        runs, committed_index = self._state.runs, self._state.committed_index
        if runs.holds(begin):
            return InstallResult.HELD
        if begin.index > committed_index:
            return None
        if self._async_mode and self._state.term > runs.term_at(committed_index):
            return None
        self.problem = (
            f"DIVERGED_BELOW_COMMIT: the log of {leader.member_id}, leader of term {self._state.term},"
            " begins after another entry than this member holds, which is committed"
            f" here{now(f'entry {begin.index}, committed index {committed_index}')}; refused"
        )
        return InstallResult.DIVERGED_BELOW_COMMIT

    def _compare(self, request: PushEntryRequest) -> None:
        # What waited belongs to an earlier attempt and will come again.
        self._waiting.clear()
        if self._state.runs.holds(request.previous):
            self._verify_up_to(request.previous.index)
            self._answer(request, PushResult.SUCCESS, index=request.previous.index)
        else:
            self._answer_inconsistent(request)

    def _truncate(self, request: PushEntryRequest) -> None:
        self._waiting.clear()
        runs = self._state.runs
        if not runs.holds(request.previous):
            self._answer_inconsistent(request)
            return
        self._verify_up_to(request.previous.index)
        cut_index = request.previous.index + 1
        if not request.term_runs or request.term_runs[0][0] != cut_index:
            return  # names no entry at the cut: nothing that a dispatcher sends
        differs = cut_index <= runs.end_index and runs.term_at(cut_index) != request.term_runs[0][1]
        # Where the last entry that stays is damaged, only the APPEND after this tells where it ends.
        if differs and self._state.log.damaged.holds(request.previous.index):
            differs = False
        if differs and not self._cut_from(cut_index, request):
            return
        self._answer(request, PushResult.SUCCESS, index=request.previous.index)

    def _append(self, request: PushEntryRequest) -> None:
        if request.previous.index > self._state.runs.end_index:
            self._keep_waiting(request)
        elif self._take(request):
            # Several may overlap after a resend.
            end_index = self._state.runs.end_index
            while self._waiting and self._waiting[0][0] <= end_index + 1:
                if not self._take(self._waiting.pop(0)[2]):
                    return
                end_index = self._state.runs.end_index

    def _take(self, request: PushEntryRequest) -> bool:
        """Append what is new in a push whose previous entry is not ahead of the log."""
        runs, last_index = self._state.runs, request.last_index
        if not runs.holds(request.previous):
            self._answer_inconsistent(request)
            return False
        new_index = runs.end_index + 1
        if request.first_index < new_index:
            conflict = runs.first_difference(request.first_index, last_index + 1, request.term_runs)
            if conflict is not None and not self._cut_from(conflict, request):
                return False
            new_index = runs.end_index + 1
        if new_index <= last_index:
            self._state.log.append(
                AppendOrder(
                    first_index=new_index,
                    count=last_index + 1 - new_index,
                    term=request.term,
                    kind=EntryKind.NORMAL,
                    batch=request.batch,
                    push_first_index=request.first_index,
                    push_previous_chain=request.previous_chain,
                ),
                _runs_from(request.term_runs, new_index),
            )
        self._verify_up_to(last_index)
        self._answer(request, PushResult.SUCCESS, index=last_index)
        self._commit()
        return True

    def may_leave(self, envelope: Envelope) -> bool:
        """Asked when an answer has waited for the disk, and not before: the entries that it acknowledges
        may turn out to be damaged while it waits. One that may not leave is kept."""
        answer = envelope.message
        if answer.term < self._state.term:
            # Worth nothing to the leader of an older term, and after a cut it would not even be true.
            return False
        unproven = self._state.first_unproven_index
        if (
            unproven is None
            or not isinstance(answer, PushEntryResponse)
            or answer.push is not PushType.APPEND
            or answer.index < unproven
        ):
            return True
        if self._withheld is None or self._withheld[1].index < answer.index:
            self._withheld = (envelope.to, answer)
        return False

    def release_withheld(self) -> None:
        withheld, self._withheld = self._withheld, None
        if withheld is not None:
            self._outbox.send_after_durable(*withheld)

    def _commit(self) -> None:
        index = min(self.leader_committed_index, self._verified_index)
        if index > self._state.committed_index:
            self._state.commit_up_to(index)
            self.release_withheld()

    def _gap_stop(self, stop_index: int) -> int:
        """All from here on that was sent below `stop_index` waits for what is missing."""
        for first_index, negative_last_index, _ in reversed(self._waiting):
            if first_index < stop_index <= 1 - negative_last_index:
                stop_index = first_index
        return stop_index

    def _verify_up_to(self, index: int) -> None:
        if index > self._verified_index:
            self._verified_index = index
            self.problem = ""

    def _cut_from(self, cut_index: int, request: PushEntryRequest) -> bool:
        """Cut a real conflict; False if it was refused (and answered)."""
        if cut_index <= self._verified_index:
            return False  # a leader's log does not change within its term: nobody sends this
        state = self._state
        committed_index = state.committed_index
        if cut_index <= committed_index:
            # In async mode a power loss may have taken acknowledged entries from those who elected a
            # leader of a higher term; the group goes on with what is left, and says so. A leader of
            # the very term that committed the entry cannot lack it, in any mode.
            committed_term = state.runs.term_at(committed_index)
            if not (self._async_mode and request.term > committed_term):
                self.problem = (
                    f"DIVERGED_BELOW_COMMIT: {request.sender.member_id}, leader of term {request.term},"
                    f" holds another entry at index {cut_index}, which is committed"
                    f" here{now(f'committed index {committed_index}')}; refused"
                )
                self._answer(request, PushResult.DIVERGED_BELOW_COMMIT)
                return False
            state.lose_committed_from(cut_index)
            state.log.truncate_from(cut_index, loses_committed=True)
            return True
        state.log.truncate_from(cut_index)
        assert state.runs.end_index >= state.committed_index, (state.runs.end_index, cut_index)
        return True

    def _keep_waiting(self, request: PushEntryRequest) -> None:
        """Pushes are pipelined, so one that was lost leaves the next ones ahead of the log."""
        entry = (request.first_index, -request.last_index, request)
        waiting = self._waiting
        if any(first == entry[0] and last <= entry[1] for first, last, _ in waiting):
            return  # a copy of one that waits already
        insort(waiting, entry, key=lambda item: item[:2])
        if len(waiting) > self._max_waiting:
            # The farthest ahead is the one that will be of use last.
            self._answer(waiting.pop()[2], PushResult.PUSH_REQUEST_IS_FULL)

    def _answer_inconsistent(self, request: PushEntryRequest) -> None:
        """Where to compare next: our term there and its first index, or our end if that is lower, or our
        begin if that is higher."""
        runs = self._state.runs
        index = request.previous.index
        conflict_term, conflict_first_index = -1, -1
        begin = runs.before_begin if index < runs.before_begin.index else NO_ENTRY
        if runs.before_begin.index < index <= runs.end_index:
            conflict_term = runs.term_at(index)
            conflict_first_index = runs.first_index_of_run_at(index)
        self._answer(
            request,
            PushResult.INCONSISTENT_STATE,
            conflict_term=conflict_term,
            conflict_first_index=conflict_first_index,
            begin=begin,
        )

    def _answer(
        self,
        request: PushEntryRequest,
        result: PushResult,
        *,
        index: int = -1,
        first_index: int | None = None,
        conflict_term: int = -1,
        conflict_first_index: int = -1,
        begin: EntryId = NO_ENTRY,
    ) -> None:
        # A leader that counts a positive answer counts our disk; a refusal promises nothing.
        send = self._outbox.send_after_durable if result is PushResult.SUCCESS else self._outbox.send
        send(
            request.sender,
            PushEntryResponse(
                sender=self._state.member,
                term=self._state.term,
                push=request.push,
                result=result,
                number=request.number,
                index=index,
                first_index=request.first_index if first_index is None else first_index,
                conflict_term=conflict_term,
                conflict_first_index=conflict_first_index,
                begin=begin,
                ledger_end_index=self._state.runs.end_index,
                committed_index=self._state.committed_index,
            ),
        )


def _is_well_formed(request: PushEntryRequest) -> bool:
    """A push that contradicts itself is treated like one that was lost."""
    if request.count <= 0 or request.first_index != request.previous.index + 1:
        return False
    runs = request.term_runs
    if not runs or runs[0][0] != request.first_index or runs[-1][0] > request.last_index:
        return False
    if runs[0][1] < request.previous.term or runs[-1][1] > request.term:
        return False
    return len(runs) == 1 or all(a[0] < b[0] and a[1] < b[1] for a, b in pairwise(runs))


def _runs_from(runs: tuple[tuple[int, int], ...], first_index: int) -> tuple[tuple[int, int], ...]:
    if runs[0][0] == first_index:
        return runs
    kept = [run for run in runs if run[0] > first_index]
    before = [term for first, term in runs if first <= first_index]
    return ((first_index, before[-1]), *kept)
