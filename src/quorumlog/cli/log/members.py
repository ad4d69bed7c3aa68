"""quorumlog member, transfer, upgrade, clock, machine: membership and agreed settings of a group."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quorumlog.cli.options import App, LogServers, argument, option, timeout_ms_of
from quorumlog.cli.output import EXIT_REFUSED, err, print_table, say, tell, tell_rows
from quorumlog.errors import (
    ConfigError,
    LedgerError,
    MembershipRefused,
    OutcomeUnknown,
    TransferFailed,
    Unreachable,
)

if TYPE_CHECKING:
    from quorumlog.client import LedgerClient, MemberStatusRow
    from quorumlog.wire.client_messages import ReloadResponse


ASK_AGAIN_S = 0.5
SAY_AGAIN_S = 5.0
"""Interval of progress reports."""
ANSWERS_WITHIN_S = 5.0
"""Of a dry run: a new member has to be dialled before anybody knows whether it is there."""

member_app = App(
    "The members of a group: list, add, promote, remove, replace, set-address.",
    "quorumlog member list --servers 127.0.0.1:20911",
)

Id = Annotated[str, argument("Id of the member.", "ID")]
Address = Annotated[str, argument("Address at which it listens.", "HOST:PORT")]
DryRun = Annotated[bool, option("Change nothing; report whether the change could begin.")]
_WAIT = "Give up after this many seconds; a new member may have much to fetch."
_LONG: Any = {"timeout_s": 3600.0, "timeout_help": _WAIT}
_SHORT: Any = {"timeout_s": 60.0, "timeout_help": _WAIT}


@member_app.command("list")
def list_members(at: LogServers) -> None:
    """Show voters and learners, their addresses and lag.

    Example: quorumlog member list --servers 127.0.0.1:20911
    """
    with at.connected() as log:
        rows = _rows(_leader_row(log, at.timeout))
        statuses = {status.address: status for status in log.status()}
    for row in rows:
        status = statuses.get(str(row["address"]))
        row["role"] = status.role if status is not None and status.reachable else None
        row["waits_for"] = status.waits_for if status is not None else ""
    table = []
    for row in rows:
        is_there = row["reachable"]
        words = [row["spoken"], row["answered"], row["waits_for"]]
        if not is_there:
            words.insert(0, "not reachable")
        elif row["role"] == "observer" and row["part"] == "voter" and not row["waits_for"]:
            words.insert(0, "an observer: this directory does not vote")
        behind = f"{row['behind']:,}" if is_there else None
        about = ", ".join(str(each) for each in words if each)
        table.append((row["id"], row["address"], row["part"], behind, about))
    shown = [
        {key: value for key, value in row.items() if key not in ("spoken", "answered")} for row in rows
    ]
    tell_rows(shown, "id, address, part, behind #, ", table)


def _leader_row(log: LedgerClient, timeout_s: float) -> MemberStatusRow:
    """What the leader says, who alone knows how far the others are."""
    from quorumlog.client import leader_of

    until_s = time.monotonic() + timeout_s
    while True:
        rows = log.status()
        leader = leader_of(rows)
        if leader is not None:
            return leader
        if time.monotonic() >= until_s:
            reachable = [row for row in rows if row.reachable]
            if not reachable:
                raise Unreachable("; ".join(dict.fromkeys(row.problem for row in rows)))
            waits_for = next((row.waits_for for row in reachable if row.waits_for), "")
            raise MembershipRefused(f"no leader; {waits_for or 'see `quorumlog status`'}")
        time.sleep(ASK_AGAIN_S)


def _rows(leader: MemberStatusRow) -> list[dict[str, object]]:
    from quorumlog.cli.log.status_table import feeding_of, spoken_answer, spoken_feeding

    return [
        {
            "id": info.id,
            "address": info.address,
            "part": "leader" if info.id == leader.id and info.part == "voter" else info.part or "left",
            "directory_id": info.directory_id,
            "reachable": info.reachable,
            "acknowledged_index": info.water_mark,
            "answered_ms_ago": None if info.answered_ms_ago < 0 else round(info.answered_ms_ago),
            "answered": spoken_answer(info),
            "behind": max(0, leader.ledger_end_index - info.water_mark),
            **feeding_of(info),
            "spoken": spoken_feeding(info) if info.behind_bytes >= 0 else "",
        }
        for info in leader.members
    ]


@member_app.command(**_LONG)
def add(
    member_id: Id,
    address: Address,
    at: LogServers,
    learner: Annotated[bool, option("Keep it a learner, without a vote.")] = False,
    dry_run: DryRun = False,
) -> None:
    """Add a member. It fetches the log first and votes once it keeps up.

    Start it before, with itself and the present members in --members.

    Example: quorumlog member add n3 10.0.0.4:20911 --servers 10.0.0.1:20911
    """
    steps = [("add", member_id, address)]
    if not (learner or dry_run):
        steps.append(("promote", member_id, ""))
    _carry_out(steps, at, dry_run)


@member_app.command(**_LONG)
def promote(member_id: Id, at: LogServers, dry_run: DryRun = False) -> None:
    """Make a learner a voter, once it keeps up with the log.

    Example: quorumlog member promote n3 --servers 10.0.0.1:20911
    """
    _carry_out([("promote", member_id, "")], at, dry_run)


@member_app.command(**_SHORT)
def remove(member_id: Id, at: LogServers, dry_run: DryRun = False) -> None:
    """Remove a member, whether it is up or not. A leader hands over first.

    Example: quorumlog member remove n0 --servers 10.0.0.2:20911
    """
    _carry_out([("remove", member_id, "")], at, dry_run)


@member_app.command(**_LONG)
def replace(member_id: Id, at: LogServers, dry_run: DryRun = False) -> None:
    """Let a member's present data directory vote in place of the one that it lost.

    Start the member before, on an empty directory.

    Example: quorumlog member replace n1 --servers 10.0.0.1:20911
    """
    _carry_out([("replace", member_id, "")], at, dry_run)


@member_app.command("set-address", **_SHORT)
def set_address(member_id: Id, address: Address, at: LogServers, dry_run: DryRun = False) -> None:
    """Change the address of a member.

    Example: quorumlog member set-address n1 10.0.0.7:20911 --servers 10.0.0.1:20911
    """
    _carry_out([("set-address", member_id, address)], at, dry_run)


def _carry_out(steps: Sequence[tuple[str, str, str]], at: LogServers, dry_run: bool) -> None:
    """In the group, and in the staging group beside it, which is on the same members."""
    from quorumlog.client import connect
    from quorumlog.config import is_staging_name, staging_name

    until_s = time.monotonic() + at.timeout
    timeout_ms = timeout_ms_of(min(at.timeout, 30.0))
    with at.connected(timeout_ms=timeout_ms) as log:
        for step in steps:
            voters, learners = _change(log, *step, dry_run, until_s)
        servers = ",".join(row.address for row in log.status())
    tell(
        {"dry_run": dry_run, "voters": voters, "learners": learners}, _spoken(voters, learners, dry_run)
    )
    if is_staging_name(at.group):
        return
    staging = staging_name(at.group)
    with connect(servers, group=staging, timeout_ms=timeout_ms) as log:
        if not any(row.voters > 0 for row in log.status()):
            return  # there is none, or it is still to be formed of whom the options name
        try:
            for step in steps:
                voters, learners = _change(log, *step, dry_run, until_s, staging)
        except LedgerError as error:
            beside = f"{staging}: {error}; then repeat the command with --group {staging}"
            raise type(error)(beside) from None
    err().print(f"{staging}: {_spoken(voters, learners, dry_run)}", highlight=False)


def _spoken(voters: Sequence[str], learners: Sequence[str], dry_run: bool) -> str:
    learning = f"; learners: {', '.join(learners)}" if learners else ""
    return f"voters {'would be' if dry_run else 'are'} {', '.join(voters)}{learning}"


def _change(
    log: LedgerClient,
    operation: str,
    member_id: str,
    address: str,
    dry_run: bool,
    until_s: float,
    staging: str = "",
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Asked again as long as that may help; why it has to wait is said whenever it is another reason.
    What a staging group has done by itself, or before, is done."""
    last_reason, say_again_s, may_be_done = "", 0.0, bool(staging)
    if dry_run:
        until_s = min(until_s, time.monotonic() + ANSWERS_WITHIN_S)
    while True:
        try:
            return log.change_members(operation, member_id, address, dry_run=dry_run)
        except LedgerError as error:
            reason = str(error)
            if isinstance(error, MembershipRefused):
                done = _as_wanted(log, operation, member_id) if may_be_done else None
                if done is not None:
                    return done
                may_pass = error.retry_after_ms > 0
            elif isinstance(error, OutcomeUnknown):
                may_pass = may_be_done = True
            else:
                # Before the first reason it may be the servers that are wrong.
                may_pass = error.retriable and bool(last_reason)
            if not may_pass or time.monotonic() >= until_s:
                raise
        progresses = operation in ("promote", "replace")
        if reason != last_reason or (progresses and time.monotonic() >= say_again_s):
            progress = _progress(log, member_id) if progresses else ""
            where = f"{staging}: " if staging else ""
            err().print(f"{where}{operation} {member_id}: waits: {reason}{progress}", highlight=False)
            last_reason, say_again_s = reason, time.monotonic() + SAY_AGAIN_S
        time.sleep(ASK_AGAIN_S)


