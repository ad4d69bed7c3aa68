"""Output of all commands. Standard output carries results only, so that it can be piped.

A mistake is one line, `quorumlog: OPTION: what is wrong; what to do`, from every layer.

Exit status: 0 done, 1 refused or damaged, 2 wrong usage or configuration (an option, a file), 3 the
store failed, 130 interrupted, 143 terminated. An invalid name is wrong usage; one that this cluster does
not know is refused.
"""

from __future__ import annotations

import errno
import io
import logging
import os
import re
import socket
import sys
import warnings
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO

import typer
from typer.core import TyperArgument, TyperGroup, TyperOption

from quorumlog.cli.interrupts import EXIT_OF_SIGNAL, Running, interrupted_status
from quorumlog.errors import (
    BadRequest,
    ConfigError,
    DirectoryDamaged,
    LedgerError,
    ProtocolViolation,
    StoreFailure,
    WrongPort,
)

EXIT_REFUSED = 1
EXIT_CONFIG = 2
EXIT_STORE = 3
EXIT_INTERRUPTED = EXIT_OF_SIGNAL + 2
EXIT_TERMINATED = EXIT_OF_SIGNAL + 15
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

if TYPE_CHECKING:
    from rich.console import Console

log = logging.getLogger("quorumlog.server")


def let_go_of(*streams: TextIO) -> None:
    """Each further write, the last one of the interpreter too, would be an error, which would end the
    command before it has cleaned up, or with a status that says it failed."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in streams:
        with suppress(OSError, ValueError):
            os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def out() -> Console:
    """Standard output as it is now (a test may have replaced it); wide where it is no terminal."""
    from rich.console import Console

    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=200)


def err() -> Console:
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=True)


def say(text: str, style: str | None = None) -> None:
    """One line of results: nothing in it is mark-up, and it is not wrapped."""
    if style is None:
        typer.echo(text)
    else:
        out().print(text, markup=False, emoji=False, style=style, soft_wrap=True)


def log_errors() -> None:
    """From now on, so that each line of standard error is one of the log."""
    global _logs_objects
    _logs_objects = True


def is_json() -> bool:
    """The command line asks for --json."""
    return _as_json


def tell(row: Any, spoken: str | Callable[[], object]) -> None:
    """Print a result: with --json an object on a line, else a line, or call its printer."""
    if _as_json:
        print_json(row)
    elif isinstance(spoken, str):
        say(spoken)
    else:
        spoken()


def tell_rows(
    rows: Iterable[Any], headings: str, cells: Iterable[Sequence[object]], if_none: str = ""
) -> None:
    """With --json an object a line; else a table of `cells`, as of `print_table`, or the note."""

    def show() -> None:
        shown = list(cells)
        print_table(headings, shown) if shown or not if_none else note(if_none)

    tell_each(rows, show)


def tell_each(rows: Iterable[Any], show: Callable[[], object]) -> None:
    """With --json an object a line; else `show` prints them."""
    if not _as_json:
        show()
        return
    for row in rows:
        print_json(row)


def write_bytes(results: bytes) -> None:
    """All of them, or an error. Where nothing is buffered (PYTHONUNBUFFERED) a write may take a part
    only, on a pipe that is closed then and on a disk that fills up."""
    sink = sys.stdout.buffer
    left = memoryview(results)
    while left:
        taken: int | None = sink.write(left)  # None: full, of a sink that does not wait
        if taken is None:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        left = left[taken:]
    sink.flush()


def print_json(row: Any, stream: TextIO | None = None) -> None:
    """One object, one line; `stream`: None is standard output."""
    import json

    import msgspec

    try:
        text = msgspec.json.encode(row).decode()
    except UnicodeEncodeError:  # a path that is not UTF-8
        text = json.dumps(msgspec.to_builtins(row))
    stream = sys.stdout if stream is None else stream
    stream.write(f"{text}\n")
    stream.flush()


def text_fields(name: str, data: bytes | None) -> dict[str, Any]:
    """For --json: `name` if it is text, else `name_base64`."""
    if data is None:
        return {name: None}
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": b64encode(data).decode()}


def announce(text: str) -> None:
    """Print the line of a server that listens now. A closed terminal or pipe is no reason not to
    serve."""
    try:
        print(text, flush=True)
    except OSError as error:
        let_go_of(sys.stdout)
        log.warning("standard output takes nothing (%s): the member serves all the same", error)


def say_ready() -> None:
    """To systemd, which waits for it before it starts what comes after a unit of `Type=notify`."""
    address = os.environ.get("NOTIFY_SOCKET")
    if address:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            try:
                # One that begins with @ is in the abstract namespace.
                manager.sendto(
                    b"READY=1", address.replace("@", "\0", 1) if address[0] == "@" else address
                )
            except OSError as error:
                log.warning("%s, of NOTIFY_SOCKET, takes nothing: %s", address, error)


_UNITS = (("days", 86_400), ("h", 3_600), ("min", 60))


def spoken_duration(duration_ms: float) -> str:
    """In the largest unit of which there are two at least: `90 s`, `5 min`, `3 h`, `12 days`."""
    seconds = duration_ms / 1000
    for unit, unit_seconds in _UNITS:
        if seconds >= 2 * unit_seconds:
            return f"{seconds // unit_seconds:.0f} {unit}"
    return f"{int(seconds)} s"


_SIZES = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


def spoken_size(size_bytes: int) -> str:
    """In the largest unit of which there is one at least, with two digits or more: `900 B`, `4.1 MiB`,
    `673 MiB`."""
    for unit, unit_bytes in _SIZES:
        if size_bytes >= unit_bytes:
            size = size_bytes / unit_bytes
            return f"{size:.1f} {unit}" if size < 9.95 else f"{size:.0f} {unit}"
    return f"{size_bytes} B"


def print_table(headings: str, rows: Iterable[Sequence[object]]) -> None:
    """`headings`: with commas between them, and `#` after those of numbers, which are right-aligned.
    None is a `-`."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for heading in headings.split(", "):
        justify: Literal["left", "right"] = "right" if heading.endswith(" #") else "left"
        table.add_column(heading.removesuffix(" #"), justify=justify, no_wrap=True)
    for row in rows:
        table.add_row(*(escape("-" if each is None else str(each)) for each in row))
    console = out()
    # What fits in no width is wrapped by the terminal: a name that is cut is of no use.
    options = console.options.update(max_width=10_000)
    console.width = max(console.width, console.measure(table, options=options).maximum)
    console.print(table)


