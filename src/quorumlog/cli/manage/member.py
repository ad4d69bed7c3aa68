"""quorumlog member: who is in the group, and how that changes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from quorumlog.cli.options import DEFAULT_GROUP, Group, Json, Servers, Timeout, split_servers
from quorumlog.cli.output import CommandGroup, err, print_json, print_table
from quorumlog.errors import LedgerError, MembershipRefused, OutcomeUnknown, Unreachable

if TYPE_CHECKING:
    from quorumlog.client import LedgerClient, MemberStatusRow

ASK_AGAIN_S = 0.5
SAY_AGAIN_S = 5.0
"""How often progress is told."""
ANSWERS_WITHIN_S = 5.0
"""Of a dry run: a new member has to be dialled before anybody knows whether it is there."""

member_app = typer.Typer(cls=CommandGroup, rich_markup_mode=None, no_args_is_help=True)

Id = Annotated[str, typer.Argument(help="Id of the member.", metavar="ID", show_default=False)]
Address = Annotated[
    str, typer.Argument(help="Where it listens.", metavar="HOST:PORT", show_default=False)
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Change nothing; say whether it would be begun.")
]
Wait = Annotated[
    float,
    typer.Option(
        "--timeout", help="Give up after so many seconds: a new member may have much to fetch.", min=0.1
    ),
]


@member_app.callback()
def member() -> None:
    """Who is in the group: list, add, promote, remove, replace, set-address.

    Example: quorumlog member list --servers 127.0.0.1:20911
    """


@member_app.command("list")
def list_members(
    servers: Servers, group: Group = DEFAULT_GROUP, timeout: Timeout = 10.0, json: Json = False
) -> None:
    """Show who votes and who only learns, where each is, and how far it is behind.

    Example: quorumlog member list --servers 127.0.0.1:20911
    """
    from quorumlog.cli.use.reach import refuse_dead_servers
    from quorumlog.client import connect

    split_servers(servers)
    with connect(servers, group=group, timeout_ms=int(timeout * 1000)) as log:
        refuse_dead_servers(log, timeout)
        rows = _rows(_leader_row(log, timeout))
        told = {status.address: status for status in log.status()}
    for row in rows:
        status = told.get(str(row["address"]))
        row["role"] = status.role if status is not None and status.reachable else None
        row["waits_for"] = status.waits_for if status is not None else ""
    if json:
        for row in rows:
            print_json({key: value for key, value in row.items() if key not in ("spoken", "answered")})
        return
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
    print_table({"id": False, "address": False, "part": False, "behind": True, "": False}, table)


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
            raise MembershipRefused(f"nobody leads; {waits_for or 'see `quorumlog status`'}")
        time.sleep(ASK_AGAIN_S)


def _rows(leader: MemberStatusRow) -> list[dict[str, object]]:
    from quorumlog.cli.use.status_table import feeding_of, spoken_answer, spoken_feeding

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


@member_app.command()
def add(
    member_id: Id,
    address: Address,
    servers: Servers,
    group: Group = DEFAULT_GROUP,
    learner: Annotated[
        bool, typer.Option("--learner", help="Leave it a learner: it is counted in nothing.")
    ] = False,
    dry_run: DryRun = False,
    timeout: Wait = 3600.0,
    json: Json = False,
) -> None:
    """Add a member. It fetches the log first and votes once it keeps up.

    Start it before, with itself and the present members in --members.

    Example: quorumlog member add n3 10.0.0.4:20911 --servers 10.0.0.1:20911
    """
    steps = [("add", member_id, address)]
    if not (learner or dry_run):
        steps.append(("promote", member_id, ""))
    _carry_out(steps, servers, group, dry_run, timeout, json)


@member_app.command()
def promote(
    member_id: Id,
    servers: Servers,
    group: Group = DEFAULT_GROUP,
    dry_run: DryRun = False,
    timeout: Wait = 3600.0,
    json: Json = False,
) -> None:
    """Make a learner a voter, once it keeps up with the log.

    Example: quorumlog member promote n3 --servers 10.0.0.1:20911
    """
    _carry_out([("promote", member_id, "")], servers, group, dry_run, timeout, json)


@member_app.command()
def remove(
    member_id: Id,
    servers: Servers,
    group: Group = DEFAULT_GROUP,
    dry_run: DryRun = False,
    timeout: Wait = 60.0,
    json: Json = False,
) -> None:
    """Remove a member, whether it is up or not. A leader hands over first.

    Example: quorumlog member remove n0 --servers 10.0.0.2:20911
    """
    _carry_out([("remove", member_id, "")], servers, group, dry_run, timeout, json)


@member_app.command()
def replace(
    member_id: Id,
    servers: Servers,
    group: Group = DEFAULT_GROUP,
    dry_run: DryRun = False,
    timeout: Wait = 3600.0,
    json: Json = False,
) -> None:
    """Let the directory vote that a member has now, in the place of the one that it has lost.

    Start the member before, on an empty directory.

    Example: quorumlog member replace n1 --servers 10.0.0.1:20911
    """
    _carry_out([("replace", member_id, "")], servers, group, dry_run, timeout, json)


@member_app.command("set-address")
def set_address(
    member_id: Id,
    address: Address,
    servers: Servers,
    group: Group = DEFAULT_GROUP,
    dry_run: DryRun = False,
    timeout: Wait = 60.0,
    json: Json = False,
) -> None:
    """Tell everybody where a member is from now on.

    Example: quorumlog member set-address n1 10.0.0.7:20911 --servers 10.0.0.1:20911
    """
    _carry_out([("set-address", member_id, address)], servers, group, dry_run, timeout, json)


def _carry_out(
    steps: Sequence[tuple[str, str, str]],
    servers: str,
    group: str,
    dry_run: bool,
    timeout_s: float,
    json: bool,
) -> None:
    """In the group, and in the staging group beside it, which is on the same members."""
    from quorumlog.cli.use.reach import refuse_dead_servers
    from quorumlog.client import connect
    from quorumlog.config import is_staging_name, staging_name

    split_servers(servers)
    until_s = time.monotonic() + timeout_s
    timeout_ms = int(min(timeout_s, 30.0) * 1000)
    with connect(servers, group=group, timeout_ms=timeout_ms) as log:
        refuse_dead_servers(log, timeout_s)
        for step in steps:
            voters, learners = _change(log, *step, dry_run, until_s)
        servers = ",".join(row.address for row in log.status())
    if json:
        print_json({"dry_run": dry_run, "voters": voters, "learners": learners})
    else:
        typer.echo(_spoken(voters, learners, dry_run))
    if is_staging_name(group):
        return
    staging = staging_name(group)
    with connect(servers, group=staging, timeout_ms=timeout_ms) as log:
        if not any(row.voters > 0 for row in log.status()):
            return  # there is none, or it is still to be formed of whom the options name
        try:
            for step in steps:
                voters, learners = _change(log, *step, dry_run, until_s, staging)
        except LedgerError as error:
            beside = f"{staging}: {error}; once that has passed: the same with --group {staging}"
            raise type(error)(beside) from None
    err().print(f"{staging}: {_spoken(voters, learners, dry_run)}", highlight=False)


def _spoken(voters: Sequence[str], learners: Sequence[str], dry_run: bool) -> str:
    learning = f"; learners: {', '.join(learners)}" if learners else ""
    return f"voters {'would be' if dry_run else 'are'} {', '.join(voters)}{learning}"


def _change(
    log: LedgerClient,
    verb: str,
    member_id: str,
    address: str,
    dry_run: bool,
    until_s: float,
    staging: str = "",
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Asked again as long as that may help; why it has to wait is said whenever it is another reason.
    What a staging group has done by itself, or before, is done."""
    said, say_again_s, may_be_done = "", 0.0, bool(staging)
    if dry_run:
        until_s = min(until_s, time.monotonic() + ANSWERS_WITHIN_S)
    while True:
        try:
            return log.change_members(verb, member_id, address, dry_run=dry_run)
        except OutcomeUnknown as error:
            may_be_done, reason = True, str(error)
        except MembershipRefused as error:
            done = _as_wanted(log, verb, member_id) if may_be_done else None
            if done is not None:
                return done
            reason = str(error)
            if not error.retry_after_ms or time.monotonic() >= until_s:
                raise
        progresses = verb in ("promote", "replace")
        if reason != said or (progresses and time.monotonic() >= say_again_s):
            progress = _progress(log, member_id) if progresses else ""
            where = f"{staging}: " if staging else ""
            err().print(f"{where}{verb} {member_id}: waits: {reason}{progress}", highlight=False)
            said, say_again_s = reason, time.monotonic() + SAY_AGAIN_S
        time.sleep(ASK_AGAIN_S)


def _progress(log: LedgerClient, member_id: str) -> str:
    row = next((row for row in _rows(_leader_row(log, 10.0)) if row["id"] == member_id), None)
    if row is None:
        return ""
    return f" ({row['behind']:,} entries behind{', ' if row['spoken'] else ''}{row['spoken']})"


def _as_wanted(
    log: LedgerClient, verb: str, member_id: str
) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """The members, if a request whose answer was lost has been carried out."""
    members = {info.id: info for info in _leader_row(log, 10.0).members}
    info = members.get(member_id)
    part = "" if info is None else info.part
    # Of one that does not answer it is not known with which directory it will.
    votes = info is not None and part == "voter" and info.is_voter and info.directory_id != ""
    wanted = {"add": part != "", "remove": part == "", "promote": part == "voter", "replace": votes}
    if not wanted.get(verb, False):
        return None
    voters = tuple(i for i, each in members.items() if each.part == "voter")
    return voters, tuple(i for i, each in members.items() if each.part == "learner")
