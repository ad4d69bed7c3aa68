"""The same inputs give the same outputs, to the last message: nothing depends on a clock, on a global
random number or on the order of a set."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

from quorumlog.consensus import Ready

from .harness import FakeMember
from .random_run import RandomRun


def trace_of(seed: int) -> str:
    """A digest of every Ready of every member of one run, and of what they say at its end."""
    run = RandomRun(seed)
    digest = hashlib.sha256()
    check = run.check_ready

    def record(member: FakeMember, ready: Ready) -> None:
        digest.update(f"{run.now_ms} {member.replica} {ready}\n".encode())
        check(member, ready)

    run.check_ready = record  # type: ignore[method-assign]
    run.carry_out()
    for i in run.ids:
        digest.update(repr(run.members[i].node.status()).encode())
    return digest.hexdigest()


def test_a_life_replays_exactly() -> None:
    assert trace_of(3) == trace_of(3)
    assert trace_of(3) != trace_of(4)


def test_the_hash_seed_of_the_process_changes_nothing() -> None:
    """Sets of strings are ordered by it; nothing that decides may iterate over one."""
    code = "from tests.consensus.test_replay import trace_of; print(trace_of(5))"
    traces = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(traces) == 1
