"""Members with etcd's gRPC API, and calls to it as any client of gRPC makes them."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Self

import grpc

from quorumlog.config import TlsOptions
from quorumlog.kv.endpoint import KeyValueEndpoint
from quorumlog.kv.etcd import messages_pb2 as pb
from quorumlog.kv.etcd.grpc_port import EtcdPort
from quorumlog.kv.service import StoreOptions
from quorumlog.kv.testing import LocalStores
from quorumlog.server.free_ports import free_ports

TIMEOUT_S = 60.0


class EtcdPorts(LocalStores):
    def __init__(
        self,
        members: int = 3,
        *,
        options: StoreOptions | None = None,
        tls: Callable[[str], TlsOptions | None] = lambda member_id: None,
    ) -> None:
        super().__init__(members, options=options, tls=tls)
        self.addresses = {
            f"n{number}": f"127.0.0.1:{port}" for number, port in enumerate(free_ports(members))
        }
        self.ports: dict[str, EtcdPort] = {}

    def _endpoints(self, member_id: str) -> list[Any]:
        (store,) = super()._endpoints(member_id)
        assert isinstance(store, KeyValueEndpoint)
        address = self.addresses[member_id]
        store._options = replace(store._options, etcd=f"http://{address}")
        self.ports[member_id] = EtcdPort(store, address, self.servers, member_id, self.tls_of(member_id))
        return [self.ports[member_id], store]

    def follower(self) -> str:
        leader = self.cluster.leader()
        return next(each for each in self.cluster.running if each != leader)


class EtcdCalls:
    """`with EtcdCalls(address) as etcd: etcd.call("KV/Put", pb.PutRequest(...))`."""

    def __init__(self, address: str, ca: bytes | None = None) -> None:
        if ca is None:
            self._channel = grpc.insecure_channel(address)
        else:
            self._channel = grpc.secure_channel(address, grpc.ssl_channel_credentials(ca))
        self.token = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._channel.close()

    def _stub(self, name: str) -> Any:
        service, _, method = name.partition("/")
        known = pb.DESCRIPTOR.services_by_name[service].methods_by_name[method]
        kinds = [
            "stream" if each else "unary" for each in (known.client_streaming, known.server_streaming)
        ]
        return getattr(self._channel, "_".join(kinds))(
            f"/etcdserverpb.{name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=getattr(pb, known.output_type.name).FromString,
        )

    @property
    def _metadata(self) -> list[tuple[str, str]]:
        return [("token", self.token)] if self.token else []

    def call(self, name: str, request: Any) -> Any:
        """Raises grpc.RpcError."""
        return self._stub(name)(request, timeout=TIMEOUT_S, wait_for_ready=True, metadata=self._metadata)

    def refusal(self, name: str, request: Any) -> tuple[str, str]:
        """(code, words)."""
        try:
            told = self.call(name, request)
        except grpc.RpcError as error:
            return error.code().name, error.details()
        raise AssertionError(f"{name} is answered with {told}")

    def put(self, key: str, value: str = "", **options: Any) -> Any:
        return self.call("KV/Put", pb.PutRequest(key=key.encode(), value=value.encode(), **options))

    def range(self, key: str, end: str = "", **options: Any) -> Any:
        return self.call(
            "KV/Range", pb.RangeRequest(key=key.encode(), range_end=end.encode(), **options)
        )

    @contextmanager
    def watches(self) -> Iterator[Watches]:
        made = Watches(self._stub("Watch/Watch"), self._metadata)
        try:
            yield made
        finally:
            made.call.cancel()


class Watches:
    """A stream of the Watch service."""

    def __init__(self, stub: Any, metadata: list[tuple[str, str]]) -> None:
        self._asked: queue.Queue[Any] = queue.Queue()
        self.call = stub(
            iter(self._asked.get, None), timeout=TIMEOUT_S, wait_for_ready=True, metadata=metadata
        )

    def create(self, key: str, end: str = "", **options: Any) -> None:
        asked = pb.WatchCreateRequest(key=key.encode(), range_end=end.encode(), **options)
        self._asked.put(pb.WatchRequest(create_request=asked))

    def cancel(self, number: int) -> None:
        self._asked.put(pb.WatchRequest(cancel_request=pb.WatchCancelRequest(watch_id=number)))

    def ask_progress(self) -> None:
        self._asked.put(pb.WatchRequest(progress_request=pb.WatchProgressRequest()))

    def next(self) -> Any:
        return next(self.call)

    def events(self, count: int) -> list[tuple[int, str, str, bool]]:
        """(watch, key, value, is it a deletion), of at least so many."""
        found: list[tuple[int, str, str, bool]] = []
        while len(found) < count:
            told = self.next()
            assert not told.canceled, told
            for each in told.events:
                is_deletion = each.type == pb.Event.DELETE
                found.append((told.watch_id, each.kv.key.decode(), each.kv.value.decode(), is_deletion))
        return found