def note(text: str) -> None:
    err().print(text, markup=False, style="dim")


_as_json = False
_logs_objects = False
_OLD_SPELLINGS = {"broker": {"--server": "--servers"}}
"""Options of earlier releases, by the command that has them, and what they are called now."""
_OLD_COMMANDS = {"why-kept": ["why", "kept"]}


def error_line(text: str, status: int = EXIT_REFUSED) -> None:
    """On standard error: a sentence, or with --json an object of `error` and the exit `status`, or a
    line of the log where that has objects."""
    if _logs_objects:
        log.critical("%s", text, extra={"event": "member_stops"})
    elif _as_json:
        print_json({"error": text, "status": status}, sys.stderr)
    else:
        # One line, whatever was typed.
        shown = "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)
        err().print(f"quorumlog: {shown}", markup=False, style="red")


@contextmanager
def entry_progress(label: str, *, in_bytes: bool = False) -> Iterator[Callable[[int, int | None], None]]:
    """A bar on standard error, if that is a terminal; yields a callback for (done, in all), in entries
    or `in_bytes`. None: the total is unknown."""
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    console = err()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True) if in_bytes else MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task(label, total=None)
        yield lambda done, in_all: progress.update(task, completed=done, total=in_all)


UsageError: Any = typer.BadParameter.__mro__[1]
"""typer's exception for an invalid command line, which has no public name there."""
MAX_INTEGER = (1 << 63) - 1
"""Indices, offsets, revisions and counts are signed 64-bit numbers on the wire and on the disk."""
MAX_DURATION_S = 1_000_000
"""Eleven days; above it are typing mistakes and `inf`."""


