"""What every command prints with. Standard output carries results only, so that it can be piped.

A mistake is one line, `quorumlog: OPTION: what is wrong; what to do`, whoever found it.

Exit status: 0 done, 1 refused or damaged, 2 something to change (an option, a file), 3 the store
failed, 130 interrupted, 143 terminated. A name that no cluster could know is something to change; one
that this cluster does not know is refused.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TextIO

import typer
from typer.core import TyperGroup

from quorumlog.cli.interrupts import EXIT_OF_SIGNAL, Running, interrupted_status
from quorumlog.errors import (
    BadRequest,
    ConfigError,
    DirectoryDamaged,
    LedgerError,
    ProtocolViolation,
    StoreFailure,
)

EXIT_REFUSED = 1
EXIT_CONFIG = 2
EXIT_STORE = 3
EXIT_INTERRUPTED = EXIT_OF_SIGNAL + 2
EXIT_TERMINATED = EXIT_OF_SIGNAL + 15
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

if TYPE_CHECKING:
    from rich.console import Console


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
    out().print(text, markup=False, style=style, soft_wrap=True)


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


def print_json(row: dict[str, Any]) -> None:
    """One object, one line."""
    import msgspec

    sys.stdout.write(msgspec.json.encode(row).decode() + "\n")
    sys.stdout.flush()


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


def note(text: str) -> None:
    err().print(text, markup=False, style="dim")


def error_line(text: str) -> None:
    err().print(f"quorumlog: {text}", markup=False, style="red")


@contextmanager
def entry_progress(label: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error, if that is a terminal; yields what is called with (done, in all)."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = err()
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as progress:
        task = progress.add_task(label, total=None)
        yield lambda done, in_all: progress.update(task, completed=done, total=in_all)


UsageError: Any = typer.BadParameter.__mro__[1]
"""What typer raises for a command line that it cannot read; it has no public name of its own there."""


class ReportingGroup(TyperGroup):
    """Turns what a person can act on into one line and an exit status. Help lists the commands by
    `rich_help_panel`, which typer does only where rich lays it out."""

    _has_options = True

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        # Options of this group that are not given are validated all the same, and what typer validates
        # with loads for longer than the help of a command.
        self._has_options = not args or args[0] not in self.commands
        return super().parse_args(ctx, args)

    def get_params(self, ctx: Any) -> list[Any]:
        return super().get_params(ctx) if self._has_options else []

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {}
        width = formatter.width - 6 - max(map(len, self.commands))
        for name, command in self.commands.items():
            row = (name, command.get_short_help_str(width))
            panels.setdefault(getattr(command, "rich_help_panel", ""), []).append(row)
        for panel, rows in panels.items():
            with formatter.section(panel):
                formatter.write_dl(rows)

    def main(self, *args: Any, standalone_mode: bool = True, **options: Any) -> Any:
        run: Any = super().main
        try:
            status = run(*args, standalone_mode=False, **options)
        except UsageError as error:
            _print_slip(error)
            status = error.exit_code
        except typer.Abort:
            error_line("aborted; nothing is changed")
            status = EXIT_REFUSED
        if standalone_mode:
            sys.exit(status)
        return status

    def invoke(self, ctx: Any) -> Any:
        try:
            with Running():
                return super().invoke(ctx)
        except ConfigError as error:
            error_line(str(error))
            raise typer.Exit(EXIT_CONFIG) from None
        except BadRequest as error:
            error_line(describe(error))
            raise typer.Exit(EXIT_CONFIG) from None
        except LedgerError as error:
            error_line(describe(error))
            raise typer.Exit(EXIT_REFUSED) from None
        except DirectoryDamaged as error:
            error_line(str(error))
            raise typer.Exit(EXIT_STORE) from None
        except StoreFailure as error:
            error_line(f"the store failed: {error}")
            raise typer.Exit(EXIT_STORE) from None
        except ProtocolViolation as error:
            error_line(f"the server does not speak quorumlog's protocol; check --servers: {error}")
            raise typer.Exit(EXIT_CONFIG) from None
        except (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError) as error:
            error_line(f"{error.filename}: {error.strerror}; name another path, or change it")
            raise typer.Exit(EXIT_CONFIG) from None
        except OSError as error:
            # Standard output is full: whatever else a command writes to has a name, or is the store's.
            # EPIPE is none of these: it ends a command silently.
            if error.filename is not None or error.errno not in _FULL:
                raise
            error_line(f"standard output: {error.strerror}")
            let_go_of(sys.stdout)
            raise typer.Exit(EXIT_REFUSED) from None
        except KeyboardInterrupt:
            raise typer.Exit(interrupted_status()) from None


def describe(error: LedgerError) -> str:
    leader = f"; the leader is {error.leader_id} ({error.leader_address})" if error.leader_id else ""
    return f"{error}{leader}"


def _print_slip(error: Any) -> None:
    """One line: the option or the command, what is wrong with it, and where it is explained."""
    context = error.ctx
    if type(error).__name__ == "NoArgsIsHelpError":
        typer.echo(context.get_help(), err=True)
        return
    message = _PLAIN.sub(lambda found: _PLAINER[found[0]], " ".join(error.message.split())).rstrip(".")
    value = _value_of(error)
    if value.lower().lstrip(" +-") == "nan":  # less than nothing, and more than nothing
        message = "must be a number"
    parameter = getattr(error, "param", None)
    if parameter is not None:
        is_option = parameter.param_type_name == "option"
        name = parameter.opts[0] if is_option else (parameter.metavar or parameter.name).strip("[]")
        message = f"{name}{value}: {message}" if message else f"{name} is missing"
    message += _nearest(error)
    names: list[str] = []
    while context and context.parent:
        names.insert(0, context.info_name)
        context = context.parent
    error_line(f"{message}; see {' '.join(['quorumlog', *names])} --help")


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
    """The value that was given, where whoever checked it does not say it himself."""
    found = getattr(error.__cause__, "errors", None)
    value = found()[0]["input"] if found else None
    return "" if value is None or f"'{value}'" in error.message else f" {value}"


def _nearest(error: Any) -> str:
    """What was probably meant."""
    close = sorted(getattr(error, "possibilities", None) or ())
    return f"; did you mean {' or '.join(close)}?" if close else ""
