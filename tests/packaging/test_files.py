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

from quorumlog.config import parse_members
from quorumlog.server.free_ports import free_ports

ROOT = Path(__file__).parent.parent.parent
PACKAGING = ROOT / "packaging"
UNIT = PACKAGING / "systemd" / "quorumlog.service"
INSTALLED = "/opt/quorumlog/bin/quorumlog"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd-analyze")
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


def test_what_runs_in_containers_names_members_that_are_there_and_asks_them_how_they_are() -> None:
    compose: Any = yaml.safe_load((PACKAGING / "docker" / "compose.yaml").read_text())
    for name, service in compose["services"].items():
        members, options = options_of(service["command"])
        assert options["id"] == name
        assert sorted(members) == sorted(compose["services"])
        assert service["volumes"] == [f"{name}:{options['data-dir']}"]
    documents = yaml.safe_load_all((PACKAGING / "kubernetes" / "quorumlog.yaml").read_text())
    by_kind: dict[str, Any] = {each["kind"]: each for each in documents}
    assert set(by_kind) == {"Service", "PodDisruptionBudget", "StatefulSet"}
    service, stateful = by_kind["Service"], by_kind["StatefulSet"]
    (container,) = stateful["spec"]["template"]["spec"]["containers"]
    members, options = options_of(container["args"])
    name, count = stateful["metadata"]["name"], stateful["spec"]["replicas"]
    assert members == {
        f"{name}-{i}": f"{name}-{i}.{service['metadata']['name']}:20911" for i in range(count)
    }
    assert by_kind["PodDisruptionBudget"]["spec"]["maxUnavailable"] <= (count - 1) // 2
    assert service["spec"]["publishNotReadyAddresses"] and service["spec"]["clusterIP"] == "None"
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    (mount,) = [each for each in container["volumeMounts"] if each["name"] == "data"]
    assert options["data-dir"].startswith(mount["mountPath"] + "/")
    port = options["admin"].rpartition(":")[2]
    dockerfile = (PACKAGING / "docker" / "Dockerfile").read_text()
    assert f":{port}/healthz" in dockerfile
    user = str(stateful["spec"]["template"]["spec"]["securityContext"]["runAsUser"])
    assert f"\nUSER {user}\n" in dockerfile


def options_of(command: list[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Of `serve`: id of each member -> address, and what is given, by option."""
    assert command[0] == "serve"
    options = dict(each.removeprefix("--").split("=", 1) for each in command[1:])
    members = {each.member_id: str(each) for each in parse_members(options["members"])}
    return members, options


def test_wheels_are_built_for_the_pythons_that_the_project_names() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [
        re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", e) for e in project["classifiers"]
    ]
    made = re.search(r"^WHEEL_PYTHONS \?= (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert made is not None
    assert made[1].split() == [each[1] for each in named if each]
