"""Ran: what became of one run, of whatever is simulated."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(slots=True)
class Ran:
    seed: int
    failure: str = ""
    """Empty, or what was violated, with the place."""
    counts: Counter[str] = field(default_factory=Counter)
    trace_hash: int = 0

    @contextmanager
    def noting_failure(self) -> Iterator[None]:
        """Whatever is raised: this run has failed, and the others go on."""
        try:
            yield
        except Exception:
            self.failure = traceback.format_exc()
