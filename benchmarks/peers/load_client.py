"""The native load clients, as this side sees them: flags, two JSON lines, an exit status."""

from __future__ import annotations

import math
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Timer

import msgspec

from benchmarks.peers.cache import last_lines, run_to_end
from benchmarks.peers.system import BODY_BYTES, Figures, MeasuringFailed, Shape

WARM_UP_SECONDS = 1.0
_PREPARE_TIMEOUT_S = 120.0
_OPEN_TIMEOUT_S = 120.0
"""For the connections, before and beside the seconds that are asked for."""

Command = Sequence[str | os.PathLike[str]]


class LoadLine(msgspec.Struct):
    """A line that a client prints: `event` alone as the window opens, the rest when it has closed."""

    event: str = ""
    seconds: float = 0.0
    operations: int = 0
    records: int = 0
    p50_ms: float = 0.0
    p99_ms: float = 0.0


def prepare(command: Command, servers: str, env: Mapping[str, str]) -> None:
    """Raises MeasuringFailed if the servers acknowledge no first record in time."""
    try:
        arguments = ["prepare", "-servers", servers, "-body-bytes", str(BODY_BYTES)]
        done = run_to_end([*command, *arguments], _PREPARE_TIMEOUT_S, env=env)
    except subprocess.TimeoutExpired:
        raise MeasuringFailed(f"not ready within {_PREPARE_TIMEOUT_S:g} s") from None
    if done.returncode != 0:
        raise MeasuringFailed(f"not ready: {last_lines(done.stderr)}")


def run_load(
    command: Command,
    servers: str,
    shape: Shape,
    seconds: float,
    cpu_seconds: Callable[[], float],
    log: Path,
    env: Mapping[str, str],
) -> Figures:
    """`cpu_seconds` is asked when the window opens and closes. Raises MeasuringFailed with what the
    client said."""
    flags: dict[str, int | float | str] = {
        "servers": servers,
        "writers": shape.writers,
        "in-flight": shape.in_flight,
        "batch": shape.batch_records,
        "body-bytes": BODY_BYTES,
        "seconds": seconds,
        "warm-up": min(WARM_UP_SECONDS, seconds),
    }
    arguments = [text for flag, value in flags.items() for text in (f"-{flag}", str(value))]
    with (
        log.open("w") as errors,
        subprocess.Popen(
            [*command, "run", *arguments],
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        assert process.stdout is not None
        # Its end closes the pipe that is read here.
        overdue = Timer(_OPEN_TIMEOUT_S + 2 * seconds, process.kill)
        overdue.start()
        cpu_before = cpu_used = math.nan
        result: LoadLine | None = None
        try:
            for text in process.stdout:
                line = msgspec.json.decode(text, type=LoadLine)
                if line.event == "began":
                    cpu_before = cpu_seconds()
                else:
                    cpu_used = cpu_seconds() - cpu_before
                    result = line
            status = process.wait()
        except msgspec.DecodeError as error:
            process.kill()
            raise MeasuringFailed(f"the load client printed {text.strip()!r}: {error}") from error
        except BaseException:
            process.kill()
            raise
        finally:
            overdue.cancel()
    if status != 0 or result is None:
        words = last_lines(log.read_text(errors="replace"))
        raise MeasuringFailed(f"the load client ended with status {status}: {words}")
    return figures_of(result, cpu_used)


def figures_of(line: LoadLine, cpu_seconds: float) -> Figures:
    if line.records == 0:
        return Figures(0.0, 0.0, math.nan, math.nan, math.nan)
    return Figures(
        records_per_second=line.records / line.seconds,
        operations_per_second=line.operations / line.seconds,
        p50_ms=line.p50_ms,
        p99_ms=line.p99_ms,
        cpu_us_per_record=cpu_seconds / line.records * 1e6,
    )
