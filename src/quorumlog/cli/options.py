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
from dataclasses import MISSING, dataclass, fields
from functools import cached_property, update_wrapper
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Literal,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

import typer

from quorumlog.cli.output import CommandGroup, note
from quorumlog.errors import ConfigError, the_extra

if TYPE_CHECKING:
    from quorumlog.broker import BrokerAdmin, BrokerClient
    from quorumlog.client import LedgerClient
    from quorumlog.client.status_rows import MemberStatusRow
    from quorumlog.kafka.admin import KafkaAdmin
    from quorumlog.kv import KeyValueClient
    from quorumlog.net.credentials import ClientUser

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_GROUP = "default"
"""That of `quorumlog.config`, which loads for longer than the help of a command."""
DEFAULT_BROKER = "127.0.0.1:10911"
TIMEOUT_S = 10.0
_EMPTY, _KEYWORD = inspect.Parameter.empty, inspect.Parameter.KEYWORD_ONLY
DEAD_AFTER_S = 3.0
ASK_AGAIN_S = 0.25
"""Between two questions: a refused connection answers at once."""
SERVERS_VARIABLE = "QUORUMLOG_SERVERS"
_UNITS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def option(text: str, metavar: str | None = None, *, name: str = "", **more: Any) -> Any:
    """`text`: its help. `name`: with its dashes; empty: the parameter's."""
    return typer.Option(*([name] if name else []), help=text, metavar=metavar, **more)


def argument(text: str, metavar: str | None = None, **more: Any) -> Any:
    return typer.Argument(help=text, metavar=metavar, **more)


def servers_option(text: str, old_variable: str = "") -> Any:
    """`old_variable`: of the environment, in releases before; it is of this product alone, and so it
    wins."""
    variables = [each for each in (old_variable, SERVERS_VARIABLE) if each]
    return option(text, "LIST", name="--servers", envvar=variables, show_envvar=not old_variable)


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


Group = Annotated[str, option("Name of the replicated log.", "NAME", callback=_group)]
WITHOUT_ANSWER = "Give up after this many seconds without an answer."


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


class Shared:
    """A parameter of a command that is annotated with a subclass, a dataclass, stands for its fields
    that are annotated with options."""

    @classmethod
    def options(cls) -> dict[str, tuple[Any, Any]]:
        """By name: the annotation, and the default."""
        hints, given = get_type_hints(cls, include_extras=True), fields(cls)  # type: ignore[arg-type]
        return {
            each.name: (hints[each.name], _EMPTY if each.default is MISSING else each.default)
            for each in given
            if get_origin(hints[each.name]) is Annotated
        }

    @classmethod
    def of(cls, context: typer.Context, **values: Any) -> Any:
        return cls(**values)


@dataclass(frozen=True)
class _At(Shared):
    """The servers of a product that a command asks: --servers, --group where there are groups, and
    --timeout. Raises ConfigError."""

    servers: str
    timeout: float

    old_variable: ClassVar[str] = ""

    def __post_init__(self) -> None:
        if os.environ.get(self.old_variable) == self.servers:
            note(f"warning: {self.old_variable} is now {SERVERS_VARIABLE}; the next release drops it")
        split_servers(self.servers)

    @property
    def timeout_ms(self) -> int:
        return timeout_ms_of(self.timeout)

    @property
    def addresses(self) -> list[str]:
        return split_servers(self.servers)


@dataclass(frozen=True)
class LogServers(_At):
    servers: Servers
    group: Group = DEFAULT_GROUP

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
            found = stack.enter_context(self.client())
            try:
                problems = [row.problem for row in refuse_dead_servers(found, self.timeout)]
            except WrongPort as error:
                problems = [str(error)]
                if NO_LOG_BESIDE not in problems[0]:
                    raise
            # One says it for all: others may be down.
            if any(NO_LOG_BESIDE in each for each in problems):
                admin = BrokerAdmin(",".join(self.addresses), timeout_ms=self.timeout_ms)
                found = stack.enter_context(admin)
            yield found


@dataclass(frozen=True)
class StoreServers(_At):
    old_variable = "QUORUMLOG_KV_SERVERS"
    servers: Annotated[
        str,
        servers_option(
            "Addresses of the members' stores, HOST:PORT,... [env var: QUORUMLOG_SERVERS]", old_variable
        ),
    ]

    def connected(self) -> KeyValueClient:
        from quorumlog.kv import connect

        return connect(",".join(self.addresses), timeout_ms=self.timeout_ms)


