"""quorumlog recover: an operator's decision about what is left of a cluster without a majority."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quorumlog.cli.options import Json, check_directory, named_path
from quorumlog.cli.output import note, print_json, say
from quorumlog.errors import ConfigError

if TYPE_CHECKING:
    from quorumlog.backups import Recovered, RecoveryPlan, Survivor


def recover(
    directories: Annotated[
        list[Path],
        typer.Argument(
            help="The data directory of each member that is left; all of them stopped.",
            metavar="DIR...",
            show_default=False,
            parser=named_path,
        ),
    ],
    unsafe: Annotated[
        bool,
        typer.Option("--unsafe", help="Do it. Without this it is only shown."),
    ] = False,
    yes: Annotated[
        str | None,
        typer.Option(
            "--yes-i-know",
            help="The name of the cluster, the group of its members, instead of being asked for it.",
            metavar="NAME",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be done, and change nothing.")
    ] = False,
    json: Json = False,
) -> None:
    """Make a new cluster of one voter from what is left of one that has lost its majority for good.

    The best log is kept. Entries that were acknowledged and lie on lost members only are lost; use it
    when these cannot come back. A member of a larger group that is still working needs none of this: its
    leader replaces it. A group of one that forgot what it had promised goes this way, too.

    Example: quorumlog recover --unsafe /data/n1 /data/n2
    """
    from quorumlog.backups import plan_recovery, recover_cluster

    plan = plan_recovery([check_directory(directory) for directory in directories])
    if yes is not None and yes != plan.group:
        raise ConfigError(f"--yes-i-know {yes} is not the name of this cluster, which is {plan.group}")
    if not json:
        _print_plan(plan)
    if not plan.is_needed or dry_run or not unsafe:
        if json:
            print_json(_row(plan))
        if plan.is_needed and not dry_run:
            raise ConfigError("nothing was changed; --unsafe does it, and --dry-run only shows it")
        return
    if yes is None:
        _ask(plan)
    recovered = recover_cluster(plan)
    if json:
        print_json(_row(plan, recovered))
    else:
        _print_recovered(plan, recovered)


def _ask(plan: RecoveryPlan) -> None:
    note("What cannot be read here is given up for good, and no member of the old cluster can join.")
    typed = typer.prompt(f"The name of the cluster, to recover {plan.best.directory}", err=True)
    if typed != plan.group:
        raise ConfigError(f"{typed} is not the name of this cluster; nothing was changed")


def _row(plan: RecoveryPlan, recovered: Recovered | None = None) -> dict[str, object]:
    import msgspec

    row = msgspec.to_builtins(plan)
    row["uncertain"] = plan.uncertain
    row["lost"] = plan.lost
    row["may_miss_from_index"] = plan.committed_index + 1 if plan.is_needed else None
    row["recovered"] = None if recovered is None else msgspec.to_builtins(recovered)
    return dict(row)


# ---------------------------------------------------------------- in sentences


def _print_plan(plan: RecoveryPlan) -> None:
    for survivor in plan.survivors:
        say(f"{survivor.member_id} in {survivor.directory}: {_log_of(survivor)}")
        for problem in (*survivor.forgotten, *survivor.damage, *survivor.snapshots_ahead):
            say(f"  {problem}")
    voters = ", ".join(sorted({voter.member_id for voter in plan.voters}))
    if not plan.is_needed:
        alive = sorted({v.member_id for v in plan.voters if v not in plan.missing})
        say(
            f"nothing to do: {', '.join(alive)} can elect a leader among {voters}. Start them; who is"
            " lost is replaced (quorumlog member)"
        )
        return
    say(f"voters of group {plan.group}: {voters}; not here: {_lost(plan)}")
    say(f"the best log: that of {plan.best.member_id}, in {plan.best.directory}")
    if plan.uncertain is None:
        say("every entry that would be kept is known to have been committed")
    else:
        first, last = plan.uncertain
        say(f"entries {first} to {last} would be kept, and may never have been committed")
    if plan.lost is not None:
        first, last = plan.lost
        say(
            f"entries {first} to {last} were committed, and no directory named here would give them back"
        )
    say(f"acknowledged entries may be missing from index {plan.committed_index + 1} on")


def _log_of(survivor: Survivor) -> str:
    if survivor.last_index < survivor.first_index or survivor.first_index < 0:
        return "no entries"
    return (
        f"entries {survivor.first_index} to {survivor.last_index}, the last of term"
        f" {survivor.last_term}; known to be committed: up to {survivor.committed_index}"
    )


def _lost(plan: RecoveryPlan) -> str:
    forgetful = {each.member_id for each in plan.survivors}
    return ", ".join(
        f"{voter.member_id} (this directory does not vote)"
        if voter.member_id in forgetful
        else voter.member_id
        for voter in plan.missing
    )


def _print_recovered(plan: RecoveryPlan, recovered: Recovered) -> None:
    from quorumlog.config import STAGING_FOLDER, is_staging_name

    member = recovered.member_id
    say(
        f"recovered: {member} is the only voter of cluster {recovered.cluster_id}, with entries up to"
        f" {recovered.last_index}"
    )
    if is_staging_name(recovered.group):
        say("it starts, and gets its members, with the group that it stands beside")
        return
    staging = [
        str(beside)
        for each in plan.survivors
        if (beside := Path(each.directory) / STAGING_FOLDER).is_dir()
    ]
    if staging:
        say("its staging group is recovered by itself, before it starts:")
        say(f"  quorumlog recover --unsafe {' '.join(staging)}")
    address = plan.address or "HOST:PORT"
    say("start it:")
    say(
        f"  quorumlog serve --group {recovered.group} --id {member} --data-dir {recovered.directory}"
        f" --members {member}={address}"
    )
    say(
        "start each other member on an empty directory, quorumlog serve with its address behind that in"
        " --members, and:"
    )
    say(f"  quorumlog member add ID HOST:PORT --group {recovered.group} --servers {address}")
