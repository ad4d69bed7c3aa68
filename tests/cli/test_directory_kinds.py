"""A directory of one product is refused by all others, in a sentence that says whose it is."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from quorumlog.broker.config import MessageStoreConfig
from quorumlog.broker.store.dispatch import MESSAGES as BROKER_MACHINE
from quorumlog.broker.store.message_store import MessageStore
from quorumlog.cli.output import EXIT_CONFIG
from quorumlog.errors import ConfigError
from quorumlog.kv.store.machine import MACHINE_NAME as STORE_MACHINE
from quorumlog.store.directory_kind import DirectoryKind, kind_of, kind_of_machines
from quorumlog.store.disk import OsDisk
from quorumlog.store.made_directories import BackupDirectory
from quorumlog.store.member_directory import open_member_directory
from quorumlog.store.state_files import load_member, save_member
from tests.cli.conftest import Cli
from tests.store.made_logs import SMALL

disk = OsDisk()
COMMANDS: dict[DirectoryKind, Callable[[Path, str], tuple[object, ...]]] = {
    DirectoryKind.LOG: lambda path, at: (
        "serve", "--id", "n0", "--data-dir", path, "--members", f"n0={at}",
    ),
    DirectoryKind.STORE: lambda path, at: (
        "kv", "serve", "--id", "n0", "--data-dir", path, "--members", f"n0={at}", "--listen",
        "127.0.0.1:1",
    ),
    DirectoryKind.LOG_BROKER: lambda path, at: (
        "broker", "serve", "--dir", path, "--role", "dledger", "--id", "n0", "--members", f"n0={at}",
        "--brokers", "n0=127.0.0.1:1", "--topics", "orders:1",
    ),
    DirectoryKind.BROKER: lambda path, at: (
        "broker", "serve", "--dir", path, "--bind", at, "--topics", "orders:1",
    ),
}  # fmt: skip
ROLES = {
    "sync-master": ("--role", "sync-master"),
    "async-master": ("--role", "async-master"),
    "slave": ("--role", "slave", "--master", "127.0.0.1:1"),
}
MADE = [kind for kind in DirectoryKind if kind.command and kind is not DirectoryKind.MEMBER]
FOR_NOBODY = [kind for kind in DirectoryKind if not kind.command]


def open_as(kind: DirectoryKind, path: Path) -> None:
    """What the product of this kind does first, and then it stops."""
    if kind is DirectoryKind.BROKER:
        MessageStore(str(path), MessageStoreConfig(), topics={}).close()
    elif kind is DirectoryKind.BACKUP:
        with BackupDirectory(disk, str(path)) as backup:
            if backup.log is None:
                backup.begin("g", "c", 1024, 320, None)
    else:
        open_member_directory(
            disk, str(path), group="default", member_id="n0", config=SMALL, group_size=1, kind=kind
        ).close(clean=True)


@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("own", MADE)
def test_a_directory_is_taken_by_its_own_product_and_refused_by_each_other(
    cli: Cli, free_address: str, tmp_path: Path, made: DirectoryKind, own: DirectoryKind
) -> None:
    path = tmp_path / "there"
    open_as(made, path)
    assert kind_of(disk, str(path)) is made
    if made is own:
        open_as(own, path)
        return
    before = sorted(path.rglob("*"))
    says = f"{path} is {made.title}, not {own.title}: name another directory, or use {made.command}"
    with pytest.raises(ConfigError, match=re.escape(says)):
        open_as(own, path)
    if own in COMMANDS:
        refused = cli(*COMMANDS[own](path, free_address))
        assert refused.exit_code == EXIT_CONFIG, refused.output
        assert says in " ".join(refused.stderr.split())
    assert sorted(path.rglob("*")) == before


def make_for_nobody(kind: DirectoryKind, parent: Path) -> Path:
    path = parent / "there"
    if kind is DirectoryKind.DERIVED:
        open_as(DirectoryKind.LOG_BROKER, parent / "n0")
        path = parent / "n0" / "messages"
    names = {
        DirectoryKind.JAVA_BROKER: (
            "dledger-n0/data/0",
            "dledger-n0/index/0",
            "commitlog/0",
            "checkpoint",
        ),
        DirectoryKind.JAVA_LOG: ("data/0", "index/0", "checkpoint"),
        DirectoryKind.DERIVED: ("consumequeue/orders/0/0", "index/0"),
        DirectoryKind.RESTORE: ("restoring", "data/0", "commitlog/0"),
        DirectoryKind.CONVERSION: ("converting/0",),
    }[kind]
    for name in names:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(b"here before")
    return path


def commands_on(path: Path, at: str) -> list[tuple[object, ...]]:
    """All that make or open a directory to write there."""
    store = ("broker", "serve", "--dir", path, "--bind", at, "--topics", "orders:1")
    return [
        *(command(path, at) for command in COMMANDS.values()),
        *((*store, *role) for role in ROLES.values()),
    ]


def content_of(path: Path) -> dict[Path, bytes]:
    return {each: each.read_bytes() if each.is_file() else b"" for each in sorted(path.rglob("*"))}


@pytest.mark.parametrize("kind", FOR_NOBODY)
def test_a_directory_that_no_command_goes_on_with_is_refused_by_name_and_left_as_it_is(
    cli: Cli, free_address: str, tmp_path: Path, kind: DirectoryKind
) -> None:
    path = make_for_nobody(kind, tmp_path)
    assert kind_of(disk, str(path)) is kind
    before = content_of(tmp_path)
    for command in commands_on(path, free_address):
        refused = cli(*command)
        assert refused.exit_code == EXIT_CONFIG, (command, refused.output)
        assert f"{path} is {kind.title}, not " in " ".join(refused.stderr.split())
    made = [("broker", "convert", tmp_path / "no", path)]
    made += [("broker", "takeover", path, "--data-dir", tmp_path / "made", "--id", "n0",
              "--members", f"n0={free_address}")]  # fmt: skip
    for command in made:
        assert cli(*command).exit_code == EXIT_CONFIG, command
    assert content_of(tmp_path) == before


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("consumequeue/orders/0/0", "consumequeue of a message store, and no folder commitlog"),
        ("flushed", "flushed of a message store, and no folder commitlog"),
        ("letters/home", "files of other software (letters)"),
        ("n0/member", "the directories of members (n0)"),
    ],
)
def test_a_store_begins_in_an_empty_directory_only(
    cli: Cli, free_address: str, tmp_path: Path, name: str, says: str
) -> None:
    path = tmp_path / "there"
    (path / name).parent.mkdir(parents=True)
    (path / name).write_bytes(b"here before")
    for command in commands_on(path, free_address):
        refused = cli(*command)
        assert refused.exit_code == EXIT_CONFIG, (command, refused.output)
        if command[:2] == ("broker", "serve") and "dledger" not in command:
            assert says in " ".join(refused.stderr.split())
    assert content_of(tmp_path) == {
        each: b"here before" if each == path / name else b"" for each in [path, *path.rglob("*")]
    }
    (tmp_path / "empty").mkdir()
    for name in ("lost+found", ".snapshot"):
        (tmp_path / "empty" / name).mkdir()
    open_as(DirectoryKind.BROKER, tmp_path / "empty")


def test_whose_a_directory_of_an_earlier_release_is_shows_what_lies_in_it(tmp_path: Path) -> None:
    for name, kind in (
        ("kv-rocksdb", DirectoryKind.STORE),
        ("messages", DirectoryKind.LOG_BROKER),
        ("taken-over", DirectoryKind.LOG_BROKER),
    ):
        path = tmp_path / name
        open_as(DirectoryKind.MEMBER, path)
        assert kind_of(disk, str(path)) is DirectoryKind.MEMBER
        (path / name).mkdir()
        assert kind_of(disk, str(path)) is kind
        with pytest.raises(ConfigError, match="not the directory of a member of a log"):
            open_as(DirectoryKind.LOG, path)
        open_as(kind, path)


def test_a_directory_that_does_not_say_whose_it_is_is_that_of_the_first_store(
    tmp_path: Path,
) -> None:
    path = tmp_path / "n0"
    open_as(DirectoryKind.MEMBER, path)
    open_as(DirectoryKind.LOG, path)
    assert kind_of(disk, str(path)) is DirectoryKind.MEMBER
    open_as(DirectoryKind.STORE, path)
    record = load_member(disk, str(path))
    assert record is not None and record.kind == "kv"
    with pytest.raises(ConfigError, match="member of a key-value store, not"):
        open_as(DirectoryKind.LOG, path)


def test_a_directory_of_a_product_of_a_later_release_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "n0"
    open_as(DirectoryKind.LOG, path)
    record = load_member(disk, str(path))
    assert record is not None
    save_member(disk, str(path), msgspec.structs.replace(record, kind="stream"))
    for kind in DirectoryKind:
        with pytest.raises(ConfigError, match="of a kind that this release does not know"):
            open_as(kind, path)


def test_the_machines_of_a_member_say_whose_its_directory_is() -> None:
    assert kind_of_machines(["counter", STORE_MACHINE]) is DirectoryKind.STORE
    assert kind_of_machines([BROKER_MACHINE, "broker-groups"]) is DirectoryKind.LOG_BROKER
    assert kind_of_machines(["counter"]) is DirectoryKind.LOG


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_tools_of_the_one_say_so_of_a_directory_of_the_other(
    cli: Cli, tmp_path: Path, command: str
) -> None:
    for kind in (DirectoryKind.STORE, DirectoryKind.BROKER):
        open_as(kind, tmp_path / kind.name)
    refused = cli(command, tmp_path / "BROKER")
    assert refused.exit_code == EXIT_CONFIG
    assert "is the message store of a broker, not" in " ".join(refused.stderr.split())
    refused = cli("broker", "verify", tmp_path / "STORE")
    assert refused.exit_code == EXIT_CONFIG
    assert "is the directory of a member of a key-value store" in " ".join(refused.stderr.split())
