"""LogReplacement: a leader's log begins above this member's; the member takes over the start of it.

    pieces of the start come    they are kept beside the old log, which goes on voting and comparing
    snapshots are named         those of this member's machines that it lacks are fetched, beside it, too
    all is whole                one check: is it still needed, and is nothing committed in the way?
    one synced slot             `replaces`: whatever segments lie here are of another log
    `LogReplaced`               the node is given up, and made anew as at a start of the process

What is left of the old log goes as at any start that finds `replaces`, so killed at any step the member
has the old log or the new one. The node ends inside the turn that decides: nothing of the old log is
promised any more once the slot may be on disk.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from quorumlog.consensus.messages import InstallRequest, InstallResponse, InstallResult
from quorumlog.consensus.raft_node import RaftNode
from quorumlog.consensus.ready import Envelope
from quorumlog.entry import EntryId, Replica
from quorumlog.errors import DiskFull
from quorumlog.figures import now
from quorumlog.log_state.control_entries import Unreadable
from quorumlog.log_state.log_state import decode_state
from quorumlog.node.begin.snapshot_fetcher import SnapshotFetcher
from quorumlog.node.ports import Host, LogReplaced
from quorumlog.store.ledger_store import LogStart
from quorumlog.store.member_directory import MemberDirectory
from quorumlog.store.state_files import MOST_START_BYTES, START_NAME, decode_start


class LogReplacement:
    def __init__(
        self,
        replica: Replica,
        directory: MemberDirectory,
        segment_bytes: int,
        raft: RaftNode,
        host: Host,
        carry_out: Callable[[], None],
        fetcher: SnapshotFetcher,
        runs_machine: Callable[[str], bool],
        is_dropping: Callable[[], bool],
    ) -> None:
        """`carry_out`: bring the store to where the core is. `runs_machine`: does this member?
        `is_dropping`: a start of its own is on its way to the disk, and another one has to wait."""
        self._replica = replica
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._raft = raft
        self._host = host
        self._carry_out = carry_out
        self._fetcher = fetcher
        self._runs_machine = runs_machine
        self._is_dropping = is_dropping
        self._staged_file: tuple[EntryId, int] | None = None
        """(begin, bytes of the whole) of what is staged: another leader's record of that begin may be
        of another length, and goes on in none of this one's pieces."""
        self._newest: InstallRequest | None = None
        self._staged = bytearray()
        self._is_whole = False
        self.problem = ""
        """Why the newest start was not taken; in a sentence."""

    def on_request(self, request: InstallRequest) -> None:
        """Raises LogReplaced once this member's log is another one."""
        self._carry_out()
        raft = self._raft
        if request.term != raft.term or raft.leader != request.sender:
            return  # its heartbeats come first
        refusal = raft.judge_install(request.begin, request.sender)
        if refusal is not None:
            self._forget()
            self._answer(request, refusal)
            return
        if request.file != START_NAME or request.total_bytes > MOST_START_BYTES:
            self._refuse(request, f"a file {request.file!r} of {request.total_bytes} bytes is unknown")
            return
        if (request.begin, request.total_bytes) != self._staged_file:
            self._forget()
            self._staged_file = request.begin, request.total_bytes
        if request.offset == len(self._staged):
            self._staged += request.data
            self._is_whole = len(self._staged) == request.total_bytes and request.last
        self._newest = request
        lacks = self._lacks_snapshots(request)
        if lacks and self._fetcher.lacks_space:
            self._refuse(request, "there is no space for the snapshots that go with it")
            return
        if not self._is_whole or lacks or self._is_dropping():
            self._answer(request, InstallResult.MORE)
            return
        staged = bytes(self._staged)
        self._forget()
        self._replace(request, staged)

    def _lacks_snapshots(self, request: InstallRequest) -> bool:
        wanted = tuple(each for each in request.snapshots if self._runs_machine(each.name))
        return self._fetcher.want_all(request.sender, wanted, self._snapshot_arrived)

    def _snapshot_arrived(self) -> None:
        """The newest request is judged once more. Raises LogReplaced."""
        if self._newest is not None:
            self.on_request(self._newest)

    def _replace(self, request: InstallRequest, staged: bytes) -> None:
        """All in one turn: what was judged is still true when the slot is on disk."""
        try:
            start = decode_start(staged)
        except (ValueError, msgspec.MsgspecError) as error:
            self._refuse(request, f"it cannot be read: {error}")
            return
        state = decode_state(start.record)
        if isinstance(state, Unreadable):
            self._refuse(request, state.reason)
            return
        if start.point.entry_id != request.begin or start.point.position % self._segment_bytes:
            self._refuse(request, f"it says {start.point}")
            return
        start = LogStart(start.point, start.record, replaces=True, owed_index=request.committed_index)
        committed_index = self._raft.committed_index
        self._host.replacing_log(start)
        if request.begin.index < committed_index:
            self._host.lost_committed(request.begin.index + 1)
        try:
            self._directory.save_start(start)()
        except DiskFull as error:
            self._refuse(request, str(error))
            return
        raise LogReplaced(start)

    def _refuse(self, request: InstallRequest, reason: str) -> None:
        self.problem = (
            f"the start of the log that {request.sender.member_id} sends"
            f"{now(f'behind entry {request.begin.index}')} cannot be taken: {reason}"
        )
        self._answer(request, InstallResult.REFUSED)

    def _forget(self) -> None:
        self._staged_file, self._staged, self._is_whole, self._newest = None, bytearray(), False, None
        self._fetcher.forget_installation()
        self.problem = ""

    def _answer(self, request: InstallRequest, result: InstallResult) -> None:
        response = InstallResponse(
            sender=self._replica,
            term=self._raft.term,
            begin=request.begin,
            result=result,
            file=request.file,
            offset=len(self._staged),
        )
        self._host.send(Envelope(request.sender, response))