@dataclass(frozen=True)
class BrokerServers(_At):
    old_variable = "QUORUMLOG_BROKER"
    servers: Annotated[
        str,
        servers_option(
            "Address of the broker, or of several that replicate each other, HOST:PORT,...; the master"
            " is found. [env var: QUORUMLOG_SERVERS]",
            old_variable,
        ),
    ] = DEFAULT_BROKER
    timeout: float = TIMEOUT_S

    def connected(self, *, only_looks: bool = False) -> BrokerClient:
        from quorumlog.broker import BrokerClient

        return BrokerClient(self.servers, timeout_ms=self.timeout_ms, only_looks=only_looks)

    def admin(self) -> BrokerAdmin:
        from quorumlog.broker import BrokerAdmin

        return BrokerAdmin(self.servers, timeout_ms=self.timeout_ms)


@dataclass(frozen=True)
class KafkaPorts(_At):
    servers: Annotated[
        str, servers_option("The members' ports for clients of Kafka, HOST:PORT,HOST:PORT,...")
    ]

    def connected(self) -> KafkaAdmin:
        try:
            from quorumlog.kafka.admin import KafkaAdmin
        except ImportError as error:
            raise ConfigError(f"it needs kio ({error}), {the_extra('kafka')}") from None

        return KafkaAdmin(self.addresses, self.timeout_ms)


OptionalServers = Annotated[
    str | None,
    option(
        "Addresses of members, HOST:PORT,...; not with --path.",
        "LIST",
        name="--servers",
        envvar=SERVERS_VARIABLE,
    ),
]
OptionalGroup = Annotated[
    str | None,
    option(
        "Name of the replicated log. (default: that of the directory, or default)",
        "NAME",
        name="--group",
        callback=_group,
    ),
]
ArchivePlace = Annotated[
    str | None,
    option(
        "Directory of an archive, s3://BUCKET/PREFIX, or the delta: or iceberg: table that it is.",
        "DIR",
        name="--archive",
        parser=named_archive,
    ),
]


@dataclass(frozen=True)
class LogPlace(Shared):
    """One log: of a running cluster, of a stopped member's directory, or in an archive."""

    servers: OptionalServers = None
    path: Annotated[Path | None, option("Data directory of a stopped member.", "DIR", name="--path")] = (
        None
    )
    group: OptionalGroup = None
    timeout: float = TIMEOUT_S
    archive: str | None = None

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


@dataclass(frozen=True)
class EntriesPlace(LogPlace):
    archive: ArchivePlace = None


@dataclass(frozen=True)
class TlsOfClients(Shared):
    """TLS and user of all clients of a command that asks servers."""

    tls_ca: Annotated[
        Path | None,
        option("Use TLS; trust the CAs in this file.", "FILE", envvar="QUORUMLOG_TLS_CA"),
    ] = None
    tls_cert: Annotated[
        Path | None,
        option("Client certificate, if servers require one.", "FILE", envvar="QUORUMLOG_TLS_CERT"),
    ] = None
    tls_key: Annotated[Path | None, option("Its key.", "FILE", envvar="QUORUMLOG_TLS_KEY")] = None
    password_file: Annotated[
        Path | None,
        option(
            "File whose first line is the password of --user; otherwise QUORUMLOG_PASSWORD, or a"
            " prompt.",
            "FILE",
            envvar="QUORUMLOG_PASSWORD_FILE",
        ),
    ] = None
    as_user: Annotated[
        str | None,
        option("User name, if the servers have users.", name="--user", envvar="QUORUMLOG_USER"),
    ] = None

    @contextmanager
    def speaking(self) -> Iterator[None]:
        """Raises ConfigError."""
        with ExitStack() as stack:
            files = [str(each or "") for each in (self.tls_ca, self.tls_cert, self.tls_key)]
            if any(files):
                from quorumlog.net.tls import ClientTls, clients_use

                stack.enter_context(clients_use(ClientTls(*files)))
            user = user_of(self.as_user, self.password_file)
            if user is not None:
                from quorumlog.net.credentials import clients_are

                stack.enter_context(clients_are(user))
            yield


AdminAddress = Annotated[
    str | None, option("HTTP port for health, metrics and a status page (extra `admin`).", "HOST:PORT")
]


