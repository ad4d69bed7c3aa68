"""Three ways to lose a leader, each timed from the fault to the next acknowledged append.

SIGKILL takes the process; it is restarted on its directory at once. SIGSTOP takes only its time:
connections stay open and nothing answers, and when it goes on it still believes that it leads. SIGTERM
asks it to hand over and end, and it is started again when it has.
"""

from __future__ import annotations

import asyncio
import time
from typing import NamedTuple

from harness.member_processes import MemberProcess, MemberProcesses
from harness.producer import Ack, Acknowledged
from quorumlog import AsyncLedgerClient, MemberStatusRow, leader_of

POLL_S = 0.05
STATUS_TIMEOUT_MS = 500
CATCH_UP_TIMEOUT_S = 60.0


class Failover(NamedTuple):
    signal_name: str
    leader_id: str
    term: int
    next_term: int
    fault_at_s: float
    """`time.perf_counter`."""
    seconds_without_leader: float
    """From the fault to the next append that the next leader acknowledged."""
    seconds_to_catch_up: float
    """From the restart, or from SIGCONT, until the member held all that was committed then."""


class Watch:
    """Status of every member, asked of each one itself."""

    def __init__(self, client: AsyncLedgerClient, members: MemberProcesses) -> None:
        self._client = client
        self._members = members

    async def rows(self) -> list[MemberStatusRow]:
        self._members.check_running()
        return await self._client.status(timeout_ms=STATUS_TIMEOUT_MS)

    async def leader(self, timeout_s: float = CATCH_UP_TIMEOUT_S) -> MemberStatusRow:
        """The leader of the highest term; waits for one. Raises TimeoutError."""
        async with asyncio.timeout(timeout_s):
            while True:
                leader = leader_of(await self.rows())
                if leader is not None:
                    return leader
                await asyncio.sleep(POLL_S)

    async def caught_up(self, member_id: str, timeout_s: float = CATCH_UP_TIMEOUT_S) -> None:
        """Until the member has committed all that the leader had committed one look earlier."""
        goal: int | None = None
        async with asyncio.timeout(timeout_s):
            while True:
                rows = await self.rows()
                own = next((row for row in rows if row.id == member_id), None)
                follows = own is not None and own.role == "follower"
                if own and follows and goal is not None and own.committed_index >= goal:
                    return
                leader = leader_of(row for row in rows if row.id != member_id)
                if leader is not None and goal is None:
                    goal = leader.committed_index
                await asyncio.sleep(POLL_S)

    async def in_step(self, entries: int, timeout_s: float = CATCH_UP_TIMEOUT_S) -> None:
        """Until every member holds the leader's log to within so many entries, while others append."""
        async with asyncio.timeout(timeout_s):
            while True:
                rows = await self.rows()
                if all(row.reachable for row in rows):
                    ends = [row.ledger_end_index for row in rows]
                    if max(ends) - min(ends) <= entries:
                        return
                await asyncio.sleep(POLL_S)

    async def all_equal(self, timeout_s: float = CATCH_UP_TIMEOUT_S) -> list[MemberStatusRow]:
        """Until every member holds and has committed the same log; their status then."""
        async with asyncio.timeout(timeout_s):
            while True:
                rows = await self.rows()
                ends = {(row.ledger_end_index, row.committed_index, row.term) for row in rows}
                if leader_of(rows) and len(ends) == 1 and all(row.reachable for row in rows):
                    return rows
                await asyncio.sleep(POLL_S)


async def kill_leader(members: MemberProcesses, watch: Watch, producer: Acknowledged) -> Failover:
    """SIGKILL the leader, restart it at once, and return when it has caught up."""
    leader = await watch.leader()
    member = members[leader.id]
    fault_at_s = time.perf_counter()
    member.kill()
    member.start()
    restarted_at_s = time.perf_counter()
    ack = await producer.wait_for_term_above(leader.term)
    await watch.caught_up(member.member_id)
    return _failover("SIGKILL", leader, fault_at_s, ack, restarted_at_s)


async def terminate_leader(members: MemberProcesses, watch: Watch, producer: Acknowledged) -> Failover:
    """SIGTERM the leader, start it again when it has ended, and return when it has caught up."""
    leader = await watch.leader()
    member = members[leader.id]
    fault_at_s = time.perf_counter()
    ending = asyncio.create_task(asyncio.to_thread(member.stop))
    try:
        ack = await producer.wait_for_term_above(leader.term)
    finally:
        await ending
    member.start()
    restarted_at_s = time.perf_counter()
    await watch.caught_up(member.member_id)
    return _failover("SIGTERM", leader, fault_at_s, ack, restarted_at_s)


async def stop_leader(
    members: MemberProcesses, watch: Watch, producer: Acknowledged, *, seconds: float
) -> Failover:
    """SIGSTOP the leader, SIGCONT after `seconds`, and return when it has caught up."""
    leader = await watch.leader()
    member = members[leader.id]
    fault_at_s = time.perf_counter()
    member.pause()
    resuming = asyncio.create_task(_resume_after(member, seconds))
    try:
        ack = await producer.wait_for_term_above(leader.term)
        resumed_at_s = await resuming
    finally:
        resuming.cancel()
    await watch.caught_up(member.member_id)
    return _failover("SIGSTOP", leader, fault_at_s, ack, resumed_at_s)


def _failover(
    signal_name: str, leader: MemberStatusRow, fault_at_s: float, ack: Ack, back_at_s: float
) -> Failover:
    """`ack`: the first of the next leader. The old one was back at `back_at_s` and has caught up now."""
    return Failover(
        signal_name,
        leader.id,
        leader.term,
        ack.term,
        fault_at_s,
        ack.at_s - fault_at_s,
        time.perf_counter() - back_at_s,
    )


async def _resume_after(member: MemberProcess, seconds: float) -> float:
    """SIGCONT also if the wait is cut short: a stopped process cannot be asked to end."""
    try:
        await asyncio.sleep(seconds)
    finally:
        member.resume()
    return time.perf_counter()
