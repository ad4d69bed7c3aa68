"""What `quorumlog append --machine` and `quorumlog ask` say of what a state machine gave."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from quorumlog.errors import LedgerError, OutcomeUnknown, ResultUnknown

if TYPE_CHECKING:
    from quorumlog.cli.use.append import LineSource
    from quorumlog.client import LedgerClient
    from quorumlog.entry import AppendReceipt

_BINARY = "base64:"


def as_text(result: bytes | None) -> str:
    """A line; what is no text is in base64."""
    if result is None:
        return ""
    try:
        text = result.decode()
    except UnicodeDecodeError:
        text = "\0"
    return text if text.isprintable() else _BINARY + base64.b64encode(result).decode()


def row_of(result: bytes | None) -> dict[str, str | None]:
    """For --json: `result`, or `result_base64` of what is no text."""
    if result is None:
        return {"result": None}
    try:
        return {"result": result.decode()}
    except UnicodeDecodeError:
        return {"result_base64": base64.b64encode(result).decode()}


def lines_of(receipt: AppendReceipt, *, is_json: bool) -> Iterator[str]:
    """A line for each command: its result, or why the machine has refused it."""
    refused = dict(receipt.failures)
    places = [(index, part.term) for part in receipt.parts for index in part.indices]
    for place, (index, term) in enumerate(places):
        why, result = refused.get(place), receipt.results[place]
        if is_json:
            said = row_of(result) if why is None else {"refused": why}
            yield json.dumps({"index": index, "term": term, **said}, separators=(",", ":")) + "\n"
        else:
            yield (f"refused: {why}" if why is not None else as_text(result)) + "\n"


class CommandStream:
    """Lines as commands of a machine: each batch has its results before the next one leaves. Used as the
    stream of an append without a machine is."""

    def __init__(self, log: LedgerClient, source: LineSource, machine: str) -> None:
        self._log = log
        self._batches = source.batches()
        self._machine = machine
        self.refused = 0
        self._tell()

    def _tell(self, *, unknown: int = 0, unwritten: int = 0) -> None:
        from quorumlog.client.protocol.append_window import StreamProgress

        self.progress = StreamProgress(self._committed, unknown, unwritten)

    _committed = 0

    def __iter__(self) -> CommandStream:
        return self

    def __next__(self) -> AppendReceipt:
        lines = next(self._batches)
        self._tell(unknown=len(lines))
        try:
            receipt = self._log.append_batch(lines, machine=self._machine)
        except LedgerError as error:
            if isinstance(error, ResultUnknown):
                self._committed += len(lines)
                self._tell()
            elif not isinstance(error, OutcomeUnknown):
                self._tell(unwritten=len(lines))
            raise
        self._committed += receipt.count
        self.refused += len(receipt.failures)
        self._tell()
        return receipt

    def close(self) -> None:
        """What is not answered by now stays unknown."""