def _progress(log: LedgerClient, member_id: str) -> str:
    from quorumlog.client import leader_of

    leader = leader_of(log.status())
    row = next((row for row in _rows(leader) if row["id"] == member_id), None) if leader else None
    if row is None:
        return ""
    return f" ({row['behind']:,} entries behind{', ' if row['spoken'] else ''}{row['spoken']})"


def _as_wanted(
    log: LedgerClient, operation: str, member_id: str
) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """The members, if a request whose answer was lost has been carried out."""
    members = {info.id: info for info in _leader_row(log, 10.0).members}
    info = members.get(member_id)
    part = "" if info is None else info.part
    # Of one that does not answer it is not known with which directory it will.
    votes = info is not None and part == "voter" and info.is_voter and info.directory_id != ""
    wanted = {"add": part != "", "remove": part == "", "promote": part == "voter", "replace": votes}
    if not wanted.get(operation, False):
        return None
    voters = tuple(i for i, each in members.items() if each.part == "voter")
    return voters, tuple(i for i, each in members.items() if each.part == "learner")


def reload(at: LogServers) -> None:
    """Make servers read configuration and certificates again, as SIGHUP does; show the changes.

    Only the servers in --servers are asked. Changed options that need a restart are listed.

    Example: quorumlog reload --servers 10.0.0.1:20911
    """
    with at.connected() as log:
        answers = log.reload()
    rows = [
        (address if isinstance(each, LedgerError) else each.member_id, outcome, sentence)
        for address, each in answers.items()
        for outcome, sentence in _sentences_of(each)
    ]
    tell_rows(
        [dict(zip(("member", "outcome", "text"), row, strict=True)) for row in rows],
        "member, outcome, what",
        rows,
        if_none="no member was asked",
    )
    if any(isinstance(each, LedgerError) or each.refused for each in answers.values()):
        raise typer.Exit(EXIT_REFUSED)


