"""Options that several commands share, declared once: addresses, group, time-out and --json of each
product, and their use."""

from __future__ import annotations

import errno
import inspect
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from copy import copy
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, update_wrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar, get_args, get_origin

import typer

from quorumlog.cli.output import CommandGroup, note
from quorumlog.errors import ConfigError, the_extra

if TYPE_CHECKING:
    from quorumlog.broker import BrokerAdmin, BrokerClient
    from quorumlog.client import LedgerClient
    from quorumlog.kafka.admin import KafkaAdmin
    from quorumlog.kv import KeyValueClient
    from quorumlog.net.credentials import ClientUser

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_GROUP = "default"
"""That of `quorumlog.config`, which loads for longer than the help of a command."""
DEFAULT_BROKER = "127.0.0.1:10911"
TIMEOUT_S = 10.0
DEAD_AFTER_S = 3.0
ASK_AGAIN_S = 0.25
"""Between two questions: a refused connection answers at once."""
SERVERS_VARIABLE = "QUORUMLOG_SERVERS"
_UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def servers_option(text: str, old_variable: str = "", **options: Any) -> Any:
    """`old_variable`: of the environment, in releases before; it is of this product alone, and so it
    wins."""
    variables = [each for each in (old_variable, SERVERS_VARIABLE) if each]
    return typer.Option(
        "--servers", help=text, envvar=variables, show_envvar=not old_variable, metavar="LIST", **options
    )


Servers = Annotated[
    str, servers_option("Addresses of members, HOST:PORT,HOST:PORT,...; one reachable member is enough.")
]


def _group(name: str | None) -> str | None:
    """Checked before anything is done: a request that is not sent would not find it wrong."""
    from quorumlog.config import check_name

    if name is None:
        return None
    name.encode()  # raises UnicodeEncodeError
    check_name("--group", name)
    return name


Group = Annotated[
    str, typer.Option("--group", help="Name of the replicated log.", metavar="NAME", callback=_group)
]
WITHOUT_ANSWER = "Give up after this many seconds without an answer."
Timeout = Annotated[float, typer.Option("--timeout", help=WITHOUT_ANSWER, min=0.1)]


def named_path(text: str) -> Path:
    """An unset variable of a shell is not the current directory."""
    if not text:
        raise typer.BadParameter("a path is missing: it is empty")
    return Path(text)


def named_archive(text: str) -> str:
    return text if "://" in text else str(named_path(text))


def timeout_ms_of(timeout_s: float) -> int:
    """As the clients take it."""
    return int(timeout_s * 1000)


Options = dict[str, tuple[Any, Any]]
"""By name: the annotation, and the default."""


@dataclass(frozen=True)
class _At:
    """The servers of a product that a command asks. A parameter of a command that is annotated with one
    of these stands for its options: --servers, --group where there are groups, and --timeout."""

    servers: str
    timeout: float
    group: str = DEFAULT_GROUP

    options: ClassVar[Options] = {}
    old_variable: ClassVar[str] = ""

    def __post_init__(self) -> None:
        if os.environ.get(self.old_variable) == self.servers:
            note(f"warning: {self.old_variable} is now {SERVERS_VARIABLE}; the next release drops it")

    @classmethod
    def of(cls, context: typer.Context, **values: Any) -> Any:
        at = cls(**values)
        at.addresses  # noqa: B018 - raises before anything is done
        return at

    @property
    def timeout_ms(self) -> int:
        return timeout_ms_of(self.timeout)

    @property
    def addresses(self) -> list[str]:
        """Raises ConfigError."""
        return split_servers(self.servers)


class LogServers(_At):
    options: ClassVar[Options] = {
        "servers": (Servers, inspect.Parameter.empty),
        "group": (Group, DEFAULT_GROUP),
    }

    def client(self, **options: Any) -> LedgerClient:
        """`options`: as of `connect`."""
        from quorumlog import client

        options.setdefault("timeout_ms", self.timeout_ms)
        return client.connect(",".join(self.addresses), group=self.group, **options)

    @contextmanager
    def connected(self, **options: Any) -> Iterator[LedgerClient]:
        """A client, once one of the servers is known to listen."""
        with self.client(**options) as log:
            refuse_dead_servers(log, self.timeout)
            yield log


