"""Whatever is wrong with a command line of the broker is said in one line, as with that of the log."""

from __future__ import annotations

import shlex
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from quorumlog.broker import Consumer, Message
from quorumlog.broker.config import ASYNC_FLUSH
from quorumlog.broker.dledger.dledger_broker import LocalBrokers
from quorumlog.broker.groups.group_service import GroupOptions, GroupService
from quorumlog.broker.message import PutMessageResult, encode_records
from quorumlog.broker.record_batch import RecordBatch
from quorumlog.broker.store.index import index_file_name
from quorumlog.broker.store.message_store import MessageStore
from quorumlog.errors import BadRequest
from quorumlog.store.directory_kind import DirectoryKind
from quorumlog.store.disk import OsDisk
from quorumlog.store.member_directory import open_member_directory
from tests.broker.store import test_golden
from tests.broker.store.store_making import put_and_wait
from tests.cli.conftest import Cli
from tests.cli.test_slips import FOR_PROGRAMMERS
from tests.store.made_logs import SMALL
from tests.waiting import eventually

CONFIG = replace(test_golden.CONFIG, flush_disk_type=ASYNC_FLUSH)


@pytest.fixture(scope="module")
def brokers() -> Iterator[LocalBrokers]:
    options = GroupOptions(first_topics={"orders": 2})
    with LocalBrokers(1, groups=lambda _: GroupService(options)) as running:
        eventually(lambda: "orders" in running.brokers["n0"].shown_topics)
        yield running


@pytest.mark.parametrize(
    ("line", "status", "says"),
    [
        ("send --topic '' x", 2, "a topic has 1 to 255 bytes, not 0"),
        ("send --topic nosuch x", 1, "the broker has no topic nosuch"),
        ("send --topic 'a b' x", 2, "characters other than"),
        ("send --topic a\udcff x", 2, "is not UTF-8 text"),
        ("send --topic orders --key 'a b' x", 2, "keys are words without spaces"),
        ("send --topic orders --key '' x", 2, "keys are words without spaces"),
        ("send --topic orders --key a\udcff x", 2, "is not UTF-8 text"),
        ("send --topic orders --tags a\udcff x", 2, "is not UTF-8 text"),
        ("send --topic orders --queue 99999999999999999999 x", 2, "--queue 99999999999999999999"),
        ("send --topic orders --queue 2147483648 x", 2, "--queue 2147483648: "),
        ("send --topic orders --queue 9 x", 1, "there is no topic orders with a queue 9"),
        ("send --topic orders --timeout nan x", 2, "--timeout nan: must be a number"),
        ("pull --topic ''", 2, "a topic has 1 to 255 bytes, not 0"),
        ("pull --topic nosuch", 1, "no topic nosuch"),
        ("pull --topic orders --queue 2147483648", 2, "--queue 2147483648: "),
        ("pull --topic orders --offset 7", 1, "has messages"),
        ("pull --topic orders --since 2026-13-01", 2, "--since '2026-13-01'"),
        ("pull --topic orders --since 2h --offset 1", 2, "--since and --offset exclude each other"),
        ("query --topic orders", 2, "give --key or --id"),
        ("query --topic nosuch --key k", 1, "no topic nosuch"),
        ("query --topic orders --id ff", 2, "'ff' is not a message id"),
        ("consume --topic nosuch --group g", 1, "there is no topic nosuch"),
        ("consume --topic orders --group ''", 2, "a consumer group has 1 to"),
        ("consume --topic orders --group 'a b'", 2, "a consumer group has 1 to"),
        ("consume --topic orders --group g --tags '||'", 2, "'||' names no tag"),
        ("consume --topic orders --group g --from soon", 2, "--from 'soon'"),
        ("topic create ''", 2, "a topic has 1 to 255 bytes, not 0"),
        ("topic create 'a%b'", 2, "reserved for the broker"),
        (f"topic create {'t' * 128}", 2, "up to 127 bytes, not 128"),
        ("topic create a --queues 0", 2, "--queues 0"),
        ("topic create a --perm x", 2, "--perm is one of"),
        ("topic create a --retention 7", 2, "--retention '7' is not a duration"),
        ("topic update orders", 2, "nothing to change"),
        ("topic update nosuch --queues 3", 1, "there is no topic nosuch"),
        ("topic show ''", 2, "a topic has 1 to 255 bytes, not 0"),
        ("topic show nosuch", 1, "there is no topic nosuch"),
        ("topic delete nosuch", 1, "there is no topic nosuch"),
        ("topic delete ''", 2, "a topic has 1 to 255 bytes, not 0"),
        ("topic delete SCHEDULE_TOPIC_XXXX", 2, "are reserved for the broker"),
        ("group show ''", 2, "a consumer group has 1 to"),
        ("group show nobody", 1, "there is no consumer group nobody"),
        ("group reset '' --to latest", 2, "a consumer group has 1 to"),
        ("group reset nobody --to latest", 1, "there is no consumer group nobody"),
        ("group reset nobody --to soon", 2, "--to 'soon'"),
        ("group delete nobody", 1, "there is no consumer group nobody"),
        ("topic list --servers orders:8", 1, "tried: orders:8 ("),
        ("topic list --servers nowhere", 2, "'nowhere' is not an address"),
        ("status --servers 127.0.0.1:1", 1, "127.0.0.1:1: Connection refused"),
        ("topic show 'a\nb'", 2, r"'a\nb' has characters other than"),
        ("pull --topic orders --offset 'a\nb'", 2, r"--offset a\nb: must be a whole number"),
    ],
)
def test_a_slip_is_one_line_that_names_it(
    cli: Cli, brokers: LocalBrokers, line: str, status: int, says: str
) -> None:
    words = shlex.split(line)
    server = () if "--servers" in words else ("--servers", brokers.servers)
    at = 2 if words[0] in ("topic", "group") else 1
    result = cli("broker", *words[:at], *server, "--timeout", 5, *words[at:])
    assert (result.exit_code, result.stdout) == (status, ""), result.output
    (said,) = result.stderr.splitlines()
    assert says in said
    assert not any(word in said for word in FOR_PROGRAMMERS), said


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("serve --dir DIR/new", "--topics is missing, and the store is new"),
        ("serve --dir DIR/new --topics ,", "--topics names none"),
        ("serve --dir DIR/new --topics orders:0", "'orders:0' must be like orders:8"),
        (f"serve --dir DIR/new --topics {'t' * 128}", "--topics: the name of a new topic has up to 127"),
        ("serve --dir DIR/new --topics a --option x", "--option 'x': write NAME=VALUE"),
        ("serve --dir DIR/new --topics a --role slave", "--role slave needs --master"),
        ("serve --dir DIR/new --topics a --master h:1", "need a --role"),
        ("serve --dir '' --topics a", "a path is missing"),
        ("serve --dir DIR/new --topics a --bind nowhere", "'nowhere' is not an address"),
        ("inspect DIR/none", "holds no store"),
        ("verify DIR/none", "holds no store"),
        ("dump DIR/none", "holds no store"),
        ("recover DIR/none --cut 0", "holds no store"),
        ("recover DIR/store --cut 1", "--cut 1: the first damaged record"),
        ("convert DIR/none DIR/new", "holds no replicated log"),
        ("convert DIR/log DIR/new", "holds no messages: none of its 0 committed entries is one"),
        ("convert DIR/log DIR/new --file-bytes 1", "--file-bytes 1"),
        ("takeover DIR/store --data-dir DIR/new --id n0", "give STORE and --members, or --from"),
        ("takeover DIR/store --data-dir DIR/new --id n1 --members n0=127.0.0.1:1", "--id n1 is not in"),
    ],
)
def test_a_slip_about_a_directory_makes_none(cli: Cli, tmp_path: Path, line: str, says: str) -> None:
    made_store(tmp_path / "store")
    open_member_directory(
        OsDisk(),
        str(tmp_path / "log"),
        group="default",
        member_id="n0",
        config=SMALL,
        group_size=1,
        kind=DirectoryKind.LOG_BROKER,
    ).close(clean=True)
    before = sorted(tmp_path.rglob("*"))
    result = cli("broker", *(word.replace("DIR", str(tmp_path)) for word in shlex.split(line)))
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    (said,) = result.stderr.splitlines()
    assert says in said
    assert not any(word in said for word in FOR_PROGRAMMERS), said
    assert sorted(tmp_path.rglob("*")) == before


