"""Each mutant over seeds, in a fixed order, until something catches it."""

from __future__ import annotations

import importlib
import multiprocessing
import re
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sim.log.run import run_seed
from tests.mutants.mutant import ALL, Mutant, Scenario

__all__ = ["ALL", "LEFT_OUT", "Outcome", "outcome", "outcomes", "read_failure"]

PARTS = (
    "consensus",
    "elections",
    "store",
    "node",
    "silence",
    "log_state",
    "membership",
    "time_marks",
    "log_begin",
    "retention",
    "backups",
    "sessions",
    "machines",
    "stores",
    "kafka",
    "message_stores",
    "replicas",
    "epochs",
    "ha_links",
    "brokers",
    "groups",
    "reads",
    "failover",
    "sinks",
    "replacing",
    "disks",
    "guards",
    "old_copies",
    "ports",
    "encryption",
    "blocking",
    "users",
    "etcd",
)
for part in PARTS:
    importlib.import_module(f"tests.mutants.{part}")

LEFT_OUT = {
    23: "a lease: there are none; the other half of the rule has mutants",
}
"""Rules without a mutant, and why."""

HARMLESS_SHARE = 10
"""Nobody is expected to notice these: a tenth of the runs."""

PROMISES = ("Violation", "AssertionError", "NotWhole", "quorumlog.errors.")
"""What a mutant is caught by; anything else means that the mutant itself is broken."""


@dataclass(frozen=True)
class Outcome:
    number: int
    name: str
    sentence: str
    caught_by: str
    """A checker, an assertion, the end of a run; empty: the mutant has survived."""
    what: str
    seeds: int
    """Runs, the one that failed included; 0: a scenario ran."""
    scenario: str
    reached: int
    """How often the mistake made a difference, over all those runs."""
    harmless: str
    seconds: float

    @property
    def survived(self) -> bool:
        """Although somebody should have noticed."""
        return not self.caught_by and not self.harmless


def outcomes(names: Sequence[str], seeds: int, jobs: int) -> Iterator[Outcome]:
    """As they come; with `jobs` above 1 in no particular order, but each the same every time."""
    tasks = [(name, seeds) for name in names]
    if jobs <= 1:
        yield from map(_one, tasks)
        return
    with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=1) as pool:
        yield from pool.imap_unordered(_one, tasks, chunksize=1)


def _one(task: tuple[str, int]) -> Outcome:
    name, seeds = task
    return outcome(ALL[name], seeds)


def outcome(mutant: Mutant, seeds: int) -> Outcome:
    """Raises RuntimeError if what failed was not the mistake: the mutant's own code, or a run that
    fails without it as well."""
    began = time.monotonic()
    failure, seed = "", 0
    with mutant.living() as patch:
        if mutant.scenario is not None:
            failure = _play(mutant.scenario)
        else:
            limit = seeds // HARMLESS_SHARE if mutant.harmless else seeds
            while not failure and seed < limit:
                seed += 1
                failure = run_seed(seed, lossy_disks=mutant.lossy_disks).failure
    caught_by, what = read_failure(failure)
    if failure:
        sound = (
            _play(mutant.scenario)
            if mutant.scenario is not None
            else run_seed(seed, lossy_disks=mutant.lossy_disks).failure
        )
        if sound or not patch.reached_count:
            raise RuntimeError(f"{mutant.name} has not caused this (seed {seed}):\n{failure}\n{sound}")
    return Outcome(
        mutant.number,
        mutant.name,
        mutant.sentence,
        caught_by,
        what,
        seed,
        mutant.scenario.__name__.removeprefix("test_") if mutant.scenario is not None else "",
        patch.reached_count,
        mutant.harmless,
        round(time.monotonic() - began, 1),
    )


def _play(scenario: Scenario) -> str:
    """The traceback of what went wrong, empty if nothing did."""
    try:
        scenario()
    except Exception:  # what it was is judged by `read_failure`
        return traceback.format_exc()
    return ""


def read_failure(failure: str) -> tuple[str, str]:
    """(who, what) of a traceback; empty if there is none."""
    if not failure:
        return "", ""
    lines = failure.splitlines()
    last = max(number for number, line in enumerate(lines) if line.startswith('  File "'))
    place = re.search(r'"(?:.*/)?([^/"]+/[^/"]+)\.py", line \d+, in (\w+)', lines[last])
    said = next(line for line in lines[last:] if line and not line.startswith(" "))
    if not any(kind in said.partition(": ")[0] for kind in PROMISES):
        raise RuntimeError(f"not a promise that was broken, but code:\n{failure}")
    assert place is not None, lines[last]
    file, function = place.groups()
    folder, _, module = file.partition("/")
    kind, _, words = said.partition(": ")
    if folder == "checkers":
        return f"checker {module}", words
    if folder == "sim" and (module == "scenario" or module.startswith("test_")):
        return "scenario", words
    return f"{kind.rpartition('.')[2]} in {file}.{function}", words
