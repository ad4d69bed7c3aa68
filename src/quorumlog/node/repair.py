"""Damage that is searched for, and mended from other members."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

import msgspec

from quorumlog.batch import EntryBatch
from quorumlog.consensus.messages import RangeRequest, RangeResponse
from quorumlog.consensus.ready import Envelope
from quorumlog.entry import Replica
from quorumlog.errors import DirectoryDamaged, DiskFull, LedgerError, ProtocolViolation, StoreFailure
from quorumlog.node.ports import Member
from quorumlog.node.sending import read_sound
from quorumlog.store.log_points import DamagedRange, Examination, LogStart
from quorumlog.store.state_files import decode_start, encode_start

# ---------------------------------------------------------------- Scrubber
# Reads the whole log again, slowly, so that damage is found while others can still repair it.
#
# One pass compares every durable entry, its index unit and its body, and the blank records. Then it
# rests. After a restart the next pass begins anew.

NEVER = float("inf")
DAMAGED_STEP_BYTES = 256 << 10
"""Size counted for a check that found unbounded damage."""
PAUSE_MS = 24 * 3600 * 1000


class ScrubStatus(NamedTuple):
    """How far the scrub has come since the start of the member."""

    next_index: int = -1
    """Entry that the pass under way looks at next; -1: none is under way."""
    stop_index: int = -1
    """Where that pass ends (exclusive); -1: none is under way."""
    passes: int = 0
    """Ended since the start."""
    ended_ms_ago: int = -1
    """Since the newest of them ended; -1: none has."""


class Scrubber:
    def __init__(self, member: Member, repairer: Repairer, bytes_per_second: int, now_ms: float) -> None:
        """`bytes_per_second` 0: off."""
        self._store, self._host = member.store, member.host
        self._tick_soon = member.housekeeping.stir
        self._bytes_per_second = bytes_per_second
        self._repairer = repairer
        self._next_index = -1
        """Of the pass under way; -1 while it rests."""
        self._stop_index = -1
        self._again_index = -1
        """From here on this pass looks once more: there was no space to write something again."""
        self._passes = 0
        self._ended_ms = now_ms
        self._is_looking = False
        self._skip = 1
        """Entries to go on behind damage without bounds; doubled until it is left behind."""
        self._has_failed = False
        """This pass met such damage."""
        self._stepped_ms = now_ms
        start_ms = now_ms + member.config.storage.scrub_start_delay_ms
        self._next_step_ms = start_ms if bytes_per_second else NEVER

    def configure(self, bytes_per_second: int, now_ms: float) -> None:
        """A pass under way continues at the new pace, or pauses while it is 0."""
        was_on, self._bytes_per_second = self._bytes_per_second > 0, bytes_per_second
        if not bytes_per_second:
            self._next_step_ms = NEVER
        elif not was_on:
            self._next_step_ms = now_ms

    def tick(self, now_ms: float) -> None:
        if self._is_looking or now_ms < self._next_step_ms:
            return
        durable_stop = self._store.durable.index + 1
        if self._next_index < 0:
            self._next_index = self._store.begin.index + 1
            self._stop_index = durable_stop
        index = self._next_index
        if index >= min(self._stop_index, durable_stop) and self._again_index >= 0:
            index = self._next_index = max(self._again_index, self._store.begin.index + 1)
            self._again_index = -1
        if index >= min(self._stop_index, durable_stop):
            self._next_index = self._stop_index = -1
            self._passes += 1
            if not self._has_failed:
                self._repairer.passed()
            self._has_failed = False
            self._ended_ms = now_ms
            self._next_step_ms = now_ms + PAUSE_MS
            return
        self._is_looking = True
        self._stepped_ms = now_ms
        self._host.read_later(
            lambda: self._store.examine(index, index + 1), lambda result: self._looked(index, result)
        )

    def _looked(self, index: int, result: Examination | StoreFailure | LedgerError) -> None:
        self._is_looking = False
        self._tick_soon()
        if isinstance(result, DirectoryDamaged):
            self._repairer.unbounded(result)
            self._has_failed = True
            self._next_index = max(index, result.index) + self._skip
            self._skip *= 2
            self._next_step_ms = self._after(DAMAGED_STEP_BYTES)
            return
        self._skip = 1
        if isinstance(result, StoreFailure | LedgerError):
            raise result
        # Looked at again if the log was cut meanwhile; and, once the rest was, if there is no space for
        # what is to be written again: else that part would wait for the next pass.
        if self._repairer.settle(result) is not None:
            if self._store.unsettled is not None and self._again_index < 0:
                self._again_index = index
            self._next_index = max(index + 1, result.stop_index)
        self._next_step_ms = self._after(result.size_bytes)

    def _after(self, size_bytes: int) -> float:
        if not self._bytes_per_second:
            return NEVER  # it was switched off meanwhile
        return self._stepped_ms + size_bytes * 1000 / self._bytes_per_second

    def status(self, now_ms: float) -> ScrubStatus:
        ended_ms_ago = int(now_ms - self._ended_ms) if self._passes else -1
        # A step looks at whole windows, so the last one may come out after the end of the pass.
        next_index = min(self._next_index, self._stop_index)
        return ScrubStatus(next_index, self._stop_index, self._passes, ended_ms_ago)

    def next_wakeup_ms(self) -> float:
        return NEVER if self._is_looking else self._next_step_ms


# ---------------------------------------------------------------- Repairer
# What becomes of damaged entries, from the read that met them to the copy that replaces them.
#
#     a read, a push or the scrub meets it     examine beside the loop, note it, tell the core
#     noted, also by the start                 ask one member after the other for the range, in pieces
#     a piece from any place of the range      check, write and sync it beside the loop, tell the core
#
# A member that holds the last entry of the range, by index and term, holds the same entries. The bytes
# are proven by a chain after them that is the same on both sides: at the end of the range, or beyond it
# where the sender's log is damaged as well. What all other voters have dropped nobody can send: then
# this log is to begin after it, too.

Proofs = tuple[tuple[int, int], ...]
PIECE_BYTES = 1 << 20
"""Requested at a time: bounds the memory of a repair, and the duration of its syncs."""
LEAST_PIECE_BYTES = 64 << 10
"""The same over a thin line, which half a piece may get through where a whole one came too late."""
ANSWER_MS = 2000
"""A member that has not sent a piece by then is passed over."""
ANSWER_LIMIT_MS = 60_000
"""The same, once everybody was too slow for less: an entry may be larger than a piece."""
RETRY_MS = 1000
"""Until all are asked again after all were asked in vain; and a full disk, for space for the list of
damaged ranges."""


class Repairer:
    def __init__(self, member: Member, give_up_below: Callable[[LogStart], None]) -> None:
        """`give_up_below`: another member's log begins with this start, and no member has earlier
        entries."""
        self._tick_soon = member.housekeeping.stir
        self._replica, self._directory = member.replica, member.directory
        self._raft, self._store, self._host = member.raft, member.store, member.host
        self._carry_out = member.carry_out_all
        self._give_up_below = give_up_below
        self._is_examining = False
        self._is_saving = False
        """The list of damaged ranges is on its way to the disk."""
        self._save_at_ms = 0.0
        """When to try again after there was no space for it."""
        self._without_space: Examination | None = None
        """What is to be written again once there is space; whatever else has none is met again."""
        self._settle_at_ms = 0.0
        """When to try that."""
        self._unsettled = ""
        """Damage that a closer look could not make a range of."""
        self._doubted_index = -1
        """Where a read met damage last and the look that followed found none."""
        self._number = 0
        """Of the newest request."""
        self._pending: tuple[DamagedRange, Replica] | None = None
        self._deadline_ms = 0.0
        self._timeout_ms_of = float(ANSWER_MS)
        self._sent_ms = 0.0
        self._piece_bytes = PIECE_BYTES
        self._is_late = False
        """Somebody did not answer in time since all were asked last."""
        self._is_writing = False
        self._passed_over: dict[DamagedRange, set[Replica]] = {}
        """Members that could not help with a range since all were asked last."""
        self._dropped: dict[DamagedRange, dict[Replica, LogStart]] = {}
        """Members that have deleted the beginning of a range, and where their logs begin; since all were
        asked last."""
        self._sources: dict[DamagedRange, str] = {}
        """The member that sent the newest good piece; "" once all were asked in vain."""
        self._refused = ""
        """Why the newest piece that was no good was none."""
        self._retry_at_ms = 0.0

    @property
    def _stored_term(self) -> int:
        """Of this disk; the core's may be one that the next Ready stores."""
        return self._directory.hard_state.term

    # ---------------------------------------------------------------- finding

    def found(self, damage: DirectoryDamaged) -> None:
        """A read has found damage."""
        if self._is_examining or damage.index < 0:
            return  # whatever is still there will be met again
        self._is_examining = True
        stop_index = max(damage.stop_index, damage.index + 1)
        self._host.read_later(
            lambda: self._store.examine(damage.index, stop_index),
            lambda result: self._examined(damage, result),
        )

    def _examined(
        self, damage: DirectoryDamaged, result: Examination | StoreFailure | LedgerError
    ) -> None:
        self._is_examining = False
        if isinstance(result, DirectoryDamaged):
            self.unbounded(result)
            return
        if isinstance(result, StoreFailure | LedgerError):
            raise result
        if self.settle(result) is not False:
            return
        # Repaired or damaged while the read or the look was on its way, most likely.
        if self._doubted_index == damage.index:
            self._unsettled = str(damage)
        self._doubted_index = damage.index

    def unbounded(self, damage: DirectoryDamaged) -> None:
        """Damage without a known range; `status` reports it, and reads there keep failing."""
        self._unsettled = str(damage)

    def passed(self) -> None:
        """A pass of the scrub has found nothing that could not be settled."""
        self._unsettled = ""
        self._doubted_index = -1

    def settle(self, result: Examination) -> bool | None:
        """Record the result of a closer look; False if it found nothing, None if the log was cut
        meanwhile: remaining damage has to be found again."""
        self._carry_out()  # what the core has cut by now is no damage
        ranges = self._store.settle(result)
        if ranges is None:
            return None
        self._without_space = self._without_space or self._store.unsettled
        if ranges:
            self._save()
        for damaged in ranges:
            self._raft.on_damaged(damaged.first_index, damaged.stop_index)
        return bool(ranges or result.units or result.blanks)

    def _save(self) -> None:
        def saved(result: bool | StoreFailure | LedgerError) -> None:
            self._is_saving = False
            if isinstance(result, StoreFailure | LedgerError):
                raise result

        self._is_saving = True
        self._host.flush_later(self._store.save_damaged, saved)

    # ---------------------------------------------------------------- asking

    def connected(self, replica: Replica) -> None:
        for replicas in self._passed_over.values():
            replicas.discard(replica)

    def connection_lost(self, replica: Replica) -> None:
        if self._pending is not None and self._pending[1] == replica:
            self._pass_over(*self._pending)

    def tick(self, now_ms: float) -> None:
        if self._store.damaged_problem and not self._is_saving and now_ms >= self._save_at_ms:
            self._save_at_ms = now_ms + RETRY_MS
            self._save()
        if self._without_space is not None and now_ms >= self._settle_at_ms:
            self._settle_at_ms = now_ms + RETRY_MS
            left, self._without_space = self._without_space, None
            self.settle(left)
        if self._pending is not None and now_ms >= self._deadline_ms:
            self._is_late = True
            self._piece_bytes = max(self._piece_bytes // 2, LEAST_PIECE_BYTES)
            self._pass_over(*self._pending)
        if self._pending is not None or self._is_writing or not self._store.damaged:
            return
        if now_ms >= self._retry_at_ms:
            self._forget_repaired()
            self._passed_over.clear()
            self._dropped.clear()
            self._retry_at_ms = NEVER
            if self._is_late:
                self._timeout_ms_of = min(2 * self._timeout_ms_of, ANSWER_LIMIT_MS)
                self._is_late = False
        for damaged in self._store.damaged:
            passed_over = self._passed_over.setdefault(damaged, set())
            for replica in self._raft.connected:
                if replica not in passed_over:
                    self._ask(damaged, replica, now_ms)
                    return
            self._sources[damaged] = ""
            self._look_for_dropped(damaged)
        if self._retry_at_ms == NEVER:
            self._retry_at_ms = now_ms + RETRY_MS

    def _look_for_dropped(self, damaged: DamagedRange) -> None:
        """All were asked in vain. One that is away may still hold it; one that came back with another
        directory has lost it."""
        starts = self._dropped.pop(damaged, {})
        own_id = self._replica.member_id
        others = {voter.member_id for voter in self._raft.status().voters} - {own_id}
        if others and others <= {replica.member_id for replica in starts}:
            self._give_up_below(min(starts.values(), key=lambda start: start.point))

    def _ask(self, damaged: DamagedRange, replica: Replica, now_ms: float) -> None:
        self._number += 1
        self._pending = (damaged, replica)
        self._sent_ms, self._deadline_ms = now_ms, now_ms + self._timeout_ms_of
        request = RangeRequest(
            sender=self._replica,
            term=self._stored_term,
            number=self._number,
            first_index=damaged.first_index,
            last=damaged.last.entry_id,
            limit_bytes=self._piece_bytes,
            anywhere=True,
            durable_index=self._store.durable.index,
        )
        self._host.send(Envelope(replica, request))

    def _pass_over(self, damaged: DamagedRange, replica: Replica) -> None:
        self._pending = None
        self._passed_over.setdefault(damaged, set()).add(replica)

    def next_wakeup_ms(self) -> float:
        wakeup = self._save_at_ms if self._store.damaged_problem and not self._is_saving else NEVER
        if self._without_space is not None:
            wakeup = min(wakeup, self._settle_at_ms)
        if not self._store.damaged or self._is_writing:
            return wakeup
        return min(wakeup, self._deadline_ms if self._pending is not None else self._retry_at_ms)

    def on_response(self, response: RangeResponse, now_ms: float) -> None:
        """Bytes that are not the requested entries are dropped, but the connection stays: this member's
        own knowledge of the range may be wrong."""
        pending = self._pending
        if pending is None or response.number != self._number or response.sender != pending[1]:
            return
        damaged, replica = pending
        if response.start:
            with suppress(ValueError, msgspec.MsgspecError):
                start = decode_start(response.start)
                if start.point.index >= damaged.first_index:
                    self._dropped.setdefault(damaged, {})[replica] = start
        if response.count == 0 or damaged not in self._store.damaged:
            self._pass_over(damaged, replica)
            return
        took_ms = now_ms - self._sent_ms
        self._timeout_ms_of = min(max(ANSWER_MS, 2 * took_ms), ANSWER_LIMIT_MS)
        if took_ms <= ANSWER_MS / 4:
            self._piece_bytes = min(2 * self._piece_bytes, PIECE_BYTES)
        self._pending = None
        self._is_writing = True
        self._host.read_later(
            lambda: self._take(damaged, response),
            lambda result: self._taken(damaged, replica, result),
        )

    def _take(self, damaged: DamagedRange, response: RangeResponse) -> ProtocolViolation | None:
        """Any thread: write a piece, or return why it is not one."""
        batch = response.batch
        try:
            if batch is None or batch.count != response.count:
                raise ProtocolViolation(f"a range of {response.count} entries without their bytes")
            before = self._store.check_piece(damaged, batch)
            # A chain before the range's end says nothing of what is after it.
            behind = [proof for proof in response.proofs if proof[0] >= damaged.last.index]
            is_proven = batch.last_index == damaged.last.index
            if not (is_proven or any(self._agrees(index, chain) for index, chain in behind)):
                raise ProtocolViolation("no later entry is known to be the same there and here")
        except ProtocolViolation as violation:
            return violation
        self._store.write_piece(damaged, before, batch)
        return None

    def _agrees(self, index: int, chain: int) -> bool:
        try:
            return self._store.point_on_disk(index).chain == chain
        except (DirectoryDamaged, LedgerError):
            return False

    def _taken(
        self,
        damaged: DamagedRange,
        replica: Replica,
        result: ProtocolViolation | StoreFailure | LedgerError | None,
    ) -> None:
        self._is_writing = False
        self._tick_soon()
        if isinstance(result, StoreFailure):
            raise result
        if isinstance(result, DiskFull | ProtocolViolation):
            reason = (
                result if isinstance(result, DiskFull) else f"{replica.member_id} sent others: {result}"
            )
            self._refused = f"; {reason}"
            self._pass_over(damaged, replica)
            return
        # Repaired; or cut meanwhile, which may have been both.
        for left in self._store.damaged:
            if left.overlaps(damaged):
                self._sources[left] = replica.member_id
        self._carry_out()
        self._raft.on_repaired([(left.first_index, left.stop_index) for left in self._store.damaged])
        self._forget_repaired()
        self._refused = ""

    def _forget_repaired(self) -> None:
        """Also forgets truncated ranges."""
        for known in (self._passed_over, self._sources):
            for damaged in [each for each in known if each not in self._store.damaged]:
                del known[damaged]

    def on_request(self, request: RangeRequest) -> None:
        """Send this member's entries of the range, as far as its own disk is whole."""
        self._carry_out()  # so that the store's terms are the core's
        store, last = self._store, request.last
        begin_index, start = self._raft.begin.index, store.start
        if start is not None and request.first_index <= start.point.index:
            self._answer(request, start=encode_start(start))
            return
        is_held = begin_index < request.first_index <= last.index <= store.end.index
        if not is_held or self._raft.term_at(last.index) != last.term:
            self._answer(request)
            return

        def read(result: tuple[EntryBatch, Proofs] | StoreFailure | LedgerError) -> None:
            if isinstance(result, DirectoryDamaged):
                self.found(result)
            elif isinstance(result, StoreFailure):
                raise result
            if isinstance(result, StoreFailure | LedgerError):
                self._answer(request)
            else:
                self._answer(request, *result)

        self._host.read_later(lambda: self._read(request), read)

    def _read(self, request: RangeRequest) -> tuple[EntryBatch, Proofs]:
        """Any thread. Raises as `read_sound`."""
        store, first_index, last_index = self._store, request.first_index, request.last.index
        if request.anywhere:
            for damaged in store.damaged:
                if damaged.holds(first_index) and damaged.last.index < last_index:
                    first_index = damaged.stop_index
        limit_bytes = min(request.limit_bytes, PIECE_BYTES)
        _, batch = read_sound(store, first_index, last_index + 1, limit_bytes)
        proofs = []
        for index in (last_index, min(request.durable_index, store.durable.index)):
            holder = store.damaged_at(index)
            index = index if holder is None else holder.last.index
            if index >= last_index:
                with suppress(DirectoryDamaged, LedgerError):
                    proofs.append((index, store.point_on_disk(index).chain))
        return batch, tuple(proofs)

    def _answer(
        self,
        request: RangeRequest,
        entries: EntryBatch | None = None,
        proofs: Proofs = (),
        start: bytes = b"",
    ) -> None:
        response = RangeResponse(
            sender=self._replica,
            term=self._stored_term,
            number=request.number,
            count=0 if entries is None else entries.count,
            batch=entries,
            proofs=proofs,
            start=start,
        )
        self._host.send(Envelope(request.sender, response))

    def problems(self) -> list[str]:
        """Damaged ranges, the members that help, and why a range stays damaged; in sentences that do not
        change with every piece."""
        sentences = []
        for damaged in self._store.damaged:
            source = self._sources.get(damaged)
            if source:
                damage = f"entries up to {damaged.last.index}: {damaged.problem}"
                sentences.append(f"{damage}; damaged, {source} is sending them again")
                continue
            if source is None:
                state = "they are being asked for"
            else:
                names = [replica.member_id for replica in self._raft.connected]
                others = ", ".join(names) or "no member is connected"
                state = f"no other member can send them yet ({others}{self._refused})"
            sentences.append(f"{damaged}; damaged, {state}")
        if self._without_space is not None:
            sentences.append(
                "there is no space to rewrite damaged index units or ends of segments; make space on the"
                " disk"
            )
        return [*sentences, *filter(None, (self._unsettled, self._store.damaged_problem))]
