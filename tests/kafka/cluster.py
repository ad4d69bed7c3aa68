"""Members in this process whose logs serve clients of Kafka."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from harness.kafka.wire import KafkaWire
from quorumlog.config import KafkaOptions, StoreConfig, TlsOptions
from quorumlog.kafka.endpoint import KafkaEndpoint
from quorumlog.net.tls import Tls
from quorumlog.server import LocalCluster
from quorumlog.server.free_ports import free_ports
from tests.waiting import eventually


def log_in(wire: KafkaWire, user: str, password: str) -> Any:
    """The answer to its proof by SCRAM."""
    from scramp import ScramClient

    client = ScramClient(["SCRAM-SHA-256"], user, password)
    wire.ask("sasl_handshake", 1, mechanism="SCRAM-SHA-256")
    told = wire.ask("sasl_authenticate", 0, auth_bytes=client.get_client_first().encode())
    client.set_server_first(told.auth_bytes.decode())
    return wire.ask("sasl_authenticate", 0, auth_bytes=client.get_client_final().encode())


class KafkaCluster:
    def __init__(
        self,
        members: int = 1,
        *,
        storage: StoreConfig | None = None,
        tls: Callable[[str], TlsOptions] | None = None,
        **options: Any,
    ) -> None:
        """`options`: of `KafkaOptions`."""
        ports = free_ports(members)
        self.addresses = {f"n{number}": f"127.0.0.1:{port}" for number, port in enumerate(ports)}
        self.endpoints: dict[str, KafkaEndpoint] = {}

        def endpoints(member_id: str) -> list[KafkaEndpoint]:
            endpoint = KafkaEndpoint(
                KafkaOptions(self.addresses[member_id], **options),
                member_id,
                self.addresses,
                tls=None if tls is None else Tls(tls(member_id)),
            )
            self.endpoints[member_id] = endpoint
            return [endpoint]

        self.cluster = LocalCluster(members, endpoints=endpoints, storage=storage, tls=tls)

    def __enter__(self) -> Self:
        self.cluster.start()
        self.leader()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.cluster.close()

    @property
    def servers(self) -> str:
        return ",".join(self.addresses.values())

    def leader(self) -> str:
        """Once it answers for all partitions."""

        def found() -> str:
            running = self.cluster.running
            leaders = [each for each in running if self.endpoints[each].service.leads]
            return leaders[0] if len(leaders) == 1 else ""

        return eventually(found, what="a leader of all partitions")

    def follower(self) -> str:
        leader = self.leader()
        return next(each for each in self.cluster.running if each != leader)

    def wire(self, member_id: str | None = None) -> KafkaWire:
        return KafkaWire(self.addresses[member_id or self.leader()])
