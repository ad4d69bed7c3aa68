"""python -m nemesis.producer: a producer that is killed again and again on its way, and leaders too.

`quorumlog append --producer` is run on the same lines until it ends by itself. Each run is killed at a
random moment, in the middle of the lines or between a batch and its receipt, now and then the leader
beside it. New lines come to it slowly, so that no run is at the end before it is killed. The log must
hold all of them then, each once and in order.
"""

from __future__ import annotations

import argparse
import random
import shutil
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from harness.member_processes import MemberProcess, MemberProcesses
from harness.signals import end_as_ctrl_c_does
from quorumlog import LedgerClient, connect
from quorumlog.client import leader_of

PRODUCER = "file"
LEADER_SHARE = 0.2
"""In so many rounds the leader is killed beside the producer."""
LINES_A_KILL = 4000
LOOK_S = 0.02
MOST_WAIT_S = 0.3
"""From the first new line to the kill, at most."""
PIECE_LINES, PIECE_S = 100, 0.01
"""So many new lines in so long: no run comes to the end of them."""
ROUND_S = 60.0
"""No run on a whole group may go without an end, or a new entry, for so long."""


class KillsFailed(Exception):
    """What the log holds is not the file, or nothing went on."""


def run_kills(folder: Path, *, kills: int, seed: int, lines_a_kill: int = LINES_A_KILL) -> str:
    """What was seen, in a sentence. Raises KillsFailed."""
    chance = random.Random(seed)
    folder.mkdir(parents=True, exist_ok=True)
    bodies = [
        b"%d %d" % (number, chance.getrandbits(64)) for number in range(lines_a_kill * (kills + 1))
    ]
    leaders = in_parts = 0
    with MemberProcesses(folder / "members") as members, connect(members.servers) as log:
        begin = log.end_index(timeout_ms=30_000) + 1
        for _ in range(kills):
            before = _last_sequence(log)
            process = _appending(members, bodies, before + 1)
            stop_s = time.monotonic() + ROUND_S
            while process.poll() is None and _last_sequence(log) <= before:
                if time.monotonic() > stop_s:
                    process.kill()
                    raise KillsFailed(f"nothing was appended behind {before} for {ROUND_S:g} s")
                time.sleep(LOOK_S)
            with suppress(subprocess.TimeoutExpired):
                process.wait(chance.uniform(0.0, MOST_WAIT_S))
            leader = _leader_of(members, log) if chance.random() < LEADER_SHARE else None
            if leader is not None:
                leaders += 1
                leader.kill()
            process.kill()
            process.wait()
            if leader is not None:
                leader.start()
            in_parts += before < _last_sequence(log) < len(bodies) - 1
        process = _appending(members, bodies, len(bodies))
        if process.wait(ROUND_S + len(bodies) / 1000):
            raise KillsFailed(f"the last run ended with status {process.returncode}")
        found = [entry.body for entry in log.read(begin)]
    if found != bodies:
        at = next(
            (i for i, (one, other) in enumerate(zip(found, bodies, strict=False)) if one != other), -1
        )
        raise KillsFailed(f"{len(found)} entries of {len(bodies)} lines; the first that differs: {at}")
    return (
        f"{kills} kills of the producer, {in_parts} on its way, {leaders} of the leader:"
        f" {len(found)} lines are in the log, each once, in order"
    )


def _last_sequence(log: LedgerClient) -> int:
    rows = {row.producer: row for row in log.producers(timeout_ms=30_000)}
    return rows[PRODUCER].last_sequence if PRODUCER in rows else -1


def _leader_of(members: MemberProcesses, log: LedgerClient) -> MemberProcess | None:
    leader = leader_of(log.status())
    return None if leader is None else members[leader.id]


def _appending(members: MemberProcesses, bodies: list[bytes], known: int) -> subprocess.Popen[bytes]:
    """It gets the lines up to `known` at once, and the others piece by piece."""
    command = [sys.executable, "-m", "quorumlog", "append", "--servers", members.servers]
    process = subprocess.Popen(
        [*command, "--producer", PRODUCER], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    lines = process.stdin
    assert lines is not None

    def feed() -> None:
        with suppress(BrokenPipeError), lines:
            lines.writelines(body + b"\n" for body in bodies[:known])
            for at in range(known, len(bodies), PIECE_LINES):
                lines.writelines(body + b"\n" for body in bodies[at : at + PIECE_LINES])
                lines.flush()
                time.sleep(PIECE_S)

    threading.Thread(target=feed, daemon=True).start()
    return process


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m nemesis.producer", description=__doc__)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--dir", type=Path, default=Path("nemesis-out/producer"))
    given = parser.parse_args()
    end_as_ctrl_c_does()  # so that no member and no producer is left
    shutil.rmtree(given.dir, ignore_errors=True)
    print(f"seed {given.seed}", flush=True)
    try:
        print(run_kills(given.dir, kills=given.kills, seed=given.seed), flush=True)
    except KillsFailed as error:
        print(f"FAILED: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