class UsersServers(LogServers):
    """Of a log, or of classic brokers."""

    @contextmanager
    def changing(self) -> Iterator[LedgerClient | BrokerAdmin]:
        from quorumlog.broker import BrokerAdmin
        from quorumlog.errors import WrongPort
        from quorumlog.net.hello import NO_LOG_BESIDE

        found: LedgerClient | BrokerAdmin
        with ExitStack() as stack:
            try:
                found = stack.enter_context(self.connected())
            except WrongPort as error:
                if NO_LOG_BESIDE not in str(error):
                    raise
                admin = BrokerAdmin(",".join(self.addresses), timeout_ms=self.timeout_ms)
                found = stack.enter_context(admin)
            yield found


class StoreServers(_At):
    old_variable = "QUORUMLOG_KV_SERVERS"
    options: ClassVar[Options] = {
        "servers": (
            Annotated[
                str,
                servers_option(
                    "Addresses of the members' stores, HOST:PORT,... [env var: QUORUMLOG_SERVERS]",
                    old_variable,
                ),
            ],
            inspect.Parameter.empty,
        )
    }

    def connected(self) -> KeyValueClient:
        from quorumlog.kv import connect

        return connect(",".join(self.addresses), timeout_ms=self.timeout_ms)


class BrokerServers(_At):
    old_variable = "QUORUMLOG_BROKER"
    options: ClassVar[Options] = {
        "servers": (
            Annotated[
                str,
                servers_option(
                    "Address of the broker, or of several that replicate each other, HOST:PORT,...;"
                    " the master is found. [env var: QUORUMLOG_SERVERS]",
                    old_variable,
                ),
            ],
            DEFAULT_BROKER,
        )
    }

    def connected(self, *, only_looks: bool = False) -> BrokerClient:
        from quorumlog.broker import BrokerClient

        return BrokerClient(self.servers, timeout_ms=self.timeout_ms, only_looks=only_looks)

    def admin(self) -> BrokerAdmin:
        from quorumlog.broker import BrokerAdmin

        return BrokerAdmin(self.servers, timeout_ms=self.timeout_ms)


class KafkaPorts(_At):
    options: ClassVar[Options] = {
        "servers": (
            Annotated[
                str, servers_option("The members' ports for clients of Kafka, HOST:PORT,HOST:PORT,...")
            ],
            inspect.Parameter.empty,
        )
    }

    def connected(self) -> KafkaAdmin:
        try:
            from quorumlog.kafka.admin import KafkaAdmin
        except ImportError as error:
            raise ConfigError(f"it needs kio ({error}), {the_extra('kafka')}") from None

        return KafkaAdmin(self.addresses, self.timeout_ms)


OptionalServers = Annotated[
    str | None,
    typer.Option(
        "--servers",
        help="Addresses of members, HOST:PORT,...; not with --path.",
        envvar=SERVERS_VARIABLE,
        metavar="LIST",
    ),
]
StoppedDirectory = Annotated[
    Path | None, typer.Option("--path", help="Data directory of a stopped member.", metavar="DIR")
]
OptionalGroup = Annotated[
    str | None,
    typer.Option(
        "--group",
        help="Name of the replicated log. (default: that of the directory, or default)",
        metavar="NAME",
        callback=_group,
    ),
]
ArchivePlace = Annotated[
    str | None,
    typer.Option(
        "--archive",
        help="Directory of an archive, s3://BUCKET/PREFIX, or the delta: or iceberg: table that it is.",
        metavar="DIR",
        parser=named_archive,
    ),
]


@dataclass(frozen=True)
class LogPlace:
    """One log: of a running cluster, of a stopped member's directory, or in an archive."""

    servers: str | None
    path: Path | None
    group: str | None
    timeout: float
    archive: str | None = None

    options: ClassVar[Options] = {
        "servers": (OptionalServers, None),
        "path": (StoppedDirectory, None),
        "group": (OptionalGroup, None),
    }

    @classmethod
    def of(cls, context: typer.Context, **values: Any) -> Any:
        names = [each for each in ("servers", "path", "archive") if values.get(each)]
        if len(names) > 1 and not is_on_command_line(context, "servers") and "servers" in names:
            names.remove("servers")  # of the environment, for other commands
            values["servers"] = None
        if len(names) > 1:
            both = " and ".join(f"--{each}" for each in names)
            raise ConfigError(f"{both} exclude each other; name one log")
        if not names:
            ways = ", or --archive DIR" * ("archive" in values)
            raise ConfigError(
                f"--servers is missing; write --servers LIST, or --path DIR of a stopped member{ways}"
            )
        if values["servers"]:
            values["servers"] = ",".join(split_servers(values["servers"]))
        return cls(**values)

    @property
    def log(self) -> LogServers:
        assert self.servers is not None
        return LogServers(self.servers, self.timeout, self.group or DEFAULT_GROUP)