def _sentences_of(answer: ReloadResponse | LedgerError) -> list[tuple[str, str]]:
    if isinstance(answer, LedgerError):
        return [("failed", str(answer))]
    sentences = [("changed", each) for each in answer.changed]
    sentences += [("needs a restart", each) for each in answer.needs_restart]
    sentences += [("refused", each) for each in answer.refused]
    return sentences or [("unchanged", "nothing has changed")]


def transfer(
    at: LogServers, to: Annotated[str, option("Id of the member that should lead.", "ID")]
) -> None:
    """Transfer leadership to another member; returns when it leads. Appends wait; none is lost.

    Status 0 also if that member leads already.

    Example: quorumlog transfer --servers 127.0.0.1:20911 --to n1
    """
    from quorumlog.client import leader_of

    if not to.strip():
        raise ConfigError(f"--to {to!r} names no member; write its id, as in --to n1")
    with at.connected() as log:
        outcome = "leads"
        try:
            leader_id = log.transfer(to)
        except TransferFailed:
            # Asked only now: the common case needs no second question, and what counts is the state
            # that was asked for.
            rows = log.status()
            leader = leader_of(rows)
            ids = sorted({row.id for row in rows if row.id})
            if leader is not None and to not in ids:
                raise TransferFailed(
                    f"--to {to} is not a member of this group; name one of {', '.join(ids)}"
                ) from None
            if leader is None or leader.id != to:
                raise
            leader_id, outcome = to, "leads already"
    tell({"leader_id": leader_id}, f"{leader_id} {outcome}")


upgrade_app = App(
    "Finish an upgrade: allow log entries that the previous release cannot read.",
    "quorumlog upgrade status --servers 127.0.0.1:20911",
)


