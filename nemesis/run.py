"""One run from its first process to its verdict, in the order in which it happens."""

from __future__ import annotations

import json
import math
import os
import random
import re
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness import earlier
from harness.directories import compare_directories, stop_followers_first
from harness.machines import PADDING_NAME
from harness.member_processes import MemberFailed
from nemesis.check import Violation, check
from nemesis.clients import ClientFailed, ClientOptions, ClientProcesses
from nemesis.cluster import Cluster, NotWhole, may_mount
from nemesis.faults import FAULTS, Fault, Members, draw_faults
from nemesis.history import load_histories, load_log
from nemesis.leaders import leaderless_spans, monotonic_offset_ns, read_roles, with_outages
from nemesis.machines import SNAPSHOT_BYTES, Commands, compare_machines
from nemesis.report import Report, Round
from quorumlog.errors import DirectoryDamaged

MEMBERS_NAME = "members"
EARLIER_NAME = "earlier"
HISTORY_NAME = "history"
COMMANDS_NAME = "commands.jsonl"
ROUNDS_NAME = "rounds.jsonl"
TIMELINE_NAME = "timeline.png"
BREATH_S = (0.2, 2.0)
"""Between two rounds, so that faults meet the group in every state of rest."""

REPLACED = re.compile("is (to be )?replaced by that of leader")
"""What a member of either release says in its log that takes over the start of another log."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Options:
    folder: Path
    minutes: float = 4.0
    rounds: int | None = None
    """So many instead of so many minutes."""
    hold_s: float | None = None
    """How long each fault lasts; None: as long as suits it, drawn from the seed."""
    members: int = 3
    seed: int = 0
    faults: tuple[str, ...] = ()
    """Empty: all that are drawn by default and that the machine and the number of members allow."""
    clients: int = 3
    rate: float = 60.0
    """Calls of one client process per second; 0: as many as it can."""
    retention_bytes: int = 0
    """So much of the log stays: members that were away find it begin above their own; 0: all of it."""
    snapshot_bytes: int = SNAPSHOT_BYTES
    """What the state machine of the members saves, every SNAPSHOT_ENTRIES commands."""
    mixed: bool = False
    """With members and a client of the release before."""


def run(options: Options, say: Say) -> Report:
    """The whole run; what goes wrong with the members is in the report. No process is left.

    Raises ValueError for a fault that does not go with the options or the machine.
    """
    kinds = chosen_faults(options.faults, options.members, may_mount(), say)
    folder = options.folder
    histories = folder / HISTORY_NAME
    shutil.rmtree(histories, ignore_errors=True)
    histories.mkdir(parents=True)
    with_small_disk = any(kind.needs_small_disk for kind in kinds)
    before = earlier.unpack(folder / EARLIER_NAME) if options.mixed else None
    offset_ns = monotonic_offset_ns()
    rounds: list[Round] = []
    os.environ[PADDING_NAME] = str(options.snapshot_bytes)  # of the members
    with Cluster(
        folder / MEMBERS_NAME,
        options.members,
        with_small_disk=with_small_disk,
        seed=options.seed,
        retention_bytes=options.retention_bytes,
        earlier=None if before is None else before / "src",
    ) as cluster:
        cluster.wait_until_whole()
        client_options = ClientOptions(
            cluster.members.servers, cluster.member_ids, options.rate, options.seed
        )
        clients = ClientProcesses(histories, options.clients, client_options, earlier=before)
        commands = Commands(cluster.members.servers, histories / COMMANDS_NAME)
        report = Report(options.members, options.seed, time.monotonic_ns(), 0, rounds)
        try:
            with clients:
                with commands:
                    _break_things(cluster, clients, kinds, options, rounds, say)
                clients.stop()
                report.ended_ns = time.monotonic_ns()
            cluster.wait_until_whole(all_equal=True)
            report.violations += commands.violations
            report.violations += compare_machines(cluster.client, cluster.member_ids)
            leader_id = cluster.wait_until_whole(all_equal=True)
            stop_followers_first(cluster.members, leader_id)
        except (ClientFailed, MemberFailed, NotWhole) as error:
            report.ended_ns = report.ended_ns or time.monotonic_ns()
            report.violations.append(Violation(type(error).__name__, str(error)))
            cluster.members.destroy()
        _read_roles(report, cluster, offset_ns, is_text=before is not None)
        report.operations = load_histories(
            path for path in (*clients.histories, histories / COMMANDS_NAME) if path.exists()
        )
        # Members that were not stopped in order, having caught up, need not end together.
        if not report.violations:
            say("checking the histories")
            _check(report, cluster)
    _write_rounds(folder / ROUNDS_NAME, rounds, report.began_ns)
    report.draw(folder / TIMELINE_NAME)
    return report


def chosen_faults(names: Sequence[str], members: int, mounts: bool, say: Say) -> list[type[Fault]]:
    """Raises ValueError for a name that is none, or that this run cannot have."""
    for name in names:
        if name not in FAULTS:
            raise ValueError(f"there is no fault {name!r}; there are {', '.join(FAULTS)}")
        if FAULTS[name].least_members > members:
            raise ValueError(f"{name} needs {FAULTS[name].least_members} members")
        if FAULTS[name].needs_small_disk and not mounts:
            raise ValueError(f"{name} needs the right to mount a small file system (root)")
    if names:
        return [FAULTS[name] for name in names]
    kinds = [f for f in FAULTS.values() if f.by_default and f.least_members <= members]
    for kind in [kind for kind in kinds if kind.needs_small_disk and not mounts]:
        say(f"{kind.name} is left out: it needs the right to mount a small file system (root)")
        kinds.remove(kind)
    return kinds


def _break_things(
    cluster: Cluster,
    clients: ClientProcesses,
    kinds: Sequence[type[Fault]],
    options: Options,
    rounds: list[Round],
    say: Say,
) -> None:
    """Round after round until there were enough. Raises MemberFailed, NotWhole."""
    rng = random.Random(options.seed)
    stop_s = math.inf if options.rounds is not None else time.monotonic() + 60 * options.minutes
    while time.monotonic() < stop_s and len(rounds) != options.rounds:
        time.sleep(rng.uniform(*BREATH_S))
        if not clients.are_running:
            return  # `stop` says which one
        leader_id = cluster.wait_until_whole()
        faults = draw_faults(cluster, kinds, leader_id, rng)
        drawn_s = rng.uniform(*faults[0].hold_s)
        hold_s = drawn_s if options.hold_s is None else options.hold_s
        began_ns = time.monotonic_ns()
        begun: list[Fault] = []
        details = []
        try:
            for fault in faults:
                begun.append(fault)
                details.append(fault.begin())
            say(
                f"{' + '.join(fault.name for fault in faults)} ({leader_id} leads{cluster.releases}):"
                f" {'; '.join(details)}"
            )
            _hold(cluster, faults, min(hold_s, max(0.0, stop_s - time.monotonic())))
        finally:
            # Who is to be a voter again has to be heard first.
            for fault in sorted(begun, key=lambda each: isinstance(each, Members)):
                fault.end()
        ended_ns = time.monotonic_ns()
        try:
            cluster.wait_until_whole()
        finally:
            names = tuple(sorted(fault.name for fault in faults))
            rounds.append(Round(names, "; ".join(details), began_ns, ended_ns, time.monotonic_ns()))


def _hold(cluster: Cluster, faults: Sequence[Fault], hold_s: float) -> None:
    stop_s = time.monotonic() + hold_s
    while (left_s := stop_s - time.monotonic()) > 0:
        time.sleep(min(1.0, left_s))
        cluster.check_running()
        for fault in faults:
            fault.tick()


def _read_roles(report: Report, cluster: Cluster, offset_ns: int, *, is_text: bool) -> None:
    folder = cluster.members.folder
    told = [
        event
        for member_id in cluster.member_ids
        for event in read_roles(folder / f"{member_id}.log", offset_ns, is_text=is_text)
    ]
    report.roles = with_outages(told, cluster.outages)
    words = [(folder / f"{member_id}.log").read_text() for member_id in cluster.member_ids]
    report.installs = sum(len(REPLACED.findall(said)) for said in words)
    report.starts = cluster.starts_by_release
    report.leaderless = leaderless_spans(
        report.roles, len(cluster.member_ids), report.began_ns, report.ended_ns
    )


def _check(report: Report, cluster: Cluster) -> None:
    comparison = compare_directories(cluster.members.data_dirs)
    report.logs = comparison.detail
    if not comparison.agrees:
        report.violations.append(Violation("diverging members", comparison.detail))
    try:
        loaded = {member.member_id: load_log(member.data_dir) for member in cluster.members.members}
    except DirectoryDamaged as error:
        report.violations.append(Violation("damaged directory", str(error)))
        return
    report.begin_index = max(begin_index for begin_index, _ in loaded.values())
    logs = {member_id: log for member_id, (_, log) in loaded.items()}
    report.violations += check(report.operations, logs, report.begin_index)


def _write_rounds(path: Path, rounds: Sequence[Round], began_ns: int) -> None:
    with path.open("w") as file:
        for one in rounds:
            times = {
                name: round((at_ns - began_ns) / 1e9, 3)
                for name, at_ns in (
                    ("began_s", one.began_ns),
                    ("ended_s", one.ended_ns),
                    ("whole_s", one.whole_ns),
                )
            }
            file.write(json.dumps({"fault": one.title, "detail": one.detail, **times}) + "\n")
