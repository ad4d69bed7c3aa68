"""Messages between members that never enter the core, and who takes each."""

from __future__ import annotations

from typing import Protocol

from quorumlog.consensus.messages import (
    InstallRequest,
    InstallResponse,
    MachinesRequest,
    MachinesResponse,
    NodeMessage,
    RangeRequest,
    RangeResponse,
    SnapshotRequest,
    SnapshotResponse,
)
from quorumlog.node.installing import LogReplacement, SnapshotFetcher
from quorumlog.node.repair import Repairer
from quorumlog.node.sending import InstallSender, SnapshotSender


class MachineMessages(Protocol):
    """`StateMachineCaller`."""

    def on_question(self, request: MachinesRequest) -> None: ...

    def on_answer(self, response: MachinesResponse) -> None: ...


class MessagesBeside:
    def __init__(
        self,
        repairer: Repairer,
        replacement: LogReplacement,
        installs: InstallSender,
        snapshots: SnapshotSender,
        fetcher: SnapshotFetcher,
        machines: MachineMessages,
    ) -> None:
        self._repairer = repairer
        self._replacement = replacement
        self._installs = installs
        self._snapshots = snapshots
        self._fetcher = fetcher
        self._machines = machines

    def receive(self, message: NodeMessage, now_ms: float) -> None:
        """Raises ProtocolViolation, BeginsAnew."""
        match message:
            case RangeRequest():
                self._repairer.on_request(message)
            case RangeResponse():
                self._repairer.on_response(message, now_ms)
            case InstallRequest():
                self._replacement.on_request(message)
            case InstallResponse():
                self._installs.on_response(message, now_ms)
            case SnapshotRequest():
                self._snapshots.on_request(message)
            case SnapshotResponse():
                self._fetcher.on_response(message)
            case MachinesRequest():
                self._machines.on_question(message)
            case MachinesResponse():
                self._machines.on_answer(message)
