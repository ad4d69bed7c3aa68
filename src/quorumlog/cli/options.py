"""Options that several commands share, declared once."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from quorumlog.errors import ConfigError

DEFAULT_GROUP = "default"
"""That of `quorumlog.config`, which loads for longer than the help of a command."""
_UNITS_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}

Servers = Annotated[
    str,
    typer.Option(
        "--servers",
        help="Addresses of members, HOST:PORT,HOST:PORT,...; one that answers is enough.",
        envvar="QUORUMLOG_SERVERS",
        metavar="LIST",
    ),
]


def _group(name: str) -> str:
    """Checked before anything is done: a request that is not sent would not find it wrong."""
    from quorumlog.config import check_name

    name.encode()  # raises UnicodeEncodeError
    check_name("--group", name)
    return name


Group = Annotated[
    str,
    typer.Option("--group", help="Name of the replicated log.", metavar="NAME", callback=_group),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]
Timeout = Annotated[
    float,
    typer.Option(
        "--timeout",
        help="Give up after this many seconds without an answer.",
        min=0.1,
    ),
]


class Consistency(StrEnum):
    READ_INDEX = "read_index"
    COMMITTED = "committed"


ReadConsistency = Annotated[
    Consistency | None,
    typer.Option(
        "--consistency",
        help="read_index: misses nothing, from any member; committed: what a member knows, which may"
        " be old. Without it the leader answers.",
        show_default=False,
    ),
]
MaxStaleness = Annotated[
    float | None,
    typer.Option(
        "--max-staleness",
        help="With committed: at most so many seconds old.",
        min=0,
        metavar="SECONDS",
        show_default=False,
    ),
]
FromMember = Annotated[
    str | None,
    typer.Option(
        "--from-member",
        help="The id of the member that is asked, `leader` or `any`.",
        metavar="ID",
        show_default=False,
    ),
]


def named_path(text: str) -> Path:
    """An unset variable of a shell is not the current directory."""
    if not text:
        raise typer.BadParameter("a path is missing: it is empty")
    return Path(text)


TlsCert = Annotated[
    Path | None,
    typer.Option(
        "--tls-cert",
        help="Own certificate, PEM; with --tls-key and --tls-ca.",
        metavar="FILE",
        show_default=False,
        parser=named_path,
    ),
]
TlsKey = Annotated[
    Path | None,
    typer.Option("--tls-key", help="Its key.", metavar="FILE", show_default=False, parser=named_path),
]
TlsCa = Annotated[
    Path | None,
    typer.Option(
        "--tls-ca",
        help="Certificates of the CAs to trust.",
        metavar="FILE",
        show_default=False,
        parser=named_path,
    ),
]


class ClientAuth(StrEnum):
    NONE = "none"
    OPTIONAL = "optional"
    REQUIRED = "required"


ClientCertificates = Annotated[
    ClientAuth | None,
    typer.Option("--client-auth", help="Whether clients show a certificate. (default: none)"),
]


def tls_given(
    cert: Path | None, key: Path | None, ca: Path | None, client_auth: ClientAuth | None
) -> dict[str, str | None]:
    """Of a process that serves, by the names of `[tls]`."""
    named = {"cert": cert, "key": key, "ca": ca, "client_auth": client_auth}
    return {name: None if value is None else str(value) for name, value in named.items()}


Directory = Annotated[
    Path,
    typer.Argument(
        help="Data directory of a stopped member.",
        metavar="DIR",
        show_default=False,
        parser=named_path,
    ),
]


OptionalServers = Annotated[
    str | None,
    typer.Option(
        "--servers",
        help="Addresses of members, HOST:PORT,...; not with --path.",
        envvar="QUORUMLOG_SERVERS",
        metavar="LIST",
        show_default=False,
    ),
]
StoppedDirectory = Annotated[
    Path | None,
    typer.Option(
        "--path",
        help="Data directory of a stopped member.",
        metavar="DIR",
        show_default=False,
        parser=named_path,
    ),
]
FirstIndex = Annotated[
    int | None,
    typer.Option(
        "--from",
        help="First index. (default: where the log begins)",
        min=0,
        metavar="N",
    ),
]
StopIndex = Annotated[
    int | None,
    typer.Option(
        "--to",
        help="Stop before this index. (default: behind what is committed)",
        min=0,
        metavar="N",
    ),
]


def time_ms_of(text: str, option: str = "--since") -> int:
    """Milliseconds since 1970 of a duration ago, `2h`, or a date and time, without a zone in this
    machine's own. Raises ConfigError."""
    from datetime import UTC, datetime, timedelta

    from quorumlog.append_times import milliseconds_of

    number, unit = text[:-1], text[-1:]
    try:
        if unit in _UNITS_S and number.replace(".", "", 1).isdecimal():
            return milliseconds_of(datetime.now(UTC) - timedelta(seconds=float(number) * _UNITS_S[unit]))
        return milliseconds_of(datetime.fromisoformat(text).astimezone(UTC))
    except (ValueError, OverflowError):
        raise ConfigError(
            f"{option} {text!r} is neither a duration (90s, 15m, 2h, 7d) nor a time"
            " (2026-11-23T10:00Z, 2026-11-23)"
        ) from None


def refuse_future(since_ms: int, newest_ms: int) -> None:
    """`newest_ms`: of the log's last time mark, -1 if it has none. Clocks differ, so a time counts as
    future only if the log knows none so late either. Raises ConfigError."""
    from datetime import UTC, datetime

    from quorumlog.append_times import milliseconds_of, time_of

    now = datetime.now(UTC)
    if since_ms > max(milliseconds_of(now), newest_ms):
        said = time_of(since_ms)
        raise ConfigError(
            f"--since {said:%Y-%m-%dT%H:%M:%SZ} lies in the future, it is {now:%Y-%m-%dT%H:%M:%SZ}:"
            " nothing was appended since; name an earlier time, or --follow alone for what comes"
        )


def is_on_command_line(context: typer.Context, name: str) -> bool:
    """Not from the environment, where a list of servers is there for other commands."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def split_servers(servers: str) -> list[str]:
    """The addresses of `--servers`, each once; raises ConfigError naming the option."""
    from quorumlog.config import parse_address

    addresses: dict[str, None] = {}
    for item in filter(None, (part.strip() for part in servers.split(","))):
        try:
            parse_address(item)
        except ConfigError as error:
            raise ConfigError(f"--servers: {error}") from None
        addresses[item] = None
    if not addresses:
        raise ConfigError("--servers is empty; write --servers 127.0.0.1:20911,127.0.0.1:20912")
    return list(addresses)


def check_directory(directory: Path) -> str:
    """An existing directory; raises ConfigError."""
    from quorumlog.store.disk import not_allowed

    try:
        _check_directory(directory)
    except PermissionError as error:
        raise ConfigError(not_allowed(str(directory), error)) from None
    return str(directory)


def _check_directory(directory: Path) -> None:
    from quorumlog.store.segments import DATA_NAME
    from quorumlog.store.state_files import MEMBER_NAME

    if not directory.is_dir():
        what = "is not a directory" if directory.exists() else "does not exist"
        raise ConfigError(f"{directory} {what}; name the data directory of a member")
    is_one = (directory / MEMBER_NAME).exists() or (directory / DATA_NAME).exists()
    members = sorted([*directory.glob(f"*/{MEMBER_NAME}"), *directory.glob(f"dledger-*/{DATA_NAME}")])
    if members and not is_one:
        names = ", ".join(member.parent.name for member in members)
        raise ConfigError(f"{directory} holds the directories of members ({names}); name one of them")