def made_store(root: Path, time_ms: float = 1_700_000_000_000) -> None:
    store = MessageStore(str(root), CONFIG, wall_clock=lambda: time_ms)
    records = RecordBatch.contiguous(*encode_records([Message("held", b"x", keys=("k",))], 0, 0))
    assert isinstance(put_and_wait(store, records), PutMessageResult)
    store.close()


def test_a_dump_of_a_topic_that_holds_nothing_says_so(cli: Cli, tmp_path: Path) -> None:
    made_store(tmp_path / "store")
    assert cli("broker", "dump", tmp_path / "store", "--topic", "held").exit_code == 0
    refused = cli("broker", "dump", tmp_path / "store", "--topic", "nosuch")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "has no message of topic nosuch" in refused.stderr


def test_a_message_whose_time_is_no_date_is_shown(cli: Cli, tmp_path: Path) -> None:
    root = tmp_path / "store"
    made_store(root)
    path = root / "commitlog" / f"{0:020d}"
    data = path.read_bytes()
    stored = struct.pack(">q", 1_700_000_000_000)
    assert data.count(stored) == 1
    for time_ms in (-(1 << 60), (1 << 62)):
        path.write_bytes(data.replace(stored, struct.pack(">q", time_ms)))
        shown = cli("broker", "dump", root)
        assert (shown.exit_code, f"{time_ms}ms" in shown.stdout) == (0, True), shown.output
        assert len(index_file_name(time_ms)) == 17


def test_keys_and_tags_that_are_meant_otherwise_are_refused() -> None:
    for keys in ("abc", ["a b"], ["a\tb"], [""]):
        with pytest.raises(BadRequest, match="keys are"):
            encode_records([Message("orders", b"x", keys=keys)], 0, 0)
    for tags in ("||", " || ", "||||"):
        with pytest.raises(BadRequest, match="names no tag"):
            Consumer("127.0.0.1:1", "g", {"orders": tags})
