"""What the pipelines' options have in common."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from quorumlog.cli.options import check_directory, is_on_command_line, named_path, split_servers
from quorumlog.errors import ConfigError, the_extra

if TYPE_CHECKING:
    from quorumlog.pipelines.engine import LocalEngine
    from quorumlog.pipelines.places import Place
    from quorumlog.spark.pipelines.spark_engine import SparkEngine


def named_archive(text: str) -> str:
    return text if "://" in text else str(named_path(text))


ArchivePlace = Annotated[
    str | None,
    typer.Option(
        "--archive",
        help="Directory of an archive, s3://BUCKET/PREFIX, or the delta: or iceberg: table that it is.",
        metavar="DIR",
        show_default=False,
        parser=named_archive,
    ),
]
OptionalGroup = Annotated[
    str | None,
    typer.Option(
        "--group",
        help="Name of the replicated log. (default: that of the directory, or default)",
        metavar="NAME",
        show_default=False,
    ),
]

Spark = Annotated[
    str,
    typer.Option(
        "--spark",
        help="Run on Spark: the URL of its master, local[*], sc://HOST of a Connect server, or auto: if"
        " there are more than 4 GiB to read. (default: threads of this process)",
        metavar="MASTER",
        show_default=False,
    ),
]
AUTO_BYTES = 4 << 30
MASTER = re.compile(r"auto|yarn|local(-cluster)?(\[[\w*, ]+\])?|(spark|k8s|sc)://\S+", re.ASCII)


@contextmanager
def engine_of(spark: str, places: Sequence[Place]) -> Iterator[LocalEngine | SparkEngine]:
    """The engine that `--spark` names. Raises ConfigError where it names no master, and where
    PySpark is not installed. Spark itself starts with the first work."""
    from quorumlog.pipelines.engine import LocalEngine

    if spark and not MASTER.fullmatch(spark):
        raise ConfigError(
            f"--spark {spark!r} is no master of Spark; name local[N], spark://HOST:PORT, yarn,"
            " k8s://HOST:PORT, sc://HOST of a Connect server, or auto"
        )
    if not spark or (spark == "auto" and sum(map(_bytes_of, places)) < AUTO_BYTES):
        yield LocalEngine()
        return
    try:
        from quorumlog.spark.pipelines.spark_engine import SparkEngine
        from quorumlog.spark.session import running
    except ModuleNotFoundError:
        raise ConfigError(f"option --spark needs PySpark, {the_extra('spark')}") from None
    master = os.environ.get("SPARK_MASTER", "local[*]") if spark == "auto" else spark
    with ExitStack() as until_end:
        yield SparkEngine(lambda: until_end.enter_context(running("quorumlog pipeline", master)))


def _bytes_of(place: Place) -> int:
    """0 of a place that cannot be opened: the pipeline says why."""
    from quorumlog.errors import LedgerError, ProtocolViolation, StoreFailure
    from quorumlog.pipelines.places import bytes_of

    try:
        return bytes_of(place)
    except (LedgerError, ProtocolViolation, StoreFailure):
        return 0


def place_of(
    context: typer.Context,
    servers: str | None,
    path: Path | None,
    archive: str | None,
    group: str | None,
    timeout: float,
) -> Place:
    """The one log that the options name. Raises ConfigError."""
    need_arrow()
    from quorumlog.pipelines.places import Place

    if (path or archive) and servers and not is_on_command_line(context, "servers"):
        servers = None  # of the environment, for other commands
    if sum(each is not None for each in (servers, path, archive)) != 1:
        takes_archive = any(each.name == "archive" for each in context.command.params)
        ways = ["--servers LIST", "--path DIR of a stopped member", "--archive DIR"]
        raise ConfigError(f"name one log: {', or '.join(ways if takes_archive else ways[:2])}")
    if servers is not None:
        servers = ",".join(split_servers(servers))
    return Place(
        servers=servers or "",
        path=check_directory(path) if path else "",
        archive=archive or "",
        group=group or "",
        timeout_ms=int(timeout * 1000),
    )


def need_arrow() -> None:
    """Raises ConfigError where pyarrow is not installed."""
    try:
        import quorumlog.arrow  # noqa: F401
    except ModuleNotFoundError:
        raise ConfigError(f"pipelines need pyarrow, {the_extra('arrow')}") from None
