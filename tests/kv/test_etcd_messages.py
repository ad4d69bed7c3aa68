"""Messages of etcd's API: the modules are what their definitions say, and every call is handled."""

from __future__ import annotations

from pathlib import Path

from quorumlog.kv.etcd import messages_pb2 as pb
from quorumlog.kv.etcd.handlers import AUTHENTICATE, KEEP_ALIVE, METHODS, WATCH

SOURCE = Path(pb.__file__).parents[3]
DEFINITIONS = "quorumlog/kv/etcd/messages.proto"


def test_the_modules_are_those_of_the_definitions(tmp_path: Path) -> None:
    from grpc_tools import protoc

    outputs = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi")]
    assert protoc.main(["protoc", f"-I{SOURCE}", *outputs, DEFINITIONS]) == 0
    for name in ("messages_pb2.py", "messages_pb2.pyi"):
        written = (tmp_path / DEFINITIONS).with_name(name).read_text()
        assert written == (SOURCE / DEFINITIONS).with_name(name).read_text(), "run make etcd-messages"


def test_every_call_of_a_service_has_a_handler() -> None:
    named = {
        f"{service.name}/{method.name}"
        for service in pb.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }
    assert named == {*METHODS, WATCH, KEEP_ALIVE, AUTHENTICATE}
