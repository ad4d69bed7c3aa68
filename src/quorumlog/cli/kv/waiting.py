"""quorumlog kv watch, lock, elect."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Annotated, Self

import typer

from quorumlog.cli.kv import guardian
from quorumlog.cli.kv.keys import Key, Prefix, PrevKv, bytes_of, print_bytes, range_or_prefix, row_of
from quorumlog.cli.options import StoreServers, argument, option
from quorumlog.cli.output import EXIT_REFUSED, note, tell

if TYPE_CHECKING:
    from types import FrameType

    from quorumlog.kv.client.leasing import Election, Lock

TOKEN_VARIABLE = "QUORUMLOG_KV_TOKEN"

Command = Annotated[list[str] | None, argument("Command to run meanwhile, after --.", "[-- COMMAND...]")]
Ttl = Annotated[
    float, option("Seconds until the lock ends if this process is silent.", min=0.1, max=86_400)
]


def watch(
    key: Key,
    at: StoreServers,
    end: Annotated[str | None, argument("All keys from KEY up to this one, excluded.", "[END]")] = None,
    prefix: Prefix = False,
    first_revision: Annotated[int, option("First revision; 0: from now on.", name="--from", min=0)] = 0,
    limit: Annotated[int, option("End after N changes; 0: never.", min=0)] = 0,
    prev_kv: PrevKv = False,
) -> None:
    """Print changes as they come, until Ctrl-C; no gap when the leader changes.

    Example: quorumlog kv watch jobs/ --prefix --servers 127.0.0.1:20921
    """
    range_or_prefix(end, prefix)
    seen = 0
    with at.connected() as kv:
        name = bytes_of(key)
        if prefix:
            watching = kv.watch_prefix(name, first_revision=first_revision, prev_kv=prev_kv)
        else:
            stop = None if end is None else bytes_of(end)
            watching = kv.watch(name, end=stop, first_revision=first_revision, prev_kv=prev_kv)
        with watching as changes:
            for change in changes:
                what = "delete" if change.is_deletion else "put"
                row = {"type": what, **row_of(change.item)}
                if prev_kv:
                    row["prev_kv"] = None if change.previous is None else row_of(change.previous)
                value = () if change.is_deletion else (change.item.value or b"",)
                tell(row, partial(print_bytes, what.encode(), change.item.key, *value))
                seen += 1
                if seen == limit:
                    return


def lock(
    name: Key,
    at: StoreServers,
    command: Command = None,
    ttl: Ttl = 10.0,
    wait: Annotated[float | None, option("Give up after this many seconds.", min=0.1)] = None,
) -> None:
    """Hold a lock while a command runs, or until Ctrl-C; prints the fencing token.

    The command finds the token in QUORUMLOG_KV_TOKEN. Signals are passed on to it. It is terminated once
    the lock may be lost, and if this process is killed.

    Example: quorumlog kv lock backup --servers 127.0.0.1:20921 -- ./backup.sh
    """
    with at.connected() as kv:
        try:
            wait_ms = None if wait is None else 1000 * wait
            with kv.lock(bytes_of(name), ttl_s=ttl, timeout_ms=wait_ms) as held:
                _announce(held)
                status = _run_while(held, command)
        except TimeoutError:
            note(f"{name} was not acquired in {wait:g} s: another client holds it, or no member answers")
            raise typer.Exit(EXIT_REFUSED) from None
    raise typer.Exit(status)


def elect(
    name: Key,
    at: StoreServers,
    value: Annotated[
        str | None, argument("Value of this candidate; without it the leader is shown.", "[VALUE]")
    ] = None,
    command: Command = None,
    ttl: Ttl = 10.0,
) -> None:
    """Wait until elected, then run a command, or hold until Ctrl-C; or show the leader.

    Example: quorumlog kv elect cron "$HOSTNAME" --servers 127.0.0.1:20921 -- ./nightly.sh
    """
    with at.connected() as kv:
        if value is None:
            leader = kv.leader(bytes_of(name))
            if leader is None:
                note(f"{name} has no leader: give a VALUE to be a candidate")
                raise typer.Exit(EXIT_REFUSED)
            tell(row_of(leader), lambda: print_bytes(leader.value or b""))
            return
        with kv.leadership(bytes_of(name), bytes_of(value), ttl_s=ttl) as election:
            _announce(election)
            status = _run_while(election, command)
    raise typer.Exit(status)


def _announce(held: Lock | Election) -> None:
    tell({"token": held.token}, str(held.token))


def _run_while(held: Lock | Election, command: list[str] | None) -> int:
    """The status of the command, as a shell has it; it ends once the lock may be lost."""
    if not command:
        lost = threading.Event()
        while held.is_held:
            lost.wait(0.1)
        note("the lock may be lost")
        return EXIT_REFUSED
    with _Guardian(command, {**os.environ, TOKEN_VARIABLE: str(held.token)}) as running:
        while (status := running.wait(0.1)) is None:
            if not held.is_held:
                note("the lock may be lost: the command is terminated")
                running.end()
                return EXIT_REFUSED
    if status < 0:
        note(
            f"the guardian of the command was ended by signal {-status}:"
            " the command may still be running"
        )
        return EXIT_REFUSED
    return status


class _Guardian:
    """See `guardian`. Within, signals go to the command, which may take its time. At a terminal it stays
    in the process group that Ctrl-C and Ctrl-Z reach, and gets the former from there."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self._command = command
        self._environment = environment
        self._at_terminal = os.isatty(0)

    def __enter__(self) -> Self:
        reads, self._pipe = os.pipe()
        self._handlers = {
            number: signal.signal(number, self._pass_on)
            for number in guardian.PASSED_ON
            if signal.getsignal(number) != signal.SIG_IGN
        }
        group = "" if self._at_terminal else guardian.OWN_GROUP
        program = [sys.executable, "-I", "-S", guardian.__file__, str(reads), group]
        # Nor does it end with the group of this process.
        self._process = subprocess.Popen(
            [*program, *self._command],
            env=self._environment,
            pass_fds=(reads,),
            process_group=None if self._at_terminal else 0,
        )
        os.close(reads)
        return self

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        if number != signal.SIGINT or not self._at_terminal:
            with suppress(OSError):  # it is being ended, or has ended
                os.write(self._pipe, bytes([number]))

    def wait(self, timeout_s: float) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(timeout_s)
        return None

    def end(self) -> None:
        """Terminate the command, with what it has started."""
        pipe, self._pipe = self._pipe, -1
        if pipe >= 0:
            os.close(pipe)
        self._process.wait()

    def __exit__(self, *exception: object) -> None:
        self.end()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
