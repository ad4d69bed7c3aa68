"""Commands for the state machine that every member runs, and what its states must show at the end.

One writer with a session: each command takes effect once, whatever became of its answer, so the counts
that come back only rise. At the end each member leads once, and all give the same digest.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

from nemesis.check import Violation
from nemesis.history import HistoryWriter, Operation, encode_body, value_name
from nemesis.workload import APPEND
from quorumlog import LedgerClient, connect
from quorumlog.client import leader_of
from quorumlog.errors import LedgerError, OutcomeUnknown, Refused, ResultUnknown

NAME = "digest"
FACTORY = "harness.machines:Padded"
SNAPSHOT_ENTRIES = 50
SNAPSHOT_BYTES = 4 << 20
"""So that faults find one that is being saved, or on its way to another member."""
CLIENT = "commands"
PAUSE_S = 0.01
TRANSFER_TRIES = 20
TIMEOUT_MS = 10_000


class Commands:
    """`with Commands(servers, path):` they are appended one by one, beside whatever else happens."""

    def __init__(self, servers: str, path: Path) -> None:
        self._servers = servers
        self._path = path
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nemesis-commands")
        self.acknowledged = 0
        self.violations: list[Violation] = []

    def __enter__(self) -> Commands:
        self._thread.start()
        return self

    def __exit__(self, *reason: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            with (
                HistoryWriter(self._path) as history,
                connect(self._servers, producer_id=CLIENT, timeout_ms=TIMEOUT_MS) as log,
            ):
                number = 0
                while not self._stopping.wait(PAUSE_S):
                    history.record(self._command(log, number))
                    number += 1
        except Exception as error:  # whatever it is: the run is worth nothing without them
            self.violations.append(Violation("commands ended", repr(error)))

    def _command(self, log: LedgerClient, number: int) -> Operation:
        called_ns = time.monotonic_ns()
        is_ok: bool | None = True
        index = -1
        try:
            receipt = log.append(encode_body(value_name(CLIENT, number), 0), machine=NAME)
        except Refused:
            is_ok = False
        except (OutcomeUnknown, ResultUnknown):
            is_ok = None
        else:
            index = receipt.first_index
            count = int(receipt.result or b"0")
            if count <= self.acknowledged:
                said = f"command {number} at {index} was counted as {count}, after {self.acknowledged}"
                self.violations.append(Violation("a command twice or never", said))
            self.acknowledged = count
        return Operation(CLIENT, APPEND, called_ns, time.monotonic_ns(), is_ok, number, 1, index)


def compare_machines(client: LedgerClient, member_ids: tuple[str, ...]) -> Iterator[Violation]:
    """Nobody appends any more. Each member leads once."""
    answers: dict[str, str] = {}
    for member_id in member_ids:
        try:
            answers[member_id] = _asked_of(client, member_id)
        except LedgerError as error:
            yield Violation("no answer of a machine", f"{member_id}: {error}")
    if len(set(answers.values())) > 1:
        yield Violation("diverging machines", ", ".join(f"{who}: {a}" for who, a in answers.items()))


def _asked_of(client: LedgerClient, member_id: str) -> str:
    """Raises LedgerError."""
    for tries in range(TRANSFER_TRIES):
        try:
            leader = leader_of(client.status())
            if leader is None or leader.id != member_id:
                client.transfer(member_id)
            break
        except LedgerError:
            if tries == TRANSFER_TRIES - 1:
                raise
            time.sleep(0.2)
    return client.ask(NAME, b"", timeout_ms=TIMEOUT_MS).decode()
