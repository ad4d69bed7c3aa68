"""MemoryMemberDirectory: a member that keeps nothing (`--store memory`)."""

from __future__ import annotations

import secrets
from collections.abc import Callable

from quorumlog.config import StoreConfig
from quorumlog.entry import Durability, Formation, HardState
from quorumlog.store.ledger_store import LedgerStore, LogPoint
from quorumlog.store.memory_ledger_store import MemoryLedgerStore


def draw_directory_id() -> str:
    """32 random hexadecimal digits."""
    return secrets.token_hex(16)


class MemoryMemberDirectory:
    """A `MemberDirectory` that forgets everything, and so has a new directory id at every start."""

    def __init__(self, config: StoreConfig, *, draw_id: Callable[[], str] = draw_directory_id) -> None:
        self.directory_id = draw_id()
        self.formation = Formation()
        self.hard_state = HardState(0, None)
        self.store: LedgerStore = MemoryLedgerStore(config)
        self.durability = Durability.MEMORY
        self.committed_index = -1
        self.renewed = "a member in memory has a new directory at every start"
        self.report: tuple[str, ...] = ()

    def save_hard_state(self, state: HardState) -> None:
        assert state.term >= self.hard_state.term, (state, self.hard_state)
        self.hard_state = state

    def save_formation(self, formation: Formation) -> None:
        founding = self.formation.founding
        assert not founding or formation.founding == founding, (formation, self.formation)
        self.formation = formation

    def write_checkpoint(self, committed: LogPoint) -> None:
        assert committed.index <= self.store.durable.index, (committed, self.store.durable)

    def sync_durable_point(self) -> None:
        pass

    def problems(self) -> tuple[str, ...]:
        return ()

    def close(self, clean: bool) -> None:
        self.store.close()