class CommandGroup(TyperGroup):
    """A group of commands. Help lists them with the whole first sentence of each, by `rich_help_panel`,
    as typer does only with rich. Numbers have bounds and metavars."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        command: Any = super().get_command(ctx, cmd_name)
        for parameter in command.params if command is not None else ():
            if isinstance(parameter, TyperOption | TyperArgument):
                _complete(parameter)
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {}
        for name, command in self.commands.items():
            row = (name, command.get_short_help_str(_WHOLE_SENTENCE))
            panels.setdefault(getattr(command, "rich_help_panel", None) or "Commands", []).append(row)
        for panel, rows in panels.items():
            with formatter.section(panel):
                formatter.write_dl(rows)


_WHOLE_SENTENCE = 1_000
_NUMBERS = {int: ("N", MAX_INTEGER), float: ("SECONDS", MAX_DURATION_S)}


def _complete(parameter: Any) -> None:
    """Bounds and a metavar of a number that declares none, and no names of Python's types."""
    described = parameter.type_descriptor
    if parameter.param_type_name == "argument":
        parameter.display_type_rich = lambda ctx: None  # behind its name, which says what it is
    elif parameter.metavar is None and described.annotation in (str, list[str]):
        parameter.metavar = "TEXT"
    metavar, most = _NUMBERS.get(described.annotation, (None, None))
    if most is None:
        return
    if parameter.metavar is None:
        parameter.metavar = metavar
    bounds = described.parameter_info
    bounds.max = most if bounds.max is None else bounds.max
    bounds.min = -most if bounds.min is None else bounds.min


class ReportingGroup(CommandGroup):
    """The outermost group. Turns errors that a user can act on into one line and an exit status:
    commands raise, and nothing else reports an error that ends one."""

    _has_options = True

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        # Options of this group that are not given are validated all the same, and what typer validates
        # with loads for longer than the help of a command.
        self._has_options = not args or args[0] not in self.commands
        if "--install-completion" in args:
            try:
                Path.home()
            except RuntimeError:
                raise ConfigError(
                    "--install-completion: this user has no home directory; set HOME, or use"
                    " --show-completion"
                ) from None
        return super().parse_args(ctx, args)

    def get_params(self, ctx: Any) -> list[Any]:
        return super().get_params(ctx) if self._has_options else []

    def main(self, args: Any = None, *names: Any, standalone_mode: bool = True, **options: Any) -> Any:
        global _as_json, _logs_objects
        _logs_objects = False
        words = _spelt_now(list(sys.argv[1:] if args is None else args))
        _as_json = "--json" in words[: words.index("--") if "--" in words else None]
        closed = _occupy_closed_streams()
        # Results have the bytes that the command line had, sentences show which they are.
        for stream, errors in ((sys.stdout, "surrogateescape"), (sys.stderr, "backslashreplace")):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors=errors)
        run: Any = super().main
        try:
            with Running():
                status = run(words, *names, standalone_mode=False, **options)
        except Exception as error:
            status, sentence = _outcome(error, closed)
            if status is None:
                raise
            if sentence:
                error_line(sentence, status)
        try:
            sys.stderr.flush()
        except (OSError, ValueError):
            let_go_of(sys.stderr)  # what a terminal that is gone did not take is no failure
        if standalone_mode:
            sys.exit(status)
        return status

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            # It may have come between the making of a call and its handing over.
            warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
            raise typer.Exit(interrupted_status()) from None


def named_now(arguments: list[str]) -> list[str]:
    """A command of an earlier release, as it is called now."""
    name = arguments[0] if arguments else ""
    if name not in _OLD_COMMANDS:
        return arguments
    words = _OLD_COMMANDS[name]
    note(f"warning: {name} is now {' '.join(words)}; the next release knows {' '.join(words)} only")
    return [*words, *arguments[1:]]


def _spelt_now(arguments: list[str]) -> list[str]:
    arguments = named_now(arguments)
    spellings = _OLD_SPELLINGS.get(arguments[0], {}) if arguments else {}
    stop = arguments.index("--") if "--" in arguments else len(arguments)
    words = list(arguments)
    for place, word in enumerate(arguments[:stop]):
        name, equals, value = word.partition("=")
        if now := spellings.get(name):
            note(f"warning: {name} is now {now}; the next release knows {now} only")
            words[place] = f"{now}{equals}{value}"
    return words


