"""Members as processes that serve Kafka's clients."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from harness.kafka.wire import KafkaWire
from harness.member_processes import MemberProcess, MemberProcesses
from quorumlog.server.free_ports import free_ports


class KafkaMembers(MemberProcesses):
    def __init__(self, folder: Path, *serve: str, count: int = 3, **options: Any) -> None:
        """`serve`: further options of `quorumlog serve`."""
        ports = {f"n{number}": port for number, port in enumerate(free_ports(count))}
        self.kafka_addresses = {member_id: f"127.0.0.1:{port}" for member_id, port in ports.items()}
        listed = ",".join(f"{member_id}={at}" for member_id, at in self.kafka_addresses.items())

        def command_of(member_id: str) -> tuple[str, ...]:
            own = self.kafka_addresses[member_id]
            return ("serve", "--kafka", own, "--kafka-servers", listed, *serve)

        super().__init__(folder, count=count, command_of=command_of, **options)

    @property
    def kafka_servers(self) -> str:
        return ",".join(self.kafka_addresses.values())

    def kafka_leader(self, *, timeout_s: float = 240.0) -> MemberProcess:
        """Who leads every partition, once it answers for them."""
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            for address in self.kafka_addresses.values():
                leader = _leader_at(address)
                for member_id, own in self.kafka_addresses.items():
                    if own == leader and self[member_id].running and _leads(own):
                        return self[member_id]
            time.sleep(0.05)
        raise RuntimeError("no member is known to lead")


def _leads(address: str) -> bool:
    """It lists groups of consumers only then."""
    with suppress(OSError, EOFError), KafkaWire(address) as wire:
        return not wire.ask("list_groups", 0).error_code
    return False


def _leader_at(address: str) -> str | None:
    """The address of the group's leader, as this member has it."""
    with suppress(OSError, EOFError), KafkaWire(address) as wire:
        found = wire.ask("find_coordinator", 1, key="leader", key_type=0)
        if not found.error_code:
            return f"{found.host}:{found.port}"
    return None
