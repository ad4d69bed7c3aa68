"""quorumlog broker serve --role dledger: one member of a replicated log with its broker."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from quorumlog.cli.run.choices import LogLevel
from quorumlog.errors import ConfigError

if TYPE_CHECKING:
    from quorumlog.broker.config import MessageStoreConfig

MESSAGES_FOLDER = "messages"
"""Of a member's directory: queues and index."""


def serve_dledger(
    directory: Path,
    topics: Mapping[str, int],
    config: MessageStoreConfig,
    flush: str,
    member_id: str | None,
    members: str | None,
    brokers: str | None,
    path: str | None,
    log_level: LogLevel,
) -> None:
    """Until SIGTERM, which hands leadership over first. Raises ConfigError."""
    from quorumlog.broker.dledger.dledger_broker import DLedgerBroker
    from quorumlog.broker.dledger.dledger_door import DLedgerDoor
    from quorumlog.broker.groups.group_service import GroupOptions, GroupService
    from quorumlog.broker.offline.old_log import OldLog, taken_over
    from quorumlog.cli.run.serve import log_to_stderr, refuse_optimised_python, run_member
    from quorumlog.cli.run.serving_member import ServingMember
    from quorumlog.cli.run.toml_config import load_server_config
    from quorumlog.store.disk import OsDisk

    refuse_optimised_python()
    given = {
        "member_id": member_id,
        "members": members,
        "data_dir": str(directory),
        "flush": flush if path is None else None,
        "log_level": log_level.value,
    }
    server_config = load_server_config(path, given)
    if len(server_config.groups) > 1:
        raise ConfigError("--config: a broker has one group; serve the others with `quorumlog serve`")
    group = server_config.groups[0]
    if brokers is None:
        raise ConfigError("--brokers is missing; write --brokers n0=HOST:PORT,n1=HOST:PORT,...")
    addresses = _addresses(brokers)
    lacking = [m.member_id for m in group.members if m.member_id not in addresses]
    if lacking or group.member_id not in addresses:
        names = ", ".join(lacking or [group.member_id])
        raise ConfigError(f"--brokers names no address for {names}: every member has a broker")
    log_to_stderr(log_level)
    old = taken_over(OsDisk(), str(directory))
    if old is not None and group.storage.segment_bytes != old.file_bytes:
        raise ConfigError(
            f"segment_bytes is {group.storage.segment_bytes}, and the old commit log in {directory} has"
            f" files of {old.file_bytes} bytes: set segment_bytes = {old.file_bytes} in --config"
        )
    if old is not None and group.storage.retention != "off":
        raise ConfigError(
            "retention must be off while there is an old commit log, or messages between the two would"
            ' be missing: set retention = "off" in --config'
        )
    groups = GroupService(GroupOptions(first_topics=topics), None if old is None else old.state)
    broker = DLedgerBroker(
        OsDisk(),
        str(directory / MESSAGES_FOLDER),
        config,
        member_id=group.member_id,
        brokers=addresses,
        topics=groups.topics,
        groups=groups,
        old_log=None if old is None else OldLog(OsDisk(), str(directory), old),
    )
    door = DLedgerDoor(broker, addresses[group.member_id])
    run_member(ServingMember(server_config, path, given, doors=[door]))


def _addresses(text: str) -> dict[str, str]:
    """Raises ConfigError."""
    from quorumlog.config import parse_members

    try:
        return {each.member_id: f"{each.host}:{each.port}" for each in parse_members(text)}
    except ConfigError as error:
        raise ConfigError(f"--brokers: {error}") from None
