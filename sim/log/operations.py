"""What clients of our own runs did besides appends, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass

from quorumlog.batch import EntryBatch
from quorumlog.errors import LedgerError
from quorumlog.log_state.users import Right
from quorumlog.node.reader_moves import MoveOutcome, ReaderMove


@dataclass(slots=True, eq=False)
class ClientRead:
    """One read of committed entries that was answered with entries."""

    member_id: str
    first_index: int
    batch: EntryBatch
    committed_index: int
    """What the member said to be committed."""
    now_ms: float

    @property
    def last_index(self) -> int:
        return self.first_index + self.batch.count - 1

    def __str__(self) -> str:
        indices = f"{self.first_index} .. {self.last_index}"
        return f"a read of {indices} from {self.member_id} at {self.now_ms} ms"


@dataclass(slots=True, eq=False)
class ClientMove:
    """What one reader said, and what came of it."""

    move: ReaderMove
    called_ms: float
    outcome: MoveOutcome | None = None
    """None: no answer came."""


@dataclass(slots=True, eq=False)
class ClientEnd:
    """A leader's answer to how far the log goes."""

    member_id: str
    called_ms: float
    acknowledged_index: int
    """Highest index of all that had been acknowledged when it was asked; -1: nothing."""
    committed_index: int


@dataclass(slots=True, eq=False)
class FreshRead:
    """A linearizable read of some member, which says how far the log goes."""

    member_id: str
    called_ms: float
    acknowledged_index: int
    """Highest index of all that had been acknowledged when it was asked for; -1: nothing."""
    index: int = -1
    """Up to where it was answered, once it was granted."""
    refusal: LedgerError | None = None


@dataclass(slots=True, eq=False)
class Served:
    """What a member has let through of somebody: an append that it takes, or entries that go out."""

    user: str
    """"": nobody."""
    right: Right
    what: str