def _outcome(error: Exception, closed: list[str]) -> tuple[int | None, str]:
    """Exit status and sentence of what ends a command; no status: a fault of ours, for a traceback."""
    if isinstance(error, UsageError):
        return EXIT_CONFIG, _slip(error)
    if isinstance(error, typer.Abort):
        return EXIT_REFUSED, "aborted; nothing is changed"
    if isinstance(error, ConfigError):
        return EXIT_CONFIG, str(error)
    if isinstance(error, LedgerError):
        return EXIT_CONFIG if isinstance(error, BadRequest) else EXIT_REFUSED, describe(error)
    if isinstance(error, StoreFailure):
        place = "" if isinstance(error, DirectoryDamaged) else "the store failed: "
        return EXIT_STORE, f"{place}{error}"
    if isinstance(error, ProtocolViolation):
        why = "the server at this address does not speak quorumlog's protocol; check the address"
        return EXIT_CONFIG, f"{why}: {error}"
    if isinstance(error, UnicodeEncodeError):
        return EXIT_CONFIG, f"{error.object!r} is not UTF-8 text; write it in UTF-8"
    if isinstance(error, OSError):
        return _outcome_of_system(error, closed)
    return None, ""


def _outcome_of_system(error: OSError, closed: list[str]) -> tuple[int, str]:
    if error.filename is not None:
        return EXIT_CONFIG, f"{error.filename}: {error.strerror}; name another path, or change it"
    let_go_of(sys.stdout)
    if error.errno == errno.EBADF and closed:
        return EXIT_CONFIG, f"closed: {' and '.join(closed)}; redirect the ones that this command needs"
    # Full is standard output: whatever else a command writes to has a name, or is the store's.
    place = "standard output: " if error.errno in _FULL else ""
    return EXIT_REFUSED, f"{place}{error.strerror or error}"


def _occupy_closed_streams() -> list[str]:
    """The names of standard streams that are closed. Their descriptors are taken, so that no file or
    socket gets one of them and is written to; each use of such a stream is an error."""
    closed = []
    for number, (name, spoken, flags, mode) in enumerate(_STREAMS):
        if getattr(sys, name) is None:
            os.dup2(os.open(os.devnull, flags), number)
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115 - for the whole process
            closed.append(spoken)
    return closed


_STREAMS = (
    ("stdin", "standard input", os.O_WRONLY, "r"),
    ("stdout", "standard output", os.O_RDONLY, "w"),
    ("stderr", "standard error", os.O_RDWR, "w"),
)
"""By descriptor; opened the other way round, so that reading or writing fails as it does on a closed
one. Nobody would read a failure of standard error."""


def describe(error: LedgerError) -> str:
    leader = f"; the leader is {error.leader_id} ({error.leader_address})" if error.leader_id else ""
    option = "; correct --servers" if isinstance(error, WrongPort) else ""
    return f"{error}{leader}{option}"


def _slip(error: Any) -> str:
    """One line: the option or the command, what is wrong with it, and where it is explained."""
    context = error.ctx
    if type(error).__name__ == "NoArgsIsHelpError" and not _as_json:
        typer.echo(context.get_help(), err=True)
        return ""
    message = _PLAIN.sub(lambda found: _PLAINER[found[0]], " ".join(error.message.split())).rstrip(".")
    value = _value_of(error)
    if value.lower().lstrip(" +-") == "nan":  # less than nothing, and more than nothing
        message = "must be a number"
    parameter = getattr(error, "param", None)
    if parameter is not None:
        is_option = parameter.param_type_name == "option"
        name = parameter.opts[0] if is_option else (parameter.metavar or parameter.name).strip("[]")
        message = f"{name}{value}: {message}" if message else f"{name} is missing"
    if close := sorted(getattr(error, "possibilities", None) or ()):
        message += f"; did you mean {' or '.join(close)}?"
    names: list[str] = []
    while context and context.parent:
        names.insert(0, context.info_name)
        context = context.parent
    return f"{message}; see {' '.join(['quorumlog', *names])} --help"


_PLAINER = {
    "Value error, ": "",
    "Input should be": "must be",
    "a valid integer, unable to parse string as an integer": "a whole number",
    "a valid number, unable to parse string as a number": "a number",
    "Got unexpected extra argument(s)": "one argument or more too many:",
    "Got unexpected extra argument": "one argument too many:",
}
"""What typer's parts say for programmers, and what a person reads."""
_PLAIN = re.compile("|".join(map(re.escape, _PLAINER)))


def _value_of(error: Any) -> str:
    """The given value, where the check does not name it itself."""
    found = getattr(error.__cause__, "errors", None)
    value = found()[0]["input"] if found else None
    return "" if value is None or f"'{value}'" in error.message else f" {value}"