@upgrade_app.command("status")
def upgrade_status(at: LogServers) -> None:
    """Show the release of each member, the level of the log's format that it knows, and that of the log.

    Example: quorumlog upgrade status --servers 127.0.0.1:20911
    """
    from quorumlog.client import leader_of

    with at.connected() as log:
        rows = log.status()
    leader = leader_of(rows)
    if leader is not None:  # one that was removed may be named by --servers
        members = {member.id for member in leader.members}
        rows = [row for row in rows if row.id in members]
    log_level = max((row.log_level for row in rows), default=-1)
    levels = [(row.id or row.address, row.level if row.reachable else -1) for row in rows]
    shown = [
        {"id": row.id, "release": row.version or None, "level": level if level >= 0 else None}
        for row, (_, level) in zip(rows, levels, strict=True)
    ]

    def show() -> None:
        cells = [
            (at["id"], at["release"] or "no answer", "not told" if at["level"] is None else at["level"])
            for at in shown
        ]
        print_table("id, release, level #", cells)
        say(_what_to_do(log_level, levels) if leader is not None else _NO_LEADER)

    tell({"level": log_level if log_level >= 0 else None, "members": shown}, show)


_NO_LEADER = "No leader answers, so this list may lack members: ask again once there is one."


def _what_to_do(log_level: int, levels: list[tuple[str, int]]) -> str:
    """`levels`: of each member, -1: it has not told."""
    if log_level < 0:
        return "The level of the log is not known: no member that knows it answers."
    here = f"The level of the log is {log_level}"
    unreported = [name for name, level in levels if level < 0]
    if unreported:
        return (
            f"{here}. {', '.join(unreported)} has not reported its level: start it with this release, or"
            f" remove it if it is lost (quorumlog member remove {unreported[0]}), then ask again."
        )
    newest = max(level for _, level in levels)
    behind = [name for name, level in levels if level < newest]
    if behind:
        names = ", ".join(behind)
        return f"{here}. {names} runs an earlier release than others: update it, then ask again."
    if log_level >= newest:
        return f"{here}: there is nothing to finish."
    return (
        f"{here}, and all members know {newest}: quorumlog upgrade finish raises it; afterwards no"
        " member can go back to the previous release."
    )


@upgrade_app.command("finish")
def finish_upgrade(at: LogServers) -> None:
    """Allow log entries that earlier releases do not know. From then on no member can be downgraded.

    Refused while a member or learner has not reported that it runs this release. Not needed for a group
    that was formed by this release.

    Example: quorumlog upgrade finish --servers 127.0.0.1:20911
    """
    with at.connected() as log:
        level = log.finish_upgrade()
    tell(
        {"level": level},
        f"the level of the log is {level}; no member can go back to the previous release",
    )


clock_app = App(
    "The time of a log, taken from the clocks of a quorum: reset it after the clocks were wrong.",
    "quorumlog clock reset --servers 127.0.0.1:20911",
)


@clock_app.command("reset")
def reset_clock(at: LogServers) -> None:
    """Set the log's time to that of the members' clocks, once they are right again. Earlier entries
    count as appended now at the latest: too young, never too old.

    Refused while the clocks of a quorum differ by more than a minute, and while a member runs a release
    that does not know such an entry.

    Example: quorumlog clock reset --servers 127.0.0.1:20911
    """
    from quorumlog.append_times import time_of

    with at.connected() as log:
        reset = log.reset_clock()
    time = time_of(reset.time_ms)
    since = f"{reset.time_ms} ms since 1970" if time is None else f"{time:%Y-%m-%d %H:%M:%SZ}"
    spoken = f"the log's time begins anew at {since}, with entry {reset.index}"
    tell({"index": reset.index, "time_ms": reset.time_ms}, spoken)


machine_app = App(
    "State machines of a log: step-over.",
    "quorumlog machine step-over counter 4711 --servers 127.0.0.1:20911",
)

MOST_INDEX = 2**62


@machine_app.command("step-over")
def step_over(
    name: Annotated[str, argument("Name of the state machine.", "NAME")],
    index: Annotated[int, argument("Index of the entry.", "INDEX", min=0, max=MOST_INDEX)],
    at: LogServers,
    unsafe: Annotated[
        bool, option("Even if a member has applied it (its machine is rebuilt) or does not answer.")
    ] = False,
) -> None:
    """Make a state machine skip an entry that crashes it, on all members and for good.

    Start crashed members with --hold-machine NAME first, and without it afterwards.

    Example: quorumlog machine step-over counter 4711 --servers 127.0.0.1:20911
    """
    until_s = time.monotonic() + at.timeout
    with at.connected() as log:
        while True:
            try:
                ordered_at = log.step_over(name, index, unsafe=unsafe)
                break
            except OutcomeUnknown:
                if time.monotonic() >= until_s:  # asked again, it is done once
                    raise
    tell(
        {"machine": name, "index": index, "ordered_at_index": ordered_at},
        f"{name} leaves out entry {index}, by entry {ordered_at}",
    )