class EntriesPlace(LogPlace):
    options: ClassVar[Options] = {**LogPlace.options, "archive": (ArchivePlace, None)}


_PATHS = (Path, Path | None, list[Path], list[Path] | None)


def _named(annotation: Any) -> Any:
    """An unset variable of a shell is no path."""
    if get_origin(annotation) is not Annotated:
        return annotation
    kind, info, *_ = get_args(annotation)
    if kind not in _PATHS or info.parser is not None:
        return annotation
    info = copy(info)
    info.parser = named_path
    return Annotated[kind, info]


def pem_option(name: str, text: str, variable: str | None = None) -> Any:
    return typer.Option(name, help=text, metavar="FILE", parser=named_path, envvar=variable)


CLIENT_TLS: Options = {
    name: (Annotated[Path | None, pem_option(option, text, variable)], None)
    for name, option, variable, text in (
        ("tls_ca", "--tls-ca", "QUORUMLOG_TLS_CA", "Use TLS; trust the CAs in this file."),
        (
            "tls_cert",
            "--tls-cert",
            "QUORUMLOG_TLS_CERT",
            "Client certificate, if servers require one.",
        ),
        ("tls_key", "--tls-key", "QUORUMLOG_TLS_KEY", "Its key."),
        (
            "password_file",
            "--password-file",
            "QUORUMLOG_PASSWORD_FILE",
            "File whose first line is the password of --user; otherwise QUORUMLOG_PASSWORD, or a"
            " prompt.",
        ),
    )
} | {
    "as_user": (
        Annotated[
            str | None,
            typer.Option(
                "--user", help="User name, if the servers have users.", envvar="QUORUMLOG_USER"
            ),
        ],
        None,
    )
}
"""Of a command that asks servers."""


class ClientAuth(StrEnum):
    NONE = "none"
    OPTIONAL = "optional"
    REQUIRED = "required"


KafkaAddress = Annotated[
    str | None,
    typer.Option(
        "--kafka",
        help="Port for clients of Kafka, on this group's log (extra `kafka`).",
        metavar="HOST:PORT",
    ),
]
KafkaServers = Annotated[
    str | None,
    typer.Option(
        "--kafka-servers",
        help="Where clients reach the --kafka port of each member. (default: the same port on the host"
        " of each)",
        metavar="ID=HOST:PORT,...",
    ),
]
AdminAddress = Annotated[
    str | None,
    typer.Option(
        "--admin",
        help="HTTP port for health, metrics and a status page (extra `admin`).",
        metavar="HOST:PORT",
    ),
]


class TlsOfClients(dict[str, Any]):
    """Of a command that asks servers in a way of its own: for `speaking_tls`."""

    options: ClassVar[Options] = CLIENT_TLS

    @classmethod
    def of(cls, context: typer.Context, **values: Any) -> Any:
        return cls(values)


class TlsGiven(dict[str, str | None]):
    """Of a process that serves, by the names of `[tls]`."""

    options: ClassVar[Options] = {
        "tls_cert": (Annotated[Path | None, pem_option("--tls-cert", "Own certificate, PEM.")], None),
        "tls_key": (Annotated[Path | None, pem_option("--tls-key", "Its key.")], None),
        "tls_ca": (
            Annotated[Path | None, pem_option("--tls-ca", "The CAs whose certificates are trusted.")],
            None,
        ),
        "client_auth": (
            Annotated[
                ClientAuth | None,
                typer.Option(help="Whether clients must show a certificate. (default: none)"),
            ],
            None,
        ),
    }

    @classmethod
    def of(cls, context: typer.Context, **values: Any) -> Any:
        return cls(
            (name.removeprefix("tls_"), None if value is None else str(value))
            for name, value in values.items()
        )


@contextmanager
def speaking_tls(
    tls_ca: Path | None = None,
    tls_cert: Path | None = None,
    tls_key: Path | None = None,
    password_file: Path | None = None,
    as_user: str | None = None,
) -> Iterator[None]:
    """TLS and user of all clients of a command. Raises ConfigError."""
    with ExitStack() as stack:
        files = ("" if each is None else str(each) for each in (tls_ca, tls_cert, tls_key))
        if any(named := tuple(files)):
            from quorumlog.net.tls import ClientTls, clients_use

            stack.enter_context(clients_use(ClientTls(*named)))
        user = user_of(as_user, password_file)
        if user is not None:
            from quorumlog.net.credentials import clients_are

            stack.enter_context(clients_are(user))
        yield


