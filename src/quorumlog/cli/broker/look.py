"""quorumlog broker inspect, verify, dump, recover: a stopped store, ours or a Java broker's."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from quorumlog.cli.broker.broker_options import StoreDirectory
from quorumlog.cli.broker.message_rows import message_line, message_row, print_queues
from quorumlog.cli.options import Json, named_path
from quorumlog.cli.output import EXIT_REFUSED, print_json, say, spoken_size
from quorumlog.errors import ConfigError, Refused


def inspect(directory: StoreDirectory, json: Json = False) -> None:
    """Show what a store holds: its log, queues, index and checkpoint. Nothing is changed.

    Example: quorumlog broker inspect /var/lib/store
    """
    from quorumlog.broker.offline.offline_ledger import holds_ledger
    from quorumlog.broker.offline.offline_store import OfflineStore

    if holds_ledger(str(directory)):
        _inspect_ledger(directory, json=json)
        return
    with OfflineStore(str(directory)) as store:
        found = store.summary()
    if json:
        print_json(found)
        return
    stopped = "stopped cleanly" if found["clean"] else "not stopped cleanly"
    say(
        f"{directory}: commit log {found['min_offset']} to {found['max_offset']}"
        f" ({spoken_size(found['max_offset'] - found['min_offset'])} in {found['files']} files of"
        f" {spoken_size(found['file_bytes'])}), {stopped}"
    )
    if found["problem"]:
        say(f"the record at {found['max_offset']} {found['problem']}", "red")
    if found["flushed_offset"] is not None:
        say(f"known to be on disk up to {found['flushed_offset']}")
    say("checkpoint: " + ", ".join(f"{name} {value}" for name, value in found["checkpoint"].items()))
    _print_queues(found)
    for each in found["index_files"]:
        say(f"  index {each['name']}: {each['keys']} keys")


def _print_queues(found: dict[str, Any]) -> None:
    print_queues(
        (each["topic"], each["queue_id"], each["min_offset"], each["max_offset"])
        for each in found["queues"]
    )


def _inspect_ledger(directory: Path, *, json: bool) -> None:
    from quorumlog.broker.offline.offline_ledger import OfflineLedger

    with OfflineLedger(str(directory)) as ledger:
        found = ledger.summary()
    if json:
        print_json(found)
        return
    say(
        f"{found['directory']}: a replicated log written by {found['written_by']}, entries"
        f" {found['first_index']} to {found['end_index']}, committed up to {found['committed_index']}:"
        f" {found['messages']} messages in {spoken_size(found['bytes'])}"
    )
    _print_queues(found)


def convert(
    source: StoreDirectory,
    target: Annotated[
        Path,
        typer.Argument(
            help="Directory of the classic store to be made; empty, or not there.",
            metavar="TARGET",
            show_default=False,
            parser=named_path,
        ),
    ],
    file_bytes: Annotated[
        int, typer.Option("--file-bytes", help="Size of the commit log's files.", min=4096, metavar="N")
    ] = 1 << 30,
    json: Json = False,
) -> None:
    """Make a classic store of a stopped member's messages, ours or a Java broker's in DLedger mode.

    Order, queue offsets, times and keys stay; positions and message ids change. What is not known to be
    committed is left out.

    Example: quorumlog broker convert /var/lib/member /var/lib/store
    """
    from quorumlog.broker.config import MessageStoreConfig
    from quorumlog.broker.offline.converter import convert_to_classic

    made = convert_to_classic(
        str(source), str(target), MessageStoreConfig(mapped_file_size_commit_log=file_bytes)
    )
    if json:
        print_json(made._asdict())
        return
    say(f"{target}: {made.messages} messages in {spoken_size(made.size_bytes)}")
    if made.left_out:
        say(f"{made.left_out} entries at the end are not known to be committed, and are left out")


def verify(directory: StoreDirectory, json: Json = False) -> None:
    """Check every record and its CRC, and that each queue names it. Status 1 if anything is wrong.

    Of a replicated log, ours or a Java broker's in DLedger mode, it checks what `quorumlog verify` does.

    Example: quorumlog broker verify /var/lib/store
    """
    from quorumlog.broker.offline.offline_ledger import OfflineLedger, holds_ledger
    from quorumlog.broker.offline.offline_store import OfflineStore

    if holds_ledger(str(directory)):
        from quorumlog.cli.look.verify import verify as verify_log

        with OfflineLedger(str(directory)) as ledger:  # refuses the directory of another product
            folder = Path(ledger.folder)
        verify_log([folder], json=json)
        return
    with OfflineStore(str(directory)) as store:
        report = store.verify()
    if json:
        print_json(report)
    else:
        for problem in report["problems"]:
            say(problem, "red")
        verdict = "damaged" if report["problems"] else "all good"
        say(
            f"{report['messages']} messages in {spoken_size(report['bytes'])},"
            f" {report['queue_units']} queue units, {report['keys']} keys: {verdict}"
        )
    if report["problems"]:
        raise typer.Exit(EXIT_REFUSED)


def dump(
    directory: StoreDirectory,
    position: Annotated[
        int | None,
        typer.Option("--position", help="From this record of the commit log on.", min=0, metavar="N"),
    ] = None,
    topic: Annotated[str, typer.Option("--topic", help="Of this topic only.", metavar="NAME")] = "",
    most: Annotated[
        int, typer.Option("--most", help="So many messages at most.", min=1, metavar="N")
    ] = 1_000_000_000,
    json: Json = False,
) -> None:
    """Print the messages of a store as they lie in its commit log.

    Example: quorumlog broker dump /var/lib/store --topic orders --most 10 --json
    """
    from quorumlog.broker.offline.offline_ledger import holds_ledger
    from quorumlog.broker.offline.offline_store import OfflineStore

    if holds_ledger(str(directory)):
        raise ConfigError(f"{directory} holds a replicated log: make a store of it, broker convert does")
    found = False
    with OfflineStore(str(directory)) as store:
        for records in store.batches(position):
            for message in records.messages():
                if topic not in ("", message.topic):
                    continue
                found = True
                if json:
                    print_json(message_row(message))
                else:
                    say(message_line(message))
                most -= 1
                if not most:
                    return
    if topic and not found:
        raise Refused(f"{directory} holds no message of topic {topic}; inspect lists its topics")


def recover(
    directory: StoreDirectory,
    cut: Annotated[
        int | None,
        typer.Option(
            "--cut", help="Position of the damaged record, which `verify` names.", min=0, metavar="N"
        ),
    ] = None,
    given_again: Annotated[
        bool,
        typer.Option("--given-again", help="Of queues whose numbers come twice show what came last."),
    ] = False,
    json: Json = False,
) -> None:
    """Give up the damaged record and what follows it, so that the store can start. Kept in set-aside/.

    Example: quorumlog broker recover /var/lib/store --cut 73400320
    """
    from quorumlog.broker.offline.offline_store import allow_cut, hide_given_again

    if given_again is (cut is not None):
        raise typer.BadParameter("give --cut, or --given-again")
    if cut is None:
        found = sorted(hide_given_again(str(directory)).items())
        for key, position in found:
            if json:
                print_json({"topic": key.topic, "queue_id": key.queue_id, "from": position})
            else:
                say(f"{key.topic} queue {key.queue_id} begins at {position} of the log with 0 again")
        if not found:
            raise Refused("no queue has numbers that come twice")
        return
    lost_bytes = allow_cut(str(directory), cut)
    row: dict[str, Any] = {"cut": cut, "given_up_bytes": lost_bytes}
    if json:
        print_json(row)
    else:
        given_up = f"{spoken_size(lost_bytes)} known to be on disk are given up"
        say(f"the next start ends the log at {cut}; {given_up}")