@dataclass(frozen=True)
class TlsGiven(Shared):
    """Of a process that serves."""

    tls_cert: Annotated[Path | None, option("Own certificate, PEM.", "FILE")] = None
    tls_key: Annotated[Path | None, option("Its key.", "FILE")] = None
    tls_ca: Annotated[Path | None, option("The CAs whose certificates are trusted.", "FILE")] = None
    client_auth: Annotated[
        Literal["none", "optional", "required"] | None,
        option("Whether clients must show a certificate. (default: none)"),
    ] = None

    @property
    def table(self) -> dict[str, str | None]:
        """By the names of `[tls]`."""
        given = {each.name.removeprefix("tls_"): getattr(self, each.name) for each in fields(self)}
        return {name: None if value is None else str(value) for name, value in given.items()}


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


_PATHS = (Path, Path | None, list[Path], list[Path] | None)


def _completed(name: str, annotation: Any) -> Any:
    """A flag has no second name with `no-`, and an unset variable of a shell is no path."""
    if get_origin(annotation) is not Annotated:
        return annotation
    kind, info, *_ = get_args(annotation)
    info = copy(info)
    if kind is bool and info.default is ...:
        info.param_decls = (f"--{name.replace('_', '-')}",)
    if kind in _PATHS and info.parser is None:
        info.parser = named_path
    return Annotated[kind, info]


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
    def _shared(self) -> dict[str, type[Shared]]:
        """Of the parameters that stand for options: what they are."""
        kinds = {name: each.annotation for name, each in self._signature.parameters.items()}
        return {n: k for n, k in kinds.items() if isinstance(k, type) and issubclass(k, Shared)}

    @cached_property
    def _asks(self) -> bool:
        """It asks servers."""
        return any(issubclass(kind, _At | LogPlace) for kind in self._shared.values())

    @property
    def __signature__(self) -> inspect.Signature:
        timeout_s, timeout_help = self._timeout
        parameters: dict[str, tuple[Any, Any]] = {}
        for name, each in self._signature.parameters.items():
            kind = self._shared.get(name)
            parameters |= {name: (each.annotation, each.default)} if kind is None else kind.options()
        if self._asks:
            if "group" in parameters and "group" not in self._signature.parameters:
                parameters["group"] = parameters.pop("group")
            parameters["timeout"] = Annotated[float, option(timeout_help, min=0.1)], timeout_s
            parameters |= TlsOfClients.options()
        if self._has_json:
            parameters["json"] = (Json, False)
        if self._shared:
            parameters.setdefault("context", (typer.Context, _EMPTY))
        return inspect.Signature(
            [
                inspect.Parameter(
                    name, _KEYWORD, annotation=_completed(name, annotation), default=default
                )
                for name, (annotation, default) in parameters.items()
            ]
        )

    def __call__(self, **values: Any) -> Any:
        values.pop("json", None)  # `output` knows
        context: Any = values.get("context")
        if "context" not in self._signature.parameters:
            values.pop("context", None)
        tls = {each: values.pop(each) for each in (TlsOfClients.options() if self._asks else ())}
        with TlsOfClients(**tls).speaking():
            for name, kind in self._shared.items():
                its = (*kind.options(), "timeout") if self._asks else kind.options()
                values[name] = kind.of(context, **{each: values.pop(each) for each in its})
            return self._function(**values)


class App(typer.Typer):
    """A group of commands."""

    def __init__(self, text: str = "", example: str = "", **options: Any) -> None:
        """`text`, `example`: its help, unless it has a callback."""
        text = f"{text}\n\nExample: {example}" if text else ""
        settings: Any = {"cls": CommandGroup, "no_args_is_help": True, "rich_markup_mode": None}
        super().__init__(**{**settings, **({"help": text} if text else {}), **options})

    def callback(self, *, has_json: bool = False, **options: Any) -> Callable[[F], F]:
        return _registering(super().callback(**options), (TIMEOUT_S, WITHOUT_ANSWER), has_json)

    def command(
        self,
        name: str | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        timeout_help: str = WITHOUT_ANSWER,
        has_json: bool = True,
        **options: Any,
    ) -> Callable[[F], F]:
        return _registering(super().command(name, **options), (timeout_s, timeout_help), has_json)

    def commands(self, *functions: Callable[..., Any], **options: Any) -> None:
        """Each by its own name; `options`: as of `command`."""
        for each in functions:
            self.command(**options)(each)


def _registering(
    register: Callable[..., Any], timeout: tuple[float, str], has_json: bool
) -> Callable[[F], F]:
    def registered(function: F) -> F:
        register(_Command(function, timeout, has_json))
        return function

    return registered


