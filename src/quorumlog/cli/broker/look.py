"""quorumlog broker inspect, verify, dump, recover, convert, takeover: a stopped store, ours or a Java
broker's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from quorumlog.cli.broker.messages import StoreDirectory, message_line, message_row, print_queues
from quorumlog.cli.options import DEFAULT_GROUP, TlsOfClients, argument, option
from quorumlog.cli.output import EXIT_REFUSED, say, spoken_size, tell
from quorumlog.errors import ConfigError, Refused

if TYPE_CHECKING:
    from quorumlog.broker.offline.takeover import OldReport


def inspect(directory: StoreDirectory) -> None:
    """Show the log, queues, index and checkpoint of a store. Nothing is changed.

    Example: quorumlog broker inspect /var/lib/store
    """
    from quorumlog.broker.offline.offline_ledger import holds_ledger
    from quorumlog.broker.offline.offline_store import OfflineStore

    if holds_ledger(str(directory)):
        _inspect_ledger(directory)
        return
    with OfflineStore(str(directory)) as store:
        found = store.summary()
    tell(found, lambda: _show(directory, found))


def _show(directory: Path, found: dict[str, Any]) -> None:
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


def _inspect_ledger(directory: Path) -> None:
    from quorumlog.broker.offline.offline_ledger import OfflineLedger

    with OfflineLedger(str(directory)) as ledger:
        found = ledger.summary()

    def show() -> None:
        say(
            f"{found['directory']}: a replicated log written by {found['written_by']},"
            f" entries {found['first_index']} to {found['end_index']},"
            f" committed up to {found['committed_index']}:"
            f" {found['messages']} messages in {spoken_size(found['bytes'])}"
        )
        _print_queues(found)

    tell(found, show)


def convert(
    source: StoreDirectory,
    target: Annotated[Path, argument("Directory of the new classic store; empty or missing.", "TARGET")],
    file_bytes: Annotated[int, option("Size of the commit log's files.", min=4096)] = 1 << 30,
) -> None:
    """Make a classic store from a stopped member's messages, ours or a Java broker's in DLedger mode.

    Order, queue offsets, times and keys stay; positions and message ids change. Messages not known to
    be committed are left out.

    Example: quorumlog broker convert /var/lib/member /var/lib/store
    """
    from quorumlog.broker.config import MessageStoreConfig
    from quorumlog.broker.offline.offline_ledger import convert_to_classic

    made = convert_to_classic(
        str(source), str(target), MessageStoreConfig(mapped_file_size_commit_log=file_bytes)
    )
    spoken = f"{target}: {made.messages} messages in {spoken_size(made.size_bytes)}"
    if made.left_out:
        spoken += f"\n{made.left_out} entries at the end are not known to be committed: left out"
    tell(made._asdict(), spoken)


def verify(directory: StoreDirectory) -> None:
    """Check every record, its CRC, and its entry in its queue. Status 1 if anything is wrong.

    For a replicated log, ours or a Java broker's in DLedger mode, it runs as `quorumlog verify`.

    Example: quorumlog broker verify /var/lib/store
    """
    from quorumlog.broker.offline.offline_ledger import OfflineLedger, holds_ledger
    from quorumlog.broker.offline.offline_store import OfflineStore

    if holds_ledger(str(directory)):
        from quorumlog.cli.look import verify as verify_log

        with OfflineLedger(str(directory)) as ledger:  # refuses the directory of another product
            folder = Path(ledger.folder)
        verify_log([folder])
        return
    with OfflineStore(str(directory)) as store:
        report = store.verify()

    def show() -> None:
        for problem in report["problems"]:
            say(problem, "red")
        verdict = "damaged" if report["problems"] else "all good"
        say(
            f"{report['messages']} messages in {spoken_size(report['bytes'])},"
            f" {report['queue_units']} queue units, {report['keys']} keys: {verdict}"
        )

    tell(report, show)
    if report["problems"]:
        raise typer.Exit(EXIT_REFUSED)


def dump(
    directory: StoreDirectory,
    position: Annotated[int | None, option("Start at this position of the commit log.", min=0)] = None,
    topic: Annotated[str, option("This topic only.", "NAME")] = "",
    most: Annotated[int, option("Maximum number of messages.", min=1)] = 1_000_000_000,
) -> None:
    """Print the messages of a store in the order of its commit log.

    Example: quorumlog broker dump /var/lib/store --topic orders --most 10 --json
    """
    from quorumlog.broker.offline.offline_ledger import holds_ledger
    from quorumlog.broker.offline.offline_store import OfflineStore

    if holds_ledger(str(directory)):
        raise ConfigError(
            f"{directory} holds a replicated log: make a store of it with `quorumlog broker convert`"
        )
    found = False
    with OfflineStore(str(directory)) as store:
        for records in store.batches(position):
            for message in records.messages():
                if topic not in ("", message.topic):
                    continue
                found = True
                tell(message_row(message), message_line(message))
                most -= 1
                if not most:
                    return
    if topic and not found:
        raise Refused(f"{directory} holds no message of topic {topic}; inspect lists its topics")


def recover(
    directory: StoreDirectory,
    cut: Annotated[
        int | None, option("Position of the damaged record, which `verify` names.", min=0)
    ] = None,
    given_again: Annotated[
        bool, option("If offsets of a queue were assigned twice, show the later messages.")
    ] = False,
) -> None:
    """Cut the log at a damaged record so that the store can start. The rest is kept in set-aside/.

    Example: quorumlog broker recover /var/lib/store --cut 73400320
    """
    from quorumlog.broker.offline.offline_store import allow_cut, hide_given_again

    if given_again is (cut is not None):
        raise typer.BadParameter("give --cut, or --given-again")
    if cut is None:
        found = sorted(hide_given_again(str(directory)).items())
        for key, position in found:
            tell(
                {"topic": key.topic, "queue_id": key.queue_id, "from": position},
                f"{key.topic} queue {key.queue_id} begins at {position} of the log with 0 again",
            )
        if not found:
            raise Refused("no queue has offsets that were assigned twice")
        return
    lost_bytes = allow_cut(str(directory), cut)
    given_up = f"{spoken_size(lost_bytes)} known to be on disk are given up"
    tell({"cut": cut, "given_up_bytes": lost_bytes}, f"the next start ends the log at {cut}; {given_up}")


TIMEOUT_MS = 30_000


def takeover(
    data_dir: Annotated[Path, option("Directory of the new member; empty or missing.", "DIR")],
    member_id: Annotated[str, option("Id of this member.", "ID", name="--id")],
    store: Annotated[
        Path | None,
        argument("Directory of a stopped store, ours or a Java broker's (storePathRootDir).", "[STORE]"),
    ] = None,
    members: Annotated[
        str,
        option(
            "Every member and the address of its log: ID=HOST:PORT,... The same on all members.", "LIST"
        ),
    ] = "",
    from_broker: Annotated[
        str,
        option(
            "For a later member, instead of STORE and --members: the broker of a running member.",
            "HOST:PORT",
            name="--from",
        ),
    ] = "",
    group: Annotated[str, option("Name of the replicated log.", "NAME")] = DEFAULT_GROUP,
    compare: Annotated[
        Path | None,
        option("File `taken-over` of another member: check that its old log is identical.", "FILE"),
    ] = None,
    without_config: Annotated[
        bool,
        option(
            "Continue although the folder config of a Java broker is lost: groups begin anew, and"
            " each delayed message and retry is delivered again."
        ),
    ] = False,
    *,
    tls: TlsOfClients,
) -> None:
    """Make a member of a replicated log from a stopped classic store; run it on each machine.

    The store is not changed. All copies of the commit log, and of the folder config of a Java broker,
    must be identical: topics, groups, their offsets and delays are taken over from it. If the store has
    users, the log begins with none and refuses every request: give one member an administrator with
    init-admin before its first start. A member that is added later gets the old commit log --from
    another one; start it then, and add it.

    \b
    Examples:
        quorumlog broker takeover /var/lib/store --data-dir /var/lib/member --id n0 \\
          --members n0=10.0.0.1:20911,n1=10.0.0.2:20911,n2=10.0.0.3:20911
        quorumlog broker takeover --from 10.0.0.1:10911 --data-dir /var/lib/member --id n3
    """
    import msgspec

    from quorumlog.broker import connect
    from quorumlog.broker.offline.old_log import decode_record, first_difference
    from quorumlog.broker.offline.takeover import make_later_member, take_over
    from quorumlog.config import parse_members

    if bool(from_broker) == (store is not None) or bool(from_broker) == bool(members):
        raise ConfigError("give STORE and --members, or --from HOST:PORT of a running member")
    report: OldReport | None = None
    if from_broker:
        with tls.speaking(), connect(from_broker, timeout_ms=TIMEOUT_MS) as broker:
            made = make_later_member(broker, str(data_dir), member_id, group=group)
    else:
        made, report = take_over(
            str(store),
            str(data_dir),
            member_id,
            parse_members(members),
            group=group,
            without_config=without_config,
        )
    difference = ""
    if compare is not None:
        try:
            other = decode_record(compare.read_bytes())
        except (OSError, msgspec.MsgspecError) as error:
            raise ConfigError(f"--compare {compare}: {error}") from None
        difference = first_difference(made, other)
    row = {
        "begins_at": made.end_position,
        "file_bytes": made.file_bytes,
        "digest": made.digest,
        "difference": difference,
        **({} if report is None else report._asdict()),
    }

    def show() -> None:
        sizes = f"begins at {made.end_position}, files of {made.file_bytes} bytes"
        say(f"{data_dir}: the log {sizes}, digest {made.digest}")
        if report is not None:
            _say_what_was_taken(report)
        say(
            'to start it, quorumlog broker serve --role dledger needs in its --config: retention = "off"'
            f" and segment_bytes = {made.file_bytes}"
        )

    tell(row, show)
    if difference:
        raise Refused(f"the old logs differ: {difference}")


def _say_what_was_taken(report: OldReport) -> None:
    say(
        f"taken over: {report.topics} topics, {report.groups} consumer groups with {report.offsets}"
        f" offsets; {report.delayed_messages} delayed messages are to be delivered,"
        f" {report.delivered_messages} were"
    )
    left = [
        *([f"{report.half_messages} half messages of transactions"] if report.half_messages else []),
        *([f"{report.timers} timers that are not due yet"] if report.timers else []),
        *([f"the topics {', '.join(report.left_topics)}"] if report.left_topics else []),
        *([f"the groups {', '.join(report.left_groups)}"] if report.left_groups else []),
    ]
    if left:
        say(f"not taken over: {'; '.join(left)}", "yellow")
    for note in report.notes:
        say(note, "yellow")