def user_of(name: str | None, password_file: Path | None) -> ClientUser | None:
    """Raises ConfigError."""
    if name is None:
        return None
    from quorumlog.net.credentials import PASSWORD_VARIABLE, ClientUser

    if password_file is not None:
        return ClientUser(name, password_file=str(password_file))
    if PASSWORD_VARIABLE in os.environ or not sys.stdin.isatty():
        return ClientUser(name)
    return ClientUser(name, typer.prompt(f"Password of {name}", hide_input=True, err=True))


class _Command:
    """A function as typer is to see it: with the options that its parameters stand for, and --json."""

    def __init__(self, function: Callable[..., Any], timeout: tuple[float, str], has_json: bool) -> None:
        update_wrapper(self, function)
        self.__annotations__: dict[str, Any] = {}
        self._function = function
        self._timeout = timeout
        self._has_json = has_json

    @cached_property
    def _signature(self) -> inspect.Signature:
        return inspect.signature(self._function, eval_str=True)

    @cached_property
    def _shared(self) -> dict[str, Any]:
        """Of the parameters that stand for options: what they are."""
        kinds = {name: each.annotation for name, each in self._signature.parameters.items()}
        return {n: k for n, k in kinds.items() if isinstance(k, type) and hasattr(k, "options")}

    @cached_property
    def _asks(self) -> bool:
        """It asks servers."""
        return any(issubclass(kind, _At | LogPlace) for kind in self._shared.values())

    @property
    def __signature__(self) -> inspect.Signature:
        timeout_s, timeout_help = self._timeout
        timeout = typer.Option("--timeout", help=timeout_help, min=0.1)
        parameters: Options = {}
        for name, each in self._signature.parameters.items():
            shared = self._shared.get(name)
            parameters |= {name: (each.annotation, each.default)} if shared is None else shared.options
        if any("group" in kind.options for kind in self._shared.values()):
            parameters["group"] = parameters.pop("group")
        if self._asks:
            parameters["timeout"] = (Annotated[float, timeout], timeout_s)
            parameters.update(CLIENT_TLS)
        if self._has_json:
            parameters["json"] = (Json, False)
        if self._shared:
            parameters.setdefault("context", (typer.Context, inspect.Parameter.empty))
        kind = inspect.Parameter.KEYWORD_ONLY
        return inspect.Signature(
            [
                inspect.Parameter(name, kind, annotation=_named(annotation), default=default)
                for name, (annotation, default) in parameters.items()
            ]
        )

    def __call__(self, **values: Any) -> Any:
        values.pop("json", None)  # `output` knows
        context = values.get("context")
        if "context" not in self._signature.parameters:
            values.pop("context", None)
        tls = {each: values.pop(each) for each in (CLIENT_TLS if self._asks else ())}
        with speaking_tls(**tls):
            for name, kind in self._shared.items():
                its = (*kind.options, "timeout") if self._asks else kind.options
                values[name] = kind.of(context, **{each: values.pop(each) for each in its})
            return self._function(**values)


class App(typer.Typer):
    """A group of commands."""

    def __init__(self, **options: Any) -> None:
        settings = {"cls": CommandGroup, "no_args_is_help": True, "rich_markup_mode": None, **options}
        super().__init__(**settings)

    def callback(self, *, has_json: bool = False, **options: Any) -> Callable[[F], F]:
        register = super().callback(**options)

        def registered(function: F) -> F:
            register(_Command(function, (TIMEOUT_S, WITHOUT_ANSWER), has_json))
            return function

        return registered

    def command(
        self,
        name: str | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        timeout_help: str = WITHOUT_ANSWER,
        has_json: bool = True,
        **options: Any,
    ) -> Callable[[F], F]:
        register = super().command(name, **options)

        def registered(function: F) -> F:
            register(_Command(function, (timeout_s, timeout_help), has_json))
            return function

        return registered


Json = Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")]


class FlushMode(StrEnum):
    SYNC = "sync"
    ASYNC = "async"


class Store(StrEnum):
    FILE = "file"
    MEMORY = "memory"


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