Json = Annotated[bool, option("Print one JSON object per line.", name="--json")]
FlushMode = Literal["sync", "async"]
LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]
Format = Annotated[
    LogFormat | None, option("Format of the log; json: one object per line. (default: text)")
]
Level = Annotated[LogLevel, option("Level of the log on standard error.")]
MemberId = Annotated[str | None, option("Id of this member in --members.", "ID", name="--id")]
Members = Annotated[
    str | None,
    option("Every member and the address of its log: ID=HOST:PORT,... The same on all members.", "LIST"),
]
DataDir = Annotated[Path | None, option("Data directory of this member.", "DIR")]
Directory = Annotated[Path, argument("Data directory of a stopped member.", "DIR")]
FirstIndex = Annotated[
    int | None, option("First index. (default: where the log begins)", name="--from", min=0)
]
StopIndex = Annotated[
    int | None, option("Stop before this index. (default: the committed end)", name="--to", min=0)
]


def time_ms_of(text: str, option: str = "--since", words: tuple[str, ...] = ()) -> int:
    """Milliseconds since 1970 of a duration ago, `2h`, or a date and time, without a zone in this
    machine's own. `words`: what else the option takes. Raises ConfigError."""
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
            f"{option} {text!r} is neither {''.join(f'{word}, ' for word in words)}a duration"
            " (90s, 15m, 2h, 7d) nor a time"
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


def refuse_crossed(first_index: int | None, stop_index: int | None) -> None:
    """Raises ConfigError."""
    if first_index is not None and stop_index is not None and stop_index < first_index:
        raise ConfigError(f"--to {stop_index} is below --from {first_index}; swap them")


def refuse_another_group(path: str, held: str, group: str | None) -> None:
    """`held`: by the directory; empty in those of Java members. Raises ConfigError."""
    if group is not None and held and group != held:
        raise ConfigError(f"{path} is of group {held}, not {group}; change --group")


def begin_index(log: LedgerClient) -> int:
    """Of a served log, as its leader says it."""
    from quorumlog.client import leader_of

    leader = leader_of(log.status())
    return max(leader.ledger_begin_index, 0) if leader is not None else 0


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
    """An existing directory of one member; raises ConfigError."""
    from quorumlog.store.disk import not_allowed
    from quorumlog.store.segments import DATA_NAME
    from quorumlog.store.state_files import MEMBER_NAME

    try:
        if not directory.is_dir():
            what = "is not a directory" if directory.exists() else "does not exist"
            raise ConfigError(f"{directory} {what}; name the data directory of a member")
        is_one = (directory / MEMBER_NAME).exists() or (directory / DATA_NAME).exists()
        members = sorted(
            [*directory.glob(f"*/{MEMBER_NAME}"), *directory.glob(f"dledger-*/{DATA_NAME}")]
        )
    except PermissionError as error:
        raise ConfigError(not_allowed(str(directory), error)) from None
    if members and not is_one:
        names = ", ".join(member.parent.name for member in members)
        raise ConfigError(f"{directory} holds the directories of members ({names}); name one of them")
    return str(directory)


def start_command(directory: str, group: str, member_id: str, members: str) -> str:
    """The command that starts the member of this directory, for an operator to complete: a store and a
    broker also have addresses for their clients."""
    from quorumlog.store.directory_kind import DirectoryKind, kind_of
    from quorumlog.store.disk import OsDisk

    kind = kind_of(OsDisk(), directory) or DirectoryKind.MEMBER
    match kind:
        case DirectoryKind.STORE:
            own, after = "--data-dir", " --listen HOST:PORT"
        case DirectoryKind.LOG_BROKER:
            own, after = "--dir", " --bind HOST:PORT --brokers ID=HOST:PORT,..."
        case _:
            own, after = f"--group {group} --data-dir", ""
    return f"{kind.command} --id {member_id} {own} {directory} --members {members}{after}"


_WILL_NOT_MEND = (
    os.strerror(errno.ECONNREFUSED),
    "Name or service not known",
    "No address associated with hostname",
)
"""Of a name: what the resolver says of one that does not exist. A failure of the resolver may pass."""


def refuse_dead_servers(log: LedgerClient, timeout_s: float) -> list[MemberStatusRow]:
    """Returns what each server has answered.

    Raises Unreachable, with the reason of each address, if none of them accepts connections or its name
    does not resolve, and that stays so for `DEAD_AFTER_S` (or `timeout_s`, if that is less).

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
            return rows
        if left_s <= 0:
            tried = ", ".join(f"{address} ({reason})" for address, reason in reasons.items())
            waited = f"gave up after {allowed_s:.1f} s"
            raise Unreachable(f"no server could be reached: {waited}; tried: {tried}; check --servers")
        time.sleep(min(ASK_AGAIN_S, left_s))
