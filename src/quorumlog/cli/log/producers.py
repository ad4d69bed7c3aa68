"""quorumlog producers: producers with sequence numbers, and their entries in the log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from quorumlog.cli.options import App, LogServers, argument
from quorumlog.cli.output import tell, tell_rows
from quorumlog.errors import ConfigError

if TYPE_CHECKING:
    from quorumlog.wire.client_messages import ProducerInfo


producers_app = App(
    "Exactly-once producers of a log: list, show, forget; resume an interrupted Spark sink.",
    "quorumlog producers list --servers 127.0.0.1:20911",
)

Producer = Annotated[str, argument("Id of the producer.", "ID")]


@producers_app.command("list")
def list_producers(at: LogServers) -> None:
    """List all, by id: sequence number and index of the last entry of each. An id with ~ belongs to an
    anonymous client, and may be forgotten in favour of another. With --json one object per line.

    Example: quorumlog producers list --servers 127.0.0.1:20911
    """
    with at.connected() as log:
        found = log.producers()
    tell_rows(
        map(_row, found),
        "producer, last sequence #, last index #",
        [(_printable(each.producer), *_known(each.last_sequence, each.last_index)) for each in found],
        if_none="no producers",
    )


@producers_app.command("show")
def show_producer(at: LogServers, producer: Producer) -> None:
    """Show one: where it continues after a restart.

    Example: quorumlog producers show --servers 127.0.0.1:20911 orders
    """
    with at.connected() as log:
        known = log.producer(producer)
    tell(_row(known), _line(known))


@producers_app.command("forget")
def forget_producer(at: LogServers, producer: Producer) -> None:
    """End one for good. Clients connected as this producer are fenced; the next one begins with
    sequence 0, and repeated entries are appended again.

    Example: quorumlog producers forget --servers 127.0.0.1:20911 orders
    """
    with at.connected() as log:
        known = log.forget_producer(producer)
    tell(_row(known), f"forgotten: {_line(known)}")


@producers_app.command("resume", timeout_s=30.0)
def resume_producer(at: LogServers, producer: Producer) -> None:
    """Append the remaining rows of a committed batch of a Spark sink with this producerId. May be
    repeated, also while the query runs.

    Example: quorumlog producers resume --servers 127.0.0.1:20911 copy
    """
    from quorumlog.config import staging_name
    from quorumlog.staging import SinkCommits, open_sink_logs

    with at.connected(), open_sink_logs(at.servers, at.group, at.timeout_ms) as logs:
        resumed = SinkCommits(logs, producer).resume()
    if resumed is None:
        raise ConfigError(
            f"no sink has committed a batch as {producer} to group {at.group}; quorumlog producers"
            f" list --group {staging_name(at.group)} lists the producers"
        )
    batch, was_finished = resumed.newest_manifest.batch, resumed.was_finished
    row = {"producer": producer, "query": batch.query_id, "batch": batch.batch_id}
    did = "was in the log already" if was_finished else "is in the log now"
    tell(
        {**row, "rows": batch.rows, "resumed": not was_finished},
        f"{producer}: {batch.described}, {batch.rows} rows, {did}",
    )


def _row(known: ProducerInfo) -> dict[str, object]:
    return {
        "producer": known.producer,
        "last_sequence": known.last_sequence,
        "last_index": known.last_index,
        "epoch": {"index": known.epoch.index, "term": known.epoch.term},
    }


def _printable(name: str) -> str:
    """Any text is an id: one with a line break would look like two producers."""
    return name if name.isprintable() else ascii(name)


def _known(*numbers: int) -> list[int | None]:
    return [number if number >= 0 else None for number in numbers]


def _line(known: ProducerInfo) -> str:
    name = _printable(known.producer)
    if known.last_sequence < 0:
        return f"{name}: nothing is in the log"
    where = f", at index {known.last_index}" if known.last_index >= 0 else ""
    return f"{name}: last sequence {known.last_sequence}{where}"