Format = Annotated[
    LogFormat | None,
    typer.Option("--log-format", help="Format of the log; json: one object per line. (default: text)"),
]
Level = Annotated[LogLevel, typer.Option(help="Level of the log on standard error.")]
MemberId = Annotated[
    str | None, typer.Option("--id", help="Id of this member in --members.", metavar="ID")
]
Members = Annotated[
    str | None,
    typer.Option(
        help="Every member and the address of its log: ID=HOST:PORT,... The same on all members.",
        metavar="LIST",
    ),
]
DataDir = Annotated[Path | None, typer.Option(help="Data directory of this member.", metavar="DIR")]


class Consistency(StrEnum):
    READ_INDEX = "read_index"
    COMMITTED = "committed"


ReadConsistency = Annotated[
    Consistency | None,
    typer.Option(
        "--consistency",
        help="read_index: linearizable, from any member; committed: the committed entries that a"
        " member knows, possibly old. Without it the leader answers.",
    ),
]
MaxStaleness = Annotated[
    float | None,
    typer.Option("--max-staleness", help="With committed: maximum age in seconds.", min=0),
]
FromMember = Annotated[
    str | None,
    typer.Option("--from-member", help="Member to read from: its id, `leader` or `any`.", metavar="ID"),
]


Directory = Annotated[Path, typer.Argument(help="Data directory of a stopped member.", metavar="DIR")]


FirstIndex = Annotated[
    int | None, typer.Option("--from", help="First index. (default: where the log begins)", min=0)
]
StopIndex = Annotated[
    int | None,
    typer.Option("--to", help="Stop before this index. (default: the committed end)", min=0),
]


def time_ms_of(text: str, option: str = "--since") -> int:
    """Milliseconds since 1970 of a duration ago, `2h`, or a date and time, without a zone in this
    machine's own. Raises ConfigError."""
    from datetime import UTC, datetime, timedelta

    from quorumlog.append_times import milliseconds_of

    number, unit = text[:-1], text[-1:]
    try:
        if unit in _UNITS_MS and number.replace(".", "", 1).isdecimal():
            return milliseconds_of(
                datetime.now(UTC) - timedelta(milliseconds=float(number) * _UNITS_MS[unit])
            )
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
        since = time_of(since_ms)
        raise ConfigError(
            f"--since {since:%Y-%m-%dT%H:%M:%SZ} is in the future, it is {now:%Y-%m-%dT%H:%M:%SZ} now;"
            " name an earlier time, or give only --follow for new entries"
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


def duration_ms_of(text: str, option: str) -> int:
    """Of `90s`, `12h`, `7d`. Raises ConfigError."""
    number, unit = text[:-1], text[-1:]
    if unit not in _UNITS_MS or not (number.isascii() and number.isdigit()):
        raise ConfigError(f"{option} {text!r} is not a duration: write 90s, 15m, 12h or 7d")
    return int(number) * _UNITS_MS[unit]


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


_WILL_NOT_MEND = (
    os.strerror(errno.ECONNREFUSED),
    "Name or service not known",
    "No address associated with hostname",
)
"""Of a name: what the resolver says of one that does not exist. A failure of the resolver may pass."""


def refuse_dead_servers(log: LedgerClient, timeout_s: float) -> None:
    """Raises Unreachable, with the reason of each address, if none of them accepts connections or its
    name does not resolve, and that stays so for `DEAD_AFTER_S` (or `timeout_s`, if that is less).

    Other failures may pass: a server that is silent, or one without a leader. Then the operation itself
    keeps trying. Only before a command has had its first answer.
    """
    from quorumlog.errors import Unreachable

    allowed_s = min(DEAD_AFTER_S, timeout_s)
    deadline = time.monotonic() + allowed_s
    while True:
        left_s = deadline - time.monotonic()
        rows = log.status(timeout_ms=timeout_ms_of(max(left_s, ASK_AGAIN_S)))
        reasons = {row.address: row.problem.removeprefix(f"{row.address}: ") for row in rows}
        if any(row.reachable for row in rows) or not set(reasons.values()) <= set(_WILL_NOT_MEND):
            return
        if left_s <= 0:
            tried = ", ".join(f"{address} ({reason})" for address, reason in reasons.items())
            waited = f"gave up after {allowed_s:.1f} s"
            raise Unreachable(f"no server could be reached: {waited}; tried: {tried}; check --servers")
        time.sleep(min(ASK_AGAIN_S, left_s))
