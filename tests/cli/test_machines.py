"""quorumlog append --machine, and quorumlog ask."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from quorumlog import LocalCluster
from tests.cli.test_producers import run
from tests.node.machines import Chain


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(members=1, state_machines={"chain": Chain}) as cluster:
        yield cluster


def test_each_line_is_a_command_and_its_result_a_line(cluster: LocalCluster) -> None:
    done = run(cluster, "append", "--machine", "chain", "--producer", "p", given="a\nno\nb\n")
    first, second, third = done.stdout.splitlines()
    assert first.endswith(":a") and third.endswith(":b")
    assert second == "refused: b'no' is refused"
    assert done.returncode == 1
    again = run(cluster, "append", "--machine", "chain", "--producer", "p", given="a\nno\nb\nc\n")
    assert len(again.stdout.splitlines()) == 1, again.stdout
    assert again.returncode == 0
    asked = run(cluster, "ask", "chain", "--json")
    assert json.loads(asked.stdout) == {"answer": "3"}
    assert run(cluster, "ask", "chain", "digest").stdout.startswith("base64:")
    nobody = run(cluster, "ask", "nobody")
    assert nobody.returncode == 1
    assert "it runs: chain" in nobody.stderr
