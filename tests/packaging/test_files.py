"""The unit, the image, the compose file and the manifests, as far as nothing is to be installed."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from quorumlog.cli.run.toml_config import ServerConfig, load_server_config
from quorumlog.config import AdminOptions
from quorumlog.server.free_ports import free_ports

ROOT = Path(__file__).parent.parent.parent
PACKAGING = ROOT / "packaging"
UNIT = PACKAGING / "systemd" / "quorumlog.service"
CONTAINER_ADMIN = AdminOptions("0.0.0.0:9464", insecure=True)
INSTALLED = "/opt/quorumlog/bin/quorumlog"


@pytest.mark.ship
@pytest.mark.parametrize("check", [["verify"], ["security", "--offline=true", "--threshold=30"]])
def test_systemd_takes_the_unit_and_finds_it_closed(check: list[str], tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    assert INSTALLED in UNIT.read_text()
    unit.write_text(UNIT.read_text().replace(INSTALLED, shutil.which("true") or "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", *check, str(unit)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert check != ["verify"] or not done.stderr, done.stderr


@pytest.mark.processes
@pytest.mark.parametrize("product", ["log", "store", "broker"])
def test_systemd_is_told_once_it_listens(product: str, tmp_path: Path) -> None:
    port, other = free_ports(2)
    member = ["--id", "n0", "--members", f"n0=127.0.0.1:{port}", "--data-dir", str(tmp_path / "n0")]
    arguments = {
        "log": ["serve", *member],
        "store": ["kv", "serve", *member, "--listen", f"127.0.0.1:{other}"],
        "broker": [
            "broker",
            "serve",
            "--dir",
            str(tmp_path / "store"),
            "--bind",
            f"127.0.0.1:{port}",
            "--topics",
            "t:1",
        ],
    }[product]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(60)
        with subprocess.Popen(
            [sys.executable, "-m", "quorumlog", *arguments],
            env={**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify")},
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            try:
                assert manager.recv(100) == b"READY=1"
                socket.create_connection(("127.0.0.1", port)).close()
            finally:
                process.terminate()
                process.communicate(timeout=60)
    assert process.returncode == 0


def test_what_runs_in_containers_names_members_that_are_there_and_asks_them_how_they_are(
    tmp_path: Path,
) -> None:
    compose: Any = yaml.safe_load((PACKAGING / "docker" / "compose.yaml").read_text())
    content = compose["configs"]["member"]["content"]
    for name, service in compose["services"].items():
        config = config_of(service["command"], content, tmp_path)
        (group,) = config.groups
        assert group.member_id == name
        assert {each.member_id for each in group.members} == set(compose["services"])
        assert service["volumes"] == [f"{name}:{group.data_dir}"]
        assert config.admin == CONTAINER_ADMIN
    documents = yaml.safe_load_all((PACKAGING / "kubernetes" / "quorumlog.yaml").read_text())
    by_kind: dict[str, Any] = {each["kind"]: each for each in documents}
    service, stateful = by_kind["Service"], by_kind["StatefulSet"]
    pod = stateful["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    name, count = stateful["metadata"]["name"], stateful["spec"]["replicas"]
    for number in range(count):
        arguments = [each.replace("$(POD_NAME)", f"{name}-{number}") for each in container["args"]]
        config = config_of(arguments, by_kind["ConfigMap"]["data"]["quorumlog.toml"], tmp_path)
        (group,) = config.groups
        assert str(group.own_address) == f"{name}-{number}.{service['metadata']['name']}:20911"
        assert config.admin == CONTAINER_ADMIN
        (mount,) = [each for each in container["volumeMounts"] if each["name"] == "data"]
        assert group.data_dir.startswith(mount["mountPath"] + "/")
    assert by_kind["PodDisruptionBudget"]["spec"]["maxUnavailable"] <= (count - 1) // 2
    assert service["spec"]["publishNotReadyAddresses"] and service["spec"]["clusterIP"] == "None"
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    dockerfile = (PACKAGING / "docker" / "Dockerfile").read_text()
    assert f":{CONTAINER_ADMIN.listen.rpartition(':')[2]}/healthz" in dockerfile
    assert f"\nUSER {pod['securityContext']['runAsUser']}\n" in dockerfile


def config_of(command: list[str], content: str, folder: Path) -> ServerConfig:
    """Of `serve` with these options, and with a file of this content where `--config` is."""
    assert command[0] == "serve"
    given = dict(each.removeprefix("--").split("=", 1) for each in command[1:])
    assert given.pop("config") == "/etc/quorumlog/quorumlog.toml"
    named = {name.replace("-", "_"): value for name, value in given.items() if name != "id"}
    path = folder / "quorumlog.toml"
    path.write_text(content)
    return load_server_config(str(path), {"member_id": given["id"], **named})


BARE = """
import importlib, sys
for extra in sys.argv[1:]:
    sys.modules[extra] = None
for name in ("testing", "bench", "broker.broker_server", "broker.dledger", "kv.endpoint", "cli.main"):
    importlib.import_module(f"quorumlog.{name}")
from quorumlog import kv
from quorumlog.kv.testing import LocalStores
with LocalStores() as stores, kv.connect(stores.servers) as store:
    store.put("k", "v")
"""
EXTRAS = (
    *("aiohttp", "cryptography", "deltalake", "grpc", "h2", "httpx", "kazoo", "obstore", "pandas"),
    *("prometheus_client", "pyarrow", "pyiceberg", "pyspark", "rocksdict"),
)


@pytest.mark.processes
def test_servers_start_where_no_extra_is_installed() -> None:
    done = subprocess.run(
        [sys.executable, "-c", BARE, *EXTRAS], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_wheels_are_built_for_the_pythons_that_the_project_names() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [
        re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", e) for e in project["classifiers"]
    ]
    makefile = (ROOT / "Makefile").read_text()
    made = re.search(r"^WHEEL_PYTHONS \?= (.*)$", makefile, re.MULTILINE)
    assert made is not None
    alone = re.findall(r"^wheel-(3\.\d+):", makefile, re.MULTILINE)
    assert [*made[1].split(), *alone] == [each[1] for each in named if each]


def test_no_typer_is_allowed_that_lacks_what_commands_take_of_it() -> None:
    """`type_descriptor` of a parameter (`quorumlog.cli.output`) is not in releases before 0.29."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (typer,) = (each for each in project["dependencies"] if each.startswith("typer"))
    least = re.fullmatch(r"typer>=(\d+)\.(\d+)(?:\.\d+)?,<1", typer)
    assert least is not None, typer
    assert (int(least[1]), int(least[2])) >= (0, 29)
