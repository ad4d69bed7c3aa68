"""Writer: it tries to write rows into every node all the time, and notes who has taken one, and when."""

from __future__ import annotations

import subprocess
import threading
import time
from itertools import count, pairwise
from pathlib import Path
from typing import NamedTuple

from nemesis.patroni.nodes import Node, Nodes

EVERY_S = 0.2
TIMEOUT_S = 5.0
_TABLE = "create table if not exists seen (number bigint primary key)"
_TIMELINE = "('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int"


class Taken(NamedTuple):
    node: str
    timeline: int
    """Of PostgreSQL: each promotion begins one."""
    number: int
    """The row."""
    began_s: float
    ended_s: float


class Writer:
    """`with Writer(nodes, bin_dir) as writer`."""

    def __init__(self, nodes: Nodes, bin_dir: Path) -> None:
        self._psql = bin_dir / "psql"
        self._stop = threading.Event()
        self._numbers = count(1)
        self._threads = [threading.Thread(target=self._write, args=(node,)) for node in nodes.nodes]
        self.taken: list[Taken] = []

    def __enter__(self) -> Writer:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *reason: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def ask(self, node: Node, statement: str) -> str | None:
        """None: it was refused, or nobody has answered."""
        where = ("-h", "127.0.0.1", "-p", str(node.port), "-U", "postgres", "-d", "postgres")
        try:
            done = subprocess.run(
                [self._psql, *where, "-qAt", "-v", "ON_ERROR_STOP=1", "-c", statement],
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
            )
        except subprocess.TimeoutExpired:
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    def _write(self, node: Node) -> None:
        has_table = False
        while not self._stop.wait(EVERY_S):
            if not has_table:
                has_table = self.ask(node, _TABLE) is not None
                continue
            number = next(self._numbers)
            began_s = time.monotonic()
            told = self.ask(node, f"insert into seen values ({number}) returning {_TIMELINE}")
            if told:
                self.taken.append(Taken(node.name, int(told), number, began_s, time.monotonic()))

    # ---------------------------------------------------------------- what must hold

    def since(self, moment_s: float) -> list[Taken]:
        """Those that were begun since then."""
        return [each for each in self.taken if each.began_s >= moment_s]

    def timelines(self) -> dict[int, str]:
        """Timeline -> the node that took writes in it. Raises AssertionError if two nodes took writes at
        a time."""
        found: dict[int, str] = {}
        last_began_s: dict[int, float] = {}
        first_ended_s: dict[int, float] = {}
        for each in sorted(self.taken, key=lambda each: each.began_s):
            owner = found.setdefault(each.timeline, each.node)
            assert owner == each.node, f"{owner} and {each.node} both took writes in {each.timeline}"
            last_began_s[each.timeline] = each.began_s
            first_ended_s.setdefault(each.timeline, each.ended_s)
        for older in found:
            for newer in found:
                if older < newer:
                    late = last_began_s[older] > first_ended_s[newer]
                    assert not late, (
                        f"{found[older]} took writes after {found[newer]} had become primary"
                    )
        return found

    def longest_pause_s(self, taken: list[Taken]) -> float:
        ends = sorted(each.ended_s for each in taken)
        return max((b - a for a, b in pairwise(ends)), default=0.0)

    def lost(self, node: Node) -> list[int]:
        """Rows that were acknowledged, and that the node does not have."""
        taken = list(self.taken)  # more are taken while it answers
        told = self.ask(node, "select number from seen")
        assert told is not None, f"{node.name} does not say what it has"
        there = set(map(int, told.split()))
        return [each.number for each in taken if each.number not in there]
